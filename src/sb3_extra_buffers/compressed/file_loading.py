"""Loading a buffer from a directory of files. Nothing in a file is ever run, and nothing in it is trusted."""

from __future__ import annotations

import contextlib
import inspect
import numbers
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch as th

import sb3_extra_buffers
from sb3_extra_buffers.compressed.files import CLASSES, OF_THE_SAME_FORM, OWN, WHERE, Path, our_class
from sb3_extra_buffers.compressed.saved_spaces import MOST_EVEN_BYTES, make_space
from sb3_extra_buffers.storage.directory import DamagedFileError, SavedDirectory
from sb3_extra_buffers.storage.disk import DISK, Disk
from sb3_extra_buffers.storage.errors import OtherFormatError, StorageError
from sb3_extra_buffers.storage.frame_files import load_frames
from sb3_extra_buffers.storage.json_values import from_json
from sb3_extra_buffers.storage.row_files import MOST_ROWS, load_rows

_MOST_ENVS = 1 << 16  # of a buffer that is next to empty
_TRIES = 5
_MOST_INFOS = 1 << 24  # of a HER buffer that is next to empty; each takes a pointer
_MOST_REPAIRED = 1 << 22  # rows, unless more bytes are there
_MOST_STEPS = 1 << 16  # of n-step returns, unless the buffer is larger
# What an argument must be, by its annotation; numbers may be NumPy's.
_KINDS: dict[Any, Any] = {
    "int": numbers.Integral,
    "float": numbers.Real,
    "bool": (bool, np.bool_, numbers.Integral),
}


def load_buffer(path: Path, *, device: th.device | str = "auto", repair: bool = False, **handed_in: Any) -> Any:
    """
    Load a buffer of whichever class from a directory; see ``load`` of the buffers.

    :param path: The directory
    :param device: Where samples go
    :param repair: Leave out what is damaged, and warn how many rows that is
    :param handed_in: What no file can hold: ``env`` of a HER buffer, or a function as ``beta`` of a prioritized one
    :return: The buffer
    """
    return open_buffer(None, path, device, repair, handed_in)


def open_buffer(
    cls: type | None, path: Path, device: Any, repair: bool, handed_in: Mapping[str, Any], disk: Disk = DISK
) -> Any:
    """Load a buffer; see ``load_buffer``."""
    for _ in range(_TRIES):
        saved = SavedDirectory(path, disk)
        lost: list[tuple[int, int]] | None = [] if repair else None
        try:
            make = _check(cls, saved, device, handed_in, repair)
            _hold(saved)
            buffer = fill_buffer(make(), saved, lost)
        except DamagedFileError:
            if saved.has_changed():  # somebody has saved another state meanwhile, and removed what this one needs
                continue
            raise
        if not lost:
            return buffer
        if not saved.has_changed():
            with _refused_as_damaged(saved, type(buffer)):
                return _leave_out(buffer, make(), lost, saved.path)
    raise StorageError(f"{os.fspath(path)} is saved more often than it can be loaded; load it when nobody saves to it")


def _hold(saved: SavedDirectory) -> None:
    """Have what is to be loaded stay, whoever saves meanwhile."""
    try:
        saved.hold()
    except DamagedFileError:
        if saved.has_changed():
            raise  # and another try; else what is damaged is found when it is read


def _check(cls: Any, saved: SavedDirectory, device: Any, handed_in: Mapping[str, Any], repair: bool) -> Callable[[], Any]:
    """Check what a directory says of its buffer; what is returned makes an empty one."""
    cls = _check_class(cls, saved.body, saved.path)
    if unknown := sorted(handed_in.keys() - set(cls._handed_in)):
        takes = ", ".join(cls._handed_in) or "nothing of the kind"
        raise TypeError(f"{cls.__name__} does not take {', '.join(unknown)} when it is loaded; it takes {takes}")
    ours = our_class(cls)
    with _refused_as_damaged(saved, cls):
        arguments = _make_arguments(saved.body, ours)
        stored, rows = saved.stored_bytes(), arguments["buffer_size"]
        if arguments["n_envs"] > max(_MOST_ENVS, stored):  # each takes memory, and a byte or more of every row
            raise ValueError(f"n_envs is {arguments['n_envs']}, of which there are {stored} bytes")
        if arguments.get("copy_info_dict") and rows > max(_MOST_INFOS, stored):
            raise ValueError(f"there are {rows} infos in {stored} bytes")
        if repair and rows > max(_MOST_REPAIRED, stored):
            raise ValueError(f"buffer_size is {rows}, but only {stored} bytes are there, which is too little to repair")
    arguments |= handed_in
    if "env" in cls._handed_in:
        arguments.setdefault("env", None)

    def make() -> Any:
        buffer = cls.__new__(cls)  # a constructor of somebody else may take other arguments than ours
        with _refused_as_damaged(saved, cls):
            ours.__init__(buffer, **cls._arguments_from_file(arguments), device=device)  # type: ignore[misc]
        return buffer

    return make


def fill_buffer(buffer: Any, saved: SavedDirectory, lost: list[tuple[int, int]] | None = None) -> Any:
    """Put what was saved into an empty buffer."""
    body = saved.body
    with _refused_as_damaged(saved, type(buffer)):
        fields = [field for field in buffer._fields_in_files() if field.is_compressed]
        if [said["key"] for said in body["frames"]] != [field.key for field in fields]:
            raise ValueError(f"other keys are compressed than {[field.key for field in fields]}")
        frames = [
            load_frames(said, field.frames, saved, lost, buffer._takes_any_coder)
            for field, said in zip(fields, body["frames"], strict=True)
        ]
        buffer._take_frames({field.key: column for field, column in zip(fields, frames, strict=True)})
        buffer._take_values(body["values"])
        more = buffer._more_to_fill()
        groups = {"rows": buffer._columns_to_save(), **{name: {name: array} for name, array in more.items()}}
        if [said["name"] for said in body["rows"]] != list(groups):
            raise ValueError(f"it holds other arrays than {list(groups)}")
        for said in body["rows"]:
            load_rows(said, groups[said["name"]], saved, lost)
        buffer._take_more(more)
        used = buffer._rows_to_save()
        if any(said["used"] != used for said in body["rows"]):
            raise ValueError(f"not all arrays have {used} rows")
        _set_attributes(buffer, body["attributes"])
        buffer._finish_loading(lost)
    return buffer


@contextlib.contextmanager
def _refused_as_damaged(saved: SavedDirectory, cls: type) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise StorageError(
            f"{saved.path} holds a {cls.__name__} that needs more memory than there is, or is damaged"
        ) from error
    except (LookupError, TypeError, ValueError, AssertionError, AttributeError, ArithmeticError) as error:
        raise StorageError(
            f"{saved.path} is damaged, or does not hold a {cls.__name__}: {error!r}; load another copy of the directory"
        ) from error


def _check_class(cls: Any, body: Mapping[str, Any], where: str) -> Any:
    """The class to load; of the classes in the file, only those of ours are known."""
    name, subclass = body.get("class"), body.get("subclass")
    if name not in CLASSES:
        raise OtherFormatError(f"{where} holds a {name!r}, which this version does not know; install a newer one")
    ours = getattr(sb3_extra_buffers, name)
    if cls is None:
        if subclass is not None:
            raise StorageError(
                f"{where} was saved by {subclass}, which load_buffer does not look for: load it with "
                f"{str(subclass).rpartition('.')[2]}.load(path)"
            )
        return ours
    is_another = subclass is not None and subclass != f"{cls.__module__}.{cls.__qualname__}"
    if is_another or not _are_of_the_same_form(our_class(cls).__name__, name):
        saved_by = subclass or name
        raise StorageError(
            f"{where} holds a {saved_by}, not a {cls.__name__}: load it with {str(saved_by).rpartition('.')[2]}.load(path)"
            + ("" if subclass else " or load_buffer(path)")
        )
    return cls


def _are_of_the_same_form(one: str, other: str) -> bool:
    return OF_THE_SAME_FORM.get(one, one) == OF_THE_SAME_FORM.get(other, other)


def _make_arguments(body: Mapping[str, Any], ours: type) -> dict[str, Any]:
    said, options, room = dict(body["arguments"]), body["options"], [MOST_EVEN_BYTES]
    arguments: dict[str, Any] = {name: make_space(said.pop(name), room) for name in ("observation_space", "action_space")}
    arguments |= {name: from_json(value) for name, value in said.items()}
    parameters = inspect.signature(ours).parameters
    taken = parameters.keys() - {"device", "env", *WHERE}  # a file does not say where to write
    chosen = {name: from_json(value) for name, value in options.items()}
    if body["class"] != ours.__name__:
        chosen = _options_of_another(chosen, body["class"], ours)
    if not (arguments.keys() | chosen.keys()) <= taken or arguments.keys() & chosen.keys():
        raise ValueError(f"it takes other arguments than {sorted(arguments.keys() | chosen.keys())}")
    for name in ("buffer_size", "n_envs"):
        if type(arguments[name]) is not int or not 0 < arguments[name] < MOST_ROWS:
            raise ValueError(f"{name} is {arguments[name]!r}")
    for name, value in arguments.items():
        kind = _KINDS.get(parameters[name].annotation)
        if kind is not None and not isinstance(value, kind):
            raise ValueError(f"{name} is {value!r}")
    if not 0 < arguments.get("n_steps", 1) <= max(arguments["buffer_size"], _MOST_STEPS):
        raise ValueError(f"n_steps is {arguments['n_steps']!r}")
    return arguments | chosen


def _options_of_another(options: Mapping[str, Any], saved_by: str, ours: type) -> dict[str, Any]:
    """Of the options of another class, those that say what is stored. How it is compressed is for each class to say."""
    for name, default in (("normalize_images", False), ("output_dtype", "raw")):
        if options.get(name, default) != default:
            raise StorageError(
                f"what was saved has {name}={options[name]!r}, so its samples are others than those of a {ours.__name__}: "
                f"load it with {saved_by}.load(path) or load_buffer(path)"
            )
    return {"dtypes": _without_runs(options.get("dtypes"))}


def _without_runs(dtypes: Any) -> Any:
    """A choice of types without that of run lengths, for which classes have other types."""
    if not isinstance(dtypes, dict):
        return dtypes
    return {key: _without_runs(part) for key, part in dtypes.items() if key != "runs_type"} or None


def _set_attributes(buffer: Any, said: Mapping[str, Any]) -> None:
    """Attributes that others have added; none that hides something of ours."""
    for name, value in said.items():
        at_class = getattr(type(buffer), name, None)
        hides = callable(at_class) or isinstance(at_class, property)
        if name in OWN or hides or not name.isidentifier() or name.startswith("__"):
            raise ValueError(f"{name!r} is not an attribute that can be loaded")
        setattr(buffer, name, from_json(value))


def _leave_out(buffer: Any, empty: Any, lost: list[tuple[int, int]], where: str) -> Any:
    """Take rows out of a buffer that could not be loaded, and say so."""
    used = buffer._rows_to_save()
    is_lost = np.zeros(buffer.buffer_size, np.bool_)
    for first, stop in lost:
        is_lost[first : min(stop, used)] = True
    rest, gone = buffer._leave_out(is_lost, empty)
    warnings.warn(
        f"{where} is damaged: {gone} of its {used} rows, with {gone * buffer.n_envs} transitions, are gone",
        stacklevel=4,
    )
    return rest
