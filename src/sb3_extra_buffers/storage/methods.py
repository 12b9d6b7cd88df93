"""From a method string to how frames are coded."""

from __future__ import annotations

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
    has_zstd,
    make_codec,
    parse_method,
)

DELTA = "delta"
DENSE = "delta-zstd"
_BEHIND = "delta-"

_SHIFT = 3
_DENSE_SHIFT = 6
_DENSE_LEVEL = 3


def fallback_method() -> str:
    """Choose the codec for frames that no reference helps."""
    if has_zstd():
        return "zstd/1"
    return "igzip/1" if has_igzip() else "gzip/1"


def default_method() -> str:
    """
    Choose the method for who does not name one.

    :return: ``delta``
    """
    return DELTA


def parse_any_method(method: str) -> MethodSpec:
    """Split a method string into name and level: ``parse_method``, but ``delta`` alone or before any codec is known, too."""
    if isinstance(method, str) and method.startswith(_BEHIND):
        behind = parse_method(method[len(_BEHIND) :])
        return MethodSpec(_BEHIND + behind.name, behind.level)
    return parse_method(method, (DELTA, DENSE))


def is_reference_method(method: str) -> bool:
    """Find out whether a method codes frames against earlier ones."""
    return method == DELTA or method.startswith(_BEHIND)


def known_methods() -> tuple[str, ...]:
    """
    List the methods that work here; ``delta-`` may stand before any other codec than zstd, too.

    :return: Their names
    """
    return (DELTA, *([DENSE] if has_zstd() else []), *available_methods())


@dataclass(frozen=True)
class CoderSpec:
    """
    Everything that says how frames are coded: a plain, picklable value.

    :param method: Method string, see ``parse_any_method``
    :param elem_type: Type of the elements
    :param runs_type: Type of run lengths, for run-length coding
    :param compression_kwargs: Options of the codec
    :param decompression_kwargs: Likewise
    :param fallback: Codec for frames that no reference helps, unless an option says otherwise. It is part of the choice:
        nothing else can read what it stored
    """

    method: str
    elem_type: np.dtype[Any]
    runs_type: np.dtype[Any]
    compression_kwargs: Mapping[str, Any] = field(default_factory=dict)
    decompression_kwargs: Mapping[str, Any] = field(default_factory=dict)
    fallback: str = field(default_factory=fallback_method)

    def __reduce__(self) -> tuple[Any, ...]:
        types = self.elem_type.str, self.runs_type.str
        return restore_spec, (self.method, *types, self.compression_kwargs, self.decompression_kwargs, self.fallback)

    def check(self) -> None:
        """Raise at once what making a coder would raise later."""
        self.__dict__["_checked"] = self._make_codecs()  # for the first column: what is missing is warned of once

    @property
    def references(self) -> bool:
        """Whether frames are coded against earlier ones."""
        return is_reference_method(self.method)

    @property
    def shift(self) -> int:
        """Two to this power is the number of frames in a group."""
        if not self.references:
            return 0
        return _SHIFT if parse_any_method(self.method).name == DELTA else _DENSE_SHIFT

    def codecs(self) -> tuple[Codec, Codec | None]:
        """
        Make the codecs.

        :return: The one for single frames, and the one behind references, over whole groups
        """
        return self.__dict__.pop("_checked", None) or self._make_codecs()

    def _make_codecs(self) -> tuple[Codec, Codec | None]:
        name, level = parse_any_method(self.method)
        if not is_reference_method(name):
            return self._codec(self.method, self.compression_kwargs), None
        options = dict(self.compression_kwargs)
        plain = make_codec(options.pop("fallback", self.fallback), self.elem_type, self.runs_type)
        if name == DELTA:
            if level is not None or options:
                given = [*(["level"] if level is not None else []), *options]
                raise ValueError(f"{name!r} takes no {', no '.join(given)}; its only option is 'fallback', a method name")
            return plain, None
        if name == DENSE and level is None and "compresslevel" not in options:
            level = _DENSE_LEVEL
        behind = name[len(_BEHIND) :]
        return plain, self._codec(behind if level is None else f"{behind}/{level}", options)

    def _codec(self, method: str, options: Mapping[str, Any]) -> Codec:
        return make_codec(method, self.elem_type, self.runs_type, options, self.decompression_kwargs)


def restore_spec(method: str, elem_type: str, runs_type: str, *rest: Any) -> CoderSpec:
    """Make a choice again that was pickled."""
    return CoderSpec(method, np.dtype(elem_type), np.dtype(runs_type), *rest)


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
    :return: The choice
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
