"""What is in a pickled buffer, in words."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

from sb3_extra_buffers.cli.formatting import format_bytes
from sb3_extra_buffers.cli.inspect_file.pickles import Contents, Made, Name

# Packages whose classes a saved buffer is made of.
_WHOLE_PACKAGES = ("gymnasium.spaces.", "stable_baselines3.", "sb3_contrib.", "sb3_extra_buffers.")
_SINGLE_NAMES = {
    "torch": {"device"},
    "numpy": {"dtype", "ndarray"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.random._pickle": {"__generator_ctor", "__bit_generator_ctor"},
    "numpy.random._pcg64": {"PCG64"},
    "numpy.random.bit_generator": {"SeedSequence", "__pyx_unpickle_SeedSequence"},
    "collections": {"OrderedDict", "deque", "defaultdict"},
    "copyreg": {"_reconstructor", "__newobj__"},
    "_codecs": {"encode"},
    "builtins": {
        "set",
        "frozenset",
        "bytes",
        "bytearray",
        "slice",
        "range",
        "complex",
        "object",
        "list",
        "dict",
        "tuple",
        "getattr",
    },
}
# What BufferStatsCallback leaves in a buffer that is saved while it watches.
_OWN_METHODS = {"add", "sample", "get"}
_COUNTS = ("buffer_size", "n_envs", "pos", "full")


def foreign_names(contents: Contents) -> list[str]:
    """
    Find the code that a saved buffer has no need of.

    :param contents: What is in the file
    :return: Names of functions and classes that loading the file would call
    """
    found = []
    for name in contents.names:
        known = str(name).startswith(_WHOLE_PACKAGES) or name.name in _SINGLE_NAMES.get(name.module, ())
        if not known:
            found.append(str(name))
    for name, args in contents.calls:
        if name.name == "getattr" and not (len(args) == 2 and args[0] is contents.root and args[1] in _OWN_METHODS):
            found.append("builtins.getattr")
    return sorted(set(found))


def dtype_name(value: Any) -> str:
    """
    Name the type of elements.

    :param value: What the file says of it
    :return: For example ``"uint8"``
    """
    if isinstance(value, Made) and value.args and isinstance(value.args[0], str):
        code = value.args[0]
        if re.fullmatch(r"[biufcmMSUV?][0-9]*", code):
            import numpy as np

            return np.dtype(code).name
    if isinstance(value, Made) and isinstance(value.kind, Name) and value.kind.module == "numpy.dtypes":
        return value.kind.name
    return "objects"


def array_facts(value: Any) -> tuple[tuple[int, ...], str, int] | None:
    """
    Tell what an array is like.

    :param value: What the file says of it
    :return: Shape, type of elements and bytes; None if it is no array
    """
    if not isinstance(value, Made) or not isinstance(value.maker, Name):
        return None
    shape: Any
    if value.maker.name == "_frombuffer" and len(value.args) >= 3:
        kind, shape = value.args[1], value.args[2]
    elif value.maker.name == "_reconstruct" and isinstance(value.state, tuple) and len(value.state) == 5:
        shape, kind = value.state[1], value.state[2]
    else:
        return None
    if not isinstance(shape, tuple) or not all(isinstance(part, int) for part in shape):
        return None
    name = dtype_name(kind)
    match = re.search(r"(\d+)$", name)
    item = int(match[1]) // 8 if match else 1
    return shape, name, math.prod(shape) * item


def _whole(value: Any) -> Any:
    """An integer that NumPy wrapped."""
    if isinstance(value, Made) and isinstance(value.maker, Name) and value.maker.name == "scalar" and len(value.args) == 2:
        data = value.args[1]
        if isinstance(data, Made) and str(data.maker) == "_codecs.encode" and isinstance(data.args[0], str):
            data = data.args[0].encode("latin1", errors="replace")  # how old protocols write bytes
        if isinstance(data, bytes):
            return int.from_bytes(data, "little", signed=True)
    return value


def describe_space(value: Any) -> str:
    """
    Write out a space.

    :param value: What the file says of it
    :return: For example ``"Box (4, 84, 84) uint8"``
    """
    if not isinstance(value, Made) or value.kind is None:
        return "unknown"
    attributes = value.attributes
    if value.kind.name == "Dict":
        parts = attributes.get("spaces")
        items: dict[Any, Any] = parts if isinstance(parts, dict) else getattr(parts, "items", None) or {}
        return "Dict " + ", ".join(f"{key}: {describe_space(part)}" for key, part in list(items.items())[:20])
    if value.kind.name == "Discrete":
        return f"Discrete {_whole(attributes.get('n'))}"
    shape = attributes.get("_shape")
    return f"{value.kind.name} {shape if isinstance(shape, tuple) else ''} {dtype_name(attributes.get('dtype'))}"


def _walk(value: Any) -> Iterator[Made]:
    """Everything that would have been made, once each; a file may refer to itself."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        here = waiting.pop()
        if id(here) in seen:
            continue
        seen.add(id(here))
        if isinstance(here, Made):
            yield here
            waiting += [*here.args, *here.kwargs.values(), here.state, *here.items.values(), *here.elements]
        elif isinstance(here, dict):
            waiting += here.values()
        elif isinstance(here, list | tuple | set | frozenset):
            waiting += here


def _short(value: Any) -> str | None:
    value = _whole(value)
    if isinstance(value, bool | int | float | str):
        text = str(value)
        return text if len(text) <= 60 else None
    return None


def is_buffer(contents: Contents) -> bool:
    """
    Tell whether a file holds a buffer.

    :param contents: What is in the file
    :return: Whether loading it would give one
    """
    root = contents.root
    return isinstance(root, Made) and root.kind is not None and "buffer_size" in root.attributes


def _held(attributes: dict[str, Any]) -> dict[str, int] | None:
    numbers = {name: _whole(attributes.get(name)) for name in _COUNTS}
    if not all(isinstance(number, int) for number in numbers.values()):
        return None
    rows = numbers["buffer_size"] if numbers["full"] else numbers["pos"]
    n_envs = numbers["n_envs"]
    return {"transitions": rows * n_envs, "capacity": numbers["buffer_size"] * n_envs, "n_envs": n_envs}


def _methods(root: Any) -> list[str]:
    return sorted(
        {
            str(made.attributes["method"])
            for made in _walk(root)
            if made.kind is not None and made.kind.name == "CoderSpec" and isinstance(made.attributes.get("method"), str)
        }
    )


def buffer_facts(contents: Contents) -> dict[str, Any]:
    """
    Say what is in a pickled buffer, for programs.

    :param contents: What is in the file
    :return: What JSON can hold
    """
    attributes = contents.root.attributes
    spaces = {name: describe_space(attributes[name]) for name in ("observation_space", "action_space") if name in attributes}
    return {
        "class": str(contents.root.kind),
        **(_held(attributes) or {}),
        **spaces,
        "compression": _methods(contents.root),
    }


def describe_buffer(contents: Contents, file_bytes: int) -> list[tuple[str, str]]:
    """
    Say what is in a pickled buffer.

    :param contents: What is in the file
    :param file_bytes: Size of the file
    :return: Pairs of a title and what there is to say
    """
    root = contents.root
    attributes = root.attributes
    lines = [("class", str(root.kind)), ("file", format_bytes(file_bytes))]
    if (held := _held(attributes)) is not None:
        envs = f"{held['n_envs']} environment{'' if held['n_envs'] == 1 else 's'}"
        lines.append(("transitions", f"{held['transitions']:,} of {held['capacity']:,} ({envs})"))
    for name in ("observation_space", "action_space"):
        if name in attributes:
            lines.append((name.replace("_", " "), describe_space(attributes[name])))
    if methods := _methods(root):
        lines.append(("compression", ", ".join(methods)))
    for name, value in attributes.items():
        if name.startswith("_") or name in _COUNTS:
            continue
        parts = value.items() if isinstance(value, dict) else [(None, value)]
        for key, part in parts:
            title = name if key is None else f"{name}[{key!r}]"
            if (facts := array_facts(part)) is not None:
                shape, kind, size = facts
                lines.append((title, f"{kind} {shape}, {format_bytes(size)}"))
            elif isinstance(part, Made) and part.kind is not None and part.kind.name == "CompressedArray":
                lead, rest = part.attributes.get("_lead"), part.attributes.get("obs_shape")
                if isinstance(lead, tuple) and isinstance(rest, tuple):
                    lines.append((title, f"{dtype_name(part.attributes.get('dtype'))} {lead + rest}, compressed"))
            elif key is None and (text := _short(value)) is not None:
                lines.append((name, text))
    return lines
