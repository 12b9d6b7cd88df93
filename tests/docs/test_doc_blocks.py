"""
Every code block of the README and the documentation works.

The Python blocks of a page run one after the other in one namespace, as a reader would paste them. So that a page can show
real settings and still run in seconds, rollouts and ``learn`` end early here and games run in this process; nothing else is
different. A block that cannot run anywhere has a comment above its fence, ``<!-- not run: why -->``. Commands are not run, but
must exist.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from doc_blocks import DOCS, ROOT, blocks, commands
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers.cli.app import build_parser
from sb3_extra_buffers.training_utils import atari

_OUTSIDE = [name for name in ("../README.md", "../CONTRIBUTING.md", "../examples/README.md") if (DOCS / name).exists()]
PAGES = [*_OUTSIDE, *sorted(path.name for path in DOCS.glob("*.md"))]

# Pages that run as they are written in a test of their own, with the programs they need.
ELSEWHERE = {"rl-zoo.md": "tests/clients/test_rl_zoo.py", "sbx.md": "tests/clients/test_sbx.py"}

STEPS = 140  # of an off-policy algorithm: learning_starts is 100
ROLLOUT = 32


def pages_with(language: str) -> list[str]:
    return [page for page in PAGES if page not in ELSEWHERE and any(block.language == language for block in blocks(page))]


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Shorten training, keep games in this process, and work in an empty folder."""
    learn_off_policy: Any = OffPolicyAlgorithm.learn
    learn_on_policy: Any = OnPolicyAlgorithm.learn
    make_on_policy: Any = OnPolicyAlgorithm.__init__

    def few_steps(self: Any, total_timesteps: int, *args: Any, **kwargs: Any) -> Any:
        return learn_off_policy(self, min(total_timesteps, STEPS), *args, **kwargs)

    def short_rollouts(self: Any, *args: Any, n_steps: int, **kwargs: Any) -> None:
        make_on_policy(self, *args, n_steps=min(n_steps, ROLLOUT), **kwargs)

    def one_rollout(self: Any, total_timesteps: int, *args: Any, **kwargs: Any) -> Any:
        self.n_epochs = 1
        return learn_on_policy(self, min(total_timesteps, self.n_steps * self.n_envs), *args, **kwargs)

    monkeypatch.setattr(OffPolicyAlgorithm, "learn", few_steps)
    monkeypatch.setattr(OnPolicyAlgorithm, "__init__", short_rollouts)
    monkeypatch.setattr(OnPolicyAlgorithm, "learn", one_rollout)
    _, *others = atari.make_env.__defaults__ or ()
    monkeypatch.setattr(atari.make_env, "__defaults__", (DummyVecEnv, *others))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", pages_with("python"))
@pytest.mark.usefixtures("short")
def test_python_blocks(page: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for module in ("ale_py", "cv2", "numba", "sb3_contrib"):
        pytest.importorskip(module)
    module_of_page = ModuleType("page")  # a real one: classes that a page defines can be pickled
    monkeypatch.setitem(sys.modules, "page", module_of_page)
    for block in blocks(page):
        if block.language in ("python", "diff") and block.not_run is None:
            tree = ast.parse(block.text)
            ast.increment_lineno(tree, block.line - 1)
            # An error names the page and its line.
            exec(compile(tree, str(DOCS / page), "exec", dont_inherit=True), vars(module_of_page))
    assert "no observations yet" not in capsys.readouterr().out, "it measures a buffer before anything is in it"


@pytest.mark.parametrize(("page", "test"), ELSEWHERE.items())
def test_pages_with_a_test_of_their_own(page: str, test: str) -> None:
    assert page in (ROOT / test).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_no_block_is_overlooked(page: str) -> None:
    """A fence that is indented, of tildes, or under another name for Python would not be found."""
    text = (DOCS / page).read_text(encoding="utf-8")
    found = list(blocks(page))
    fences = re.findall(r"^ *(?:```+|~~~+) *(\w+)", text, re.MULTILINE)
    assert fences == [block.language for block in found]
    known = {"python", "diff", "bash", "console", "yaml", "text", "toml", "json"}
    assert {block.language for block in found} <= known, f"say how to test it, or use one of {sorted(known)}"


# -- commands -----------------------------------------------------------------------------------------------------------------


def check_make(words: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    variables = set(re.findall(r"^([A-Z_]+) [?:]?=", makefile, re.MULTILINE))
    for word in words:
        name, is_variable, _ = word.partition("=")
        assert name in (variables if is_variable else targets), f"make knows no {name!r}"


def check_program(words: list[str]) -> None:
    ours = words[: words.index(">")] if ">" in words else words
    try:
        build_parser().parse_args(ours)
    except SystemExit as stopped:  # --help ends with 0
        assert stopped.code == 0, f"wrong usage: sb3-extra-buffers {' '.join(words)}"


def check_pip(words: list[str]) -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    extras = set(re.findall(r"^(\w+) = \[", project.split("[project.optional-dependencies]")[1].split("\n[")[0], re.MULTILINE))
    for word in words:
        if found := re.fullmatch(r"\.\[([\w,]+)\]", word):
            assert set(found[1].split(",")) <= extras, f"no such extra: {word}"


def check_python(words: list[str]) -> None:
    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]), f"no module {words[1]}"
        return
    script = ROOT / words[0]
    assert script.is_file(), f"no file {words[0]}"
    source = script.read_text(encoding="utf-8")
    # Options that programs of a folder share are declared in a module beside them.
    beside = [
        script.parent / f"{name.replace('.', '/')}.py"
        for name in re.findall(r"^(?:from|import) ([\w.]+)", source, re.MULTILINE)
    ]
    source += "".join(path.read_text(encoding="utf-8") for path in beside if path.is_file())
    for option in (word.partition("=")[0] for word in words[1:] if word.startswith("--") and word != "--help"):
        assert f'"{option}"' in source, f"{words[0]} has no {option}"


def check_eval(words: list[str]) -> None:
    check_command(shlex.split(words[0].removeprefix("$(").removesuffix(")")))


CHECKS = {
    "make": check_make,
    "sb3-extra-buffers": check_program,
    "pip": check_pip,
    "python": check_python,
    "eval": check_eval,
}
FINE = {"cd", "git"}


def check_command(words: list[str]) -> None:
    while re.match(r"[A-Z_]+=", words[0]):  # set in the environment of the command
        words = words[1:]
    program, *rest = words
    if program not in FINE:
        assert program in CHECKS, f"say in CHECKS how to check {program!r}"
        CHECKS[program](rest)


@pytest.mark.parametrize("page", sorted({*pages_with("bash"), *pages_with("console")}))
def test_commands_exist(page: str) -> None:
    written: set[str] = set()
    for words in commands(page):
        if not (words[0] == "python" and words[1] in written):
            check_command(words)
        written.update(words[words.index(">") + 1 :] if ">" in words else [])


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_sentences_exist(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for command in re.findall(r"`((?:make|python) [^`]+)`", text):
        words = command.split()
        if words[0] == "python" and not words[1].endswith(".py"):
            continue
        check_command(words)


@pytest.mark.parametrize(
    "words",
    [
        ["make", "nothing"],
        ["make", "test", "NOTHING=1"],
        ["sb3-extra-buffers", "nothing"],
        ["sb3-extra-buffers", "demo", "--nothing"],
        ["pip", "install", ".[nothing]"],
        ["python", "benchmarks/nothing.py"],
        ["python", "benchmarks/buffers.py", "--nothing"],
        ["python", "-m", "nothing"],
        ["nothing"],
    ],
    ids=" ".join,
)
def test_a_command_that_does_not_exist_is_noticed(words: list[str]) -> None:
    with pytest.raises(AssertionError):
        check_command(words)
