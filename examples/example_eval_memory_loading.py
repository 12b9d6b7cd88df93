"""
How long does each method take to read? Plays MsPacman (4 games, stack of 4) once, fills SB3's rollout buffer and a compressed
one for each codec and level with it, and prints how many megabytes the process grows by and how many seconds it takes to read
all of it in batches of 64.

  python examples/example_eval_memory_loading.py                             40,000 transitions, all methods
  python examples/example_eval_memory_loading.py --methods delta rle-jit zstd-3
  python examples/example_eval_memory_loading.py --transitions 2000          quickly and roughly
"""

from functools import partial

import common
import torch as th
from memory_table import METHODS, Table, play, table_parser
from stable_baselines3.common.buffers import RolloutBuffer

from sb3_extra_buffers.compressed import CompressedRolloutBuffer
from sb3_extra_buffers.training_utils.atari import make_env


def main(arguments=None):
    parser = table_parser(__doc__, transitions=40_000)
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="METHOD", help="methods to measure")
    parser.add_argument("--batch-size", type=common.positive, default=64, help="size of a batch")
    args = parser.parse_args(arguments)

    n_envs = 4
    tape = play(make_env("MsPacmanNoFrameskip-v4", n_envs, common.vec_env_class(args), framestack=4, seed=0), args.transitions)
    spaces = (tape.observation_space, tape.action_space, "cpu")

    def sb3(rows):
        return RolloutBuffer(rows, *spaces, n_envs=n_envs)

    def compressed(rows, method):
        return CompressedRolloutBuffer(rows, *spaces, n_envs=n_envs, compression_method=method)

    def add(buffer, step):
        nothing = th.zeros(n_envs)  # values and log probabilities, which do not matter here
        buffer.add(step.obs, step.action, step.reward, step.done, nothing, nothing)

    def read(buffer):
        for _ in buffer.get(args.batch_size):
            pass

    table = Table("reading", args.json)
    table.measure("SB3's RolloutBuffer", tape, sb3, add, read)
    for method in args.methods:
        table.measure(method, tape, partial(compressed, method=method), add, read)


if __name__ == "__main__":
    common.run(main)
