"""Ray is an extra: everything imports without it, and says what is missing when it is needed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import sb3_extra_buffers.distributed as distributed
from sb3_extra_buffers.distributed import Fleet
from sb3_extra_buffers.distributed.actors import reason


def test_everything_imports_without_ray() -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "import importlib, pkgutil, sb3_extra_buffers.distributed as package\n"
        "for found in pkgutil.iter_modules(package.__path__): importlib.import_module(f'{package.__name__}.{found.name}')\n"
        "print([getattr(package, name).__name__ for name in package.__all__])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout.strip()) == (0, str(distributed.__all__)), done.stderr


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'needs ray: pip install "\.\[ray\]"'):
        Fleet(lambda: None)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"n_collectors": 0}, "n_collectors is 0"),
        ({"n_shards": 0}, "n_shards is 0"),
        ({"exploration": "boldly"}, "exploration is 'boldly'"),
        ({"on_shard_loss": "cry"}, "on_shard_loss is 'cry'"),
        ({"checkpoint_every": 5}, "needs a checkpoint_dir"),
        ({"max_lead": 0}, "max_lead is 0"),
        ({"timeout": 0}, "timeout is 0; it must be more than 0 seconds"),
        ({"start_timeout": float("nan")}, "start_timeout is nan"),
    ],
)
def test_arguments_are_checked_before_anything_starts(arguments: dict[str, Any], what: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match=what):
        Fleet(lambda: None, **arguments)


# What Ray 2.60 says, shortened.
TASK_ERROR = """\x1b[36mray::CollectorActor.run()\x1b[39m (pid=5779, ip=127.0.0.1, repr=<CollectorActor object>)
  File "/usr/lib/python3/fleet_worlds.py", line 61, in step
    raise RuntimeError("the simulator has crashed")
RuntimeError: the simulator has crashed
"""
CREATION_ERROR = """The actor died because of an error raised in its creation task, \x1b[36mray::Actor.__init__()\x1b[39m
  File "/usr/lib/python3/fleet_worlds.py", line 61, in reset
ModuleNotFoundError: No module named 'game'"""
LONG_ERROR = """\x1b[36mray::CollectorActor.run()\x1b[39m (pid=5779, ip=127.0.0.1, repr=<CollectorActor object>)
  File "/usr/lib/python3/fleet_worlds.py", line 61, in step
    raise ValueError(text)
          ^^^^^^^^^^^^^^^
ValueError: no game in game.bin. Install it with:
  pip install games. Then try again."""
DIED = """The actor died unexpectedly before finishing this task.
\tclass_name: ShardActor
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly
exits with a connection error code 2. End of file. There are some potential root causes."""


@pytest.mark.parametrize(
    ("said", "short"),
    [
        (TASK_ERROR, "RuntimeError: the simulator has crashed"),
        (LONG_ERROR, "ValueError: no game in game.bin. Install it with: pip install games. Then try again"),
        (CREATION_ERROR, "ModuleNotFoundError: No module named 'game'"),
        (DIED, "The actor died unexpectedly before finishing this task"),
        ("", "RuntimeError"),
    ],
)
def test_what_ray_says_is_shortened(said: str, short: str) -> None:
    assert reason(RuntimeError(said)) == short
