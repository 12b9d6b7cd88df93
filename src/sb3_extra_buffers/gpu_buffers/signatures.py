"""
What the constructors take, as type checkers and editors see it.

At run time each class takes what its parent in the installed SB3 takes, and its own options: ``__signature__`` says so, and
the tests compare it with this. A class inherits from its arguments first; at run time these have nothing in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    import torch as th
    from gymnasium import spaces

    from sb3_extra_buffers.gpu_buffers.base import DEFAULT_METHOD


class GpuReplayArguments:
    """Of ``ReplayBuffer`` and ``DictReplayBuffer``, and the options of those on a device."""

    if TYPE_CHECKING:

        def __init__(
            self,
            buffer_size: int,
            observation_space: spaces.Space[Any],
            action_space: spaces.Space[Any],
            device: th.device | str = "auto",
            n_envs: int = 1,
            optimize_memory_usage: bool = False,
            handle_timeout_termination: bool = True,
            *,
            dtypes: Mapping[str, Any] | None = None,
            compression_method: str = DEFAULT_METHOD,
            buffer_device: th.device | str | None = None,
            heap_bytes: int | None = None,
            compression_kwargs: Mapping[str, Any] | None = None,
            max_slot_bytes: int | None = None,
        ) -> None: ...


class GpuRolloutArguments:
    """Of ``RolloutBuffer`` and ``DictRolloutBuffer``, and the options of those on a device."""

    if TYPE_CHECKING:

        def __init__(
            self,
            buffer_size: int,
            observation_space: spaces.Space[Any],
            action_space: spaces.Space[Any],
            device: th.device | str = "auto",
            gae_lambda: float = 1,
            gamma: float = 0.99,
            n_envs: int = 1,
            *,
            dtypes: Mapping[str, Any] | None = None,
            compression_method: str = DEFAULT_METHOD,
            buffer_device: th.device | str | None = None,
            heap_bytes: int | None = None,
            compression_kwargs: Mapping[str, Any] | None = None,
            max_slot_bytes: int | None = None,
        ) -> None: ...
