"""
PPO on Pong with a rollout buffer whose observations stay compressed on the learner's device, 10 million steps.

  python examples/example_train_gpu_rollout.py                    train; on a GPU if there is one
  python examples/example_train_gpu_rollout.py --method rle       with another method
  python examples/example_train_gpu_rollout.py --steps 2000       a short run to see that everything works
  python examples/example_watch_gpu_rollout.py                    watch the result play
"""

import logging
from pathlib import Path

import common
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from sb3_extra_buffers.gpu_buffers import GpuRolloutBuffer
from sb3_extra_buffers.training_utils.atari import make_env

GAME = "PongNoFrameskip-v4"
MODEL = Path("logs") / GAME / "ppo" / "gpu_rollout.zip"


def main(arguments=None):
    parser = common.make_parser(__doc__)
    parser.add_argument("--steps", type=common.positive, default=10_000_000, help="how long to train")
    parser.add_argument("--envs", type=common.positive, default=8, help="games at once")
    parser.add_argument("--method", default="delta", help="how observations are compressed")
    parser.add_argument("--device", default="auto", help="where to learn, and to keep observations: cuda, mps, cpu")
    parser.add_argument("--model", type=Path, default=MODEL, help="file to save the model in")
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # the heap says how it is sized

    env = make_env(GAME, args.envs, SubprocVecEnv if args.steps > 100_000 else DummyVecEnv, framestack=4, seed=0)
    model = PPO(
        "CnnPolicy",
        env,
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=lambda left: 2.5e-4 * left,
        clip_range=lambda left: 0.1 * left,
        ent_coef=0.01,
        vf_coef=0.5,
        rollout_buffer_class=GpuRolloutBuffer,
        # Without buffer_device, observations are kept where the model learns.
        rollout_buffer_kwargs={"compression_method": args.method},
        device=args.device,
        seed=0,
        verbose=1,
    )
    common.learn(model, args.steps, args.model)
    print(f"{model.rollout_buffer.memory_usage()}, on {model.rollout_buffer.buffer_device}")
    env.close()


if __name__ == "__main__":
    common.run(main)
