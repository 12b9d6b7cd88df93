"""
Other packages beside ours, on the same recorded transitions: memory, add, sample(32), exactness.

Each package is installed into a virtual environment of its own, because they need different versions of the same libraries:

  python -m venv peers/cpprb
  peers/cpprb/bin/pip install -c constraints.txt torch stable-baselines3 rich psutil zstandard cpprb

and likewise peers/pypi with "sb3-extra-buffers[fast]", peers/torchrl with torchrl, peers/tianshou with tianshou. Then:

  python benchmarks/peers.py --environments peers --rounds 3

All sides of a round work by turns, so that a machine that is slow for a minute is slow for all of them. Every side gets the
transitions that SB3's `collect_rollouts` hands to a replay buffer; what a package has to be given in another form is converted
outside of the clock. A package whose environment is missing is left out.
"""

from __future__ import annotations

import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from kit.data import DATASETS, Dataset, load
from kit.process import anonymous_bytes, digest, report, run_in_turns, settle, take_turn, time_calls
from kit.recordings import Transition
from kit.results import ResultFile, console, options

SIDES = {
    "sb3": "",
    "sb3-optimized": "",
    "ours": "",
    "pypi zstd-3": "pypi",
    "pypi lz4-frame/1": "pypi",
    "cpprb": "cpprb",
    "torchrl memmap": "torchrl",
    "torchrl compressed": "torchrl",
    "tianshou": "tianshou",
}
"""What is compared, and the environment that it runs in; an empty name is the environment of this program."""

Pair = tuple[Any, Any]


class Sb3:
    """SB3's replay buffer, ours, and the one of the PyPI package of our name: one interface."""

    same_interface = True

    def __init__(self, side: str, data: Dataset, space: Any, size: int) -> None:
        from stable_baselines3.common.buffers import ReplayBuffer

        kind: Any = ReplayBuffer
        arguments: dict[str, Any] = {}
        if side == "sb3-optimized":
            arguments = {"optimize_memory_usage": True, "handle_timeout_termination": False}
        elif side == "ours":
            from sb3_extra_buffers.compressed import CompressedReplayBuffer as kind  # type: ignore[no-redef]
        elif side.startswith("pypi"):
            from sb3_extra_buffers.compressed import CompressedReplayBuffer as kind  # type: ignore[no-redef]
            from sb3_extra_buffers.compressed import find_buffer_dtypes  # type: ignore[attr-defined]

            method = side.split()[1]
            dtypes = find_buffer_dtypes(obs_shape=space.shape, elem_dtype=space.dtype, compression_method=method)
            arguments = {"dtypes": dtypes, "compression_method": method}
        self.buffer = kind(size, space, data.action_space, "cpu", n_envs=data.n_envs, **arguments)

    def convert(self, transition: Transition) -> Any:
        return transition

    def add(self, transition: Any) -> None:
        self.buffer.add(*transition)

    def sample(self, n: int) -> Any:
        return self.buffer.sample(n)

    def read(self, row: int, env: int) -> Pair:
        found = self.buffer._get_samples(np.array([row]))  # it draws an environment: ask until it is the right one
        for _ in range(1000):
            if np.array_equal(found.actions.numpy().ravel()[0], self.buffer.actions[row, env].ravel()[0]):
                break
            found = self.buffer._get_samples(np.array([row]))
        return found.observations.numpy()[0], found.next_observations.numpy()[0]

    def sampled(self) -> str:
        np.random.seed(0)
        return digest(tensor for _ in range(8) for tensor in self.buffer.sample(64)[:5])


class Cpprb:
    """cpprb with `next_of` and `stack_compress`: one buffer for each environment, as its documentation asks for."""

    same_interface = False

    def __init__(self, side: str, data: Dataset, space: Any, size: int) -> None:
        from cpprb import ReplayBuffer

        self.stacked = data.stack > 1
        shape = (*space.shape[1:], space.shape[0]) if self.stacked else space.shape  # the stack is the last axis
        env_dict = {"obs": {"shape": shape, "dtype": np.uint8}, "act": {"dtype": np.int64}, "rew": {}, "done": {}}
        compress = {"stack_compress": "obs"} if self.stacked else {}
        rows = size // data.n_envs
        self.buffers = [ReplayBuffer(rows, env_dict, next_of="obs", **compress) for _ in range(data.n_envs)]

    def convert(self, transition: Transition) -> Any:
        turn = (lambda obs: np.moveaxis(obs, 1, -1).copy()) if self.stacked else np.ascontiguousarray
        obs, next_obs = turn(transition.obs), turn(transition.next_obs)
        return [
            {"obs": obs[i], "act": transition.action[i], "rew": transition.reward[i], "next_obs": next_obs[i], "done": done}
            for i, done in enumerate(transition.done)
        ]

    def add(self, steps: Any) -> None:
        for buffer, step in zip(self.buffers, steps, strict=True):
            buffer.add(**step)
            if step["done"]:
                buffer.on_episode_end()

    def sample(self, n: int) -> Any:
        return [buffer.sample(n // len(self.buffers)) for buffer in self.buffers]

    def read(self, row: int, env: int) -> Pair:
        found = self.buffers[env]._encode_sample(np.array([row]))
        turn = (lambda obs: np.moveaxis(obs, -1, 0)) if self.stacked else np.asarray
        return turn(found["obs"][0]), turn(found["next_obs"][0])


class TorchRl:
    """TorchRL: a tensor dict of both observations, on disk or as a list of compressed tensors."""

    same_interface = False

    def __init__(self, side: str, data: Dataset, space: Any, size: int) -> None:
        from torchrl.data import TensorDictReplayBuffer

        self.n_envs = data.n_envs
        self.folder = tempfile.mkdtemp(prefix="peers-")
        if side.endswith("memmap"):
            from torchrl.data import LazyMemmapStorage

            storage: Any = LazyMemmapStorage(size, scratch_dir=self.folder)
        else:
            from torchrl.data.replay_buffers.storages import CompressedListStorage

            storage = CompressedListStorage(size)
        self.buffer = TensorDictReplayBuffer(storage=storage)

    def convert(self, transition: Transition) -> Any:
        import torch as th
        from tensordict import TensorDict

        done = th.as_tensor(transition.done)
        following = {
            "pixels": th.as_tensor(np.ascontiguousarray(transition.next_obs)),
            "reward": th.as_tensor(transition.reward),
            "done": done,
        }
        now = {"pixels": th.as_tensor(np.ascontiguousarray(transition.obs)), "action": th.as_tensor(transition.action)}
        return TensorDict({**now, "next": TensorDict(following, [self.n_envs])}, [self.n_envs])

    def add(self, steps: Any) -> None:
        self.buffer.extend(steps)

    def sample(self, n: int) -> Any:
        return self.buffer.sample(n)

    def read(self, row: int, env: int) -> Pair:
        found = self.buffer[row * self.n_envs + env]
        return found["pixels"].numpy(), found["next", "pixels"].numpy()

    def on_disk(self) -> int:
        return sum(file.stat().st_blocks * 512 for file in Path(self.folder).rglob("*") if file.is_file())

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Tianshou:
    """tianshou with `stack_num`, `save_only_last_obs` and `ignore_obs_next`."""

    same_interface = False

    def __init__(self, side: str, data: Dataset, space: Any, size: int) -> None:
        from tianshou.data import VectorReplayBuffer

        self.stacked, self.n_envs, self.rows = data.stack > 1, data.n_envs, size // data.n_envs
        stack = {"stack_num": data.stack, "save_only_last_obs": True} if self.stacked else {}
        self.buffer = VectorReplayBuffer(size, data.n_envs, ignore_obs_next=True, **stack)

    def convert(self, transition: Transition) -> Any:
        from tianshou.data import Batch

        cut = np.array([info["TimeLimit.truncated"] for info in transition.infos])
        return Batch(
            obs=np.ascontiguousarray(transition.obs),
            act=transition.action,
            rew=transition.reward,
            terminated=transition.done.astype(bool) & ~cut,
            truncated=cut,
            obs_next=np.ascontiguousarray(transition.next_obs),
            info=Batch(),
        )

    def add(self, steps: Any) -> None:
        self.buffer.add(steps, buffer_ids=np.arange(self.n_envs))

    def sample(self, n: int) -> Any:
        return self.buffer.sample(n)

    def read(self, row: int, env: int) -> Pair:
        found = self.buffer[np.array([env * self.rows + row])]
        return np.asarray(found.obs[0]), np.asarray(found.obs_next[0])


KINDS = {"cpprb": Cpprb, "torchrl": TorchRl, "tianshou": Tianshou}


def work(job: dict[str, Any]) -> dict[str, Any]:
    """Measure one side in this process."""
    data = DATASETS[job["dataset"]]
    recording = load(data, Path(job["cache"]))
    space = recording.space(data.stack)
    rows = job["transitions"] // data.n_envs
    kind: Any = KINDS.get(job["side"].split()[0], Sb3)

    def stream() -> Iterator[Transition]:
        return recording.transitions(data.stack)

    warm: Any = kind(job["side"], data, space, 64 * data.n_envs)
    for transition in islice(stream(), 64):
        warm.add(warm.convert(transition))
    warm.sample(32)
    if hasattr(warm, "close"):
        warm.close()
    del warm
    settle()
    before = anonymous_bytes()
    buffer: Any = kind(job["side"], data, space, job["transitions"])
    times = []
    steps = stream()
    for row in range(rows):
        if row % 100 == 0:
            take_turn()
        converted = buffer.convert(next(steps))
        start = time.perf_counter_ns()
        buffer.add(converted)
        times.append(time.perf_counter_ns() - start)
    del converted
    settle()
    result: dict[str, Any] = {"memory": anonymous_bytes() - before, "add": statistics.median(times) / 1e3}
    if hasattr(buffer, "on_disk"):
        result["disk"] = buffer.on_disk()
    result["sample_32"] = time_calls(lambda: buffer.sample(32), seconds=2.0, pause=take_turn)["p50"]
    result.update(compare(buffer, stream(), rows))
    if buffer.same_interface:
        result["digest"] = buffer.sampled()
    if hasattr(buffer, "close"):
        buffer.close()
    return result


def compare(buffer: Any, stream: Iterator[Transition], rows: int) -> dict[str, Any]:
    """Read some transitions and all ends of episodes back; count how many observations differ from what was added."""
    seen = {"read": 0, "wrong_obs": 0, "wrong_next": 0, "ends": 0, "wrong_ends": 0}
    chosen = set(np.random.default_rng(0).choice(rows - 2, min(500, rows - 2), replace=False).tolist())
    for row, transition in enumerate(islice(stream, rows - 1)):
        for env, over in enumerate(transition.done):
            if not over and (env or row not in chosen):
                continue
            try:
                obs, next_obs = buffer.read(row, env)
            except (IndexError, KeyError, AssertionError):
                obs = next_obs = np.zeros(0)
            wrong_next = not np.array_equal(next_obs, transition.next_obs[env])
            seen["ends" if over else "read"] += 1
            seen["wrong_obs"] += not np.array_equal(obs, transition.obs[env])
            seen["wrong_ends" if over else "wrong_next"] += wrong_next
    return seen


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__ or "")
    parser.add_argument("--environments", type=Path, default=Path("peers"), help="folder of the virtual environments")
    parser.add_argument("--dataset", nargs="+", default=["mspacman", "doom-rgb"], choices=DATASETS, help="what to compare on")
    parser.add_argument("--transitions", type=int, default=20_000, help="size of each buffer")
    parser.add_argument("--rounds", type=int, default=3, help="how often each side runs")
    parser.add_argument("--side", nargs="+", default=list(SIDES), choices=SIDES, help="what to compare")
    args = parser.parse_args()
    if args.worker:
        report(work(json.loads(args.worker)))
        return
    results = ResultFile("peers", args.results)
    pythons = {
        side: str(args.environments / name / "bin" / "python") if name else sys.executable for side, name in SIDES.items()
    }
    sides = [side for side in args.side if Path(pythons[side]).exists()]
    for name in args.dataset:
        load(DATASETS[name], args.cache)
        about = {"dataset": name, "transitions": args.transitions, "cache": str(args.cache.absolute())}
        rounds = []
        for number in range(args.rounds):
            jobs = {side: {**about, "side": side} for side in sides}
            rounds.append(run_in_turns("peers", jobs, pythons=pythons))
            console.print(f"{name}: round {number + 1} of {args.rounds}")
        for side in sides:
            runs = [each[side] for each in rounds if "error" not in each[side]]
            if not runs:
                console.print(f"{name}, {side}: {rounds[0][side]['error']}")
                continue
            row = {key: statistics.median(run[key] for run in runs) if key in TIMES else runs[0][key] for key in runs[0]}
            ratios = {key: statistics.median(run[key] / other["sb3"][key] for run, other in zip(runs, rounds, strict=True))
                      for key in TIMES}  # fmt: skip
            results.put(f"{name}/{side}", {**row, "ratios": ratios, "transitions": args.transitions, "rounds": args.rounds})
            console.print(f"{name}, {side}: {row['memory'] / args.transitions:,.0f} bytes a transition, {ratios}")


TIMES = ("memory", "add", "sample_32")


if __name__ == "__main__":
    main()
