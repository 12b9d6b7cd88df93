"""Draw the pictures of how-it-works.md from a real game: ``python docs/make_drawings.py``."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Rectangle

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.storage._core import encode_patch
from sb3_extra_buffers.training_utils.atari import make_env

STATIC = Path(__file__).parent / "_static"
# Of patches and chunks, see format.md.
PREFIX, WIDE, FILL, FILL_LONG, FILL_LONGER = 2, 254, 128, 30, 31
HEADER, READ_AHEAD, FOOTER, LANE, GROUP, EXCEPTION = 152, 8, 16, 12, 6, 8
BLUE, ORANGE, GREEN, GRAY = "#0072B2", "#E69F00", "#009E73", "#8a8a8a"
LIGHT_BLUE, LIGHT_GREEN = "#dceaf5", "#d5efe6"


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


class Chunk(NamedTuple):
    """
    What the drawing of a chunk shows.

    :param rows: Its rows
    :param ring_rows: Rows of the ring
    :param data: Bytes of its records
    :param index: Bytes of its index
    :param exceptions: For each environment, the rows that do not follow from the one before
    """

    rows: int
    ring_rows: int
    data: int
    index: int
    exceptions: list[list[int]]


def play_a_chunk(n_envs: int = 4, transitions: int = 40_000) -> Chunk:
    """
    Play on until a chunk is sealed.

    :param n_envs: Number of environments
    :param transitions: Size of the buffer
    :return: The second chunk of the buffer; the first one begins before anybody knows that there is a stack
    """
    env = make_env("MsPacmanNoFrameskip-v4", n_envs=n_envs, framestack=4, seed=3)
    buffer = CompressedReplayBuffer(transitions, env.observation_space, env.action_space, "cpu", n_envs)
    rng, obs, sealed = np.random.default_rng(3), env.reset(), []
    while len(sealed) < 2:
        actions = rng.integers(0, env.action_space.n, n_envs)
        following, rewards, dones, infos = env.step(actions)
        true_next = following.copy()
        for place in np.flatnonzero(dones):
            true_next[place] = infos[place]["terminal_observation"]
        buffer.add(obs, true_next, actions.reshape(-1, 1), rewards, dones, infos)
        obs = following
        sealed, _ = buffer._fields[0].frames.chunks()
    env.close()
    data = bytes(sealed[1])
    (rows,), (data_bytes,) = struct.unpack_from("<I", data, 40), struct.unpack_from("<Q", data, 120)
    at = HEADER + data_bytes + READ_AHEAD
    lanes = [struct.unpack_from("<III", data, at + LANE * i) for i in range(n_envs)]
    at += LANE * n_envs + GROUP * sum(groups for groups, _, _ in lanes)
    exceptions = []
    for _, count, _ in lanes:
        exceptions.append([struct.unpack_from("<H", data, at + EXCEPTION * k)[0] for k in range(count)])
        at += EXCEPTION * count
    return Chunk(rows, buffer.buffer_size, data_bytes, len(data) - HEADER - FOOTER - READ_AHEAD - data_bytes, exceptions)


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
        skip, pos = data[pos], pos + 1
        if skip >= WIDE:
            wide = 2 if skip == WIDE else 4
            skip, pos = int.from_bytes(data[pos : pos + wide], "little"), pos + wide
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
    notes = (
        (3.55, ORANGE, "transition 1: an exception", ("obs: frames 0 to 3", "next_obs: frames 1 to 4", "8 bytes")),
        (1.6, BLUE, "transition 2: it follows", ("obs: the last next_obs", "next_obs: one frame further", "nothing to note")),
    )
    for y, color, title, lines in notes:
        box = FancyBboxPatch((8.6, y), 2.5, 1.2, boxstyle="round,pad=0.06", facecolor="#f7f9fb", edgecolor=color)
        ax.add_patch(box)
        ax.text(9.85, y + 1.0, title, ha="center", va="center", fontsize=9.5)
        for place, line in enumerate(lines):
            ax.text(9.85, y + 0.7 - place * 0.28, line, ha="center", va="center", fontsize=8.5, color=color)
    ax.text(9.85, 5.38, "what is noted", ha="center", fontsize=11)
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
    ax.text(6.7, 3.45, "a group: 8 frames in one record", ha="center", fontsize=11)
    ax.text(
        6.7,
        0.5,
        f"{total:,} bytes for 8 frames, {total / 8:.0f} each, {8 * 7056 / total:.0f} times smaller",
        ha="center",
        fontsize=11,
    )
    save(figure, "group.png")


def box(ax: Any, x: float, y: float, width: float, height: float, color: str, fill: str = "white", hatch: str = "") -> None:
    """
    Draw a box.

    :param ax: The drawing
    :param x: Left
    :param y: Bottom
    :param width: Width
    :param height: Height
    :param color: Colour of the border
    :param fill: Colour inside
    :param hatch: Pattern inside
    """
    ax.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=color, linewidth=1.2, hatch=hatch, zorder=1))


def draw_ring(ax: Any, rows: int, ring_rows: int, y: float) -> tuple[float, float]:
    """
    The ring, cut into chunks.

    :param ax: The drawing
    :param rows: Rows of a chunk
    :param ring_rows: Rows of the ring
    :param y: Bottom
    :return: Left and right of the chunk that is shown larger
    """
    width, height, x = 9.9 / 7, 0.62, 0.2
    count = -(-ring_rows // rows)
    middle = count // 2
    shown: list[int | str] = [0, 1, 2, "…", middle - 1, "open", middle + 1, "…", count - 1]
    ax.text(5.75, y + 1.2, "the ring: rows of all environments, in chunks", ha="center", fontsize=11)
    for place in shown:
        if place == "…":
            ax.text(x + 0.3, y + height / 2, "…", ha="center", va="center", fontsize=16, color=GRAY)
            x += 0.6
            continue
        if place == "open":
            box(ax, x, y, width, height, GRAY, "white", "////")
            box(ax, x, y, 0.6 * width, height, GREEN, LIGHT_GREEN)
            head = x + 0.6 * width
            ax.text(x + 0.3 * width, y + height / 2, "open", ha="center", va="center", fontsize=10, color=GREEN)
            arrow(ax, (head, y + height + 0.36), (head, y + height + 0.02), GREEN)
            ax.text(head - 0.12, y + height + 0.22, "the next row", ha="right", va="center", fontsize=9, color=GREEN)
            arrow(ax, (head + 0.25 * width, y + height + 0.36), (head + 0.25 * width, y + height + 0.02))
            old = "rows of the last lap: once they are overwritten,\ntheir chunk is given back"
            ax.text(head + 0.34 * width, y + height + 0.25, old, ha="left", va="center", fontsize=8.5, color="#555555")
        else:
            first = int(place) * rows
            last = min(first + rows, ring_rows) - 1
            box(ax, x, y, width, height, BLUE, LIGHT_BLUE)
            ax.text(x + width / 2, y + 0.41, "sealed", ha="center", va="center", fontsize=9.5, color=BLUE)
            ax.text(x + width / 2, y + 0.18, f"{first:,} to {last:,}", ha="center", va="center", fontsize=8)
        x += width
    return 0.2 + width, 0.2 + 2 * width


def draw_records(ax: Any, frames: np.ndarray, x: float, y: float) -> None:
    """
    Key frames and groups, one after the other.

    :param ax: The drawing
    :param frames: Consecutive frames
    :param x: Left
    :param y: Bottom
    """
    picture(ax, frames[0], x, y, 0.9, ORANGE, 2.4)
    ax.text(x + 0.45, y - 0.2, "key frame", ha="center", fontsize=9, color=ORANGE)
    x += 1.15
    for env in range(3):
        for place in range(8):
            left = x + place * 0.095
            frame, extent = frames[env * 16 + place], (left, left + 0.9, y, y + 0.9)
            ax.imshow(frame, cmap="gray", vmin=0, vmax=255, extent=extent, zorder=3 + place)
            edge = BLUE if place == 0 else GREEN
            ax.add_patch(Rectangle((left, y), 0.9, 0.9, fill=False, edgecolor=edge, linewidth=1.2, zorder=3 + place))
        ax.text(x + 0.8, y - 0.2, f"group, environment {env}", ha="center", fontsize=8.5)
        x += 1.83
    ax.text(x + 0.02, y + 0.45, "…", ha="center", va="center", fontsize=18, color=GRAY)


def draw_chunk(frames: np.ndarray, chunk: Chunk) -> None:
    """
    The ring, one of its chunks, and the rows of an environment in it.

    :param frames: Consecutive frames, for the records
    :param chunk: A real one
    """
    figure, ax = canvas(11.5, 6.9)
    left, right = draw_ring(ax, chunk.rows, chunk.ring_rows, 5.35)
    # Its parts; widths are not to scale.
    top, bottom = 4.35, 2.65
    for start, end in ((left, 0.2), (right, 11.3)):
        ax.plot([start, end], [5.35, top], color=GRAY, linewidth=0.8, linestyle="--", zorder=0)
    parts = (
        (0.2, 1.15, "header", f"{HEADER} bytes", ORANGE, "#fdf3df"),
        (1.35, 7.3, "records", f"{chunk.data:,} bytes", BLUE, "#f3f8fc"),
        (8.65, 1.7, "index", f"{chunk.index:,} bytes", GREEN, "#eef8f4"),
        (10.35, 0.95, "footer", f"{FOOTER} bytes", ORANGE, "#fdf3df"),
    )
    for x, width, name, size, color, fill in parts:
        box(ax, x, bottom, width, top - bottom, color, fill)
        ax.text(x + width / 2, top - 0.2, name, ha="center", va="center", fontsize=10.5)
        ax.text(x + width / 2, bottom - 0.2, size, ha="center", va="center", fontsize=9.5, color=color)
    ax.text(0.775, 3.35, "form of the\nframes,\nfirst row, lap,\nchecksums", ha="center", va="center", fontsize=8.5)
    ax.text(9.5, 3.35, "where groups\nare, and rows\nthat do not\nfollow", ha="center", va="center", fontsize=8.5)
    ax.text(10.825, 3.35, "size,\nonce more", ha="center", va="center", fontsize=8.5)
    draw_records(ax, frames, 1.55, 2.98)
    # The rows of the environment that has the most to show.
    env = max(range(len(chunk.exceptions)), key=lambda which: len(chunk.exceptions[which]))
    odd = chunk.exceptions[env]
    width, y = 11.1 / chunk.rows, 0.95
    ax.text(5.75, 1.92, f"the {chunk.rows} rows of environment {env}", ha="center", fontsize=11)
    for row in range(chunk.rows):
        is_odd = row in odd
        face, edge = (ORANGE, "#a06f00") if is_odd else (LIGHT_GREEN, "#8fcab3")
        ax.add_patch(Rectangle((0.2 + row * width, y), width, 0.42, facecolor=face, edgecolor=edge, linewidth=0.5))
        if is_odd:
            ax.text(0.2 + (row + 0.5) * width, y + 0.56, f"{row}", ha="center", va="center", fontsize=8.5, color="#a06f00")
    box(ax, 0.35, 0.38, 0.28, 0.22, "#8fcab3", LIGHT_GREEN)
    ax.text(0.75, 0.49, "regular row: one new frame, nothing to note", va="center", fontsize=9.5)
    box(ax, 5.6, 0.38, 0.28, 0.22, "#a06f00", ORANGE)
    text = f"exception, {EXCEPTION} bytes: the chunk begins, or an episode does"
    ax.text(6.0, 0.49, text, va="center", fontsize=9.5)
    save(figure, "chunk.png")


def main() -> None:
    """Draw everything."""
    frames = play()
    draw_sharing(frames[60:])
    draw_patch(frames[80:])
    draw_group(frames[60:])
    draw_chunk(frames[80:], play_a_chunk())


if __name__ == "__main__":
    main()
