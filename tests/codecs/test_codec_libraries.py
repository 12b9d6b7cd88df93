"""Optional libraries: loaded late, and a helpful answer when one is missing."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from sb3_extra_buffers import codecs
from sb3_extra_buffers.codecs import (
    available_methods,
    has_igzip,
    has_lz4,
    has_numba,
    has_zstd,
    init_jit,
    make_codec,
    rle_jit,
    zstd,
)
from sb3_extra_buffers.codecs._optional import ZSTD_MODULES, importable
from sb3_extra_buffers.codecs.deflate import GzipCodec, IgzipCodec
from sb3_extra_buffers.codecs.rle import RleCodec
from sb3_extra_buffers.codecs.rle_jit import RleJitCodec

FRAME = np.repeat(np.arange(50, dtype=np.uint8), 20)
Block = Callable[..., None]

needs_numba = pytest.mark.skipif(not has_numba(), reason="numba is missing")
needs_isal = pytest.mark.skipif(not has_igzip(), reason="isal is missing")
needs_zstd = pytest.mark.skipif(not has_zstd(), reason="zstandard is missing")


class BlockingFinder:
    """Import hook that refuses some top-level packages."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if any(name == blocked or name.startswith(f"{blocked}.") for blocked in self.names):
            raise ImportError(f"{name} is blocked")


@pytest.fixture(params=["None in sys.modules", "import hook"])
def block(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Block:
    def apply(*names: str) -> None:
        if request.param == "import hook":
            for module in list(sys.modules):
                if any(module == name or module.startswith(f"{name}.") for name in names):
                    monkeypatch.delitem(sys.modules, module)
            monkeypatch.setattr(sys, "meta_path", [BlockingFinder(names), *sys.meta_path])
        else:
            for name in names:
                monkeypatch.setitem(sys.modules, name, None)

    return apply


def decoded(codec: codecs.Codec, blob: bytes) -> np.ndarray:
    out = np.zeros_like(FRAME)
    codec.decode(blob, out)
    return out


def run_python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_importing_the_codecs_imports_no_library() -> None:
    run_python(
        "import sys, sb3_extra_buffers.codecs\n"
        "loaded = {'numba', 'zstandard', 'lz4', 'isal', 'backports.zstd', 'compression.zstd'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )


@needs_numba
def test_numba_is_imported_at_first_use() -> None:
    run_python(
        "import sys, numpy, sb3_extra_buffers.codecs as codecs\n"
        "assert codecs.has_numba()\n"
        "codec = codecs.make_codec('rle-jit')\n"
        "assert 'numba' not in sys.modules\n"
        "codec.encode(numpy.zeros(5, numpy.uint8))\n"
        "assert 'numba' in sys.modules"
    )


@pytest.mark.parametrize(
    ("has", "modules", "names"),
    [
        (has_numba, ["numba"], ["rle-jit"]),
        (has_igzip, ["isal"], ["igzip"]),
        (has_igzip, ["isal.igzip_lib"], ["igzip"]),
        (has_zstd, ZSTD_MODULES, ["zstd"]),
        (has_lz4, ["lz4"], ["lz4-frame", "lz4-block"]),
        (has_lz4, ["lz4.block"], ["lz4-frame", "lz4-block"]),
    ],
)
def test_has(has: Callable[[], bool], modules: list[str], names: list[str], block: Block) -> None:
    if not has():
        pytest.skip("missing already")
    assert set(names) <= set(available_methods())
    block(*modules)
    assert has() is False
    assert not set(names) & set(available_methods())


@needs_isal
@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_igzip_falls_back_to_gzip(level: int, block: Block) -> None:
    blob = make_codec(f"igzip{level}").encode(FRAME)
    block("isal")
    with pytest.warns(UserWarning, match=r'pip install "\.\[isal\]"') as caught:
        codec = make_codec(f"igzip{level}")
    assert len(caught) == 1 and caught[0].filename == __file__
    assert type(codec) is GzipCodec and codec.compresslevel == max(1, level)
    assert np.array_equal(decoded(codec, blob), FRAME)
    with pytest.raises(ValueError, match="out of range"):
        make_codec("igzip4")
    with pytest.raises(ImportError, match=r"\[isal\]"):
        IgzipCodec()


@needs_isal
def test_gzip_and_igzip_read_each_other() -> None:
    gzip, igzip = make_codec("gzip"), make_codec("igzip")
    assert np.array_equal(decoded(gzip, igzip.encode(FRAME)), FRAME)
    assert np.array_equal(decoded(igzip, gzip.encode(FRAME)), FRAME)


@needs_numba
def test_rle_jit_falls_back_to_rle(block: Block) -> None:
    blob = make_codec("rle-jit", runs_type=np.uint8).encode(FRAME)
    block("numba")
    with pytest.warns(UserWarning, match=r'pip install "\.\[numba\]"') as caught:
        codec = make_codec("rle-jit", runs_type=np.uint8)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert type(codec) is RleCodec and codec.runs_type == np.uint8
    assert np.array_equal(decoded(codec, blob), FRAME)
    with pytest.raises(ImportError, match=r"\[numba\]"):
        RleJitCodec()


def test_init_jit_warns_without_numba(block: Block) -> None:
    block("numba")
    with pytest.warns(UserWarning, match=r"\[numba\]"):
        init_jit(elem_type=np.uint8, runs_type=np.uint16)


@needs_numba
def test_broken_numba_falls_back_at_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed, but refuses this version of NumPy: that shows only at import."""
    expected = make_codec("rle").encode(FRAME)
    monkeypatch.delattr(codecs, "_rle_kernels", raising=False)
    monkeypatch.setitem(sys.modules, "sb3_extra_buffers.codecs._rle_kernels", None)
    rle_jit._kernels.cache_clear()
    try:
        codec = make_codec("rle-jit")
        with pytest.warns(UserWarning, match="cannot be imported"):
            assert codec.encode(FRAME) == expected
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # once is enough
            assert np.array_equal(decoded(codec, expected), FRAME)
    finally:
        rle_jit._kernels.cache_clear()


@pytest.mark.parametrize(
    ("method", "extra", "modules"),
    [
        ("zstd", "zstd", ZSTD_MODULES),
        ("zstd-5", "zstd", ZSTD_MODULES),
        ("lz4-frame", "lz4", ["lz4"]),
        ("lz4-block/3", "lz4", ["lz4"]),
    ],
)
def test_zstd_and_lz4_name_their_extra(method: str, extra: str, modules: list[str], block: Block) -> None:
    block(*modules)
    with pytest.raises(ImportError, match=rf'pip install "\.\[{extra}\]"'):
        make_codec(method)


@needs_isal
@needs_numba
@needs_zstd
def test_unpickling_where_a_library_is_missing(block: Block) -> None:
    pickled = {name: pickle.dumps(make_codec(name)) for name in ("igzip3", "rle-jit", "zstd")}
    block("isal", "numba", *ZSTD_MODULES)
    with pytest.warns(UserWarning, match=r"\[isal\]"):
        assert pickle.loads(pickled["igzip3"]) == GzipCodec(3)
    with pytest.warns(UserWarning, match=r"\[numba\]"):
        assert pickle.loads(pickled["rle-jit"]) == RleCodec()
    with pytest.raises(ImportError, match=r"\[zstd\]"):
        pickle.loads(pickled["zstd"])


@pytest.fixture
def zstd_backend(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    def use(module: str) -> None:
        """Block the better backends and forget the contexts made with them."""
        for better in ZSTD_MODULES[: ZSTD_MODULES.index(module)]:
            monkeypatch.setitem(sys.modules, better, None)
        monkeypatch.setattr(zstd, "_contexts", None)

    return use


@pytest.mark.parametrize("module", ZSTD_MODULES)
def test_zstd_backends_read_each_other(module: str, zstd_backend: Callable[[str], None]) -> None:
    if not importable(module):
        pytest.skip(f"{module} is missing")
    inputs = [FRAME, FRAME[:1], FRAME[:0], np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)]
    first = make_codec("zstd3")
    blobs = [first.encode(frame) for frame in inputs]
    zstd_backend(module)
    assert zstd._thread_contexts().backend._module is importlib.import_module(module)
    codec = make_codec("zstd3")
    for frame, blob in zip(inputs, blobs, strict=True):
        for readable in (blob, codec.encode(frame)):
            out = np.zeros_like(frame)
            codec.decode(readable, out)
            assert np.array_equal(out, frame)
        for damaged in (codec.encode(np.append(frame, np.uint8(1))), blob[:-1], blob[:-5] + blob[-4:]):
            with pytest.raises(codecs.CodecError):
                codec.decode(damaged, np.zeros_like(frame))
