"""The lines to paste."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sb3_extra_buffers.cli.environments import Environments, atari_options, is_atari
from sb3_extra_buffers.cli.errors import UsageError

if TYPE_CHECKING:
    import gymnasium as gym

ON_POLICY = ("PPO", "A2C")
OFF_POLICY = ("DQN", "SAC", "TD3", "DDPG")
ALGORITHMS = (*OFF_POLICY, *ON_POLICY)
STEPS = 10_000


def choose_algorithm(name: str | None, action_space: gym.Space[object]) -> str:
    """
    Choose an algorithm that can act.

    :param name: What the user wants, if anything
    :param action_space: Space of the actions
    :return: Name of the algorithm
    """
    from gymnasium import spaces

    able = ["PPO", "A2C"]
    if isinstance(action_space, spaces.Discrete):
        able = ["DQN", *able]
    elif isinstance(action_space, spaces.Box):
        able = ["SAC", "TD3", "DDPG", *able]
    if name is None:
        return able[0]
    if name not in able:
        raise UsageError(f"{name} cannot act in {action_space}; these can: {', '.join(able)}")
    return name


def policy_for(space: gym.Space[object]) -> str:
    """
    Choose the policy that SB3 has for a space.

    :param space: What the algorithm observes
    :return: Its name
    """
    from gymnasium import spaces
    from stable_baselines3.common.preprocessing import is_image_space

    if isinstance(space, spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if is_image_space(space) else "MlpPolicy"


def write_script(
    environments: Environments, space: gym.Space[object], algorithm: str, method: str | None, buffer_size: int
) -> str:
    """
    Write a training script.

    :param environments: What to train on
    :param space: What the algorithm observes
    :param algorithm: Its name
    :param method: Compression method; None for SB3's own buffer
    :param buffer_size: Transitions in the buffer
    :return: The script
    """
    from gymnasium import spaces

    kind = "rollout" if algorithm in ON_POLICY else "replay"
    buffer = f"Compressed{'Dict' if isinstance(space, spaces.Dict) else ''}{kind.title()}Buffer"
    n_envs, stack = environments.n_envs, environments.stack or 1
    atari = is_atari(environments.env_id)
    theirs = [f"from stable_baselines3 import {algorithm}"]
    ours = [] if method is None else [f"from sb3_extra_buffers.compressed import {buffer}"]
    if atari and not environments.rgb:
        ours.append("from sb3_extra_buffers.training_utils import make_env")
        options = "".join(f", {name}={value}" for name, value in atari_options(environments.env_id).items())
        make = [f'env = make_env("{environments.env_id}", n_envs={n_envs}, framestack={stack}{options})']
    else:
        theirs.append("from stable_baselines3.common.env_util import make_vec_env")
        frames = atari_options(environments.env_id, rgb=True) if atari else {}
        options = f', env_kwargs={{"frameskip": {frames["frameskip"]}}}' if frames else ""
        make = [f'env = make_vec_env("{environments.env_id}", n_envs={n_envs}{options})']
        if atari:
            theirs.insert(0, "import ale_py\nimport gymnasium as gym")
            make.insert(0, "gym.register_envs(ale_py)")
        if stack > 1:
            theirs.append("from stable_baselines3.common.vec_env import VecFrameStack")
            make.append(f"env = VecFrameStack(env, {stack})")
        if environments.env_id.startswith("Vizdoom"):
            theirs.insert(0, "import vizdoom.gymnasium_wrapper  # makes its environments known to Gymnasium")
    arguments = [f'"{policy_for(space)}"', "env"]
    arguments.append(f"n_steps={max(2, buffer_size // n_envs)}" if kind == "rollout" else f"buffer_size={buffer_size:_}")
    if method is not None:
        arguments.append(f"{kind}_buffer_class={buffer}")
        arguments.append(f'{kind}_buffer_kwargs={{"compression_method": "{method}"}}')
    model = [f"model = {algorithm}(", *(f"    {argument}," for argument in arguments), ")"]
    blocks = [theirs, ours, [*make, *model, f"model.learn(total_timesteps={STEPS:_})"]]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"
