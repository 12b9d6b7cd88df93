"""Saving a buffer to a directory of files."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

import sb3_extra_buffers
from sb3_extra_buffers.compressed.files import OWN, Array, Path, our_class
from sb3_extra_buffers.compressed.saved_spaces import describe_space
from sb3_extra_buffers.storage.directory import Replacement
from sb3_extra_buffers.storage.disk import DISK, Disk
from sb3_extra_buffers.storage.frame_files import save_frames
from sb3_extra_buffers.storage.frames import FrozenFrames
from sb3_extra_buffers.storage.json_values import to_json
from sb3_extra_buffers.storage.row_files import save_rows

_COPIED_BYTES = 48 << 20  # of plain arrays; more than that is written while adding has to wait
_SHOWN_BYTES = 1 << 30


class Moment:
    """
    What a buffer held at one moment. Compressed observations never change, so only plain arrays are copied.

    :param buffer: The buffer; its lock is held
    :param copies: Whether to copy; else the lock has to be held until all is saved
    """

    def __init__(self, buffer: Any, copies: bool = True) -> None:
        cls = type(buffer)
        ours = our_class(cls)
        values = buffer._values_to_save()
        self.used: int = buffer.buffer_size if values["full"] else values["pos"]
        self.body = {
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
        self.frames = [(field.key, FrozenFrames(field.frames)) for field in buffer._fields if field.is_compressed]
        more = {name: {name: array} for name, array in buffer._more_to_save().items()}
        self.groups: dict[str, dict[str, Array]] = {"rows": buffer._columns_to_save(), **more}
        self.plain_bytes = sum(part[: self.used].nbytes for group in self.groups.values() for part in group.values())
        if copies:
            for group in self.groups.values():
                group.update({name: _copy_of_rows(part, self.used) for name, part in group.items()})

    @property
    def nbytes(self) -> int:
        """Bytes that there are to be saved."""
        return self.plain_bytes + sum(len(chunk) for _, frozen in self.frames for chunk in frozen.chunks if chunk is not None)

    def put_rows(self, files: Replacement) -> None:
        """
        Save plain arrays.

        :param files: Where to
        """
        groups = [save_rows(name, group, self.used, files) for name, group in self.groups.items() if group]
        self.body["rows"] = groups
        self.groups = {}

    def put_frames(self, files: Replacement) -> None:
        """
        Save compressed observations.

        :param files: Where to
        """
        self.body["frames"] = [
            {"key": key, **save_frames(f"frames{place}", frozen, self.used, files)}
            for place, (key, frozen) in enumerate(self.frames)
        ]

    def save(self, path: Path, disk: Disk = DISK) -> int:
        """
        Save it to a directory.

        :param path: The directory
        :param disk: The disk that it is on
        :return: How many bytes were written
        """
        with Replacement(path, self.nbytes, disk) as files, _shown_progress(self.nbytes, files):
            self.put_rows(files)
            self.put_frames(files)
            files.commit(self.body)
            return files.bytes_written


def take_moment(buffer: Any) -> Moment:
    """
    Take what a buffer holds now, to be saved later, by whichever thread.

    :param buffer: The buffer
    :return: What it holds; plain arrays are copied
    """
    with buffer._lock:
        return Moment(buffer)


def save_buffer(buffer: Any, path: Path, disk: Disk = DISK) -> int:
    """
    Save a buffer to a directory; see ``SavedToFiles.save``.

    :param buffer: The buffer
    :param path: The directory
    :param disk: The disk that it is on
    :return: How many bytes were written
    """
    with contextlib.ExitStack() as held:
        held.enter_context(buffer._lock)
        moment = Moment(buffer, copies=False)
        if moment.plain_bytes <= _COPIED_BYTES:
            moment = Moment(buffer)
            held.close()
            return moment.save(path, disk)
        with Replacement(path, moment.nbytes, disk) as files, _shown_progress(moment.nbytes, files):
            moment.put_rows(files)
            held.close()
            moment.put_frames(files)
            files.commit(moment.body)
            return files.bytes_written


def _copy_of_rows(array: Array, used: int) -> Array:
    """An array that is the same in the rows that count, and takes no memory for others."""
    copied = np.empty_like(array)
    copied[:used] = array[:used]
    return copied


def _arguments_to_save(buffer: Any, ours: type) -> dict[str, Any]:
    said = {name: describe_space(getattr(buffer, name)) for name in ("observation_space", "action_space")}
    for name in list(inspect.signature(ours.__init__).parameters)[1:]:  # type: ignore[misc]
        if name not in (*said, "device", "env", "options"):
            said[name] = to_json(buffer._argument(name), name)
    return said


def _options_to_save(options: Mapping[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        return {key: plain(part) for key, part in value.items()} if isinstance(value, Mapping) else value

    return {name: to_json(plain(value), f"the option {name}") for name, value in options.items()}


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
