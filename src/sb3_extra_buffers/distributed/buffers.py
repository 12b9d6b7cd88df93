"""What SB3 takes for its replay buffer: samples come from the shards of a fleet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples, Schedule
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper

from sb3_extra_buffers.compressed.prioritized import ANNEALED_BETA, PrioritizedReplayBufferSamples
from sb3_extra_buffers.distributed.client import Batch

if TYPE_CHECKING:
    from sb3_extra_buffers.distributed.fleet import Fleet


class ShardedReplayBuffer(ReplayBuffer):
    """
    A replay buffer whose transitions are in the shards of a fleet. Collectors fill it, so ``add`` does nothing.

    :param buffer_size: Transitions that all shards keep together
    :param observation_space: That of ``fleet.env``
    :param action_space: Likewise
    :param device: Where samples go
    :param n_envs: Environments of the fleet
    :param optimize_memory_usage: Accepted, and of no effect
    :param fleet: The fleet
    :param prefetch: Batches that are asked for in one call; two calls are always under way
    :param n_steps: Number of steps to accumulate rewards for; never beyond a block
    :param gamma: Discount factor of these returns
    """

    _priorities: dict[str, Any] | None = None

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
        fleet: Fleet | Any = None,
        prefetch: int = 8,
        n_steps: int = 1,
        gamma: float = 0.99,
        **options: Any,
    ) -> None:
        if options:
            raise TypeError(
                f"{type(self).__name__} does not take {', '.join(sorted(options))}"
                + (": HER needs whole episodes, which shards do not keep" if "goal_selection_strategy" in options else "")
            )
        if fleet is None:
            raise TypeError(f"{type(self).__name__} needs replay_buffer_kwargs=dict(fleet=...): the Fleet that fills it")
        if not handle_timeout_termination:
            raise ValueError(
                "handle_timeout_termination=False is not possible: shards know which episodes a time-out has ended"
            )
        BaseBuffer.__init__(self, buffer_size, observation_space, action_space, device, n_envs=n_envs)
        self.optimize_memory_usage, self.handle_timeout_termination = False, True
        self.fleet, self.n_steps, self.gamma = fleet, n_steps, gamma
        fleet.start_shards(self, buffer_size, prefetch, {"n_steps": n_steps, "gamma": gamma, **(self._priorities or {})})

    def add(self, *args: Any, **kwargs: Any) -> None:
        """
        Do nothing: what the learner's environment shows is a placeholder, and collectors send what they play to the shards.

        :param args: What SB3 hands over
        :param kwargs: Likewise
        """

    def extend(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refuse: nothing is added here."""
        raise NotImplementedError(
            "transitions of a fleet come from its collectors; use CompressedReplayBuffer to add your own"
        )

    def reset(self) -> None:
        """Do nothing to the shards; SB3's constructor calls this."""
        self.pos, self.full = 0, False

    def size(self) -> int:
        """
        Tell how many transitions there are.

        :return: Those of all shards, as far as is known
        """
        return int(self.fleet.size)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> Any:
        """
        Sample transitions.

        :param batch_size: Number of transitions
        :param env: Must be None: collectors act on observations as they are
        :return: The samples
        """
        return self._make_samples(self._draw(batch_size, env))

    def _draw(self, batch_size: int, env: VecNormalize | None) -> Batch:
        if env is not None:
            raise ValueError("a fleet cannot be behind VecNormalize: wrap the environments inside make_env() instead")
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be 1 or more")
        return self.fleet.sample(batch_size)

    def _make_samples(self, batch: Batch) -> Any:
        *observed, actions, rewards, dones, discounts = batch.values
        schema = self.fleet.schema
        obs, next_obs = ([self._tensor(array) for array in observed[view::2]] for view in range(2))
        is_dict = schema.fields[0].key is not None
        keys = [field.key for field in schema.fields]
        both: list[Any] = [dict(zip(keys, part, strict=True)) if is_dict else part[0] for part in (obs, next_obs)]
        rest = [self._tensor(array) for array in (dones, rewards)]
        if self.n_steps > 1:
            rest.append(self._tensor(discounts))
        kind = DictReplayBufferSamples if is_dict else ReplayBufferSamples
        return kind(both[0], self._tensor(actions.astype(schema.action_dtype)), both[1], *rest)

    def _tensor(self, array: npt.NDArray[Any]) -> th.Tensor:
        """A tensor that nobody else has: what lies in Ray's store must not be written to."""
        return th.from_numpy(array if array.flags.writeable and array.base is None else np.array(array)).to(self.device)

    def __getstate__(self) -> NoReturn:
        raise TypeError("the transitions of a fleet are in its shards; Fleet(checkpoint_dir=...) saves them")


class ShardedPrioritizedReplayBuffer(ShardedReplayBuffer):
    """
    ``ShardedReplayBuffer`` with priorities, for ``PrioritizedDQN``.

    Shards are drawn by the priorities that they hold together, and transitions of a shard by their own. Priorities go back
    by insertion number; those of transitions that have been written over meanwhile, or lost, are ignored.

    :param alpha: How much priorities matter: 0 samples uniformly, 1 in proportion to them
    :param beta: How much importance weights correct for that: a number, or a function of the progress remaining
    :param eps: Added to each priority
    :param prefetch: Batches of a call, as in ``ShardedReplayBuffer``; what was asked for ahead is drawn by older
        priorities
    """

    def __init__(
        self,
        *args: Any,
        alpha: float = 0.6,
        beta: float | Schedule = ANNEALED_BETA,
        eps: float = 1e-6,
        prefetch: int = 2,
        **kwargs: Any,
    ) -> None:
        if not 0 <= alpha < math.inf:
            raise ValueError(f"alpha is {alpha}; it must be a finite number, 0 or more")
        if not 0 < eps < math.inf:
            raise ValueError(f"eps is {eps}; it must be a finite number above 0, or transitions would never be seen again")
        self._priorities = {"alpha": float(alpha), "eps": float(eps)}
        self._schedule = CloudpickleWrapper(beta) if callable(beta) else None
        self.beta = float(beta(1.0) if callable(beta) else beta)
        super().__init__(*args, prefetch=prefetch, **kwargs)

    def update_beta(self, progress_remaining: float) -> None:
        """
        Follow the schedule of ``beta``, if there is one.

        :param progress_remaining: From 1 at the beginning of training to 0 at its end
        """
        if self._schedule is not None:
            self.beta = float(self._schedule.var(progress_remaining))

    def sample(  # type: ignore[override]
        self, batch_size: int, env: VecNormalize | None = None
    ) -> PrioritizedReplayBufferSamples:
        """
        Sample transitions by priority.

        :param batch_size: Number of transitions
        :param env: Must be None
        :return: The samples, their weights and their indices
        """
        batch = self._draw(batch_size, env)
        # As in PrioritizedReplayBuffer; a shard that was drawn more often than it should have been weighs less for that.
        weights = (batch.shares.min() / batch.probabilities) ** self.beta
        samples = self._make_samples(batch)._asdict()
        samples.setdefault("discounts", None)
        tensor = self._tensor(weights.astype(np.float32).reshape(-1, 1))
        return PrioritizedReplayBufferSamples(**samples, weights=tensor, indices=batch.indices)

    def update_priorities(self, indices: npt.ArrayLike, priorities: npt.ArrayLike | th.Tensor) -> None:
        """
        Set the priorities of sampled transitions, usually to their absolute TD errors.

        :param indices: ``indices`` of the samples
        :param priorities: One per transition, finite and not negative
        """
        if isinstance(priorities, th.Tensor):
            priorities = priorities.detach().cpu().numpy()
        numbers, values = np.asarray(indices).ravel(), np.asarray(priorities, np.float64).ravel()
        if numbers.size != values.size:
            raise ValueError(f"{numbers.size} indices, but {values.size} priorities")
        if numbers.size and not (values.min() >= 0 and values.max() < np.inf):
            raise ValueError("priorities must be finite and not negative; did the loss diverge?")
        self.fleet.update_priorities(numbers, values)
