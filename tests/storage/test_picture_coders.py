"""Pictures that no patch helps, beside SB3's own buffers: coded by palettes and joint deltas, without a codec."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.compressed import CompressedReplayBuffer

KINDS = ("texture", "shades", "noise", "still")


def draw(rng: np.random.Generator, kind: str, colours: int, height: int, width: int, channels: int) -> np.ndarray:
    """Draw a picture, channels last; pictures of one kind have nothing else in common."""
    if kind == "noise":
        return rng.integers(0, 256, (height, width, channels), dtype=np.uint8)
    if kind == "shades":
        places = np.add.outer(np.arange(height) * 2, np.arange(width))[..., None] + np.arange(channels) * 20
        return (places + rng.integers(0, 256) + rng.integers(0, 3, (height, width, channels))).astype(np.uint8)
    numbers = np.add.outer(np.arange(height) * 3, np.arange(width)) // 2 + rng.integers(0, colours)
    changed = rng.random((height, width)) < 0.1
    numbers[changed] = rng.integers(0, colours, int(changed.sum()))
    table = np.random.default_rng(5).integers(0, 256, (colours, channels), dtype=np.uint8)
    return table[numbers % colours]


def fill_both(frames: list[np.ndarray], size: int, n_envs: int, layout: str, stack: int) -> CompressedReplayBuffer:
    """Add the same to SB3's buffer and to ours, compare all that is in them, and return ours."""

    def observe(t: int) -> np.ndarray:
        shown = [frames[max(t - k, 0)] for k in range(stack - 1, -1, -1)]
        stacked = np.concatenate(shown, axis=-1)
        obs = np.stack([np.roll(stacked, 3 * env, axis=0) for env in range(n_envs)])
        return obs.transpose(0, 3, 1, 2) if layout == "first" else obs

    space = spaces.Box(0, 255, observe(0).shape[1:], np.uint8)
    plain = ReplayBuffer(size, space, spaces.Discrete(3), "cpu", n_envs)
    ours = CompressedReplayBuffer(size, space, spaces.Discrete(3), "cpu", n_envs)
    for t, (now, following) in enumerate(pairwise(observe(t) for t in range(len(frames)))):
        rest = np.full((n_envs, 1), t % 3), np.full(n_envs, t), np.zeros(n_envs), [{}] * n_envs
        plain.add(now, following, *rest)
        ours.add(now, following, *rest)
    np.testing.assert_array_equal(ours.observations[:], plain.observations)
    np.testing.assert_array_equal(ours.next_observations[:], plain.next_observations)
    for seed in range(3):
        np.random.seed(seed)
        wanted = plain.sample(40)
        np.random.seed(seed)
        for one, other in zip(ours.sample(40), wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    return ours


@pytest.mark.parametrize(("kind", "coder"), [("texture", "palette"), ("shades", "joint"), ("noise", "key")])
@pytest.mark.parametrize(
    ("layout", "channels", "stack"),
    [("first", 3, 1), ("last", 3, 1), ("first", 3, 4), ("last", 3, 4), ("last", 1, 1), ("first", 4, 1), ("last", 4, 1)],
)
def test_every_layout_gets_the_coder_that_suits_it(kind: str, coder: str, layout: str, channels: int, stack: int) -> None:
    rng = np.random.default_rng(0)
    frames = [draw(rng, kind, 50, 62, 34, channels) for _ in range(90)]
    usage = fill_both(frames, 120, 2, layout, stack).memory_usage()
    by_coder = usage.frames_by_coder
    assert max(by_coder, key=by_coder.__getitem__) == coder and sum(by_coder.values()) == usage.frames_stored
    assert "codec" not in by_coder
    assert f"{by_coder[coder]:,} {coder}" in str(usage)


@pytest.mark.parametrize("colours", [255, 256, 257])
def test_a_table_of_colours_fills_in_the_middle(colours: int) -> None:
    rng = np.random.default_rng(1)
    frames = [draw(rng, "texture", min(colours, 60 + 4 * number), 60, 48, 3) for number in range(90)]
    usage = fill_both(frames, 200, 1, "first", 1).memory_usage()
    assert usage.frames_by_coder["palette"] > 20 and usage.total_bytes < usage.raw_bytes / 3


@given(
    seed=st.integers(0, 1000),
    kinds=st.lists(st.tuples(st.sampled_from(KINDS), st.integers(1, 12)), min_size=1, max_size=6),
    colours=st.integers(1, 400),
    shape=st.tuples(st.integers(16, 60), st.integers(4, 60), st.integers(1, 4)),
    layout=st.sampled_from(("first", "last")),
    stack=st.integers(1, 3),
)
def test_any_mixture(
    seed: int, kinds: list[tuple[str, int]], colours: int, shape: tuple[int, int, int], layout: str, stack: int
) -> None:
    rng = np.random.default_rng(seed)
    frames: list[np.ndarray] = []
    for kind, count in kinds:
        still = draw(rng, "shades", colours, *shape)
        frames += [still if kind == "still" else draw(rng, kind, colours, *shape) for _ in range(count)]
    fill_both([frames[0], *frames], 12, 2, layout, stack)
