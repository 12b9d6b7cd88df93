"""What commands write over: nothing that they read, and nothing else unless they are told to."""

import os
import shutil
from pathlib import Path

import pytest
from stable_baselines3 import DQN

from sb3_extra_buffers.cli import main
from sb3_extra_buffers.recording import load_recording

for module in ("psutil", "rich"):
    pytest.importorskip(module)


@pytest.fixture(scope="module")
def a_recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "play.rec"
    assert main(["record", "cli_envs:Spots-v0", "--steps", "80", "--output", str(path)]) == 0
    return path


@pytest.fixture
def here(a_recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a recording under several names."""
    monkeypatch.chdir(tmp_path)
    for name in ("play.rec", "play.html", "play.png", "bench.json", "bench.png"):
        shutil.copy(a_recording, tmp_path / name)
    (tmp_path / "sub").mkdir()
    (tmp_path / "linked.html").symlink_to("play.html")
    os.link(tmp_path / "play.png", tmp_path / "hard.png")
    return tmp_path


@pytest.mark.parametrize(
    "argv",
    [
        ["view", "play.html", "--no-open"],
        ["view", "play.html", "--no-open", "--output", "linked.html"],
        ["view", "linked.html", "--no-open", "--output", "play.html"],
        ["export", "play.png", "play.png"],
        ["export", "play.png", "sub/../play.png"],
        ["export", "hard.png", "play.png"],
        ["bench", "bench.json", "--output", ".", "--no-plot", "--methods", "gzip"],
        ["bench", "bench.png", "--output", ".", "--methods", "gzip"],
    ],
)
@pytest.mark.parametrize("force", [False, True])
@pytest.mark.usefixtures("in_this_process")
def test_what_is_read_is_never_overwritten(
    argv: list[str], force: bool, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if force and argv[0] == "bench":
        pytest.skip("bench has no --force")
    assert main([*argv, *(["--force"] if force else [])]) == 2
    message = capsys.readouterr().err
    assert argv[1] in message and "must not be overwritten" in message and "another output" in message
    assert len(load_recording(here / argv[1])) == 80
    assert (here / "linked.html").is_symlink()


def test_a_model_is_not_overwritten_by_its_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "model.zip"
    DQN("MlpPolicy", "CartPole-v1", buffer_size=10, device="cpu").save(model)
    before = model.read_bytes()
    argv = ["record", "CartPole-v1", "--model", str(model), "--output", str(model), "--frames", "none"]
    assert main([*argv, "--force"]) == 2
    assert "must not be overwritten" in capsys.readouterr().err
    assert model.read_bytes() == before


@pytest.mark.parametrize(
    ("argv", "file"),
    [
        (["view", "play.rec", "--no-open"], "play.html"),
        (["view", "play.rec", "--no-open", "-o", "page.html"], "page.html"),
        (["export", "play.rec", "sheet.png"], "sheet.png"),
        (["record", "cli_envs:Spots-v0", "--steps", "2", "-o", "mine.rec"], "mine.rec"),
    ],
)
def test_what_is_there_is_replaced_only_by_force(
    argv: list[str], file: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("PIL")
    (here / file).write_text("months of work")
    assert main(argv) == 2
    assert f"{file} already exists; --force replaces it" in capsys.readouterr().err
    assert (here / file).read_text() == "months of work"
    assert main([*argv, "--force"]) == 0
    assert (here / file).read_bytes()[:14] != b"months of work"


@pytest.mark.usefixtures("in_this_process")
def test_a_benchmark_replaces_its_own_files(here: Path) -> None:
    argv = ["bench", "play.rec", "--no-plot", "--methods", "gzip", "--output", "out"]
    assert main(argv) == main(argv) == 0
