"""
DQN on Pong with a replay buffer whose observations stay compressed on the learner's device, 10 million steps.

  python examples/example_train_gpu_replay.py                    train; on a GPU if there is one
  python examples/example_train_gpu_replay.py --method rle       with another method
  python examples/example_train_gpu_replay.py --steps 2000       a short run to see that everything works
  python examples/example_watch_gpu_replay.py                    watch the result play
"""

import logging
from pathlib import Path

import common
from stable_baselines3 import DQN
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from sb3_extra_buffers.gpu_buffers import GpuReplayBuffer
from sb3_extra_buffers.training_utils.atari import make_env

GAME = "PongNoFrameskip-v4"
MODEL = Path("logs") / GAME / "dqn" / "gpu_replay.zip"


def main(arguments=None):
    parser = common.make_parser(__doc__)
    parser.add_argument("--steps", type=common.positive, default=10_000_000, help="how long to train")
    parser.add_argument("--envs", type=common.positive, default=4, help="games at once")
    parser.add_argument("--buffer-size", type=common.positive, default=100_000, help="transitions in the buffer")
    parser.add_argument("--method", default="delta", help="how observations are compressed")
    parser.add_argument("--device", default="auto", help="where to learn, and to keep observations: cuda, mps, cpu")
    parser.add_argument("--model", type=Path, default=MODEL, help="file to save the model in")
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # the heap says how it is sized

    env = make_env(GAME, args.envs, SubprocVecEnv if args.steps > 100_000 else DummyVecEnv, framestack=4, seed=0)
    model = DQN(
        "CnnPolicy",
        env,
        buffer_size=args.buffer_size,
        learning_starts=min(100_000, args.steps // 4),
        batch_size=32,
        train_freq=1,
        gradient_steps=1,
        target_update_interval=1_000,
        exploration_fraction=0.1,
        exploration_final_eps=0.01,
        replay_buffer_class=GpuReplayBuffer,
        # Without buffer_device, observations are kept where the model learns.
        replay_buffer_kwargs={"compression_method": args.method},
        device=args.device,
        seed=0,
        verbose=1,
    )
    common.learn(model, args.steps, args.model)
    print(f"{model.replay_buffer.memory_usage()}, on {model.replay_buffer.buffer_device}")
    env.close()


if __name__ == "__main__":
    common.run(main)
