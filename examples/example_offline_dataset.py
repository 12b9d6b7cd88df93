"""
Experience that is used twice. A robot arm plays at random, and what it saw is saved as a data set. The data set is opened, its
episodes are counted, and SAC learns from it and from its own play at the same time: a part of every batch is offline.

  python examples/example_offline_dataset.py                   play, look, train
  python examples/example_offline_dataset.py --ratio 0.25      with a quarter of each batch from the data set

A short run to see that everything works: --collect 300 --steps 200
"""

from pathlib import Path

import common
import numpy as np
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from worlds import Arm

from sb3_extra_buffers import MixedDictReplayBuffer, open_dataset
from sb3_extra_buffers.compressed import CompressedDictReplayBuffer


def main(arguments=None):
    parser = common.make_parser(__doc__)
    parser.add_argument("--collect", type=common.positive, default=10_000, help="transitions that are played at random")
    parser.add_argument("--steps", type=common.positive, default=20_000, help="steps to train")
    parser.add_argument("--ratio", type=float, default=0.5, help="part of each batch that comes from the data set")
    parser.add_argument("--seed", type=int, default=0, help="seed")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the data set and the model go")
    args = parser.parse_args(arguments)
    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / "arm.sb3x"

    settings = {"buffer_size": 50_000, "batch_size": 64, "train_freq": 2, "seed": args.seed}
    env = make_vec_env(Arm, 1, seed=args.seed)

    # Until learning starts, actions are random.
    player = SAC(
        "MultiInputPolicy",
        env,
        learning_starts=args.collect,
        replay_buffer_class=CompressedDictReplayBuffer,
        **settings,
    )
    player.learn(args.collect)
    size = player.replay_buffer.save(path)

    dataset = open_dataset(path)
    returns = [float(episode.rewards.sum()) for episode in dataset.episodes()]
    print(f"{len(dataset):,} transitions in {path}, {size / 1e6:.2f} MB")
    print(f"{len(returns)} episodes, mean return {np.mean(returns):.2f}")

    model = SAC(
        "MultiInputPolicy",
        env,
        replay_buffer_class=MixedDictReplayBuffer,
        replay_buffer_kwargs={"dataset": str(path), "ratio": args.ratio},
        verbose=1,
        **settings,
    )
    common.learn(model, args.steps, args.folder / "sac_arm_offline.zip")


if __name__ == "__main__":
    common.run(main)
