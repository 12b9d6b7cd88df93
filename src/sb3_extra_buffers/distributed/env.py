"""What SB3 takes for its environments: a step waits until collectors have played as much."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from sb3_extra_buffers.distributed.block import Episode

if TYPE_CHECKING:
    from sb3_extra_buffers.distributed.fleet import Fleet

_MOST_EPISODES = 10_000


class FleetEnv(VecEnv):
    """
    The environments of a fleet, as the learner sees them.

    It has as many as all collectors together, so settings mean what they mean with a ``SubprocVecEnv`` of that size. A step
    returns when one transition of each has been collected. Actions of the learner are not used, and observations are zeros:
    the real ones go from collectors to shards. Episodes that have ended are told in ``infos``, so SB3 logs them.

    :param fleet: The fleet
    :param observation_space: What collectors see
    :param action_space: What they do
    """

    def __init__(self, fleet: Fleet, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        super().__init__(fleet.n_lanes, observation_space, action_space)
        self.fleet = fleet
        self.episodes: deque[Episode] = deque(maxlen=_MOST_EPISODES)
        """Those that SB3 has not been told of yet."""
        self.may_step = False
        """Whether a model learns in it. Whoever begins with a reset wants to see real observations."""

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
            episode = self.episodes.popleft()
            dones[place] = True
            infos[place]["episode"] = {"r": episode.reward, "l": episode.length, "t": episode.seconds}
            if episode.success >= 0:
                infos[place]["is_success"] = bool(episode.success)
        return self._zeros(), np.zeros(self.num_envs, np.float32), dones, infos

    def close(self) -> None:
        """Do nothing: closing the fleet closes its environments."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """Environments are elsewhere: only ``render_mode``, which SB3 asks for, has an answer."""
        if attr_name == "render_mode":
            return [None] * len(list(self._get_indices(indices)))
        raise AttributeError(f"the environments of a fleet are in its collectors; {attr_name!r} cannot be looked up here")

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refuse: environments are elsewhere."""
        raise AttributeError(f"the environments of a fleet are in its collectors; set {attr_name!r} inside make_env()")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        """Refuse: environments are elsewhere."""
        raise AttributeError(f"the environments of a fleet are in its collectors; {method_name}() cannot be called here")

    def env_is_wrapped(self, wrapper_class: type[Any], indices: Any = None) -> list[bool]:
        """Tell SB3 of no wrapper."""
        return [False] * len(list(self._get_indices(indices)))

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Do nothing: ``Fleet(seed=...)`` seeds collectors."""
        return [None] * self.num_envs
