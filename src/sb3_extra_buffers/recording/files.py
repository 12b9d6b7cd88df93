"""
Recordings in files.

A recording is a zip file without code: ``header.json``, plain columns as ``.npy``, and the compressed chunks of its frames as
they are in memory, each with its own checksums. Its first member, ``format``, tells what it is.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import math
import os
import struct
import zipfile
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from sb3_extra_buffers import __version__
from sb3_extra_buffers._support import atomic_write, with_progress
from sb3_extra_buffers.recording.buffers import (
    Array,
    CompressedRecordBuffer,
    DummyRecordBuffer,
    FrameColumn,
    FramelessRecordBuffer,
    RecordBuffer,
    add_episode,
    check_metadata,
    frame_column,
)
from sb3_extra_buffers.recording.records import RecordingError
from sb3_extra_buffers.storage import Frames, StoreLock, check_dtypes, make_spec
from sb3_extra_buffers.storage.frame_files import empty_frames, load_frames, save_frames
from sb3_extra_buffers.storage.frames import FrozenFrames

FORMAT = "sb3-extra-buffers recording"
FORMAT_VERSION = 2
HEADER = "header.json"

_CLASSES: dict[str, type[RecordBuffer]] = {
    cls.kind: cls for cls in (RecordBuffer, FramelessRecordBuffer, DummyRecordBuffer, CompressedRecordBuffer)
}
_LOCAL_HEADER = 30  # bytes of a zip file before the name of its first member
_FIRST_MEMBER = "format"
_FIRST_OF_VERSION_1 = b"reward.npy"
_ROWS_AT_ONCE = 64

# What the libraries raise for a file that is damaged, or uses what we never use, such as encryption.
_DAMAGES = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, EOFError, OSError),
    *(ValueError, TypeError, ArithmeticError, LookupError, RuntimeError),
)

Header = dict[str, Any]


@dataclass(frozen=True)
class RecordingInfo:
    """
    What the header of a recording says.

    :param kind: ``"dense"``, ``"compressed"``, ``"frameless"`` or ``"dummy"``
    :param steps: Number of steps
    :param episodes: Number of episodes, whole or in part
    :param frame_shape: Shape of a frame; None without frames
    :param frame_dtype: Type of its elements, likewise
    :param action_shape: Shape of an action
    :param action_dtype: Type of its elements
    :param features: ``(shape, type)`` of each feature
    :param buffer_size: Size of the ring; None if it is unbounded
    :param metadata: What was said about the recording
    :param raw_bytes: Bytes of everything, uncompressed
    :param file_bytes: Size of the file
    :param members: Bytes of each member of the zip file, compressed and not
    :param version: Version of the package that wrote it
    """

    kind: str
    steps: int
    episodes: int
    frame_shape: tuple[int, ...] | None
    frame_dtype: str | None
    action_shape: tuple[int, ...]
    action_dtype: str
    features: dict[str, tuple[tuple[int, ...], str]]
    buffer_size: int | None
    metadata: dict[str, Any]
    raw_bytes: int
    file_bytes: int
    members: dict[str, tuple[int, int]]
    version: str


class _Parts:
    """The parts of saved columns of frames, as members of a zip file."""

    def __init__(self, archive: zipfile.ZipFile, path: str) -> None:
        self._archive = archive
        self.path = path

    def put(self, name: str, data: Any) -> str:
        self._archive.writestr(name, data)
        return name

    def read(self, name: str) -> bytes:
        return self._archive.read(name)


# -- writing ----------------------------------------------------------------------------------------------------------


def save_recording(recording: RecordBuffer, path: str | os.PathLike[str], progress: bool = False) -> None:
    """Save a recording, see ``RecordBuffer.save``."""
    episodes = list(recording.episodes())
    steps, first = len(recording), recording._first
    numbers = np.arange(first, first + steps, dtype=np.int64)
    finals = sorted(recording._finals)
    compressed = isinstance(recording._frames, FrameColumn)
    header: Header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "version": __version__,
        "kind": recording.kind,
        "steps": steps,
        "episodes": len(episodes),
        "first_step": first if compressed else 0,  # its frame lies in the ring accordingly
        "first_episode": recording._episodes_gone,
        "is_cut": recording._is_cut,
        "is_open": recording.is_open,
        "buffer_size": recording.buffer_size,
        "frame_shape": recording.frame_shape,
        "frame_dtype": recording.frame_dtype.str,
        "action_shape": recording.action_shape,
        "action_dtype": recording.action_dtype.str,
        "features": {name: [shape, dtype.str] for name, (shape, dtype) in recording.feature_specs.items()},
        "finals": len(finals),
        "frames": None,
        "metadata": check_metadata(recording.metadata),  # which may have been changed
    }
    final_frames = [recording._finals[number] for number in finals]
    arrays: dict[str, Array] = {
        **{name: recording._read(name, numbers) for name in ("reward", "action", "flags")},
        "ends": np.array([episode.stop - first for episode in episodes], np.int64),
        "finals": np.array(finals, np.int64) - first,
        "final_ends": np.cumsum([len(frame) for frame in final_frames], dtype=np.int64),
        "final_frames": np.frombuffer(b"".join(final_frames), np.uint8),
    }
    for place, values in enumerate(recording._read_features(numbers).values()):
        arrays[f"features/{place}"] = values
    with atomic_write(path) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        archive.writestr(zipfile.ZipInfo(_FIRST_MEMBER), FORMAT)
        for name, array in arrays.items():
            _write_array(archive, name, array)
        blocks = _compressed_blocks(recording, progress)
        if blocks is not None:
            parts: Any = _Parts(archive, os.fspath(path))
            header["frames"] = [
                save_frames(f"frames/{place}", FrozenFrames(block), used, parts) for place, (block, used) in enumerate(blocks)
            ]
        elif recording._frames is not None:
            _write_array(archive, "frames", recording._frames.read(numbers))
        archive.writestr(HEADER, json.dumps(header, indent=1))


def _write_array(archive: zipfile.ZipFile, name: str, array: Array) -> None:
    with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, np.ascontiguousarray(array).reshape(array.shape), allow_pickle=False)


def _compressed_blocks(recording: RecordBuffer, progress: bool) -> Iterator[tuple[Frames, int]] | None:
    """All frames in compressed blocks, with the number of rows that each has; None where frames are not worth compressing."""
    column = recording._frames
    if isinstance(column, FrameColumn):
        rows = column.block_rows
        return ((block, min(recording._count - place * rows, rows)) for place, block in enumerate(column.blocks))
    if column is None:
        return None
    spec = make_spec(None, *check_dtypes(None, column.dtype, column.shape))
    coded = frame_column(column.shape, column.dtype, recording.buffer_size, spec)
    return _code_blocks(recording, coded, progress) if isinstance(coded, FrameColumn) else None


def _code_blocks(recording: RecordBuffer, coded: FrameColumn, progress: bool) -> Iterator[tuple[Frames, int]]:
    steps, place = len(recording), 0
    block = coded.make_block()
    starts = range(0, steps, _ROWS_AT_ONCE)
    for start in with_progress(starts, len(starts), "saving", "batch", progress):
        frames = recording._read_frames(np.arange(start, min(start + _ROWS_AT_ONCE, steps)) + recording._first)
        for frame in () if frames is None else frames:
            if place == coded.block_rows:
                yield block, place
                block, place = coded.make_block(), 0
            block.write(place, frame.astype(coded.spec.elem_type, copy=False)[None])
            place += 1
    yield block, place


# -- reading ----------------------------------------------------------------------------------------------------------


def is_recording(path: str | os.PathLike[str]) -> bool:
    """
    Check whether a file looks like a recording, whole or not.

    :param path: The file
    :return: Whether it does; it may still be damaged, cut short, or of another version: ``recording_info`` tells
    """
    with open(path, "rb") as file:
        start = file.read(_LOCAL_HEADER + len(_FIRST_MEMBER + FORMAT))
    member = start[_LOCAL_HEADER:]
    return start.startswith(b"PK\3\4") and (
        member == (_FIRST_MEMBER + FORMAT).encode() or member.startswith(_FIRST_OF_VERSION_1)
    )


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[tuple[zipfile.ZipFile, Header]]:
    """Open a recording to be read; what is wrong with it is a ``RecordingError``."""
    name = os.fspath(path)
    if not is_recording(path):
        raise RecordingError(f"{name} is not a recording")
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read(HEADER))
            if header["format_version"] == FORMAT_VERSION:
                yield archive, header
                return
    except _DAMAGES as error:
        raise RecordingError(f"{name} is damaged or cut short: {error}; copy or download the file again") from error
    raise RecordingError(
        f"{name} was written in format {header['format_version']!r} by version {header.get('version')!r}; this is version "
        f"{__version__}, which reads format {FORMAT_VERSION} only: read it with the version that wrote it"
    )


def recording_info(path: str | os.PathLike[str]) -> RecordingInfo:
    """
    Read the header of a recording. No frames are read, and nothing in the file is run.

    :param path: The file
    :return: What it says
    """
    with _opened(path) as (archive, header):
        members = {info.filename: (info.compress_size, info.file_size) for info in archive.infolist()}
        shape, dtype = header["frame_shape"], np.dtype(header["frame_dtype"])
        frames = header["frames"] is not None
        raw = sum(raw for name, (_, raw) in members.items() if not (frames and name.startswith("frames/")))
        frame_bytes = 0 if shape is None else math.prod(shape) * dtype.itemsize
        return RecordingInfo(
            kind=header["kind"],
            steps=header["steps"],
            episodes=header["episodes"],
            frame_shape=None if shape is None else tuple(shape),
            frame_dtype=None if shape is None else str(dtype),
            action_shape=tuple(header["action_shape"]),
            action_dtype=str(np.dtype(header["action_dtype"])),
            features={name: (tuple(shape), str(np.dtype(dtype))) for name, (shape, dtype) in header["features"].items()},
            buffer_size=header["buffer_size"],
            metadata=header["metadata"],
            raw_bytes=raw + (header["steps"] * frames + header["finals"]) * frame_bytes,
            file_bytes=os.path.getsize(path),
            members=members,
            version=header["version"],
        )


def load_recording(
    path: str | os.PathLike[str], buffer_class: type[RecordBuffer] | None = None, progress: bool = False, **options: Any
) -> RecordBuffer:
    """
    Load a recording. A ``CompressedRecordBuffer`` takes frames over as they are, and decodes them when they are read.

    :param path: The file
    :param buffer_class: What to load it into; the class it was saved from by default
    :param progress: Whether to show a progress bar
    :param options: Options of the class, for example ``compression_method``
    :return: The recording
    """
    with _opened(path) as (archive, header):
        loaded = _load(archive, header, os.fspath(path))
        wanted = buffer_class or _CLASSES[header["kind"]]
    if loaded.frame_shape is None and not issubclass(wanted, FramelessRecordBuffer):
        raise ValueError(f"{os.fspath(path)} has no frames; it cannot be loaded as a {wanted.__name__}")
    if wanted is type(loaded) and not options:
        return loaded
    try:
        recording = wanted(**{**_arguments(header), **options})
        _copy(loaded, recording, progress)
    except MemoryError as error:
        raise RecordingError(
            f"{os.fspath(path)} does not fit in memory ({error}); load it with a smaller buffer_size, or as a "
            "CompressedRecordBuffer"
        ) from error
    return recording


def _arguments(header: Header) -> dict[str, Any]:
    arguments = {name: header[name] for name in ("buffer_size", "frame_shape", "frame_dtype", "action_shape", "action_dtype")}
    features = {name: (tuple(shape), dtype) for name, (shape, dtype) in header["features"].items()}
    return {**arguments, "features": features, "metadata": header["metadata"]}


def _load(archive: zipfile.ZipFile, header: Header, path: str) -> RecordBuffer:
    """Load a recording as a ``CompressedRecordBuffer``, or as one of the classes without frames."""

    def array(name: str) -> Array:
        # All of a member is read first, so that its checksum is compared before NumPy looks at it.
        found: Array = np.load(BytesIO(archive.read(f"{name}.npy")), allow_pickle=False)
        return found

    arguments, first = _arguments(header), header["first_step"]
    recording: RecordBuffer
    if header["frame_shape"] is None:
        recording = _CLASSES[header["kind"]](**arguments)
    elif header["frames"] is None:
        recording = CompressedRecordBuffer(**arguments)
        _write_rows(recording._frames, first, array("frames"))
    else:
        parts: Any = _Parts(archive, path)
        blocks = [load_frames(block, empty_frames(block, None, StoreLock()), parts, None) for block in header["frames"]]
        recording = _with_blocks(blocks, arguments)
    for name, column in recording._columns.items():
        _write_rows(column, first, array(name))
    for place, column in enumerate(recording._features.values()):
        _write_rows(column, first, array(f"features/{place}"))
    recording._first, recording._count = first, first + header["steps"]
    ends = (array("ends") + first).tolist()
    recording._ends = deque(ends[:-1] if header["is_open"] else ends)
    recording._episodes_gone, recording._is_cut = header["first_episode"], header["is_cut"]
    frames = np.split(array("final_frames"), array("final_ends")[:-1])
    recording._finals = {first + step: frame.tobytes() for step, frame in zip(array("finals").tolist(), frames, strict=False)}
    return recording


def _with_blocks(blocks: list[Frames], arguments: dict[str, Any]) -> RecordBuffer:
    if not blocks:
        return CompressedRecordBuffer(**arguments)
    spec = blocks[0].spec
    recording = CompressedRecordBuffer(
        **arguments,
        compression_method=spec.method,
        compression_kwargs=spec.compression_kwargs,
        decompression_kwargs=spec.decompression_kwargs,
        dtypes={"elem_type": spec.elem_type, "runs_type": spec.runs_type},
    )
    column = recording._frames
    assert column is not None
    column.blocks, column.block_rows = list(blocks), blocks[0].rows
    return recording


def _write_rows(column: Any, first: int, values: Array) -> None:
    for number, value in enumerate(values, first):
        column.write(number, value)


def _copy(source: RecordBuffer, target: RecordBuffer, progress: bool) -> None:
    episodes = list(source.episodes())
    target._episodes_gone, target._is_cut = source._episodes_gone, source._is_cut
    for episode in with_progress(episodes, len(episodes), "loading", "episode", progress):
        add_episode(
            target,
            None if target.frame_shape is None else episode.iter_frames(),
            episode.actions,
            episode.rewards,
            episode.features,
            episode.done,
            episode.truncated,
            episode.final_frame,
            is_open=source.is_open and episode is episodes[-1],
        )
