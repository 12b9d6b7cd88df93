"""From a method string to the coder of frames."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs import (
    Codec,
    MethodSpec,
    available_methods,
    has_igzip,
    has_lz4,
    has_numba,
    has_zstd,
    make_codec,
    parse_method,
)
from sb3_extra_buffers.storage.coder import FrameCoder, PlainCoder
from sb3_extra_buffers.storage.layout import FrameLayout

logger = logging.getLogger(__name__)

DELTA = "delta"
DENSE = "delta-zstd"
_BEHIND = "delta-"

_DENSE_SHIFT = 6
_DENSE_LEVEL = 3

_told_about_numba = False


def fallback_method() -> str:
    """
    Choose the codec for frames that no reference helps.

    :return: The method that makes camera pictures smallest at an acceptable speed, of those installed
    """
    if has_zstd():
        return "zstd/1"
    return "igzip/1" if has_igzip() else "gzip/1"


def default_method() -> str:
    """
    Choose the method for who does not name one.

    :return: ``delta`` where numba is installed, else the best of what is
    """
    global _told_about_numba
    if has_numba():
        return DELTA
    if not _told_about_numba:
        _told_about_numba = True
        logger.warning(
            'numba is not installed: buffers use %r. `pip install "sb3-extra-buffers[fast]"` makes them '
            "several times smaller and faster.",
            _best_without_numba(),
        )
    return _best_without_numba()


def _best_without_numba() -> str:
    if has_zstd():
        return "zstd/1"
    if has_igzip():
        return "igzip/1"
    return "lz4-frame/0" if has_lz4() else "gzip/1"


def parse_any_method(method: str) -> MethodSpec:
    """
    Split a method string into name and level: ``parse_method``, but ``delta`` alone or before any codec is known, too.

    :param method: The string, for example ``"zstd-5"``, ``"delta"`` or ``"delta-gzip/5"``
    :return: Name and level
    """
    if isinstance(method, str) and method.startswith(_BEHIND):
        behind = parse_method(method[len(_BEHIND) :])
        return MethodSpec(_BEHIND + behind.name, behind.level)
    return parse_method(method, (DELTA, DENSE))


def is_reference_method(method: str) -> bool:
    """
    Tell whether a method codes frames against earlier ones.

    :param method: The string
    :return: Whether it is ``delta``, alone or before a codec
    """
    return method == DELTA or method.startswith(_BEHIND)


def known_methods() -> tuple[str, ...]:
    """
    List the methods that work here; ``delta-`` may stand before any other codec than zstd, too.

    :return: Their names
    """
    references = [DELTA, *([DENSE] if has_zstd() else [])] if has_numba() else []
    return (*references, *available_methods())


@dataclass(frozen=True)
class CoderSpec:
    """
    Everything that says how frames are coded: a plain, picklable value that makes coders.

    :param method: Method string, see ``parse_any_method``
    :param elem_type: Type of the elements
    :param runs_type: Type of run lengths, for run-length coding
    :param compression_kwargs: Options of the codec
    :param decompression_kwargs: Likewise
    """

    method: str
    elem_type: np.dtype[Any]
    runs_type: np.dtype[Any]
    compression_kwargs: Mapping[str, Any] = field(default_factory=dict)
    decompression_kwargs: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Raise at once what making a coder would raise later."""
        self._codecs()

    def _codecs(self) -> tuple[Codec, Codec | None]:
        """The codec for single frames, and the one behind references."""
        name, level = parse_any_method(self.method)
        if not is_reference_method(name):
            return self._codec(self.method, self.compression_kwargs), None
        if not has_numba():
            raise ImportError(
                f'the method {self.method!r} needs numba: pip install "sb3-extra-buffers[numba]", '
                f"or choose one of {', '.join(known_methods())}"
            )
        options = dict(self.compression_kwargs)
        plain = make_codec(options.pop("fallback", fallback_method()), self.elem_type, self.runs_type)
        if name == DELTA:
            if level is not None or options:
                given = [*(["a level"] if level is not None else []), *options]
                raise ValueError(f"{name!r} takes no {', '.join(given)}; its only option is 'fallback', a method name")
            return plain, None
        if name == DENSE and level is None and "compresslevel" not in options:
            level = _DENSE_LEVEL
        behind = name[len(_BEHIND) :]
        return plain, self._codec(behind if level is None else f"{behind}/{level}", options)

    def _codec(self, method: str, options: Mapping[str, Any]) -> Codec:
        return make_codec(method, self.elem_type, self.runs_type, options, self.decompression_kwargs)

    def __call__(self, layout: FrameLayout, n_streams: int) -> FrameCoder:
        codec, packer = self._codecs()
        if not is_reference_method(self.method):
            return PlainCoder(layout, n_streams, codec)
        from sb3_extra_buffers.storage.reference import ReferenceCoder

        if packer is None:
            return ReferenceCoder(layout, n_streams, codec)
        return ReferenceCoder(layout, n_streams, codec, packer, _DENSE_SHIFT)


def make_spec(
    method: str | None,
    elem_type: npt.DTypeLike,
    runs_type: npt.DTypeLike,
    compression_kwargs: Mapping[str, Any] | None = None,
    decompression_kwargs: Mapping[str, Any] | None = None,
) -> CoderSpec:
    """
    Check a choice of method and options.

    :param method: Method string; None for the default
    :param elem_type: Type of the elements
    :param runs_type: Type of run lengths
    :param compression_kwargs: Options of the codec, copied
    :param decompression_kwargs: Likewise
    :return: What makes the coders
    """
    spec = CoderSpec(
        default_method() if method is None else method,
        np.dtype(elem_type),
        np.dtype(runs_type),
        dict(compression_kwargs or {}),
        dict(decompression_kwargs or {}),
    )
    spec.check()
    return spec
