"""
PPO on Atari, with the published settings: Pong without a frame stack, or MsPacman with a stack of four. The buffer uses the
default method, delta; the published runs used rle-jit, which takes more memory and more time for the same samples.

  python examples/example_ppo_atari.py                     train on Pong, 10 million steps
  python examples/example_ppo_atari.py --game MsPacman     the same on MsPacman
  python examples/example_ppo_atari.py --method rle-jit    with the method of the published run
  python examples/example_ppo_atari.py --buffer sb3        with SB3's own buffer
  python examples/example_ppo_atari.py evaluate            play 20 episodes with the best model
  python examples/example_ppo_atari.py watch               write a video of it

A short run to see that everything works: --steps 1024 --envs 2 --eval-every 512 --eval-envs 2 --episodes 2
"""

import common
from stable_baselines3 import PPO
from stable_baselines3.common.utils import LinearSchedule

from sb3_extra_buffers.compressed import CompressedRolloutBuffer
from sb3_extra_buffers.training_utils.atari import make_env

STACKS = {"Pong": 1, "MsPacman": 4}


def main(arguments=None):
    parser = common.training_parser(__doc__, steps=10_000_000, envs=8)
    parser.add_argument("--game", choices=STACKS, default="Pong", help="what to play")
    args = parser.parse_args(arguments)
    files = common.Files(args, "ppo", args.game, f"_{STACKS[args.game]}")

    def games(n_envs, seed=None):
        env_id = f"{args.game}NoFrameskip-v4"
        return make_env(env_id, n_envs, common.vec_env_class(args), framestack=STACKS[args.game], seed=seed)

    if args.action != "train":
        return common.show(PPO.load(files.to_load()), games, files, args)

    buffer = {}
    if args.buffer == "compressed":
        buffer["rollout_buffer_class"] = CompressedRolloutBuffer
        buffer["rollout_buffer_kwargs"] = {"compression_method": args.method}

    model = PPO(
        "CnnPolicy",
        games(args.envs, args.seed),
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=LinearSchedule(2.5e-4, 0, 1),
        clip_range=LinearSchedule(0.1, 0, 1),
        ent_coef=0.01,
        vf_coef=0.5,
        seed=args.seed,
        verbose=1,
        **buffer,
    )
    common.train(model, games(args.eval_envs, args.seed + 1000), files, args)


if __name__ == "__main__":
    common.run(main)
