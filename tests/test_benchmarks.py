"""The benchmark programs: recorded games come back as SB3 hands them over, sides are compared fairly, a small run works."""

import json
import mmap
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.training_utils.atari import make_env

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"

pytest.importorskip("rich")
pytest.importorskip("zstandard")
sys.path.insert(0, str(BENCHMARKS))
try:
    import buffers
    import first_fill
    import training
    from kit import data, measure, metrics, players, process, recordings, results
finally:
    sys.path.remove(str(BENCHMARKS))


class Listener(ReplayBuffer):
    """Keeps what the training loop adds, and how it lay in memory."""

    heard: list[tuple[Any, ...]]

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        cut = [info["TimeLimit.truncated"] for info in infos]
        strides = (obs.strides, next_obs.strides)
        self.heard.append((obs.copy(), next_obs.copy(), action.copy(), reward.copy(), done.copy(), cut, strides))


@pytest.mark.parametrize("stack", [4, 1])
def test_recording_is_what_sb3_adds(tmp_path: Path, stack: int) -> None:
    pytest.importorskip("ale_py")
    game, n_envs, rows = "BreakoutNoFrameskip-v4", 2, 150
    Listener.heard = []
    env = make_env(game, n_envs, DummyVecEnv, framestack=stack, seed=0)
    model = DQN("CnnPolicy", env, buffer_size=10, learning_starts=10**6, replay_buffer_class=Listener, seed=None)
    model.learn(rows * n_envs)
    heard = Listener.heard
    assert sum(step[4].sum() for step in heard) > 3, "too short to see an episode end"

    env = make_env(game, n_envs, DummyVecEnv, framestack=None, seed=0)
    recordings.record_env(env, tmp_path / "game", iter(step[2] for step in heard))
    recording = recordings.Recording(tmp_path / "game")
    played = list(recording.transitions(stack))
    assert len(played) == len(heard) >= rows
    assert recording.space(stack) == model.observation_space
    for (obs, next_obs, action, reward, done, cut, strides), mine in zip(heard, played, strict=True):
        assert np.array_equal(mine.obs, obs) and np.array_equal(mine.next_obs, next_obs)
        assert (mine.obs.strides, mine.next_obs.strides) == strides
        assert np.array_equal(mine.action, action) and np.array_equal(mine.reward, reward)
        assert np.array_equal(mine.done, done) and [info["TimeLimit.truncated"] for info in mine.infos] == cut
        for env_index in np.flatnonzero(done):
            assert np.array_equal(mine.infos[env_index]["terminal_observation"], next_obs[env_index])


def test_recording_over_several_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "_CHUNK_BYTES", 7 * 4 * 17 * 4)
    walk = data.DATASETS["vectors"]
    data.play(walk, 200, tmp_path)
    assert data.is_played(walk, 200, tmp_path) and not data.is_played(walk, 201, tmp_path)
    many = [step.obs.copy() for step in data.load(walk, tmp_path).transitions(1)]
    monkeypatch.undo()
    data.play(walk, 240, tmp_path)
    longer = [step.obs.copy() for step in data.load(walk, tmp_path).transitions(1)]
    assert (len(many), len(longer)) == (50, 60)
    assert np.array_equal(many, longer[:50])


@pytest.mark.parametrize("n_envs", [1, 4])
def test_observations_of_workers_are_what_was_sent(n_envs: int, tmp_path: Path) -> None:
    walk = replace(data.DATASETS["vectors"], n_envs=n_envs)
    data.play(walk, 10 * n_envs, tmp_path)
    recording = data.load(walk, tmp_path)
    steps = list(zip(recording.transitions(1), recordings.from_workers(recording.transitions(1)), strict=True))
    assert len(steps) == 10
    for plain, sent in steps:
        for mine, theirs in ((sent.obs, plain.obs), (sent.next_obs, plain.next_obs)):
            assert np.array_equal(mine, theirs) and mine.dtype == theirs.dtype == np.float32
            assert not np.shares_memory(mine, theirs)
            # As SubprocVecEnv hands it over: what unpickling made of the type stays only if there is nothing to stack.
            assert (mine.dtype is np.dtype(np.float32)) == (n_envs > 1)
        assert all(np.array_equal(sent[part], plain[part]) for part in (2, 3, 4)) and sent.infos == plain.infos


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Actions of an agent that "was trained", 50 steps of two games of Breakout."""
    pytest.importorskip("ale_py")
    dataset = replace(data.DATASETS["breakout-trained"], n_envs=2)
    actions = np.random.default_rng(7).integers(0, 4, (50, dataset.n_envs)).astype(np.uint8)
    game, seed = "BreakoutNoFrameskip-v4", 3
    digest = recordings.FrameDigest()
    env = make_env(game, dataset.n_envs, DummyVecEnv, framestack=4, seed=seed)
    env.reset()
    stacks = []
    for action in actions:
        obs: Any = env.step(action)[0]
        digest.update(recordings.newest_frames(obs))
        stacks.append(obs.transpose(0, 3, 1, 2))
    env.close()
    monkeypatch.setattr(players, "TRAINED", tmp_path)

    def keep(**changed: Any) -> None:
        about = {"game": game, "seed": seed, "frames": digest.hexdigest(), "versions": {"ale-py": "0.1"}, **changed}
        np.savez_compressed(tmp_path / "breakout-trained.npz", actions=actions, about=json.dumps(about))

    return SimpleNamespace(dataset=dataset, actions=actions, stacks=stacks, keep=keep, cache=tmp_path / "cache")


def test_trained_play_is_played_again(trained: SimpleNamespace) -> None:
    trained.keep()
    data.play(trained.dataset, 100, trained.cache)
    played = list(data.load(trained.dataset, trained.cache).transitions(4))
    assert np.array_equal([step.action for step in played], trained.actions)
    ended = [bool(step.done.any()) for step in played]
    for step, stack, over in zip(played, trained.stacks, ended, strict=True):
        assert over or np.array_equal(step.next_obs, stack)
    assert not all(ended)


def test_trained_play_that_comes_out_differently_is_refused(trained: SimpleNamespace) -> None:
    trained.keep(frames="00" * 16)
    with pytest.raises(ValueError, match=r"breakout-trained is not the game that was played with .*0\.1.*train_play\.py"):
        data.play(trained.dataset, 100, trained.cache)
    assert not data.is_played(trained.dataset, 100, trained.cache)
    assert not trained.cache.exists() or not list(trained.cache.iterdir()), "nothing of it stays"


def test_trained_play_is_as_long_as_it_is(trained: SimpleNamespace) -> None:
    trained.keep()
    with pytest.raises(ValueError, match="has 50 steps, 51 are needed"):
        data.play(trained.dataset, 101, trained.cache)


def plan(**given: Any) -> list[buffers.Group]:
    usual = {"dataset": None, "method": None, "codecs": False, "rounds": None, "transitions": None, "quick": False}
    return buffers.make_plan(SimpleNamespace(**{**usual, **given}))  # type: ignore[arg-type]


def test_everything_is_planned() -> None:
    groups = plan()
    keys = [group.key(method) for group in groups for method in group.methods]
    assert len(keys) == len(set(keys)), "a row would overwrite another"
    assert {f"{name}/delta" for name in data.DATASETS} < set(keys)
    assert {"mspacman/delta/optimized", "mspacman/delta-zstd"} < set(keys)
    (optimized,) = (group for group in groups if group.baseline != "sb3")
    assert (optimized.dataset, optimized.methods, optimized.baseline) == ("mspacman", ("delta",), "sb3-optimized")
    assert all(group.rounds == (3 if data.DATASETS[group.dataset].picture else 5) for group in groups)
    assert not any(group.brief for group in groups)
    assert all(group.transitions == data.DATASETS[group.dataset].transitions for group in groups)


def test_a_quick_run_of_all_data_has_one_row_of_pictures() -> None:
    names = {group.dataset for group in plan(quick=True)}
    assert {name for name in names if data.DATASETS[name].picture} == {"doom-rgb"}
    (named,) = plan(quick=True, dataset=["walker"])
    assert (named.dataset, named.rounds, named.transitions) == ("walker", 1, 1_000)


def test_sb3s_buffer_of_any_data_fits_into_five_gigabytes() -> None:
    sizes = {"84x84": 84 * 84 * 3, "96x96": 96 * 96 * 3, "160x120": 160 * 120 * 3, "210x160": 210 * 160 * 3}
    for dataset in data.DATASETS.values():
        if dataset.name == "vectors":
            continue
        frame = next((size for text, size in sizes.items() if text in dataset.title), 84 * 84 * (4 if dataset.scaled else 1))
        assert 2 * frame * dataset.stack * dataset.transitions < 5e9, dataset.name


def test_everything_selected_is_there_and_make_knows_all_pictures() -> None:
    assert set(data.SELECTED) <= set(data.DATASETS) and len(set(data.SELECTED)) == len(data.SELECTED)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (named,) = re.findall(r"^CAMERAS \?= (.*)$", makefile, re.MULTILINE)
    assert named.split() == [name for name, dataset in data.DATASETS.items() if dataset.picture]


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(players.importlib.util, "find_spec", lambda name: None)
    says = r"CarRacing 96x96 needs Box2D: pip install \"\.\[benchmarks\]\" in a clone"
    with pytest.raises(ImportError, match=says):
        data.play(data.DATASETS["carracing"], 100, tmp_path)
    walker = players.missing_for(data.DATASETS["walker"])
    assert walker is not None and "needs mujoco and dm_control" in walker
    assert players.missing_for(data.DATASETS["noise"]) is None and not list(tmp_path.iterdir())


def test_what_nobody_asked_for_is_left_out_if_it_cannot_be_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(players.importlib.util, "find_spec", lambda name: None)
    args: Any = SimpleNamespace(dataset=None, cache=tmp_path, resume=False, quick=True)
    file = results.ResultFile("buffers", tmp_path)
    buffers.measure_group(buffers.Group("crafter", ("delta",), 1, 100), args, file)
    assert "left out: Crafter 84x84 needs crafter" in capsys.readouterr().out and not file.rows


def test_noise_is_recorded_and_floats_come_from_the_game(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    data.play(data.DATASETS["noise"], 40, tmp_path)
    steps = list(data.load(data.DATASETS["noise"], tmp_path).transitions(1))
    assert len(steps) == 10 and steps[0].obs.shape == (4, 3, 84, 84) and len(np.unique(steps[0].obs)) == 256
    game, floats = data.DATASETS["mspacman"], data.DATASETS["mspacman-float"]
    data.play(game, 48, tmp_path)
    assert data.is_played(floats, 48, tmp_path), "it would be played again"
    recording = data.load(floats, tmp_path)
    space = recording.space(4)
    assert space.dtype == np.float32 and (space.low.min(), space.high.max(), space.shape) == (0, 1, (4, 84, 84))
    for step, scaled in zip(data.load(game, tmp_path).transitions(4), recording.transitions(4), strict=True):
        for plain, turned in ((step.obs, scaled.obs), (step.next_obs, scaled.next_obs)):
            assert turned.dtype == np.float32 and turned.flags.c_contiguous
            assert np.array_equal(turned, plain / np.float32(255))


def test_continuous_actions_have_a_space() -> None:
    walker = data.DATASETS["walker"]
    assert walker.action_space.shape == (6,) and walker.action_space.dtype == np.float32
    assert data.DATASETS["pong"].action_space.n == 6


def test_codecs_are_planned_for_themselves() -> None:
    groups = plan(codecs=True, dataset=["mspacman"])
    methods = [method for group in groups for method in group.methods]
    assert all((group.brief, group.rounds, group.transitions) == (True, 1, 40_000) for group in groups)
    assert len(methods) == len(set(methods)) == sum(map(len, buffers.CODECS))
    assert {"none", "rle-jit", "gzip0", "igzip3", "zstd-100", "zstd22", "lz4-frame/12", "lz4-block/9"} < set(methods)


def test_what_is_asked_for_is_planned() -> None:
    (group,) = plan(dataset=["mspacman"], method=["zstd-3"], rounds=2, transitions=100)
    assert (group.methods, group.rounds, group.transitions, group.key("zstd-3")) == (("zstd-3",), 2, 100, "mspacman/zstd-3")
    quick = plan(dataset=["mspacman", "pong"], quick=True)
    assert [(group.dataset, group.brief) for group in quick] == [("mspacman", True), ("mspacman", False), ("pong", False)]
    assert all((group.rounds, group.transitions) == (1, 4_000) for group in quick)


def test_training_runs_are_compared() -> None:
    def run(seconds: float, weights: str = "same", **more: Any) -> dict[str, Any]:
        about = {"inside": seconds / 10, "faults": 5, "weights": weights, "peak": int(seconds), "elsewhere": 0.01}
        return {**about, "seconds": seconds, **more}

    sb3, ours = [run(100.0), run(50.0)], [run(80.0), run(55.0)]
    row = training.compare({"sb3": sb3, "ours": ours})
    assert row["ratio"] == 0.9 and row["ratio_of_rounds"] == [0.8, 1.1]
    assert row["seconds"] == {"sb3": [100.0, 50.0], "ours": [80.0, 55.0]} and row["peak"] == {"sb3": 100, "ours": 80}
    assert row["identical"] and row["reached"] == {"time": True, "weights": True}
    other = training.compare({"sb3": sb3, "ours": [run(80.0), run(55.0, "other", elsewhere=0.5)]})
    assert not other["identical"] and other["reached"] == {"time": None, "weights": False}
    assert training.compare({"sb3": sb3, "ours": [run(80.0), {"error": "killed"}]}) == {"error": "killed"}
    assert training.ratios_of_rounds(ours, sb3) == [1.25, 0.9091]


def test_result_file_merges_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/some/where/benchmarks/x.py", "--rounds", "2", "--cache", "/some/where", "--resume"])
    results.ResultFile("x", tmp_path).put("a", {"rounds": 2})
    second = results.ResultFile("x", tmp_path)
    second.put("b", {"error": "no"})
    text = (tmp_path / "x.json").read_text()
    content = json.loads(text)
    assert set(content["rows"]) == {"a", "b"}
    assert content["rows"]["a"]["command"] == "python benchmarks/x.py --rounds 2 --resume"
    assert content["rows"]["a"]["measured"] == date.today().isoformat()
    assert second.has("a", rounds=2) and not second.has("a", rounds=3) and not second.has("b")
    assert "/some" not in text and os.uname().nodename not in text


def test_timings_pause_for_the_other_side() -> None:
    """What follows a pause finds its memory in no cache, so it is not timed."""
    log: list[str] = []
    times = process.time_calls(lambda: log.append("call"), 60.0, at_most=40, pause=lambda: log.append("pause"))
    assert times["n"] == 40
    assert log == ["call"] * 3 + (["pause"] + ["call"] * 6) * 8


def test_workers_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One works while the others wait; one that has less to do, or fails, does not stop them."""
    (tmp_path / "steps.py").write_text(
        "import json, os, sys, time\n"
        f"sys.path.insert(0, {str(process.BENCHMARKS)!r})\n"
        "from kit.process import report, take_turn\n"
        "job = json.loads(sys.argv[2])\n"
        "for step in range(job['steps']):\n"
        "    take_turn()\n"
        "    with open(job['log'], 'a') as log:\n"
        "        log.write(job['name'])\n"
        "        log.flush()\n"
        "        time.sleep(0.05)\n"
        "        log.write(job['name'].lower() + ' ')\n"
        "if job['name'] == 'C':\n"
        "    sys.exit('broken')\n"
        "report({'name': job['name'], 'kept': os.environ['KEPT']})\n"
    )
    monkeypatch.setattr(process, "BENCHMARKS", tmp_path)
    log = tmp_path / "log"
    jobs = {name: {"name": name, "steps": steps, "log": str(log)} for name, steps in (("A", 3), ("B", 2), ("C", 1))}
    done = process.run_in_turns("steps", jobs, {"KEPT": "yes"})
    assert log.read_text() == "Aa Bb Cc Aa Bb Aa "
    assert (done["A"]["name"], done["B"]["name"]) == ("A", "B") and "exit status 1" in done["C"]["error"]
    assert done["A"]["kept"] == "yes"


def test_time_in_the_buffer_is_that_of_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call takes one tick of this clock; what the caller does between two minibatches does not count."""
    clock = count()
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: next(clock)))

    class Rollout:
        def add(self, value: int, *, twice: bool) -> int:
            return 2 * value if twice else value

        def get(self, size: int) -> Iterator[int]:
            yield from range(size)

    buffer: Any = Rollout()
    inside = training.Inside(buffer)
    assert buffer.add(4, twice=True) == 8 and inside.seconds == 1
    batches = []
    for batch in buffer.get(3):
        batches.append(batch)
        next(clock)
    assert batches == [0, 1, 2] and inside.seconds == 1 + 3


def test_the_first_fill_is_judged_by_its_quartile() -> None:
    """Not by the pages that SB3 waits for."""

    def run(first: list[float]) -> dict[str, Any]:
        times = {metric: process.summary([2000.0]) for metric in (*buffers.TIMES, "rollout_add")}
        about = {"memory": 1, "code": 0, "construct_ms": 1, "digests": ["x"], "elsewhere": 0.0}
        return {**about, **times, "add_first": process.summary(first)}

    stalls = [run([1000.0] * 9 + [stall]) for stall in (91_000.0, 31_000.0, 61_000.0)]
    ours = [run([4000.0 + extra] * 10) for extra in (1000, 0, 9000)]
    group = buffers.Group("pong", ("delta",), rounds=3, transitions=8)
    row = buffers.make_row(group, "delta", {"sb3": stalls, "delta": ours})
    assert row["ratios"]["add_first"] == 5.0  # 5 µs to 1 µs
    assert row["ratios"]["add_full"] == 1.0


def test_the_whole_first_fill_is_that_of_the_fastest_round() -> None:
    stalls = [process.summary([1000.0] * 9 + [stall]) for stall in (91_000.0, 31_000.0, 61_000.0)]
    ours = [process.summary([4000.0 + extra] * 10) for extra in (1000, 0, 9000)]
    row = first_fill.make_row({"sb3": stalls, "delta": ours})
    assert row["ratios"]["p25"] == 5.0  # 5 µs to 1 µs
    assert row["ratios"]["mean"] == 1.0  # 4 µs to 4 µs


def test_memory_is_split_into_parts() -> None:
    """What is left is the part that does not grow with the ring."""
    rests = []
    for rows in (64, 128):
        buffer = CompressedReplayBuffer(rows * 2, spaces.Box(0, 255, (1, 36, 36), np.uint8), spaces.Discrete(3), n_envs=2)
        obs = np.random.default_rng(0).integers(0, 256, (2, 1, 36, 36), dtype=np.uint8)
        for _ in range(rows):
            buffer.add(obs, obs, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}, {}])
        usage = buffer.memory_usage()
        parts = measure.split_memory(buffer, 10**6)
        assert parts["frames"] == usage.stored_bytes > obs.nbytes // 2
        assert parts["index"] == usage.index_bytes > 0
        assert parts["columns"] == rows * 2 * (8 + 3 * 4)
        assert sum(parts.values()) == 10**6
        rests.append(parts["rest"])
    assert rests[0] > rests[1], "a larger ring has more of what is counted"


def test_a_stream_that_has_begun_is_complete() -> None:
    assert list(measure.begin(iter(range(5)))) == list(range(5))  # type: ignore[arg-type, comparison-overlap]


def test_anonymous_memory_counts_what_is_touched() -> None:
    # Straight from the system: what malloc gives may have been touched before.
    size = 32 << 20
    before = process.anonymous_bytes()
    block = np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
    assert process.anonymous_bytes() - before < 0.1 * size
    block[:] = 1
    assert process.anonymous_bytes() - before > 0.9 * size


def test_pages_are_counted_as_they_are_touched() -> None:
    size = 32 << 20
    block = np.frombuffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
    faults = process.page_faults()
    block[:] = 1
    assert process.page_faults() - faults >= size >> 21, "at least one for each two megabytes, the largest pages"
    assert process.peak_bytes() >= size


def run_small(program: str, folder: Path, *arguments: str) -> dict[str, Any]:
    """Run a program on a short game; returns the rows of its result file."""
    pytest.importorskip("ale_py")
    pytest.importorskip("matplotlib")
    command = [sys.executable, str(BENCHMARKS / f"{program}.py"), "--transitions", "400", "--rounds", "1", "--dataset", "pong"]
    folders = ["--results", str(folder / "results"), "--cache", str(folder / "cache")]
    source = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*command, *folders, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows: dict[str, Any] = json.loads((folder / "results" / f"{program}.json").read_text())["rows"]
    return rows


def test_small_run(tmp_path: Path) -> None:
    row = run_small("buffers", tmp_path, "--method", metrics.DEFAULT)["pong/delta"]
    assert row["identical"] and set(row["ratios"]) == set(metrics.METRICS)
    for picture in ("buffers.png", "buffers-data.png"):
        assert (tmp_path / "results" / picture).stat().st_size > 10_000


@pytest.mark.slow
def test_small_first_fill(tmp_path: Path) -> None:
    rows = run_small("first_fill", tmp_path)
    assert set(rows) == {"pong/huge", "pong/small"}
    assert all(set(row["ratios"]) == {"p10", "p25", "p50", "mean"} for row in rows.values())


@pytest.mark.slow
def test_small_checkpoints(tmp_path: Path) -> None:
    row = run_small("checkpoints", tmp_path)["checkpoints"]
    assert "error" not in row and 0 < row["stopped_seconds"] <= row["longest_stop_seconds"]
    assert row["next_bytes"] <= row["first_bytes"] * 1.1


@pytest.mark.slow
def test_small_datasets(tmp_path: Path) -> None:
    rows = run_small("datasets", tmp_path)
    assert set(rows) == {"dataset", "buffer"}
    assert all("error" not in row and row["batch_us"] > 0 and row["open_seconds"] > 0 for row in rows.values())


@pytest.mark.slow
def test_small_saving(tmp_path: Path) -> None:
    rows = run_small("saving", tmp_path, "--method", metrics.DEFAULT)
    assert set(rows) == {"sb3", metrics.DEFAULT}
    assert all(row["identical"] for row in rows.values())
    assert rows[metrics.DEFAULT]["bytes"] < rows["sb3"]["bytes"] / 10
