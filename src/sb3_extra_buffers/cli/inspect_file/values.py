"""What a pickle holds, as far as that can be known without loading it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from typing import Any, BinaryIO


class PickleError(Exception):
    """A file is no pickle, or is damaged."""


class Name:
    """
    A function or a class that the file names.

    :param module: Module it would be imported from
    :param name: Its name there
    """

    __slots__ = ("module", "name")

    def __init__(self, module: str, name: str) -> None:
        self.module = module
        self.name = name

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


class Skipped:
    """
    Data that was not read.

    :param size: Its bytes in the file
    :param start: Where it begins; -1 if it is not in the file
    :param encoding: How its text is coded; None if it is no text
    """

    __slots__ = ("encoding", "size", "start")

    def __init__(self, size: int, start: int = -1, encoding: str | None = None) -> None:
        self.size = size
        self.start = start
        self.encoding = encoding


# No object has more attributes.
_MOST_ATTRIBUTES = 10_000


class Items:
    """
    A dict.

    Its pairs stay in a list: a file could choose keys that all have the same hash, and a dict of them takes hours.
    """

    __slots__ = ("are_attributes", "pairs")

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []
        self.are_attributes = True  # names of attributes, none of which Python itself would call

    def extend(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        """
        Put items into it.

        :param pairs: Keys and values
        """
        for key, value in pairs:
            self.pairs.append((key, value))
            if not isinstance(key, str) or key.startswith("__"):
                self.are_attributes = False

    def by_name(self) -> dict[str, Any]:
        """
        Give what can be looked up.

        :return: The values whose keys are strings
        """
        return {key: value for key, value in self.pairs[:_MOST_ATTRIBUTES] if isinstance(key, str)}


class Elements(list[Any]):
    """A set, likewise."""

    __slots__ = ()


class Made:
    """
    What loading the file would have made.

    :param maker: The class, or the function that would have been called; None if the file computes it
    :param args: With what
    :param is_known: Whether it is used as saved buffers and models use it
    """

    __slots__ = ("args", "elements", "is_known", "items", "maker", "state")

    def __init__(self, maker: Name | None, args: tuple[Any, ...] = (), is_known: bool = True) -> None:
        self.maker = maker
        self.args = args
        self.is_known = is_known
        self.state: Any = None
        self.items = Items()
        self.elements: list[Any] = []

    @property
    def attributes(self) -> dict[str, Any]:
        """Attributes it would have had."""
        parts = self.state if isinstance(self.state, tuple) and len(self.state) == 2 else (self.state,)
        found: dict[str, Any] = {}
        for part in parts:
            found |= part.by_name() if isinstance(part, Items) else {}
        return found


class Source:
    """
    Part of a file, of which nothing is read that is not there.

    :param file: The file
    :param most: How many bytes may be read, beside those that are skipped
    """

    def __init__(self, file: BinaryIO, most: int = 1 << 30) -> None:
        self._file = file
        self._left = most
        here = file.tell()
        self.end = file.seek(0, os.SEEK_END)
        file.seek(here)
        self.position = here

    def _take(self, size: int, is_kept: bool = True) -> None:
        if size > self.end - self.position:
            raise PickleError("the file ends too early")
        self.position += size
        if is_kept:
            self._left -= size
            if self._left < 0:
                raise PickleError("there is too much in it to check")

    def read(self, size: int) -> bytes:
        """
        Read bytes.

        :param size: How many
        :return: The bytes
        """
        self._take(size)
        return self._file.read(size)

    def line(self) -> bytes:
        """
        Read a line. If the file ends within it, its last byte is lost, as it is for Python's own reader.

        :return: The line without its end
        """
        line = self._file.readline(self._left + 1)
        self._take(max(len(line), 1))
        return line[:-1]

    def skip(self, size: int, encoding: str | None = None) -> Skipped:
        """
        Leave out bytes.

        :param size: How many
        :param encoding: How the text is coded that they are; None if they are no text
        :return: The place
        """
        skipped = Skipped(size, self.position, encoding)
        self._take(size, is_kept=False)
        self._file.seek(self.position)
        return skipped

    def beginning(self, skipped: Skipped, size: int) -> bytes:
        """
        Read the beginning of what was left out.

        :param skipped: The place
        :param size: How many bytes, at most
        :return: The bytes
        """
        if skipped.start < 0:
            return b""
        size = min(size, skipped.size)
        self._left -= size
        if self._left < 0:
            raise PickleError("there is too much in it to check")
        self._file.seek(skipped.start)
        found = self._file.read(size)
        self._file.seek(self.position)
        return found


def source_of(data: bytes) -> Source:
    """
    Read from memory.

    :param data: What is in the file
    :return: The source
    """
    return Source(io.BytesIO(data))
