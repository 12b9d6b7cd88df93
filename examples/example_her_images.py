"""
Hindsight experience replay with pictures: SAC moves a robot arm to a point, and sees itself through a camera. Failed
attempts are replayed as if the point where they ended had been the goal.

  python examples/example_her_images.py                    train
  python examples/example_her_images.py --buffer sb3       with SB3's own buffer
  python examples/example_her_images.py evaluate           play 20 episodes with the best model
  python examples/example_her_images.py watch              write a video of it

A short run to see that everything works: --steps 200 --eval-every 100 --eval-envs 1 --episodes 2
"""

import common
from stable_baselines3 import SAC, HerReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from worlds import Arm

from sb3_extra_buffers.compressed import CompressedHerReplayBuffer


def main(arguments=None):
    parser = common.training_parser(__doc__, steps=50_000, envs=1)
    parser.set_defaults(eval_every=2_000, eval_envs=1)
    args = parser.parse_args(arguments)
    files = common.Files(args, "her", "arm")

    def arms(n_envs, seed=None):
        return make_vec_env(Arm, n_envs, seed=seed, env_kwargs={"goals": True})

    if args.action != "train":
        return common.show(SAC.load(files.to_load(), env=arms(1)), arms, files, args)

    her = {"n_sampled_goal": 4, "goal_selection_strategy": "future"}
    buffer = {"replay_buffer_class": HerReplayBuffer, "replay_buffer_kwargs": her}
    if args.buffer == "compressed":
        buffer["replay_buffer_class"] = CompressedHerReplayBuffer
        her["compression_method"] = args.method

    model = SAC(
        "MultiInputPolicy",
        arms(args.envs, args.seed),
        buffer_size=50_000,
        learning_starts=100,  # HER needs a whole episode, which has at most 50 steps
        batch_size=64,
        train_freq=2,
        seed=args.seed,
        verbose=1,
        **buffer,
    )
    common.train(model, arms(args.eval_envs, args.seed + 1000), files, args)


if __name__ == "__main__":
    common.run(main)
