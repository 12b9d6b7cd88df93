"""
What a cluster costs: bytes on the wire, processor time of shards and collectors, batches a second from near and far.

Blocks are made of recorded games, as a collector makes them. "wire" is what a block takes for each of its transitions,
"held" what a shard keeps of it, "shard" the processor time of an `add`, "sampled" what a transition of `sample(32)` takes
when it is coded, with everything that belongs to it. Rates are batches of 32 a second, 32 of them in a call: from a shard in
this process, from an actor on this node, and from one on another node (a second raylet on this machine), coded and dense; the
latter also over a loopback interface that is as slow as a cable. What our own counting says is compared with what the
loopback interface counts. Then come one, two and four shards, and the processor time that a transition takes in them. The
last figures are those of a fleet that plays MsPacman: which share of a collector's processor time is coding, and which share
of the learner's time is waiting for samples, with 8 updates a step.

An interface of its own and a limit for it take root's rights; without them the interface is shared, and there are no rates
for a cable.
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# Before Ray is imported: everything stays on the loopback interface.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"

from kit.cluster_nodes import (
    add_blocks,
    count_bytes,
    cpu_seconds,
    limit_network,
    loopback_bytes,
    message_bytes,
    own_network,
    start_shard,
    two_nodes,
)
from kit.data import DATASETS
from kit.process import report, run_worker
from kit.results import ResultFile, console, options
from play import ensure

GAMES = ("mspacman", "pong")
RUN = b"a benchmark run."
SHAPES = ((64, 1), (64, 4), (128, 4))
BATCH, CALL = 32, 32
WARM, CALLS = 16, 200
GAME = "MsPacmanNoFrameskip-v4"


def make_blocks(
    game: str, cache: Path, rows: int, steps: int, lanes: int, incarnation: int = 0
) -> tuple[Any, list[tuple[Any, ...]], float]:
    """Make blocks of a recording."""
    from kit.data import load

    from sb3_extra_buffers.distributed.blocks import BlockBuilder
    from sb3_extra_buffers.distributed.collector import make_schema

    dataset = DATASETS[game]
    recording = load(dataset, cache)
    schema = make_schema(recording.space(dataset.stack), dataset.action_space, lanes, steps)
    builder, blocks, seconds = BlockBuilder(schema, RUN, 0, incarnation), [], 0.0
    for step in islice(recording.transitions(dataset.stack), rows):
        first = time.process_time()
        builder.add(*(part[:lanes] for part in step))
        if builder.is_full:
            blocks.append(tuple(builder.seal(builder.sequence)))
        seconds += time.process_time() - first
    return schema, blocks, seconds / (len(blocks) * schema.cells) * 1e6


def measure_blocks(job: Mapping[str, Any]) -> dict[str, Any]:
    """Measure bytes and processor time, without Ray."""
    from sb3_extra_buffers.distributed.blocks import wire_bytes
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
            sent = [len(pickle.dumps(shard.sample(BATCH, batches, coded=True), 5)) for _ in range(CALL // batches)]
            sizes[f"sampled_{batches}"] = round(sum(sent) / (BATCH * CALL), 1)
        found[f"{steps}x{lanes}"] = {
            "wire": round(sum(map(wire_bytes, blocks[1:])) / cells, 1),
            "largest_message": max(map(wire_bytes, blocks)),
            "held": round(shard.stats().held_bytes / cells, 1),
            "coding_us": round(coding, 2),
            "shard_us": round(min(times), 2),
            **sizes,
        }
    return found


def rate(sample: Callable[[], Any], seconds: float, warm: int = CALL) -> float:
    """Measure how many batches come in a second."""
    for _ in range(warm):
        sample()
    taken, first = 0, time.perf_counter()
    while time.perf_counter() - first < seconds:
        sample()
        taken += 1
    return taken / (time.perf_counter() - first)


class Here:
    """A shard in this process, called like an actor, and what a client needs of Ray for that."""

    def __init__(self, shard: Any) -> None:
        self.shard, self.exceptions = (
            shard,
            SimpleNamespace(GetTimeoutError=TimeoutError, RayActorError=(), ObjectLostError=()),
        )

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.shard, name)
        return SimpleNamespace(options=lambda concurrency_group: SimpleNamespace(remote=method))

    def wait(self, refs: Any, timeout: float) -> Any:
        return refs, []

    def get(self, ref: Any, timeout: float) -> Any:
        return ref


def make_client(ray: Any, actor: Any, schema: Any, size: int, coded: bool) -> Any:
    """Make what asks one shard for samples, as a learner does."""
    from sb3_extra_buffers.distributed.client import Client

    client = Client(ray, [actor], schema, CALL, timeout=120)
    client.weigh(0, 0, float(size))
    client.coded = [coded]
    return client


def measure_rates(job: Mapping[str, Any]) -> dict[str, Any]:
    """Measure batches a second from shards near and far, and what an `add` takes in an actor."""
    import psutil
    import ray

    from sb3_extra_buffers.distributed.shard import Shard

    schema, blocks, _ = make_blocks(job["game"], Path(job["cache"]), job["rows"], 128, 4)
    given = {"capacity": len(blocks) * schema.cells, "run": RUN, "seed": 0}
    local = Shard(schema, **given)
    for block in blocks:
        local.add(block)
    found: dict[str, Any] = {}
    here = Here(local)
    clients = {"local": make_client(here, here, schema, local.size, False)}
    with two_nodes() as nodes:
        for name, where, coded in (
            ("same node", nodes.here, False),
            ("coded", nodes.there, True),
            ("dense", nodes.there, False),
        ):
            actor, pid = start_shard(schema, given, where)
            before = cpu_seconds(pid)
            add_blocks([actor], blocks)
            found["shard_us_with_ray"] = round((cpu_seconds(pid) - before) / (len(blocks) * schema.cells) * 1e6, 2)
            found["shard_rss_mb"] = round(psutil.Process(pid).memory_info().rss / 2**20)
            clients[name] = make_client(ray, actor, schema, local.size, coded)
        for client in clients.values():  # until every page of the stores has been used once
            rate(lambda client=client: client.sample(BATCH), 0, WARM * CALL)
        rates: dict[str, list[float]] = {name: [] for name in clients}
        for _ in range(job["rounds"]):
            for name, client in clients.items():
                rates[name].append(rate(lambda client=client: client.sample(BATCH), job["seconds"]))
    found["batches_per_second"] = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    return found


def measure_network(job: Mapping[str, Any]) -> dict[str, Any]:
    """Compare what we count with what the loopback interface counts, and measure rates over a slow one."""
    is_own = own_network()
    import ray

    from sb3_extra_buffers.distributed.actors import call_actor
    from sb3_extra_buffers.distributed.blocks import wire_bytes

    schema, blocks, _ = make_blocks(job["game"], Path(job["cache"]), job["rows"], 64, 4)
    given = {"capacity": len(blocks) * schema.cells, "run": RUN, "seed": 0}
    found: dict[str, Any] = {"own_interface": is_own}
    with two_nodes() as nodes:
        actor, _ = start_shard(schema, given, nodes.there)

        def ask(call: str, *args: Any, group: str) -> Any:
            return ray.get(call_actor(actor, call, *args, group=group), timeout=120)

        first = loopback_bytes()
        time.sleep(job["seconds"])
        idle = (loopback_bytes() - first) / job["seconds"]
        found["idle_bytes_per_second"] = round(idle)
        # A question is a call without anything to carry; what it takes is Ray's.
        empty = {
            group: count_bytes(lambda group=group: ask("ask", 0, group=group), CALLS, idle) for group in ("write", "read")
        }
        found["call_without_payload"] = {group: round(value) for group, value in empty.items()}
        there = iter(blocks * (1 + CALLS // len(blocks) * 2))  # what comes twice is sent all the same
        sent: list[int] = []

        def add() -> None:
            block = next(there)
            sent.append(wire_bytes(block))
            ask("add", block, group="write")

        carried = count_bytes(add, CALLS, idle) - empty["write"]
        counted = statistics.fmean(sent[-CALLS:])
        found["blocks"] = {"counted": round(counted), "carried": round(carried), "ratio": round(carried / counted, 4)}
        for batches in (1, 8, CALL):
            sizes: list[int] = []

            def sample(batches: int = batches, sizes: list[int] = sizes) -> None:
                sizes.append(message_bytes(ask("sample", BATCH, batches, True, group="read")))

            carried = count_bytes(sample, CALLS, idle) - empty["read"]
            counted = statistics.fmean(sizes[-CALLS:])
            row = {"counted": round(counted), "carried": round(carried), "ratio": round(carried / counted, 4)}
            found[f"samples_{batches}"] = row
        if is_own and limit_network(job["megabits"]):
            clients = {coded: make_client(ray, actor, schema, len(blocks) * schema.cells, coded) for coded in (True, False)}
            rates: dict[bool, list[float]] = {coded: [] for coded in clients}
            for _ in range(job["rounds"]):
                for coded, client in clients.items():
                    rates[coded].append(rate(lambda client=client: client.sample(BATCH), job["seconds"]))
            found["megabits"] = job["megabits"]
            found["coded"], found["dense"] = (round(statistics.median(rates[coded]), 1) for coded in (True, False))
    return found


def measure_shards(job: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the processor time of one, two and four shards that are filled at once."""
    import ray

    laps = [make_blocks(job["game"], Path(job["cache"]), job["rows"], 128, 4, lap) for lap in range(job["rounds"] + 1)]
    schema = laps[0][0]
    found: dict[str, list[float]] = {}
    with two_nodes() as nodes:
        for count in (1, 2, 4):
            given = {"capacity": len(laps[0][1]) // count * schema.cells, "run": RUN, "seed": 0}
            started = [start_shard(schema, given, nodes.there if number % 2 else nodes.here) for number in range(count)]
            actors = [actor for actor, _ in started]
            for lap, (_, blocks, _) in enumerate(laps):
                before = sum(cpu_seconds(pid) for _, pid in started)
                add_blocks(actors, blocks, 1)  # each comes to a shard that is asleep, as in a fleet
                if lap:  # the first one fills them, and then each block takes the place of another
                    spent = sum(cpu_seconds(pid) for _, pid in started) - before
                    found.setdefault(str(count), []).append(spent / (len(blocks) * schema.cells) * 1e6)
            for actor in actors:
                ray.kill(actor)
    return {"shard_us": {count: round(min(values), 2) for count, values in found.items()}}


def make_games() -> Any:
    """MsPacman, as collectors play it."""
    from sb3_extra_buffers.training_utils.atari import make_env

    return make_env(GAME, n_envs=2, framestack=4)


def measure_fleet(job: Mapping[str, Any]) -> dict[str, Any]:
    """Train DQN with a fleet."""
    import ray
    from stable_baselines3 import DQN

    from sb3_extra_buffers.distributed import Fleet, ShardedReplayBuffer

    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
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
    parser.add_argument("--megabits", type=int, default=1_000, help="how much a cable carries in a second")
    parser.add_argument("--updates", type=int, default=800, help="updates of the fleet")
    args = parser.parse_args()
    if args.worker:
        job = json.loads(args.worker)
        what = {"blocks": measure_blocks, "rates": measure_rates, "network": measure_network, "shards": measure_shards}
        report({**what, "fleet": measure_fleet}[job["what"]](job))
        return
    results = ResultFile("cluster", args.results)
    job = {"rows": args.rows, "rounds": args.rounds, "seconds": args.seconds, "cache": str(args.cache)}
    for game in GAMES:
        ensure(game, args.rows * DATASETS[game].n_envs, args.cache)
        results.put(game, {"rows": args.rows, **run_worker("cluster", {**job, "what": "blocks", "game": game})})
    for what in ("rates", "network", "shards"):
        of_ray = {**job, "what": what, "game": GAMES[0], "megabits": args.megabits}
        results.put(what, {"game": GAMES[0], **run_worker("cluster", of_ray)})
    results.put("fleet", run_worker("cluster", {"what": "fleet", "steps": args.steps, "updates": args.updates}))
    for key, row in results.rows.items():
        console.print(key, row, soft_wrap=True)


if __name__ == "__main__":
    main()
