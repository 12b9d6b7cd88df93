"""Nodes of Ray's on one machine, shards on them, and what they cost."""

from __future__ import annotations

import ctypes
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET


_FLUSHED = 1.5  # seconds after which Ray has told its head node of everything that was called


class Nodes(NamedTuple):
    """The node of the learner, and another one."""

    here: str
    there: str


@contextmanager
def two_nodes(object_store: int = 400_000_000) -> Iterator[Nodes]:
    """Start two nodes."""
    import ray
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": object_store}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    try:
        cluster.add_node(**node)
        ray.init(address=cluster.address, log_to_driver=False)
        here = ray.get_runtime_context().get_node_id()
        yield Nodes(here, next(each["NodeID"] for each in ray.nodes() if each["NodeID"] != here))
    finally:
        ray.shutdown()
        cluster.shutdown()


def start_shard(schema: Any, arguments: Mapping[str, Any], node: str) -> tuple[Any, int]:
    """Start a shard."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from sb3_extra_buffers.distributed.actors import SHARD_GROUPS, ShardActor, call_actor

    where = NodeAffinitySchedulingStrategy(node, soft=False)
    make = ray.remote(num_cpus=0, concurrency_groups=SHARD_GROUPS, scheduling_strategy=where)(ShardActor)
    actor = make.remote(schema, dict(arguments), None)
    return actor, ray.get(call_actor(actor, "describe"), timeout=120).pid


def add_blocks(actors: Sequence[Any], blocks: Sequence[Any], at_once: int = 8) -> None:
    """Send blocks to shards in turn."""
    import ray

    from sb3_extra_buffers.distributed.actors import WRITE, call_actor

    whose = [(actors[number % len(actors)], block) for number, block in enumerate(blocks)]
    for first in range(0, len(whose), at_once * len(actors)):
        some = whose[first : first + at_once * len(actors)]
        ray.get([call_actor(actor, "add", block, group=WRITE) for actor, block in some], timeout=120)


def cpu_seconds(pid: int) -> float:
    """Tell what processor time a process has taken, all its threads together."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def own_network() -> bool:
    """Give this process and those that it starts a loopback interface of their own."""
    try:
        if ctypes.CDLL(None, use_errno=True).unshare(_NEW_NETWORK) != 0:
            return False
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True, capture_output=True)
    except (AttributeError, OSError, subprocess.CalledProcessError):
        return False
    return True


def limit_network(megabits: int) -> bool:
    """Make the loopback interface as slow as a cable."""
    rate = ["rate", f"{megabits}mbit", "burst", "256kb", "latency", "400ms"]
    try:
        subprocess.run(["tc", "qdisc", "replace", "dev", "lo", "root", "tbf", *rate], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def loopback_bytes() -> int:
    """Count what has gone over the loopback interface."""
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))


def message_bytes(message: Any) -> int:
    """Return the size of a message as Ray serialises it."""
    from ray._private.worker import global_worker

    return int(global_worker.get_serialization_context().serialize(message).total_bytes)


def count_bytes(call: Callable[[], Any], times: int, idle: float = 0.0) -> float:
    """Count what calls put on the loopback interface."""
    for _ in range(3):
        call()
    time.sleep(_FLUSHED)
    before, since = loopback_bytes(), time.perf_counter()
    for _ in range(times):
        call()
    time.sleep(_FLUSHED)
    return (loopback_bytes() - before - idle * (time.perf_counter() - since)) / times
