"""What is shipped: metadata, wheel, sdist, and the package in an environment without extras."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

import sb3_extra_buffers
from sb3_extra_buffers.codecs._optional import install_hint

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).parents[1]
PROBE = ROOT / "tests" / "minimal_install_probe.py"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CODEC_EXTRAS = {"isal": "isal", "numba": "numba", "zstd": "zstandard", "lz4": "lz4"}


def bare_name(requirement: str) -> str:
    """A requirement without its version."""
    return re.split(r"[\[<>=!~;\s]", requirement)[0].lower().replace("_", "-")


def expand(extra: str) -> set[str]:
    """The names an extra brings, with the extras it refers to."""
    names = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        if own := re.fullmatch(r"sb3-extra-buffers\[(.*)\]", requirement):
            names |= set().union(*map(expand, own[1].split(",")))
        else:
            names.add(bare_name(requirement))
    return names


def run(*command: object, cwd: Path = ROOT) -> str:
    """Run a program; its output is the message if it fails."""
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_extras() -> None:
    extras = PROJECT["optional-dependencies"]
    codecs = {"isal", "numba", "zstd", "lz4", "fast"}
    assert set(extras) == codecs | {
        "extra",
        "vizdoom",
        "contrib",
        "recording",
        "minari",
        "ray",
        "all",
        "dev",
        "clients",
        "benchmarks",
    }
    for extra, library in CODEC_EXTRAS.items():
        assert expand(extra) == {library}
    assert expand("fast") == set(CODEC_EXTRAS.values())
    assert {"ale-py", "opencv-python-headless", "tqdm", "rich", "matplotlib", "tensorboard"} <= expand("extra")
    assert expand("all") == set().union(*(expand(extra) for extra in extras if extra not in ("dev", "clients", "benchmarks")))
    assert expand("clients") == {"rl-zoo3", "sbx-rl"}
    assert expand("benchmarks") == {"crafter", "dm-control", "gymnasium", "minigrid", "mujoco"}


def test_core_needs_no_codec_library() -> None:
    names = {bare_name(requirement) for requirement in PROJECT["dependencies"]}
    assert names == {"numpy", "gymnasium", "torch", "stable-baselines3"}


def test_console_script() -> None:
    assert PROJECT["scripts"] == {"sb3-extra-buffers": "sb3_extra_buffers.cli:main"}


def test_one_version() -> None:
    version = sb3_extra_buffers.__version__
    assert PROJECT["dynamic"] == ["version"]
    citation = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert citation is not None and citation[1] == version
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None and newest[1] == version


# By its name pip would install another project's package; a wheel's file name is ours.
_OURS = r"\bsb3[-_]extra[-_]buffers"
_BY_NAME = re.compile(rf"pip3? install\b[^`\n]*?{_OURS}(?![-\w.]*\.whl)(?! repository)|{_OURS}\[", re.IGNORECASE)


def test_nobody_is_told_to_install_the_package_of_another_project() -> None:
    texts = [*ROOT.glob("*.md"), *(path for top in ("src", "docs", "examples") for path in (ROOT / top).rglob("*.*"))]
    texts = [path for path in texts if path.suffix in (".md", ".py", ".pyi", ".pyx", ".html", ".toml", ".sh")]
    assert len(texts) > 100
    told = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _BY_NAME.search(line)
    ]
    assert told == []


def test_the_wrong_way_to_install_is_noticed() -> None:
    for wrong in ('pip install "sb3-extra-buffers[zstd]"', "pip install -U sb3_extra_buffers", "'sb3-extra-buffers[{extra}]'"):
        assert _BY_NAME.search(wrong), wrong
    wheel = "sb3_extra_buffers-1.0.0-cp312-cp312-win_amd64.whl"
    for fine in (install_hint("zstd"), f"pip install '{wheel}[zstd]'", "pip install ."):
        assert not _BY_NAME.search(fine), fine


def test_constraints_pin_all_we_name() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.match(r"[a-z0-9.-]+==[\w.]+(; python_version >= \"3\.\d+\")?$", pin) for pin in pins)
    named = {bare_name(requirement) for requirement in PROJECT["dependencies"]}
    named |= expand("all") | expand("dev") | expand("clients") | expand("benchmarks")
    assert named <= {bare_name(pin) for pin in pins}


def is_source_of_the_core(path: Path) -> bool:
    """Whether a file is compiled, or included by one that is."""
    return path.suffix in (".c", ".h", ".inc", ".pyx", ".pxi", ".pxd") and path.name != "_core.c"


CORE_SOURCES = {path for path in (ROOT / "src").rglob("*") if is_source_of_the_core(path)}


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_make_compiles_the_core_before_anything_that_needs_it() -> None:
    for target in ("demo", "test", "test-all", "lint", "bench", "bench-quick", "bench-cameras", "docs", "install"):
        assert "setup.py build_ext --inplace" in run("make", "--dry-run", "--always-make", target), target


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_make_compiles_again_when_a_source_has_changed(tmp_path: Path) -> None:
    for name in (".installed", ".installed-development", ".compiled"):
        (tmp_path / name).touch()
    make = ("make", "--dry-run", f"VENV={tmp_path}", "test")
    assert "build_ext" not in run(*make)
    for source in (ROOT / "setup.py", *CORE_SOURCES):
        assert "build_ext" in run(*make[:2], f"--what-if={source.relative_to(ROOT)}", *make[2:]), source


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_make_installs_the_clients_for_test_all_alone() -> None:
    would_do = {target: run("make", "--dry-run", "--always-make", target) for target in ("test", "test-all", "lint", "demo")}
    assert {target for target, commands in would_do.items() if "clients]" in commands} == {"test-all"}


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_make_installs_little_for_the_demo(tmp_path: Path) -> None:
    fresh = {target: run("make", "--dry-run", f"VENV={tmp_path}", target) for target in ("demo", "test", "lint")}
    assert {target for target, commands in fresh.items() if "all,dev]" in commands} == {"test", "lint"}
    for name in (".installed", ".compiled"):
        (tmp_path / name).touch()
    assert "pip install" not in run("make", "--dry-run", f"VENV={tmp_path}", "demo")
    assert "all,dev]" in run("make", "--dry-run", f"VENV={tmp_path}", "test")


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")
def test_make_installs_nothing_twice(tmp_path: Path) -> None:
    """What the tests need has all that the demo needs. The interpreter only writes down what it is asked to do."""
    python, log = tmp_path / "bin" / "python", tmp_path / "log"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\n')
    python.chmod(0o755)
    for _ in range(2):
        run("make", f"VENV={tmp_path}", "install")
    asked = log.read_text()
    assert re.findall(r"-e (\S+)", asked) == [".[all,dev]"]
    assert "build_ext" not in asked, "pip has compiled the core"


def test_importing_the_package_is_light() -> None:
    code = "import sys, sb3_extra_buffers; assert not {'torch', 'numpy', 'stable_baselines3'} & set(sys.modules)"
    run(sys.executable, "-c", code)


def test_without_optional_libraries() -> None:
    run(sys.executable, PROBE, "--block")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist."""
    out = tmp_path_factory.mktemp("dist")
    # As a release is made: the sdist from the tree, the wheel from the sdist.
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out)
    return out


@pytest.mark.slow
def test_wheel_holds_the_package_alone(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    version = sb3_extra_buffers.__version__
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    assert wheel.name == f"sb3_extra_buffers-{version}-{python}-{python}-{platform}.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    info = f"sb3_extra_buffers-{version}.dist-info/"
    source = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src" / "sb3_extra_buffers").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path not in CORE_SOURCES and path.name != "_core.c"
        if path.suffix not in (".so", ".pyd")
    }
    core = f"sb3_extra_buffers/storage/_core{sysconfig.get_config_var('EXT_SUFFIX')}"
    assert {name for name in names if not name.startswith(info)} == source | {core}
    beside = {"py.typed", "storage/_core.pyi", "recording/viewer.html", "recording/viewer.js"}
    assert {f"sb3_extra_buffers/{name}" for name in beside} <= names
    assert zipfile.ZipFile(wheel).getinfo(core).file_size < 1_000_000, "it has debug information"
    assert {info + "METADATA", info + "entry_points.txt", info + "licenses/LICENSE"} <= names


@pytest.mark.slow
def test_sdist_holds_all_to_work_with(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/")[2]: member for member in archive.getmembers() if member.isfile()}
    wanted = {"pyproject.toml", "Makefile", "constraints.txt", "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff"}
    wanted |= {"CONTRIBUTING.md", ".ci/run", "docs/conf.py", "docs/index.md", "tests/test_packaging.py"}
    wanted |= {"setup.py", "scripts/with_compiler.py", "tests/native/Makefile"}
    wanted |= {path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/*.py")}
    wanted |= {path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/native/*.[ch]")}
    wanted |= {path.relative_to(ROOT).as_posix() for path in CORE_SOURCES}
    assert len(CORE_SOURCES) > 10
    assert wanted <= set(members)
    assert members[".ci/run"].mode & 0o111, ".ci/run must stay executable"
    unwanted = r"__pycache__|\.pyc$|\.so$|\.pyd$|/_core\.c$|^\.venv|_build/|^\.git/|cache/"
    assert not [name for name in members if re.search(unwanted, name)]


@pytest.mark.slow
def test_clean_environment_without_extras(dist: Path, tmp_path: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    bin_dir = tmp_path / "venv" / ("Scripts" if sys.platform == "win32" else "bin")
    python = bin_dir / "python"
    run(python, "-m", "pip", "install", "--disable-pip-version-check", "-c", ROOT / "constraints.txt", wheel)
    # Away from the tree and with -I, so that nothing but the installed package can be found.
    where = run(python, "-I", "-c", "import sb3_extra_buffers; print(sb3_extra_buffers.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)
    run(python, "-I", PROBE, cwd=tmp_path)
    run(bin_dir / "sb3-extra-buffers", "--help", cwd=tmp_path)


@pytest.mark.slow
def test_without_a_compiler_it_says_what_to_install(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path), "--build-temp", str(tmp_path)]
    environment = {**os.environ, "CC": str(tmp_path / "no-compiler")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "apt install gcc" in done.stderr and "pip install ziglang" in done.stderr
