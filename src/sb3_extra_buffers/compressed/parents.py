"""What all buffers that take the observations out of SB3's hands have in common: a parent that must not allocate them."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import BaseBuffer, DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.preprocessing import get_obs_shape

from sb3_extra_buffers.compressed.sample_view import shallow_copy
from sb3_extra_buffers.compressed.saving import SavedAtOnce
from sb3_extra_buffers.storage._core import set_step

_KNOWN = ("stable_baselines3.", "sb3_contrib.", "sb3_extra_buffers.")
# It keeps what it finds out about a minibatch as attributes of the buffer, and copies observations by itself.
_LEAVES_TRACES = "sb3_contrib.common.recurrent."
# What runs between the call of ``sample`` or ``_get_samples`` and its return.
_READING = {"_get_samples", "_get_real_samples", "_get_virtual_samples", "_sample_goals", "_normalize_obs", "to_torch"}


def only_stores(cls: type, mixin: type) -> bool:
    """
    Tell whether all that ``add`` of the parents does with observations is to assign them to the row ``pos``.

    :param cls: A buffer class
    :param mixin: What makes it ours
    :return: Whether that is known, as it is of SB3's classes
    """
    return all(parent.__module__.startswith(_KNOWN) for parent in _after(cls, mixin) if "add" in vars(parent))


# All that these functions of SB3 2.7 to 2.9 speak of.
_NAMES_IN_ADD = frozenset(
    (
        *("observation_space", "n_envs", "obs_shape", "action_dim", "buffer_size", "pos", "full", "optimize_memory_usage"),
        *("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "handle_timeout_termination"),
        *("isinstance", "spaces", "Discrete", "reshape", "np", "array", "get", "keys"),
    )
)
_NAMES_IN_SAMPLE = frozenset(
    (
        *("n_envs", "buffer_size", "pos", "full", "optimize_memory_usage", "np", "random", "randint", "super", "sample"),
        *("_get_samples", "observations", "next_observations", "actions", "rewards", "dones", "timeouts", "reshape"),
        *("_normalize_obs", "_normalize_reward", "to_torch", "ReplayBufferSamples", "len", "tuple", "map"),
    )
)


def is_known(cls: type, mixin: type) -> bool:
    """
    Tell whether all that a buffer class is made of is SB3's, SB3-Contrib's or ours.

    :param cls: A buffer class
    :param mixin: What makes it ours
    :return: Whether it is; what others make may take other observations than its parents do
    """
    return all(parent.__module__.startswith(_KNOWN) for parent in _after(cls, mixin) if issubclass(parent, BaseBuffer))


def adds_as_replay_buffer(cls: type, mixin: type) -> bool:
    """
    Tell whether the parents' ``add`` is that of SB3's ``ReplayBuffer``, and that one stores what it is known to store.

    :param cls: A buffer class
    :param mixin: What makes it ours
    :return: Whether it is; not so where an SB3 to come has it do more
    """
    return _next(cls, mixin, "add") is ReplayBuffer.add and _speaks_of(ReplayBuffer.add, _NAMES_IN_ADD)


def dict_add_is_known() -> bool:
    """
    Tell whether ``add`` of SB3's ``DictReplayBuffer`` stores what it is known to store.

    :return: Whether it does; not so where an SB3 to come has it do more
    """
    return _speaks_of(DictReplayBuffer.add, _NAMES_IN_ADD)


def samples_as_replay_buffer(cls: type, mixin: type) -> bool:
    """
    Tell whether the parents' ``sample`` is that of SB3's ``ReplayBuffer``, and that one reads what it is known to read.

    :param cls: A buffer class
    :param mixin: What makes it ours
    :return: Whether it is; not so where an SB3 to come has it do more
    """
    steps = ("_get_samples", "_normalize_obs", "_normalize_reward", "to_torch")
    unchanged = all(getattr(cls, step, None) is getattr(ReplayBuffer, step) for step in steps)
    functions = (BaseBuffer.sample, ReplayBuffer.sample, ReplayBuffer._get_samples)
    known = all(_speaks_of(function, _NAMES_IN_SAMPLE) for function in functions)
    return unchanged and known and _next(cls, mixin, "sample") is ReplayBuffer.sample


def write_rest(buffer: Any, row: int, action: Any, reward: Any, done: Any, infos: Any) -> None:
    """
    Store all of a transition but its observations, and go on to the next row, as ``add`` of SB3's replay buffers does.

    :param buffer: The buffer
    :param row: The row
    :param action: Actions; the caller knows that there are as many as are stored
    :param reward: Rewards
    :param done: Whether episodes ended
    :param infos: What else environments told
    """
    timeouts = buffer.timeouts if buffer.handle_timeout_termination else None
    set_step(row, buffer.actions, action, buffer.rewards, reward, buffer.dones, done, timeouts, infos)
    buffer.pos = row + 1
    if row + 1 == buffer.buffer_size:
        buffer.full = True
        buffer.pos = 0


def _speaks_of(function: Any, names: frozenset[str]) -> bool:
    """Whether it speaks of nothing else."""
    return names.issuperset(function.__code__.co_names)


def only_reads(cls: type, mixin: type) -> bool:
    """
    Tell whether all that a sample does with the buffer is to read it, and with observations to make tensors of them.

    :param cls: A buffer class
    :param mixin: What makes it ours
    :return: Whether that is known, as it is of SB3's classes
    """
    readers = [parent for parent in cls.__mro__ if _READING & vars(parent).keys()]
    readers += [parent for parent in _after(cls, mixin) if "sample" in vars(parent)]
    return all(parent.__module__.startswith(_KNOWN) and not parent.__module__.startswith(_LEAVES_TRACES) for parent in readers)


def _after(cls: type, mixin: type) -> tuple[type, ...]:
    ours = [place for place, parent in enumerate(cls.__mro__) if issubclass(parent, mixin)]
    return cls.__mro__[max(ours, default=0) + 1 :]


def _next(cls: type, mixin: type, name: str) -> Any:
    """What the mixin's ``super()`` finds under a name."""
    return next((vars(parent)[name] for parent in _after(cls, mixin) if name in vars(parent)), None)


def hollow(space: spaces.Space[Any]) -> spaces.Space[Any]:
    """
    Make a space whose observations take no memory, so that the parent class can allocate them.

    :param space: The real one
    :return: One of the same kind, Dict or not
    """
    if isinstance(space, spaces.Dict):
        return spaces.Dict({key: hollow(part) for key, part in space.spaces.items()})
    return spaces.Box(0, 0, shape=(0,), dtype=np.uint8)


def all_floats(arrays: Any) -> bool:
    """
    Tell whether a parent made floats of a hollow space, which is of bytes.

    :param arrays: Its observations, an array or a dict of them
    :return: Whether it did
    """
    return all(array.dtype == np.float32 for array in (arrays.values() if isinstance(arrays, dict) else [arrays]))


def parent_signature(cls: type, mixin: type) -> inspect.Signature:
    """
    Find out what the SB3 class takes: its own keyword arguments and those of the class that it passes the others on to.

    :param cls: A buffer class
    :param mixin: What makes it ours
    :return: The signature without what is ours
    """
    parameters: dict[str, inspect.Parameter] = {}
    for parent in cls.__mro__:
        if issubclass(parent, mixin) or "__init__" not in vars(parent):
            continue
        own = list(inspect.signature(parent).parameters.values())
        named = [p for p in own if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if len(named) == len(own):
            parameters = {p.name: p for p in named} | parameters
            break
        parameters = {p.name: p.replace(kind=p.KEYWORD_ONLY) for p in named} | parameters
    return inspect.Signature(sorted(parameters.values(), key=lambda p: p.kind))


def full_signature(cls: type, mixin: type) -> inspect.Signature:
    """
    Find out what a buffer class takes, ours and the parent's.

    :param cls: A buffer class
    :param mixin: What makes it ours
    :return: The signature
    """
    parameters = dict(parent_signature(cls, mixin).parameters)
    for parent in reversed(cls.__mro__):
        if issubclass(parent, mixin) and "__init__" in vars(parent):
            ours = inspect.signature(parent.__init__).parameters.values()
            parameters |= {p.name: p for p in ours if p.kind is p.KEYWORD_ONLY}
    return inspect.Signature(list(parameters.values()))


class HollowParent(SavedAtOnce):
    """
    Mixin for buffers whose parent was made with a hollow space.

    One lock guards all of a buffer: whoever adds to it, samples, resets or saves it holds the lock meanwhile.
    """

    def _adopt(self, space: spaces.Space[Any]) -> None:
        self.observation_space = space
        self.obs_shape = get_obs_shape(space)  # type: ignore[assignment]

    def _spaces(self) -> dict[str | None, spaces.Space[Any]]:
        if isinstance(self.observation_space, spaces.Dict):
            return dict(self.observation_space.spaces.items())
        return {None: self.observation_space}

    def _dtypes_by_key(self, dtypes: Mapping[str, Any] | None) -> dict[str | None, Mapping[str, Any] | None]:
        """One choice of types for all keys, or one for some of them."""
        keys = self._spaces().keys()
        if dtypes is None or not any(isinstance(value, Mapping) for value in dtypes.values()):
            return dict.fromkeys(keys, dtypes)
        if not dtypes.keys() <= keys:
            raise ValueError(f"dtypes has the keys {list(dtypes)}, but the observation space has {list(keys)}")
        return {key: dtypes.get(key) if key is not None else None for key in keys}

    @abstractmethod
    def _install(self) -> None:
        """Give the parent its arrays of observations, in the form it expects."""

    def _reset_aside(self, cls: type) -> bool:
        """
        Have the parent reset itself, without seeing the real space.

        It does so in a copy, and what it has done is taken over in one step: whenever Ctrl-C comes, this buffer is either
        not reset or reset.

        :param cls: The class whose parent is meant
        :return: Whether it has forgotten its observations, as rollout buffers do
        """
        twin = self._reset_twin(cls)
        twin._adopt(self.observation_space)
        made = twin.__dict__["observations"]
        forgets: bool = made is not self.__dict__["observations"]
        if forgets:
            twin._parent_floats = all_floats(made)  # it may be another SB3 than the one that made a buffer which was loaded
            twin._install()
        self.__dict__.update(twin.__dict__)
        return forgets

    def _reset_twin(self, cls: type) -> Any:
        """A copy of which the parent has been reset, with a hollow space."""
        twin = shallow_copy(self)
        twin._adopt(hollow(self.observation_space))
        super(cls, twin).reset()  # type: ignore[arg-type]
        return twin


def each_while_locked(batches: Generator[Any, None, None], buffer: Any) -> Generator[Any, None, None]:
    """
    Make the minibatches of a rollout, each while the lock of the buffer is held, but not between them.

    :param batches: Minibatches
    :param buffer: The buffer that makes them
    :return: The same
    """
    batch = None
    while True:
        with buffer._lock:
            if not buffer.full or (batch is not None and not buffer.generator_ready):
                raise RuntimeError("the rollout was reset before all of its minibatches were read; call get() again")
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
