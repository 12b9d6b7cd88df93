"""What is in a file: a pickle, a recording, transitions as npz, a model that SB3 saved, or what PyTorch saved."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import struct
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sb3_extra_buffers._support import counted, format_bytes
from sb3_extra_buffers.cli.errors import UsageError
from sb3_extra_buffers.cli.inspect.pickles import Contents, Items, Made, Name, Skipped, budget, read_file, read_pickle
from sb3_extra_buffers.cli.inspect.text import Description, for_json, number, space_text

_SPACES = ("observation_space", "action_space")
_COUNTS = ("buffer_size", "n_envs", "pos", "full")
_LARGEST_COUNT = 1 << 48
_MOST_DIMENSIONS = 64  # NumPy allows no more
_MOST_SHOWN = 100
_MOST_WALKED = 1_000_000
_LARGEST_GROWTH = 64 << 20
_CLASS_KEYS = ("policy_class", "replay_buffer_class", "rollout_buffer_class")
_NUMBER_KEYS = ("num_timesteps", "n_envs", "buffer_size", "learning_rate", "gamma", "seed")
# What the standard library says about a zip file that is damaged, or that uses encryption and the like.
_DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError, struct.error)


def describe_file(path: Path) -> Description:
    """Describe a file."""
    with open(path, "rb") as file:
        beginning = file.read(2)
    if not beginning:
        raise UsageError(f"{path} is empty")
    # Pickles are read from their beginning and zip files from their end, so one file can be both. What it begins as decides:
    # no pickle begins with PK, which would ask for something outside of the file.
    return _zip_file(path) if beginning == b"PK" else _pickle(path)


# -- pickles ---------------------------------------------------------------------------------------------------------------


def _pickle(path: Path) -> Description:
    contents, file_bytes = read_file(path), path.stat().st_size
    root, foreign = contents.root, contents.foreign
    if contents.damage is not None:
        if not foreign:
            raise UsageError(f"{path} is not a recording, a pickle or a saved model, or it is damaged: {contents.damage}")
        lines = [("file", format_bytes(file_bytes)), ("damage", contents.damage)]
        return Description("a damaged pickle", lines, {"damage": contents.damage}, foreign)
    if contents.unread:
        foreign.append(f"{format_bytes(contents.unread)} after the end of the pickle, which were not looked at")
    if isinstance(root, Made) and root.maker is not None and "buffer_size" in root.attributes:
        facts, lines = _buffer(root)
        return Description("a pickled buffer", [lines[0], ("file", format_bytes(file_bytes)), *lines[1:]], facts, foreign)
    holds = _class_of(root)
    return Description(
        "a pickle, but no buffer", [("holds", holds), ("file", format_bytes(file_bytes))], {"holds": holds}, foreign
    )


def _class_of(root: Any) -> str:
    if isinstance(root, Made):
        # A class that is saved as code: cloudpickle gives its name beside what it is made of.
        if str(root.maker) == "cloudpickle.cloudpickle._make_skeleton_class" and len(root.args) > 1:
            return f"{root.args[1]} (its code is in the file)" if isinstance(root.args[1], str) else "a class in the file"
        return "something unknown" if root.maker is None else str(root.maker)
    return str(root) if isinstance(root, Name) else {Items: "dict", Skipped: "bytes"}.get(type(root), type(root).__name__)


def _buffer(root: Made) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """A pickled buffer, for programs and for people."""
    attributes = root.attributes
    facts: dict[str, Any] = {"class": str(root.maker)}
    lines = [("class", str(root.maker))]
    counts = {name: _plain(attributes.get(name)) for name in _COUNTS}
    if all(isinstance(value, int) and 0 <= value < _LARGEST_COUNT for value in counts.values()):
        n_envs, rows = counts["n_envs"], counts["buffer_size"] if counts["full"] else counts["pos"]
        facts |= {"transitions": rows * n_envs, "capacity": counts["buffer_size"] * n_envs, "n_envs": n_envs}
        lines.append(("transitions", f"{rows * n_envs:,} of {facts['capacity']:,} ({counted(n_envs, 'environment')})"))
    for name in _SPACES:
        if name in attributes:
            facts[name] = space_text(attributes[name], _part_of_space)
            lines.append((name.replace("_", " "), facts[name]))
    specs = [made.args[0] for made in _walk(root) if str(made.maker).endswith(".restore_spec") and made.args]
    facts["compression"] = sorted({method for method in specs[:_MOST_SHOWN] if isinstance(method, str)})
    if facts["compression"]:
        lines.append(("compression", ", ".join(facts["compression"])))
    for name, value in (_observations(attributes) | attributes).items():
        if name.startswith("_") or name in _COUNTS:
            continue
        for key, part in (value.pairs if isinstance(value, Items) else [(None, value)])[:_MOST_SHOWN]:
            if (text := _array_text(part)) is not None:
                lines.append((name if key is None else f"{name}[{_title(key)!r}]", text))
            elif key is None and (text := _short(_plain(value))) is not None:
                lines.append((name, text))
    return facts, lines


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


def _dtype(value: Any) -> np.dtype[Any] | None:
    code = value.args[0] if isinstance(value, Made) and value.args else value
    if not isinstance(code, str) or re.fullmatch(r"[<>|]?[biufcmMSUV?][0-9]{0,9}", code) is None:
        return None
    try:
        return np.dtype(code)
    except (TypeError, ValueError):
        return None


def _dtype_name(value: Any) -> str:
    dtype = _dtype(value)
    return "objects" if dtype is None else dtype.name


def _shape(value: Any) -> tuple[int, ...] | None:
    if not isinstance(value, tuple) or len(value) > _MOST_DIMENSIONS:
        return None
    return value if all(isinstance(part, int) and 0 <= part < _LARGEST_COUNT for part in value) else None


def _array_text(value: Any) -> str | None:
    """An array in words; None if it is none."""
    if not isinstance(value, Made) or value.maker is None:
        return None
    name, args, state = value.maker.name, value.args, value.state
    if name == "restore_frames" and len(args) > 3:
        lead, rest = _shape(args[1]), _shape(args[2])
        return None if lead is None or rest is None else f"{_dtype_name(args[3])} {lead[:2] + rest}, compressed"
    if name == "_frombuffer" and len(args) >= 3:
        kind, shape = args[1], _shape(args[2])
    elif name == "restore_array" and len(args) == 4:
        kind, shape = args[0], _shape(args[1])
    elif name == "_reconstruct" and isinstance(state, tuple) and len(state) == 5:
        kind, shape = state[2], _shape(state[1])
    else:
        return None
    if shape is None:
        return None
    dtype = _dtype(kind)
    size = math.prod(shape) * (1 if dtype is None else dtype.itemsize)
    return f"{_dtype_name(kind)} {shape}, {format_bytes(size) if size < _LARGEST_COUNT else 'more than there is'}"


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


def _part_of_space(value: Any) -> tuple[str, Any]:
    if not isinstance(value, Made) or value.maker is None:
        return "unknown", ""
    name, attributes = value.maker.name, value.attributes
    if name == "Dict":
        inner = attributes.get("spaces")
        inner = inner.items if isinstance(inner, Made) else inner
        pairs = inner.pairs[:_MOST_SHOWN] if isinstance(inner, Items) else []
        return "Dict", [(_title(key), part) for key, part in pairs]
    if name == "Discrete":
        n = _plain(attributes.get("n"))
        return "Discrete", number(n) if isinstance(n, int) else "?"
    shape = _shape(attributes.get("_shape"))
    return name, f"{'' if shape is None else shape} {_dtype_name(attributes.get('dtype'))}"


def _title(value: Any) -> str:
    return value if isinstance(value, str) else number(value) if isinstance(value, int) else f"({type(value).__name__})"


def _short(value: Any) -> str | None:
    """A value that fits into a line."""
    if isinstance(value, int) and value.bit_length() > 64:
        return number(value)
    if isinstance(value, str):
        return value if len(value) <= 60 else None
    return str(value) if isinstance(value, int | float) else None


# -- zip files -------------------------------------------------------------------------------------------------------------


def _zip_file(path: Path) -> Description:
    file_bytes = path.stat().st_size
    try:
        zip_file = zipfile.ZipFile(path)
    except _DAMAGES as error:
        raise UsageError(
            f"{path} begins like a recording or a saved model, but it is damaged, or its end is missing ({error}); copy or "
            "download it again"
        ) from error
    with zip_file:
        archive = _Archive(zip_file, file_bytes, budget())
        try:
            # Looked into whatever it is: what calls itself a recording could be loaded as a model, too.
            kind, lines, facts = archive.describe()
        except _DAMAGES as error:
            if not archive.foreign:
                raise UsageError(f"{path} looks like {archive.kind()}, but is damaged: {error}") from error
            kind, lines, facts = archive.kind(), [("damage", str(error))], {"damage": str(error)}
        if "header.json" in archive.names and not archive.foreign:
            return _recording(path)
    return Description(kind, [("file", format_bytes(file_bytes)), *lines], facts, list(archive.foreign))


class _Archive:
    """
    A zip file, with everything in it that would be unpickled.

    SB3 writes parameters as JSON in which whatever is not JSON is a pickle, and PyTorch writes tensors as a zip file with a
    pickle in it. Loading a model loads them all, so all are looked into.
    """

    def __init__(self, zip_file: zipfile.ZipFile, file_bytes: int, steps: Iterator[int]) -> None:
        self.zip_file, self.steps = zip_file, steps
        self.names = zip_file.namelist()
        self.pickles = [name for name in self.names if name.lower().endswith(".pkl")]  # PyTorch takes capitals as well
        self.tensors = [name for name in self.names if name.endswith(".pth")]
        # SB3 and PyTorch compress nothing: what grows by more than this is made to fill the memory.
        self._left = file_bytes + _LARGEST_GROWTH
        counts = Counter(name.lower() for name in self.names)
        self.foreign = {f"two parts called {name}": None for name, count in counts.items() if count > 1}

    def kind(self) -> str:
        if "data" in self.names or self.tensors:
            return "a model that SB3 saved"
        if self.names and all(name.endswith(".npy") for name in self.names):
            return "transitions as npz"
        return "a file of PyTorch" if self.pickles else "a zip file that is neither a recording nor a model"

    def describe(self) -> tuple[str, list[tuple[str, str]], dict[str, Any]]:
        self.check_pickles()
        for name in self.tensors:
            self._check_tensors(name)
        kind = self.kind()
        if "data" in self.names:
            return kind, *self._model()
        if kind == "transitions as npz":
            return kind, *self._npz()
        holds = self.names[:10]
        return kind, [("holds", ", ".join(holds))], {"holds": holds}

    def read(self, name: str) -> bytes:
        with self.zip_file.open(name) as part:
            data = part.read(self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"{name} is far larger than the file")
        return data

    def _note(self, name: str, contents: Contents) -> None:
        self.foreign.update((f"{what}, in {name}", None) for what in contents.foreign)
        if contents.damage is not None:
            self.foreign[f"{name}, which cannot be read without loading it ({contents.damage})"] = None

    def check_pickles(self) -> None:
        # What comes before the first part could be another list of parts, which PyTorch would go by.
        if self.pickles and all(info.header_offset > 0 for info in self.zip_file.infolist()):
            self.foreign["a zip file that does not begin with its first part"] = None
        for name in self.pickles:
            self._note(name, read_pickle(io.BytesIO(self.read(name)), True, self.steps))
            if name.lower().endswith("constants.pkl"):
                self.foreign["a program in TorchScript"] = None

    def _check_tensors(self, name: str) -> None:
        try:
            data = self.read(name)
            if data[:4] != b"PK\x03\x04":  # by which PyTorch tells
                raise ValueError("not as PyTorch writes it today")
            with zipfile.ZipFile(io.BytesIO(data)) as inner:
                tensors = _Archive(inner, len(data), self.steps)
                tensors.check_pickles()
            self.foreign.update((f"{what}, in {name}", None) for what in tensors.foreign)
        except _DAMAGES as error:
            self.foreign[f"{name}, which cannot be read without loading it ({error})"] = None

    def _model(self) -> tuple[list[tuple[str, str]], dict[str, Any]]:
        data = json.loads(self.read("data").decode())
        if not isinstance(data, dict):
            raise ValueError("its parameters have no names")
        facts: dict[str, Any] = {}
        for key, value in data.items():
            if not isinstance(value, dict) or ":serialized:" not in value:
                continue
            try:
                contents = read_pickle(io.BytesIO(base64.b64decode(value[":serialized:"].encode())), steps=self.steps)
            except (AttributeError, ValueError) as error:
                self.foreign[f"{key}, which cannot be read without loading it ({error})"] = None
                continue
            self._note(key, contents)
            if key in _CLASS_KEYS:
                facts[key] = _class_of(contents.root)
            elif key in _SPACES:
                facts[key] = space_text(contents.root, _part_of_space)
        facts = {key: facts[key] for key in (*_CLASS_KEYS, *_SPACES) if key in facts}
        lines = [(key.replace("_", " "), text) for key, text in facts.items()]
        for key in _NUMBER_KEYS:
            if isinstance(data.get(key), int | float) and (text := _short(data[key])) is not None:
                facts[key] = data[key]
                lines.append((key, text))
        return lines, facts

    def _npz(self) -> tuple[list[tuple[str, str]], dict[str, Any]]:
        arrays: dict[str, Any] = {}
        lines = []
        for name in self.names:
            key = name.removesuffix(".npy")
            with self.zip_file.open(name) as part:
                version = np.lib.format.read_magic(part)
                read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
                if version not in read_header:
                    raise ValueError(f"{name} has a header of version {version}")
                shape, _, dtype = read_header[version](part)
            if dtype.hasobject:
                self.foreign[f"a pickle of Python objects, in {name}"] = None
            arrays[key] = {"shape": shape, "dtype": str(dtype)}
            lines.append((key, f"{dtype} {shape}"))
        return lines, {"arrays": arrays}


# -- recordings --------------------------------------------------------------------------------------------------------------


def _recording(path: Path) -> Description:
    from sb3_extra_buffers.recording import RecordingError, recording_info

    try:
        info = recording_info(path)
    except RecordingError as error:
        raise UsageError(str(error)) from error
    except (TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise UsageError(f"{path}: its header is damaged: {error}") from error
    sort = {"render": ", as rendered", "observation": ", as the agent sees them"}.get(str(info.metadata.get("frames")), "")
    ratio = f" ({info.raw_bytes / info.file_bytes:,.0f}x smaller than uncompressed)" if info.file_bytes else ""
    lines = [
        ("file", f"{format_bytes(info.file_bytes)}{ratio}"),
        ("buffer", info.kind),
        ("steps", f"{info.steps:,} in {counted(info.episodes, 'episode')}"),
        ("frames", f"{info.frame_dtype} {info.frame_shape}{sort}" if info.frame_shape else "none"),
        ("actions", f"{info.action_dtype} {info.action_shape}" if info.action_shape else str(info.action_dtype)),
    ]
    if info.buffer_size is not None:
        lines.append(("ring of", f"{info.buffer_size:,} steps"))
    lines += [(f"feature {name}", f"{kind} {shape}") for name, (shape, kind) in info.features.items()]
    metadata = for_json(info.metadata)
    for key, value in metadata.items():
        if key != "frames":
            text = json.dumps(value)
            lines.append((key, text if len(text) <= 80 else f"{text[:77]}…"))
    lines.append(("written by", f"sb3-extra-buffers {info.version}"))
    names = ("steps", "episodes", "raw_bytes", "frame_shape", "frame_dtype", "action_shape", "action_dtype", "buffer_size")
    facts = {"buffer": info.kind, **{name: getattr(info, name) for name in names}}
    facts["features"] = {name: {"shape": shape, "dtype": kind} for name, (shape, kind) in info.features.items()}
    return Description("a recording", lines, {**facts, "metadata": metadata, "version": info.version})
