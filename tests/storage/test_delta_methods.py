"""Any codec behind the references."""

from __future__ import annotations

import numpy as np
import pytest
from observation_streams import Stack, Stream
from reference_decoder import OPEN, PACKED
from store_kit import Ring, image_of, store_of

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
    image = image_of(store_of(array))
    places = [place for groups in image.directory for place in groups.lists["locations"] if not place & OPEN]
    kinds = {image.segments[place >> 32].data[(place & 0xFFFFFFFF) + 4] for place in places}
    assert (PACKED in kinds) == (not behind.startswith(("rle", "none")))


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
