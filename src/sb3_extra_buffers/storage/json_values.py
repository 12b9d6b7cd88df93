"""Plain values as JSON, exactly: what comes back has the same type and the same bytes. Nothing else can come back."""

from __future__ import annotations

import base64
import math
import re
from typing import Any

import numpy as np

from sb3_extra_buffers.storage.errors import StorageError

_KINDS = "biufcmMSU"
_DTYPE = re.compile(r"[<>|][a-zA-Z][0-9]{1,6}(\[[0-9]{0,4}[a-zA-Z]{1,2}\])?", re.ASCII)


def to_json(value: Any, what: str = "the value") -> Any:
    """Describe a value."""
    try:
        return _describe(value, what)
    except RecursionError:
        raise TypeError(f"{what} contains itself, or is nested too deeply to be saved to a file") from None


def _describe(value: Any, what: str) -> Any:
    cls = type(value)
    if value is None or cls in (bool, int, str) or (cls is float and math.isfinite(value)):
        return value
    if cls is float:
        return {"float": str(value)}
    if cls is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if cls is list:
        return [_describe(part, what) for part in value]
    if cls is tuple:
        return {"tuple": [_describe(part, what) for part in value]}
    if cls is dict:
        return {"dict": [[_describe(key, what), _describe(part, what)] for key, part in value.items()]}
    if isinstance(value, np.dtype) or (isinstance(value, type) and issubclass(value, np.generic)):
        dtype = np.dtype(value)
        if dtype.kind in _KINDS and np.dtype(dtype.str) == dtype:
            return {"dtype" if isinstance(value, np.dtype) else "type": dtype.str}
    if (cls is np.ndarray or isinstance(value, np.generic)) and value.dtype.kind in _KINDS:
        data = base64.b64encode(value.tobytes()).decode()
        return {"array" if cls is np.ndarray else "number": [value.dtype.str, list(value.shape), data]}
    raise TypeError(
        f"{what} is or contains {_shortened(value)}, of class {cls.__name__}, which cannot be saved to a file: files hold "
        "numbers, strings, lists, dicts and arrays of numbers, and nothing that would have to run code. Leave it out, or save "
        "the buffer with save_replay_buffer() or pickle"
    )


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def from_json(said: Any) -> Any:
    """Make a value of its description."""
    try:
        return _make(said)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, SyntaxError) as error:
        raise StorageError(f"a saved value is damaged: {error}; load another copy") from error


def _make(said: Any) -> Any:
    if said is None or isinstance(said, (bool, int, float, str)):
        return said
    if isinstance(said, list):
        return [_make(part) for part in said]
    (kind, inner), *more = said.items()
    if more:
        raise ValueError(f"{list(said)} is not a kind of value")
    match kind:
        case "float" if inner in ("nan", "inf", "-inf"):
            return float(inner)
        case "bytes":
            return base64.b64decode(inner, validate=True)
        case "tuple" if isinstance(inner, list):
            return tuple([_make(part) for part in inner])
        case "dict" if isinstance(inner, list):
            return {_make(key): _make(part) for key, part in inner}
        case "dtype" | "type":
            dtype = make_dtype(inner)
            return dtype if kind == "dtype" else dtype.type
        case "array" | "number":
            dtype, shape, data = inner
            array = np.frombuffer(base64.b64decode(data, validate=True), make_dtype(dtype)).reshape(make_shape(shape))
            return array.copy() if kind == "array" else array[()]
    raise ValueError(f"{kind!r} is not a kind of value")


def make_dtype(said: Any) -> np.dtype[Any]:
    """Make a type of its name."""
    if isinstance(said, str) and _DTYPE.fullmatch(said):  # NumPy would take much else, and have Python parse it
        dtype = np.dtype(said)
        if dtype.kind in _KINDS and dtype.str == said:
            return dtype
    raise ValueError(f"{said!r} is not a type of numbers")


def make_shape(said: Any) -> tuple[int, ...]:
    """Make a shape of a list."""
    if not isinstance(said, list) or len(said) > 32 or not all(type(size) is int and 0 <= size < 1 << 48 for size in said):
        raise ValueError(f"{said!r} is not a shape")
    return tuple(said)
