"""
Read a pickle without running anything that it names.

A pickle is a program for a small machine with a stack: it names functions and classes, calls them, and sets attributes. Here
that machine only keeps account of what it would have done. Each name and each use of it is compared with what saved buffers
and models need, and anything else is noted; what cannot be known is noted, too. Large pieces of data are skipped, so a file of
gigabytes is read in little memory.
"""

from __future__ import annotations

import gc
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sb3_extra_buffers.cli.inspect_file.allowed import (
    ALLOWED,
    CALLS,
    CLASSES,
    FILLED,
    REFERENCES,
    TUPLES,
    is_made,
    is_name,
    may_have_state,
)
from sb3_extra_buffers.cli.inspect_file.machine import Budget, Machine, what
from sb3_extra_buffers.cli.inspect_file.values import Elements, Items, Made, Name, PickleError, Skipped, Source, source_of

# How much is read of a pickle that is inside of another.
_LONGEST_INNER = 1 << 16
_CLOUDPICKLE_WRAPPER = (("stable_baselines3.common.vec_env.base_vec_env", "CloudpickleWrapper"),)


class Contents:
    """
    What is in a pickle.

    :param root: What loading it would give; None if that is not known
    :param foreign: What loading it would do beyond what buffers and models need
    :param damage: Why it could not be read to its end; None if it could
    :param unread: Bytes that follow the pickle
    """

    def __init__(self, root: Any, foreign: dict[str, None], damage: str | None, unread: int) -> None:
        self.root = root
        self.foreign = list(foreign)
        self.damage = damage
        self.unread = unread


class _Reader(Machine):
    """
    The machine with names, and with calls that are only noted.

    :param source: The file
    :param foreign: Where to note what is not needed
    :param budget: How much may be done
    :param is_torch: Whether PyTorch reads it, which puts the storages of tensors in where the file has only their keys
    :param depth: In how many pickles this one is
    """

    def __init__(
        self, source: Source, foreign: dict[str, None], budget: Budget, is_torch: bool = False, depth: int = 0
    ) -> None:
        super().__init__(source, foreign, budget)
        self.is_torch = is_torch
        self.depth = depth
        self.protocol = 0

    def name(self, module: Any, name: Any) -> Name | Made:
        """Name something, instead of importing it."""
        if not isinstance(module, str) or not isinstance(name, str):
            self.note("a name that is only known once the file is loaded")
            return Made(None, is_known=False)
        if self.protocol < 3:  # what Python 2 called it
            module, name = NAME_MAPPING.get((module, name), (IMPORT_MAPPING.get(module, module), name))
        found = Name(module, name)
        if (module, name) not in ALLOWED:
            self.note(str(found))
        return found

    def names_of_lines(self) -> Name | Made:
        """Name what two lines say."""
        try:
            return self.name(self.source.line().decode(), self.source.line().decode())
        except UnicodeDecodeError:
            raise PickleError("it makes no sense as a pickle") from None

    def call(self, maker: Any, args: Any) -> Any:
        """Note a call, instead of making it."""
        if not isinstance(maker, Name):
            if not isinstance(maker, Made) or maker.is_known:  # what is not known was noted when it was made
                self.note(f"{what(maker)} is called")
            return Made(None, is_known=False)
        key = (maker.module, maker.name)
        if not isinstance(args, tuple):
            self.note(f"{maker} with arguments that are only known once the file is loaded")
            return Made(maker, is_known=False)
        if key == ("copyreg", "__newobj__") and 0 < len(args) < 100:
            return self.new(args[0], args[1:])
        if key == ("copyreg", "_reconstructor") and len(args) == 3:
            return self.reconstruct(*args)
        is_known = key in CALLS and CALLS[key](args)
        if not is_known and key in ALLOWED:
            self.note(f"{maker} with unusual arguments")
        if not is_known:
            return Made(maker, args, is_known=False)
        if key == ("torch.storage", "_load_from_bytes"):
            self.inner(args[0], is_torch=True)
        return args[0] if key[1] == "open_state" else Made(maker, args)

    def new(self, cls: Any, args: Any, keywords: Any = None) -> Made:
        """Note an object, instead of making it."""
        is_known = keywords is None or (isinstance(keywords, Items) and not keywords.pairs)
        is_known &= isinstance(args, tuple) and is_name(cls, TUPLES if args else CLASSES)
        if not is_known and (not isinstance(cls, Name) or (cls.module, cls.name) in ALLOWED):
            self.note(f"{what(cls)} made in an unusual way")
        return Made(cls if isinstance(cls, Name) else None, args if isinstance(args, tuple) else (), is_known)

    def reconstruct(self, cls: Any, base: Any, state: Any) -> Made:
        """Note an object of protocols 0 and 1, instead of making it."""
        if is_name(base, (("builtins", "tuple"),)):
            return self.new(cls, state)
        if is_name(base, (("builtins", "dict"),)) and isinstance(state, Items) and is_name(cls, FILLED):
            made = self.new(cls, ())
            made.items = state
            return made
        if not is_name(base, (("builtins", "object"),)) or state is not None:
            self.note(f"{what(cls)} made in an unusual way")
        return self.new(cls, ())

    def build(self) -> None:
        """Note a state, instead of setting it."""
        state = self.stack.pop()
        self.use([state])
        target = self.stack[-1]
        if not isinstance(target, Made):
            self.note(f"attributes of {what(target)} are set")
            return
        if is_made(target, _CLOUDPICKLE_WRAPPER):
            self.inner(state)
        elif target.is_known and not may_have_state(target, state):
            self.note(f"{what(target)} with an unusual state")
        target.state = state

    def inner(self, value: Any, is_torch: bool = False) -> None:
        """Look into a pickle that would be loaded by something in this one."""
        data = self.beginning(value)
        if data is None or self.depth > 2:
            self.note("another pickle inside, which cannot be read without loading it")
            return
        source = source_of(data)
        try:
            # PyTorch's older format is a row of pickles: two numbers, the machine it was saved on, the object, the keys of
            # the storages.
            for _ in range(5 if is_torch else 1):
                _Reader(source, self.foreign, self.budget, is_torch, self.depth + 1).load()
        except PickleError as error:
            self.note(f"another pickle inside, which cannot be read without loading it ({error})")

    def beginning(self, value: Any) -> bytes | None:
        """The beginning of data, if it is in the file."""
        if is_made(value, (("_codecs", "encode"),)):  # how old protocols write bytes
            value = value.args[0]
            if isinstance(value, Skipped):
                if value.encoding not in ("utf-8", "raw-unicode-escape"):
                    return None
                value = self.source.beginning(value, _LONGEST_INNER).decode(value.encoding, "ignore")
            return bytes(value.encode("latin1", "replace"))
        if isinstance(value, Skipped):
            value = self.source.beginning(value, _LONGEST_INNER)
        return value if isinstance(value, bytes) and value else None

    def persistent(self, key: Any) -> None:
        """Note that something outside of the pickle is meant."""
        is_storage = isinstance(key, tuple) and len(key) >= 5 and key[0] == "storage" and is_name(key[1], REFERENCES)
        if not (self.is_torch and is_storage):
            self.note("something outside of the file")
        self.stack.append(Made(Name("torch", "storage"), is_known=self.is_torch and is_storage))

    def step_reduce(self) -> None:
        """Note a call."""
        args = self.stack.pop()
        self.stack[-1] = self.call(self.stack[-1], args)

    def step_new(self, has_keywords: bool) -> None:
        """Note an object."""
        keywords = self.stack.pop() if has_keywords else None
        args = self.stack.pop()
        self.stack[-1] = self.new(self.stack[-1], args, keywords)

    def step_object(self) -> None:
        """Note a call, or an object if there are no arguments."""
        taken = self.since_mark()
        cls = taken.pop(0)
        self.use(taken)
        self.stack.append(self.call(cls, tuple(taken)))

    def step_instance(self) -> None:
        """The same for a class that is named here."""
        cls = self.names_of_lines()
        args = self.since_mark()
        self.use(args)
        self.stack.append(self.call(cls, tuple(args)))

    def step_stack_name(self) -> None:
        """Name something by values."""
        name = self.stack.pop()
        self.stack[-1] = self.name(self.stack[-1], name)

    def step_extension(self, code: str) -> None:
        """Note an entry of the registry of the process that loads."""
        self.note(f"copyreg extension {self.number(code)}")
        self.stack.append(Made(None, is_known=False))

    def step_protocol(self) -> None:
        """Note the protocol."""
        self.protocol = self.number("<B")


def _parse_int(line: bytes) -> Any:
    return {b"00": False, b"01": True}.get(line) if line in (b"00", b"01") else int(line)


def _constant(value: Any) -> Callable[[_Reader], None]:
    return lambda reader: reader.stack.append(value)


_Reader.steps = {
    code[0]: step
    for code, step in {
        b"N": _constant(None),
        b"\x88": _constant(True),
        b"\x89": _constant(False),
        b")": _constant(()),
        b"]": lambda reader: reader.stack.append([]),
        b"}": lambda reader: reader.stack.append(Items()),
        b"\x8f": lambda reader: reader.stack.append(Elements()),
        b"\x97": lambda reader: reader.stack.append(Skipped(0)),  # data that is not in the file
        b"\x98": lambda reader: None,  # data becomes read-only
        b"I": lambda reader: reader.text_number(_parse_int),
        b"L": lambda reader: reader.text_number(lambda line: int(line.rstrip(b"L"))),
        b"F": lambda reader: reader.text_number(float),
        b"J": lambda reader: reader.stack.append(reader.number("<i")),
        b"K": lambda reader: reader.stack.append(reader.number("<B")),
        b"M": lambda reader: reader.stack.append(reader.number("<H")),
        b"G": lambda reader: reader.stack.append(reader.number(">d")),
        b"\x8a": lambda reader: reader.long_number("<B"),
        b"\x8b": lambda reader: reader.long_number("<i"),
        b"S": _Reader.quoted,
        b"V": _Reader.text_line,
        b"T": lambda reader: reader.data("<i", "ascii"),
        b"U": lambda reader: reader.data("<B", "ascii"),
        b"X": lambda reader: reader.data("<I", "utf-8"),
        b"\x8c": lambda reader: reader.data("<B", "utf-8"),
        b"\x8d": lambda reader: reader.data("<Q", "utf-8"),
        b"B": lambda reader: reader.data("<I"),
        b"C": lambda reader: reader.data("<B"),
        b"\x8e": lambda reader: reader.data("<Q"),
        b"\x96": lambda reader: reader.data("<Q"),
        b"a": lambda reader: reader.add([reader.stack.pop()]),
        b"e": lambda reader: reader.add(reader.since_mark()),
        b"\x90": lambda reader: reader.add(reader.since_mark()),
        b"s": lambda reader: reader.put([reader.stack.pop(), reader.stack.pop()][::-1]),
        b"u": lambda reader: reader.put(reader.since_mark()),
        b"l": lambda reader: reader.collect(list, reader.since_mark()),
        b"t": lambda reader: reader.collect(tuple, reader.since_mark()),
        b"\x91": lambda reader: reader.collect(Elements, reader.since_mark()),
        b"\x85": lambda reader: reader.step_tuple(1),
        b"\x86": lambda reader: reader.step_tuple(2),
        b"\x87": lambda reader: reader.step_tuple(3),
        b"d": _Reader.dictionary,
        b"(": _Reader.step_mark,
        b"0": _Reader.step_pop,
        b"1": _Reader.step_drop,
        b"2": lambda reader: reader.stack.append(reader.stack[-1]),
        b"g": lambda reader: reader.step_get(reader.index()),
        b"h": lambda reader: reader.step_get(reader.number("<B")),
        b"j": lambda reader: reader.step_get(reader.number("<I")),
        b"p": lambda reader: reader.step_keep(reader.index()),
        b"q": lambda reader: reader.step_keep(reader.number("<B")),
        b"r": lambda reader: reader.step_keep(reader.number("<I")),
        b"\x94": lambda reader: reader.step_keep(len(reader.memo)),
        b"c": lambda reader: reader.stack.append(reader.names_of_lines()),
        b"\x93": _Reader.step_stack_name,
        b"R": _Reader.step_reduce,
        b"b": _Reader.build,
        b"i": _Reader.step_instance,
        b"o": _Reader.step_object,
        b"\x81": lambda reader: reader.step_new(has_keywords=False),
        b"\x92": lambda reader: reader.step_new(has_keywords=True),
        b"\x82": lambda reader: reader.step_extension("<B"),
        b"\x83": lambda reader: reader.step_extension("<H"),
        b"\x84": lambda reader: reader.step_extension("<i"),
        b"P": lambda reader: reader.persistent(reader.source.line()),
        b"Q": lambda reader: reader.persistent(reader.stack.pop()),
        b"\x80": _Reader.step_protocol,
        b"\x95": lambda reader: reader.number("<Q"),  # a frame: how much to read ahead
        b".": _Reader.step_stop,
    }.items()
}


def read_source(source: Source, is_torch: bool = False, budget: Budget | None = None) -> Contents:
    """
    Read a pickle. Nothing that it names is imported or called.

    :param source: Where it is
    :param is_torch: Whether PyTorch reads it
    :param budget: How much may be done, if it is one of several
    :return: What is in it
    """
    foreign: dict[str, None] = {}
    root, damage = None, None
    was_collecting = gc.isenabled()
    gc.disable()  # it would look through millions of values again and again
    try:
        root = _Reader(source, foreign, budget or Budget(), is_torch).load()
    except PickleError as error:
        damage = str(error)  # what comes before would still be run
    finally:
        if was_collecting:
            gc.enable()
    return Contents(root, foreign, damage, 0 if damage else source.end - source.position)


def read_pickle(path: Path) -> Contents:
    """
    Read a file.

    :param path: The file
    :return: What is in it
    """
    with open(path, "rb") as file:
        return read_source(Source(file))
