"""
RecurrentPPO in a maze where the flag is shown for only three steps: the agent has to remember where it was. RecurrentPPO
itself takes no buffer class. CompressedRecurrentPPO is the same algorithm, but takes one and uses the compressed buffer by
default.

  python examples/example_recurrent_ppo.py                 train
  python examples/example_recurrent_ppo.py --buffer sb3    with SB3-Contrib's own algorithm and buffer
  python examples/example_recurrent_ppo.py evaluate        play 20 episodes with the best model
  python examples/example_recurrent_ppo.py watch           write a video of it

A short run to see that everything works: --steps 1024 --envs 2 --eval-every 256 --eval-envs 2 --episodes 2
"""

from functools import partial

import common
from stable_baselines3.common.env_util import make_vec_env
from worlds import Maze

with common.extra("contrib"):
    from sb3_contrib import RecurrentPPO

    from sb3_extra_buffers.compressed import CompressedRecurrentPPO


def main(arguments=None):
    parser = common.training_parser(__doc__, steps=400_000, envs=8)
    parser.set_defaults(eval_every=1_024)
    args = parser.parse_args(arguments)
    files = common.Files(args, "recurrent_ppo", "maze")

    def mazes(n_envs, seed=None):
        return make_vec_env(Maze, n_envs, seed=seed, env_kwargs={"flag_seen": 3})

    if args.action != "train":
        return common.show(RecurrentPPO.load(files.to_load()), mazes, files, args)

    algorithm = RecurrentPPO
    if args.buffer == "compressed":
        algorithm = partial(CompressedRecurrentPPO, rollout_buffer_kwargs={"compression_method": args.method})

    model = algorithm(
        "CnnLstmPolicy",
        mazes(args.envs, args.seed),
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=2.5e-4,
        ent_coef=0.01,
        policy_kwargs={"lstm_hidden_size": 64},
        seed=args.seed,
        verbose=1,
    )
    common.train(model, mazes(args.eval_envs, args.seed + 1000), files, args)


if __name__ == "__main__":
    common.run(main)
