"""The benchmark programs: recorded games come back as SB3 hands them over, tables are made from results, a small run works."""

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers.training_utils.atari import make_env

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"

pytest.importorskip("rich")
pytest.importorskip("zstandard")
sys.path.insert(0, str(BENCHMARKS))
try:
    import buffers
    import first_fill
    import gpu_buffers  # noqa: F401 (the report asks for it when the path is gone again)
    import report
    import training
    from kit import data, metrics, process, results
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
    data.record_env(env, tmp_path / "game", iter(step[2] for step in heard))
    recording = data.Recording(tmp_path / "game")
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
    monkeypatch.setattr(data, "_CHUNK_BYTES", 7 * 4 * 17 * 4)
    walk = data.DATASETS["vectors"]
    data.play(walk, 200, tmp_path)
    assert data.is_played(walk, 200, tmp_path) and not data.is_played(walk, 201, tmp_path)
    many = [step.obs.copy() for step in data.load(walk, tmp_path).transitions(1)]
    monkeypatch.undo()
    data.play(walk, 240, tmp_path)
    longer = [step.obs.copy() for step in data.load(walk, tmp_path).transitions(1)]
    assert (len(many), len(longer)) == (50, 60)
    assert np.array_equal(many, longer[:50])


def test_result_file_merges_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/some/where/benchmarks/x.py", "--rounds", "2", "--cache", "/some/where", "--resume"])
    results.ResultFile("x", tmp_path).put("a", {"rounds": 2})
    second = results.ResultFile("x", tmp_path)
    second.put("b", {"error": "no"})
    text = (tmp_path / "x.json").read_text()
    content = json.loads(text)
    assert set(content["rows"]) == {"a", "b"}
    assert content["rows"]["a"]["command"] == "python benchmarks/x.py --rounds 2 --resume"
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


@pytest.fixture
def figures(tmp_path: Path) -> SimpleNamespace:
    """A Markdown file with markers, and results for it."""
    about = {
        "machine": {"cpu": "CPU", "cores": 2, "memory_gib": 8, "system": "Linux"},
        "versions": {"stable-baselines3": "2.9.2"},
    }
    row = {"algorithm": "dqn", "steps": 20, "seconds": {"sb3": [2.0], "ours": [1.0]}, "ratio": 0.5, "identical": True}
    row |= {"kept": False, "ratio_of_rounds": [0.4, 0.5, 0.6]}
    row |= {"reached": {"time": True, "weights": True}, "peak": {"sb3": 2e9, "ours": 5e7}}
    row |= {"inside": {"sb3": [0.5], "ours": [0.25]}, "faults": {"sb3": [3_000_000], "ours": [1_500_000]}}
    (tmp_path / "training.json").write_text(json.dumps({**about, "rows": {"dqn": row}}))
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\n<!-- table: training -->\n<!-- end -->\n\nText.\n\n<!-- table: startup -->\nold\n<!-- end -->\n"
    )
    return SimpleNamespace(page=page, command=[str(page), "--results", str(tmp_path)])


def test_report_renews_once(figures: SimpleNamespace) -> None:
    old = figures.page.read_text()
    assert report.main([*figures.command, "--check"]) == 1
    assert figures.page.read_text() == old
    assert report.main(figures.command) == 0
    new = figures.page.read_text()
    whole = "2.0 s | 1.0 s | 0.500x | 0.400x to 0.600x | identical"
    parts = "0.5 / 0.2 s | 3.0 / 1.5 million | 2,000 MB / 50.0 MB"
    assert f"| DQN, 20 steps | {whole} | {parts} |" in new
    assert "`python benchmarks/training.py`" in new
    assert "\n\nText.\n\n<!-- table: startup -->\nold\n<!-- end -->\n" in new, "what has no results is left alone"
    assert report.main([*figures.command, "--check"]) == 0
    assert report.main(figures.command) == 0
    assert figures.page.read_text() == new


def test_report_knows_its_tables(figures: SimpleNamespace) -> None:
    figures.page.write_text("<!-- table: nonsense -->\n<!-- end -->\n")
    with pytest.raises(ValueError, match="nonsense"):
        report.main(figures.command)


def test_docs_are_up_to_date() -> None:
    assert report.main(["--check"]) == 0, "run `python benchmarks/report.py`"


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
def test_small_saving(tmp_path: Path) -> None:
    rows = run_small("saving", tmp_path, "--method", metrics.DEFAULT)
    assert set(rows) == {"sb3", metrics.DEFAULT}
    assert all(row["identical"] for row in rows.values())
    assert rows[metrics.DEFAULT]["bytes"] < rows["sb3"]["bytes"] / 10
