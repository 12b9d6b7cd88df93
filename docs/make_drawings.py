"""Draw the pictures of how-it-works.md from a real game: ``python docs/make_drawings.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from sb3_extra_buffers.storage._core import encode_patch
from sb3_extra_buffers.training_utils.atari import make_env

STATIC = Path(__file__).parent / "_static"
# Of the patch format, see format.md.
PREFIX, ESCAPE, FILL, FILL_LONG, FILL_LONGER = 2, 255, 128, 30, 31
BLUE, ORANGE, GREEN, GRAY = "#0072B2", "#E69F00", "#009E73", "#8a8a8a"


def play(steps: int = 220) -> np.ndarray:
    """
    Play some MsPacman at random.

    :param steps: Number of frames
    :return: ``(steps, 84, 84)``
    """
    env = make_env("MsPacmanNoFrameskip-v4", n_envs=1, framestack=None, seed=3)
    rng = np.random.default_rng(3)
    frames = [env.reset()[0, :, :, 0]]
    while len(frames) < steps:
        frames.append(env.step(rng.integers(0, env.action_space.n, 1))[0][0, :, :, 0])
    env.close()
    return np.array(frames)


def patch(before: np.ndarray, after: np.ndarray) -> bytes:
    """
    Code a frame.

    :param before: The reference
    :param after: The frame
    :return: The patch
    """
    out = np.empty(20_000, dtype=np.uint8)
    one, two = (np.ascontiguousarray(frame).reshape(-1) for frame in (before, after))
    # Without rows: the drawing shows a patch on another frame.
    end, _ = encode_patch(one, two, 0, out, 0, out.size)
    return out[PREFIX:end].tobytes()


def first_tokens(data: bytes, count: int) -> str:
    """
    Read the beginning of a patch aloud.

    :param data: The patch
    :param count: Number of tokens
    :return: What they say
    """
    words, pos = [], 0
    for _ in range(count):
        skip, pos = (
            (data[pos], pos + 1) if data[pos] < ESCAPE else (int.from_bytes(data[pos + 1 : pos + 5], "little"), pos + 5)
        )
        change, pos = data[pos], pos + 1
        if change < FILL:
            length, what = change + 1, "copy {} bytes"
            pos += length
        else:
            length, source = (change & FILL_LONGER) + 1, change >> 5 & 3
            what = ("fill {} bytes", "{} bytes as to the left", "{} bytes as to the right")[source]
            if length > FILL_LONG:
                length, pos = FILL_LONG + 1 + data[pos], pos + 1
            pos += source == 0
        words.append(f"skip {skip:,} · " + what.format(length))
    return " · ".join(words)


def picture(ax: Any, frame: np.ndarray, x: float, y: float, size: float, edge: str = "black", width: float = 1.0) -> None:
    """
    Put a frame into a drawing.

    :param ax: The drawing
    :param frame: The frame
    :param x: Left
    :param y: Bottom
    :param size: Side
    :param edge: Colour of the border
    :param width: Width of the border
    """
    ax.imshow(frame, cmap="gray", vmin=0, vmax=255, extent=(x, x + size, y, y + size), zorder=2)
    ax.add_patch(Rectangle((x, y), size, size, fill=False, edgecolor=edge, linewidth=width, zorder=3))


def arrow(ax: Any, start: tuple[float, float], end: tuple[float, float], color: str = GRAY) -> None:
    """
    Draw an arrow.

    :param ax: The drawing
    :param start: From
    :param end: To
    :param color: Colour
    """
    ax.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=color, linewidth=1.2, zorder=1))


def canvas(width: float, height: float) -> tuple[Any, Any]:
    """
    Begin a drawing without axes.

    :param width: In units of the drawing
    :param height: Likewise
    :return: Figure and drawing
    """
    figure, ax = plt.subplots(figsize=(width, height), dpi=150)
    ax.set_xlim(0, width)
    ax.set_ylim(0, height)
    ax.set_aspect("equal")
    ax.axis("off")
    return figure, ax


def save(figure: Any, name: str) -> None:
    """
    Write a drawing.

    :param figure: The figure
    :param name: File name
    """
    STATIC.mkdir(exist_ok=True)
    figure.savefig(STATIC / name, bbox_inches="tight", facecolor="white")
    plt.close(figure)


def draw_sharing(frames: np.ndarray) -> None:
    """
    Two transitions, and the six frames that they are made of.

    :param frames: Consecutive frames
    """
    figure, ax = canvas(11.3, 5.6)
    rows = (
        ("obs 1", 0, 8.0, 4.35),
        ("next_obs 1", 1, 8.0, 3.3),
        ("obs 2", 1, 8.0, 2.25),
        ("next_obs 2", 2, 8.0, 1.2),
    )
    for label, first, _, y in rows:
        ax.text(1.25, y + 0.4, label, ha="right", va="center", fontsize=11)
        for place in range(4):
            new = label == "obs 1" or (label.startswith("next") and place == 3)
            picture(ax, frames[first + place], 1.45 + place * 0.95, y, 0.85, GREEN if new else GRAY, 2.4 if new else 0.8)
    ax.text(3.3, 5.38, "what SB3 hands over: 16 frames, 112,896 bytes", ha="center", fontsize=11)
    for place in range(6):
        picture(ax, frames[place], 6.6, 4.35 - place * 0.83 + 0.1, 0.75, GREEN, 2.4)
        ax.text(7.5, 4.35 - place * 0.83 + 0.47, f"frame {place}", va="center", fontsize=10)
    ax.text(7.2, 5.38, "what is stored: 6 frames", ha="center", fontsize=11)
    arrow(ax, (5.35, 2.9), (6.4, 2.9))
    for place, (label, first, _, _) in enumerate(rows):
        y = 4.3 - place * 1.05
        ax.add_patch(
            FancyBboxPatch((8.75, y - 0.1), 2.2, 0.62, boxstyle="round,pad=0.06", facecolor="#eef4fa", edgecolor=BLUE)
        )
        ax.text(9.85, y + 0.33, label, ha="center", va="center", fontsize=9.5)
        ax.text(9.85, y + 0.06, f"newest: {first + 3}, a run of 4", ha="center", va="center", fontsize=8.5, color=BLUE)
    ax.text(9.85, 5.38, "the index: 6 bytes each", ha="center", fontsize=11)
    save(figure, "sharing.png")


def draw_patch(frames: np.ndarray) -> None:
    """
    A frame, its predecessor, and the patch between them.

    :param frames: Consecutive frames
    """
    before, after = frames[0], frames[1]
    changed = before != after
    data = patch(before, after)
    figure, ax = canvas(11, 4.1)
    picture(ax, before, 0.1, 0.6, 3.0)
    picture(ax, after, 3.9, 0.6, 3.0)
    shown = np.where(changed, after, 255)
    picture(ax, shown, 7.7, 0.6, 3.0, GREEN, 2.0)
    ax.text(1.6, 3.8, "the frame before", ha="center", fontsize=11)
    ax.text(5.4, 3.8, "this frame: 7,056 bytes", ha="center", fontsize=11)
    ax.text(9.2, 3.8, f"what changed: {int(changed.sum())} bytes", ha="center", fontsize=11)
    ax.text(3.5, 2.1, "$-$", ha="center", va="center", fontsize=22)
    ax.text(7.3, 2.1, "$=$", ha="center", va="center", fontsize=22)
    ax.text(
        5.4,
        0.15,
        f"the patch, “{first_tokens(data, 3)} · …”: {len(data)} bytes",
        ha="center",
        fontsize=11,
        color=GREEN,
    )
    save(figure, "patch.png")


def draw_group(frames: np.ndarray) -> None:
    """
    A key frame, and a group that hangs on it.

    :param frames: Frames from the key frame on
    """
    figure, ax = canvas(11.5, 3.7)
    key, start = 0, 128
    picture(ax, frames[key], 0.1, 1.15, 1.9, ORANGE, 3)
    ax.text(1.05, 3.25, "key frame", ha="center", fontsize=11, color=ORANGE)
    ax.text(1.05, 0.8, "raw, 7,056 bytes,", ha="center", fontsize=9.5)
    ax.text(1.05, 0.5, "once in hundreds of frames", ha="center", fontsize=9.5)
    sizes = [len(patch(frames[key], frames[start]))]
    sizes += [len(patch(frames[start + i - 1], frames[start + i])) for i in range(1, 8)]
    shown = [0, 1, 2, None, 6, 7]
    x = 2.75
    previous: float | None = None
    for place in shown:
        if place is None:
            ax.text(x + 0.05, 2.35, "…", fontsize=20, ha="center", va="center", color=GRAY)
            x += 0.45
            continue
        picture(ax, frames[start + place], x, 1.45, 1.3, BLUE if place == 0 else GREEN, 2.2)
        ax.text(x + 0.65, 1.15, f"{sizes[place]} bytes", ha="center", fontsize=10, color=BLUE if place == 0 else GREEN)
        ax.text(x + 0.65, 2.87, f"frame {place}", ha="center", fontsize=9.5)
        arrow(ax, (2.05 if previous is None else previous, 2.1), (x - 0.04, 2.1))
        previous = x + 1.33
        x += 1.62
    total = sum(sizes)
    ax.add_patch(FancyBboxPatch((2.6, 0.98), 8.5, 2.15, boxstyle="round,pad=0.1", fill=False, edgecolor=GRAY, linestyle="--"))
    ax.text(6.7, 3.45, "a group: 8 frames in one record of the log", ha="center", fontsize=11)
    ax.text(
        6.7,
        0.5,
        f"{total:,} bytes for 8 frames, {total / 8:.0f} each, {8 * 7056 / total:.0f} times smaller",
        ha="center",
        fontsize=11,
    )
    save(figure, "group.png")


def main() -> None:
    """Draw everything."""
    frames = play()
    draw_sharing(frames[60:])
    draw_patch(frames[80:])
    draw_group(frames[60:])


if __name__ == "__main__":
    main()
