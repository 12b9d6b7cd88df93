"""Policies on their way to collectors, and how collectors act."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_extra_buffers.distributed.schema import Array

EXPLORATIONS = ("model", "ape-x")
_APEX_BASE, _APEX_POWER = 0.4, 7.0
_NOT_FOR_ACTING = ("critic", "q_net_target", "quantile_net_target", "actor_target")


class PolicySpec(NamedTuple):
    """What a collector needs to make a policy: sent once."""

    policy_class: type[Any]
    arguments: dict[str, Any]
    action_noise: Any
    exploration: str


class Publication(NamedTuple):
    """A version of the policy."""

    version: int
    weights: dict[str, Array]
    epsilon: float
    """Share of random actions, where the algorithm has one."""
    is_random: bool
    """Whether all actions are random, as before ``learning_starts``."""


def describe_policy(model: OffPolicyAlgorithm, exploration: str) -> PolicySpec:
    """
    Tell what the policy of a model is.

    :param model: The model
    :param exploration: See ``Fleet``
    :return: What makes another one of it
    """
    noise = model.action_noise
    noise = getattr(noise, "base_noise", noise)  # SB3 has made one of it for each environment
    return PolicySpec(type(model.policy), model.policy._get_constructor_parameters(), noise, exploration)


def publish(model: OffPolicyAlgorithm, version: int) -> Publication:
    """
    Take the weights that acting needs.

    :param model: The model
    :param version: Its version
    :return: Copies of them, as arrays
    """
    weights = {
        name: tensor.detach().cpu().numpy().copy()
        for name, tensor in model.policy.state_dict().items()
        if not name.startswith(_NOT_FOR_ACTING)
    }
    epsilon = float(getattr(model, "exploration_rate", 0.0))
    return Publication(version, weights, epsilon, model.num_timesteps < model.learning_starts)


def lane_epsilons(first: int, lanes: int, n_lanes: int) -> Array:
    """
    Choose how much each environment explores, as Ape-X does: most of them little, some a lot.

    :param first: Number of the first environment among all of the fleet
    :param lanes: How many
    :param n_lanes: Environments of the fleet
    :return: A share of random actions for each
    """
    places = np.arange(first, first + lanes) / max(n_lanes - 1, 1)
    return np.asarray(_APEX_BASE ** (1.0 + _APEX_POWER * places))


class Actor:
    """
    Acts as SB3's off-policy algorithms do while they collect.

    :param spec: The policy
    :param action_space: What environments take
    :param lanes: Number of environments
    :param epsilons: What ``lane_epsilons`` chose, for ``exploration="ape-x"``
    :param seed: Seed of random actions
    """

    def __init__(
        self, spec: PolicySpec, action_space: spaces.Space[Any], lanes: int, epsilons: Array, seed: int | None
    ) -> None:
        self.policy = spec.policy_class(**spec.arguments)
        self.policy.set_training_mode(False)
        self.action_space, self.lanes = action_space, lanes
        self.noise: Any = None
        if spec.action_noise is not None:
            from stable_baselines3.common.noise import VectorizedActionNoise

            self.noise = VectorizedActionNoise(spec.action_noise, lanes)
        self.is_apex, self._apex = spec.exploration == "ape-x", epsilons
        self.rng = np.random.default_rng(seed)
        action_space.seed(seed)
        self.version = -1
        self._publication: Publication | None = None

    def take(self, publication: Publication) -> None:
        """
        Act by another version of the policy from now on.

        :param publication: The version
        """
        # A copy: what comes from Ray's store cannot be written to, and torch warns of that.
        weights = {name: th.from_numpy(np.array(array)) for name, array in publication.weights.items()}
        self.policy.load_state_dict(weights, strict=False)
        self.version, self._publication = publication.version, publication

    def act(self, obs: Any) -> tuple[Array, Array]:
        """
        Choose actions.

        :param obs: Observations, one an environment
        :return: Actions for the environments, and as they are stored
        """
        assert self._publication is not None
        if self._publication.is_random:
            actions = self._sample()
        else:
            actions, _ = self.policy.predict(obs, deterministic=False)
            if isinstance(self.action_space, spaces.Discrete):
                epsilons = self._apex if self.is_apex else self._publication.epsilon
                by_chance = self.rng.random(self.lanes) < epsilons
                if by_chance.any():
                    actions = np.where(by_chance, self._sample(), actions)
        if not isinstance(self.action_space, spaces.Box):
            return actions, actions
        scaled = self.policy.scale_action(actions)
        if self.noise is not None:
            scaled = np.clip(scaled + self.noise(), -1, 1)
        return self.policy.unscale_action(scaled), scaled

    def _sample(self) -> Array:
        return np.array([self.action_space.sample() for _ in range(self.lanes)])

    def end_episodes(self, dones: Array) -> None:
        """
        Begin action noise anew where episodes have ended.

        :param dones: Whether they have
        """
        if self.noise is not None and dones.any():
            self.noise.reset(indices=np.flatnonzero(dones).tolist())
