"""The header of a recording, of which every word is checked: it may come from a stranger."""

from __future__ import annotations

import json
import math
import re
import reprlib
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from sb3_extra_buffers import __version__
from sb3_extra_buffers.recording.archive import Damage, NotOurs, read_member
from sb3_extra_buffers.recording.checks import MOST_DIMENSIONS, check_json, check_metadata

FORMAT = "sb3-extra-buffers recording"
FORMAT_VERSION = 1
HEADER = "header.json"
LARGEST_HEADER = 16 << 20

_WITH_FRAMES = ("dense", "compressed")
_WITHOUT_FRAMES = ("frameless", "dummy")
_LARGEST_CHUNK = 64 << 20  # eight times what is written
_ANY_MEMORY = 1 << 47  # bytes that a process can address at most

Header = dict[str, Any]

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def read_header(archive: zipfile.ZipFile) -> Header:
    """
    Read the header and check it.

    :param archive: The file
    :return: The header
    """
    if HEADER not in archive.namelist():
        raise NotOurs("a zip file, but not a recording: it has no header")
    try:
        header = json.loads(
            read_member(archive, HEADER, LARGEST_HEADER), object_pairs_hook=_without_twins, parse_constant=_no_number
        )
    except (ValueError, RecursionError) as error:
        raise Damage(f"its header is damaged: {error}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise NotOurs("a zip file, but not a recording: its header does not say so")
    if header.get("format_version") != FORMAT_VERSION:
        raise Damage(
            f"written in format {_short.repr(header.get('format_version'))} by version {_short.repr(header.get('version'))}; "
            f"this is version {__version__}, which reads format {FORMAT_VERSION}"
        )
    for key, valid in _VALID.items():
        if key not in header:
            raise Damage(f"its header is damaged: {key!r} is missing")
        if not valid(header[key]):
            raise Damage(f"its header is damaged: {key!r} is {_short.repr(header[key])}")
    _check_together(header)
    return header


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it says something twice")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"it has {name} for a number")


def _check_together(header: Header) -> None:
    frame_shape, size = header["frame_shape"], header["buffer_size"]
    frame = _row_bytes(frame_shape or [], header["frame_dtype"])
    row = frame + _row_bytes(header["action_shape"], header["action_dtype"])
    row += sum(_row_bytes(shape, dtype) for shape, dtype in header["features"].values())
    for wrong, what in (
        ((frame_shape is None) != (header["kind"] in _WITHOUT_FRAMES), "'kind' and 'frame_shape' contradict each other"),
        (size is not None and header["steps"] > size, "it has more steps than its ring"),
        (row * (size or 1) >= _ANY_MEMORY, "no memory holds a ring of that size"),
        (header["chunk_frames"] > 1 and header["chunk_frames"] * frame > _LARGEST_CHUNK, "'chunk_frames' is too large"),
    ):
        if wrong:
            raise Damage(f"its header is damaged: {what}")
    try:
        check_json(header["features"], "a name of a feature")
        check_metadata(header["metadata"])
    except (TypeError, ValueError) as error:
        raise Damage(f"its header is damaged: {error}") from error


def _row_bytes(shape: list[int], dtype: str) -> int:
    return math.prod(shape) * np.dtype(dtype).itemsize


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MOST_DIMENSIONS and all(_is_count(size) and size > 0 for size in value)


def _is_dtype(value: Any) -> bool:
    if not isinstance(value, str) or not re.fullmatch(r"[|<>=][biufc][0-9]{1,2}", value):
        return False
    try:
        np.dtype(value)
    except TypeError:
        return False
    return True


def _is_feature(spec: Any) -> bool:
    return isinstance(spec, list) and len(spec) == 2 and _is_shape(spec[0]) and _is_dtype(spec[1])


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


_VALID: dict[str, Callable[[Any], bool]] = {
    "version": _is_text,
    "kind": lambda value: value in _WITH_FRAMES or value in _WITHOUT_FRAMES,
    "steps": _is_count,
    "episodes": _is_count,
    "first_episode": _is_count,
    "is_cut": lambda value: isinstance(value, bool),
    "is_open": lambda value: isinstance(value, bool),
    "buffer_size": lambda value: value is None or (_is_count(value) and value > 0),
    "frame_shape": lambda value: value is None or _is_shape(value),
    "frame_dtype": _is_dtype,
    "action_shape": _is_shape,
    "action_dtype": _is_dtype,
    "features": lambda value: isinstance(value, dict) and all(_is_feature(spec) for spec in value.values()),
    "finals": _is_count,
    "chunk_frames": lambda value: _is_count(value) and value > 0,
    "metadata": lambda value: isinstance(value, dict),
}
