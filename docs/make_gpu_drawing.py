"""Draw the picture of gpu-buffers.md from a real game: ``python docs/make_gpu_drawing.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from gymnasium import spaces
from matplotlib.patches import Patch, Rectangle
from stable_baselines3.common.vec_env import DummyVecEnv, VecTransposeImage

from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer
from sb3_extra_buffers.gpu_buffers.frames import EMPTY
from sb3_extra_buffers.training_utils.atari import make_env

STATIC = Path(__file__).parent / "_static"
KEY, RECORDS, DEAD, SPARE = "#0072B2", "#E69F00", "#d4d4d4", "#ffffff"
ROWS, STEPS = 40, 78


def play() -> GpuReplayBuffer:
    """
    Play some MsPacman at random into a small buffer, until it has gone round once and nearly twice.

    :return: The buffer
    """
    env = VecTransposeImage(make_env("MsPacmanNoFrameskip-v4", 1, DummyVecEnv, framestack=4, seed=3))
    actions: Any = env.action_space
    buffer = GpuReplayBuffer(ROWS, env.observation_space, spaces.Discrete(int(actions.n)), "cpu", heap_bytes=8_000)
    rng = np.random.default_rng(3)
    obs: Any = env.reset()
    for _ in range(STEPS):
        action = rng.integers(0, int(actions.n), 1)
        following, reward, done, infos = env.step(action)
        buffer.add(obs, following, action, reward, done, infos)
        obs = following
    env.close()
    return buffer


def draw_heap(axes: Any, buffer: GpuReplayBuffer, title: str) -> None:
    """
    Draw what is where in the heap.

    :param axes: Where to draw
    :param buffer: The buffer
    :param title: What to say
    """
    store: Any = buffer._stores[None]
    table, heap = store._frames.table, store.heap
    table.sweep()
    axes.add_patch(Rectangle((0, 0), heap.capacity, 1, facecolor=SPARE, edgecolor="black"))
    axes.add_patch(Rectangle((0, 0), heap.data_end, 1, facecolor=DEAD, edgecolor="none", hatch="////"))
    for cell in np.flatnonzero(heap.lengths_array):
        start, length = int(heap.start_idx[cell]), int(heap.lengths[cell])
        color = KEY if table.keys[cell] == cell else RECORDS
        axes.add_patch(Rectangle((start, 0), length, 1, facecolor=color, edgecolor="white", linewidth=0.6))
        if cell == EMPTY:
            axes.text(start + length / 2, 0.5, "empty\nframe", color="white", ha="center", va="center", fontsize=8)
        elif table.keys[cell] == cell:
            axes.text(start + length / 2, 0.5, "key\nframe", color="white", ha="center", va="center", fontsize=8)
    axes.annotate("data_end", (heap.data_end, 0), (heap.data_end, -0.42), ha="center", arrowprops={"arrowstyle": "->"})
    axes.set_xlim(-200, heap.capacity + 200)
    axes.set_ylim(-0.6, 1.05)
    axes.set_yticks([])
    axes.set_title(title, loc="left", fontsize=11)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)


def main() -> None:
    """Draw it."""
    buffer = play()
    figure, (before, after) = plt.subplots(2, 1, figsize=(10, 4.2), sharex=True)
    live = buffer._stores[None].memory_usage(ROWS)
    draw_heap(
        before, buffer, f"{ROWS} transitions of MsPacman, some of them overwritten: gaps where nothing is needed any more"
    )
    buffer.compact()
    draw_heap(after, buffer, "after compact(): the same payloads without gaps; data_end is the sum of their lengths")
    after.set_xlabel(f"byte of the heap ({live.raw_bytes / 1e6:.1f} MB of observations)")
    patches = [Patch(color=KEY, label="key frame, raw"), Patch(color=RECORDS, label="frame as changed words")]
    patches.append(Patch(facecolor=DEAD, hatch="////", edgecolor="gray", label="given up"))
    figure.legend(handles=patches, loc="lower right", ncols=3, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(STATIC / "gpu-heap.png", dpi=150)


if __name__ == "__main__":
    main()
