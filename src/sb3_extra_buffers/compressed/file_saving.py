"""Saving a buffer to a directory of files."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterator, Mapping
from typing import Any

import sb3_extra_buffers
from sb3_extra_buffers.compressed.files import OWN, WHERE, Path, our_class
from sb3_extra_buffers.compressed.saved_spaces import describe_space
from sb3_extra_buffers.storage.directory import Replacement
from sb3_extra_buffers.storage.disk import DISK, Disk, folder_path
from sb3_extra_buffers.storage.frame_files import save_frames
from sb3_extra_buffers.storage.frames import FrozenFrames
from sb3_extra_buffers.storage.json_values import to_json
from sb3_extra_buffers.storage.row_files import RowPieces

_COPIED_BYTES = 48 << 20  # of plain arrays; more than that is written while adding has to wait
_SHOWN_BYTES = 1 << 30


class Moment:
    """What a buffer held at one moment. Compressed observations never change, so only plain arrays are copied."""

    def __init__(self, buffer: Any, copies: bool = True, before: Moment | None = None) -> None:
        cls, ours = type(buffer), our_class(type(buffer))
        values = buffer._values_to_save()
        self.used: int = buffer._rows_to_save()
        self.pos: int = values["pos"]
        self.appended: int = buffer._table.appended
        self.body: dict[str, Any] = {
            "version": sb3_extra_buffers.__version__,
            "class": ours.__name__,
            "subclass": None if cls is ours else f"{cls.__module__}.{cls.__qualname__}",
            "arguments": _arguments_to_save(buffer, ours),
            "options": _options_to_save(buffer._options),
            "values": values,
            "attributes": {
                name: to_json(value, f"{cls.__name__}.{name}") for name, value in vars(buffer).items() if name not in OWN
            },
        }
        self.frames = [(field.key, FrozenFrames(field.frames)) for field in buffer._fields_in_files() if field.is_compressed]
        arrays = {"rows": buffer._columns_to_save(), **{name: {name: part} for name, part in buffer._more_to_save().items()}}
        self.plain_bytes: int = sum(part[: self.used].nbytes for group in arrays.values() for part in group.values())
        changed = None if before is None else _rows_since(before, self, buffer.buffer_size)
        self.rows: dict[str, RowPieces] = {
            name: RowPieces(
                name,
                group,
                self.used,
                copies,
                None if before is None else before.rows[name],
                None if name in buffer._changing else changed,
            )
            for name, group in arrays.items()
        }

    @property
    def nbytes(self) -> int:
        """Bytes that there are to be saved."""
        return self.plain_bytes + sum(len(chunk) for _, frozen in self.frames for chunk in frozen.chunks)

    def put_rows(self, files: Replacement) -> None:
        """Save plain arrays."""
        self.body["rows"] = [pieces.put(files) for pieces in self.rows.values()]

    def put_frames(self, files: Replacement) -> None:
        """Save compressed observations."""
        self.body["frames"] = [
            {"key": key, **save_frames(f"frames{place}", frozen, self.used, files)}
            for place, (key, frozen) in enumerate(self.frames)
        ]

    def save(self, path: Path, disk: Disk = DISK, after: Replacement | None = None, held: bool = False) -> Replacement:
        """Save it to a directory."""
        with Replacement(path, self.nbytes, disk, after, held) as files, _shown_progress(self.nbytes, files):
            self.put_rows(files)
            self.put_frames(files)
            files.commit(self.body)
        return files


def _rows_since(before: Moment, now: Moment, rows: int) -> list[tuple[int, int]] | None:
    """Which rows were added between two moments; None if they may be any."""
    added = now.appended - before.appended
    if added >= rows or (before.pos + added) % rows != now.pos % rows:  # the buffer may have been reset
        return None
    first = now.pos - added
    return [(first, now.pos)] if first >= 0 else [(0, now.pos), (first + rows, rows)]


def take_moment(buffer: Any) -> Moment:
    """Take what a buffer holds now, to be saved later, by whichever thread."""
    with buffer._lock:
        return Moment(buffer)


def save_buffer(buffer: Any, path: Path, disk: Disk = DISK) -> int:
    """Save a buffer to a directory; see ``SavedToFiles.save``."""
    if os.path.splitext(folder_path(path))[1].lower() in (".pkl", ".pickle"):
        raise ValueError(
            f"path is {os.fsdecode(path)!r}, but save() makes a directory, not a pickle: name it 'buffer.sb3x', for example; "
            "SB3's model.save_replay_buffer(path) and save_to_pkl(path, buffer) write pickles"
        )
    with contextlib.ExitStack() as held:
        held.enter_context(buffer._lock)
        moment = Moment(buffer, copies=False)
        if moment.plain_bytes <= _COPIED_BYTES:
            moment = Moment(buffer)
            held.close()
            return moment.save(path, disk).bytes_written
        with Replacement(path, moment.nbytes, disk) as files, _shown_progress(moment.nbytes, files):
            moment.put_rows(files)
            held.close()
            moment.put_frames(files)
            files.commit(moment.body)
            return files.bytes_written


def _arguments_to_save(buffer: Any, ours: type) -> dict[str, Any]:
    said = {name: describe_space(getattr(buffer, name)) for name in ("observation_space", "action_space")}
    for name in list(inspect.signature(ours.__init__).parameters)[1:]:  # type: ignore[misc]
        if name not in (*said, "device", "env", "options"):
            said[name] = to_json(buffer._argument(name), name)
    return said


def _options_to_save(options: Mapping[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return {key: plain(part) for key, part in value.items()} if isinstance(value, Mapping) else value

    return {name: to_json(plain(value), f"the option {name}") for name, value in options.items() if name not in WHERE}


@contextlib.contextmanager
def _shown_progress(total: int, files: Replacement) -> Iterator[None]:
    """A progress bar on a terminal, where tqdm is installed and there is a lot to be saved."""
    if total < _SHOWN_BYTES:
        yield
        return
    try:
        from tqdm import tqdm
    except ImportError:
        yield
        return
    with tqdm(total=total, unit="B", unit_scale=True, desc="Saving", disable=None) as bar:
        files.on_put = bar.update
        yield
