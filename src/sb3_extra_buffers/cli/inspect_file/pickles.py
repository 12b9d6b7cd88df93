"""
Read a pickle without running anything that it names.

A pickle is a program: it names functions and classes, and calls them. Here each name becomes a placeholder that notes what
it was called with. Large pieces of data are skipped, so a file of gigabytes is read in little memory.
"""

from __future__ import annotations

import os
import pickle
import struct
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, cast

# Data of more bytes than this is skipped.
_LONGEST_KEPT = 4096


class PickleError(Exception):
    """A file is no pickle, or is damaged."""


@dataclass(frozen=True)
class Skipped:
    """
    Data that was not read.

    :param size: Its bytes
    """

    size: int


@dataclass(frozen=True)
class Name:
    """
    A function or a class that the file names; calling it only notes the call.

    :param module: Module it would be imported from
    :param name: Its name there
    """

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> Made:
        return Made(self, args, kwargs)


@dataclass(eq=False)
class Made:
    """
    What loading the file would have made.

    :param maker: What it would have called
    :param args: With what
    :param kwargs: Likewise
    :param state: What it would have set on it afterwards
    :param items: What it would have put into it
    """

    maker: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    state: Any = None
    items: dict[Any, Any] = field(default_factory=dict)
    elements: list[Any] = field(default_factory=list)

    def __call__(self, *args: Any, **kwargs: Any) -> Made:
        return Made(self, args, kwargs)

    @property
    def kind(self) -> Name | None:
        """The class, as far as it is known."""
        if isinstance(self.maker, Name) and str(self.maker) in ("copyreg.__newobj__", "copyreg._reconstructor") and self.args:
            return self.args[0] if isinstance(self.args[0], Name) else None
        return self.maker if isinstance(self.maker, Name) else None

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes it would have had."""
        state = self.state
        if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
            state = {**(state[0] or {}), **state[1]}
        if isinstance(state, Made):  # a dict that was filled item by item, while its buffer was locked
            state = state.items
        return state if isinstance(state, dict) else {}


class _Reader(pickle._Unpickler):
    """The unpickler that is written in Python, with every step that could reach beyond the file replaced."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(pickle._Unpickler.dispatch)

    # What the parent class has, and its stubs do not.
    proto: int
    stack: list[Any]
    append: Callable[[Any], None]
    read: Callable[[int], bytes]
    readline: Callable[[], bytes]
    pop_mark: Callable[[], list[Any]]
    _unframer: Any

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file)
        self._file = file
        self.names: set[Name] = set()
        self.calls: list[tuple[Name, tuple[Any, ...]]] = []

    def find_class(self, module: str, name: str) -> Name:
        """
        Note a name, instead of importing it.

        :param module: Module
        :param name: Name in it
        :return: The placeholder
        """
        if self.proto < 3:  # what Python 2 called it
            module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        found = Name(str(module), str(name))
        self.names.add(found)
        return found

    def persistent_load(self, pid: Any) -> Made:
        """
        Note that something outside of the file is meant.

        :param pid: What it is called
        :return: The placeholder
        """
        return Made(Name("", "persistent"), (pid,))

    def get_extension(self, code: int) -> None:
        """
        Note what the registry of this process would have been asked for.

        :param code: The number of the entry
        """
        self.append(self.find_class("copyreg", f"extension {code}"))

    def load_build(self) -> None:
        """Note a state, instead of setting it."""
        state = self.stack.pop()
        if isinstance(self.stack[-1], Made):
            self.stack[-1].state = state

    def load_append(self) -> None:
        """Note an element."""
        value = self.stack.pop()
        self._extend([value])

    def load_appends(self) -> None:
        """Note elements."""
        self._extend(self.pop_mark())

    def load_additems(self) -> None:
        """Note elements of a set."""
        self._extend(self.pop_mark())

    def _extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, list):
            target.extend(values)
        elif isinstance(target, set):
            target.update(value for value in values if isinstance(value, str | bytes | int | float | Name | Made))
        elif isinstance(target, Made):
            target.elements.extend(values)

    def load_setitem(self) -> None:
        """Note an item."""
        value = self.stack.pop()
        key = self.stack.pop()
        self._update([key, value])

    def load_setitems(self) -> None:
        """Note items."""
        self._update(self.pop_mark())

    def _update(self, flat: list[Any]) -> None:
        target = self.stack[-1]
        items = target if isinstance(target, dict) else target.items if isinstance(target, Made) else {}
        items.update(zip(flat[::2], flat[1::2], strict=True))

    def load_reduce(self) -> None:
        """Note a call, instead of making it."""
        args = self.stack.pop()
        made = Made(self.stack[-1], args if isinstance(args, tuple) else (args,))
        self.stack[-1] = made
        if isinstance(made.maker, Name) and made.maker.module == "builtins":
            self.calls.append((made.maker, made.args))

    def load_newobj(self) -> None:
        """Note an object, instead of making it."""
        self.load_reduce()

    def load_newobj_ex(self) -> None:
        """Note an object, instead of making it."""
        kwargs = self.stack.pop()
        self.load_reduce()
        self.stack[-1].kwargs = kwargs if isinstance(kwargs, dict) else {}

    def load_inst(self) -> None:
        """Note an object, instead of making it."""
        module, name = (self.readline()[:-1].decode("ascii") for _ in range(2))
        args = self.pop_mark()
        self.append(Made(self.find_class(module, name), tuple(args)))

    def load_obj(self) -> None:
        """Note an object, instead of making it."""
        args = self.pop_mark()
        self.append(Made(args[0], tuple(args[1:])))

    def load_next_buffer(self) -> None:
        """Note data that is not in the file."""
        self.append(Skipped(0))

    def load_readonly_buffer(self) -> None:
        """Leave data as it is."""

    def _load_long_data(self, head: str) -> None:
        (size,) = struct.unpack(head, self.read(struct.calcsize(head)))
        if size <= _LONGEST_KEPT:
            self.append(self.read(size))
            return
        self.append(Skipped(size))
        self._skip(size)

    def _skip(self, size: int) -> None:
        frame = self._unframer.current_frame
        if frame is not None:
            got = len(frame.read(size))
            if got == size:
                return
            if got:
                raise PickleError("data reaches beyond its frame")
            self._unframer.current_frame = None
        here = self._file.tell()
        if here + size > self._file.seek(0, os.SEEK_END):
            raise PickleError("the file ends too early")
        self._file.seek(here + size)

    def load_binbytes(self) -> None:
        """Skip data that is long."""
        self._load_long_data("<I")

    def load_binbytes8(self) -> None:
        """Skip data that is long."""
        self._load_long_data("<Q")

    def load_bytearray8(self) -> None:
        """Skip data that is long."""
        self._load_long_data("<Q")

    def load_ext(self, head: str) -> None:
        """Note an entry of the registry of this process, instead of asking it."""
        (code,) = struct.unpack(head, self.read(struct.calcsize(head)))
        self.get_extension(code)


def _replace(opcode: bytes, method: Callable[[Any], None]) -> None:
    _Reader.dispatch[opcode[0]] = method


for _opcode, _name in (
    (pickle.BUILD, "build"),
    (pickle.APPEND, "append"),
    (pickle.APPENDS, "appends"),
    (pickle.ADDITEMS, "additems"),
    (pickle.SETITEM, "setitem"),
    (pickle.SETITEMS, "setitems"),
    (pickle.REDUCE, "reduce"),
    (pickle.NEWOBJ, "newobj"),
    (pickle.NEWOBJ_EX, "newobj_ex"),
    (pickle.INST, "inst"),
    (pickle.OBJ, "obj"),
    (pickle.NEXT_BUFFER, "next_buffer"),
    (pickle.READONLY_BUFFER, "readonly_buffer"),
    (pickle.BINBYTES, "binbytes"),
    (pickle.BINBYTES8, "binbytes8"),
    (pickle.BYTEARRAY8, "bytearray8"),
):
    _replace(_opcode, cast(Callable[[Any], None], getattr(_Reader, f"load_{_name}")))
for _opcode, _head in ((pickle.EXT1, "<B"), (pickle.EXT2, "<H"), (pickle.EXT4, "<i")):
    _replace(_opcode, lambda reader, head=_head: reader.load_ext(head))  # type: ignore[misc]


@dataclass(frozen=True)
class Contents:
    """
    What is in a pickle.

    :param root: What loading it would give
    :param names: Functions and classes that it names
    :param calls: Calls of built-in functions
    """

    root: Any
    names: set[Name]
    calls: list[tuple[Name, tuple[Any, ...]]]


def read_pickle(path: Path) -> Contents:
    """
    Read a pickle. Nothing that it names is imported or called.

    :param path: The file
    :return: What is in it
    """
    with open(path, "rb") as file:
        reader = _Reader(file)
        try:
            root = reader.load()
        except PickleError:
            raise
        except Exception as error:  # whatever a damaged file leads to
            # Of a byte that is no instruction the reader says no more than its number.
            why = "it makes no sense as a pickle" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
            raise PickleError(why) from error
    return Contents(root, reader.names, reader.calls)
