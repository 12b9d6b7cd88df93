"""A directory that is replaced as a whole: packs of bytes that never change, and a manifest that says what in them counts."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sb3_extra_buffers.storage._core import Mapping as MappedFile
from sb3_extra_buffers.storage._core import checksum
from sb3_extra_buffers.storage.disk import DISK, Disk, Handle, folder_path, read_bytes, read_whole, write_all
from sb3_extra_buffers.storage.errors import OtherFormatError, StorageError
from sb3_extra_buffers.storage.manifests import (
    MANIFEST,
    MOST_MANIFEST,
    NotAManifestError,
    Part,
    check_parts,
    is_pack,
    pack_manifest,
    unpack_manifest,
)

_NEW, _OLD = "manifest.new", "manifest.old"
_SMALLEST_PACK = 8 << 20
_MOST_TOUCHED = 32 << 20  # of mapped packs, while a directory is read
_PACKS = 8  # of a state that is written at once


_log = logging.getLogger(__name__)


@functools.cache
def _say_not_mapped() -> None:
    """Tell it once."""
    if os.name != "nt":  # nothing is ever mapped there
        _log.warning(
            "A saved file cannot be mapped, so it is read into memory, whatever max_memory says. Linux allows a process "
            "about 65,000 mappings; 'sysctl vm.max_map_count' says how many, and raises it."
        )


class DamagedFileError(StorageError):
    """A file is not what its manifest says."""


class SavedDirectory:
    """A directory that was saved, to be read."""

    def __init__(self, path: str | os.PathLike[str], disk: Disk = DISK) -> None:
        self.path, self.disk = folder_path(path), disk
        where = os.path.join(self.path, MANIFEST)
        try:
            data = read_whole(disk, where, MOST_MANIFEST)
        except NotADirectoryError:
            raise StorageError(
                f"{self.path} is a file, and save() makes a directory; what save_replay_buffer() or pickle has written is "
                "loaded by load_replay_buffer() or pickle"
            ) from None
        except FileNotFoundError:
            try:
                disk.names_in(self.path)
            except FileNotFoundError:
                raise FileNotFoundError(f"there is no directory {self.path}; nothing was saved there") from None
            raise StorageError(
                f"{self.path} has no {MANIFEST}: it is not a saved buffer, or the first save to it was never finished"
            ) from None
        self.body = unpack_manifest(data, where)
        self.parts = check_parts(self.body, where)
        self._packs: dict[str, Any] = {}
        self._touched = 0
        self._data = data

    def has_changed(self) -> bool:
        """Find out whether another state has been saved since this one was opened."""
        try:
            return read_whole(self.disk, os.path.join(self.path, MANIFEST), MOST_MANIFEST) != self._data
        except OSError:
            return True

    def fingerprint(self) -> str:
        """Tell this state from all others."""
        return hashlib.blake2b(self._data, digest_size=16).hexdigest()

    @classmethod
    def of(cls, state: Replacement) -> SavedDirectory:
        """Read from what was just committed."""
        saved = object.__new__(cls)
        saved.path, saved.disk, saved.body, saved.parts, saved._packs = state.path, state.disk, {}, state._parts, {}
        saved._touched = 0
        return saved

    def read(self, name: Any) -> memoryview:
        """Read a part, and check it."""
        part = self.parts.get(name) if isinstance(name, str) else None
        if part is None:
            raise StorageError(f"{self.path} is damaged: its {MANIFEST} does not know {name!r}; load another copy")
        data = self._find(name, part)
        self._touched += part.size
        if self._touched > _MOST_TOUCHED:  # what has been checked need not stay
            self._touched = part.size
            for mapping in self.mappings():
                mapping.leave()
        if isinstance(data.obj, MappedFile):
            data.obj.will_need(part.offset, part.size)  # or each page of it would be waited for by itself
        if checksum(data) != part.sum:
            path = os.path.join(self.path, part.pack)
            raise DamagedFileError(f"{path} is damaged: the checksum of {name} is wrong; {REPAIR}")
        return data

    def hold(self) -> None:
        """Map all packs now, so that this state can be read whatever is saved later; parts are not checked."""
        for name, part in self.parts.items():
            self._find(name, part)

    def _find(self, name: str, part: Part) -> memoryview:
        path = os.path.join(self.path, part.pack)
        if part.pack not in self._packs:
            self._packs[part.pack] = memoryview(self._bytes_of(path))
        data: memoryview = self._packs[part.pack][part.offset : part.offset + part.size]
        if len(data) != part.size:
            raise DamagedFileError(f"{path} is cut short: {name} is missing; {REPAIR}")
        return data

    def stored_bytes(self) -> int:
        """Count what is there, whatever the manifest says."""
        stored = 0
        for pack in {part.pack for part in self.parts.values()}:
            with contextlib.suppress(OSError):
                handle, size = self.disk.open(os.path.join(self.path, pack))
                self.disk.close(handle)
                stored += size
        return stored

    def size_of(self, pack: str) -> int:
        """Tell the size of a pack from which something was read."""
        return len(self._packs[pack])

    def mappings(self) -> list[MappedFile]:
        """List what is mapped."""
        return [pack.obj for pack in self._packs.values() if isinstance(pack.obj, MappedFile)]

    def _bytes_of(self, path: str) -> Any:
        try:
            return self._map(path)
        except FileNotFoundError:
            raise DamagedFileError(f"{path} is missing; {REPAIR}") from None
        except OSError as error:
            raise DamagedFileError(f"{path} cannot be read ({error.strerror or error}); {REPAIR}") from error

    def _map(self, path: str) -> Any:
        handle, size = self.disk.open(path)
        try:
            if size:
                try:
                    return self.disk.map(handle, size)
                except OSError:  # there may be no mappings here, or too many
                    _say_not_mapped()
            return read_bytes(self.disk, handle, size)
        finally:
            self.disk.close(handle)


REPAIR = "load another copy of the directory, or load this one with repair=True, which leaves out what is damaged"
"""What to do about a part that is damaged."""


class Replacement:
    """
    A new state of a directory, on its way. The old one counts until ``commit``, and after a failure.

    What is new goes to packs that are synced before the manifest that names them, and the manifest is synced before it takes
    the place of the old one; packs that no manifest names any more are removed after that. So whenever a process or a machine
    stops, one of the two states is there. A part that the old state has under the same name is not written again, if its
    checksum is right: what this process has neither written nor read may be damaged. A pack of which less than half still
    counts is written anew, so a directory takes at most twice what is in it.

    One file for all that is new, as each one that has to be synced takes its time, whatever is in it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        nbytes: int = 0,
        disk: Disk = DISK,
        after: Replacement | None = None,
        held: bool = False,
    ) -> None:
        self.path, self.disk = folder_path(path), disk
        self.bytes_written = 0
        """How many bytes were new."""
        self.on_put: Callable[[int], Any] = lambda size: None
        """Called with the bytes of each part of the new state."""
        self._pack_bytes = max(_SMALLEST_PACK, nbytes // _PACKS)
        self._parts: dict[str, Part] = {}
        self._old: dict[str, Part] = {}
        self._unread: SavedDirectory | None = None
        self._sizes: dict[str, int] = {}
        self._has_old = self._made_folder = self._replacing = False
        self._written: list[str] = []
        self._handle: Handle | None = None
        self._offset = 0
        self._lock: Handle | None = None
        self._after, self._held = after, held
        self._there: set[str] = {_OLD}
        self._next = 1

    def __enter__(self) -> Replacement:
        try:
            self._open()
        except BaseException as error:
            self.__exit__(type(error), error, None)
            raise
        return self

    def _open(self) -> None:
        after, self._after = self._after, None  # or each state would keep all states before it
        if after is not None:
            self._has_old, self._next = True, after._next
            self._old, self._sizes, self._there = after._parts, dict(after._sizes), after._there
            return
        try:
            self.disk.make_folder(self.path)
            self._made_folder = True
        except FileExistsError:
            pass
        try:
            self._lock = None if self._held else self.disk.lock(self.path)
            names = self.disk.names_in(self.path)
        except NotADirectoryError:
            raise FileExistsError(f"{self.path} is not a directory; save to another path") from None
        except BlockingIOError:
            raise BlockingIOError(f"{self.path} is being written by another process or thread; wait for it") from None
        strange = sorted(name for name in names if not _is_left_over(name) and name != MANIFEST)
        if MANIFEST in names:
            self._open_old(is_ours=not strange and any(map(is_pack, names)))
            self._has_old = True
        elif strange:
            raise FileExistsError(
                f"{self.path} is not a saved buffer, and holds {strange[0]!r}; save to another path, or to an empty directory"
            )
        self._find_names(names)

    def _find_names(self, names: list[str]) -> None:
        self._there = set(names)
        self._next = 1 + max([int(name[:10]) for name in names if is_pack(name)], default=0)

    @classmethod
    def of(cls, saved: SavedDirectory) -> Replacement:
        """Take what was read for what was committed: nothing of it is read again to be kept."""
        state = cls(saved.path, disk=saved.disk)
        state._parts = saved.parts
        state._sizes = {part.pack: saved.size_of(part.pack) for part in saved.parts.values()}
        state._find_names(saved.disk.names_in(saved.path))
        return state

    def _open_old(self, is_ours: bool) -> None:
        """Know the parts of the old state; none where its manifest is damaged, as nothing of it can be trusted then."""
        try:
            self._unread = SavedDirectory(self.path, self.disk)
            self._old = self._unread.parts
        except NotAManifestError:
            if not is_ours:
                raise FileExistsError(
                    f"{self.path} holds a {MANIFEST} that is not that of a saved buffer; save to another path, or to an empty "
                    "directory"
                ) from None
        except OtherFormatError:
            raise
        except StorageError:
            pass  # damaged: nothing of it can be kept

    def put(self, name: str, data: Any) -> str:
        """Have a part in the new state."""
        size = memoryview(data).nbytes
        self.on_put(size)
        if name not in self._parts:
            self._parts[name] = self._old[name] if self._has(name, size) else self._write(data, size)
        return name

    def _has(self, name: str, size: int) -> bool:
        """Whether the old state has a part, undamaged."""
        old = self._old.get(name)
        if old is None or old.size != size:
            return False
        try:
            self._check_old(name)
        except DamagedFileError:
            return False
        return True

    def _check_old(self, name: str) -> None:
        if self._unread is not None:
            self._unread.read(name)
            pack = self._old[name].pack
            self._sizes[pack] = self._unread.size_of(pack)

    def keep(self, name: str) -> str:
        """Have a part of the old state in the new one; ``KeyError`` or ``DamagedFileError`` if there is none that is right."""
        old = self._old[name]
        self._check_old(name)
        self._parts[name] = old
        return name

    def _write(self, data: Any, size: int) -> Part:
        if self._handle is not None and self._offset >= self._pack_bytes:
            self._finish_file()
        if self._handle is None:
            self._begin_file(f"{self._next:010d}.pack")
            self._next += 1
        assert self._handle is not None
        write_all(self.disk, self._handle, data)
        part = Part(self._written[-1], self._offset, size, checksum(data))
        self._offset += size
        self.bytes_written += size
        return part

    def _begin_file(self, name: str) -> None:
        self._written.append(name)
        self._handle, self._offset = self.disk.create(os.path.join(self.path, name)), 0

    def _finish_file(self) -> None:
        if self._handle is not None:
            self.disk.sync(self._handle)
            self._sizes[self._written[-1]] = self._offset
            self.disk.close(self._handle)
            self._handle = None

    def _empty_packs(self) -> None:
        """Take what still counts out of packs most of which does not."""
        live: dict[str, int] = {}
        for part in self._parts.values():
            live[part.pack] = live.get(part.pack, 0) + part.size
        thin = {pack for pack, size in live.items() if pack not in self._written and 2 * size < self._sizes[pack]}
        moved: dict[str, list[str]] = {pack: [] for pack in sorted(thin)}
        for name, part in self._parts.items():
            if part.pack in thin:
                moved[part.pack].append(name)
        for pack, names in moved.items():
            handle, _ = self.disk.open(os.path.join(self.path, pack))
            try:
                for name in names:  # one at a time: a pack may be larger than the memory that there is
                    part = self._parts[name]
                    content = read_bytes(self.disk, handle, part.size, part.offset)
                    if len(content) == part.size and checksum(content) == part.sum:  # what is damaged stays where it is
                        self._parts[name] = self._write(content, part.size)
            finally:
                self.disk.close(handle)

    def forget_missing(self, names: set[str]) -> bool:
        """Have the state that follows this one write anew what was in packs that somebody has removed."""
        gone = self._sizes.keys() - names
        if gone:
            self._parts = {name: part for name, part in self._parts.items() if part.pack not in gone}
        return bool(gone)

    def commit(self, body: Mapping[str, Any]) -> None:
        """Make this the state of the directory."""
        new, old, manifest = (os.path.join(self.path, name) for name in (_NEW, _OLD, MANIFEST))
        self._empty_packs()
        self._finish_file()
        packs = sorted({part.pack for part in self._parts.values()})
        places = {pack: place for place, pack in enumerate(packs)}
        parts = {name: (places[part.pack], *part[1:]) for name, part in self._parts.items()}
        data = pack_manifest({**body, "packs": packs, "parts": parts})
        for name in {_NEW, _OLD} & self._there:
            with contextlib.suppress(FileNotFoundError):
                self.disk.remove(os.path.join(self.path, name))
        self._begin_file(_NEW)
        assert self._handle is not None
        write_all(self.disk, self._handle, data)
        self.bytes_written += len(data)
        self._finish_file()
        if self._made_folder:
            self.disk.sync_folder(os.path.dirname(os.path.abspath(self.path)))
        if self._has_old:
            with contextlib.suppress(OSError):  # where there are no links, the old state cannot be put back below
                self.disk.link(manifest, old)
        self.disk.sync_folder(self.path)
        self._replacing = True
        self.disk.replace(new, manifest)
        self.disk.sync_folder(self.path)
        self._replacing = self._made_folder = False
        self._written, self._old, self._unread, self._there = [], {}, None, {_OLD}
        self._sizes = {pack: self._sizes[pack] for pack in packs}
        with contextlib.suppress(OSError):  # the next save tries again
            self._remove([name for name in self.disk.names_in(self.path) if _is_left_over(name) and name not in places])

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        try:
            if self._handle is not None:
                with contextlib.suppress(OSError):
                    self.disk.close(self._handle)
            if self._replacing:
                # Nobody knows which manifest is on the disk, so the packs of both stay. What can be seen is the old one.
                with contextlib.suppress(OSError):
                    if self._has_old:
                        self.disk.replace(os.path.join(self.path, _OLD), os.path.join(self.path, MANIFEST))
                    else:
                        self.disk.remove(os.path.join(self.path, MANIFEST))
            elif error is not None:
                self._remove([*self._written, *([_OLD] if _NEW in self._written else [])])
                if self._made_folder:
                    with contextlib.suppress(OSError):
                        self.disk.remove_folder(self.path)
        finally:
            if self._lock is not None:
                with contextlib.suppress(OSError):
                    self.disk.close(self._lock)
                self._lock = None
        if isinstance(error, OSError) and error.errno is not None:
            stays = "what was saved there before is still there" if self._has_old else "nothing was saved"
            raise OSError(error.errno, f"saving failed: {error.strerror}; {stays}", self.path) from error

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                self.disk.remove(os.path.join(self.path, name))


def _is_left_over(name: str) -> bool:
    """Whether a file may be one that a save has left behind."""
    return name in (_NEW, _OLD) or is_pack(name)
