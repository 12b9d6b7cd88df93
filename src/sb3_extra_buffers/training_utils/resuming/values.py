"""
What a checkpoint holds beside the model and the buffer, as JSON: plain values, and what objects held.

Reading makes nothing but numbers, texts, arrays and containers of them, whatever a file says.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from sb3_extra_buffers.storage import StorageError
from sb3_extra_buffers.storage.json_values import from_json, to_json

_FEWEST_TO_PACK = 32  # shorter lists of numbers are easier to read as a list


class UnsavableError(TypeError):
    """A value that cannot be written without pickle."""


@dataclass(frozen=True)
class Captured:
    """
    What an object held: never made into an object again, only put back into one that is there.

    :param kind: The name of its class
    :param state: Its attributes, or whatever else it consists of
    """

    kind: str
    state: Any


class _Keep:
    """Stands for what a program makes again by itself, such as a function."""

    def __reduce__(self) -> str:
        return "KEEP"  # one object in every process: it is recognised by its identity


KEEP = _Keep()


def _node(value: Any) -> Any:
    cls = type(value)
    if cls is list:
        kinds = {type(part) for part in value} if len(value) >= _FEWEST_TO_PACK else set()
        if kinds == {float} or kinds == {bool} or (kinds == {int} and max(map(abs, value)) < 2**62):
            return {"numbers": to_json(np.array(value))}
        return [_node(part) for part in value]
    if cls in (tuple, set, frozenset):
        return {cls.__name__: [_node(part) for part in value]}
    if cls is deque:
        return {"deque": [_node(part) for part in value], "maxlen": value.maxlen}
    if cls is dict:
        return {"dict": [[_node(key), _node(part)] for key, part in value.items()]}
    if cls is Captured:
        return {"object": value.kind, "state": _node(value.state)}
    if cls is complex:
        return {"complex": [to_json(value.real), to_json(value.imag)]}
    if value is KEEP:
        return {"keep": None}
    return to_json(value)


def _value(node: Any) -> Any:
    if isinstance(node, list):
        return [_value(part) for part in node]
    if not isinstance(node, dict):
        return node
    kind = next(iter(node))
    inner = node[kind]
    match kind:
        case "numbers":
            return from_json(inner).tolist()
        case "tuple":
            return tuple([_value(part) for part in inner])
        case "set" | "frozenset":
            parts = [_value(part) for part in inner]
            return set(parts) if kind == "set" else frozenset(parts)
        case "deque":
            return deque([_value(part) for part in inner], maxlen=node["maxlen"])
        case "dict":
            return {_value(key): _value(part) for key, part in inner}
        case "object":
            return Captured(str(inner), _value(node["state"]))
        case "complex":
            return complex(*[from_json(part) for part in inner])
        case "keep":
            return KEEP
    return from_json(node)


def values_to_bytes(value: Any) -> bytes:
    """
    Write a value.

    :param value: What ``capture`` has returned
    :return: Bytes for ``values_from_bytes``
    """
    return json.dumps(_node(value), separators=(",", ":"), allow_nan=False).encode()


def values_from_bytes(data: bytes) -> Any:
    """
    Read a value.

    :param data: What ``values_to_bytes`` has returned; a file may hold anything instead
    :return: The value
    """
    try:
        return _value(json.loads(data))
    except (ValueError, KeyError, IndexError, TypeError, StopIteration, AttributeError, RecursionError) as error:
        raise StorageError(f"saved values are damaged ({error!r})") from error
