"""What looks like a frame stack and is none, what is one, and what was one until now."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from frames_kit import frames_of_array
from hypothesis import given, settings
from hypothesis import strategies as st
from observation_streams import METHODS, Stack, Stream, assert_same_bits

from sb3_extra_buffers.storage import CompressedArray, Frames
from sb3_extra_buffers.storage._core import refuse_allocation
from sb3_extra_buffers.storage.layout import FrameLayout

QUICK_METHODS = [method for method in METHODS if method in ("delta", "delta-zstd", "none")]


def frames_an_observation(array: CompressedArray) -> float:
    """How many frames an observation is stored as; right while nothing has been overwritten."""
    usage = array.memory_usage()
    observation = np.prod(array.obs_shape) * array.dtype.itemsize
    return float((usage.frames_stored + usage.frames_shared) * observation / usage.raw_bytes)


def depth_of(array: CompressedArray) -> int:
    """Frames of an observation that is stored now; what is sealed stays as it is."""
    return array._frames.layout.depth


def moving(count: int, shape: tuple[int, ...], step: tuple[int, int], axes: tuple[int, int] = (0, 1)) -> Iterator[np.ndarray]:
    """A square that flies over a plain ground, leaves it on one side and comes back on the other."""
    for number in range(count):
        obs = np.full(shape, 30, np.uint8)
        rows, columns = ((20 - number * by + np.arange(5)) % shape[axis] for by, axis in zip(step, axes, strict=True))
        square = np.ix_(
            *(rows if axis == axes[0] else columns if axis == axes[1] else range(n) for axis, n in enumerate(shape))
        )
        obs[square] = 200
        yield obs


def scrolling(count: int, shape: tuple[int, ...], axis: int, seed: int = 0) -> Iterator[np.ndarray]:
    """A detailed picture that moves: its planes along the axis really are a stack."""
    rng = np.random.default_rng(seed)
    length = shape[axis]
    long = rng.integers(0, 256, [count + length if at == axis else n for at, n in enumerate(shape)], dtype=np.uint8)
    for number in range(count):
        yield np.take(long, np.arange(number, number + length), axis=axis)


def detailed(count: int, shape: tuple[int, ...], seed: int = 1) -> Iterator[np.ndarray]:
    """A detailed picture that stands still, and something small here and there."""
    rng = np.random.default_rng(seed)
    ground = rng.integers(0, 256, shape, dtype=np.uint8)
    for _ in range(count):
        obs = ground.copy()
        obs.reshape(-1)[rng.integers(0, obs.size) :][:4] ^= 255
        yield obs


def fill(array: CompressedArray, obs: Iterator[np.ndarray], start: int = 0) -> list[np.ndarray]:
    """Write observations of one environment from a row on."""
    written = []
    for row, one in enumerate(obs, start):
        array[row] = one[None]
        written.append(one)
    return written


MOVES: dict[str, Any] = {
    "left": ((64, 64), (0, 1)),
    "up": ((64, 64), (1, 0)),
    "left, by two": ((64, 64), (0, 2)),
    "up, colours": ((60, 80, 3), (1, 0)),
    "left, channels first": ((3, 40, 60), (0, 1), (1, 2)),
}


@pytest.mark.parametrize("method", QUICK_METHODS)
@pytest.mark.parametrize("move", MOVES)
def test_one_object_that_moves_is_no_stack(move: str, method: str) -> None:
    shape = MOVES[move][0]
    array = CompressedArray((220, 1), np.uint8, shape, compression_method=method)
    written = fill(array, moving(60, *MOVES[move]))
    assert frames_an_observation(array) == 1
    written += fill(array, detailed(150, shape), start=60)
    assert frames_an_observation(array) == 1
    assert_same_bits(array[:210, 0], np.stack(written))


@pytest.mark.parametrize("n_envs", [1, 8])
@pytest.mark.parametrize(("cells", "cell"), [(8, 8), (16, 1), (6, 5), (4, 12)])
def test_a_grid_world_is_no_stack(cells: int, cell: int, n_envs: int) -> None:
    """An agent that goes one cell up looks like a stack of rows of cells, at one step in four."""
    rng = np.random.default_rng(0)
    array = CompressedArray((500, n_envs), np.uint8, (cells * cell, cells * cell, 3))
    places = np.full((n_envs, 2), cells // 2)
    for row in range(500):
        obs = np.zeros(array.shape[1:], np.uint8)
        for env, (y, x) in enumerate(places.tolist()):
            obs[env, y * cell : (y + 1) * cell, x * cell : (x + 1) * cell] = (255, 10, 0)
        array[row] = obs
        places = (places + rng.choice([(0, 1), (1, 0), (0, -1), (-1, 0)], n_envs)) % cells
    assert frames_an_observation(array) == 1


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_a_stack_that_stops_being_one_is_given_up(method: str) -> None:
    """First a picture that scrolls row by row, then one that does not."""
    shape = (48, 40)
    array = CompressedArray((1000, 1), np.uint8, shape, compression_method=method)
    written = fill(array, scrolling(60, shape, 0))
    assert depth_of(array) == 48
    written += fill(array, detailed(30, shape), start=60)
    assert depth_of(array) == 1
    written += fill(array, detailed(900, shape, seed=2), start=90)
    assert depth_of(array) == 1
    assert_same_bits(array[:990, 0], np.stack(written))
    plain = CompressedArray((1000, 1), np.uint8, shape, compression_method=method)
    fill(plain, iter(written[60:]))
    assert array.compressed_nbytes - plain.compressed_nbytes < 70 * (48 * 40 + 100), "as if it had never been a stack"


def test_a_stack_in_rollouts_too_short_to_tell() -> None:
    """What speaks against a layout is not forgotten when the buffer is emptied."""
    shape = (48, 40)
    array = CompressedArray((10, 1), np.uint8, shape)
    depths = []
    for number in range(8):
        array.clear()
        pictures = scrolling(10, shape, 0) if number < 2 else detailed(10, shape, seed=number)
        written = fill(array, pictures)
        assert_same_bits(array[:, 0], np.stack(written))
        depths.append(frames_an_observation(array))
    assert depths[1] == 48 and depths[-1] == 1


def test_a_stack_behind_another() -> None:
    """A title that scrolls, then the game, which is stacked along another axis."""
    array = CompressedArray((300, 1), np.uint8, (4, 10, 32))
    written = fill(array, scrolling(30, (4, 10, 32), 2))
    assert frames_an_observation(array) == 32
    game = Stream(0, 1, (1, 10, 32), np.uint8, "game", Stack(4, 0), done_rate=0.05)
    written += fill(array, (game.step()[0][0] for _ in range(200)), start=30)
    assert frames_an_observation(array) == 4
    assert_same_bits(array[:230, 0], np.stack(written))


def test_layouts_are_not_changed_for_ever() -> None:
    """A picture that scrolls and stands still in turn: each change of the layout stores everything again."""
    shape = (16, 40)
    array = CompressedArray((2000, 1), np.uint8, shape)
    written: list[np.ndarray] = []
    depths: list[int] = []
    for number in range(12):
        for pictures in (scrolling(80, shape, 0, number), detailed(80, shape, number)):
            for obs in pictures:
                array[len(written)] = obs[None]
                written.append(obs)
                depths.append(depth_of(array))
    assert 1 <= np.count_nonzero(np.diff(depths)) <= 4
    assert_same_bits(array[: len(written), 0], np.stack(written))


def test_what_is_sealed_stays_as_it_is() -> None:
    """Giving a stack up codes the open chunk again, and nothing else: that costs little, however much is held."""
    array = CompressedArray((4000, 1), np.uint8, (4, 8, 8))
    frames = frames_of_array(array)
    game = Stream(0, 1, (1, 8, 8), np.uint8, "game", Stack(4, 0), done_rate=0.05)
    written = fill(array, (game.step()[0][0] for _ in range(2000)))
    assert frames.layout.depth == 4
    before = [bytes(chunk) for chunk in frames.chunks()[0]]
    noise = np.random.default_rng(0).integers(0, 256, (1500, 4, 8, 8), dtype=np.uint8)
    written += fill(array, iter(noise), start=2000)
    assert frames.layout.depth == 1
    assert len(before) > 2 and [bytes(chunk) for chunk in frames.chunks()[0]][: len(before)] == before
    assert_same_bits(array[:3500, 0], np.stack(written))


@pytest.mark.parametrize("padding", ["zeros", "repeat", "none"])
@pytest.mark.parametrize("n_envs", [1, 16])
@pytest.mark.parametrize("length", [2, 5, 40])
def test_a_real_stack_is_found_and_kept(length: int, n_envs: int, padding: str) -> None:
    """With episodes of any length, which may end in all environments at once, and whatever comes before their first frame."""
    if padding == "none" and length < 5:
        pytest.skip("two observations that follow, one that does not: nothing to be gained")
    rng = np.random.default_rng(0)
    arrays = [CompressedArray((200, n_envs), np.uint8, (4, 12, 12))]
    arrays.append(CompressedArray((200, n_envs), np.uint8, (4, 12, 12), share_with=arrays[0]))
    obs = np.zeros((n_envs, 4, 12, 12), np.uint8)
    for row in range(200):
        if row % length == 0:
            first = rng.integers(0, 256, obs.shape, dtype=np.uint8)
            obs = {"zeros": np.zeros_like(obs), "repeat": first[:, -1:] * np.ones_like(obs), "none": first}[padding]
            obs[:, -1] = first[:, -1]
        following = np.concatenate([obs[:, 1:], rng.integers(0, 256, (n_envs, 1, 12, 12), dtype=np.uint8)], axis=1)
        arrays[0][row], arrays[1][row] = obs, following
        obs = following
        if row == (6 if padding == "zeros" else 60):
            assert frames_an_observation(arrays[0]) == 4
    assert frames_an_observation(arrays[0]) == 4


@pytest.mark.parametrize("method", QUICK_METHODS)
def test_no_memory_to_give_a_stack_up(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it stays, and what is added is stored all the same."""
    refused: list[int] = []
    adopt = Frames._adopt

    def without_memory(self: Frames, layout: FrameLayout) -> bool:
        if layout.depth > 1:
            return adopt(self, layout)
        refuse_allocation(len(refused) % 12)  # another one each time
        adopted = adopt(self, layout)
        assert refuse_allocation(-1) == -1 and not adopted
        refused.append(layout.depth)
        return adopted

    monkeypatch.setattr(Frames, "_adopt", without_memory)
    shape = (24, 40)
    array = CompressedArray((300, 1), np.uint8, shape, compression_method=method)
    written = fill(array, scrolling(60, shape, 0))
    written += fill(array, detailed(200, shape), start=60)
    assert frames_an_observation(array) == 24
    assert len(refused) > 20
    assert_same_bits(array[:260, 0], np.stack(written))


@settings(max_examples=25)
@given(data=st.data())
def test_nothing_is_lost_on_the_way(data: Any) -> None:
    """Whatever follows whatever, in a ring that is overwritten meanwhile."""
    method = data.draw(st.sampled_from(QUICK_METHODS))
    shape = (4, 10, 16)
    rows = data.draw(st.sampled_from([30, 90, 300]))
    array = CompressedArray((rows, 1), np.uint8, shape, compression_method=method)
    twin = np.zeros(array.shape, np.uint8)
    step = 0
    for _ in range(data.draw(st.integers(1, 6))):
        seed = data.draw(st.integers(0, 99))
        kind = data.draw(st.sampled_from(["scroll", "detail", "move", "stack"]))
        count = data.draw(st.integers(1, 80))
        game = Stream(seed, 1, (1, 10, 16), np.uint8, "mixed", Stack(4, 0), done_rate=0.1)
        pictures = {
            "scroll": scrolling(count, shape, seed % 2 * 2, seed),
            "detail": detailed(count, shape, seed),
            "move": moving(count, shape, (0, 1), (1, 2)),
            "stack": (game.step()[0][0] for _ in range(count)),
        }
        for obs in pictures[kind]:
            array[step % rows] = twin[step % rows] = obs[None]
            step += 1
        assert_same_bits(np.asarray(array), twin)
