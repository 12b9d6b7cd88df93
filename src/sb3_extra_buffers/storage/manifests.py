"""What the manifest of a saved directory says: which packs there are, and where in them each part is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from sb3_extra_buffers.storage._core import checksum
from sb3_extra_buffers.storage.errors import OtherFormatError, StorageError

FORMAT = 2
"""Version of the directory; chunks have their own."""
MANIFEST = "manifest.json"

_MAGIC = "sb3-extra-buffers"
_PACK = re.compile(r"([0-9]{10})\.pack")
_END = re.compile(rb',"checksum":"([0-9a-f]{8})"\}\n')
_END_BYTES = len(b',"checksum":"00000000"}\n')
MOST_MANIFEST = 1 << 28
"""Bytes that it may have."""


class NotAManifestError(StorageError):
    """A file is no manifest of ours, or the beginning of one is damaged."""


class Part(NamedTuple):
    """Where in the packs some bytes are."""

    pack: str
    offset: int
    size: int
    sum: int


def pack_manifest(body: Mapping[str, Any]) -> bytes:
    """Write a manifest."""
    said = {"magic": _MAGIC, "format": FORMAT, **body}
    text = json.dumps(said, separators=(",", ":"), allow_nan=False).encode()[:-1]
    return text + b',"checksum":"%08x"}\n' % checksum(text)


def unpack_manifest(data: bytes, where: str) -> dict[str, Any]:
    """Read a manifest."""
    if b'"magic":"%s"' % _MAGIC.encode() not in data[:64]:
        raise NotAManifestError(
            f"{where} is not the manifest of a saved buffer, or is damaged; load another copy of the directory"
        )
    end = _END.fullmatch(data[-_END_BYTES:])
    if end is None or int(end[1], 16) != checksum(data[:-_END_BYTES]):
        raise StorageError(f"{where} is damaged: its checksum is wrong; load another copy of the directory")
    try:
        said: Any = json.loads(data, object_pairs_hook=_each_once, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise StorageError(f"{where} is damaged: {error}; load another copy of the directory") from error
    if said.get("format") != FORMAT:
        is_old = said.get("format") in range(FORMAT)
        raise OtherFormatError(
            f"{where} was written by version {said.get('version')} of sb3-extra-buffers, in format {said.get('format')}; this "
            f"version reads format {FORMAT}: "
            + ("use the version that wrote it, or save the buffer again" if is_old else "install a newer one")
        )
    return dict(said)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is there twice")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number")


def check_parts(body: Mapping[str, Any], where: str) -> dict[str, Part]:
    """Find out where everything is: names lead nowhere but into the directory, and numbers are numbers."""
    packs, parts, found = body.get("packs"), body.get("parts"), {}
    if isinstance(packs, list) and isinstance(parts, dict) and all(is_pack(pack) for pack in packs):
        for name, numbers in parts.items():
            if not isinstance(numbers, list) or [type(number) for number in numbers] != [int] * 4 or min(numbers) < 0:
                break
            place, offset, size, expected = numbers
            if place >= len(packs) or max(offset, size) >= 1 << 62 or expected >= 1 << 32:
                break
            found[name] = Part(packs[place], offset, size, expected)
        else:
            if not _overlap(found.values()):
                return found
    raise StorageError(f"{where} is damaged: it does not say what is where; load another copy of the directory")


def _overlap(parts: Iterable[Part]) -> bool:
    """Whether some bytes would be there several times."""
    before = Part("", 0, 0, 0)
    for part in sorted(parts):
        if part.size and part.pack == before.pack and part.offset < before.offset + before.size:
            return True
        before = part if part.size else before
    return False


def is_pack(name: Any) -> bool:
    """Tell packs from other files."""
    return isinstance(name, str) and _PACK.fullmatch(name) is not None
