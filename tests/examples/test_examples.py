"""Every example runs, for real but briefly: SB3's buffer and ours train the same network, models are evaluated and filmed."""

from __future__ import annotations

import importlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.save_util import load_from_zip_file

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("example_*.py"))

FEW = ["--in-process", "--envs", "2", "--eval-envs", "1", "--episodes", "1"]
ROLLOUT = ["--steps", "256", "--eval-every", "128", *FEW]
REPLAY = ["--steps", "120", "--learning-starts", "100", "--buffer-size", "90", "--eval-every", "50", *FEW]
ARM = ["--steps", "130", "--eval-every", "60", "--episodes", "1"]
# Example and options, the libraries it needs, and the model and the evaluations that it leaves behind.
RUNS: dict[str, tuple[str, list[str], tuple[str, ...], str, str]] = {
    "pong": ("example_ppo_atari", ROLLOUT, ("ale_py", "cv2"), "ppo_Pong_1", "Pong/ppo"),
    "mspacman": ("example_ppo_atari", ["--game", "MsPacman", *ROLLOUT], ("ale_py", "cv2"), "ppo_MsPacman_4", "MsPacman/ppo"),
    "mspacman-dqn": ("example_dqn_atari", REPLAY, ("ale_py", "cv2"), "dqn_MsPacman_4", "MsPacman/dqn"),
    "doom-mask": ("example_ppo_vizdoom", ["--scenario", "basic", *ROLLOUT], ("vizdoom",), "ppo_basic_mask", "basic_mask/ppo"),
    "doom-rgb": (
        *("example_ppo_vizdoom", ["--scenario", "basic", "--observe", "rgb", "--method", "rle-jit", *ROLLOUT], ("vizdoom",)),
        *("ppo_basic_rgb", "basic_rgb/ppo"),
    ),
    "doom-dqn": (
        *("example_dqn_vizdoom", ["--scenario", "basic", "--method", "rle-jit", *REPLAY], ("vizdoom",)),
        *("dqn_basic_mask", "basic_mask/dqn"),
    ),
    "camera": ("example_sac_camera", ARM, (), "sac_camera", "camera/sac"),
    "her": ("example_her_images", ARM, (), "her_arm", "arm/her"),
    "maskable": ("example_maskable_ppo", ROLLOUT, ("sb3_contrib",), "maskable_ppo_maze", "maze/maskable_ppo"),
    "recurrent": ("example_recurrent_ppo", ROLLOUT, ("sb3_contrib",), "recurrent_ppo_maze", "maze/recurrent_ppo"),
}


@pytest.fixture(autouse=True)
def example_folder() -> Iterator[None]:
    """Modules of the examples can be imported, as they can when an example is run; Ctrl-C is as it was after each."""
    sys.path.insert(0, str(EXAMPLES))
    ctrl_c = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, ctrl_c)
    sys.path.remove(str(EXAMPLES))


def run(name: str, *arguments: object) -> None:
    importlib.import_module(name).main([str(argument) for argument in arguments])


def weights(path: Path) -> dict[str, th.Tensor]:
    _, parameters, _ = load_from_zip_file(path, device="cpu")
    return parameters["policy"]


# PPO on Pong and DQN on MsPacman are enough of Atari for the fast run.
@pytest.mark.parametrize("key", [pytest.param(key, marks=[pytest.mark.slow] * (key == "mspacman")) for key in RUNS])
def test_both_buffers_train_the_same_model(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, options, needed, model, logs = RUNS[key]
    for library in needed:
        pytest.importorskip(library)
    # SB3's side is not evaluated meanwhile, which must not matter.
    run(name, "train", *options, "--folder", tmp_path / "sb3", "--buffer", "sb3", "--eval-every", 10**6)
    said = capsys.readouterr().out
    assert re.search(r"\n(?!Compressed)\w+Buffer: [\d.,]+ MB of observations", said), said
    run(name, *options, "--folder", tmp_path / "ours")
    said = capsys.readouterr().out
    assert re.search(r"\nCompressed\w+Buffer: .* smaller", said), said
    assert f"saved {tmp_path / 'ours' / model}.zip" in said
    settings, _, _ = load_from_zip_file(tmp_path / "ours" / f"{model}.zip", load_data=True, device="cpu")
    method = dict(pairwise(options)).get("--method")  # the default, unless the command line has another
    assert (settings.get("replay_buffer_kwargs") or settings["rollout_buffer_kwargs"])["compression_method"] == method

    ours, theirs = weights(tmp_path / "ours" / f"{model}.zip"), weights(tmp_path / "sb3" / f"{model}.zip")
    assert ours.keys() == theirs.keys() and all(th.equal(ours[part], theirs[part]) for part in ours)
    with np.load(tmp_path / "ours" / "logs" / logs / "eval" / "evaluations.npz") as log:
        assert len(log["timesteps"]) >= 1 and log["results"].shape == (len(log["timesteps"]), 1)
    assert (tmp_path / "ours" / "logs" / logs / "best_model" / "best_model.zip").exists()


@pytest.mark.parametrize("key", ["doom-mask", "her", "maskable", "recurrent", pytest.param("pong", marks=pytest.mark.slow)])
def test_a_model_is_evaluated_and_filmed(key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    imageio = pytest.importorskip("imageio.v3")
    pytest.importorskip("imageio_ffmpeg")
    name, options, needed, model, _ = RUNS[key]
    for library in needed:
        pytest.importorskip(library)
    run(name, *options, "--folder", tmp_path)
    run(name, "evaluate", *options, "--folder", tmp_path, "--episodes", 2)
    said = capsys.readouterr().out
    assert re.search(r"Evaluated 2 episodes, mean reward: -?[\d.]+ \+/- [\d.]+\nQ1: .* Relative IQR: ", said), said
    run(name, "watch", *options, "--folder", tmp_path, "--model", tmp_path / f"{model}.zip", "--seconds", 1)
    said = capsys.readouterr().out
    shown = re.search(r"Video of (\d+) pictures in (.*), (score|not over yet)", said)
    assert shown is not None and Path(shown[2]) == tmp_path / f"{model}.mp4", said
    video = imageio.imread(tmp_path / f"{model}.mp4")
    assert len(video) == int(shown[1]) and video.max() > 50


def test_ctrl_c_keeps_the_model(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sb3_contrib")
    maze = importlib.import_module("worlds").Maze
    step, steps = maze.step, iter(range(400))

    def step_until_stopped(self: Any, action: Any) -> Any:
        if next(steps, None) is None:
            raise KeyboardInterrupt
        return step(self, action)

    monkeypatch.setattr(maze, "step", step_until_stopped)
    run("example_maskable_ppo", "--steps", 10**6, "--envs", 2, "--folder", tmp_path)
    assert "Stopped early" in capsys.readouterr().out
    assert weights(tmp_path / "maskable_ppo_maze.zip")


def test_published_settings_are_the_defaults(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    from stable_baselines3 import PPO

    from sb3_extra_buffers.compressed import CompressedRolloutBuffer

    options = ["--game", "MsPacman", "--method", "rle-jit", "--folder", tmp_path, "--eval-every", 10**6]
    run("example_ppo_atari", *ROLLOUT, *options)
    model = PPO.load(tmp_path / "ppo_MsPacman_4.zip")
    assert (model.n_steps, model.batch_size, model.n_epochs) == (128, 256, 4)
    assert (model.ent_coef, model.vf_coef, model.seed) == (0.01, 0.5, 1970626835)
    assert [model.lr_schedule(left) for left in (1, 0.5, 0)] == pytest.approx([2.5e-4, 1.25e-4, 0])
    assert [model.clip_range(left) for left in (1, 0.5, 0)] == pytest.approx([0.1, 0.05, 0])
    assert model.rollout_buffer_class is CompressedRolloutBuffer
    assert model.rollout_buffer_kwargs == {"compression_method": "rle-jit"}, "as the command line asked for"
    assert model.observation_space.shape == (4, 84, 84)


@pytest.mark.parametrize(("name", "envs"), [("example_ppo_atari", 8), ("example_dqn_atari", 4)])
def test_published_lengths_are_the_defaults(name: str, envs: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(name, "--help")
    shown = " ".join(capsys.readouterr().out.split())
    defaults = {"steps": 10_000_000, "envs": envs, "eval-every": 8_192, "eval-envs": 10, "episodes": 20, "seed": 1970626835}
    for option, value in defaults.items():
        assert re.search(rf"--{option} [A-Z_]+ [^()]*\(default: {value}\)", shown), (option, shown)


def test_no_model_is_a_message(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"no model found at .*best_model.zip or .*camera.zip: train one first"):
        run("example_sac_camera", "evaluate", "--folder", tmp_path)


@pytest.mark.parametrize(("option", "value"), [("--steps", "0"), ("--envs", "-1"), ("--buffer", "mine"), ("--steps", "many")])
def test_bad_options_are_refused(option: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run("example_sac_camera", option, value, "--folder", tmp_path)
    assert ended.value.code == 2
    assert option in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["example_eval_memory_saving", "example_eval_memory_loading"])
def test_memory_tables(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ale_py")
    pytest.importorskip("cv2")
    run(name, "--transitions", 800, "--in-process", "--methods", "delta", "gzip1", "none", "--json", tmp_path / "table.json")
    rows = {row["method"]: row for row in json.loads((tmp_path / "table.json").read_text())}
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()] == ["method", "SB3's", "delta", "gzip1", "none"]
    (sb3,) = (row for method, row in rows.items() if method.startswith("SB3"))
    # A stack is 28,224 bytes, of which SB3 keeps one for each transition here.
    assert 0.8 < sb3["bytes"] / (800 * 28_224) < 1.3
    assert rows["delta"]["bytes"] < rows["none"]["bytes"] < 0.5 * sb3["bytes"]
    assert all(row["seconds"] > 0 for row in rows.values())


def test_all_methods_of_the_published_table_are_there() -> None:
    table = importlib.import_module("memory_table")
    levels = {"zstd": (-100, -50, -20, -5, -3, -1, 1, 3, 5, 10, 15, 22), "gzip": (0, 1, 3), "igzip": (0, 1, 3)}
    levels |= {"lz4-frame/": (1, 5, 9, 12), "lz4-block/": (1, 5, 9)}
    published = {f"{name}{level}" for name, all_levels in levels.items() for level in all_levels} | {"none", "rle"}
    assert published < set(table.METHODS) and {"rle-jit", "delta", "delta-zstd"} < set(table.METHODS)


def test_doom_takes_less_as_masks_and_least_compressed(tmp_path: Path) -> None:
    """In a process of its own: memory that another test has freed would be used again, and not be counted."""
    pytest.importorskip("vizdoom")
    table = tmp_path / "table.json"
    options = ["--transitions", "400", "--scenario", "basic", "--in-process", "--json", str(table)]
    command = [sys.executable, str(EXAMPLES / "example_vizdoom_memory.py"), *options]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=600).stdout
    size = {row["method"]: row["bytes"] for row in json.loads(table.read_text())}
    assert 0.8 < size["rgb, SB3's buffer"] / (400 * 2 * 160 * 120 * 3) < 1.3
    assert 0.8 < size["mask, SB3's buffer"] / (400 * 2 * 160 * 120) < 1.3
    assert size["mask, compressed, rle-jit"] < 0.3 * size["mask, SB3's buffer"]
    assert size["mask, compressed, default"] < 0.3 * size["mask, SB3's buffer"]
    assert "For 100,000 transitions: rgb, SB3's buffer 1" in printed


@pytest.mark.parametrize("kind", ["replay", "rollout"])
def test_buffers_on_a_device(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for library in ("ale_py", "cv2", "imageio_ffmpeg"):
        pytest.importorskip(library)
    model = tmp_path / "model.zip"
    train = {"replay": ["--steps", 80, "--buffer-size", 60], "rollout": ["--steps", 256, "--envs", 2]}[kind]
    run(f"example_train_gpu_{kind}", *train, "--device", "cpu", "--model", model)
    said = capsys.readouterr().out
    assert f"saved {model}" in said and re.search(r"smaller;.*, on cpu", said), said
    run(f"example_watch_gpu_{kind}", "--model", model, "--steps", 5, "--video", tmp_path / "pong.mp4", "--device", "cpu")
    assert re.search(r"points in 5 steps\nsaved .*pong.mp4", capsys.readouterr().out)


def test_a_data_set_is_used_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from sb3_extra_buffers import open_dataset

    run("example_offline_dataset", "--collect", 60, "--steps", 104, "--ratio", 0.25, "--folder", tmp_path / "new")
    said = capsys.readouterr().out
    assert "60 transitions in" in said and re.search(r"\n\d+ episodes, mean return -?[\d.]+\n", said), said
    assert "Trained 104 steps" in said and (tmp_path / "new" / "sac_arm_offline.zip").exists()
    assert len(open_dataset(tmp_path / "new" / "arm.sb3x")) == 60


@pytest.mark.parametrize("name", NAMES)
def test_help_explains(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for library in {"maskable": ["sb3_contrib"], "recurrent": ["sb3_contrib"]}.get(name.split("_")[1], []):
        pytest.importorskip(library)
    with pytest.raises(SystemExit) as ended:
        run(name, "--help")
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"python examples/{name}.py" in said and "default: None" not in said
    if name in ("example_ppo_atari", "example_dqn_atari"):
        assert "(default: 10000000)" in said and "--method rle-jit" in said and "(default: 8192)" in said


@pytest.mark.parametrize("name", ["example_maskable_ppo", "example_recurrent_ppo"])
def test_a_missing_extra_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sb3_contrib", None)
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(SystemExit, match=r'needs the extra contrib; .* pip install "\.\[contrib\]"'):
        importlib.import_module(name)


def test_the_index_names_every_example() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\bexample_\w+(?=\.py)", text))
    assert set(NAMES) == named


@pytest.mark.slow
def test_an_example_is_a_program(tmp_path: Path) -> None:
    """As a user starts it: a process of its own, and one for each environment."""
    pytest.importorskip("ale_py")
    command = [sys.executable, EXAMPLES / "example_ppo_atari.py", "--steps", "256", "--envs", "2", "--eval-envs", "2"]
    done = subprocess.run([*command, "--folder", tmp_path], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "ppo_Pong_1.zip").exists()


@pytest.mark.slow
def test_the_learning_run_compares_both_buffers(tmp_path: Path) -> None:
    pytest.importorskip("vizdoom")
    command = [sys.executable, ROOT / "benchmarks" / "learning.py", "--results", tmp_path]
    small: list[Any] = ["--steps", "1024", "--eval-every", "128", "--episodes", "2", "--random-episodes", "4"]
    subprocess.run([*map(str, [*command, *small])], check=True)
    (row,) = json.loads((tmp_path / "learning.json").read_text())["rows"].values()
    assert row["reached"] == {"identical": True} and len(row["random"]) == 4
    assert row["runs"]["ours"]["steps"] == [1024] and (tmp_path / "learning.png").stat().st_size > 10_000


def test_the_learning_run_in_the_documentation_learned() -> None:
    (row,) = json.loads((ROOT / "benchmarks" / "results" / "learning.json").read_text())["rows"].values()
    ours, theirs = row["runs"]["ours"], row["runs"]["sb3"]
    assert all(ours[what] == theirs[what] for what in ("steps", "rewards", "weights"))
    last = np.mean(ours["rewards"][-3:])
    assert last > np.mean(row["random"]) + 5 * np.std(row["random"]) / np.sqrt(len(row["random"]))
