"""The machine that a pickle is a program for: what it reads, and how it puts data together. It calls nothing."""

from __future__ import annotations

import codecs
import struct
from collections.abc import Callable
from typing import Any, ClassVar

from sb3_extra_buffers.cli.inspect_file.allowed import FILLED, FUNCTIONS, is_made
from sb3_extra_buffers.cli.inspect_file.values import Items, Made, Name, PickleError, Skipped, Source

# Data of more bytes than this is skipped; no name is as long.
_LONGEST_KEPT = 4096
_STEPS_AT_ONCE = 1000
_MOST_NOTES = 1000


class _Stop(Exception):
    """The program is at its end."""


class Budget:
    """
    How much is done for one file, whatever is in it.

    :param steps: How many steps are left, in all pickles together
    """

    def __init__(self, steps: int = 20_000_000) -> None:
        self.steps = steps


class Machine:
    """
    The machine.

    :param source: The file
    :param foreign: Where to note what is not needed
    :param budget: How much may be done
    """

    steps: ClassVar[dict[int, Callable[[Any], None]]]

    def __init__(self, source: Source, foreign: dict[str, None], budget: Budget) -> None:
        self.source = source
        self.foreign = foreign
        self.budget = budget
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []  # the stack before each mark
        self.memo: dict[int, Any] = {}

    def load(self) -> Any:
        """
        Go through the whole program.

        :return: What it would give
        """
        read, steps = self.source.read, self.steps
        try:
            while self.budget.steps > 0:
                self.budget.steps -= _STEPS_AT_ONCE
                for _ in range(_STEPS_AT_ONCE):
                    steps[read(1)[0]](self)
        except _Stop:
            return self.stack.pop()
        except KeyError:
            raise PickleError("it makes no sense as a pickle") from None
        except IndexError:
            raise PickleError("it takes what is not there") from None
        raise PickleError("there is too much in it to check")

    def note(self, what: str) -> None:
        """
        Note something that is not needed.

        :param what: What it is
        """
        if len(self.foreign) < _MOST_NOTES:
            self.foreign[what[:200]] = None

    # -- what it reads ----------------------------------------------------------------------------------------------

    def number(self, code: str) -> Any:
        """Read a number of a fixed size."""
        return struct.unpack(code, self.source.read(struct.calcsize(code)))[0]

    def index(self) -> int:
        """Read a number that is written as text and says where something is kept."""
        try:
            value = int(self.source.line())
        except ValueError:
            raise PickleError("it makes no sense as a pickle") from None
        if not 0 <= value < 1 << 32:
            raise PickleError("it makes no sense as a pickle")
        return value

    def text_number(self, parse: Callable[[bytes], Any]) -> None:
        """Read a number that is written as text."""
        line = self.source.line()
        try:
            self.stack.append(parse(line))
        except ValueError:  # written in another way, which is no reason not to look at the rest
            self.stack.append(Skipped(len(line)))

    def long_number(self, code: str) -> None:
        """Read a number of any size."""
        self.data(code)
        data = self.stack[-1]
        self.stack[-1] = int.from_bytes(data, "little", signed=True) if isinstance(data, bytes) else Skipped(data.size)

    def data(self, code: str, encoding: str | None = None) -> None:
        """Read data that follows its size; skip it if it is long."""
        size = self.number(code)
        if size < 0:
            raise PickleError("it makes no sense as a pickle")
        if size > _LONGEST_KEPT:
            self.stack.append(self.source.skip(size, encoding))
        elif encoding is None:
            self.stack.append(self.source.read(size))
        else:
            self.text(self.source.read(size), lambda data: data.decode(encoding, "surrogatepass"))

    def text(self, data: bytes, decode: Callable[[bytes], str]) -> None:
        """Take text; if it is in another encoding than expected, only that it is there is known."""
        try:
            self.stack.append(decode(data) if len(data) <= _LONGEST_KEPT else Skipped(len(data), encoding="unknown"))
        except (ValueError, TypeError):
            self.stack.append(Skipped(len(data), encoding="unknown"))

    def text_line(self) -> None:
        """Read text as protocol 0 writes it."""
        start = self.source.position
        line = self.source.line()
        if len(line) > _LONGEST_KEPT:
            self.stack.append(Skipped(len(line), start, "raw-unicode-escape"))
        else:
            self.text(line, lambda data: data.decode("raw-unicode-escape"))

    def quoted(self) -> None:
        """Read text as Python 2 wrote it."""
        line = self.source.line().strip()
        if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
            raise PickleError("it makes no sense as a pickle")
        self.text(line[1:-1], lambda data: bytes(codecs.escape_decode(data)[0]).decode("ascii"))

    # -- what it puts together --------------------------------------------------------------------------------------

    def since_mark(self) -> list[Any]:
        """Take everything down to the last mark."""
        taken = self.stack
        self.stack = self.below.pop()
        return taken

    def use(self, values: list[Any] | tuple[Any, ...]) -> None:
        """Use values as data: a function among them could be called by whoever gets it."""
        for value in values:
            if value.__class__ is Name and (value.module, value.name) in FUNCTIONS:
                self.note(f"{value} is handed on")

    def collect(self, into: Callable[[list[Any]], Any], values: list[Any]) -> None:
        """Put values together."""
        self.use(values)
        self.stack.append(into(values))

    def add(self, values: list[Any]) -> None:
        """Add elements to a list or a set."""
        target = self.stack[-1]
        self.use(values)
        if isinstance(target, list):
            target.extend(values)
        elif is_made(target, FILLED):
            target.elements.extend(values)
        else:
            self.note(f"elements are added to {what(target)}")

    def put(self, flat: list[Any]) -> None:
        """Put items into a dict."""
        target = self.stack[-1]
        self.use(flat)
        pairs = zip(flat[::2], flat[1::2], strict=False)
        if isinstance(target, Items):
            target.extend(pairs)
        elif is_made(target, FILLED):
            target.items.extend(pairs)
        else:
            self.note(f"items are put into {what(target)}")

    def dictionary(self) -> None:
        """Make a dict of everything down to the last mark."""
        flat = self.since_mark()
        self.stack.append(Items())
        self.put(flat)

    # -- single steps -----------------------------------------------------------------------------------------------

    def step_mark(self) -> None:
        """Set a mark."""
        self.below.append(self.stack)
        self.stack = []

    def step_pop(self) -> None:
        """Drop a value, or a mark."""
        if self.stack:
            self.stack.pop()
        else:
            self.since_mark()

    def step_drop(self) -> None:
        """Drop everything down to the last mark."""
        self.since_mark()

    def step_get(self, index: int) -> None:
        """Fetch what was kept."""
        self.stack.append(self.memo[index])

    def step_keep(self, index: int) -> None:
        """Keep a value."""
        self.memo[index] = self.stack[-1]

    def step_tuple(self, size: int) -> None:
        """Make a short tuple."""
        if len(self.stack) < size:
            raise IndexError
        values = self.stack[-size:]
        del self.stack[-size:]
        self.collect(tuple, values)

    def step_stop(self) -> None:
        """Come to the end."""
        self.use([self.stack[-1]])
        raise _Stop


def what(value: Any) -> str:
    """
    Say what a value is.

    :param value: The value
    :return: What the user reads
    """
    if isinstance(value, Name):
        return str(value)
    if isinstance(value, Made):
        return f"what {value.maker} gives" if value.maker is not None else "something unknown"
    return f"a {type(value).__name__}"
