"""From method strings such as ``"zstd-5"`` and ``"lz4-frame/5"`` to codecs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs.base import Codec
from sb3_extra_buffers.codecs.deflate import GzipCodec, IgzipCodec
from sb3_extra_buffers.codecs.lz4 import Lz4BlockCodec, Lz4FrameCodec
from sb3_extra_buffers.codecs.plain import PlainCodec
from sb3_extra_buffers.codecs.rle import RleCodec, element_dtype, runs_dtype
from sb3_extra_buffers.codecs.rle_jit import RleJitCodec
from sb3_extra_buffers.codecs.zstd import ZstdCodec

_SHORTHAND = re.compile(r"^((?:[A-Za-z]+)|(?:[\w\-]+/))(\-?[0-9]+)$")

_codecs: dict[str, type[Codec]] = {}

COMPRESSION_METHOD_MAP: Mapping[str, type[Codec]] = MappingProxyType(_codecs)
"""Every registered method name and its codec class, read-only; ``register_codec`` adds to it."""


class MethodSpec(NamedTuple):
    """
    A parsed method string.

    :param name: Name of the method
    :param level: Level given in shorthand, if any
    """

    name: str
    level: int | None


def register_codec(codec: type[Codec]) -> type[Codec]:
    """Make a codec known under its name; usable as a class decorator."""
    if _codecs.get(codec.name, codec) is not codec:
        raise ValueError(f"a codec named {codec.name!r} is registered already")
    _codecs[codec.name] = codec
    return codec


for _codec in (
    PlainCodec,
    RleCodec,
    RleJitCodec,
    GzipCodec,
    IgzipCodec,
    ZstdCodec,
    Lz4FrameCodec,
    Lz4BlockCodec,
):
    register_codec(_codec)


def available_methods() -> tuple[str, ...]:
    """List the methods whose library is installed."""
    return tuple(name for name, codec in _codecs.items() if codec.is_available())


def _unknown_method(method: str, known: Collection[str]) -> ValueError:
    if re.match(r"delta($|-)", method.lower()) and "delta" not in known:
        return ValueError(
            f"unknown codec {method!r}: delta builds on earlier frames, so it is a method of the buffers and of "
            f"CompressedArray (compression_method={method!r}), not a codec, which knows one frame only. "
            f"Codecs: {', '.join(known)}"
        )
    nearest = difflib.get_close_matches(method.lower(), known, n=1, cutoff=0.4)
    message = f"unknown compression method {method!r}" + (f"; did you mean {nearest[0]!r}?" if nearest else ".")
    if method.lower().startswith("lz4"):
        message += " The level of an lz4 method comes after a slash, as in 'lz4-frame/5'."
    return ValueError(f"{message} Methods: {', '.join(known)}")


def parse_method(method: str, extra_names: Collection[str] = ()) -> MethodSpec:
    """Split a method string into name and level."""
    if not isinstance(method, str):
        raise TypeError(f"a compression method is a string, not {method!r}")
    known = [*_codecs, *extra_names]
    if method in known:
        return MethodSpec(method, None)
    shorthand = _SHORTHAND.fullmatch(method)
    if shorthand is None or shorthand[1].rstrip("/") not in known:
        raise _unknown_method(method, known)
    return MethodSpec(shorthand[1].rstrip("/"), int(shorthand[2]))


def _check_options(name: str, kind: str, given: Mapping[str, Any], allowed: Collection[str]) -> None:
    unknown = sorted(set(given) - set(allowed))
    if unknown:
        raise ValueError(f"{name}: unknown {kind} {', '.join(unknown)}; allowed: {', '.join(allowed) or 'none'}")


def make_codec(
    method: str,
    elem_type: npt.DTypeLike = np.uint8,
    runs_type: npt.DTypeLike = np.uint16,
    compression_kwargs: Mapping[str, Any] | None = None,
    decompression_kwargs: Mapping[str, Any] | None = None,
) -> Codec:
    """Make the codec of a method."""
    name, level = parse_method(method)
    codec = _codecs[name]
    types = {"elem_type": element_dtype(elem_type), "runs_type": runs_dtype(runs_type)}
    option_names = [field.name for field in fields(codec)]
    allowed = [option for option in option_names if option not in types]
    options = dict(compression_kwargs or {})
    _check_options(name, "compression_kwargs", options, allowed)
    _check_options(name, "decompression_kwargs", decompression_kwargs or {}, ())
    if level is not None:
        if "compresslevel" not in allowed:
            raise ValueError(f"{method!r}: {name} has no levels")
        if options.setdefault("compresslevel", level) != level:
            raise ValueError(
                f"{method!r} contradicts compression_kwargs, which ask for compresslevel {options['compresslevel']!r}"
            )
    options.update((option, dtype) for option, dtype in types.items() if option in option_names)
    return codec.create(**options)


def codec_from_config(config: Mapping[str, Any]) -> Codec:
    """Make the codec that ``Codec.get_config`` described."""
    name = config["name"]
    if name not in _codecs:
        raise _unknown_method(str(name), _codecs)
    return _codecs[name].from_config(config)
