"""
Check the GPU buffers on a device and measure them: ``python -m sb3_extra_buffers.testing --device cuda``.

Prints a report in Markdown, to paste into an issue.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, DictRolloutBuffer, ReplayBuffer, RolloutBuffer

from sb3_extra_buffers import __version__
from sb3_extra_buffers.codecs import COMPRESSION_METHOD_MAP, available_methods, make_codec
from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.gpu_buffers import GpuDictReplayBuffer, GpuDictRolloutBuffer, GpuReplayBuffer, GpuRolloutBuffer
from sb3_extra_buffers.testing import check_codec, check_replay_buffer, check_rollout_buffer

METHODS = ("delta", "rle", "none", "gzip1")
"""All that decode on the device, and one whose codec runs on the host."""
_SPACE = spaces.Box(0, 255, (4, 84, 84), np.uint8)
_N_ENVS = 4


def find_device(name: str) -> th.device:
    """Find a device, or end the program with a message that says what to do."""
    try:
        device = th.device(name)
        th.zeros(1, device=device).cpu()
    except (AssertionError, RuntimeError) as error:
        here = ", ".join(["cpu", *(["cuda"] if th.cuda.is_available() else []), *(["mps"] * th.backends.mps.is_available())])
        raise SystemExit(
            f"--device {name} is not available: {str(error).splitlines()[0]}\nThis installation of PyTorch ({th.__version__}) "
            f"has: {here}. Choose one of them, or install the PyTorch build for your device (https://pytorch.org)."
        ) from None
    return device


def checks(device: th.device) -> Iterator[tuple[str, Callable[[], None]]]:
    """Every check of the contract suite, by name."""
    pairs: list[tuple[Any, Any, Any]] = [
        (GpuReplayBuffer, ReplayBuffer, check_replay_buffer),
        (GpuDictReplayBuffer, DictReplayBuffer, check_replay_buffer),
        (GpuRolloutBuffer, RolloutBuffer, check_rollout_buffer),
        (GpuDictRolloutBuffer, DictRolloutBuffer, check_rollout_buffer),
    ]
    for method in METHODS:
        options: dict[str, Any] = {"kwargs": {"device": device}, "buffer_kwargs": {"compression_method": method}}
        for ours, theirs, check in pairs:
            yield f"{ours.__name__} {method}", partial(check, ours, theirs, **options)
    for name in sorted(COMPRESSION_METHOD_MAP.keys() & set(available_methods())):
        yield f"codec {name}", partial(check_codec, make_codec(name))


def _transitions(rows: int) -> Iterator[tuple[Any, ...]]:
    """A made-up game: on a detailed background, two squares move; four frames are stacked."""
    rng = np.random.default_rng(0)
    stack = np.repeat(rng.integers(0, 256, (_N_ENVS, 1, 84, 84), dtype=np.uint8) & 0xE0, 5, axis=1)
    background = stack[:, 0].copy()
    for step in range(rows):
        stack = np.concatenate([stack[:, 1:], background[:, None]], axis=1)
        for env in range(_N_ENVS):
            for speed in (1, 3):
                x, y = (step * speed + 20 * env) % 76, (step * 2 + 9 * speed) % 76
                stack[env, -1, y : y + 8, x : x + 8] = 255 - 40 * speed
        zeros = np.zeros(_N_ENVS)
        yield stack[:, :-1], stack[:, 1:], zeros, zeros, zeros, [{}] * _N_ENVS


def _milliseconds(device: th.device, call: Callable[..., Any], *args: Any) -> float:
    start = time.perf_counter()
    call(*args)
    if device.type != "cpu":  # which may still be busy with it
        getattr(th, device.type).synchronize()
    return 1000 * (time.perf_counter() - start)


def measure(device: th.device, rows: int) -> Iterator[tuple[str, ...]]:
    """Fill SB3's buffer, ours on the CPU and ours on the device by turns: times of ``add`` and ``sample``, and memory."""
    arguments = rows * _N_ENVS, _SPACE, spaces.Discrete(4), device, _N_ENVS
    buffers: dict[str, Any] = {"SB3": ReplayBuffer(*arguments), "CPU, default": CompressedReplayBuffer(*arguments)}
    buffers |= {f"GPU, {method}": GpuReplayBuffer(*arguments, compression_method=method) for method in METHODS}
    times: dict[str, list[list[float]]] = {name: [[], [], []] for name in buffers}
    for transition in _transitions(rows):
        for name, buffer in buffers.items():
            times[name][0].append(_milliseconds(device, buffer.add, *transition))
    for _ in range(20):
        for name, buffer in buffers.items():
            for place, size in ((1, 32), (2, 256)):
                times[name][place].append(_milliseconds(device, buffer.sample, size))
    for name, buffer in buffers.items():
        used = 2 * buffer.observations.nbytes if name == "SB3" else buffer.memory_usage().total_bytes
        yield name, *(f"{statistics.median(values):.2f} ms" for values in times[name]), f"{used / 1e6:.1f} MB"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns 1 if a check has failed."""
    parser = argparse.ArgumentParser("python -m sb3_extra_buffers.testing", description=__doc__)
    parser.add_argument("--device", default="cuda", help="device of the GPU buffers: cuda, mps, cpu (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=500, help="rows of the buffers that are measured (default: %(default)s)")
    options = parser.parse_args(arguments)
    device, failed = find_device(options.device), 0
    if options.rows < 1:
        parser.error(f"--rows must be positive, got {options.rows}")
    if device.type == "cpu":
        th.set_num_threads(1)  # else threads that wait for one another are what is measured
    name = th.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    print(f"## GPU buffers on {device}: {name}\n\nsb3-extra-buffers {__version__}, stable-baselines3", end=" ")
    print(f"{version('stable-baselines3')}, torch {th.__version__}, numpy {np.__version__}, Python", end=" ")
    print(f"{platform.python_version()}, {platform.platform()}\n\n| contract suite | result |\n| --- | --- |")
    for what, check in checks(device):
        result = "passed"
        try:
            check()
        except Exception as error:  # any is a result
            failed += 1
            result = f"**failed**: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        print(f"| {what} | {result} |", flush=True)
    print(f"\n{options.rows} rows of {_N_ENVS} environments, 84x84, stack of 4; medians:\n")
    print("| buffer | `add` | `sample(32)` | `sample(256)` | observations |\n| --- | ---: | ---: | ---: | ---: |")
    for row in measure(device, options.rows):
        print(f"| {' | '.join(row)} |", flush=True)
    print(f"\nFailed checks: {failed}" if failed else "\nAll checks passed.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
