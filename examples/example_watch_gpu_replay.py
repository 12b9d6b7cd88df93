"""
Watch the DQN of example_train_gpu_replay.py play Pong: in a window, or as a video where there is no screen.

  python examples/example_watch_gpu_replay.py
  python examples/example_watch_gpu_replay.py --steps 500 --video pong.mp4
"""

import os
import sys
from pathlib import Path

import common
from stable_baselines3 import DQN

from sb3_extra_buffers.recording import CompressedRecordBuffer, export_video
from sb3_extra_buffers.training_utils.atari import make_env

GAME = "PongNoFrameskip-v4"
MODEL = Path("logs") / GAME / "dqn" / "gpu_replay.zip"
FRAMES_A_SECOND = 15  # a step of Pong is four frames of sixty


def watch(description, algorithm, default_model, arguments=None):
    """
    Play with a model and show it.

    :param description: What the command line is for
    :param algorithm: Class of the model
    :param default_model: File it is in, if the command line names no other
    :param arguments: The command line, if it is not that of the process
    """
    parser = common.make_parser(description)
    parser.add_argument("--model", type=Path, default=default_model, help="file the model was saved in")
    parser.add_argument("--steps", type=common.positive, default=2_000, help="how long to watch")
    parser.add_argument("--video", type=Path, help="write a video to this file even if there is a screen")
    parser.add_argument("--device", default="auto", help="where to run the model")
    args = parser.parse_args(arguments)
    if not args.model.exists():
        parser.error(f"there is no {args.model}; train it first, or name another with --model")
    has_screen = sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    in_window = has_screen and args.video is None

    env = make_env(GAME, 1, framestack=4, seed=1, render_mode="human" if in_window else "rgb_array")
    # Nothing is learned here, so a replay buffer of one transition is enough.
    model = algorithm.load(args.model, device=args.device, custom_objects={"buffer_size": 1})
    obs, score = env.reset(), 0.0
    record = None if in_window else CompressedRecordBuffer(None, env.get_images()[0].shape)
    for _ in range(args.steps):
        actions, _ = model.predict(obs, deterministic=False)
        frame = None if record is None else env.get_images()[0]
        obs, rewards, _, _ = env.step(actions)
        score += float(rewards[0])
        if record is not None:
            record.add(frame, rewards[0], actions[0])
    env.close()
    print(f"{score:+.0f} points in {args.steps} steps")
    if record is not None:
        video = args.video or args.model.with_suffix(".mp4")
        export_video(record, video, fps=FRAMES_A_SECOND)
        print(f"saved {video}")


def main(arguments=None):
    watch(__doc__, DQN, MODEL, arguments)


if __name__ == "__main__":
    common.run(main)
