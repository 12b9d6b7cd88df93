"""inspect: tells what is in a file, and never runs anything from it."""

import json
import os
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer, RolloutBuffer
from stable_baselines3.common.save_util import save_to_pkl

from sb3_extra_buffers.cli import main
from sb3_extra_buffers.cli.inspect.files import describe_file as describe
from sb3_extra_buffers.cli.inspect.pickles import read_file as read_pickle
from sb3_extra_buffers.compressed import CompressedDictReplayBuffer, CompressedReplayBuffer, CompressedRolloutBuffer
from sb3_extra_buffers.recording import RecordBuffer

CAMERA = spaces.Box(0, 255, (1, 36, 36), np.uint8)
BOTH = spaces.Dict({"camera": CAMERA, "joints": spaces.Box(-1, 1, (3,), np.float32)})
TOUCHED: list[str] = []


def touch(where: str) -> None:
    TOUCHED.append(where)


class Malicious:
    """Runs something as soon as it is loaded."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.args


def filled(kind: Any, space: Any = CAMERA, rows: int = 5) -> Any:
    buffer = kind(10, space, spaces.Discrete(4), "cpu", n_envs=2)
    for _ in range(rows):
        obs: Any = np.stack([space.sample() for _ in range(2)]) if space is CAMERA else {
            key: np.stack([part.sample() for _ in range(2)]) for key, part in space.spaces.items()
        }  # fmt: skip
        buffer.add(obs, obs, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}, {}])
    return buffer


def facts(path: Path) -> dict[str, str]:
    found = describe(path)
    assert found.kind == "a pickled buffer" and found.foreign == []
    return dict(found.lines)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("kind", [ReplayBuffer, CompressedReplayBuffer])
def test_replay_buffers_of_every_protocol(kind: Any, protocol: int, tmp_path: Path) -> None:
    path = tmp_path / "buffer.pkl"
    path.write_bytes(pickle.dumps(filled(kind), protocol=protocol))
    found = facts(path)
    assert found["class"] == f"{kind.__module__}.{kind.__qualname__}"
    assert found["transitions"] == "10 of 10 (2 environments)"
    assert found["observation space"] == "Box (1, 36, 36) uint8" and found["action space"] == "Discrete 4"
    assert found["rewards"] == "float32 (5, 2), 40 B"
    if kind is ReplayBuffer:
        assert found["observations"] == "uint8 (5, 2, 1, 36, 36), 13.0 kB" and "compression" not in found
    else:
        assert found["observations"] == "uint8 (5, 2, 1, 36, 36), compressed" and found["compression"]


@pytest.mark.parametrize("kind", [DictReplayBuffer, CompressedDictReplayBuffer])
def test_dict_buffers_as_sb3_saves_them(kind: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "buffer.pkl"
    save_to_pkl(path, filled(kind, BOTH, rows=3))
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "6 of 10 (2 environments)" in shown
    assert "Dict camera: Box (1, 36, 36) uint8, joints: Box (3,) float32" in shown
    assert "observations['joints']" in shown and "float32 (5, 2, 3)" in shown


@pytest.mark.parametrize("kind", [RolloutBuffer, CompressedRolloutBuffer])
def test_rollout_buffers(kind: Any, tmp_path: Path) -> None:
    path = tmp_path / "buffer.pkl"
    path.write_bytes(pickle.dumps(kind(10, CAMERA, spaces.Box(-1, 1, (2,)), "cpu", n_envs=3, gamma=0.9)))
    found = facts(path)
    assert found["transitions"] == "0 of 30 (3 environments)" and found["gamma"] == "0.9"


def every_buffer() -> dict[str, Any]:
    """Every class of SB3's, of contrib's and of ours that a model can have, small."""
    from sb3_contrib.common.maskable import buffers as maskable
    from sb3_contrib.common.recurrent import buffers as recurrent
    from stable_baselines3 import HerReplayBuffer
    from stable_baselines3.common import buffers as plain
    from stable_baselines3.common.envs import BitFlippingEnv
    from stable_baselines3.common.vec_env import DummyVecEnv

    from sb3_extra_buffers import compressed, gpu_buffers

    env = DummyVecEnv([lambda: BitFlippingEnv(3)] * 2)
    classes = {name: getattr(compressed, name) for name in compressed.__all__ if name.endswith("Buffer")}
    classes |= {name: getattr(gpu_buffers, name) for name in gpu_buffers.__all__ if name.endswith("Buffer")}
    for module in (plain, maskable, recurrent):
        classes |= {name: cls for name, cls in vars(module).items() if name.endswith("Buffer") and name != "BaseBuffer"}
    made = {}
    for name, cls in {**classes, "HerReplayBuffer": HerReplayBuffer}.items():
        options: dict[str, Any] = {"env": env} if "Her" in name else {}
        space: Any = env.observation_space if "Her" in name else BOTH if "Dict" in name else CAMERA
        if "Recurrent" in name:
            options["hidden_state_shape"] = (10, 1, 2, 4)
        space.seed(1)
        made[name] = cls(10, space, action_space=spaces.Discrete(4), device="cpu", n_envs=2, **options)
        if "Replay" in name:
            parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
            obs: Any = {key: np.stack([part.sample()] * 2) for key, part in parts.items()}
            obs = obs if isinstance(space, spaces.Dict) else obs[""]
            infos = [{"score": np.float32(1)}, {"goal": np.zeros(3)}]
            made[name].add(obs, obs, np.zeros((2, 1)), np.zeros(2), np.zeros(2), infos)
    return made


def test_no_buffer_is_suspected(tmp_path: Path) -> None:
    buffers = every_buffer()
    assert len(buffers) >= 28
    path = tmp_path / "buffer.pkl"
    for name, buffer in buffers.items():
        save_to_pkl(path, buffer)
        assert facts(path)["class"].endswith(f".{name}")
        for data in [pickle.dumps(buffer, protocol=protocol) for protocol in range(6)] + [cloudpickle.dumps(buffer)]:
            path.write_bytes(data)
            assert facts(path)["class"].endswith(f".{name}")


@pytest.mark.parametrize("method", ["delta", "rle", "gzip", "zstd", "lz4-frame", "none"])
def test_no_method_is_suspected(method: str, tmp_path: Path) -> None:
    path = tmp_path / "buffer.pkl"
    buffer = CompressedReplayBuffer(10, CAMERA, spaces.Discrete(4), "cpu", compression_method=method)
    path.write_bytes(pickle.dumps(buffer))
    assert method in facts(path)["compression"]


def test_no_model_is_suspected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from stable_baselines3 import PPO, SAC
    from stable_baselines3.common.noise import NormalActionNoise
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    path = tmp_path / "model.zip"
    layers = {"activation_fn": th.nn.ReLU, "optimizer_class": th.optim.AdamW}
    PPO("MlpPolicy", "Pendulum-v1", use_sde=True, policy_kwargs=layers, device="cpu").save(path)
    assert main(["inspect", str(path)]) == 0
    noise = NormalActionNoise(np.zeros(1), np.ones(1))
    model = SAC("MlpPolicy", "Pendulum-v1", action_noise=noise, buffer_size=200, learning_starts=10, device="cpu").learn(20)
    model.save(path)
    assert main(["inspect", str(path)]) == 0
    env = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]))
    env.save(str(path))
    assert main(["inspect", str(path)]) == 0
    assert "vec_normalize.VecNormalize" in capsys.readouterr().out
    PPO("MlpPolicy", "CartPole-v1", learning_rate=lambda left: left * 1e-3, device="cpu").save(path)
    assert main(["inspect", str(path)]) == 1  # code of the user's own is in it
    assert "cloudpickle" in capsys.readouterr().out


def test_transposed_arrays_are_not_suspected(tmp_path: Path) -> None:
    """NumPy 2.4 hands on the order of their axes as a fifth argument; written by hand, so that any NumPy tests it."""
    _frombuffer = np.zeros(3).__reduce_ex__(5)[0]
    buffer = filled(ReplayBuffer)
    buffer.turned = [np.zeros((2, 3, 4)).transpose(axes) for axes in ((1, 0, 2), (2, 0, 1), (0, 2, 1), (2, 1, 0))]
    data, kind = bytes(24), np.dtype(np.uint8)
    buffer.by_hand = Malicious(_frombuffer, data, kind, (2, 3, 4), "K", (1, 0, 2))
    path = tmp_path / "buffer.pkl"
    path.write_bytes(pickle.dumps(buffer, protocol=5))
    assert facts(path)["transitions"] == "10 of 10 (2 environments)"
    buffer.by_hand = Malicious(_frombuffer, data, kind, (2, 3, 4), "K", os.system)
    path.write_bytes(pickle.dumps(buffer, protocol=5))
    assert describe(path).foreign


def test_a_buffer_saved_while_it_is_watched(tmp_path: Path) -> None:
    from sb3_extra_buffers.training_utils.buffer_stats import _Timed

    buffer = filled(CompressedReplayBuffer)
    _Timed.before(buffer, "add")
    path = tmp_path / "buffer.pkl"
    path.write_bytes(pickle.dumps(buffer))
    assert facts(path)["transitions"] == "10 of 10 (2 environments)"


PAYLOADS = [
    Malicious(touch, "reduce"),
    Malicious(os.system, "touch /tmp/sb3-extra-buffers-was-here"),
    Malicious(eval, "__import__('os').system('true')"),
    Malicious(getattr, ReplayBuffer, "__init__"),
    Malicious(subprocess.check_output, ["true"]),
]


@pytest.mark.parametrize("payload", PAYLOADS, ids=lambda payload: payload.function.__name__)
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_nothing_is_run(payload: Any, inside: bool, protocol: int, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    def forbidden(*args: Any) -> Any:
        raise AssertionError(f"called with {args}")

    buffer = filled(ReplayBuffer)
    buffer.extra = [payload]
    path = tmp_path / "buffer.pkl"
    path.write_bytes(pickle.dumps(buffer if inside else payload, protocol=protocol))
    for target in ("os.system", "subprocess.check_output", "builtins.__import__"):
        if target != "builtins.__import__":
            monkeypatch.setattr(target, forbidden)
    TOUCHED.clear()
    assert main(["inspect", str(path)]) == 1
    shown = capsys.readouterr().out
    assert TOUCHED == []
    assert "Do not load this file" in shown and f".{payload.function.__name__}" in shown
    assert ("10 of 10" in shown) == inside


WHOLE = pickle.dumps([filled(CompressedReplayBuffer, rows=2), Malicious(touch, "x")])


@given(st.data())
def test_damaged_files_run_nothing(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.pkl"
    whole = bytearray(WHOLE)
    for _ in range(data.draw(st.integers(0, 5))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole)))])
    TOUCHED.clear()
    contents = read_pickle(path)
    assert contents.damage is None or contents.damage
    assert TOUCHED == []


@given(st.binary(max_size=200))
def test_anything_else_is_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "anything"
    path.write_bytes(content)
    contents = read_pickle(path)
    if (contents.damage is not None or contents.foreign) and content[:2] != b"PK":
        assert main(["inspect", str(path)]) == (1 if contents.foreign else 2)


@pytest.mark.skipif(sys.platform != "linux", reason="limits memory as Linux does")
def test_a_large_file_needs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.pkl"
    buffer = ReplayBuffer(10, CAMERA, spaces.Discrete(2), "cpu")
    buffer.observations = np.zeros((400, 1, 1, 1000, 1000), np.uint8)
    with path.open("wb") as file:
        pickle.dump(buffer, file, protocol=5)
    del buffer
    code = f"""
from pathlib import Path
from sb3_extra_buffers.cli.inspect.files import describe_file
print(dict(describe_file(Path({str(path)!r})).lines)["observations"])
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    described, peak = done.stdout.splitlines()
    assert described == "uint8 (400, 1, 1, 1000, 1000), 400 MB"
    assert int(peak) * 1024 < 200e6


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "buffer.pkl"
    path.write_bytes(pickle.dumps([Malicious(touch, "x")]))
    assert main(["inspect", str(path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "a pickle, but no buffer" and found["foreign_code"] == [f"{__name__}.touch"]


def test_json_has_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def inspected(name: str) -> dict[str, Any]:
        assert main(["inspect", str(tmp_path / name), "--json"]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert found["file_bytes"] == (tmp_path / name).stat().st_size and found["foreign_code"] == []
        return found

    (tmp_path / "buffer.pkl").write_bytes(pickle.dumps(filled(CompressedReplayBuffer, rows=3)))
    found = inspected("buffer.pkl")
    assert found["kind"] == "a pickled buffer"
    assert [found[name] for name in ("transitions", "capacity", "n_envs")] == [6, 10, 2]
    assert found["compression"] and found["observation_space"] == "Box (1, 36, 36) uint8"

    recording = RecordBuffer(50, (8, 6), features={"lives": np.int32}, metadata={"env_id": "Some-v0"})
    for step in range(7):
        recording.add(np.zeros((8, 6), np.uint8), 1.0, 0, {"lives": 3}, done=step == 4)
    recording.save(tmp_path / "play.rec")
    found = inspected("play.rec")
    assert found["kind"] == "a recording" and found["buffer"] == "dense"
    assert [found[name] for name in ("steps", "episodes", "buffer_size")] == [7, 2, 50]
    assert found["frame_shape"] == [8, 6] and found["features"] == {"lives": {"shape": [], "dtype": "int32"}}
    assert found["metadata"] == {"env_id": "Some-v0"}

    DQN("MlpPolicy", "CartPole-v1", buffer_size=10, device="cpu").save(tmp_path / "model.zip")
    found = inspected("model.zip")
    assert found["kind"] == "a model that SB3 saved" and found["buffer_size"] == 10


def test_npz(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled(CompressedReplayBuffer).save(tmp_path / "buffer.sb3x")
    path = tmp_path / "buffer.npz"
    assert main(["convert", str(tmp_path / "buffer.sb3x"), str(path)]) == 0
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "buffer.npz: transitions as npz" in shown
    with np.load(path) as arrays:
        for name in arrays.files:
            assert re.search(rf"^  {name} +{arrays[name].dtype} {re.escape(str(arrays[name].shape))}$", shown, re.MULTILINE)
        assert main(["inspect", str(path), "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)["arrays"]
        assert {name: fact["shape"] for name, fact in facts.items()} == {n: list(arrays[n].shape) for n in arrays.files}
    np.savez(path, harmless=np.zeros(3), objects=np.array([Malicious(touch, "npz")], dtype=object))
    assert main(["inspect", str(path)]) == 1
    assert "a pickle of Python objects, in objects.npy" in capsys.readouterr().out
    path.write_bytes(path.read_bytes().replace(b"NUMPY", b"NUMPI"))
    assert main(["inspect", str(path)]) == 2


def test_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.zip"
    DQN("MlpPolicy", "CartPole-v1", buffer_size=10, replay_buffer_class=CompressedReplayBuffer, device="cpu").save(path)
    assert main(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "a model that SB3 saved" in shown and "buffer_size" in shown
    assert "stable_baselines3.dqn.policies.DQNPolicy\n" in shown
    assert "sb3_extra_buffers.compressed.replay.CompressedReplayBuffer\n" in shown
    assert "Box (4,) float32" in shown and "Discrete 2" in shown
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", "{")
    assert main(["inspect", str(path)]) == 2
    assert "is damaged" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "code", "words"), [("nothing", 2, "does not exist"), (".", 2, "is a folder")])
def test_mistakes(name: str, code: int, words: str, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", name]) == code
    assert words in capsys.readouterr().err


def test_a_text_is_no_pickle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("#!/bin/sh")
    assert main(["inspect", str(tmp_path / "notes.txt")]) == 2
    message = capsys.readouterr().err
    assert "not a recording, a pickle or a saved model" in message and "KeyError" not in message


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "buffer.pkl"
    path.write_bytes(pickle.dumps(filled(ReplayBuffer)))
    command = f"{sys.executable} -m sb3_extra_buffers inspect {path} | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert "a pickled buffer" in done.stdout and "Traceback" not in done.stderr
