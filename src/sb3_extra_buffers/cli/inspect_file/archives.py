"""
What is in a zip file: a recording, a model that SB3 saved, or what PyTorch saved.

SB3 writes parameters as JSON in which whatever is not JSON is a pickle, and PyTorch writes tensors as a zip file with a pickle
in it. Loading a model loads them all, so all are looked into.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import zipfile
import zlib
from collections import Counter
from typing import Any

from sb3_extra_buffers.cli.inspect_file.describe import SPACES, describe_number, describe_space, what_it_holds
from sb3_extra_buffers.cli.inspect_file.machine import Budget
from sb3_extra_buffers.cli.inspect_file.pickles import Contents, read_source
from sb3_extra_buffers.cli.inspect_file.values import Made, Name, source_of

# What the standard library says about a zip file that is damaged, or that uses what nobody uses here, such as encryption.
DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, NotImplementedError, struct.error)
_LARGEST_GROWTH = 64 << 20
_CLASS_KEYS = ("policy_class", "replay_buffer_class", "rollout_buffer_class")
_NUMBER_KEYS = ("num_timesteps", "n_envs", "buffer_size", "learning_rate", "gamma", "seed")


class Archive:
    """
    A zip file, with everything in it that would be unpickled.

    :param zip_file: The file
    :param file_bytes: Its size
    :param budget: How much may be done, if it is inside of another
    """

    def __init__(self, zip_file: zipfile.ZipFile, file_bytes: int, budget: Budget | None = None) -> None:
        self.zip_file = zip_file
        self.file_bytes = file_bytes
        self.names = zip_file.namelist()
        self.foreign: dict[str, None] = {}
        self.pickles = [name for name in self.names if name.lower().endswith(".pkl")]
        self.tensors = [name for name in self.names if name.endswith(".pth")]
        self.budget = budget or Budget()
        # SB3 and PyTorch compress nothing: what grows by more than this is made to fill the memory.
        self._left = file_bytes + _LARGEST_GROWTH
        # To PyTorch, capital letters are the same as small ones.
        counts = Counter(name.lower() for name in self.names)
        self.foreign.update((f"two parts called {name}", None) for name, count in counts.items() if count > 1)

    @property
    def kind(self) -> str:
        """What it is, as far as its parts tell."""
        if "data" in self.names or self.tensors:
            return "a model that SB3 saved"
        return "a file of PyTorch" if self.pickles else "a zip file that is neither a recording nor a model"

    def read(self, name: str) -> bytes:
        """
        Read a part.

        :param name: The part
        :return: What is in it
        """
        with self.zip_file.open(name) as part:
            data = part.read(self._left + 1)
        self._left -= len(data)
        if self._left < 0:
            raise ValueError(f"{name} is far larger than the file")
        return data

    def note(self, name: str, contents: Contents) -> None:
        """
        Note what a pickle does that it has no need to do.

        :param name: Where it is
        :param contents: What is in it
        """
        self.foreign.update((f"{what}, in {name}", None) for what in contents.foreign)
        if contents.damage is not None:
            self.foreign[f"{name}, which cannot be read without loading it ({contents.damage})"] = None

    def check_torch(self) -> None:
        """Look into the pickles that PyTorch wrote, if there are any."""
        # What comes before the first part could be another list of parts, which PyTorch would go by.
        if self.pickles and all(info.header_offset > 0 for info in self.zip_file.infolist()):
            self.foreign["a zip file that does not begin with its first part"] = None
        for name in self.pickles:
            self.note(name, read_source(source_of(self.read(name)), True, self.budget))
            if name.lower().endswith("constants.pkl"):
                self.foreign["a program in TorchScript"] = None

    def check_tensors(self) -> None:
        """Look into the files of PyTorch that are in this one."""
        for name in self.tensors:
            try:
                data = self.read(name)
                if data[:4] != b"PK\x03\x04":  # by which PyTorch tells
                    raise ValueError("not as PyTorch writes it today")
                with zipfile.ZipFile(io.BytesIO(data)) as inner:
                    tensors = Archive(inner, len(data), self.budget)
                    tensors.check_torch()
            except DAMAGES as error:
                self.foreign[f"{name}, which cannot be read without loading it ({error})"] = None
            else:
                self.foreign.update((f"{what} of {name}", None) for what in tensors.foreign)

    def parameters(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """
        Read the parameters of a model.

        :return: What is JSON, and what would have been made of the pickles
        """
        data = json.loads(self.read("data").decode())
        if not isinstance(data, dict):
            raise ValueError("its parameters have no names")
        made: dict[str, Any] = {}
        for key, value in data.items():
            if isinstance(value, dict) and ":serialized:" in value:
                try:
                    contents = read_source(source_of(base64.b64decode(value[":serialized:"].encode())), budget=self.budget)
                except (AttributeError, ValueError) as error:
                    self.foreign[f"{key}, which cannot be read without loading it ({error})"] = None
                    continue
                self.note(key, contents)
                made[key] = contents.root
        return data, made


def describe_archive(archive: Archive) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    """
    Describe a zip file, and look into everything in it that would be unpickled.

    :param archive: The file
    :return: Pairs of a title and a text, and the same for programs
    """
    archive.check_torch()
    archive.check_tensors()
    if "data" in archive.names:
        return _describe_model(*archive.parameters())
    holds = archive.names[:10]
    return [("holds", ", ".join(holds))], {"holds": holds}


def _describe_model(data: dict[str, Any], made: dict[str, Any]) -> tuple[list[tuple[str, str]], dict[str, Any]]:
    facts: dict[str, Any] = {}
    for key in (*_CLASS_KEYS, *SPACES):
        if key in made:
            facts[key] = describe_space(made[key]) if key in SPACES else _class_name(made[key])
    lines = [(key.replace("_", " "), text) for key, text in facts.items()]
    for key in _NUMBER_KEYS:
        if (text := describe_number(data.get(key))) is not None:
            facts[key] = data[key]
            lines.append((key, text))
    return lines, facts


def _class_name(root: Any) -> str:
    # A class that is saved as code: cloudpickle gives its name beside what it is made of.
    if isinstance(root, Made) and str(root.maker) == "cloudpickle.cloudpickle._make_skeleton_class" and len(root.args) > 1:
        return f"{root.args[1]} (its code is in the file)" if isinstance(root.args[1], str) else "a class in the file"
    return str(root) if isinstance(root, Name) else what_it_holds(root)
