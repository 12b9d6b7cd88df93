"""
The file format of recordings: a zip of a JSON header and plain arrays, without pickle.

It is for others to read, too. ``header.json`` says what there is. Each column is a ``.npy``; frames are split into chunks,
one ``.npy`` each, and the header's ``"coding"`` says of each chunk whether its frames are plain (``"p"``) or, but for the
first, XORed byte by byte with the one before (``"x"``).
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers import __version__
from sb3_extra_buffers.recording.errors import RecordingError

FORMAT = "sb3-extra-buffers recording"
FORMAT_VERSION = 1
KINDS = ("dense", "frameless", "dummy", "compressed")
HEADER = "header.json"

_LARGEST_HEADER = 16 << 20
_MOST_SHRINKING = 1100  # deflate makes nothing smaller than by a factor of 1032
_NPY_HEADER = 4096  # more than the description of an array takes

# What the standard library says about a zip file that is damaged, or uses what we never use, such as encryption.
_DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, struct.error)

Header = dict[str, Any]


def write_array(archive: zipfile.ZipFile, name: str, array: npt.NDArray[Any]) -> None:
    """
    Write an array.

    :param archive: The file
    :param name: Name of the member
    :param array: The array
    """
    with archive.open(name, "w", force_zip64=True) as member:
        np.lib.format.write_array(member, np.ascontiguousarray(array), allow_pickle=False)


def _bytes_of(frames: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    return frames.reshape(len(frames), -1).view(np.uint8)


def as_changes(frames: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """
    XOR each frame, but the first, with the one before: what did not change becomes zeros.

    :param frames: Frames, contiguous
    :return: The changes, a new array
    """
    changes = frames.copy()
    _bytes_of(changes)[1:] ^= _bytes_of(frames)[:-1]
    return changes


def code_frames(frames: npt.NDArray[Any]) -> tuple[str, npt.NDArray[Any]]:
    """
    Choose how to code a chunk of frames.

    Neighbours in time are often, but not always, more alike than neighbours in a picture. A few frames tell.

    :param frames: Frames, contiguous
    :return: ``"x"`` and what ``as_changes`` makes of them, or ``"p"`` and the frames, whichever deflate makes smaller
    """
    changes = as_changes(frames)
    pays = len(zlib.compress(changes[:8].tobytes(), 1)) < len(zlib.compress(frames[:8].tobytes(), 1))
    return ("x", changes) if pays else ("p", frames)


def from_changes(changes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """
    Undo ``as_changes``.

    :param changes: The changes, which are overwritten
    :return: The frames
    """
    raw = _bytes_of(changes)
    np.bitwise_xor.accumulate(raw, axis=0, out=raw)
    return changes


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    """
    Open a file; whatever is wrong with it is told as one kind of error.

    :param path: The file
    :return: The open file
    """
    name = os.fspath(path)
    with open(path, "rb") as file:
        try:
            archive = zipfile.ZipFile(file)
        except _DAMAGES as error:
            raise RecordingError(f"{name} is not a recording, or only part of one: {error}") from error
        with archive:
            try:
                yield archive
            except Damage as damage:
                raise RecordingError(f"{name}: {damage}") from damage


class Damage(Exception):
    """What is wrong with a file; its name is added by who opened it."""


def read_header(archive: zipfile.ZipFile) -> Header:
    """
    Read the header, and check every word of it.

    :param archive: The file
    :return: The header
    """
    if HEADER not in archive.namelist():
        raise Damage("a zip file, but not a recording: it has no header")
    if archive.getinfo(HEADER).file_size > _LARGEST_HEADER:
        raise Damage("its header is too large to be one")
    try:
        header = json.loads(_read_member(archive, HEADER))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise Damage(f"its header is damaged: {error}") from error
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise Damage("a zip file, but not a recording: its header does not say so")
    if header.get("format_version") != FORMAT_VERSION:
        raise Damage(
            f"written in format {header.get('format_version')!r} by version {header.get('version')!r}; this is version "
            f"{__version__}, which reads format {FORMAT_VERSION}"
        )
    for key, valid in _VALID.items():
        if key not in header or not valid(header[key]):
            raise Damage(f"its header is damaged: {key!r} is {header.get(key, 'missing')!r}")
    return header


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 48


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 32 and all(_is_count(size) and size > 0 for size in value)


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


_VALID: dict[str, Callable[[Any], bool]] = {
    "version": lambda value: isinstance(value, str),
    "kind": lambda value: isinstance(value, str) and value in KINDS,
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


def read_array(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """
    Read an array of which the header says what it must be. Nothing is allocated only because a file says so.

    :param archive: The file
    :param name: Name of the member
    :param shape: Shape that it must have
    :param dtype: Type that it must have
    :return: The array
    """
    expected = math.prod(shape) * dtype.itemsize
    try:
        size = archive.getinfo(name).file_size
    except KeyError:
        raise Damage(f"damaged: {name} is missing") from None
    if not expected <= size <= expected + _NPY_HEADER:
        raise Damage(f"damaged: {name} does not have the size that the header gives")
    with io.BytesIO(_read_member(archive, name)) as data:
        try:
            array = np.lib.format.read_array(data, allow_pickle=False)
        except ValueError as error:
            raise Damage(f"damaged: {name}: {error}") from error
    if array.shape != shape or array.dtype != dtype:
        raise Damage(f"damaged: {name} holds {array.dtype}{array.shape}, but its header says {dtype}{shape}")
    return np.ascontiguousarray(array)


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_DEFLATED:
        raise Damage(f"damaged: {name} is compressed in an unknown way")
    if info.file_size > info.compress_size * _MOST_SHRINKING + _NPY_HEADER:
        raise Damage(f"damaged: {name} cannot be as large as it says")
    try:
        return archive.read(info)
    except _DAMAGES as error:
        raise Damage(f"damaged: {name}: {error}") from error
