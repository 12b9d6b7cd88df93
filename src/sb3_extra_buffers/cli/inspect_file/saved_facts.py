"""What the manifest of a saved buffer says, in words. It may say anything, so nothing is made of what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sb3_extra_buffers.cli.formatting import counted, format_bytes
from sb3_extra_buffers.cli.inspect_file.printing import number
from sb3_extra_buffers.storage.json_values import from_json, make_dtype, make_shape

_LARGEST_COUNT = 1 << 48
_MOST_PARTS = 20  # of a space that are written out, whatever is inside of what


def describe_saved_space(said: Any) -> str:
    """
    Write out a space.

    :param said: What the manifest says of it
    :return: For example ``"Box (4, 84, 84) uint8"``; ``ValueError`` and the like where it is none
    """
    left = _MOST_PARTS

    def describe(said: Any) -> str:
        nonlocal left
        left -= 1
        kind = said["type"]
        if left < 0:
            return "…"
        if kind == "Dict":
            parts = [f"{key}: {describe(part)}" for key, part in said["spaces"][: _MOST_PARTS + 1] if left > 0]
            return f"Dict {', '.join(parts)}"
        if kind == "Box":
            return f"Box {make_shape(said['shape'])} {make_dtype(said['dtype']).name}"
        if kind in ("Discrete", "MultiBinary"):
            n = from_json(said["n"])
            return f"{kind} {n if isinstance(n, list) else number(int(n))}"
        if kind == "MultiDiscrete":
            return f"MultiDiscrete {from_json(said['nvec']).reshape(-1)[:_MOST_PARTS].tolist()}"
        raise ValueError(f"{kind!r} is not a space that can be loaded")

    return describe(said)


def buffer_facts(body: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """
    Say what is in a saved buffer, for programs.

    :param body: The manifest
    :param sizes: Bytes of each of its parts
    :return: What JSON can hold; ``ValueError`` and the like where the manifest is not one
    """
    arguments, values = body["arguments"], body["values"]
    size, n_envs = count(arguments["buffer_size"]), count(arguments["n_envs"])
    rows = size if "Rollout" in body["class"] else max(size // max(n_envs, 1), 1)
    used = rows if values["full"] else count(values["pos"])
    chunks = {str(span[0]) for said in body["frames"] for span in said["spans"]}
    pieces = [name for said in body["rows"] for name in said["pieces"]]
    return {
        "class": body["class"],
        "subclass": body["subclass"],
        "version": str(body["version"]),
        "rows": used,
        "most_rows": rows,
        "n_envs": n_envs,
        "transitions": used * n_envs,
        "capacity": rows * n_envs,
        "observation_space": describe_saved_space(arguments["observation_space"]),
        "action_space": describe_saved_space(arguments["action_space"]),
        "compression": sorted({str(said["coder"]["method"]) for said in body["frames"]}),
        "chunks": len(chunks),
        "chunk_bytes": sum(sizes.get(chunk, 0) for chunk in chunks),
        "plain_bytes": sum(sizes.get(str(name), 0) for name in pieces),
    }


def count(said: Any) -> int:
    """
    Take a number of rows or environments.

    :param said: What the manifest says it is
    :return: The number; ``ValueError`` where it is none
    """
    if type(said) is not int or not 0 <= said < _LARGEST_COUNT:
        raise ValueError(f"{said!r} is not a number of rows or environments")
    return said


def buffer_lines(facts: Mapping[str, Any]) -> list[tuple[str, str]]:
    """
    Say what is in a saved buffer.

    :param facts: The facts, with ``file_bytes`` and ``parts``
    :return: Pairs of a title and what there is to say
    """
    used = f"{facts['transitions']:,} of {facts['capacity']:,} ({counted(facts['n_envs'], 'environment')})"
    observations = f"{format_bytes(facts['chunk_bytes'])} in {counted(facts['chunks'], 'chunk')}"
    lines = [
        ("class", f"{facts['class']}, saved by {facts['subclass']}" if facts["subclass"] else facts["class"]),
        ("files", format_bytes(facts["file_bytes"])),
        ("transitions", used),
        ("observation space", facts["observation_space"]),
        ("action space", facts["action_space"]),
        ("compression", ", ".join(facts["compression"]) or "none: observations are small"),
        ("observations", observations),
        ("actions and the like", format_bytes(facts["plain_bytes"])),
        ("written by", f"sb3-extra-buffers {facts['version']}"),
    ]
    return lines
