"""A fleet on Ray: what was played is what is learned from, whoever is killed on the way."""

from __future__ import annotations

import copy
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fleet_worlds import Broken, Continuous, Goals, Numbered, check_samples
from stable_baselines3 import DQN, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.her import HerReplayBuffer

from sb3_extra_buffers.distributed import Fleet, ShardedPrioritizedReplayBuffer, ShardedReplayBuffer, ShardLostError
from sb3_extra_buffers.training_utils import PrioritizedDQN

SMALL: dict[str, Any] = {"net_arch": [8], "features_extractor_kwargs": {"features_dim": 16}}
SETTINGS: dict[str, Any] = {
    "buffer_size": 4000,
    "learning_starts": 100,
    "batch_size": 8,
    "policy_kwargs": SMALL,
    "device": "cpu",
}


def make_fleet(make_env: Any = Numbered, **kwargs: Any) -> Fleet:
    options: dict[str, Any] = {
        **{"n_collectors": 2, "envs_per_collector": 2, "n_shards": 2, "block_steps": 16, "publish_every": 20},
        **{"seed": 0, "timeout": 60.0, "collector_options": {"num_cpus": 0.5}},
    }
    return Fleet(make_env, **{**options, **kwargs})


def make_model(fleet: Fleet, kind: type[Any] = DQN, buffer: type[Any] = ShardedReplayBuffer, **kwargs: Any) -> Any:
    given = {**copy.deepcopy(SETTINGS), **kwargs}  # SB3 writes to it
    own = given.pop("replay_buffer_kwargs", {})
    rest: dict[str, Any] = {"replay_buffer_class": buffer, "replay_buffer_kwargs": {"fleet": fleet, "prefetch": 2, **own}}
    return kind("CnnPolicy", fleet.env, train_freq=1, gradient_steps=1, **rest, **given)


class At(BaseCallback):
    """Does things at certain timesteps, and looks at what is sampled all the while."""

    def __init__(self, things: dict[int, Callable[[], None]], n_steps: int = 1) -> None:
        super().__init__()
        self.things, self.n_steps = dict(things), n_steps
        self.seen: set[tuple[int, int]] = set()

    def _on_step(self) -> bool:
        for step in sorted(self.things):
            if self.num_timesteps >= step:
                self.things.pop(step)()
        if self.num_timesteps > 200 and self.num_timesteps % 20 == 0:
            self.seen |= check_samples(self.model.replay_buffer.sample(8), self.n_steps)  # type: ignore[attr-defined]
        return True


def kill(pid: int, how: int = signal.SIGKILL) -> None:
    os.kill(pid, how)


@pytest.mark.timeout(300)
def test_a_fleet_learns_through_kills(ray_here: Any, tmp_path: Path) -> None:
    """The smoke test: DQN over two collectors and two shards, one of each killed on the way."""
    with make_fleet(checkpoint_dir=tmp_path / "saved", exploration="ape-x") as fleet:
        model = make_model(fleet)
        with pytest.raises(RuntimeError, match=r"fleet\.callback"):
            fleet.env.step(np.zeros(4))
        assert all(info.modules == () for info in fleet.shards.infos), "a shard has imported torch"  # type: ignore[union-attr]
        things = At(
            {
                300: fleet.save,
                400: lambda: kill(fleet.shards.infos[1].pid),  # type: ignore[union-attr]
                500: lambda: kill(fleet.collectors.infos[0].pid),
            }
        )
        model.learn(1000, callback=[fleet.callback(), things])
        assert model.num_timesteps == 1000 and model._n_updates > 200 and len(things.seen) > 60
        status = fleet.status()
        assert fleet.shards.incarnations == [0, 1] and fleet.collectors.incarnations == [1, 0]  # type: ignore[union-attr]
        assert len(status.events) == 2 and "shard 1 is lost" in status.events[0] and "collector 0 is lost" in status.events[1]
        assert " 0 were restored" not in status.events[0]  # it had been saved
        assert fleet.clock.total >= 1000 and fleet.clock.total <= 1000 + fleet.max_lead + 2 * 2 * 32
        assert model.ep_info_buffer and all(info["l"] == 11 and info["r"] == 55 for info in model.ep_info_buffer)
        assert "shard" in str(status) and fleet.size > 0
        model.save(tmp_path / "model.zip")
        _refusals(fleet)
    assert str(fleet.status()).count("is lost") == 2  # what was known is still known
    for call in (lambda: model.replay_buffer.sample(4), lambda: fleet.env.step(np.zeros(4)), fleet.save):
        with pytest.raises(RuntimeError, match="this fleet has been closed"):
            call()
    again = DQN.load(tmp_path / "model.zip")
    assert again.predict(np.zeros((2, 36, 36), np.uint8))[0] in (0, 1, 2)
    with pytest.raises(RuntimeError, match="without its fleet"):
        again.replay_buffer.sample(4)


def _refusals(fleet: Fleet) -> None:
    with pytest.raises(RuntimeError, match="has a buffer already"):
        make_model(fleet)
    with pytest.raises(TypeError, match="HER needs whole episodes"):
        make_model(fleet, replay_buffer_kwargs={"goal_selection_strategy": "future"})
    with pytest.raises(TypeError, match="off-policy"):
        PPO("CnnPolicy", fleet.env, policy_kwargs=copy.deepcopy(SMALL), n_steps=16, batch_size=16).learn(
            64, callback=fleet.callback()
        )
    with pytest.raises(TypeError, match="ShardedReplayBuffer"):
        DQN("CnnPolicy", fleet.env, buffer_size=10, policy_kwargs=copy.deepcopy(SMALL)).learn(10, callback=fleet.callback())


@pytest.mark.slow
def test_restoring(ray_here: Any, tmp_path: Path) -> None:
    with make_fleet(checkpoint_dir=tmp_path / "saved") as fleet:
        model = make_model(fleet)

        def save_without_one() -> None:
            kill(fleet.shards.infos[1].pid)  # type: ignore[union-attr]
            fleet.save(model)  # it is noticed here, or before, and all are saved

        model.learn(800, callback=[fleet.callback(), At({400: save_without_one})])
        assert fleet.shards.incarnations == [0, 1]  # type: ignore[union-attr]
        saved = fleet.clock.total
    with pytest.raises(ValueError, match="n_shards is 3"):
        Fleet.restore(tmp_path / "saved", Numbered, n_shards=3)
    restored = {"publish_every": 20, "collector_options": {"num_cpus": 0.5}, "seed": 0}
    with Fleet.restore(tmp_path / "saved", Numbered, **restored) as fleet:
        kwargs = {"replay_buffer_kwargs": {"fleet": fleet}, "replay_buffer_class": ShardedReplayBuffer}
        model = DQN.load(tmp_path / "saved" / "model.zip", env=fleet.env, **kwargs)
        assert 0 < fleet.clock.timesteps <= saved + fleet.max_lead and model.num_timesteps == 800
        assert fleet.collectors.incarnations == [1, 1]
        seen = At({})
        model.learn(800, callback=[fleet.callback(), seen], reset_num_timesteps=False)
        assert model.num_timesteps == 1600 and seen.seen and fleet.clock.lead >= 0
        assert not sum(stats.duplicates for stats in fleet.status().shards)


@pytest.mark.slow
def test_priorities_and_n_steps(ray_here: Any) -> None:
    with make_fleet() as fleet:
        model = make_model(fleet, PrioritizedDQN, ShardedPrioritizedReplayBuffer, n_steps=3)
        seen = At({}, 3)
        model.learn(1200, callback=[fleet.callback(), seen])
        assert seen.seen
        totals = [stats.total for stats in fleet.status().shards]
        assert all(total != stats.size for total, stats in zip(totals, fleet.status().shards, strict=True))
        batch = model.replay_buffer.sample(32)
        assert batch.weights.shape == (32, 1) and float(batch.weights.min()) > 0 and batch.discounts is not None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SAC", "TD3", "QRDQN", "TQC"])
def test_other_algorithms(ray_here: Any, name: str) -> None:
    kinds: dict[str, Any] = {"SAC": SAC, "TD3": TD3}
    if name not in kinds:
        kinds[name] = getattr(pytest.importorskip("sb3_contrib"), name)
    make_env = Numbered if name == "QRDQN" else Continuous
    more = {"action_noise": NormalActionNoise(np.zeros(2), 0.1 * np.ones(2))} if name == "TD3" else {}
    with make_fleet(make_env) as fleet:
        seen = At({})
        model = make_model(fleet, kinds[name], **more)
        model.learn(500, callback=[fleet.callback(), seen])
        assert seen.seen
        actions = model.replay_buffer.sample(64).actions
        if make_env is Continuous:
            assert actions.abs().max() <= 1 and len(np.unique(actions.numpy())) > 32


@pytest.mark.slow
def test_her_is_refused(ray_here: Any) -> None:
    with make_fleet(Goals, n_collectors=1) as fleet:
        fleet.env.env_method = lambda *_, **__: [0]  # type: ignore[method-assign]
        model = DQN("MultiInputPolicy", fleet.env, replay_buffer_class=HerReplayBuffer, buffer_size=100)
        with pytest.raises(TypeError, match="HER"):
            model.learn(10, callback=fleet.callback())


@pytest.mark.slow
@pytest.mark.parametrize("who", ["shard", "collector"])
def test_somebody_is_stopped(ray_here: Any, who: str) -> None:
    """SIGSTOP: no connection breaks, there is just no answer any more."""
    with make_fleet(timeout=15.0) as fleet:
        model = make_model(fleet)

        def stop() -> None:
            crew: Any = fleet.shards if who == "shard" else fleet.collectors
            kill(crew.infos[0].pid, signal.SIGSTOP)

        pids = []
        things = At({500: lambda: pids.append(fleet.shards.infos[0].pid), 501: stop})  # type: ignore[union-attr]
        model.learn(700, callback=[fleet.callback(), things])
        deadline = time.monotonic() + 60
        while not fleet.events and time.monotonic() < deadline:
            fleet.poll()
            time.sleep(0.2)
        assert f"{who} 0 is lost" in fleet.events[0]
        model.learn(400, callback=[fleet.callback(), things], reset_num_timesteps=False)
        assert things.seen


@pytest.mark.slow
def test_a_loss_can_end_the_run(ray_here: Any) -> None:
    with make_fleet(on_shard_loss="stop") as fleet:
        model = make_model(fleet)
        things = At({400: lambda: kill(fleet.shards.infos[0].pid)})  # type: ignore[union-attr]
        with pytest.raises(ShardLostError, match="shard 0 is lost"):
            model.learn(4000, callback=[fleet.callback(), things])


@pytest.mark.slow
def test_a_collector_that_always_fails_ends_the_run(ray_here: Any) -> None:
    said = r"collector 0 has failed 3 times .* RuntimeError: the simulator has crashed"
    with make_fleet(Broken, n_collectors=1, n_shards=1, timeout=20.0) as fleet, pytest.raises(RuntimeError, match=said):
        make_model(fleet).learn(400, callback=fleet.callback())
    assert len(fleet.events) == 2 and all("the simulator has crashed" in event for event in fleet.events)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_node_is_lost(ray_nodes: Any) -> None:
    """Three nodes: samples of another one come coded; one dies, and what was on it is replaced on the others."""
    with make_fleet(n_shards=3, timeout=60.0) as fleet:
        model = make_model(fleet)
        assert fleet.client is not None and any(fleet.client.coded)

        def lose_node() -> None:
            ids = {node["NodeID"]: node for node in fleet.ray.nodes()}
            here = fleet.ray.get_runtime_context().get_node_id()
            on = next(info.node for info in fleet.shards.infos if info.node != here)  # type: ignore[union-attr]
            port = ids[on]["NodeManagerPort"]
            ray_nodes.remove_node(next(node for node in ray_nodes.list_all_nodes() if node.node_manager_port == port))

        things = At({600: lose_node})
        model.learn(1800, callback=[fleet.callback(), things])
        assert things.seen and fleet.events and model.num_timesteps >= 1800
