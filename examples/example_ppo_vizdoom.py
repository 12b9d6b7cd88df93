"""
PPO on Doom: learn to defend the center of a room, from the picture, from a semantic segmentation mask, or from both.

  python examples/example_ppo_vizdoom.py                          masks, the default compression method
  python examples/example_ppo_vizdoom.py --method rle-jit         masks, run lengths
  python examples/example_ppo_vizdoom.py --observe rgb            pictures
  python examples/example_ppo_vizdoom.py --observe both           a Dict of both
  python examples/example_ppo_vizdoom.py --buffer sb3             with SB3's own buffer
  python examples/example_ppo_vizdoom.py evaluate                 play 20 episodes with the best model
  python examples/example_ppo_vizdoom.py watch                    write a video of it

In a mask every pixel has the value of what is seen there: wall, floor, monster, health and so on.

The scenario basic is learned in 10,000 steps. Its rewards are in the hundreds, so make them smaller for the network:
--scenario basic --steps 10000 --reward-scale 0.01

A short run to see that everything works: --steps 2048 --envs 2 --eval-every 512 --eval-envs 2 --episodes 2
"""

from pathlib import Path

import common
from stable_baselines3 import PPO

from sb3_extra_buffers.compressed import CompressedDictRolloutBuffer, CompressedRolloutBuffer
from sb3_extra_buffers.training_utils.vizdoom import make_env


def main(arguments=None):
    parser = common.training_parser(__doc__, steps=200_000, envs=8)
    common.add_vizdoom_options(parser)
    args = parser.parse_args(arguments)
    files = common.Files(args, "ppo", f"{Path(args.scenario).stem}_{args.observe}")

    def games(n_envs, seed=None):
        # 160x120 is the smallest that ViZDoom renders; half of that is enough to tell monsters from walls.
        see = {"observe": args.observe, "shrink": 2}
        return make_env(args.scenario, n_envs, common.vec_env_class(args), None, seed, args.reward_scale, **see)

    if args.action != "train":
        return common.show(PPO.load(files.to_load()), games, files, args)

    buffer = {}
    if args.buffer == "compressed":
        buffer["rollout_buffer_class"] = CompressedDictRolloutBuffer if args.observe == "both" else CompressedRolloutBuffer
        buffer["rollout_buffer_kwargs"] = {"compression_method": args.method}

    model = PPO(
        "MultiInputPolicy" if args.observe == "both" else "CnnPolicy",
        games(args.envs, args.seed),
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=2.5e-4,
        clip_range=0.1,
        ent_coef=0.01,
        seed=args.seed,
        verbose=1,
        **buffer,
    )
    common.train(model, games(args.eval_envs, args.seed + 1000), files, args)


if __name__ == "__main__":
    common.run(main)
