"""What resume refuses, what it falls back to, and what it says."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from resuming_kit import PatientCheckpoint, Walk, walks
from stable_baselines3 import DQN, PPO, SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EveryNTimesteps, StopTrainingOnMaxEpisodes
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecNormalize

import sb3_extra_buffers
from sb3_extra_buffers import (
    CompressedHerReplayBuffer,
    CompressedNStepReplayBuffer,
    CompressedReplayBuffer,
    ResumableCheckpoint,
    StorageError,
    load_buffer,
    resume,
)
from sb3_extra_buffers.storage.directory import pack_manifest
from sb3_extra_buffers.training_utils.resuming.folder import checkpoints_in


def dqn(env: Any = None, cls: Any = DQN, **options: Any) -> Any:
    """A model that has learned nothing yet."""
    options = {"replay_buffer_class": CompressedReplayBuffer} | options
    env = walks() if env is None else env
    return cls("MlpPolicy", env, buffer_size=200, learning_starts=20, batch_size=8, seed=1, device="cpu", **options)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with three checkpoints; tests copy it."""
    path: Path = tmp_path_factory.mktemp("resume") / "run"
    dqn(policy_kwargs={"net_arch": [8]}).learn(120, callback=PatientCheckpoint(path, every=40))
    return path


@pytest.fixture
def run(whole_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole_run, tmp_path / "run"))


def folders(path: Path) -> list[Path]:
    """Checkpoints, the newest one first."""
    return [Path(checkpoint.path) for checkpoint in checkpoints_in(str(path))]


def test_what_is_in_the_folder_can_be_used_by_itself(run: Path) -> None:
    newest, *older = folders(run)
    assert len(older) == 2 and newest.name == "checkpoint-000003"
    model = DQN.load(newest / "model.zip")
    buffer = load_buffer(newest / "buffer.sb3x")
    assert model.num_timesteps == 120 and buffer.size() * 2 == 120
    said = json.loads((newest / "checkpoint.json").read_text())
    assert said["algorithm"] == "stable_baselines3.DQN" and said["num_timesteps"] == said["total_timesteps"] == 120


def test_nothing_to_resume(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(FileNotFoundError, match=r"there is no complete checkpoint in .*; start the run anew"):
            resume(path, env=walks())


def test_an_unfinished_checkpoint_does_not_count_and_goes_away(run: Path) -> None:
    newest, before, _ = folders(run)
    os.rename(newest / "checkpoint.json", newest / "checkpoint.new")
    (run / "checkpoint-000009").mkdir()
    (run / "checkpoint-000010").write_text("not a folder")
    model = resume(run, env=walks())
    assert model.num_timesteps == 80
    model.learn(40, callback=ResumableCheckpoint(run, every=1000), reset_num_timesteps=False)
    assert not newest.exists() and before.exists() and not (run / "checkpoint-000009").exists()


@pytest.mark.parametrize("name", ["checkpoint-100000", "checkpoint-000002"])
@pytest.mark.parametrize("files", [["model.zip", "trainer_state.json"], ["model.zip"], ["notes/text"]], ids=len)
def test_folders_of_others_stay(tmp_path: Path, name: str, files: list[str]) -> None:
    """Hugging Face, for example, writes ``checkpoint-100000``."""
    for file in files:
        (tmp_path / name / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name / file).write_text("theirs")
    dqn().learn(60, callback=PatientCheckpoint(tmp_path, every=10, keep=2))
    assert [(tmp_path / name / file).read_text() for file in files] == ["theirs"] * len(files)
    assert len(folders(tmp_path)) == 2 and resume(tmp_path, env=walks()).num_timesteps >= 60


def test_what_is_kept_beside_a_checkpoint_stays(tmp_path: Path) -> None:
    model = dqn()
    model.learn(10, callback=ResumableCheckpoint(tmp_path))
    (first,) = folders(tmp_path)
    (first / "notes.txt").write_text("a good one")
    model.learn(60, callback=PatientCheckpoint(tmp_path, every=10, keep=1), reset_num_timesteps=False)
    assert (first / "notes.txt").read_text() == "a good one" and len(folders(tmp_path)) == 1
    assert os.listdir(first) == ["notes.txt"]


@pytest.mark.parametrize("file", ["checkpoint.json", "state.pkl", "model.zip", "buffer.sb3x/manifest.json"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_the_one_before_a_damaged_checkpoint(run: Path, file: str, damage: str) -> None:
    target = folders(run)[0] / file
    data = bytearray(target.read_bytes())
    data[len(data) // 2] ^= 16
    target.unlink()
    if damage != "gone":
        target.write_bytes(data if damage == "flipped" else data[: len(data) // 2])
    if (file, damage) == ("checkpoint.json", "gone"):
        assert resume(run, env=walks()).num_timesteps == 80  # it was never finished, as far as anybody can tell
        return
    with pytest.warns(UserWarning, match=r"is damaged \(.*\); the run goes on from checkpoint-000002, at step 80"):
        model = resume(run, env=walks())
    assert model.num_timesteps == 80 and model.replay_buffer.size() == 40


def test_all_are_damaged(run: Path) -> None:
    for folder in folders(run):
        (folder / "model.zip").write_bytes(b"")
    with pytest.raises(StorageError, match=r"none of the 3 checkpoints in .* can be read: .*model.zip is damaged"):
        resume(run, env=walks())


def flip(file: Path, place: int) -> None:
    """Damage a file, whatever other names it has."""
    data = bytearray(file.read_bytes())
    data[place] ^= 16
    file.unlink()
    file.write_bytes(data)


def own_packs(newest: Path, before: Path) -> list[Path]:
    """Packs that only the newest checkpoint has."""
    there = {pack.stat().st_ino for pack in (before / "buffer.sb3x").glob("*.pack")}
    return [pack for pack in (newest / "buffer.sb3x").glob("*.pack") if pack.stat().st_ino not in there]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_damage_is_not_handed_on(run: Path, keep: int) -> None:
    """A run goes on exactly, so it comes to the rows of the damaged checkpoint again, and does not trust its files."""
    newest, good, _ = folders(run)
    for pack in own_packs(newest, good):
        for place in range(0, pack.stat().st_size, 50):
            flip(pack, place)
    with pytest.warns(UserWarning, match="goes on from checkpoint-000002"):
        model = resume(run, env=walks())
    model.learn(80, callback=PatientCheckpoint(run, every=40, keep=keep), reset_num_timesteps=False)
    kept = [path for path in folders(run) if path != newest]
    assert len(kept) == keep, "the damaged one does not count"
    for folder in kept:
        load_buffer(folder / "buffer.sb3x")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resume(run, env=walks()).num_timesteps == 160


class Small(CompressedReplayBuffer):
    """Compresses observations of a few bytes, so that checkpoints share chunks."""

    raw_below = 0


def test_a_checkpoint_that_is_damaged_while_training_goes_on(tmp_path: Path) -> None:
    class Vandal(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps == 100:
                checkpoint._finish()
                for pack in (folders(tmp_path)[0] / "buffer.sb3x").glob("*.pack"):
                    for place in range(0, pack.stat().st_size, 50):
                        flip(pack, place)
            return True

    checkpoint = PatientCheckpoint(tmp_path, every=40)
    model = dqn(replay_buffer_class=Small)
    model.learn(160, callback=[checkpoint, Vandal()])
    again = resume(tmp_path, env=walks())
    assert again.num_timesteps == 160 and again.replay_buffer.observations[:80].tobytes() == (
        model.replay_buffer.observations[:80].tobytes()
    )


def test_a_ring_on_disk_is_not_emptied_for_a_damaged_checkpoint(tmp_path: Path) -> None:
    model = dqn(replay_buffer_class=Small, replay_buffer_kwargs={"storage_dir": str(tmp_path / "ring")})
    model.learn(120, callback=ResumableCheckpoint(tmp_path / "run", every=1000))
    model.replay_buffer.close()
    wanted = model.replay_buffer.rewards[:60].copy()
    for pack in (folders(tmp_path / "run")[0] / "buffer.sb3x").glob("*.pack"):
        for place in range(0, pack.stat().st_size, 50):
            flip(pack, place)
    with pytest.raises(StorageError, match=r"none of the 1 checkpoints in .* can be read"):
        resume(tmp_path / "run", env=walks())
    ring = Small.load(tmp_path / "ring")
    assert ring.pos == 60 and np.array_equal(ring.rewards[:60], wanted)


def test_what_counts_as_kept_is_what_can_be_resumed_from(run: Path) -> None:
    """``keep`` does not remove the checkpoint that a run goes on from because damaged ones are newer."""
    two, one, good = folders(run)
    for folder in (two, one):
        flip(folder / "state.pkl", 20)
    with pytest.warns(UserWarning, match="goes on from checkpoint-000001"):
        model = resume(run, env=walks())
    for steps in (8, 8):
        model.learn(steps, callback=PatientCheckpoint(run, every=1000, keep=3), reset_num_timesteps=False)
    there = folders(run)
    assert good in there and len(there) == 5
    model.learn(8, callback=PatientCheckpoint(run, every=1000, keep=3), reset_num_timesteps=False)
    assert [int(path.name[-6:]) for path in folders(run)] == [6, 5, 4]


def test_a_newer_version_is_not_damage(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sb3_extra_buffers.training_utils.resuming.folder.FORMAT", 0)
    with pytest.raises(StorageError, match=r"in format 2; this version reads format 0: install a newer one"):
        resume(run, env=walks())


def test_a_checkpoint_of_a_development_version_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sb3_extra_buffers.training_utils.resuming.folder.FORMAT", 3)
    with pytest.raises(StorageError, match=r"in format 2; .* reads format 3: go on with the version that wrote it, or start"):
        resume(run, env=walks())


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (lambda: walks(3), "n_envs was 2, and is 3; make them as before"),
        (lambda: walks(continuous=True), r"action_space was Discrete\(3\), and is Box"),
        (lambda: make_vec_env("CartPole-v1", n_envs=2), "observation_space was"),
        (lambda: walks(wrap=VecNormalize), "leave VecNormalize out, as before"),
    ],
)
def test_other_environments(run: Path, env: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resume(run, env=env())


def test_a_normalizer_that_is_missing(tmp_path: Path) -> None:
    dqn(walks(wrap=VecNormalize)).learn(8, callback=ResumableCheckpoint(tmp_path))
    with pytest.raises(ValueError, match="wrap them in VecNormalize, as before"):
        resume(tmp_path, env=walks())


class Mine(DQN):
    """A class of somebody's own."""


def test_algorithms_are_looked_up_or_given(run: Path, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"the checkpoint is of stable_baselines3.DQN, but algorithm is stable_baselines3.PPO"):
        resume(run, env=walks(), algorithm=PPO)
    assert type(resume(run, env=walks(), algorithm=Mine)) is Mine
    dqn(cls=Mine).learn(8, callback=ResumableCheckpoint(tmp_path / "mine"))
    with pytest.raises(TypeError, match=r"a class of your own; give it to resume: resume\(..., algorithm=Mine\)"):
        resume(tmp_path / "mine", env=walks())
    assert type(resume(tmp_path / "mine", env=walks(), algorithm=Mine)) is Mine


def test_one_environment_by_its_name(tmp_path: Path) -> None:
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=50, replay_buffer_class=CompressedReplayBuffer, device="cpu")
    model.learn(20, callback=ResumableCheckpoint(tmp_path))
    assert resume(tmp_path, env="CartPole-v1").num_timesteps == 20
    assert resume(tmp_path, env=gym.make("CartPole-v1")).num_timesteps == 20


def test_runs_are_not_mixed(run: Path) -> None:
    with pytest.raises(FileExistsError, match=r"holds the checkpoint of another run at step 120; go on with it by resume\("):
        dqn().learn(8, callback=ResumableCheckpoint(run))
    model = resume(run, env=walks())
    model.learn(8, callback=ResumableCheckpoint(run), reset_num_timesteps=False)
    model.learn(8, callback=ResumableCheckpoint(run), reset_num_timesteps=False)
    assert resume(run, env=walks()).num_timesteps == 136


def test_steps_that_start_at_zero_again_are_a_mistake(run: Path) -> None:
    with pytest.raises(ValueError, match=r"resumed at step 120, but learn\(\) has set the number of steps to 0"):
        resume(run, env=walks()).learn(8, callback=ResumableCheckpoint(run))


class Break(BaseCallback):
    """Somebody presses Ctrl-C."""

    def __init__(self, after: int = 150) -> None:
        super().__init__()
        self.after = after

    def _on_step(self) -> bool:
        if self.num_timesteps > self.after:
            raise KeyboardInterrupt
        return True


def test_a_training_that_was_broken_off_can_be_resumed_in_the_same_process(run: Path) -> None:
    """As in a notebook, where the callback of before is still there."""
    model, before = resume(run, env=walks()), PatientCheckpoint(run, every=8)
    with pytest.raises(KeyboardInterrupt):
        model.learn(1000, callback=[before, Break()], reset_num_timesteps=False)
    again = resume(run, env=walks())
    assert again.num_timesteps >= 144
    again.learn(16, callback=ResumableCheckpoint(run), reset_num_timesteps=False)
    assert resume(run, env=walks()).num_timesteps == again.num_timesteps


@pytest.mark.parametrize("is_kept", [False, True], ids=["forgotten", "shown"])
@pytest.mark.parametrize("times", [1, 3])
def test_ctrl_c_in_a_notebook_and_the_cell_again(tmp_path: Path, times: int, is_kept: bool) -> None:
    """What a cell has made is garbage once it runs again, or is held by the traceback that the notebook shows."""
    handles = open_handles()
    shown: list[BaseException] = []
    for number in range(1, times + 1):
        with pytest.raises(KeyboardInterrupt) as caught:
            cell(tmp_path, 150 + 50 * number, Break(150 + 50 * (number - 1)))
        if is_kept:
            shown.append(caught.value)
        del caught
        gc.collect()
    assert cell(tmp_path, 400) >= 400
    shown.clear()
    gc.collect()
    assert open_handles() == handles
    assert resume(tmp_path, env=walks()).num_timesteps >= 400


def cell(path: Path, steps: int, *callbacks: BaseCallback) -> int:
    """What people write in a notebook."""
    try:
        model = resume(path, env=walks())
    except FileNotFoundError:
        model = dqn()
    model.learn(
        steps - model.num_timesteps, callback=[ResumableCheckpoint(path, every=40), *callbacks], reset_num_timesteps=False
    )
    return int(model.num_timesteps)


def open_handles() -> int:
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def test_another_folder_is_fine(run: Path, tmp_path: Path) -> None:
    model = resume(run, env=walks())
    model.learn(8, callback=ResumableCheckpoint(tmp_path / "branch"), reset_num_timesteps=False)
    assert resume(run, env=walks()).num_timesteps == 120
    assert resume(tmp_path / "branch", env=walks()).num_timesteps == 128


def test_another_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    checkpoint = ResumableCheckpoint("run", every=8)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    dqn().learn(24, callback=checkpoint)
    assert resume(tmp_path / "run", env=walks()).num_timesteps == 24 and not os.listdir()
    with pytest.raises(ValueError, match="is empty; name one"):
        ResumableCheckpoint("")


def test_one_folder_for_two_callbacks(tmp_path: Path) -> None:
    both = [ResumableCheckpoint(tmp_path / "run"), ResumableCheckpoint(tmp_path / "other" / ".." / "run")]
    with pytest.raises(ValueError, match=r"two callbacks of this training write checkpoints to .*run; leave one of them out"):
        dqn().learn(8, callback=both)
    dqn().learn(8, callback=ResumableCheckpoint(tmp_path / "run"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs users, and processes of another one")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_folder_that_others_own_is_refused_at_once() -> None:
    model = dqn()
    with tempfile.TemporaryDirectory() as folder:  # not inside of one that is for this user alone
        os.chmod(folder, 0o555)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                if os.getuid() == 0:  # who may write everywhere
                    os.setuid(65534)
                model.learn(8, callback=ResumableCheckpoint(folder))
            except PermissionError as error:
                status = 0 if "choose another" in str(error) and model.num_timesteps == 0 else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0


def test_what_cannot_be_kept_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="the replay buffer is a ReplayBuffer, of which only a pickle could be made"):
        dqn(replay_buffer_class=ReplayBuffer).learn(8, callback=ResumableCheckpoint(tmp_path))
    ars = pytest.importorskip("sb3_contrib").ARS("LinearPolicy", walks(1), n_delta=1)
    with pytest.raises(TypeError, match="ARS collects no rollouts"):
        ars.learn(8, callback=ResumableCheckpoint(tmp_path))
    for wrong in ({"every": 0}, {"keep": 0}):
        with pytest.raises(ValueError, match="both must be 1 or more"):
            ResumableCheckpoint(tmp_path, **wrong)
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError, match="is not a folder"):
        dqn().learn(8, callback=ResumableCheckpoint(tmp_path / "file"))


class Hidden(Walk):
    """Keeps something that cannot be saved."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.something = iter([])


def test_environments_that_cannot_go_on_start_new_episodes(tmp_path: Path) -> None:
    """What comes next is not taken for the continuation of what came before."""
    env = make_vec_env(Hidden, n_envs=2)
    kwargs = {"replay_buffer_class": CompressedNStepReplayBuffer, "replay_buffer_kwargs": {"n_steps": 3}}
    model = dqn(env, **kwargs)
    model.learn(60, callback=ResumableCheckpoint(tmp_path))
    last = model.replay_buffer.pos - 1
    going_on = model.replay_buffer.dones[last] == 0
    assert going_on.any()
    with pytest.warns(UserWarning, match=r"environments start new episodes: Hidden.something is a builtins.list_iterator"):
        resumed = resume(tmp_path, env=make_vec_env(Hidden, n_envs=2))
    buffer = resumed.replay_buffer
    assert resumed._last_obs is None
    assert buffer.dones[last].all() and np.array_equal(
        buffer.timeouts[last] > 0, (model.replay_buffer.timeouts[last] > 0) | going_on
    )
    resumed.learn(60, callback=ResumableCheckpoint(tmp_path), reset_num_timesteps=False)
    assert resumed.num_timesteps >= 120 and 2 * buffer.size() == resumed.num_timesteps


def test_her_forgets_the_rest_of_an_episode_that_does_not_go_on(tmp_path: Path) -> None:
    def env() -> Any:
        return make_vec_env(Hidden, n_envs=2, env_kwargs={"goals": True, "continuous": True})

    options: Any = {"learning_starts": 100, "seed": 1, "device": "cpu", "replay_buffer_class": CompressedHerReplayBuffer}
    SAC("MultiInputPolicy", env(), buffer_size=200, **options).learn(60, callback=ResumableCheckpoint(tmp_path))
    with pytest.warns(UserWarning, match="start new episodes"):
        resumed = resume(tmp_path, env=env())
    assert (resumed.replay_buffer._current_ep_start == resumed.replay_buffer.pos).all()
    resumed.learn(80, reset_num_timesteps=False)


class StopHere(BaseCallback):
    """Ends a training as callbacks do."""

    def _on_step(self) -> bool:
        return self.num_timesteps < 31


def test_a_callback_has_stopped_the_training(tmp_path: Path) -> None:
    """That is in the middle of a step: the environments are further than the model."""
    for name, model in {"on": PPO("MlpPolicy", walks(), n_steps=8, batch_size=8, device="cpu"), "off": dqn()}.items():
        model.learn(100, callback=[StopHere(), ResumableCheckpoint(tmp_path / name)])
        with pytest.warns(UserWarning, match="start new episodes: training was stopped in the middle of a rollout"):
            resumed = resume(tmp_path / name, env=walks())
        assert resumed.num_timesteps == 32 and resumed._last_obs is None
        resumed.learn(32, reset_num_timesteps=False)


def test_logs_go_on(tmp_path: Path) -> None:
    """What has been recorded and not been written yet, and the number of steps that it is written with."""
    model = PPO("MlpPolicy", walks(), n_steps=8, batch_size=8, n_epochs=1, device="cpu", seed=2)
    kept: dict[str, Any] = {}

    class Keep(BaseCallback):
        def _on_rollout_start(self) -> None:
            if self.num_timesteps == 48:
                kept.update(self.logger.name_to_value)

        def _on_step(self) -> bool:
            return True

    model.learn(64, callback=[PatientCheckpoint(tmp_path, every=48), Keep()])
    shutil.rmtree(folders(tmp_path)[0])
    found: dict[str, Any] = {}
    steps = []

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            found.update(self.logger.name_to_value)
            return False

    resumed = resume(tmp_path, env=walks())
    assert resumed.num_timesteps == 48
    resumed.set_logger(type("Counted", (Logger,), {"dump": lambda self, step=0: steps.append(step)})(None, []))
    resumed.learn(16, callback=[ResumableCheckpoint(tmp_path), Look()], reset_num_timesteps=False)
    assert "train/loss" in kept and kept == found
    resumed.learn(16, reset_num_timesteps=False)
    assert steps and min(steps) > 48


class Counts(BaseCallback):
    """Keeps a bit of everything, and takes care of one thing itself."""

    def __init__(self, limit: int = 3) -> None:
        super().__init__()
        self.limit = limit
        self.history: list[float] = []
        self.window = np.zeros(3)
        self.rng = np.random.default_rng()
        self.plot = object()

    def _on_step(self) -> bool:
        self.history.append(float(self.rng.random()))
        self.window[self.n_calls % 3] += 1
        return True


class Owned(BaseCallback):
    """Has a state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.secret: list[Any] = [0, object()]

    def get_state(self) -> Any:
        return {"secret": self.secret[0]}

    def set_state(self, state: Any) -> None:
        self.secret[0] = state["secret"] + 1000

    def _on_step(self) -> bool:
        self.secret[0] += 1
        return True


def test_callbacks_of_all_kinds(tmp_path: Path) -> None:
    def callbacks(limit: int) -> tuple[Any, ...]:
        return Counts(limit), EveryNTimesteps(10, inner := Counts(limit)), Owned(), inner, StopTrainingOnMaxEpisodes(10**6)

    counts, every, owned, inner, episodes = first = callbacks(3)
    dqn().learn(60, callback=[ResumableCheckpoint(tmp_path / "run"), counts, every, owned, episodes])
    model = resume(tmp_path / "run", env=walks())
    second = callbacks(4)
    model.learn(
        2,
        callback=[ResumableCheckpoint(tmp_path / "run"), *second[:3], second[4], CheckpointCallback(10**6, str(tmp_path))],
        reset_num_timesteps=False,
    )
    assert second[0].history[: len(counts.history)] == counts.history and len(second[0].history) > len(counts.history)
    counts.rng.random(0)
    assert second[0].history[len(counts.history)] == counts.rng.random()
    assert second[0].n_calls == counts.n_calls + len(second[0].history) - len(counts.history)
    assert second[0].limit == 4, "who goes on with another setting means it"
    assert second[1].last_time_trigger >= every.last_time_trigger > 0 and inner.n_calls <= second[3].n_calls
    assert second[2].secret[0] == 1000 + second[0].n_calls
    assert second[4].n_episodes >= episodes.n_episodes > 0
    assert len(first) == 5


def test_an_archive_says_with_what_it_was_made(run: Path) -> None:
    said = json.loads((folders(run)[0] / "checkpoint.json").read_text())
    assert said["version"] == sb3_extra_buffers.__version__ and set(said["versions"]) >= {"torch", "stable_baselines3"}
    assert re.fullmatch("[0-9a-f]{16}", said["run"])


class Changed(DQN):
    """Of a version that does not understand its own files of before."""

    @classmethod
    def load(cls, *args: Any, **kwargs: Any) -> Any:
        raise AttributeError("there is no FloatSchedule")


def test_another_version_of_sb3_is_named_where_it_cannot_load_a_model(run: Path) -> None:
    with pytest.raises(AttributeError, match="there is no FloatSchedule"):
        resume(run, env=walks(), algorithm=Changed)
    path = folders(run)[0] / "checkpoint.json"
    said = json.loads(path.read_text())
    said = {name: value for name, value in said.items() if name not in ("magic", "format", "checksum")}
    said["versions"]["stable_baselines3"] = "2.3.0"
    path.write_bytes(pack_manifest(said))
    with pytest.raises(RuntimeError, match=r"no FloatSchedule. It was made with stable_baselines3 2\.3\.0 \(this is"):
        resume(run, env=walks(), algorithm=Changed)
    assert resume(run, env=walks()).num_timesteps == 120, "versions alone are no reason"


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    checkpoint = PatientCheckpoint(tmp_path, every=10, keep=2, verbose=1)
    dqn().learn(100, callback=checkpoint)
    assert len(folders(tmp_path)) == 2 and checkpoint.seconds_stopped > 0
    assert sorted(os.listdir(tmp_path)) == sorted(folder.name for folder in folders(tmp_path))


def test_no_device_but_the_one_that_is_asked_for(run: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = resume(run, env=walks(), device="cpu")
    assert model.device == th.device("cpu") == model.replay_buffer.device
