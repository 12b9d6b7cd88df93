"""Prioritized experience replay (Schaul et al. 2016), the proportional variant."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper

from sb3_extra_buffers.compressed.n_step import TableNStep
from sb3_extra_buffers.compressed.options import REPLAY_DESCRIPTIONS
from sb3_extra_buffers.compressed.replay import Integers, TableReplay
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.sum_tree import SumTree

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sb3_extra_buffers.compressed.options import ReplayOptions

ANNEALED_BETA: LinearSchedule = LinearSchedule(0.4, 1.0, end_fraction=1.0)
"""From 0.4 to 1 over the training, as in the paper."""

# Between these no stored transition becomes unreachable and no sum of the tree overflows.
SMALLEST_SHARE, LARGEST_SHARE = 1e-300, 1e280

DESCRIPTIONS_OF_PRIORITIES = f"""
    :param alpha: How much priorities matter: 0 samples uniformly, 1 in proportion to them
    :param beta: How much the importance weights correct for that: 0 not at all, 1 fully. A number, or a function of the
        progress remaining (from 1 to 0) that ``update_beta`` calls; from 0.4 to 1 by default
    :param eps: Added to each priority, so that no transition is ever forgotten
    :param n_steps: Number of steps to accumulate rewards for; 1 by default
    :param gamma: Discount factor of these returns; not used with ``n_steps=1``{REPLAY_DESCRIPTIONS}"""


class PrioritizedReplayBufferSamples(NamedTuple):
    """What SB3's ``ReplayBufferSamples`` holds, plus how much each transition counts."""

    observations: PyTorchObs
    actions: th.Tensor
    next_observations: PyTorchObs
    dones: th.Tensor
    rewards: th.Tensor
    discounts: th.Tensor | None
    weights: th.Tensor
    """Importance-sampling weights, one per transition, shape ``(batch_size, 1)``."""
    indices: npt.NDArray[np.int64]
    """Which transitions these are, for ``update_priorities``."""


class TablePrioritized(TableNStep):
    """Mixin for replay buffers with priorities, over one step or more."""

    _makes_more: ClassVar[bool] = True
    _handed_in: ClassVar[tuple[str, ...]] = ("beta",)
    _option_descriptions: ClassVar[str] = DESCRIPTIONS_OF_PRIORITIES

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
        **options: Unpack[ReplayOptions],
    ) -> None:
        if not 0 <= alpha < math.inf:
            raise ValueError(f"alpha is {alpha}; it must be a finite number, 0 or more")
        if not 0 < eps < math.inf:
            raise ValueError(f"eps is {eps}; it must be a finite number above 0, or transitions would never be seen again")
        if n_steps < 1:
            raise ValueError(f"n_steps is {n_steps}; it must be 1 or more")
        what = buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage
        super().__init__(*what, handle_timeout_termination, n_steps=n_steps, gamma=gamma, **options)
        self.alpha, self.eps = float(alpha), float(eps)
        # Wrapped, because save_replay_buffer() uses pickle, which refuses a lambda.
        self._beta_schedule = CloudpickleWrapper(beta) if callable(beta) else None
        self.beta = beta(1.0) if callable(beta) else beta
        self._highest_share = 1.0
        self._tree = SumTree(self.buffer_size * self.n_envs)
        self._open_ring()

    @property
    def beta(self) -> float:
        """The exponent of the importance weights, now."""
        return self._beta

    @beta.setter
    def beta(self, value: float) -> None:
        if not 0 <= value < math.inf:
            raise ValueError(f"beta is {value}; it must be a finite number, 0 or more")
        self._beta = float(value)

    def update_beta(self, progress_remaining: float) -> None:
        """Follow the schedule of ``beta``, if there is one. An algorithm calls this before it trains."""
        if self._beta_schedule is not None:
            self.beta = self._beta_schedule.var(progress_remaining)

    @property
    def priorities(self) -> npt.NDArray[np.float64]:
        """What transitions are sampled in proportion to, ``(priority + eps) ** alpha``, by row and environment; a copy."""
        with self._lock:
            return self._tree.leaves.reshape(self.buffer_size, self.n_envs).copy()

    def _note_added(self, row: int, *_: Any) -> None:
        """New transitions get the highest priority so far."""
        self._tree.set(np.arange(row * self.n_envs, (row + 1) * self.n_envs), self._highest_share)

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> PrioritizedReplayBufferSamples:
        """Sample transitions by priority, one from each of ``batch_size`` ranges of equal probability."""
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be 1 or more")
        if self.size() == 0:
            raise ValueError("cannot sample from an empty buffer: add transitions first")
        with self._lock:
            indices = self._tree.sample(batch_size)
            shares = self._tree.leaves[indices]
            read = self._begin_samples(*np.divmod(indices, self.n_envs), env)
        samples = self._convert_samples(read())
        # (N * P(i)) ** -beta over the highest of the batch: the number of transitions and the total cancel out.
        weights = ((shares.min() / shares) ** self.beta).astype(np.float32).reshape(-1, 1)
        return PrioritizedReplayBufferSamples(**samples._asdict(), weights=self._tensor(weights), indices=indices)

    def _begin_samples(self, rows: Integers, envs: Integers, env: VecNormalize | None) -> Callable[[], Any]:
        # Over one step, not n-step returns: those carry a gamma, which here is the algorithm's own.
        begin = TableNStep._begin_samples if self.n_steps > 1 else TableReplay._begin_samples
        return begin(self, rows, envs, env)

    def update_priorities(self, indices: npt.ArrayLike, priorities: npt.ArrayLike | th.Tensor) -> None:
        """Set the priorities of sampled transitions, usually to their absolute TD errors."""
        numbers = np.asarray(indices).ravel()
        if isinstance(priorities, th.Tensor):
            priorities = priorities.detach().cpu().numpy()
        values = np.asarray(priorities, dtype=np.float64).ravel()
        if numbers.size != values.size:
            raise ValueError(f"{numbers.size} indices, but {values.size} priorities")
        if numbers.size == 0:
            return
        if not np.issubdtype(numbers.dtype, np.integer):
            raise TypeError(f"indices must be integers, not {numbers.dtype}")
        stored = self.size() * self.n_envs
        if numbers.min() < 0 or numbers.max() >= stored:
            raise IndexError(
                f"indices must be those of the {stored} stored transitions, not {numbers.min()} to {numbers.max()}"
            )
        if not (values.min() >= 0 and values.max() < np.inf):  # also false for NaN
            raise ValueError("priorities must be finite and not negative; did the loss diverge?")
        with np.errstate(over="ignore", under="ignore"):
            shares = np.clip((values + self.eps) ** self.alpha, SMALLEST_SHARE, LARGEST_SHARE)
        with self._lock:
            self._tree.set(numbers, shares)
            self._highest_share = max(self._highest_share, float(shares.max()))

    def _argument(self, name: str) -> Any:
        if name != "beta":
            return super()._argument(name)
        schedule = None if self._beta_schedule is None else self._beta_schedule.var
        if type(schedule) is LinearSchedule:
            return schedule.start, schedule.end, schedule.end_fraction
        return self.beta if schedule is None else None

    @classmethod
    def _arguments_from_file(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        beta = arguments.get("beta")
        if beta is None:
            raise StorageError(
                "beta of this buffer follows a function, which no file can hold; hand it to load() as beta, or a number"
            )
        return {**arguments, "beta": LinearSchedule(*map(float, beta)) if isinstance(beta, tuple) else beta}

    def _values_to_save(self) -> dict[str, Any]:
        return {**super()._values_to_save(), "beta": self.beta, "highest_share": self._highest_share}

    def _take_values(self, values: Mapping[str, Any]) -> None:
        super()._take_values(values)
        self.beta, highest = float(values["beta"]), float(values["highest_share"])
        if not SMALLEST_SHARE <= highest <= LARGEST_SHARE:
            raise ValueError(f"{highest} is not a priority")
        self._highest_share = highest

    def _more_to_save(self) -> dict[str, Any]:
        return {**super()._more_to_save(), "priorities": self.priorities}

    def _more_to_fill(self) -> dict[str, Any]:
        return {**super()._more_to_fill(), "priorities": np.zeros((self.buffer_size, self.n_envs))}

    def _take_more(self, more: Mapping[str, Any]) -> None:
        shares = more["priorities"][: self.size()].reshape(-1)
        self._tree.set(np.arange(len(shares)), shares)

    def reset(self) -> None:
        """Forget all transitions and their priorities, in one step."""
        new = {"pos": 0, "full": False, "_tree": SumTree(self.buffer_size * self.n_envs), "_highest_share": 1.0}
        with self._lock:
            self.__dict__.update(new)
            if self._ring is not None:
                self._ring.note_reset()


class PrioritizedReplayBuffer(TablePrioritized, NStepReplayBuffer):  # type: ignore[misc]
    """
    SB3's buffer with priorities: ``ReplayBuffer`` with ``n_steps=1``, else ``NStepReplayBuffer``. Not compressed.
    """

    raw_below: ClassVar[int] = sys.maxsize


class CompressedPrioritizedReplayBuffer(PrioritizedReplayBuffer):
    """
    Prioritized replay with compressed observations, over one step or more.

    It takes the arguments of ``ReplayBuffer`` and those below. Each transition, that is each row of each environment, has
    a priority of its own: new ones get the highest so far, ``update_priorities`` sets it after that.
    """

    raw_below: ClassVar[int] = TableReplay.raw_below


class CompressedDictPrioritizedReplayBuffer(CompressedPrioritizedReplayBuffer, DictReplayBuffer):  # type: ignore[misc]
    """
    ``CompressedPrioritizedReplayBuffer`` for Dict observations; takes its arguments. Small keys are kept as they are.
    """
