"""
Watch the PPO of example_train_gpu_rollout.py play Pong: in a window, or as a video where there is no screen.

  python examples/example_watch_gpu_rollout.py
  python examples/example_watch_gpu_rollout.py --steps 500 --video pong.mp4
"""

from pathlib import Path

import common
from example_watch_gpu_replay import GAME, watch
from stable_baselines3 import PPO

MODEL = Path("logs") / GAME / "ppo" / "gpu_rollout.zip"


def main(arguments=None):
    watch(__doc__, PPO, MODEL, arguments)


if __name__ == "__main__":
    common.run(main)
