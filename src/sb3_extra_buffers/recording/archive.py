"""
The file format of recordings: a zip of a JSON header and plain arrays, without pickle.

It is for others to read, too. ``header.json`` says what there is. Each column is a ``.npy``; frames are split into chunks,
one ``.npy`` each, and the header's ``"coding"`` says of each chunk whether its frames are plain (``"p"``) or, but for the
first, XORed byte by byte with the one before (``"x"``).
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.recording.errors import NotARecordingError, RecordingError

FIRST_MEMBER = "reward.npy"
"""Every recording begins with it, which tells one that was cut short from other files."""

_MOST_SHRINKING = 1032  # what deflate makes of zeros
_NPY_HEADER = 4096  # more than the description of an array takes
_READ_AT_ONCE = 1 << 20

_LOCAL = struct.Struct("<4s5H3L2H")  # what a zip file says before each member
_LISTED = 46  # bytes that its list of members has for each, and the name
_LIST_END = 22

# What the standard library says about a zip file that is damaged, or uses what we never use, such as encryption.
_DAMAGES = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, OSError),
    *(ValueError, ArithmeticError, LookupError, RuntimeError),
)


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


class Damage(Exception):
    """What is wrong with a file; its name is added by who opened it."""


class NotOurs(Damage):
    """The file is something else altogether."""


@contextmanager
def opened(path: str | os.PathLike[str]) -> Iterator[zipfile.ZipFile]:
    """
    Open a file; whatever is wrong with it is told as one kind of error.

    :param path: The file
    :return: The open file, whose members are not larger, taken together, than the file can account for
    """
    name = os.fspath(path)
    with open(path, "rb") as file:
        try:
            with _as_zip(file) as archive:
                _check_members(archive)
                yield archive
        except Damage as damage:
            kind = NotARecordingError if isinstance(damage, NotOurs) else RecordingError
            raise kind(f"{name}: {damage}") from damage
        except MemoryError as error:
            raise RecordingError(
                f"{name} does not fit in memory ({error}); load it with a smaller buffer_size, or as a CompressedRecordBuffer"
            ) from error


def _as_zip(file: BinaryIO) -> zipfile.ZipFile:
    # The standard library looks for a zip file at the end, whatever comes first: a pickle with a recording behind it would
    # pass for a recording.
    if file.read(4) != b"PK\3\4":
        raise NotOurs("not a recording: it does not begin like one")
    try:
        return zipfile.ZipFile(file)
    except _DAMAGES as error:
        missing = _count_missing(file)
        if missing is None:
            raise NotOurs(f"not a recording: {error}") from error
        if missing > 0:
            raise Damage(f"cut short: at least {missing:,} bytes are missing; copy or download the file again") from error
        raise Damage(f"damaged: {error}") from error


def _count_missing(file: BinaryIO) -> int | None:
    """How many bytes a recording without its end lacks, at least; None if the file does not begin like a recording."""
    size = file.seek(0, os.SEEK_END)
    place, listed = 0, _LIST_END
    while place < size:
        file.seek(place)
        head = file.read(_LOCAL.size)
        if len(head) == _LOCAL.size and head.startswith(b"PK\3\4"):
            *_, packed, _, name_size, extra_size = _LOCAL.unpack(head)
            name, extra = file.read(name_size), file.read(extra_size)
        else:
            name = extra = b""
        if place == 0 and name != FIRST_MEMBER.encode():
            return None
        if not name:
            break
        if packed == 0xFFFFFFFF:  # the true size is further back, if it is there
            packed = int.from_bytes(extra[12:20], "little")
        listed += _LISTED + len(name)
        place += _LOCAL.size + name_size + extra_size + packed
    return max(place + listed - size, 0)


def _check_members(archive: zipfile.ZipFile) -> None:
    # Members that share bytes could be larger, taken together, than any file of this size can hold.
    names: set[str] = set()
    end = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        if info.filename in names:
            raise Damage(f"damaged: it holds {info.filename!r} twice")
        if info.header_offset < end:
            raise Damage(f"damaged: {info.filename!r} begins where the member before it has not ended")
        names.add(info.filename)
        end = info.header_offset + _LOCAL.size + info.compress_size
    if end > archive.start_dir:
        raise Damage("damaged: its members are larger than the file")


def read_member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """
    Read all of a small member.

    :param archive: The file
    :param name: Name of the member
    :param most: Bytes that it may have
    :return: What it holds
    """
    info = _checked(archive, name)
    if info.file_size > most:
        raise Damage(f"damaged: {name} is too large to be one")
    try:
        with archive.open(info) as member:
            return member.read(info.file_size)
    except _DAMAGES as error:
        raise Damage(f"damaged: {name}: {error}") from error


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
    info = _checked(archive, name)
    if not expected < info.file_size <= expected + _NPY_HEADER:
        raise Damage(f"damaged: {name} does not have the size that the header gives")
    try:
        with archive.open(info) as member:
            if not _describes(member.read(info.file_size - expected), shape, dtype):
                raise Damage(f"damaged: {name} does not hold {dtype}{shape}, as the header says")
            array = np.empty(shape, dtype)
            raw = array.reshape(-1).view(np.uint8)
            # No more than announced: read() without a limit would unpack whatever comes.
            for start in range(0, expected, _READ_AT_ONCE):
                part = raw[start : start + _READ_AT_ONCE]
                part[:] = np.frombuffer(member.read(len(part)), np.uint8)
    except _DAMAGES as error:
        raise Damage(f"damaged: {name}: {error}") from error
    if dtype.kind == "b" and raw.max(initial=0) > 1:
        raise Damage(f"damaged: {name} holds booleans that are neither true nor false")
    return array


def _describes(head: bytes, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    # NumPy would evaluate the description as Python; but it can only be one thing, so it need not be understood.
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    size = struct.pack("<H", len(head) - 10) if len(head) >= 10 else b""
    return head[:10] == b"\x93NUMPY\1\0" + size and head[10:].rstrip(b" \n") == text.encode()


def _checked(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    try:
        info = archive.getinfo(name)
    except KeyError:
        raise Damage(f"damaged: {name} is missing") from None
    if info.compress_type != zipfile.ZIP_DEFLATED:
        raise Damage(f"damaged: {name} is compressed in an unknown way")
    if info.file_size > info.compress_size * _MOST_SHRINKING:
        raise Damage(f"damaged: {name} cannot be as large as it says")
    return info
