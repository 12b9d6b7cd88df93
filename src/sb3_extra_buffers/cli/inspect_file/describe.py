"""What is in a pickled buffer, in words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np

from sb3_extra_buffers.cli.formatting import counted, format_bytes
from sb3_extra_buffers.cli.inspect_file.printing import number
from sb3_extra_buffers.cli.inspect_file.values import Items, Made, Name

SPACES: tuple[str, ...] = ("observation_space", "action_space")
_COUNTS = ("buffer_size", "n_envs", "pos", "full")
_LARGEST_COUNT = 1 << 48
_MOST_DIMENSIONS = 64  # NumPy allows no more
_MOST_PARTS = 20  # of a space that are written out, whatever is inside of what
_MOST_SHOWN = 100
_MOST_WALKED = 1_000_000


def _dtype(value: Any) -> np.dtype[Any] | None:
    code = value.args[0] if isinstance(value, Made) and value.args else value
    if not isinstance(code, str) or re.fullmatch(r"[<>|]?[biufcmMSUV?][0-9]{0,9}", code) is None:
        return None
    try:
        return np.dtype(code)
    except (TypeError, ValueError):
        return None


def dtype_name(value: Any) -> str:
    """
    Name the type of elements.

    :param value: What the file says of it
    :return: For example ``"uint8"``
    """
    dtype = _dtype(value)
    return "objects" if dtype is None else dtype.name


def _shape(value: Any) -> tuple[int, ...] | None:
    """A shape, if it is one that an array can have."""
    if not isinstance(value, tuple) or len(value) > _MOST_DIMENSIONS:
        return None
    return value if all(isinstance(part, int) and 0 <= part < _LARGEST_COUNT for part in value) else None


def array_facts(value: Any) -> tuple[tuple[int, ...], str, int] | None:
    """
    Tell what an array is like.

    :param value: What the file says of it
    :return: Shape, type of elements and bytes; None if it is no array
    """
    if not isinstance(value, Made) or value.maker is None:
        return None
    if value.maker.name == "_frombuffer" and len(value.args) >= 3:
        kind, shape = value.args[1], _shape(value.args[2])
    elif value.maker.name == "restore_array" and len(value.args) == 4:
        kind, shape = value.args[0], _shape(value.args[1])
    elif value.maker.name == "_reconstruct" and isinstance(value.state, tuple) and len(value.state) == 5:
        kind, shape = value.state[2], _shape(value.state[1])
    else:
        return None
    if shape is None:
        return None
    dtype = _dtype(kind)
    return shape, dtype_name(kind), math.prod(shape) * (1 if dtype is None else dtype.itemsize)


def _plain(value: Any) -> Any:
    """A number that NumPy wrapped."""
    if not (isinstance(value, Made) and value.maker is not None and value.maker.name in ("scalar", "restore_array")):
        return value
    if len(value.args) not in (2, 4) or (len(value.args) == 4 and value.args[1] is not None):
        return value
    data, dtype = value.args[-1], _dtype(value.args[0])
    if isinstance(data, Made) and str(data.maker) == "_codecs.encode" and data.args and isinstance(data.args[0], str):
        data = data.args[0].encode("latin1", errors="replace")  # how old protocols write bytes
    if dtype is None or dtype.kind not in "biuf" or not isinstance(data, bytes) or len(data) != dtype.itemsize:
        return value
    return np.frombuffer(data, dtype)[0].item()


def describe_space(value: Any) -> str:
    """
    Write out a space.

    :param value: What the file says of it
    :return: For example ``"Box (4, 84, 84) uint8"``
    """
    left = _MOST_PARTS

    def describe(value: Any, depth: int) -> str:
        nonlocal left
        left -= 1
        if not isinstance(value, Made) or value.maker is None:
            return "unknown"
        name, attributes = value.maker.name, value.attributes
        if left < 0 or depth > _MOST_PARTS:
            return "…"
        if name == "Dict":
            inner = attributes.get("spaces")
            inner = inner.items if isinstance(inner, Made) else inner
            parts = [
                f"{_title(key)}: {describe(part, depth + 1)}"
                for key, part in (inner.pairs if isinstance(inner, Items) else [])
                if left > 0
            ]
            return f"Dict {', '.join(parts)}"
        if name == "Discrete":
            n = _plain(attributes.get("n"))
            return f"Discrete {number(n) if isinstance(n, int) else '?'}"
        shape = _shape(attributes.get("_shape"))
        return f"{name} {'' if shape is None else shape} {dtype_name(attributes.get('dtype'))}"

    return describe(value, 0)


def _walk(value: Any) -> Iterator[Made]:
    """What would have been made, once each; a file may refer to itself."""
    seen: set[int] = set()
    waiting = [value]
    while waiting and len(seen) < _MOST_WALKED:
        here = waiting.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        if isinstance(here, Made):
            yield here
            waiting += [here.args, here.state, here.items, here.elements]
        elif isinstance(here, Items):
            waiting += (part for _, part in here.pairs)
        elif isinstance(here, list | tuple):
            waiting += here


def _title(value: Any) -> str:
    if isinstance(value, str):
        return value
    return number(value) if isinstance(value, int) else f"({type(value).__name__})"


def describe_number(value: Any) -> str | None:
    """
    Write a number.

    :param value: The value
    :return: Its text; None if it is no number
    """
    if isinstance(value, int) and value.bit_length() > 64:
        return number(value)
    return str(value) if isinstance(value, int | float) else None


def _short(value: Any) -> str | None:
    value = _plain(value)
    if isinstance(value, str):
        return value if len(value) <= 60 else None
    return describe_number(value)


def what_it_holds(root: Any) -> str:
    """
    Say what loading a file would give.

    :param root: What would have been made
    :return: A class, or a type
    """
    if isinstance(root, Name):
        return str(root)
    if isinstance(root, Made):
        return "something unknown" if root.maker is None else str(root.maker)
    return {"Items": "dict", "Elements": "set", "Skipped": "bytes"}.get(type(root).__name__, type(root).__name__)


def is_buffer(root: Any) -> bool:
    """
    Tell whether a file holds a buffer.

    :param root: What loading it would give
    :return: Whether that is one
    """
    return isinstance(root, Made) and root.maker is not None and "buffer_size" in root.attributes


def _held(attributes: dict[str, Any]) -> dict[str, int] | None:
    numbers = {name: _plain(attributes.get(name)) for name in _COUNTS}
    if not all(isinstance(value, int) and 0 <= value < _LARGEST_COUNT for value in numbers.values()):
        return None
    rows = numbers["buffer_size"] if numbers["full"] else numbers["pos"]
    n_envs = numbers["n_envs"]
    return {"transitions": rows * n_envs, "capacity": numbers["buffer_size"] * n_envs, "n_envs": n_envs}


def _methods(root: Any) -> list[str]:
    specs = (made for made in _walk(root) if made.maker is not None and made.maker.name == "restore_spec")
    methods = (spec.args[0] for spec in islice(specs, _MOST_SHOWN) if spec.args)
    return sorted({method for method in methods if isinstance(method, str)})


def buffer_facts(root: Made) -> dict[str, Any]:
    """
    Say what is in a pickled buffer, for programs.

    :param root: The buffer
    :return: What JSON can hold
    """
    attributes = root.attributes
    spaces = {name: describe_space(attributes[name]) for name in SPACES if name in attributes}
    return {"class": str(root.maker), **(_held(attributes) or {}), **spaces, "compression": _methods(root)}


def describe_buffer(root: Made, file_bytes: int) -> list[tuple[str, str]]:
    """
    Say what is in a pickled buffer.

    :param root: The buffer
    :param file_bytes: Size of the file
    :return: Pairs of a title and what there is to say
    """
    attributes = root.attributes
    lines = [("class", str(root.maker)), ("file", format_bytes(file_bytes))]
    if (held := _held(attributes)) is not None:
        envs = counted(held["n_envs"], "environment")
        lines.append(("transitions", f"{held['transitions']:,} of {held['capacity']:,} ({envs})"))
    for name in SPACES:
        if name in attributes:
            lines.append((name.replace("_", " "), describe_space(attributes[name])))
    if methods := _methods(root):
        lines.append(("compression", ", ".join(methods)))
    for name, value in (_observations(attributes) | attributes).items():
        if name.startswith("_") or name in _COUNTS:
            continue
        parts = value.pairs if isinstance(value, Items) else [(None, value)]
        for key, part in parts[:_MOST_SHOWN]:
            title = name if key is None else f"{name}[{_title(key)!r}]"
            if (text := _describe_part(part)) is not None:
                lines.append((title, text))
            elif key is None and (text := _short(value)) is not None:
                lines.append((name, text))
    return lines


def _observations(attributes: dict[str, Any]) -> dict[str, Any]:
    """Those of a compressed buffer, by the names that they have once it is loaded."""
    found: dict[str, Any] = {}
    for part in (attributes.get("_frames"), attributes.get("_small")):
        for key, value in part.pairs if isinstance(part, Items) else ():
            if isinstance(value, tuple):
                views = value[:2]
            else:
                is_column = isinstance(value, Made) and len(value.args) > 1 and isinstance(value.args[1], tuple)
                views = (value,) * (value.args[1][2] if is_column and value.args[1][2:3] in ((1,), (2,)) else 1)
            for name, view in zip(("observations", "next_observations"), views, strict=False):
                found.setdefault(name, Items()).extend([(key, view)])
    return found


def _describe_part(part: Any) -> str | None:
    if (facts := array_facts(part)) is not None:
        shape, kind, size = facts
        return f"{kind} {shape}, {format_bytes(size) if size < _LARGEST_COUNT else 'more than there is'}"
    if isinstance(part, Made) and part.maker is not None and part.maker.name == "restore_frames" and len(part.args) > 3:
        lead, rest = _shape(part.args[1]), _shape(part.args[2])
        if lead is not None and rest is not None:
            return f"{dtype_name(part.args[3])} {lead[:2] + rest}, compressed"
    return None
