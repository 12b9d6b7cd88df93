"""Hindsight experience replay over compressed observations."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch as th
from gymnasium import spaces
from stable_baselines3.common.type_aliases import DictReplayBufferSamples
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.her.goal_selection_strategy import KEY_TO_GOAL_STRATEGY, GoalSelectionStrategy
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_extra_buffers._spaces import same_form
from sb3_extra_buffers.compressed.replay import TableReplay
from sb3_extra_buffers.storage.valid_slots import ValidSlots

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from sb3_extra_buffers.compressed.options import ReplayOptions


class CompressedHerReplayBuffer(TableReplay, HerReplayBuffer):
    """
    ``HerReplayBuffer`` with compressed observations; takes its arguments and samples the same transitions.

    Small keys (goals, vectors) are stored as they are. ``optimize_memory_usage`` is accepted and has no effect. There is no
    dict for every slot, as in SB3, and no look at every slot for every sample.
    """

    _makes_more: ClassVar[bool] = True
    _handed_in: ClassVar[tuple[str, ...]] = ("env",)
    _changing: ClassVar[tuple[str, ...]] = ("ep_start", "ep_length")
    _rows_before_reset: int = 0

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
        **options: Unpack[ReplayOptions],
    ) -> None:
        given: Any = goal_selection_strategy
        strategy = KEY_TO_GOAL_STRATEGY.get(given.lower()) if isinstance(given, str) else given
        if not isinstance(strategy, GoalSelectionStrategy):
            names = ", ".join(map(repr, KEY_TO_GOAL_STRATEGY))
            raise ValueError(f"goal_selection_strategy must be one of {names}, got {given!r}")
        what = buffer_size, observation_space, action_space, device, n_envs, optimize_memory_usage
        super().__init__(*what, handle_timeout_termination, **options)
        self.env, self.copy_info_dict, self.n_sampled_goal = env, copy_info_dict, n_sampled_goal
        self.goal_selection_strategy = strategy
        self.her_ratio = 1 - (1.0 / (self.n_sampled_goal + 1))
        shape = self.buffer_size, self.n_envs
        self.ep_start, self.ep_length = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self._current_ep_start = np.zeros(n_envs, np.int64)
        if copy_info_dict:
            self.infos = np.full(shape, {}, dtype=object)
        self._open_ring()

    @property
    def ep_length(self) -> npt.NDArray[np.int64]:
        """Length of the episode of each slot, 0 where nothing is sampled. Who reads it may write to it, too."""
        if "_valid" in self.__dict__:
            self._valid.mark_changed(0, self.buffer_size)
        return self.__dict__["ep_length"]  # type: ignore[no-any-return]

    @ep_length.setter
    def ep_length(self, lengths: npt.NDArray[np.int64]) -> None:
        self.__dict__["ep_length"] = lengths
        self._prepare()

    @cached_property
    def infos(self) -> npt.NDArray[Any]:  # type: ignore[override]
        """The info dicts, empty ones without ``copy_info_dict``; those are made at the first access."""
        return np.array([[{} for _ in range(self.n_envs)] for _ in range(self.buffer_size)])

    def _prepare(self) -> None:
        self._valid = ValidSlots(self.__dict__["ep_length"])

    def _state_to_save(self) -> dict[str, Any]:
        state = super()._state_to_save()
        del state["_valid"]
        state.pop("_starts_before", None)
        return state

    def _take_saved_state(self, state: dict[str, Any]) -> None:
        super()._take_saved_state(state)
        self._prepare()

    def _argument(self, name: str) -> Any:
        value = super()._argument(name)
        if name == "goal_selection_strategy":
            return next(key for key, strategy in KEY_TO_GOAL_STRATEGY.items() if strategy is value)
        return value

    def _values_to_save(self) -> dict[str, Any]:
        starts = self._current_ep_start.tolist()
        return {**super()._values_to_save(), "current_ep_start": starts, "rows": self._rows_to_save()}

    def _rows_to_save(self) -> int:
        return max(super()._rows_to_save(), self._rows_before_reset)

    def _take_values(self, values: Mapping[str, Any]) -> None:
        super()._take_values(values)
        starts = values["current_ep_start"]
        if not all(type(start) is int and 0 <= start < self.buffer_size for start in starts) or len(starts) != self.n_envs:
            raise ValueError(f"episodes that begin at {starts!r}")
        self._current_ep_start = np.array(starts, np.int64)
        rows = values.get("rows", 0)
        if type(rows) is not int or not 0 <= rows <= self.buffer_size:
            raise ValueError(f"{rows!r} rows do not fit {self.buffer_size}")
        self._rows_before_reset = rows
        # New ones, as those of a ring that goes back to a checkpoint may have more rows.
        self.ep_start, self.ep_length = (np.zeros((self.buffer_size, self.n_envs), np.int64) for _ in range(2))

    def _more_to_save(self) -> dict[str, Any]:
        infos = {"infos": self.infos} if self.copy_info_dict else {}
        return {"ep_start": self.ep_start, "ep_length": self.__dict__["ep_length"], **infos}

    def _take_more(self, more: Mapping[str, Any]) -> None:
        for array, most in ((self.ep_start, self.buffer_size - 1), (self.__dict__["ep_length"], self.buffer_size)):
            used = array[: self._rows_to_save()]
            if not used.size or (used.min() >= 0 and used.max() <= most):
                continue
            raise ValueError(f"episodes do not fit {self.buffer_size} rows")
        self._prepare()

    def _leave_out(self, lost: npt.NDArray[np.bool_], empty: Any) -> tuple[Any, int]:
        """Take out all episodes that have lost rows: nothing is drawn from there before the next lap."""
        rows, sampled = self.buffer_size, self.ep_length > 0
        before = np.concatenate(([0], np.cumsum(np.concatenate((lost, lost)))))  # lost rows before each, over two laps
        self.ep_length[before[self.ep_start + self.ep_length] > before[self.ep_start]] = 0
        ends = np.where(self._current_ep_start <= self.pos, self.pos, self.pos + rows)
        self._current_ep_start[before[ends] > before[self._current_ep_start]] = self.pos
        self._prepare()
        return self, int(max(lost.sum(), (sampled & (self.ep_length == 0)).any(axis=1).sum()))

    # -- adding ---------------------------------------------------------------------------------------------------------

    def _values(self, action: Any, reward: Any, done: Any, infos: Any) -> tuple[Any, ...]:
        infos = infos if isinstance(infos, list) else list(infos)  # it is read twice
        values = super()._values(action, reward, done, infos)
        np.empty(self.n_envs, np.float32)[...] = done  # what storing it would raise comes first
        for env in range(self.n_envs):
            bool(done[env])  # as is asked once the step is stored
        if self.copy_info_dict:
            np.empty(self.n_envs, dtype=object)[...] = infos
        self._starts_before = self._current_ep_start.copy()
        return values

    def _note_added(self, row: int, action: Any, reward: Any, done: Any, infos: Any) -> None:
        starts, lengths = self._starts_before, self.__dict__["ep_length"]
        # Of an old episode that is being written over, nothing is sampled any more. If this is done again after an interrupt,
        # the length of one that has just ended may be there already.
        for env in np.flatnonzero((lengths[row] > 0) & (self._current_ep_start == starts)).tolist():
            end = int(self.ep_start[row, env] + lengths[row, env])
            self._valid.mark_changed(row, end)
            lengths[np.arange(row, end) % self.buffer_size, env] = 0
        self.ep_start[row] = starts
        if self.copy_info_dict:
            self.infos[row] = infos
        for env in range(self.n_envs):
            if done[env]:
                self._compute_episode_length(env)

    def _compute_episode_length(self, env_idx: int) -> None:
        start = int(self._current_ep_start[env_idx])
        end = self.pos if self.pos >= start else self.pos + self.buffer_size
        self._valid.mark_changed(start, end)
        self.__dict__["ep_length"][np.arange(start, end) % self.buffer_size, env_idx] = end - start
        self._current_ep_start[env_idx] = self.pos

    def set_env(self, env: VecEnv) -> None:
        """
        Take the environment that computes rewards.

        :param env: The environment, of the observation space that the buffer was made for
        """
        if self.env is None and env is not None and not same_form(env.observation_space, self.observation_space):
            raise ValueError(
                f"the buffer holds observations of {self.observation_space}, but the environment has "
                f"{env.observation_space}: load the buffer that belongs to this environment"
            )
        super().set_env(env)

    def reset(self) -> None:
        """Begin again at the first row. As in SB3, old episodes are sampled until they are written over."""
        with self._lock:
            self._rows_before_reset = self._rows_to_save()
            super().reset()

    def _end_episodes(self, rows: Any = None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SB3's advice is for a file that is loaded
            self.truncate_last_trajectory()

    def truncate_last_trajectory(self) -> None:
        """Take the last trajectory for finished, see the parent class."""
        with self._lock:
            super().truncate_last_trajectory()

    # -- sampling -------------------------------------------------------------------------------------------------------

    def sample(self, batch_size: int, env: VecNormalize | None = None) -> DictReplayBufferSamples:  # type: ignore[override]
        """
        Sample transitions, of which most have another goal than was pursued.

        :param batch_size: Number of transitions
        :param env: To normalize with
        :return: The samples
        """
        with self._lock:
            n_valid = self._valid.count()
            if n_valid == 0 or not self._reads_at_once:
                samples = HerReplayBuffer.sample(self, batch_size, env)  # with none it says what is wrong
                return self._convert_samples(samples)  # type: ignore[no-any-return]
            # Draws as SB3 does from the list of all valid slots. Of what was drawn SB3 reads and converts the real
            # transitions, then the virtual ones, and joins the tensors; all of them are read at once here, in that order.
            slots = self._valid.take(np.random.choice(n_valid, size=batch_size, replace=True))
            n_virtual = int(self.her_ratio * batch_size)
            rows, envs = np.divmod(np.concatenate((slots[n_virtual:], slots[:n_virtual])), self.n_envs)
            virtual = slice(batch_size - n_virtual, batch_size)
            self._note_read()
            reading = self._table.begin_read(rows, envs, None, self.__dict__)
            goals = self._sample_goals(rows[virtual], envs[virtual])
            if type(self)._sample_goals is HerReplayBuffer._sample_goals:
                self._valid.mark_unchanged()  # it has only read the lengths
            infos: Any = [{} for _ in range(n_virtual)]
            if self.copy_info_dict:
                infos = copy.deepcopy(self.infos[rows[virtual], envs[virtual]])
        arrays = reading.finish()
        obs, next_obs = self._both_observations(arrays)
        actions, rewards, dones, timeouts = arrays[self._n_observed :]
        obs["desired_goal"][virtual] = next_obs["desired_goal"][virtual] = goals
        rewards[virtual] = self._virtual_rewards(next_obs["achieved_goal"][virtual], goals, infos)
        final = (dones * (1 - timeouts)).reshape(-1, 1)
        rewards = self._normalize_reward(rewards.reshape(-1, 1), env)
        return self._convert_samples(self._as_samples(env, obs, actions, next_obs, final, rewards))  # type: ignore[no-any-return]

    @property
    def _reads_at_once(self) -> bool:
        """Whether real and virtual transitions can be read at once: nobody reads them otherwise, and goals are alike."""
        cls, goals = type(self), self.observation_space.spaces
        return (
            cls._get_real_samples is HerReplayBuffer._get_real_samples
            and cls._get_virtual_samples is HerReplayBuffer._get_virtual_samples
            and goals["achieved_goal"].dtype == goals["desired_goal"].dtype
            and goals["achieved_goal"].shape == goals["desired_goal"].shape
        )

    def _virtual_rewards(self, achieved: Any, goals: Any, infos: Any) -> npt.NDArray[np.float32]:
        """Ask the environment, as SB3 does."""
        assert self.env is not None, (
            "You must initialize HerReplayBuffer with a VecEnv so it can compute rewards for virtual transitions"
        )
        (rewards,) = self.env.env_method("compute_reward", achieved, goals, infos, indices=[0])
        virtual: npt.NDArray[np.float32] = rewards.astype(np.float32).reshape(-1)
        return virtual
