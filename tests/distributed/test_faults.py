"""A fleet over actors that are threads: what was played is what is learned from, whatever fails."""

from __future__ import annotations

import copy
import itertools
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_ray
import numpy as np
import pytest
from fleet_worlds import Numbered, check_samples
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecNormalize

from sb3_extra_buffers.distributed import Fleet, ShardedReplayBuffer, ShardLostError

SMALL: dict[str, Any] = {"net_arch": [8], "features_extractor_kwargs": {"features_dim": 16}}


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_ray.FakeRay]:
    with fake_ray.installed(monkeypatch) as ray:
        yield ray


class Lively:
    """A fleet, its model, and callbacks at certain timesteps."""

    def __init__(self, make_env: Any = Numbered, kind: type[Any] = DQN, env: Any = None, **options: Any) -> None:
        model_options = options.pop("model", {})
        settings = {"n_collectors": 1, "envs_per_collector": 2, "n_shards": 1, "block_steps": 16, "publish_every": 20}
        self.fleet = Fleet(make_env, **{**settings, "seed": 0, **options})
        given = {"learning_starts": 32, "buffer_size": 2000, "batch_size": 8, "train_freq": 1, "gradient_steps": 1}
        kwargs = {"replay_buffer_class": ShardedReplayBuffer, "replay_buffer_kwargs": {"fleet": self.fleet, "prefetch": 2}}
        try:
            self.model = kind(
                "CnnPolicy",
                self.fleet.env if env is None else env(self.fleet.env),
                policy_kwargs=copy.deepcopy(SMALL),
                seed=0,
                device="cpu",
                **{**given, **kwargs, **model_options},
            )
        except BaseException:
            self.fleet.close()
            raise

    def __enter__(self) -> Lively:
        return self

    def __exit__(self, *_: Any) -> None:
        self.fleet.close()

    def learn(self, steps: int, things: dict[int, Any] | None = None, **kwargs: Any) -> None:
        self.model.learn(steps, callback=[self.fleet.callback(), At(things or {})], **kwargs)


class At(BaseCallback):
    def __init__(self, things: dict[int, Any]) -> None:
        super().__init__()
        self.things = dict(things)

    def _on_step(self) -> bool:
        for step in [step for step in sorted(self.things) if self.num_timesteps >= step]:
            self.things.pop(step)()
        return True


def until(what: Any, seconds: float = 60.0) -> None:
    deadline = time.perf_counter() + seconds
    while not what():
        assert time.perf_counter() < deadline, "it did not come to that"
        time.sleep(0.01)


# -- checkpoints ----------------------------------------------------------------------------------------------------------


def test_a_second_run_in_the_same_directory_can_be_restored(ray: Any, tmp_path: Path) -> None:
    weights = []
    for _ in range(2):
        with Lively(checkpoint_dir=tmp_path, n_shards=2) as run:
            run.learn(160)
            weights.append(run.model.get_parameters()["policy"])
    with Fleet.restore(tmp_path, Numbered) as fleet:
        kwargs = {"replay_buffer_kwargs": {"fleet": fleet}, "replay_buffer_class": ShardedReplayBuffer}
        model = DQN.load(tmp_path / "model.zip", env=fleet.env, **kwargs)
        assert sum(stats.size for stats in status_shards(fleet)) >= 160 and model.num_timesteps == 160
        check_samples(model.replay_buffer.sample(64))
        for name, value in model.get_parameters()["policy"].items():
            assert np.array_equal(value.numpy(), weights[1][name].numpy())


class Cut(Exception):
    pass


def test_a_checkpoint_is_the_new_one_or_the_old_one(ray: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The save of a second run is cut off at each replacement of a file: shards and model are those of one checkpoint."""
    with Lively(checkpoint_dir=tmp_path / "kept", n_shards=2, n_collectors=2) as run:
        run.learn(160)
    real, found = os.replace, set()
    with Lively(checkpoint_dir=tmp_path / "kept", n_shards=2, n_collectors=2) as run:
        run.fleet.checkpoint_dir = None  # it would save at the end
        run.learn(480)
        for cut_at in itertools.count():
            copied = tmp_path / f"cut{cut_at}"
            shutil.copytree(tmp_path / "kept", copied)
            run.fleet.checkpoint_dir, left = str(copied), [cut_at]

            def replace(*args: Any, left: list[int] = left) -> None:
                if left[0] <= 0:
                    raise Cut  # and nothing else that would be done comes to be
                left[0] -= 1
                real(*args)

            monkeypatch.setattr(os, "replace", replace)
            try:
                run.fleet.save(run.model)
                is_whole = True
            except Exception as error:
                assert "Cut" in repr(error), error  # anything else would fail again and again
                is_whole = False
            finally:
                monkeypatch.setattr(os, "replace", real)
            with Fleet.restore(copied, Numbered) as fleet:
                kwargs = {"replay_buffer_kwargs": {"fleet": fleet}, "replay_buffer_class": ShardedReplayBuffer}
                model = DQN.load(copied / "model.zip", env=fleet.env, **kwargs)
                size = sum(stats.size for stats in status_shards(fleet))
                is_new = model.num_timesteps == 480
                assert (size >= 480) == is_new, f"model of {model.num_timesteps}, shards of {size}, cut at {cut_at}"
                check_samples(model.replay_buffer.sample(64))
            found.add(is_new)
            if is_whole:
                break
    assert found == {False, True} and is_new and cut_at >= 3


def status_shards(fleet: Fleet) -> Any:
    until(lambda: all(stats is not None for stats in fleet.status().shards))
    return fleet.status().shards


def test_a_restored_fleet_has_the_settings_of_the_one_before(ray: Any, tmp_path: Path) -> None:
    settings = {"exploration": "ape-x", "max_lead": 777, "publish_every": 33, "checkpoint_every": 5000, "seed": np.int64(9)}
    with Lively(checkpoint_dir=tmp_path, compression_method="rle", **settings) as run:
        run.learn(96)
    with Fleet.restore(tmp_path, Numbered) as fleet:
        kwargs = {"replay_buffer_kwargs": {"fleet": fleet}, "replay_buffer_class": ShardedReplayBuffer}
        model = DQN.load(tmp_path / "model.zip", env=fleet.env, **kwargs)
        for name, value in settings.items():
            assert getattr(fleet, name) == value, name
        check_samples(model.replay_buffer.sample(8))
        (before,) = status_shards(fleet)
        # What was restored has not been sent, and not now.
        model.learn(64, callback=fleet.callback(), reset_num_timesteps=False)
        until(lambda: fleet.status().shards[0].wire_bytes > 0)
        status = fleet.status()
        (stats,) = status.shards
        new = stats.added - before.added
        assert before.added >= 96 and not before.wire_bytes
        assert status.figures["wire_bytes_per_transition"] == pytest.approx(stats.wire_bytes / new)
        assert f" {stats.wire_bytes / new:.0f} " in str(status).splitlines()[1]
    with Fleet.restore(tmp_path, Numbered, seed=4, publish_every=5) as fleet:
        assert (fleet.seed, fleet.publish_every, fleet.exploration) == (4, 5, "ape-x")


# -- losses ---------------------------------------------------------------------------------------------------------------


def test_what_is_lost_does_not_count_as_lead(ray: Any) -> None:
    """The only shard is lost while collectors wait because they are as far ahead as they may be."""
    with Lively(max_lead=64, timeout=5.0) as run:
        until_full = lambda: until(lambda: run.fleet.status().figures["transitions"] >= run.model.num_timesteps + 64)  # noqa: E731

        def lose() -> None:
            until_full()
            ray.alive("ShardActor")[0].kill()

        run.learn(320, {100: lose})
        assert run.model.num_timesteps >= 320 and "shard 0 is lost" in run.fleet.events[0]


def test_collectors_are_not_further_ahead_than_they_may_be(ray: Any) -> None:
    """Many collectors at once see that there is room, and one of them is lost with what it has reserved."""
    with Lively(max_lead=64, n_collectors=6, n_shards=2, timeout=30.0) as run:
        leads = []

        def look() -> None:
            time.sleep(0.3)
            leads.append(run.fleet.status().figures["transitions"] - run.model.num_timesteps)

        things: dict[int, Any] = dict.fromkeys(range(48, 600, 48), look)
        run.learn(600, {**things, 100: lambda: ray.alive("CollectorActor")[0].kill()})
        assert max(leads) <= 64 + 2 * 32 + 12 and "collector 0 is lost" in run.fleet.events[0]


def test_a_block_that_is_sent_again_counts_once(ray: Any) -> None:
    """A shard dies after it has added blocks, and before collectors have heard of that."""
    with Lively(max_lead=10_000) as run:
        ray.lose_answer = lambda actor, call: call == "add" and is_deaf[0]
        is_deaf = [False]

        def lose() -> None:
            is_deaf[0] = True
            until(stands_still)
            until(lambda: run.fleet.status().shards[0].added >= played())
            ray.alive("ShardActor")[0].kill()
            is_deaf[0] = False
            until(lambda: run.fleet.status() and run.fleet.events)

        def played() -> int:
            return ray.alive("CollectorActor")[0].instance.collector.builder.steps * 2

        def stands_still() -> bool:
            before = played()
            time.sleep(0.3)
            return before == played()

        run.learn(200, {100: lose})
        for _ in range(20):
            figures = run.fleet.status().figures
            assert figures["transitions"] <= played()
            time.sleep(0.01)
        held = run.fleet.status().shards[0].added
        assert figures["lost"] + held <= played()


def test_an_environment_that_often_crashes_is_no_reason_to_end(ray: Any) -> None:
    class Fragile(Numbered):
        def reset(self, **kwargs: Any) -> Any:
            self.left = getattr(self, "left", 40)
            return super().reset(**kwargs)

        def step(self, action: Any) -> Any:
            self.left -= 1
            if self.left == 0:
                raise RuntimeError("the simulator has crashed. See core.1234")
            return super().step(action)

    with Lively(Fragile) as run:
        run.learn(600)
        lost = [event for event in run.fleet.events if "collector 0 is lost" in event]
        assert len(lost) > 5 and all("the simulator has crashed. See core.1234" in event for event in lost)


def test_a_slow_environment_is_not_missing(ray: Any) -> None:
    """A block takes several times as long as anybody may take to answer."""

    class Slow(Numbered):
        def step(self, action: Any) -> Any:
            time.sleep(0.1)
            return super().step(action)

    with Lively(Slow, timeout=1.5, envs_per_collector=1) as run:
        run.learn(16)
        assert not run.fleet.events


def test_a_learner_that_was_suspended_goes_on(ray: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clock jumps, as it does when a process is stopped and continued: nobody is to blame for that."""

    class Slow(Numbered):
        def step(self, action: Any) -> Any:
            time.sleep(0.02)
            return super().step(action)

    real, jumped, over = time.monotonic, [0.0], threading.Event()
    monkeypatch.setattr(time, "monotonic", lambda: real() + jumped[0])

    def jump() -> None:
        while not over.wait(0.1):
            jumped[0] += 1000.0

    with Lively(Slow, timeout=60.0) as run:
        run.learn(32)
        jumper = threading.Thread(target=jump)
        jumper.start()
        try:
            run.learn(128)
        finally:
            over.set()
            jumper.join()
        assert not run.fleet.events


def test_a_shard_that_hangs_is_replaced(ray: Any) -> None:
    with Lively(timeout=1.5) as run:
        run.learn(320, {100: lambda: ray.alive("ShardActor")[0].suspend()})
        assert "shard 0 is lost (it did" in run.fleet.events[0] or "shard 0 is lost (it has" in run.fleet.events[0]


def test_shards_are_spread_over_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    with fake_ray.installed(monkeypatch, nodes=3) as ray, Lively(n_shards=6):
        nodes = [actor.node for actor in ray.alive("ShardActor")]
        assert [nodes.count(node) for node in ray.node_ids] == [2, 2, 2]


def test_a_loss_ends_learning_whoever_has_found_it(ray: Any) -> None:
    """Another thread that shows the status does not take the error away from the learner."""
    over, raised = threading.Event(), []

    def show() -> None:
        while not over.is_set():
            try:
                run.fleet.status()
            except BaseException as error:
                raised.append(error)

    with Lively(on_shard_loss="stop") as run:
        watcher = threading.Thread(target=show)

        def lose() -> None:
            watcher.start()
            ray.alive("ShardActor")[0].kill()
            until(lambda: run.fleet.events)  # the other thread has found it

        with pytest.raises(ShardLostError, match="shard 0 is lost"):
            run.learn(2000, {100: lose})
        over.set()
        watcher.join()
    assert not raised


def test_the_status_does_not_wait_for_samples(ray: Any) -> None:
    with Lively(timeout=60.0) as run:
        run.learn(64)
        ray.alive("ShardActor")[0].suspend()
        waiting = threading.Thread(target=lambda: [run.model.replay_buffer.sample(8) for _ in range(9)], daemon=True)
        waiting.start()
        time.sleep(0.3)
        shown = threading.Thread(target=run.fleet.status, daemon=True)
        shown.start()
        shown.join(5)
        assert waiting.is_alive() and not shown.is_alive()
        ray.alive("ShardActor")[0].runs.set()
        waiting.join(60)


def test_an_actor_that_is_unavailable_for_a_moment(ray: Any) -> None:
    """Ray reports calls as failed that were carried out: blocks are sent again, and not added again."""
    count = itertools.count()
    ray.lose_answer = lambda actor, call: call in ("add", "ask") and next(count) % 5 == 3
    with Lively(n_shards=2, n_collectors=2) as run:
        run.learn(480)
        until(lambda: run.fleet.status().figures["duplicates"] > 0)
        check_samples(run.model.replay_buffer.sample(64))
        assert not run.fleet.events


# -- what users do --------------------------------------------------------------------------------------------------------


def test_a_closed_fleet_does_not_learn(ray: Any) -> None:
    with Lively() as run:
        run.learn(32)
    with pytest.raises(RuntimeError, match="this fleet has been closed"):
        run.learn(32)
    with Lively() as run:
        pass
    with pytest.raises(RuntimeError, match="this fleet has been closed"):
        run.learn(32)


def test_vecnormalize_is_refused_before_anything_is_played(ray: Any) -> None:
    with Lively(env=lambda env: VecNormalize(env, norm_obs=False)) as run, pytest.raises(TypeError, match="VecNormalize"):
        run.learn(32)


def test_the_environment_of_a_fleet_cannot_be_evaluated(ray: Any) -> None:
    with Lively() as run:
        run.learn(32)
        with pytest.raises(RuntimeError, match="make_env"):
            evaluate_policy(run.model, run.fleet.env, 1, warn=False)
        run.learn(32, reset_num_timesteps=False)  # which does not reset
        run.learn(32)

        def evaluate() -> None:
            evaluate_policy(run.model, run.fleet.env, 1, warn=False)

        with pytest.raises(RuntimeError, match="make_env"):
            run.learn(32, {20: evaluate})


class Other(Numbered):
    """One of them shows other observations than the others."""

    made = itertools.count()

    def __init__(self) -> None:
        if next(Other.made) == 1:
            self.observation_space = spaces.Box(0, 255, (3, 36, 36), np.uint8)


def test_an_environment_with_another_space_is_named_at_once(ray: Any) -> None:
    Other.made = itertools.count()
    with pytest.raises(ValueError, match=r"collector 1 has observation_space .*36\), uint8\), collector 0 has"):
        Lively(Other, n_collectors=2, envs_per_collector=1)
    assert not ray.alive("CollectorActor")


def test_too_few_processors_are_told_at_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with fake_ray.installed(monkeypatch, cpus=2.0), caplog.at_level(logging.WARNING), Lively(n_collectors=4):
        pass
    assert any("4 CPUs" in line and "2" in line and "num_cpus" in line for line in caplog.messages)


def test_actors_leave_no_records_of_their_calls(ray: Any) -> None:
    """Ray's server keeps a record of each call otherwise, and grows by megabytes a minute."""
    with Lively() as run:
        run.learn(32)
        assert len(ray.actors) == 2 and all(actor.options["enable_task_events"] is False for actor in ray.actors)


def test_resend_after_is_deprecated(ray: Any) -> None:
    with pytest.warns(DeprecationWarning, match="resend_after has no effect"), Lively(resend_after=5.0):
        pass
