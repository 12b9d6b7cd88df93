"""
DQN on Doom: learn to defend the center of a room, from the picture or from a semantic segmentation mask.

  python examples/example_dqn_vizdoom.py                          masks, the default compression method
  python examples/example_dqn_vizdoom.py --method rle-jit         masks, run lengths
  python examples/example_dqn_vizdoom.py --observe rgb            pictures
  python examples/example_dqn_vizdoom.py --buffer sb3             with SB3's own buffer
  python examples/example_dqn_vizdoom.py evaluate                 play 20 episodes with the best model
  python examples/example_dqn_vizdoom.py watch                    write a video of it

A short run to see that everything works:
  --steps 2000 --learning-starts 1000 --buffer-size 2000 --eval-every 400 --eval-envs 2 --episodes 2
"""

from pathlib import Path

import common
from stable_baselines3 import DQN

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.training_utils.vizdoom import make_env


def main(arguments=None):
    parser = common.training_parser(__doc__, steps=200_000, envs=4)
    common.add_vizdoom_options(parser)
    parser.add_argument("--buffer-size", type=common.positive, default=100_000, help="transitions in the buffer")
    parser.add_argument("--learning-starts", type=common.positive, default=10_000, help="steps to play before learning")
    args = parser.parse_args(arguments)
    files = common.Files(args, "dqn", f"{Path(args.scenario).stem}_{args.observe}")

    def games(n_envs, seed=None):
        # Two frames, so that what moves can be told from what stands still. Each frame is stored only once.
        see = {"observe": args.observe, "shrink": 2}
        return make_env(args.scenario, n_envs, common.vec_env_class(args), 2, seed, args.reward_scale, **see)

    if args.action != "train":
        return common.show(DQN.load(files.to_load()), games, files, args)

    buffer = {}
    if args.buffer == "compressed":
        buffer["replay_buffer_class"] = CompressedReplayBuffer
        buffer["replay_buffer_kwargs"] = {"compression_method": args.method}

    model = DQN(
        "CnnPolicy",
        games(args.envs, args.seed),
        buffer_size=args.buffer_size,
        learning_starts=args.learning_starts,
        learning_rate=1e-4,
        batch_size=32,
        train_freq=1,
        target_update_interval=1_000,
        exploration_fraction=0.3,
        exploration_final_eps=0.05,
        seed=args.seed,
        verbose=1,
        **buffer,
    )
    common.train(model, games(args.eval_envs, args.seed + 1000), files, args)


if __name__ == "__main__":
    common.run(main)
