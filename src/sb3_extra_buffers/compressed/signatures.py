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
    from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
    from stable_baselines3.common.buffers import RolloutBuffer
    from stable_baselines3.common.type_aliases import GymEnv, Schedule
    from stable_baselines3.common.vec_env import VecEnv
    from stable_baselines3.her.goal_selection_strategy import GoalSelectionStrategy

    from sb3_extra_buffers.compressed.prioritized import ANNEALED_BETA


class ReplayArguments:
    """Of ``ReplayBuffer`` and ``DictReplayBuffer``, and the options of compressed ones."""

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
            compression_method: str | None = None,
            compression_kwargs: Mapping[str, Any] | None = None,
            decompression_kwargs: Mapping[str, Any] | None = None,
            normalize_images: bool = False,
            output_dtype: str = "raw",
        ) -> None: ...


class RolloutArguments:
    """Of ``RolloutBuffer``, also with Dict observations or masks, and the options of compressed ones."""

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
            compression_method: str | None = None,
            compression_kwargs: Mapping[str, Any] | None = None,
            decompression_kwargs: Mapping[str, Any] | None = None,
            normalize_images: bool = False,
            output_dtype: str = "raw",
            prefetch: bool = False,
            keep_freed_memory: bool = True,
        ) -> None: ...


class NStepArguments:
    """Of ``NStepReplayBuffer``, and the options of compressed ones."""

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
            n_steps: int = 3,
            gamma: float = 0.99,
            dtypes: Mapping[str, Any] | None = None,
            compression_method: str | None = None,
            compression_kwargs: Mapping[str, Any] | None = None,
            decompression_kwargs: Mapping[str, Any] | None = None,
            normalize_images: bool = False,
            output_dtype: str = "raw",
        ) -> None: ...


class HerArguments:
    """Of ``HerReplayBuffer``, and the options of compressed ones."""

    if TYPE_CHECKING:

        def __init__(
            self,
            buffer_size: int,
            observation_space: spaces.Space[Any],
            action_space: spaces.Space[Any],
            env: VecEnv,
            device: th.device | str = "auto",
            n_envs: int = 1,
            optimize_memory_usage: bool = False,
            handle_timeout_termination: bool = True,
            n_sampled_goal: int = 4,
            goal_selection_strategy: GoalSelectionStrategy | str = "future",
            copy_info_dict: bool = False,
            *,
            dtypes: Mapping[str, Any] | None = None,
            compression_method: str | None = None,
            compression_kwargs: Mapping[str, Any] | None = None,
            decompression_kwargs: Mapping[str, Any] | None = None,
            normalize_images: bool = False,
            output_dtype: str = "raw",
        ) -> None: ...


class PrioritizedArguments:
    """Of a buffer with priorities."""

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
            n_steps: int = 1,
            gamma: float = 0.99,
            alpha: float = 0.6,
            beta: float | Schedule = ANNEALED_BETA,
            eps: float = 1e-6,
        ) -> None: ...


class CompressedPrioritizedArguments:
    """Of a buffer with priorities, and the options of compressed ones."""

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
            n_steps: int = 1,
            gamma: float = 0.99,
            alpha: float = 0.6,
            beta: float | Schedule = ANNEALED_BETA,
            eps: float = 1e-6,
            dtypes: Mapping[str, Any] | None = None,
            compression_method: str | None = None,
            compression_kwargs: Mapping[str, Any] | None = None,
            decompression_kwargs: Mapping[str, Any] | None = None,
            normalize_images: bool = False,
            output_dtype: str = "raw",
        ) -> None: ...


class RecurrentArguments:
    """Of ``RecurrentRolloutBuffer``, and the options of compressed ones."""

    if TYPE_CHECKING:

        def __init__(
            self,
            buffer_size: int,
            observation_space: spaces.Space[Any],
            action_space: spaces.Space[Any],
            hidden_state_shape: tuple[int, int, int, int],
            device: th.device | str = "auto",
            gae_lambda: float = 1,
            gamma: float = 0.99,
            n_envs: int = 1,
            *,
            dtypes: Mapping[str, Any] | None = None,
            compression_method: str | None = None,
            compression_kwargs: Mapping[str, Any] | None = None,
            decompression_kwargs: Mapping[str, Any] | None = None,
            normalize_images: bool = False,
            output_dtype: str = "raw",
            prefetch: bool = False,
            keep_freed_memory: bool = True,
        ) -> None: ...


class RecurrentPPOArguments:
    """Of ``RecurrentPPO``, and what buffer it is to use."""

    if TYPE_CHECKING:

        def __init__(
            self,
            policy: str | type[RecurrentActorCriticPolicy],
            env: GymEnv | str,
            learning_rate: float | Schedule = 3e-4,
            n_steps: int = 128,
            batch_size: int | None = 128,
            n_epochs: int = 10,
            gamma: float = 0.99,
            gae_lambda: float = 0.95,
            clip_range: float | Schedule = 0.2,
            clip_range_vf: float | Schedule | None = None,
            normalize_advantage: bool = True,
            ent_coef: float = 0.0,
            vf_coef: float = 0.5,
            max_grad_norm: float = 0.5,
            use_sde: bool = False,
            sde_sample_freq: int = -1,
            target_kl: float | None = None,
            stats_window_size: int = 100,
            tensorboard_log: str | None = None,
            policy_kwargs: dict[str, Any] | None = None,
            verbose: int = 0,
            seed: int | None = None,
            device: th.device | str = "auto",
            *,
            rollout_buffer_class: type[RolloutBuffer] | None = None,
            rollout_buffer_kwargs: dict[str, Any] | None = None,
            _init_setup_model: bool = True,
        ) -> None: ...
