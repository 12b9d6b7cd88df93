"""What SB3 gets of a fleet: its replay buffer, its environment, and a callback."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import DictReplayBufferSamples, ReplayBufferSamples, Schedule
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers.compressed.prioritized import ANNEALED_BETA, PrioritizedReplayBufferSamples
from sb3_extra_buffers.distributed.blocks import Episode
from sb3_extra_buffers.distributed.client import Batch

if TYPE_CHECKING:
    from sb3_extra_buffers.distributed.fleet import Fleet

_MOST_EPISODES = 10_000


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
        """A tensor with memory of its own: what lies in Ray's store must not be written to."""
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


class FleetEnv(VecEnv):
    """
    The environments of a fleet, as the learner sees them.

    It has as many as all collectors together, so settings mean what they mean with a ``SubprocVecEnv`` of that size. A step
    returns when one transition of each has been collected. Actions of the learner are not used, and observations are zeros:
    the real ones go from collectors to shards. Episodes that have ended are in ``infos``, so SB3 logs them.
    """

    def __init__(self, fleet: Fleet, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        super().__init__(fleet.n_envs, observation_space, action_space)
        self.fleet = fleet
        self.episodes: deque[tuple[float, int, float, int]] = deque(maxlen=_MOST_EPISODES)
        """Those that SB3 has not been told of yet."""
        self.may_step = False
        """Whether a model learns in it. An evaluation begins with a reset, and would see no observations."""

    def _zeros(self) -> Any:
        space = self.observation_space
        if isinstance(space, spaces.Dict):
            return {key: self._zeros_of(part) for key, part in space.spaces.items()}
        return self._zeros_of(space)

    def _zeros_of(self, space: spaces.Space[Any]) -> Any:
        return np.zeros((self.num_envs, *(space.shape or ())), space.dtype)

    def reset(self) -> Any:
        """Begin; collectors go on with what they are doing."""
        self.may_step = False
        return self._zeros()

    def step_async(self, actions: Any) -> None:
        """Actions are not used."""

    def step_wait(self) -> Any:
        """Wait until collectors have played another step of all environments."""
        self.fleet.check()
        if not self.may_step:
            raise RuntimeError(
                "fleet.env is for model.learn(..., callback=fleet.callback()) only: it shows no observations. To evaluate a "
                "model, use environments of make_env()"
            )
        self.fleet.advance(self.num_envs)
        dones = np.zeros(self.num_envs, np.bool_)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for place in range(min(self.num_envs, len(self.episodes))):
            episode = Episode(*self.episodes.popleft())
            dones[place] = True
            infos[place]["episode"] = {"r": episode.reward, "l": episode.length, "t": episode.seconds}
            if episode.success >= 0:
                infos[place]["is_success"] = bool(episode.success)
        return self._zeros(), np.zeros(self.num_envs, np.float32), dones, infos

    def close(self) -> None:
        """Do nothing: closing the fleet closes its environments."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Refuse all but ``render_mode``, which SB3 asks for: environments are in other processes."""
        if attr_name == "render_mode":
            return [None] * len(list(self._get_indices(indices)))
        raise AttributeError(f"the environments of a fleet are in its collectors; {attr_name!r} cannot be looked up here")

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: environments are in other processes."""
        raise AttributeError(f"the environments of a fleet are in its collectors; set {attr_name!r} inside make_env()")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Refuse: environments are in other processes."""
        raise AttributeError(f"the environments of a fleet are in its collectors; {method_name}() cannot be called here")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Tell SB3 of no wrapper."""
        return [False] * len(list(self._get_indices(indices)))

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Do nothing: ``Fleet(seed=...)`` seeds collectors."""
        return [None] * self.num_envs


class FleetCallback(BaseCallback):
    """Publishes weights, logs under ``distributed/``, and saves checkpoints. Made by ``Fleet.callback``."""

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self.fleet = fleet
        self._published_at = self._saved_at = 0
        self._was_random = True

    def _on_training_start(self) -> None:
        model = self.model
        self.fleet.check()
        if not isinstance(model, OffPolicyAlgorithm):
            raise TypeError(
                f"a fleet is for off-policy algorithms (DQN, QRDQN, SAC, TD3, TQC), not for {type(model).__name__}"
            )
        if isinstance(model.replay_buffer, HerReplayBuffer):
            raise TypeError("a fleet cannot be used with HER: it needs whole episodes, which shards do not keep")
        if not isinstance(model.replay_buffer, ShardedReplayBuffer) or model.replay_buffer.fleet is not self.fleet:
            raise TypeError(
                "the model must be made with replay_buffer_class=ShardedReplayBuffer and "
                "replay_buffer_kwargs=dict(fleet=fleet), and learn with the callback of the same fleet"
            )
        if model.use_sde:
            raise TypeError("a fleet cannot be used with use_sde=True: its noise is not sent to collectors")
        if model.get_vec_normalize_env() is not None:
            raise TypeError("a fleet cannot be behind VecNormalize: wrap the environments inside make_env() instead")
        if model.get_env() is None or model.env.unwrapped is not self.fleet.env:  # type: ignore[union-attr]
            raise TypeError("the model must learn in fleet.env")
        self._was_random = model.num_timesteps < model.learning_starts
        self._published_at, self._saved_at = model._n_updates, model.num_timesteps
        self.fleet.start_collectors(model)
        self.fleet.env.may_step = True

    def _on_step(self) -> bool:
        model, fleet = self.model, self.fleet
        assert isinstance(model, OffPolicyAlgorithm)
        is_random = model.num_timesteps < model.learning_starts
        if model._n_updates - self._published_at >= fleet.publish_every or is_random != self._was_random:
            self._was_random, self._published_at = is_random, model._n_updates
            fleet.publish(model)
            for name, value in fleet.figures().items():
                self.logger.record(f"distributed/{name}", value)
        every = fleet.checkpoint_every
        if every is not None and model.num_timesteps - self._saved_at >= every:
            self._saved_at = model.num_timesteps
            fleet.save(model)
        return True

    def _on_training_end(self) -> None:
        assert isinstance(self.model, OffPolicyAlgorithm)
        self.fleet.env.may_step = False
        if self.fleet.checkpoint_dir is not None:
            self.fleet.save(self.model)


class ClosedFleet:
    """What a saved model has for its fleet: it can act, and needs another fleet to learn."""

    schema = None
    size = 0

    def start_shards(self, *args: Any) -> None:
        """There are none to start."""

    def sample(self, batch_size: int) -> Any:
        """Say what is missing."""
        raise RuntimeError(
            "this model was saved without its fleet; load it with replay_buffer_kwargs=dict(fleet=fleet) to go on"
        )
