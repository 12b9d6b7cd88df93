"""
How small is each method, and how long does it take to store? Plays MsPacman (4 games, stack of 4) once, fills SB3's replay
buffer and a compressed one for each codec and level with it, and prints how many megabytes the process grows by and
how many seconds all calls of add() take together.

  python examples/example_eval_memory_saving.py                              40,000 transitions, all methods
  python examples/example_eval_memory_saving.py --methods delta rle-jit zstd-3
  python examples/example_eval_memory_saving.py --transitions 2000           quickly and roughly

The highest levels are slow: zstd22 alone takes minutes.
"""

from functools import partial

import common
from memory_table import METHODS, Table, play, table_parser
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.training_utils.atari import make_env


def main(arguments=None):
    parser = table_parser(__doc__, transitions=40_000)
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="METHOD", help="methods to measure")
    args = parser.parse_args(arguments)

    n_envs = 4
    tape = play(make_env("MsPacmanNoFrameskip-v4", n_envs, common.vec_env_class(args), framestack=4, seed=0), args.transitions)
    spaces = (tape.observation_space, tape.action_space, "cpu", n_envs)

    def sb3(rows):
        # At its smallest: next_obs is not stored, and so the last observation of each episode is lost.
        return ReplayBuffer(n_envs * rows, *spaces, optimize_memory_usage=True, handle_timeout_termination=False)

    def compressed(rows, method):
        return CompressedReplayBuffer(n_envs * rows, *spaces, compression_method=method)

    def add(buffer, step):
        buffer.add(*step)

    table = Table("all of add()", args.json)
    table.measure("SB3's ReplayBuffer", tape, sb3, add)
    for method in args.methods:
        table.measure(method, tape, partial(compressed, method=method), add)


if __name__ == "__main__":
    common.run(main)
