"""Every test that takes ``each_method`` runs once for each codec and each of its modes."""

from __future__ import annotations

import pytest

from sb3_extra_buffers.codecs import COMPRESSION_METHOD_MAP, parse_method

METHODS = [
    "none",
    "rle",
    "rle-jit",
    "gzip",
    "gzip0",
    "gzip9",
    "igzip0",
    "igzip3",
    "zstd",
    "zstd19",
    "zstd-100",
    "lz4-frame",
    "lz4-frame/16",
    "lz4-frame/-9",
    "lz4-block",
    "lz4-block/12",
    "lz4-block/-9",
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "each_method" in metafunc.fixturenames:
        cases = []
        for method in METHODS:
            codec = COMPRESSION_METHOD_MAP[parse_method(method).name]
            missing = pytest.mark.skipif(not codec.is_available(), reason=f"the library of {codec.name} is missing")
            cases.append(pytest.param(method, marks=missing))
        metafunc.parametrize("each_method", cases)


@pytest.fixture
def tested_names() -> set[str]:
    return {parse_method(method).name for method in METHODS}
