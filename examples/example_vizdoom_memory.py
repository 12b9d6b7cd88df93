"""
How much memory does Doom need? Plays a scenario twice with the same seed and the same actions, once seen as RGB pictures and
once as semantic segmentation masks, and fills replay buffers with both: SB3's and compressed ones.

  python examples/example_vizdoom_memory.py                                  deathmatch, 10,000 transitions
  python examples/example_vizdoom_memory.py --scenario deadly_corridor
  python examples/example_vizdoom_memory.py --transitions 1000               quickly and roughly
"""

from functools import partial

import common
from memory_table import Table, play, table_parser
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.training_utils.vizdoom import make_env


def main(arguments=None):
    parser = table_parser(__doc__, transitions=10_000)
    parser.add_argument("--scenario", default="deathmatch", help="scenario that comes with ViZDoom, or a .cfg file")
    args = parser.parse_args(arguments)

    n_envs = 4
    table = Table("all of add()", args.json)
    for observe, methods in {"rgb": (None,), "mask": ("rle-jit", None)}.items():
        env = make_env(args.scenario, n_envs, common.vec_env_class(args), seed=0, observe=observe)
        tape = play(env, args.transitions)
        spaces = (tape.observation_space, tape.action_space, "cpu", n_envs)

        def sb3(rows, spaces=spaces):
            return ReplayBuffer(n_envs * rows, *spaces)

        def compressed(rows, method, spaces=spaces):
            return CompressedReplayBuffer(n_envs * rows, *spaces, compression_method=method)

        def add(buffer, step):
            buffer.add(*step)

        table.measure(f"{observe}, SB3's buffer", tape, sb3, add)
        for method in methods:
            table.measure(f"{observe}, compressed, {method or 'default'}", tape, partial(compressed, method=method), add)

    each = {row["method"]: row["bytes"] / args.transitions for row in table.rows}
    print("\nFor 100,000 transitions: " + ", ".join(f"{name} {size * 1e5 / 1e9:.2f} GB" for name, size in each.items()))


if __name__ == "__main__":
    common.run(main)
