"""A saved buffer that was damaged on disk: loading or reading it may fail, but never crashes the process."""

from __future__ import annotations

import subprocess
import sys

import pytest
from observation_streams import METHODS

PROGRAM = """
import faulthandler, io, pickle, pickletools, random, sys
import numpy as np
from gymnasium import spaces
from sb3_extra_buffers.compressed import CompressedReplayBuffer

faulthandler.enable()
space, rng = spaces.Box(0, 255, (4, 24, 24), np.uint8), np.random.default_rng(0)
buffer = CompressedReplayBuffer(160, space, spaces.Discrete(3), "cpu", 2, compression_method=METHOD)
background = rng.integers(0, 255, (2, 24, 24), np.uint8)
history = [np.zeros_like(background)] * 4

def step(buffer):
    before = np.stack(history, 1)
    frame = background.copy()
    frame[:, rng.integers(24)] = rng.integers(255)
    history[:] = [*history[1:], rng.integers(0, 255, (2, 24, 24), np.uint8) if rng.random() < 0.1 else frame]
    buffer.add(before, np.stack(history, 1), np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}, {}])

for _ in range(110):
    step(buffer)
saved = pickle.dumps(buffer)

class Cautious(pickle.Unpickler):
    # A damaged name could be that of any function. What is tested here is what our own classes make of damage.
    def find_class(self, module, name):
        assert module.split(".")[0] in {"sb3_extra_buffers", "numpy", "gymnasium", "torch", "collections", "random", "_codecs"}
        return super().find_class(module, name)

# Where the arrays lie in the file: so that a small one, such as an index, is hit as often as the large ones.
operations = list(pickletools.genops(saved))
ends = [place for _, _, place in operations[1:]] + [len(saved)]
values = [value if isinstance(value, (bytes, bytearray)) else b"" for _, value, _ in operations]
arrays = [(end - len(value), end) for value, end in zip(values, ends) if len(value) > 32]
assert len(arrays) > 5, len(arrays)

random.seed(SEED)
loaded = read = 0
for case in range(CASES):
    data = bytearray(saved)
    span = random.choice([(0, len(data)), random.choice(arrays), random.choice(arrays)])
    for _ in range(random.choice([1, 1, 1, 4])):
        place = random.randrange(*span)
        data[place] = random.choice([data[place] ^ (1 << random.randrange(8)), 0, 255, random.randrange(256)])
    try:
        damaged = Cautious(io.BytesIO(bytes(data))).load()
        assert isinstance(damaged, CompressedReplayBuffer)
        loaded += 1
        for array in (damaged.observations, damaged.next_observations):
            np.asarray(array)
        damaged.sample(32)
        read += 1
        for _ in range(12):
            step(damaged)
        np.asarray(damaged.observations)
    except Exception:
        continue
print(loaded, read)
"""


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", [method for method in ("delta", "delta-zstd", "zstd-3") if method in METHODS])
def test_damaged_pickles_do_not_crash(method: str, seed: int) -> None:
    program = f"METHOD, SEED, CASES = {method!r}, {seed}, 150\n{PROGRAM}"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0, f"exit code {run.returncode}\n{run.stderr[-3000:]}"
    loaded, read = map(int, run.stdout.split())
    assert loaded > read > 0 or loaded == read > 20
