"""
SAC on a robot arm that sees a ball through a camera and feels its joints: a Dict observation. The buffer compresses the
pictures; the joints are four numbers, which are stored as they are.

  python examples/example_sac_camera.py                    train
  python examples/example_sac_camera.py --buffer sb3       with SB3's own buffer
  python examples/example_sac_camera.py evaluate           play 20 episodes with the best model
  python examples/example_sac_camera.py watch              write a video of it

A short run to see that everything works: --steps 200 --eval-every 100 --eval-envs 1 --episodes 2
"""

import common
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from worlds import Arm

from sb3_extra_buffers.compressed import CompressedDictReplayBuffer


def main(arguments=None):
    parser = common.training_parser(__doc__, steps=50_000, envs=1)
    parser.set_defaults(eval_every=2_000, eval_envs=1)
    args = parser.parse_args(arguments)
    files = common.Files(args, "sac", "camera")

    def arms(n_envs, seed=None):
        return make_vec_env(Arm, n_envs, seed=seed)

    if args.action != "train":
        return common.show(SAC.load(files.to_load()), arms, files, args)

    buffer = {}
    if args.buffer == "compressed":
        buffer["replay_buffer_class"] = CompressedDictReplayBuffer
        buffer["replay_buffer_kwargs"] = {"compression_method": args.method}

    model = SAC(
        "MultiInputPolicy",
        arms(args.envs, args.seed),
        buffer_size=50_000,
        batch_size=64,
        train_freq=2,
        seed=args.seed,
        verbose=1,
        **buffer,
    )
    common.train(model, arms(args.eval_envs, args.seed + 1000), files, args)


if __name__ == "__main__":
    common.run(main)
