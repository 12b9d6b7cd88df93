"""
MaskablePPO in a maze: the agent sees the maze from above, and is not allowed to walk into walls. The buffer compresses the
pictures and stores masks as bits.

  python examples/example_maskable_ppo.py                  train
  python examples/example_maskable_ppo.py --buffer sb3     with SB3-Contrib's own buffer
  python examples/example_maskable_ppo.py evaluate         play 20 episodes with the best model
  python examples/example_maskable_ppo.py watch            write a video of it

A short run to see that everything works: --steps 1024 --envs 2 --eval-every 256 --eval-envs 2 --episodes 2
"""

import common
from stable_baselines3.common.env_util import make_vec_env
from worlds import Maze

with common.extra("contrib"):
    from sb3_contrib import MaskablePPO
    from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
    from sb3_contrib.common.maskable.utils import get_action_masks

    from sb3_extra_buffers.compressed import CompressedMaskableRolloutBuffer


class Masked:
    """
    A model that looks up by itself which actions are allowed, for ``eval_model``.

    :param model: The model
    """

    def __init__(self, model):
        self.model = model

    def predict(self, obs, **kwargs):
        return self.model.predict(obs, action_masks=get_action_masks(self.env), **kwargs)


def main(arguments=None):
    parser = common.training_parser(__doc__, steps=200_000, envs=8)
    parser.set_defaults(eval_every=1_024)
    args = parser.parse_args(arguments)
    files = common.Files(args, "maskable_ppo", "maze")

    def mazes(n_envs, seed=None):
        return make_vec_env(Maze, n_envs, seed=seed)

    if args.action != "train":
        model = Masked(MaskablePPO.load(files.to_load()))

        def masked_mazes(n_envs):
            model.env = mazes(n_envs)
            return model.env

        return common.show(model, masked_mazes, files, args)

    buffer = {}
    if args.buffer == "compressed":
        buffer["rollout_buffer_class"] = CompressedMaskableRolloutBuffer
        buffer["rollout_buffer_kwargs"] = {"compression_method": args.method}

    model = MaskablePPO(
        "CnnPolicy",
        mazes(args.envs, args.seed),
        n_steps=128,
        batch_size=256,
        n_epochs=4,
        learning_rate=2.5e-4,
        ent_coef=0.01,
        seed=args.seed,
        verbose=1,
        **buffer,
    )
    common.train(model, mazes(args.eval_envs, args.seed + 1000), files, args, MaskableEvalCallback)


if __name__ == "__main__":
    common.run(main)
