"""Buffers among processes and threads, their size in memory, and life without numba."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from buffer_worlds import World, add_transition
from gymnasium import spaces
from observation_streams import METHODS, Stack, Stream, needs_numba
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.compressed import CompressedReplayBuffer

TESTS = Path(__file__).parents[1]
SPACE = spaces.Box(0, 255, (4, 36, 36), np.uint8)


def run_program(code: str, *arguments: object) -> str:
    """Run Python code in a process of its own; a failed assertion in it is shown here."""
    path = os.pathsep.join([str(TESTS), str(TESTS / "buffers"), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def pair(seed: int, method: str | None = None, rows: int = 60) -> tuple[Any, Any]:
    """Our buffer and SB3's, filled with the same."""
    ours = CompressedReplayBuffer(2 * rows, SPACE, spaces.Discrete(3), "cpu", n_envs=2, compression_method=method)
    theirs = ReplayBuffer(2 * rows, SPACE, spaces.Discrete(3), "cpu", n_envs=2)
    stream = Stream(seed, 2, (1, 36, 36), np.uint8, "mixed", Stack(4, 0))
    world = World(stream, ["channels last"], np.random.default_rng(seed))
    for _ in range(rows + rows // 2):
        add_transition(world, ours, theirs)
    return ours, theirs


# -- size -------------------------------------------------------------------------------------------------------------


@pytest.mark.memory
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    ("n_envs", "options"), [(1, "{}"), (8, "{'optimize_memory_usage': True}"), (1, "{'compression_method': 'gzip1'}")]
)
def test_a_million_transitions_are_constructed_in_little_memory(n_envs: int, options: str) -> None:
    """Nothing of full size is ever allocated: SB3's buffer would take 56 GB."""
    code = """
    import resource, sys
    import numpy as np
    from gymnasium import spaces
    from sb3_extra_buffers.compressed import CompressedReplayBuffer

    def rss():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    def use(buffer):
        frame = np.ones((n_envs, 4, 84, 84), np.uint8)
        zeros = np.zeros(n_envs)
        for row in range(20):
            buffer.add(frame * row, frame * row + 1, zeros, zeros, zeros, [{}] * n_envs)
        buffer.sample(32)

    def make(size):
        return CompressedReplayBuffer(size, space, spaces.Discrete(6), "cpu", n_envs=n_envs, **eval(sys.argv[2]))

    n_envs = int(sys.argv[1])
    space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
    fresh = rss()
    buffer = make(1_000_000)
    grown = rss() - fresh
    assert buffer.observations.shape == (1_000_000 // n_envs, n_envs, 4, 84, 84)
    assert grown < 64e6, f"{grown / 1e6:.1f} MB"
    use(make(1000))  # loads compiled code, which is the same for any size
    before = rss()
    use(buffer)
    grown = rss() - before
    assert grown < 16e6, f"{grown / 1e6:.1f} MB by use"
    """
    run_program(code, n_envs, options)


# -- threads ----------------------------------------------------------------------------------------------------------


class TestThreads:
    """NumPy's global generator is not made for threads, so batches are asked for by their indices here."""

    def read(self, buffer: Any, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        rows, columns = rng.integers(0, 60, 40), rng.integers(0, 2, 40)
        return buffer.observations[rows, columns], buffer.next_observations[rows, columns]

    def work(self, jobs: list[tuple[Any, Any]]) -> None:
        """Each thread reads from our buffer what SB3's holds, again and again."""
        wrong: list[Any] = []

        def reader(ours: Any, theirs: Any, first: int) -> None:
            try:
                for seed in range(first, first + 60):
                    for got, expected in zip(self.read(ours, seed), self.read(theirs, seed), strict=True):
                        if got.tobytes() != expected.tobytes():
                            wrong.append(seed)
            except BaseException as error:
                wrong.append(error)
                raise

        threads = [threading.Thread(target=reader, args=(*job, 100 * number)) for number, job in enumerate(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong

    @pytest.mark.parametrize("method", METHODS)
    def test_same_buffer(self, method: str | None) -> None:
        self.work([pair(0, method)] * 3)

    @pytest.mark.parametrize("method", METHODS)
    def test_different_buffers(self, method: str | None) -> None:
        self.work([pair(seed, method) for seed in range(2)] * 2)

    def test_adding_beside_a_reader_of_another_buffer(self) -> None:
        ours, theirs = pair(1)
        writer = threading.Thread(target=lambda: [pair(seed) for seed in range(3)])
        writer.start()
        self.work([(ours, theirs)])
        writer.join()

    def test_sampling_threads(self) -> None:
        """``sample`` itself: what each thread gets is a row of SB3's, whichever the generator chose."""
        ours, theirs = pair(2)
        known = {theirs.observations[row, env].tobytes() for row in range(60) for env in range(2)}
        wrong: list[Any] = []

        def sampler() -> None:
            for _ in range(60):
                sample = ours.sample(24)
                if not all(obs.tobytes() in known for obs in sample.observations.numpy()):
                    wrong.append(1)

        threads = [threading.Thread(target=sampler) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not wrong


# -- processes --------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("method", ["delta", "gzip1"])
def test_a_forked_child_writes_for_itself(method: str) -> None:
    """Segments are private memory: what a forked child adds does not reach its parent, and it can sample as before."""
    if method not in METHODS:
        pytest.skip(f"{method} is not installed")
    code = """
    import os, sys
    import numpy as np
    from test_buffer_processes import pair
    from observation_streams import assert_same_samples, sampled

    ours, theirs = pair(0, sys.argv[1])
    large = np.arange(120) % 60, np.arange(120) % 2
    ours.observations[np.tile(large[0], 8), np.tile(large[1], 8)]  # large enough to start the helper thread
    child = os.fork()
    if child == 0:
        code = 1
        try:
            assert_same_samples(sampled(ours, 1, 32)[0], sampled(theirs, 1, 32)[0])
            ours.observations[np.tile(large[0], 8), np.tile(large[1], 8)]
            noise = np.random.default_rng(0)
            for _ in range(200):
                obs = noise.integers(0, 256, (2, 4, 36, 36), dtype=np.uint8)
                zeros = np.zeros(2)
                ours.add(obs, obs, zeros, zeros, zeros, [{}, {}])
            ours.sample(32)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    for seed in range(5):
        assert_same_samples(sampled(ours, seed, 64)[0], sampled(theirs, seed, 64)[0])
    """
    run_program(code, method)


@pytest.mark.parametrize(("start", "method"), [("spawn", None), ("forkserver", "gzip1")])
def test_buffers_are_sent_to_other_processes(start: str, method: str | None, tmp_path: Path) -> None:
    code = """
    import multiprocessing, sys
    from test_buffer_processes import pair
    from observation_streams import assert_same_samples, sampled

    def work(buffer, results):
        results.put([part.numpy() for part in sampled(buffer, 7, 16)[0][:3]])

    def main():
        method = None if sys.argv[1] == "None" else sys.argv[1]
        ours, theirs = pair(3, method)
        context = multiprocessing.get_context(sys.argv[2])
        results = context.Queue()
        process = context.Process(target=work, args=(ours, results))
        process.start()
        got = results.get(timeout=600)
        process.join()
        for one, other in zip(got, sampled(theirs, 7, 16)[0], strict=False):
            assert one.tobytes() == other.numpy().tobytes()
    """
    # Another process imports the function by the name of its module, so there has to be one.
    (tmp_path / "sent_buffers.py").write_text(textwrap.dedent(code), encoding="utf-8")
    run_program(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import sent_buffers; sent_buffers.main()", method, start)


# -- without numba ----------------------------------------------------------------------------------------------------

BLOCK = """
import sys
from importlib.abc import MetaPathFinder

class Blocker(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "numba":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.mark.parametrize("method", [method for method in METHODS if method is None or method.startswith("delta")])
def test_delta_without_numba(method: str | None) -> None:
    """The default is the default everywhere, and nothing needs saying."""
    code = BLOCK + textwrap.dedent(f"""
    import logging, warnings
    warnings.simplefilter("error")
    records = []
    class Collect(logging.Handler):
        def emit(self, record):
            records.append(record)
    logging.getLogger().addHandler(Collect())

    from observation_streams import assert_same_samples, sampled
    from test_buffer_processes import pair

    for seed in range(3):
        ours, theirs = pair(seed, {method!r})
        assert_same_samples(sampled(ours, seed, 32)[0], sampled(theirs, seed, 32)[0])
    assert ours.observations.compression_method == {method or "delta"!r}
    assert not [record for record in records if record.name.startswith("sb3_extra_buffers")]
    assert "numba" not in sys.modules
    """)
    run_program(code)


@pytest.mark.parametrize("method", [method for method in METHODS if str(method).startswith("delta")])
def test_pickled_delta_buffer_without_numba(method: str, tmp_path: Path) -> None:
    """A buffer that was saved where numba is installed is loaded where it is not, and gives the same samples."""
    path = tmp_path / "buffer.pkl"
    ours, theirs = pair(0, method)
    path.write_bytes(pickle.dumps((ours, theirs)))
    code = BLOCK + textwrap.dedent("""
    import pickle
    from observation_streams import assert_same_samples, sampled

    with open(sys.argv[1], "rb") as file:
        ours, theirs = pickle.load(file)
    for seed in range(3):
        assert_same_samples(sampled(ours, seed, 32)[0], sampled(theirs, seed, 32)[0])
    assert "numba" not in sys.modules
    """)
    run_program(code, path)


@needs_numba
def test_a_pickled_rle_jit_buffer_without_numba(tmp_path: Path) -> None:
    """``rle-jit`` falls back to plain run lengths, whose bytes are the same, and says what is missing."""
    path = tmp_path / "buffer.pkl"
    path.write_bytes(pickle.dumps(pair(0, "rle-jit")))
    code = BLOCK + textwrap.dedent("""
    import pickle, warnings
    from observation_streams import assert_same_samples, sampled

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with open(sys.argv[1], "rb") as file:
            ours, theirs = pickle.load(file)
        got = sampled(ours, 0, 32)[0]
    assert any('".[numba]"' in str(warning.message) for warning in caught), caught
    assert_same_samples(got, sampled(theirs, 0, 32)[0])
    """)
    run_program(code, path)
