"""Any codec behind the references."""

from __future__ import annotations

import numpy as np
import pytest
from frames_kit import Ring, frames_of_array, make_column, read_column, watch_codecs
from observation_streams import Stack, Stream
from reference_decoder import PACKED, ChunkDecoder

from sb3_extra_buffers.codecs import has_igzip, has_lz4, has_numba, has_zstd
from sb3_extra_buffers.storage import CompressedArray, make_spec

BEHIND = [
    "gzip",
    "gzip/9",
    "rle",
    "none",
    *(["rle-jit"] if has_numba() else []),
    *(["igzip1"] if has_igzip() else []),
    *(["zstd", "zstd-5", "zstd/19"] if has_zstd() else []),
    *(["lz4-frame/1", "lz4-block/0"] if has_lz4() else []),
]


@pytest.mark.parametrize("depth", [1, 4])
@pytest.mark.parametrize("behind", BEHIND)
def test_round_trip(behind: str, depth: int) -> None:
    stream = Stream(3, 2, (1, 16, 12), np.uint8, "game", Stack(depth, 0) if depth > 1 else None, done_rate=0.05)
    ring = Ring(stream, f"delta-{behind}", rows=90)
    for _ in range(4):
        ring.add(60)
        ring.check()


@pytest.mark.parametrize("behind", BEHIND)
def test_packed_where_that_is_smaller(behind: str) -> None:
    """A bar that moves: the same change in every row, for any codec but run lengths, which do not see it."""
    array = CompressedArray((300, 1, 32, 48), np.uint8, (32, 48), compression_method=f"delta-{behind}")
    frames = np.zeros((300, 1, 32, 48), np.uint8)
    for number, frame in enumerate(frames[:, 0]):
        frame[:, number % 40 : number % 40 + 5] = np.arange(5) + 1
        array[number] = frames[number]
    np.testing.assert_array_equal(np.asarray(array), frames)
    coders = set().union(*(ChunkDecoder(bytes(chunk)).coders() for chunk in frames_of_array(array).chunks()[0]))
    assert (PACKED in coders) == (not behind.startswith(("rle", "none")))


def test_the_level_reaches_the_codec() -> None:
    for method, options in (
        ("delta-gzip/7", {}),
        ("delta-gzip", {"compresslevel": 7}),
        ("delta-gzip/7", {"compresslevel": 7}),
    ):
        _, packer = make_spec(method, np.uint8, np.uint16, options).codecs()
        assert packer is not None and packer.name == "gzip" and packer.compresslevel == 7  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("delta-foo", {}, "foo"),
        ("delta-", {}, "unknown"),
        ("delta-delta", {}, "delta"),
        ("delta-gzip/77", {}, "77"),
        ("delta-gzip/7", {"compresslevel": 3}, "7"),
        ("delta/3", {}, "level"),
    ],
)
def test_wrong_names_and_levels(method: str, options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_spec(method, np.uint8, np.uint16, options)


# -- when a codec codes a frame -------------------------------------------------------------------------------------------


def levels(rng: np.random.Generator, count: int, lasts: int) -> np.ndarray:
    """Pictures of few values that have nothing to do with each other; each stays for a while, but for one pixel."""
    frames = np.repeat(rng.integers(0, 3, (count // lasts, 1, 24, 24), dtype=np.uint8), lasts, axis=0)
    frames[np.arange(len(frames)), 0, np.arange(len(frames)) % 24, 5] += 7
    return frames


@pytest.mark.parametrize(("lasts", "coded"), [(21, False), (3, True), (1, True)])
def test_a_change_of_scene_is_nothing_for_a_codec(lasts: int, coded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where group after group ends early: else somebody would wait for Python whenever a level is done."""
    calls: list[str] = []
    watch_codecs(monkeypatch, calls.append)
    column = make_column((1, 24, 24), method="delta", rows=200, chunk_rows=200)
    frames = levels(np.random.default_rng(0), 189, lasts)
    for row, frame in enumerate(frames):
        column.write(row, frame[None])
    assert ("encode" in calls) == coded
    np.testing.assert_array_equal(read_column(column)[: len(frames), 0], frames)


@pytest.mark.parametrize("how", ["as it is", "cleared"])
def test_that_references_do_not_pay_is_remembered(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rollout buffer is cleared again and again; what would be found out anew takes the memory of whole frames."""
    calls: list[str] = []
    watch_codecs(monkeypatch, calls.append)
    column = make_column((1, 24, 24), method="delta", rows=200, chunk_rows=200)
    frames, others = (levels(np.random.default_rng(seed), 40, 1) for seed in range(2))
    for row, frame in enumerate(frames):
        column.write(row, frame[None])
    assert calls.count("encode") < len(frames)  # it took a while
    if how == "cleared":
        column.clear()
    calls.clear()
    for row, frame in enumerate(others):
        column.write(len(frames) + row if how != "cleared" else row, frame[None])
    assert calls.count("encode") == len(others)
