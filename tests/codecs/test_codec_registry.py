"""Method strings, levels and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from sb3_extra_buffers.codecs import (
    COMPRESSION_METHOD_MAP,
    available_methods,
    codec_from_config,
    has_igzip,
    has_lz4,
    has_numba,
    has_zstd,
    make_codec,
    parse_method,
    register_codec,
    registry,
)
from sb3_extra_buffers.codecs.base import Codec
from sb3_extra_buffers.codecs.plain import PlainCodec

NAMES = ["none", "rle", "rle-jit", "gzip", "igzip", "zstd", "lz4-frame", "lz4-block"]

LIBRARIES = {"igzip": has_igzip, "zstd": has_zstd, "lz4-frame": has_lz4, "lz4-block": has_lz4, "rle-jit": has_numba}


def need(name: str) -> None:
    if not LIBRARIES.get(name, lambda: True)():
        pytest.skip(f"the library of {name} is missing")


@pytest.mark.parametrize(
    ("method", "name", "level"),
    [
        ("none", "none", None),
        ("rle", "rle", None),
        ("rle-jit", "rle-jit", None),
        ("zstd", "zstd", None),
        ("lz4-frame", "lz4-frame", None),
        ("igzip3", "igzip", 3),
        ("igzip/3", "igzip", 3),
        ("gzip0", "gzip", 0),
        ("zstd-5", "zstd", -5),
        ("zstd/-5", "zstd", -5),
        ("zstd22", "zstd", 22),
        ("zstd007", "zstd", 7),
        ("lz4-frame/5", "lz4-frame", 5),
        ("lz4-frame/-5", "lz4-frame", -5),
        ("lz4-block/12", "lz4-block", 12),
        ("rle-jit/1", "rle-jit", 1),
    ],
)
def test_parse(method: str, name: str, level: int | None) -> None:
    assert parse_method(method) == (name, level)


@pytest.mark.parametrize(
    ("method", "nearest"),
    [
        ("ztsd", "zstd"),
        ("ZSTD", "zstd"),
        ("ZSTD3", "zstd"),
        ("gzzip", "gzip"),
        ("rle_jit", "rle-jit"),
        ("rlejit", "rle-jit"),
        ("lz4-frame5", "lz4-frame"),
        ("lz4-frame-5", "lz4-frame"),
        ("lz4-blok/5", "lz4-block"),
        ("zstd/", "zstd"),
        ("zstd//3", "zstd"),
        ("zstd3 ", "zstd"),
        ("zstd3\n", "zstd"),
        ("zstd3.5", "zstd"),
        ("nome", "none"),
    ],
)
def test_unknown_names_list_the_methods_and_suggest_the_nearest(method: str, nearest: str) -> None:
    for call in (parse_method, make_codec):
        with pytest.raises(ValueError) as caught:
            call(method)
        assert f"did you mean {nearest!r}?" in str(caught.value)
        assert ", ".join(NAMES) in str(caught.value)


@pytest.mark.parametrize("method", ["delta", "delta-zstd", "delta-gzip/5", "Delta"])
def test_delta_is_said_to_be_a_method_of_buffers(method: str) -> None:
    for call in (parse_method, make_codec):
        with pytest.raises(
            ValueError, match=rf"buffers and of CompressedArray \(compression_method='{method}'\), not a codec"
        ) as e:
            call(method)
        assert ", ".join(NAMES) in str(e.value) and "did you mean" not in str(e.value)


@pytest.mark.parametrize("method", ["lz4", "lz45", "lz4/5", "lz4-5", "lz4-frame5", "LZ4-block9"])
def test_lz4_needs_the_slash(method: str) -> None:
    with pytest.raises(ValueError, match=r"did you mean 'lz4-.*after a slash, as in 'lz4-frame/5'"):
        make_codec(method)


@pytest.mark.parametrize("method", ["", "5", "/5", "whatever"])
def test_nonsense_is_unknown(method: str) -> None:
    with pytest.raises(ValueError, match="unknown compression method"):
        parse_method(method)


@pytest.mark.parametrize("method", [None, 3, b"zstd", ["zstd"]])
def test_a_method_is_a_string(method: Any) -> None:
    with pytest.raises(TypeError, match="string"):
        parse_method(method)


def test_names_beside_the_codecs() -> None:
    extra = ["delta", "delta2", "frame-log"]
    assert parse_method("delta", extra) == ("delta", None)
    assert parse_method("delta7", extra) == ("delta", 7)
    assert parse_method("delta2", extra) == ("delta2", None)
    assert parse_method("frame-log/3", extra) == ("frame-log", 3)
    with pytest.raises(ValueError, match=r"did you mean 'delta'.*lz4-block, delta, delta2, frame-log"):
        parse_method("delt", extra)
    with pytest.raises(ValueError, match="unknown"):
        parse_method("delta")


def test_levels_need_levels() -> None:
    for method in ("none1", "rle3", "rle/3", "rle-jit/3"):
        with pytest.raises(ValueError, match="no levels"):
            make_codec(method)


@pytest.mark.parametrize(
    ("name", "default", "good", "bad"),
    [
        ("gzip", 6, [0, 1, 9], [-1, 10]),
        ("igzip", 2, [0, 1, 3], [-1, 4]),
        ("zstd", -3, [-100, -1, 1, 22], [-101, 0, 23]),
        ("lz4-frame", 0, [-65537, -1, 0, 1, 16], [-65538, 17]),
        ("lz4-block", 0, [-65537, -1, 0, 1, 12], [-65538, 13]),
    ],
)
def test_level_ranges(name: str, default: int, good: list[int], bad: list[int]) -> None:
    need(name)
    assert make_codec(name).get_config() == {"name": name, "compresslevel": default}
    frame = np.repeat(np.arange(40, dtype=np.uint8), 9)
    for level in good:
        codec = make_codec(f"{name}/{level}")
        assert codec.get_config()["compresslevel"] == level
        assert codec == make_codec(name, compression_kwargs={"compresslevel": level})
        out = np.zeros_like(frame)
        codec.decode(codec.encode(frame), out)
        assert np.array_equal(out, frame)
    for level in bad:
        with pytest.raises(ValueError, match=f"compresslevel {level} is out of range"):
            make_codec(f"{name}/{level}")
        with pytest.raises(ValueError, match=f"compresslevel {level} is out of range"):
            make_codec(name, compression_kwargs={"compresslevel": level})
        with pytest.raises(ValueError, match=f"compresslevel {level} is out of range"):
            COMPRESSION_METHOD_MAP[name](compresslevel=level)  # type: ignore[call-arg]


@pytest.mark.parametrize("level", ["3", 3.0, None])
def test_levels_are_integers(level: Any) -> None:
    with pytest.raises(ValueError, match="must be an integer"):
        make_codec("gzip", compression_kwargs={"compresslevel": level})


def test_numpy_levels_become_plain() -> None:
    codec = make_codec("gzip", compression_kwargs={"compresslevel": np.int64(3)})
    assert type(codec.get_config()["compresslevel"]) is int and codec == make_codec("gzip3")


@pytest.mark.parametrize(
    ("name", "smaller", "larger"),
    [
        ("gzip", 9, 1),
        ("gzip", 1, 0),
        ("igzip", 1, 0),
        ("zstd", 22, 1),
        ("zstd", 1, -1),
        ("zstd", -1, -100),
        ("lz4-frame", 16, 3),
        ("lz4-frame", 3, 0),
        ("lz4-frame", 0, -99),
        ("lz4-block", 12, 3),
        ("lz4-block", 3, 0),
        ("lz4-block", -1, -99),
    ],
)
def test_the_level_reaches_the_library(name: str, smaller: int, larger: int) -> None:
    need(name)
    rng = np.random.default_rng(0)
    words = [rng.integers(0, 40, length, dtype=np.uint8) for length in rng.integers(3, 20, 60)]
    frame = np.concatenate([words[index] for index in rng.integers(0, 60, 900)])
    assert len(make_codec(f"{name}/{smaller}").encode(frame)) < len(make_codec(f"{name}/{larger}").encode(frame))


def test_contradicting_levels() -> None:
    with pytest.raises(ValueError, match="contradicts"):
        make_codec("gzip3", compression_kwargs={"compresslevel": 4})
    assert make_codec("gzip3", compression_kwargs={"compresslevel": 3}) == make_codec("gzip3")


def test_the_callers_kwargs_stay_unchanged() -> None:
    compression, decompression = {"compresslevel": 3}, dict[str, Any]()
    make_codec("gzip3", compression_kwargs=compression, decompression_kwargs=decompression)
    empty: dict[str, Any] = {}
    make_codec("gzip3", compression_kwargs=empty)
    make_codec("rle", compression_kwargs=empty)
    with pytest.raises(ValueError):
        make_codec("gzip4", compression_kwargs=compression)
    assert compression == {"compresslevel": 3} and not decompression and not empty


@pytest.mark.parametrize(
    ("method", "allowed"), [("gzip", "compresslevel"), ("none", "none"), ("rle", "none"), ("lz4-block", "compresslevel")]
)
def test_unknown_options(method: str, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"unknown compression_kwargs level; allowed: {allowed}$"):
        make_codec(method, compression_kwargs={"level": 3})
    with pytest.raises(ValueError, match=r"unknown decompression_kwargs wbits; allowed: none$"):
        make_codec(method, decompression_kwargs={"wbits": 3})


def test_types_are_not_options() -> None:
    with pytest.raises(ValueError, match="unknown compression_kwargs elem_type"):
        make_codec("rle", compression_kwargs={"elem_type": np.uint8})


def test_types_reach_the_codec() -> None:
    config = make_codec("rle", elem_type=np.float32, runs_type="u1").get_config()
    assert config == {"name": "rle", "elem_type": np.dtype(np.float32).str, "runs_type": "|u1"}


def test_unknown_config() -> None:
    with pytest.raises(ValueError, match="did you mean 'zstd'"):
        codec_from_config({"name": "zst"})


def test_the_map_is_complete_and_read_only() -> None:
    assert list(COMPRESSION_METHOD_MAP) == NAMES
    assert isinstance(COMPRESSION_METHOD_MAP, Mapping)
    assert all(codec.name == name for name, codec in COMPRESSION_METHOD_MAP.items())
    with pytest.raises(TypeError):
        COMPRESSION_METHOD_MAP["mine"] = PlainCodec  # type: ignore[index]


def test_registering_a_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class Mine(PlainCodec):
        name: ClassVar[str] = "mine"
        colour: str = "red"

    @dataclass(frozen=True)
    class Thief(PlainCodec):
        name: ClassVar[str] = "zstd"

    for name in ("zstd", "mine"):  # undone at the end of the test
        monkeypatch.setitem(registry._codecs, name, registry._codecs.get(name, Mine))
    assert register_codec(Mine) is Mine and "mine" in available_methods()
    codec: Codec = make_codec("mine", compression_kwargs={"colour": "blue"})
    assert codec == Mine("blue") and codec_from_config(codec.get_config()) == codec
    with pytest.raises(ValueError, match="registered already"):
        register_codec(Thief)


def test_documented_import_paths() -> None:
    from sb3_extra_buffers import codecs
    from sb3_extra_buffers.compressed import compression_methods
    from sb3_extra_buffers.compressed.compression_methods import compression_methods_numba

    for name in ("COMPRESSION_METHOD_MAP", "has_numba", "has_igzip", "has_zstd", "has_lz4"):
        assert getattr(compression_methods, name) is getattr(codecs, name)
    assert compression_methods_numba.init_jit is codecs.init_jit
