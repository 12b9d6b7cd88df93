"""Recordings in files."""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers import __version__
from sb3_extra_buffers.recording.archive import Damage, code_frames, from_changes, opened, read_array, write_array
from sb3_extra_buffers.recording.atomic import written_beside
from sb3_extra_buffers.recording.buffers import DummyRecordBuffer, FramelessRecordBuffer, RecordBuffer
from sb3_extra_buffers.recording.checks import check_metadata
from sb3_extra_buffers.recording.compressed_buffer import CompressedRecordBuffer
from sb3_extra_buffers.recording.errors import NotARecordingError, RecordingError
from sb3_extra_buffers.recording.headers import FORMAT, FORMAT_VERSION, HEADER, LARGEST_HEADER, Header, read_header
from sb3_extra_buffers.recording.optional import with_progress

_CLASSES: dict[str, type[RecordBuffer]] = {
    cls.kind: cls for cls in (RecordBuffer, FramelessRecordBuffer, DummyRecordBuffer, CompressedRecordBuffer)
}
_CHUNK_BYTES = 8 << 20


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
    :param members: Compressed and raw bytes of each part of the file
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


# -- writing ----------------------------------------------------------------------------------------------------------


def save_recording(recording: RecordBuffer, path: str | os.PathLike[str], progress: bool = False) -> None:
    """
    Save a recording, see ``RecordBuffer.save``.

    :param recording: The recording
    :param path: Where
    :param progress: Whether to show a progress bar
    """
    episodes = list(recording.episodes())
    steps, first = len(recording), recording._first
    ends = [episode.stop - first for episode in episodes]
    finals = sorted(recording._finals)
    header: Header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "version": __version__,
        "kind": recording.kind,
        "steps": steps,
        "episodes": len(episodes),
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
        "chunk_frames": _chunk_frames(recording.frame_shape, recording.frame_dtype),
        "metadata": check_metadata(recording.metadata),  # which anybody may have changed
    }
    # What could not be read again is not written; each chunk of frames will add a letter.
    letters = (steps + len(finals)) // header["chunk_frames"] + 100
    if len(json.dumps(header, indent=1)) + letters > LARGEST_HEADER:
        raise ValueError(f"the metadata is too large: a recording has room for {LARGEST_HEADER:,} bytes, as indented JSON")
    everything = np.arange(first, first + steps, dtype=np.int64)
    with written_beside(path) as beside, zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in ("reward", "action", "flags"):
            write_array(archive, f"{name}.npy", recording._read(name, everything))
        write_array(archive, "ends.npy", np.array(ends, dtype=np.int64))
        for place, values in enumerate(recording._read_features(everything).values()):
            write_array(archive, f"features/{place}.npy", values)
        write_array(archive, "finals.npy", np.array(finals, dtype=np.int64) - first)
        if recording.frame_shape is not None:
            header["coding"] = _write_frames(
                archive, "frames", steps, header["chunk_frames"], lambda rows: recording._read_frames(first + rows), progress
            )
            header["final_coding"] = _write_frames(
                archive,
                "final_frames",
                len(finals),
                header["chunk_frames"],
                lambda rows: _final_frames(recording, [finals[row] for row in rows]),
            )
        archive.writestr(HEADER, json.dumps(header, indent=1))


def _write_frames(
    archive: zipfile.ZipFile,
    folder: str,
    total: int,
    chunk_frames: int,
    read: Callable[[npt.NDArray[np.int64]], Any],
    progress: bool = False,
) -> str:
    coding = ""
    starts = range(0, total, chunk_frames)
    for start in with_progress(starts, len(starts), "saving", "chunk", progress):
        frames = np.ascontiguousarray(read(np.arange(start, min(start + chunk_frames, total))))
        code, array = code_frames(frames)
        write_array(archive, f"{folder}/{start // chunk_frames}.npy", array)
        coding += code
    return coding


def _final_frames(recording: RecordBuffer, numbers: list[int]) -> npt.NDArray[Any]:
    frames: list[Any] = [recording._final_frame(number) for number in numbers]
    return np.stack(frames)


def _chunk_frames(shape: tuple[int, ...] | None, dtype: np.dtype[Any]) -> int:
    return min(max(_CHUNK_BYTES // max(math.prod(shape or ()) * dtype.itemsize, 1), 1), 1024)


# -- reading ----------------------------------------------------------------------------------------------------------


def is_recording(path: str | os.PathLike[str]) -> bool:
    """
    Check whether a file looks like a recording, whole or not.

    :param path: The file
    :return: Whether it does; it may still be damaged, cut short, or of a later version: ``recording_info`` tells
    """
    try:
        recording_info(path)
    except NotARecordingError:
        return False
    except RecordingError:
        pass
    return True


def recording_info(path: str | os.PathLike[str]) -> RecordingInfo:
    """
    Read the header of a recording. No frames are read, and nothing in the file is run.

    :param path: The file
    :return: What it says
    """
    with opened(path) as archive:
        header = read_header(archive)
        members = {info.filename: (info.compress_size, info.file_size) for info in archive.infolist()}
    shape = header["frame_shape"]
    return RecordingInfo(
        kind=header["kind"],
        steps=header["steps"],
        episodes=header["episodes"],
        frame_shape=None if shape is None else tuple(shape),
        frame_dtype=None if shape is None else str(np.dtype(header["frame_dtype"])),
        action_shape=tuple(header["action_shape"]),
        action_dtype=str(np.dtype(header["action_dtype"])),
        features={name: (tuple(shape), str(np.dtype(dtype))) for name, (shape, dtype) in header["features"].items()},
        buffer_size=header["buffer_size"],
        metadata=header["metadata"],
        raw_bytes=sum(raw for _, raw in members.values()),
        file_bytes=os.path.getsize(path),
        members=members,
        version=header["version"],
    )


def load_recording(
    path: str | os.PathLike[str], buffer_class: type[RecordBuffer] | None = None, progress: bool = False, **options: Any
) -> RecordBuffer:
    """
    Load a recording.

    :param path: The file
    :param buffer_class: What to load it into; the class it was saved from by default
    :param progress: Whether to show a progress bar
    :param options: Options of the class, for example ``compression_method``
    :return: The recording
    """
    with opened(path) as archive:
        header = read_header(archive)
        columns = _read_columns(archive, header)
        wanted = buffer_class or _CLASSES[header["kind"]]
        if header["frame_shape"] is None and not issubclass(wanted, FramelessRecordBuffer):
            raise ValueError(f"{os.fspath(path)} has no frames; it cannot be loaded as a {wanted.__name__}")
        arguments: dict[str, Any] = {
            "buffer_size": header["buffer_size"],
            "frame_shape": header["frame_shape"],
            "frame_dtype": header["frame_dtype"],
            "action_shape": header["action_shape"],
            "action_dtype": header["action_dtype"],
            "features": {name: (tuple(shape), dtype) for name, (shape, dtype) in header["features"].items()},
            "metadata": header["metadata"],
        }
        recording = wanted(**{**arguments, **options})
        frames = finals = None
        if recording.frame_shape is not None:
            frames = _read_frames(archive, header, "frames", "coding", header["steps"])
            finals = _read_frames(archive, header, "final_frames", "final_coding", header["finals"])
        steps = with_progress(range(header["steps"]), header["steps"], "loading", "step", progress)
        _fill(recording, header, columns, steps, frames, finals)
    return recording


def _fill(
    recording: RecordBuffer,
    header: Header,
    columns: dict[str, Any],
    steps: Iterator[int],
    frames: Iterator[npt.NDArray[Any]] | None,
    finals: Iterator[npt.NDArray[Any]] | None,
) -> None:
    reward, action, flags, features = columns["reward"], columns["action"], columns["flags"], columns["features"]
    with_final, ends = set(columns["finals"].tolist()), set(columns["ends"].tolist())
    if header["is_open"]:
        ends.discard(header["steps"])
    recording._episodes_gone, recording._is_cut = header["first_episode"], header["is_cut"]
    for step in steps:
        done = bool(flags[step] & 1)
        final = next(finals) if finals is not None and step in with_final else None
        recording.add(
            None if frames is None else next(frames),
            reward[step],
            action[step],
            {name: values[step] for name, values in features.items()},
            done,
            truncated=bool(flags[step] & 2),
            final_frame=final if done else None,
        )
        if step + 1 in ends and not done:
            recording.end_episode(final)


def _read_columns(archive: zipfile.ZipFile, header: Header) -> dict[str, Any]:
    steps = header["steps"]
    ends = read_array(archive, "ends.npy", (header["episodes"],), np.dtype(np.int64))
    finals = read_array(archive, "finals.npy", (header["finals"],), np.dtype(np.int64))
    if not (np.all(np.diff(ends, prepend=0) > 0) and (len(ends) == 0) == (steps == 0) and (steps == 0 or ends[-1] == steps)):
        raise Damage("damaged: its episodes do not add up to its steps")
    flags = read_array(archive, "flags.npy", (steps,), np.dtype(np.uint8))
    if not np.isin(np.flatnonzero(flags), ends - 1).all() or np.any((flags > 3) | (flags == 2)):
        raise Damage("damaged: an episode goes on after it was done")
    if not np.isin(finals, ends - 1).all() or np.any(np.diff(finals) <= 0):
        raise Damage("damaged: it has final frames that belong to no episode")
    return {
        "reward": read_array(archive, "reward.npy", (steps,), np.dtype(np.float64)),
        "action": read_array(archive, "action.npy", (steps, *header["action_shape"]), np.dtype(header["action_dtype"])),
        "flags": flags,
        "features": {
            name: read_array(archive, f"features/{place}.npy", (steps, *shape), np.dtype(dtype))
            for place, (name, (shape, dtype)) in enumerate(header["features"].items())
        },
        "ends": ends,
        "finals": finals,
    }


def _read_frames(archive: zipfile.ZipFile, header: Header, folder: str, key: str, total: int) -> Iterator[npt.NDArray[Any]]:
    size, coding = header["chunk_frames"], header.get(key)
    if not isinstance(coding, str) or len(coding) != -(-total // size) or set(coding) - set("px"):
        raise Damage(f"its header is damaged: it does not say how {folder} are coded")
    for chunk, code in enumerate(coding):
        rows = min(size, total - chunk * size)
        shape = (rows, *header["frame_shape"])
        frames = read_array(archive, f"{folder}/{chunk}.npy", shape, np.dtype(header["frame_dtype"]))
        yield from from_changes(frames) if code == "x" else frames
