"""What compressed buffers take besides what SB3's take, and what they say to wrong arguments."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypedDict

from sb3_extra_buffers.compressed.arguments import explain_arguments


class CompressionOptions(TypedDict, total=False):
    """Options of every compressed buffer."""

    dtypes: Mapping[str, Any] | None
    compression_method: str | None
    compression_kwargs: Mapping[str, Any] | None
    decompression_kwargs: Mapping[str, Any] | None
    normalize_images: bool
    output_dtype: str


class ReplayOptions(CompressionOptions, total=False):
    """Options of compressed replay buffers."""

    storage_dir: str | None
    max_memory: int | str | None
    durability: str


class RolloutOptions(CompressionOptions, total=False):
    """Options of compressed rollout buffers."""

    prefetch: bool
    keep_freed_memory: bool


DEFAULTS: dict[str, Any] = {
    "dtypes": None,
    "compression_method": None,
    "compression_kwargs": None,
    "decompression_kwargs": None,
    "normalize_images": False,
    "output_dtype": "raw",
}
REPLAY_DEFAULTS: dict[str, Any] = {**DEFAULTS, "storage_dir": None, "max_memory": None, "durability": "chunk"}
ROLLOUT_DEFAULTS: dict[str, Any] = {**DEFAULTS, "prefetch": False, "keep_freed_memory": True}

DESCRIPTIONS = """
    :param dtypes: ``elem_type`` to store elements as and ``runs_type`` for run lengths, as ``find_buffer_dtypes`` gives
        them; found from the observation space by default. For Dict observations also a mapping from key to such a dict
    :param compression_method: Name or shorthand of the method, for example ``"zstd-5"``; ``"delta"`` by default
    :param compression_kwargs: Options of the method, for example ``{"compresslevel": 5}``
    :param decompression_kwargs: Likewise for decompression
    :param normalize_images: Divide sampled images by 255 (then tell the policy ``normalize_images=False``)
    :param output_dtype: ``"raw"`` samples observations as they are, ``"float"`` as float32
"""
REPLAY_DESCRIPTIONS = (
    DESCRIPTIONS
    + """    :param storage_dir: Keep a ring on disk in this directory, and go on with the one that is there; None for none
    :param max_memory: Bytes of compressed observations that stay in the memory of the process while there is a
        ``storage_dir``, such as ``"2GB"``; all others are mapped from disk. By default that is all of them
    :param durability: ``"chunk"``: a crash loses the rows since the last full chunk; ``"full"``: those of the last second
"""
)
ROLLOUT_DESCRIPTIONS = (
    DESCRIPTIONS
    + """    :param prefetch: Decode the next minibatch on a thread while the caller trains on this one. The minibatches are
        the same; it pays where a core is idle during training, as with a GPU
    :param keep_freed_memory: Call the function of that name, if there are images, on a CPU
"""
)


def check_options(cls: type, given: Mapping[str, Any], defaults: Mapping[str, Any], space: Any) -> dict[str, Any]:
    """Fill in the options that were not given, and refuse those that make no sense."""
    if not given.keys() <= defaults.keys():
        # A constructor of somebody else may take other arguments than ours, to which it hands over what it does not know.
        ours = next(parent for parent in cls.__mro__ if parent.__module__.startswith("sb3_extra_buffers."))
        raise TypeError(explain_arguments(ours, {"observation_space": space, **given}))
    options = {**defaults, **given}
    if options.get("storage_dir") is None:
        for name in ("max_memory", "durability"):
            if options.get(name) != defaults.get(name):
                raise ValueError(f"{name} is {options[name]!r}, but storage_dir is not given; give both, or leave {name} out")
    if options.get("output_dtype", "raw") not in ("raw", "float"):
        raise ValueError(f"output_dtype is {options['output_dtype']!r}; allowed: 'raw', 'float'")
    for name in ("dtypes", "compression_kwargs", "decompression_kwargs"):
        if options.get(name) is not None and not isinstance(options[name], Mapping):
            raise TypeError(f"{name} must be a dict, not {options[name]!r}")
    return options


def signature_with_options(function: Any, defaults: Mapping[str, Any]) -> inspect.Signature:
    """Make the signature of a constructor in which options stand one by one, as editors and messages show it."""
    own = list(inspect.signature(function).parameters.values())[1:]
    named = [parameter for parameter in own if parameter.kind is not parameter.VAR_KEYWORD]
    if len(named) == len(own):
        return inspect.Signature(named)
    options = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value) for name, value in defaults.items()]
    return inspect.Signature([*named, *(option for option in options if option.name not in {one.name for one in named})])
