"""
DQN on a small game of catch, with collectors and shards on Ray: two minutes on one machine, as it is on several.

  python examples/example_dqn_cluster.py                         start Ray here, train, and show how the fleet is
  python examples/example_dqn_cluster.py --address auto          join the cluster that `ray start` has made
  python examples/example_dqn_cluster.py --steps 2000            a short run to see that everything works
"""

import common
import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_extra_buffers.distributed import Fleet, ShardedReplayBuffer

with common.extra("ray"):
    import ray

SIDE, SCALE = 9, 4


class Catch(gym.Env):
    """A ball falls, and a paddle at the bottom has to be where it lands: one point if it is, minus one if not."""

    observation_space = spaces.Box(0, 255, (1, SIDE * SCALE, SIDE * SCALE), np.uint8)
    action_space = spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ball = [0, int(self.np_random.integers(SIDE))]
        self.paddle = SIDE // 2
        return self._picture(), {}

    def step(self, action):
        self.paddle = int(np.clip(self.paddle + action - 1, 0, SIDE - 1))
        self.ball[0] += 1
        landed = self.ball[0] == SIDE - 1
        reward = 0.0 if not landed else 1.0 if abs(self.ball[1] - self.paddle) <= 1 else -1.0
        return self._picture(), reward, landed, False, {}

    def _picture(self):
        picture = np.zeros((SIDE, SIDE), np.uint8)
        picture[SIDE - 1, max(self.paddle - 1, 0) : self.paddle + 2] = 128
        picture[tuple(self.ball)] = 255
        return np.kron(picture, np.ones((SCALE, SCALE), np.uint8))[None]


def main(arguments=None):
    parser = common.make_parser(__doc__)
    parser.add_argument("--steps", type=common.positive, default=12_000, help="how long to train")
    parser.add_argument("--collectors", type=common.positive, default=2, help="processes that play")
    parser.add_argument("--envs", type=common.positive, default=4, help="games of each")
    parser.add_argument("--shards", type=common.positive, default=2, help="processes that keep transitions")
    parser.add_argument("--address", default="local", help="of the cluster: local starts one here, auto finds one")
    chosen = parser.parse_args(arguments)

    ray.init(address=chosen.address, include_dashboard=False, log_to_driver=False)
    try:
        with Fleet(
            Catch,
            n_collectors=chosen.collectors,
            envs_per_collector=chosen.envs,
            n_shards=chosen.shards,
            block_steps=32,
            publish_every=50,
            seed=0,
            collector_options={"num_cpus": 0.5},
        ) as fleet:
            model = DQN(
                "CnnPolicy",
                fleet.env,
                buffer_size=20_000,
                learning_starts=500,
                train_freq=1,
                gradient_steps=2,
                target_update_interval=800,
                exploration_fraction=0.3,
                learning_rate=5e-4,
                replay_buffer_class=ShardedReplayBuffer,
                replay_buffer_kwargs={"fleet": fleet, "prefetch": 8},
                policy_kwargs={"net_arch": [64], "features_extractor_kwargs": {"features_dim": 64}},
                seed=0,
            )
            model.learn(chosen.steps, callback=fleet.callback())
            print(fleet.status())
        mean, _ = evaluate_policy(model, Catch(), 100, warn=False)
        print(f"mean score of 100 games: {mean:.2f} (1 is the best possible)")
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
