"""What can be imported from the package itself, and what type checkers know of it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import typing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import sb3_extra_buffers

pytest.importorskip("sb3_contrib")

ROOT = Path(__file__).parents[1]
PACKAGES = ("compressed", "gpu_buffers", "recording", "datasets", "training_utils")
BUFFERS = [name for name in sb3_extra_buffers.__all__ if name.endswith("Buffer") and "Record" not in name]
CONSTRUCTED = [*BUFFERS, "CompressedRecurrentPPO"]


def test_every_public_name_can_be_imported_from_the_package_itself() -> None:
    public = set()
    for package in PACKAGES:
        module = importlib.import_module(f"sb3_extra_buffers.{package}")
        for name in module.__all__:
            assert getattr(sb3_extra_buffers, name) is getattr(module, name)
            public.add(name)
    assert {
        "CompressedReplayBuffer",
        "GpuRolloutBuffer",
        "compressed_kwargs",
        "CompressedRecordBuffer",
        "eval_model",
    } <= public
    assert set(sb3_extra_buffers.__all__) == public | {"__version__"}
    assert public <= set(dir(sb3_extra_buffers))
    with pytest.raises(AttributeError, match="no attribute 'CompresedReplayBuffer'"):
        sb3_extra_buffers.CompresedReplayBuffer  # noqa: B018
    with pytest.raises(ImportError, match="CompresedReplayBuffer"):
        exec("from sb3_extra_buffers import CompresedReplayBuffer")


def test_the_version_costs_no_library() -> None:
    program = (
        "import sys, sb3_extra_buffers\n"
        "assert sb3_extra_buffers.__version__ and 'CompressedReplayBuffer' in dir(sb3_extra_buffers)\n"
        "loaded = {name.split('.')[0] for name in sys.modules} & {'torch', 'stable_baselines3', 'numpy', 'gymnasium'}\n"
        "assert not loaded, loaded\n"
        "from sb3_extra_buffers import codecs\n"
        "assert not {'torch', 'stable_baselines3'} & sys.modules.keys()\n"
        "from sb3_extra_buffers import CompressedReplayBuffer\n"
        "assert 'stable_baselines3' in sys.modules and 'sb3_extra_buffers.gpu_buffers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)


# -- signatures ---------------------------------------------------------------------------------------------------------------


def as_type_checkers_see(name: str) -> ModuleType:
    """A second copy of a module, run as type checkers read it."""
    spec = importlib.util.find_spec(name)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typing, "TYPE_CHECKING", True)
        spec.loader.exec_module(module)
    return module


def shown(cls: type) -> tuple[list[inspect.Parameter], set[str]]:
    """What type checkers see of the constructor: arguments that are written out, and the names of the other options."""
    parent = next(parent for parent in cls.__mro__ if "__init__" in vars(parent))
    module = as_type_checkers_see(parent.__module__)
    own = [*inspect.signature(vars(getattr(module, parent.__name__))["__init__"]).parameters.values()][1:]
    assert not any(parameter.kind is parameter.VAR_POSITIONAL for parameter in own)
    if own[-1].kind is not inspect.Parameter.VAR_KEYWORD:
        return own, set()
    options = re.fullmatch(r"Unpack\[(\w+)\]", own[-1].annotation)
    assert options is not None, f"the options of {cls} have no names"
    return own[:-1], set(typing.get_type_hints(getattr(module, options[1])))


def plain(annotation: Any) -> str:
    """An annotation without modules and without the arguments of spaces."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    text = re.sub(r"[A-Za-z_0-9]+\.", "", text.replace("Schedule", "Callable[[float], float]"))
    text = text.replace("GymEnv | str", "Union[Env, ForwardRef('VecEnv'), str]")
    # SB3's Dict buffers want a Dict. An environment's `observation_space` is any space, so theirs is looser here.
    return re.sub(r"\bDict$", "Space", text.replace("Space[Any]", "Space"))


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_type_checkers_see_what_a_constructor_takes(name: str) -> None:
    cls = getattr(sb3_extra_buffers, name)
    taken, (seen, options) = inspect.signature(cls).parameters, shown(cls)
    assert len(taken) > 9 and not any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in taken.values())
    assert options | {parameter.name for parameter in seen} == taken.keys()
    for parameter in seen:
        real = taken[parameter.name]
        assert (str(parameter.default), plain(parameter.annotation)) == (str(real.default), plain(real.annotation))
        assert parameter.kind is real.kind
    for option in options:
        assert taken[option].kind is inspect.Parameter.KEYWORD_ONLY and taken[option].default is not inspect.Parameter.empty


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_a_constructor_takes_what_that_of_sb3_takes(name: str) -> None:
    """By the same names, in the same places, with the same defaults."""
    cls = getattr(sb3_extra_buffers, name)
    inherited = (parent for parent in cls.__mro__ if parent.__module__.startswith(("stable_baselines3.", "sb3_contrib.")))
    signatures = [inspect.signature(vars(parent)["__init__"]) for parent in inherited if "__init__" in vars(parent)]
    theirs = [
        parameter
        for parameter in next(each for each in signatures if "args" not in each.parameters).parameters.values()
        if parameter.name != "self" and not parameter.name.startswith("_")
    ]
    ours = [*inspect.signature(cls).parameters.values()]
    assert len(theirs) > 5
    assert [(p.name, p.kind, p.default) for p in ours[: len(theirs)]] == [(p.name, p.kind, p.default) for p in theirs]


SCRIPT = """
import numpy as np
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from stable_baselines3 import DQN, PPO

import sb3_extra_buffers
from sb3_extra_buffers import CompressedDictReplayBuffer, CompressedReplayBuffer, CompressedRolloutBuffer
from sb3_extra_buffers import CompressedMaskableRolloutBuffer, CompressedRecurrentPPO
from sb3_extra_buffers import GpuReplayBuffer, PrioritizedReplayBuffer, compressed_kwargs, load_recording

space = spaces.Box(0, 255, (4, 84, 84), np.uint8)
actions = spaces.Discrete(4)
print(sb3_extra_buffers.__version__, load_recording, compressed_kwargs(DQN, space))

buffer = CompressedReplayBuffer(1_000, space, actions, "cpu", n_envs=4, compression_method="zstd-5", dtypes=None)
buffer.sample(32, env=None)
print(buffer.memory_usage().ratio)
CompressedDictReplayBuffer(1_000, spaces.Dict({"image": space}), actions, compression_kwargs={"compresslevel": 5})
CompressedRolloutBuffer(128, space, actions, gae_lambda=0.95, prefetch=True)
GpuReplayBuffer(1_000, space, actions, buffer_device="cuda", heap_bytes=1 << 20)
PrioritizedReplayBuffer(1_000, space, actions, alpha=0.5, beta=lambda progress: 1 - progress)
DQN("CnnPolicy", "PongNoFrameskip-v4", replay_buffer_class=CompressedReplayBuffer, replay_buffer_kwargs={"dtypes": None})
PPO("CnnPolicy", "PongNoFrameskip-v4", rollout_buffer_class=CompressedRolloutBuffer)
MaskablePPO("CnnPolicy", "PongNoFrameskip-v4", rollout_buffer_class=CompressedMaskableRolloutBuffer)
CompressedRecurrentPPO("CnnLstmPolicy", "PongNoFrameskip-v4", n_steps=64, rollout_buffer_kwargs={"prefetch": True})

CompressedReplayBuffer(1_000, space, actions, compresion_method="zstd-5")  # wrong: "compresion_method"
CompressedReplayBuffer(1_000, space, actions, compression_method=5)  # wrong: "compression_method"
CompressedReplayBuffer("many", space, actions)  # wrong: incompatible type "str"
CompressedReplayBuffer(1_000, space)  # wrong: "action_space"
CompressedReplayBuffer(1_000, space, actions, gae_lambda=0.9)  # wrong: "gae_lambda"
CompressedRolloutBuffer(128, space, actions, optimize_memory_usage=True)  # wrong: "optimize_memory_usage"
CompressedMaskableRolloutBuffer(128, space, actions, prefetsh=True)  # wrong: "prefetsh"
GpuReplayBuffer(1_000, space, actions, heap_bytes="all")  # wrong: "heap_bytes"
PrioritizedReplayBuffer(1_000, space, actions, alfa=0.5)  # wrong: "alfa"
CompressedRecurrentPPO("CnnLstmPolicy", "PongNoFrameskip-v4", n_step=64)  # wrong: "n_step"
DQN("CnnPolicy", "PongNoFrameskip-v4", replay_buffer_class=CompressedRolloutBuffer)  # wrong: "replay_buffer_class"
sb3_extra_buffers.CompresedReplayBuffer  # wrong: "CompresedReplayBuffer"
sb3_extra_buffers.compressed_kwargs(DQN)  # wrong: "env"
"""


@pytest.mark.slow
def test_a_type_checker_on_the_script_of_a_user(tmp_path: Path) -> None:
    """What is right passes, every mistake is found; and of every class mypy knows the arguments by name."""
    pytest.importorskip("mypy")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT + "".join(f"reveal_type(sb3_extra_buffers.{name})\n" for name in CONSTRUCTED), encoding="utf-8")
    # With the project's settings, which are strict, it has most of its work in its cache after `make lint`.
    command = [sys.executable, "-m", "mypy", "--no-error-summary", "--hide-error-context", "--no-pretty", str(script)]
    where = os.environ | {"MYPYPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=where, capture_output=True, text=True, check=False, timeout=800)
    said: dict[int, str] = {}
    for line, text in re.findall(r"script\.py:(\d+): (?:error|note): (.*)", done.stdout):
        said[int(line)] = said.get(int(line), "") + text
    assert said, done.stdout + done.stderr
    for number, line in enumerate(script.read_text(encoding="utf-8").splitlines(), 1):
        wrong = line.partition("# wrong: ")[2]
        if line.startswith("reveal_type"):
            name = line.removesuffix(")").rpartition(".")[2]
            # Arguments, and the keys of the TypedDict that `**options` is.
            names = re.findall(r"[(,] (?:\*, )?(\w+):", said[number].replace("(", "( ", 1))
            names += re.findall(r"'(\w+)'\?:", said[number])
            assert set(names) == set(inspect.signature(getattr(sb3_extra_buffers, name)).parameters), said[number]
        else:
            assert (wrong in said.get(number, "no error")) if wrong else number not in said, f"{line}\n{said.get(number)}"
