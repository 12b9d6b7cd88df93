"""
Train PPO on an Atari game for a while, let it play, and keep its actions.

Games are deterministic, so the actions and a seed are all that it takes to play exactly the same again: some 20 KB in
``benchmarks/play`` instead of a trained network. The benchmarks' datasets of trained play are made from them.
"""

from __future__ import annotations

import argparse
import json
import time
from importlib.metadata import version
from typing import Any

import numpy as np
from kit.data import DATASETS
from kit.players import TRAINED
from kit.recordings import SEED, FrameDigest, newest_frames
from kit.results import console
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv

from sb3_extra_buffers.compressed import CompressedRolloutBuffer
from sb3_extra_buffers.training_utils.atari import make_env

GAMES = {"mspacman-trained": "MsPacmanNoFrameskip-v4", "breakout-trained": "BreakoutNoFrameskip-v4"}


class Deadline(BaseCallback):
    """Ends a training run after some time, and says how it is doing."""

    def __init__(self, minutes: float) -> None:
        super().__init__()
        self._end = time.monotonic() + minutes * 60
        self._next = 0

    def _on_step(self) -> bool:
        if self.num_timesteps >= self._next:
            self._next += 50_000
            scores = [episode["r"] for episode in self.model.ep_info_buffer or ()]
            left = (self._end - time.monotonic()) / 60
            console.print(f"{self.num_timesteps:>9,} steps, mean score {np.mean(scores or [0]):,.1f}, {left:.0f} minutes left")
        return time.monotonic() < self._end


def main() -> None:
    """Run what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=GAMES, required=True, help="dataset whose play to make")
    parser.add_argument("--minutes", type=float, default=30, help="how long to train")
    args = parser.parse_args()
    dataset, game = DATASETS[args.dataset], GAMES[args.dataset]

    env = make_env(game, 8, DummyVecEnv, framestack=4, seed=SEED)
    # PPO's published settings for Atari, without the schedules, which would need to know the number of steps.
    model = PPO(
        "CnnPolicy",
        env,
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=2.5e-4,
        clip_range=0.1,
        ent_coef=0.01,
        seed=SEED,
        rollout_buffer_class=CompressedRolloutBuffer,
    )
    model.learn(100_000_000, callback=Deadline(args.minutes))
    env.close()

    rows = dataset.transitions * 5 // 4 // dataset.n_envs
    env = make_env(game, dataset.n_envs, DummyVecEnv, framestack=4, seed=SEED)
    obs: Any = env.reset()
    digest, actions, scores = FrameDigest(), [], []
    for _ in range(rows):
        action, _ = model.predict(obs)  # drawn from the policy, as PPO itself plays while it learns
        obs, _, _, infos = env.step(action)
        digest.update(newest_frames(obs))
        actions.append(action.astype(np.uint8))
        scores += [info["episode"]["r"] for info in infos if "episode" in info]
    env.close()
    about = {
        "game": game,
        "seed": SEED,
        "steps": model.num_timesteps,
        "minutes": args.minutes,
        "episodes": len(scores),
        "mean_score": round(float(np.mean(scores)), 1) if scores else None,
        "frames": digest.hexdigest(),
        "versions": {name: version(name) for name in ("ale-py", "gymnasium", "stable-baselines3", "opencv-python-headless")},
    }
    TRAINED.mkdir(exist_ok=True)
    np.savez_compressed(TRAINED / f"{dataset.name}.npz", actions=np.array(actions), about=json.dumps(about))
    console.print(about)


if __name__ == "__main__":
    main()
