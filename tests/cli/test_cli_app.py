"""The command line as such: help, version, and errors that say what to do."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sb3_extra_buffers
from sb3_extra_buffers.cli import main
from sb3_extra_buffers.cli.errors import FAILED, INTERRUPTED, OK, WRONG_USAGE

COMMANDS = ("demo", "bench", "recommend", "record", "export", "view", "convert", "inspect", "completion")
EXTRAS = ("ale_py", "cv2", "matplotlib", "psutil", "rich")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"sb3-extra-buffers {sb3_extra_buffers.__version__}\n"


@pytest.mark.parametrize(("argv", "word"), [(["--help"], "demo"), (["demo", "--help"], "--train-steps")])
def test_help(argv: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 0
    assert word in capsys.readouterr().out


def test_no_command_shows_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "demo" in capsys.readouterr().err


def test_python_dash_m() -> None:
    done = subprocess.run([sys.executable, "-m", "sb3_extra_buffers", "--version"], capture_output=True, text=True, check=True)
    assert sb3_extra_buffers.__version__ in done.stdout


def test_help_of_every_command_needs_no_library() -> None:
    blocked = (*EXTRAS, "torch", "stable_baselines3", "gymnasium", "numba", "numpy", "imageio", "minari", "shtab", "tqdm")
    code = f"""
import sys
sys.modules.update(dict.fromkeys({blocked!r}))
from sb3_extra_buffers.cli import main
for command in {COMMANDS!r}:
    try:
        main([command, "--help"])
    except SystemExit as end:
        assert end.code == 0
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--n-envs" in done.stdout
    for command in COMMANDS:
        assert f"usage: sb3-extra-buffers {command} " in done.stdout
        assert re.search(rf"^  sb3-extra-buffers {command}\b", done.stdout, re.MULTILINE), f"{command} has no example"


def test_exit_codes_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    page = (Path(__file__).parents[2] / "docs" / "command-line.md").read_text(encoding="utf-8")
    for code in (OK, FAILED, WRONG_USAGE, INTERRUPTED):
        assert re.search(rf"^  {code}  +\w", shown, re.MULTILINE) and f"| {code} |" in page
    for command in COMMANDS:
        assert command in shown and f"sb3-extra-buffers {command}" in page
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize(
    ("argv", "module"),
    [
        (["bench", "CartPole-v1"], "matplotlib"),
        (["bench", "CartPole-v1"], "rich"),
        (["recommend", "CartPole-v1"], "psutil"),
        (["completion", "bash"], "shtab"),
    ],
)
def test_other_commands_name_a_missing_extra(argv: list[str], module: str, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(argv) == 2
    message = capsys.readouterr().err
    assert module in message and 'pip install ".[extra]"' in message


@pytest.mark.parametrize("module", EXTRAS)
def test_a_missing_extra_is_named(
    module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    assert main(["demo", "--output", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert module in message and 'pip install ".[extra]"' in message
    assert "Traceback" not in message


def test_without_a_plot_matplotlib_is_not_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["demo", "--no-plot", "--game", "nothing", "--output", str(tmp_path)]) == 2
    assert "unknown Atari game" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--game", "MsPackman"], ["unknown Atari game 'MsPackman'", "MsPacman"]),
        (["--game", "Pong-v17"], ["did you mean", "Pong"]),
        (["--game", "qqqqqqqqqq"], ["unknown Atari game 'qqqqqqqqqq'. There are"]),
        (["--game", "CartPole-v1"], ["unknown Atari game"]),
        (["--method", "zstdd"], ["unknown compression method 'zstdd'", "did you mean"]),
        (["--method", "gzip/99"], ["99"]),
        (["--size", "1_000_000_000"], ["56.4 TB", "smaller --size"]),
        (["--output", __file__], ["cannot create the folder"]),
    ],
)
def test_wrong_usage(options: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--output", str(tmp_path), *options]) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words), message
    assert "Traceback" not in message


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["recomend", "Pong"], "did you mean recommend instead of recomend?"),
        (["recommend", "Pong", "--sped", "1.2"], "did you mean --speed instead of --sped?"),
        (["recommend", "--sped=1.2"], "did you mean --speed instead of --sped?"),
        (["bench", "Pong", "--no-plto"], "did you mean --no-plot instead of --no-plto?"),
        (["record", "Pong", "--frames", "rendr"], "did you mean render instead of rendr?"),
        (["completion", "bsh"], "did you mean bash instead of bsh?"),
        (["--versoin"], "did you mean --version instead of --versoin?"),
    ],
)
def test_the_nearest_word_is_suggested(argv: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    assert capsys.readouterr().err.rstrip().endswith(words)


@pytest.mark.parametrize(
    "argv", [["qqqq", "--versoin"], ["recommend", "Pong", "--qqqqqq"], ["recommend", "--", "--sped", "1"]]
)
def test_nothing_is_suggested_that_is_far_off(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2 and "did you mean" not in capsys.readouterr().err


def test_what_a_minus_before_a_level_means_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("demo", "bench", "recommend"):
        with pytest.raises(SystemExit):
            main([command, "--help"])
        assert "zstd/3 or zstd3 is level 3, but zstd-3 is level -3" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("in_this_process")
def test_an_error_of_the_system_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "bench.json").mkdir()  # so that the file cannot take its place
    pytest.importorskip("rich")
    assert main(["bench", "CartPole-v1", "--size", "64", "--methods", "gzip", "--no-plot", "--output", str(folder)]) == 2
    error = capsys.readouterr().err
    assert "bench.json" in error and "Traceback" not in error


@pytest.mark.parametrize("option", ["--size", "--n-envs", "--train-steps", "--seed"])
@pytest.mark.parametrize("value", ["-1", "many"])
def test_wrong_numbers(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["demo", f"{option}={value}"])
    assert end.value.code == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "env_id"),
    [
        ("Pong", "PongNoFrameskip-v4"),
        ("ms-pacman", "MsPacmanNoFrameskip-v4"),
        ("PongNoFrameskip-v4", "PongNoFrameskip-v4"),
        ("ALE/Pong-v5", "ALE/Pong-v5"),
        ("ale_py:ALE/Pong-v5", "ALE/Pong-v5"),
    ],
)
def test_games_are_found(name: str, env_id: str) -> None:
    pytest.importorskip("ale_py")
    from sb3_extra_buffers.cli.environments import find_game

    assert find_game(name) == env_id


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1234, "1.23 kB"), (999_600, "1.00 MB"), (12_345_678, "12.3 MB"), (56.4e12, "56.4 TB")],
)
def test_bytes_are_readable(count: float, text: str) -> None:
    from sb3_extra_buffers._support import format_bytes

    assert format_bytes(count) == text


def prints(source: str) -> bool:
    """Whether code calls ``print``; examples in docstrings may."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return any(isinstance(call.func, ast.Name) and call.func.id == "print" for call in calls)


def test_only_the_command_line_prints() -> None:
    root = Path(sb3_extra_buffers.__file__).parent
    commands = root / "testing" / "__main__.py"
    sources = [path for path in root.rglob("*.py") if path.relative_to(root).parts[0] != "cli" and path != commands]
    assert sources and prints("if True:\n    print(1)")
    assert [str(path) for path in sources if prints(path.read_text(encoding="utf-8"))] == []
