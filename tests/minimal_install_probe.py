"""
Fill and sample our replay buffer and SB3's, with the codecs that need no extra.

A program of its own: ``test_packaging.py`` runs it in a process that cannot import the optional libraries,
and in an environment that does not have them. ``--block`` hides them.
"""

import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec

# Python's own `gzip` lives in `compression` on newer versions, so of that only the zstd part is hidden.
OPTIONAL = ("numba", "zstandard", "lz4", "isal", "backports.zstd", "compression.zstd", "sb3_contrib")
CODECS = (None, "delta", "delta-gzip", "rle", "gzip", "none")


class Blocker(MetaPathFinder):
    """Lets the optional libraries look as if they were not installed."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if any(fullname == name or fullname.startswith(name + ".") for name in OPTIONAL):
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None


def assert_missing(name: str) -> None:
    try:
        importlib.import_module(name)
    except ImportError:
        return
    raise AssertionError(f"{name} is importable: this is no minimal install")


def compare(codec: str | None) -> None:
    import numpy as np
    import torch as th
    from gymnasium import spaces
    from stable_baselines3.common.buffers import ReplayBuffer

    from sb3_extra_buffers.compressed import CompressedReplayBuffer

    n_envs, rows = 2, 20
    space = spaces.Box(0, 255, (4, 36, 36), np.uint8)
    args = (rows * n_envs, space, spaces.Discrete(3))
    theirs = ReplayBuffer(*args, n_envs=n_envs)
    ours = CompressedReplayBuffer(*args, n_envs=n_envs, compression_method=codec)

    assert ours.observations.compression_method == (codec or "delta")

    rng = np.random.default_rng(0)
    stack = np.zeros((n_envs, *space.shape), np.uint8)
    for step in range(rows * 2 + 3):  # past the ring's end, twice
        frame = (rng.integers(0, 256, (n_envs, 1, 36, 36)) * (rng.random((n_envs, 1, 36, 36)) < 0.1)).astype(np.uint8)
        next_stack = np.concatenate([stack[:, 1:], frame], axis=1)
        done = np.array([step % 7 == 6, step % 11 == 10])
        infos = [{"TimeLimit.truncated": bool(d) and step % 2 == 0} for d in done]
        action, reward = rng.integers(0, 3, n_envs), rng.random(n_envs)
        for buffer in (theirs, ours):
            buffer.add(stack, next_stack, action, reward, done, infos)
        stack = np.where(done[:, None, None, None], 0, next_stack).astype(np.uint8)

    for seed in range(5):
        batches = []
        for buffer in (theirs, ours):
            np.random.seed(seed)
            batches.append(buffer.sample(32))
        for name, expected, got in zip(batches[0]._fields, *batches, strict=True):
            if expected is None:
                assert got is None, name
                continue
            assert got.dtype == expected.dtype and th.equal(got, expected), f"{codec}: {name} differs"


def main() -> None:
    if "--block" in sys.argv[1:]:
        sys.meta_path.insert(0, Blocker())
    for name in ("numba", "zstandard", "lz4", "isal"):
        assert_missing(name)
    for package in ("sb3_extra_buffers", "sb3_extra_buffers.compressed"):
        names: dict[str, object] = {}
        exec(f"from {package} import *", names)
        assert "CompressedHerReplayBuffer" in names and "CompressedRecurrentPPO" not in names, package
    for codec in CODECS:
        compare(codec)
    print("minimal install: " + ", ".join(codec or "the default" for codec in CODECS) + " equal SB3's buffer")


if __name__ == "__main__":
    main()
