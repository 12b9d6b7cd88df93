"""Ray for the tests that need it: one cluster at a time, whatever pytest-xdist does."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if sys.platform != "win32":
    import fcntl

# Before the first import of Ray: everything stays on the loopback interface.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
_HEALTH = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody else has a cluster now; workers of Ray's find the environments of these tests."""
    known = filter(None, [os.environ.get("PYTHONPATH")])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *known]))
    with open(Path(tempfile.gettempdir()) / f"sb3xb-ray-tests-{os.getuid()}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture
def ray_here(alone: None) -> Iterator[Any]:
    """Ray on one node."""
    ray = pytest.importorskip("ray")
    options: dict[str, Any] = {"num_cpus": 8, "include_dashboard": False, "object_store_memory": 150_000_000}
    try:
        ray.init(address="local", log_to_driver=False, **options)
    except Exception:  # Ray gives its own processes half a minute to start, which a busy machine may not have
        ray.shutdown()
        ray.init(address="local", log_to_driver=False, **options)
    yield ray
    ray.shutdown()


@pytest.fixture
def ray_nodes(alone: None) -> Iterator[Any]:
    """Three nodes on one machine; the learner is on the first."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 2, "object_store_memory": 100_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False, "_system_config": _HEALTH})
    for _ in range(2):
        cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
