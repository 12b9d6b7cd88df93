"""Draw the objects of how-it-works.md from a real game: ``python docs/make_objects_drawing.py``."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from make_drawings import BLUE, GRAY, GREEN, ORANGE, canvas, picture, save
from matplotlib.patches import Rectangle

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.training_utils.atari import make_env

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from reference_decoder import MANY, OBJECTS, PLAIN, PLAIN_PATCH, ChunkDecoder, apply_object, number

SIDE = 84


class Thing(NamedTuple):
    """
    An object where it is used.

    :param frame: The frame that it helps to make
    :param place: Top, bottom, left and right of what it changes
    :param before: The frame before it is applied
    :param after: The frame after that
    :param offset: Where its bytes lie in the data
    :param is_new: Whether they are stored with this frame
    """

    frame: tuple[int, int]
    place: tuple[int, int, int, int]
    before: np.ndarray
    after: np.ndarray
    offset: int
    is_new: bool


def play_a_chunk(n_envs: int = 4, transitions: int = 10_000) -> ChunkDecoder:
    """
    Play MsPacman at random until two chunks are sealed.

    :param n_envs: Number of environments
    :param transitions: Size of the buffer
    :return: The second chunk
    """
    env = make_env("MsPacmanNoFrameskip-v4", n_envs=n_envs, framestack=None, seed=3)
    buffer = CompressedReplayBuffer(transitions, env.observation_space, env.action_space, "cpu", n_envs)
    rng, obs, sealed = np.random.default_rng(3), env.reset(), []
    while len(sealed) < 2:
        actions = rng.integers(0, env.action_space.n, n_envs)
        following, rewards, dones, infos = env.step(actions)
        buffer.add(obs, following, actions.reshape(-1, 1), rewards, dones, infos)
        obs = following
        sealed, _ = buffer._fields[0].frames.chunks()
    env.close()
    return ChunkDecoder(bytes(sealed[1]))


def things_of(chunk: ChunkDecoder, stream: int, group: int) -> list[Thing]:
    """
    Find all objects of a group.

    :param chunk: The chunk
    :param stream: The environment
    :param group: Which of its groups
    :return: They, in their order
    """
    coder, count, body = chunk.record(stream, group)
    offset, first = chunk.lanes[stream].groups[group]
    if coder != OBJECTS or number(body[6:8]) == PLAIN:
        return []
    n_references = number(body[6:8])
    references = [number(body[8 + 3 * k : 11 + 3 * k]) for k in range(n_references)]
    pos, found = 8 + 3 * n_references, []
    for place in range(count):
        n_objects, pos = body[pos], pos + 1
        if n_objects == PLAIN_PATCH:
            pos += 2 + number(body[pos : pos + 2])
            continue
        if n_objects == MANY:
            n_objects, pos = number(body[pos : pos + 2]), pos + 2
        begun = pos
        objects, pos = chunk.objects(body, pos, n_objects, references)
        if place == 0:  # on the key frame, or another group's first
            continue
        frame = chunk.frame(stream, first + place - 1)
        for begin, where, tokens in objects:
            after = apply_object(begin, tokens, frame)
            pictures = [np.frombuffer(data, np.uint8).reshape(SIDE, SIDE) for data in (frame, after)]
            rows, columns = np.nonzero(pictures[0] != pictures[1])
            spot = int(rows.min()), int(rows.max()) + 1, int(columns.min()), int(columns.max()) + 1
            lies = where if where >= 0 else offset + 8 + body.index(tokens, begun) - 1
            found.append(Thing((stream, first + place), spot, *pictures, lies, where < 0))
            frame = after
    return found


def draw_objects(chunk: ChunkDecoder) -> None:
    """
    The objects of one frame, and those of the chunk that are used most.

    :param chunk: A real one
    """
    groups = [(stream, group) for stream, lane in enumerate(chunk.lanes) for group in range(len(lane.groups))]
    everything = [thing for which in groups for thing in things_of(chunk, *which)]
    uses = Counter(thing.offset for thing in everything)
    counts = Counter(thing.frame for thing in everything)
    shown = max(counts, key=lambda frame: (min(counts[frame], 9), frame))
    here = [thing for thing in everything if thing.frame == shown]
    before, after = here[0].before, here[-1].after
    known = sum(not thing.is_new for thing in here)

    figure, ax = canvas(11.5, 4.3)
    for x, frame, title in ((0.1, after, "a frame"), (3.7, np.where(before != after, after, 255), "what has changed in it")):
        picture(ax, frame, x, 0.75, 3.2)
        ax.text(x + 1.6, 4.1, title, ha="center", fontsize=11)
    scale = 3.2 / SIDE
    for thing in here:
        top, bottom, left, right = thing.place
        corner = 3.7 + (left - 1) * scale, 0.75 + (SIDE - bottom - 1) * scale
        width, height = (right - left + 2) * scale, (bottom - top + 2) * scale
        color = ORANGE if thing.is_new else GREEN
        ax.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=color, lw=1.6, zorder=10))
    ax.text(5.3, 0.4, f"{known} objects that were seen before", ha="center", fontsize=10.5, color=GREEN)
    ax.text(5.3, 0.1, f"{len(here) - known} new ones", ha="center", fontsize=10.5, color=ORANGE)

    draw_catalogue(ax, everything, uses)
    share = sum(not thing.is_new for thing in everything) / len(everything)
    ax.text(9.45, 4.1, "some of the chunk's objects, and their uses", ha="center", fontsize=11)
    ax.text(9.45, 0.1, f"{len(everything):,} changes, {share:.0%} of them seen before", ha="center", fontsize=10.5, color=BLUE)
    save(figure, "objects.png")


def draw_catalogue(ax: Any, everything: list[Thing], uses: Counter[int]) -> None:
    """
    Those objects that are used most, each once, larger ones first.

    :param ax: Axes
    :param everything: All objects of the chunk
    :param uses: How often each of them is used
    """
    margin, size = 1, 0.86
    larger = [thing for thing in everything if min(thing.place[1] - thing.place[0], thing.place[3] - thing.place[2]) >= 3]
    often = [offset for offset, _ in Counter({thing.offset: uses[thing.offset] for thing in larger}).most_common(12)]
    for k, offset in enumerate(often):
        thing = next(thing for thing in larger if thing.offset == offset)
        top, bottom, left, right = thing.place
        side = max(bottom - top, right - left) + 2 * margin
        top, left = min(max(top - margin, 0), SIDE - side), min(max(left - margin, 0), SIDE - side)
        changed = np.where(thing.before != thing.after, thing.after, 255)[top : top + side, left : left + side]
        x, y = 7.6 + k % 4 * 0.98, 3.05 - k // 4 * 1.15
        picture(ax, changed, x, y, size, GREEN, 1.4)
        ax.text(x + size / 2, y - 0.19, f"{uses[offset]} times", ha="center", fontsize=8.5, color=GRAY)


if __name__ == "__main__":
    draw_objects(play_a_chunk())
