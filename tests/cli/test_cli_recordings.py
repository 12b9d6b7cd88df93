"""record, export, view and inspect, as one would use them; and that Ctrl-C leaves no half-written file."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import A2C, DQN, PPO, SAC, TD3

from sb3_extra_buffers.cli import main
from sb3_extra_buffers.cli.errors import UsageError
from sb3_extra_buffers.cli.record import guess_algorithm
from sb3_extra_buffers.recording import load_recording

for module in ("psutil", "rich"):
    pytest.importorskip(module)


def record(*argv: str) -> int:
    return main(["record", "cli_envs:Spots-v0", *argv])


def test_a_game_from_recording_to_video(tmp_path: Path, monkeypatch: Any, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ale_py")
    imageio = pytest.importorskip("imageio")
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.chdir(tmp_path)
    assert main(["record", "pong", "--steps", "40"]) == 0
    shown = capfd.readouterr()
    assert "40 steps, 1 episode" in shown.out and "view Pong.rec" in shown.out
    assert "Traceback" not in shown.err and "[1/1] Record Pong: 40 steps" in shown.err
    recording = load_recording("Pong.rec")
    assert len(recording) == 40 and recording.frame_shape == (210, 160, 3)

    assert main(["inspect", "Pong.rec"]) == 0
    shown = capfd.readouterr()
    for words in ("a recording", "40 in 1 episode", "uint8 (210, 160, 3), as rendered", "PongNoFrameskip-v4", "NOOP"):
        assert words in shown.out, shown.out

    assert main(["export", "Pong.rec", "pong.mp4"]) == 0
    frames = imageio.mimread("pong.mp4", memtest=False)
    assert len(frames) in (40, 41)
    scale = frames[0].shape[0] // 210
    first = np.repeat(np.repeat(recording[0].frame, scale, axis=0), scale, axis=1)
    assert np.abs(frames[0][: first.shape[0], : first.shape[1]].astype(int) - first).mean() < 8
    for name in ("pong.gif", "sheet.png"):
        assert main(["export", "Pong.rec", name]) == 0
        assert (tmp_path / name).stat().st_size > 1000
    assert main(["view", "Pong.rec", "--no-open"]) == 0
    page = (tmp_path / "Pong.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html") and "PongNoFrameskip-v4" in page
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Pong.html", "Pong.rec", "pong.gif", "pong.mp4", "sheet.png"]


def test_episodes_and_rewards(tmp_path: Path, monkeypatch: Any, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert record("--episodes", "3", "--output", "three.rec") == 0
    assert "60 steps, 3 episodes, rewards 20, 20, 20" in capfd.readouterr().out
    recording = load_recording("three.rec")
    assert [len(episode) for episode in recording.episodes()] == [20, 20, 20]
    assert recording.metadata["fps"] == 12

    assert record("-o", "three.rec") == 2
    assert "three.rec already exists; --force replaces it" in capfd.readouterr().err
    assert record("-o", "three.rec", "--force", "--frames", "none") == 0
    assert load_recording("three.rec").frame_shape is None
    capfd.readouterr()
    assert main(["bench", "three.rec", "--no-plot"]) == 2
    assert "holds no frames" in capfd.readouterr().err


def test_the_same_seed_records_the_same(tmp_path: Path) -> None:
    frames = []
    for name in ("a.rec", "b.rec"):
        assert record("--frames", "observation", "--seed", "5", "--output", str(tmp_path / name)) == 0
        frames.append(np.stack([step.frame for step in load_recording(tmp_path / name)]))
    assert np.array_equal(*frames) and frames[0].shape == (20, 40, 40, 3)


def test_a_trained_model_plays(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from sb3_extra_buffers.cli.environments import Environments, make_environments

    path = tmp_path / "model.zip"
    model = PPO("CnnPolicy", make_environments(Environments("cli_envs:Spots-v0")), n_steps=4, batch_size=4, device="cpu")
    model.save(path)
    assert record("--model", str(path), "--output", str(tmp_path / "play.rec")) == 0
    recording = load_recording(tmp_path / "play.rec")
    obs = recording[0].frame[None]
    assert recording[0].action == model.predict(obs, deterministic=True)[0][0]
    capfd.readouterr()
    # A model for other observations.
    assert main(["record", "CartPole-v1", "--model", str(path), "--output", str(tmp_path / "x.rec"), "--frames", "none"]) == 2
    assert "cannot play" in capfd.readouterr().err


@pytest.mark.parametrize("algorithm", [A2C, DQN, PPO, SAC, TD3])
def test_the_algorithm_of_a_model_is_found(algorithm: Any, tmp_path: Path) -> None:
    env_id = "CartPole-v1" if algorithm in (A2C, DQN, PPO) else "Pendulum-v1"
    algorithm("MlpPolicy", env_id, device="cpu").save(tmp_path / "model.zip")
    assert guess_algorithm(tmp_path / "model.zip") == algorithm.__name__


@pytest.mark.parametrize("name", ["QRDQN", "TRPO", "MaskablePPO", "RecurrentPPO", "TQC"])
def test_models_of_sb3_contrib_play(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    contrib = pytest.importorskip("sb3_contrib")
    env_id = "Pendulum-v1" if name == "TQC" else "CartPole-v1"
    policy = "MlpLstmPolicy" if name == "RecurrentPPO" else "MlpPolicy"
    path = tmp_path / "model.zip"
    getattr(contrib, name)(policy, env_id, device="cpu").save(path)
    assert guess_algorithm(path) == name
    options = ["--model", str(path), "--frames", "none", "--steps", "5", "--output", str(tmp_path / "play.rec")]
    assert main(["record", env_id, *options, *(["--algorithm", name.lower()] if name == "TRPO" else [])]) == 0


def test_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a model saved by SB3"):
        guess_algorithm(Path(__file__))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["record", "Spotts"], ["unknown environment 'Spotts'"]),
        (["record", "cli_envs:Blind-v0"], ["cannot render pictures", "--frames observation"]),
        (["record", "cli_envs:Spots-v0", "-o", "no/such/folder/x.rec"], ["there is no folder no/such/folder"]),
        (["record", "cli_envs:Spots-v0", "--model", "nothing.zip"], ["nothing.zip does not exist"]),
        (["export", "nothing.rec", "x.mp4"], ["nothing.rec does not exist"]),
        (["export", "text.rec", "x.mp4"], ["text.rec"]),
        (["export", "text.rec"], ["say what to make"]),
        (["export", "text.rec", "x.mp4", "--minari", "a/b-v0"], ["say what to make"]),
        (["export", "text.rec", "x.avi"], ["must end with .mp4 or .gif or .png"]),
        (["export", "text.rec", "no/x.mp4"], ["there is no folder no"]),
        (["view", "text.rec"], ["text.rec"]),
        (["view", "nothing.rec"], ["nothing.rec does not exist"]),
        (["view", "text.rec", "-o", "x.png"], ["must end with .html"]),
    ],
)
def test_mistakes(argv: list[str], words: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.rec").write_text("no recording")
    assert main(argv) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words), message
    assert "Traceback" not in message
    assert [path.name for path in tmp_path.iterdir()] == ["text.rec"]


@pytest.mark.parametrize(
    "command",
    [
        ["view", "play.rec", "--no-open"],
        ["export", "play.rec", "x.png"],
        ["bench", "play.rec", "--no-plot", "--methods", "gzip", "--output", "."],
        ["recommend", "play.rec"],
    ],
)
@pytest.mark.parametrize("damage", ["cut", "empty", "folder"])
@pytest.mark.usefixtures("in_this_process")
def test_a_damaged_file_ends_every_command_alike(
    command: list[str], damage: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    if damage == "folder":
        (tmp_path / "play.rec").mkdir()
    else:
        assert record("-o", "play.rec", "--steps", "5") == 0
        whole = (tmp_path / "play.rec").read_bytes()
        (tmp_path / "play.rec").write_bytes(whole[: len(whole) // 2 if damage == "cut" else 0])
    capsys.readouterr()
    assert main(command) == 2
    message = capsys.readouterr().err
    assert "play.rec" in message and "Traceback" not in message
    assert [path.name for path in tmp_path.iterdir()] == ["play.rec"]


@pytest.mark.parametrize(
    "command", [["export", "play.rec", "x.mp4", "--episode", "7"], ["view", "play.rec", "--episodes", "7"]]
)
def test_an_episode_that_is_not_there(command: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.chdir(tmp_path)
    assert record("-o", "play.rec") == 0
    assert main(command) == 2
    assert "no episode 7" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["play.rec"]


@pytest.mark.parametrize(
    ("module", "extra", "command"),
    [
        ("imageio_ffmpeg", "recording", ["export", "play.rec", "x.mp4"]),
        ("minari", "minari", ["export", "play.rec", "--minari", "spots/test-v0"]),
    ],
)
def test_a_missing_extra_is_named(
    module: str, extra: str, command: list[str], tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert record("-o", "play.rec") == 0
    monkeypatch.setitem(sys.modules, module, None)
    capsys.readouterr()
    assert main(command) == 2
    message = capsys.readouterr().err
    assert f'pip install ".[{extra}]"' in message and "Traceback" not in message
    assert [path.name for path in tmp_path.iterdir()] == ["play.rec"]


def test_minari(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    path = tmp_path / "play.rec"
    assert record("--episodes", "2", "--frames", "observation", "-o", str(path)) == 0
    assert main(["export", str(path), "--minari", "spots/test-v0"]) == 0
    assert "2 episodes, 40 steps" in capsys.readouterr().out
    episode = next(minari.load_dataset("spots/test-v0").iterate_episodes())
    recording = load_recording(path)
    assert np.array_equal(episode.observations[:20], recording.episode(0).frames)


def test_pickles_are_mentioned_only_where_there_is_one(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert record("--frames", "observation", "-o", "play.rec") == 0
    capsys.readouterr()
    assert main(["convert", "play.rec", "play.npz", "--allow-pickle"]) == 0
    assert "pickle" not in capsys.readouterr().err


def test_minari_replaces_by_force(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    path = tmp_path / "play.rec"
    for episodes in ("1", "2"):
        assert record("--episodes", episodes, "--frames", "observation", "-o", str(path), "--force") == 0
        export = ["export", str(path), "--minari", "spots/test-v0"]
        if episodes == "2":
            capsys.readouterr()
            assert main(export) == 2
            message = capsys.readouterr().err
            assert "already exists" in message and "--force" in message and "overwrite" not in message
        assert main([*export, *(["--force"] if episodes == "2" else [])]) == 0
    assert minari.load_dataset("spots/test-v0").total_episodes == 2


@pytest.mark.parametrize("given", [["--episodes", "-1,0"], ["--episodes=-1,0"], ["--episodes", "-1,-2"]])
def test_episodes_from_the_end(given: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert record("--episodes", "2", "-o", "play.rec") == 0
    assert main(["view", "play.rec", *given, "--no-open"]) == 0


def test_the_page_is_opened(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    path = tmp_path / "play.rec"
    assert record("-o", str(path)) == 0
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    assert main(["view", str(path), "--output", str(tmp_path / "a page.html")]) == 0
    assert opened == [(tmp_path / "a page.html").as_uri()]
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    assert main(["view", str(path)]) == 0
    assert "No browser could be started; open file://" in capsys.readouterr().err


def interrupt_when(ready: Any, argv: list[str], folder: Path) -> tuple[int, str]:
    """Run a command as a terminal does, and press Ctrl-C once it is at work."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)])}
    process = subprocess.Popen(
        [sys.executable, "-m", "sb3_extra_buffers", *argv],
        cwd=folder,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        deadline = time.monotonic() + 600
        while not ready(process):
            assert time.monotonic() < deadline and process.poll() is None, "it was done, or never began"
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=600)
    finally:
        process.kill()
    return process.returncode, errors


@pytest.mark.skipif(os.name == "nt", reason="process groups and SIGINT of POSIX")
def test_ctrl_c_while_recording(tmp_path: Path) -> None:
    def at_work(process: Any) -> bool:
        return "Record" in process.stderr.readline()

    code, errors = interrupt_when(at_work, ["record", "cli_envs:Spots-v0", "--steps", "10000000", "-o", "x.rec"], tmp_path)
    assert code == 130 and errors.strip().endswith("interrupted") and "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.name == "nt", reason="process groups and SIGINT of POSIX")
def test_ctrl_c_while_exporting(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    from sb3_extra_buffers.recording import RecordBuffer

    rng = np.random.default_rng(0)
    buffer = RecordBuffer(None, (96, 96, 3))
    frames = rng.integers(0, 255, (8, 96, 96, 3), dtype=np.uint8)
    for step in range(1500):
        buffer.add(frames[step % 8], 0.0, 0)
    buffer.save(tmp_path / "play.rec")

    def at_work(process: Any) -> bool:
        return any(path.suffix == ".mp4" and path.stat().st_size > 0 for path in tmp_path.iterdir())

    code, errors = interrupt_when(at_work, ["export", "play.rec", "x.mp4"], tmp_path)
    assert code == 130 and "Traceback" not in errors, errors
    assert [path.name for path in tmp_path.iterdir()] == ["play.rec"]
