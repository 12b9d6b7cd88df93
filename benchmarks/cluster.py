"""
What a cluster costs: bytes on the wire, processor time of shards and collectors, batches a second from near and far.

Blocks are made of recorded games, as a collector makes them. "wire" is what a block takes for each of its transitions,
"held" what a shard keeps of it, "shard" the processor time of an `add`, "sampled" what a transition of `sample(32)` takes
when it is coded. Rates are batches of 32 a second, 32 of them in a call: from a shard in this process, from an actor on
this node, and from one on another node (a second raylet on this machine), coded and dense. The last figures are those of a
fleet that plays MsPacman: which share of a collector's processor time is coding, and which share of the learner's time is
waiting for samples, with 8 updates a step.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

# Before Ray is imported: everything stays on the loopback interface.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

from kit.data import DATASETS
from kit.process import report, run_worker
from kit.results import ResultFile, console, options
from play import ensure

GAMES = ("mspacman", "pong")
RUN = b"a benchmark run."
SHAPES = ((64, 1), (64, 4), (128, 4))
BATCH, CALL = 32, 32
GAME = "MsPacmanNoFrameskip-v4"


def make_blocks(game: str, cache: Path, rows: int, steps: int, lanes: int) -> tuple[Any, list[bytes], float]:
    """
    Make blocks of a recording.

    :param game: Name of the data set
    :param cache: Folder of the recordings
    :param rows: Rows of it to use
    :param steps: Steps of a block
    :param lanes: Environments of a collector
    :return: Their schema, the blocks, and microseconds of processor time for a transition
    """
    from kit.data import load

    from sb3_extra_buffers.distributed.builder import BlockBuilder
    from sb3_extra_buffers.distributed.spaces import make_schema

    dataset = DATASETS[game]
    recording = load(dataset, cache)
    schema = make_schema(recording.space(dataset.stack), dataset.action_space, lanes, steps)
    builder, blocks, seconds = BlockBuilder(schema, RUN, 0, 0), [], 0.0
    for step in islice(recording.transitions(dataset.stack), rows):
        first = time.process_time()
        builder.add(*(part[:lanes] for part in step))
        if builder.is_full:
            blocks.append(builder.seal(builder.sequence))
        seconds += time.process_time() - first
    return schema, blocks, seconds / (len(blocks) * schema.cells) * 1e6


def measure_blocks(job: Mapping[str, Any]) -> dict[str, Any]:
    """
    Measure bytes and processor time, without Ray.

    :param job: ``game``, ``rows``, ``cache``
    :return: Figures by steps x environments of a block
    """
    from sb3_extra_buffers.distributed.shard import Shard

    found: dict[str, Any] = {}
    for steps, lanes in SHAPES:
        schema, blocks, coding = make_blocks(job["game"], Path(job["cache"]), job["rows"], steps, lanes)
        cells = (len(blocks) - 1) * schema.cells  # the first block comes before the frame stack was found
        times = []
        for _ in range(job["rounds"]):
            shard = Shard(schema, cells, RUN, seed=0)
            first = time.process_time()
            for block in blocks[1:]:
                shard.add(block)
            times.append((time.process_time() - first) / cells * 1e6)
        sizes = {}
        for batches in (1, 8, CALL):
            chunks = shard.sample(BATCH, batches, coded=True).chunks or []
            sizes[f"sampled_{batches}"] = round(sum(len(data) for part in chunks for data in part) / (BATCH * batches), 1)
        found[f"{steps}x{lanes}"] = {
            "wire": round(sum(map(len, blocks[1:])) / cells, 1),
            "largest_message": max(map(len, blocks)),
            "held": round(shard.stats().held_bytes / cells, 1),
            "coding_us": round(coding, 2),
            "shard_us": round(min(times), 2),
            **sizes,
        }
    return found


def rate(sample: Callable[[], Any], seconds: float) -> float:
    """
    Measure how many batches come in a second.

    :param sample: Takes one
    :param seconds: For how long
    :return: Batches a second
    """
    for _ in range(CALL):
        sample()
    taken, first = 0, time.perf_counter()
    while time.perf_counter() - first < seconds:
        sample()
        taken += 1
    return taken / (time.perf_counter() - first)


class Here:
    """A shard in this process, behind what a client expects."""

    def __init__(self, shard: Any) -> None:
        self.shard, self.answers = shard, {}

    def submit(self, shard: int, call: str, *args: Any) -> int:
        self.answers[len(self.answers)] = getattr(self.shard, call)(*args)
        return len(self.answers) - 1

    def wait(self, tickets: Any, timeout: float) -> Any:
        return tickets

    def result(self, ticket: int) -> Any:
        answer, self.answers[ticket] = self.answers[ticket], None
        return answer


def measure_rates(job: Mapping[str, Any]) -> dict[str, Any]:
    """
    Measure batches a second from shards near and far, and what an `add` takes in an actor.

    :param job: ``game``, ``rows``, ``cache``, ``seconds``, ``rounds``
    :return: The figures
    """
    import numpy as np
    import psutil
    import ray
    from ray.cluster_utils import Cluster
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from sb3_extra_buffers.distributed.actors import ShardActor
    from sb3_extra_buffers.distributed.client import Client
    from sb3_extra_buffers.distributed.ray_transport import SHARD_GROUPS, RayTransport, call_actor
    from sb3_extra_buffers.distributed.shard import Shard

    schema, blocks, _ = make_blocks(job["game"], Path(job["cache"]), job["rows"], 128, 4)
    given = {"capacity": len(blocks) * schema.cells, "run": RUN, "seed": 0}
    node = {"num_cpus": 2, "object_store_memory": 600_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)
    here = ray.get_runtime_context().get_node_id()
    there = next(each["NodeID"] for each in ray.nodes() if each["NodeID"] != here)
    make = ray.remote(num_cpus=0, concurrency_groups=SHARD_GROUPS)(ShardActor)
    found: dict[str, Any] = {}
    clients = {}
    local = Shard(schema, **given)
    for block in blocks:
        local.add(block)
    for name, where, coded in (
        ("local", None, False),
        ("same node", here, False),
        ("coded", there, True),
        ("dense", there, False),
    ):
        if where is None:
            transport: Any = Here(local)
        else:
            strategy = NodeAffinitySchedulingStrategy(where, soft=False)
            actor = make.options(scheduling_strategy=strategy).remote(schema.to_json(), given, None)
            info = ray.get(call_actor(actor, "describe"), timeout=120)
            process, before = psutil.Process(info.pid), psutil.Process(info.pid).cpu_times()
            for block in blocks:
                ray.get(call_actor(actor, "add", block, group="write"), timeout=120)
            after = process.cpu_times()
            spent = (after.user + after.system - before.user - before.system) / (len(blocks) * schema.cells)
            found["shard_us_with_ray"] = round(spent * 1e6, 2)
            found["shard_rss_mb"] = round(process.memory_info().rss / 2**20)
            transport = RayTransport([actor])
        clients[name] = Client(transport, schema, 1, CALL, timeout=120)
        clients[name].weigh(0, 0, float(local.size))
        clients[name].coded = [coded]
    rates: dict[str, list[float]] = {name: [] for name in clients}
    for _ in range(job["rounds"]):
        for name, client in clients.items():
            rates[name].append(rate(lambda client=client: client.sample(BATCH), job["seconds"]))
    found["batches_per_second"] = {name: round(float(np.median(values)), 1) for name, values in rates.items()}
    ray.shutdown()
    cluster.shutdown()
    return found


def make_games() -> Any:
    """MsPacman, as collectors play it."""
    from sb3_extra_buffers.training_utils.atari import make_env

    return make_env(GAME, n_envs=2, framestack=4)


def measure_fleet(job: Mapping[str, Any]) -> dict[str, Any]:
    """
    Train DQN with a fleet.

    :param job: ``steps``
    :return: Shares of coding and of waiting
    """
    import ray
    from stable_baselines3 import DQN

    from sb3_extra_buffers.distributed import Fleet, ShardedReplayBuffer

    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    import cluster  # by its name, so that collectors can import it, too

    with Fleet(cluster.make_games, n_collectors=1, envs_per_collector=2, n_shards=1, seed=0) as fleet:
        kwargs = {"replay_buffer_class": ShardedReplayBuffer, "replay_buffer_kwargs": {"fleet": fleet, "prefetch": 8}}
        model = DQN("CnnPolicy", fleet.env, 20_000, learning_starts=0, train_freq=8, gradient_steps=0, **kwargs)
        model.learn(job["steps"], callback=fleet.callback())
        time.sleep(2.0)
        progress = fleet.status().collectors[0]
        assert fleet.client is not None
        model.gradient_steps, model.train_freq = 8, type(model.train_freq)(1, model.train_freq.unit)
        fleet.client.waited, first = 0.0, time.perf_counter()
        model.learn(job["updates"] // 8 * 2, callback=fleet.callback(), reset_num_timesteps=False)
        waited = fleet.client.waited / (time.perf_counter() - first)
    ray.shutdown()
    busy = progress.cpu_seconds
    return {"coding_share": round(progress.coding_seconds / busy, 4), "waiting_share": round(waited, 4)}


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__)
    parser.add_argument("--rows", type=int, default=5_000, help="steps of the recordings")
    parser.add_argument("--rounds", type=int, default=5, help="how often each is measured")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each rate is measured")
    parser.add_argument("--steps", type=int, default=4_000, help="steps of the fleet without training")
    parser.add_argument("--updates", type=int, default=800, help="updates of the fleet")
    args = parser.parse_args()
    if args.worker:
        job = json.loads(args.worker)
        report({"blocks": measure_blocks, "rates": measure_rates, "fleet": measure_fleet}[job["what"]](job))
        return
    results = ResultFile("cluster", args.results)
    job = {"rows": args.rows, "rounds": args.rounds, "seconds": args.seconds, "cache": str(args.cache)}
    for game in GAMES:
        ensure(game, args.rows * DATASETS[game].n_envs, args.cache)
        results.put(game, {"rows": args.rows, **run_worker("cluster", {**job, "what": "blocks", "game": game})})
    results.put("rates", {"game": GAMES[0], **run_worker("cluster", {**job, "what": "rates", "game": GAMES[0]})})
    results.put("fleet", run_worker("cluster", {"what": "fleet", "steps": args.steps, "updates": args.updates}))
    for key, row in results.rows.items():
        console.print(key, row, soft_wrap=True)


if __name__ == "__main__":
    main()
