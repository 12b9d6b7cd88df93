"""inspect: files that were made to run code, each of which is shown to do so when it is loaded."""

import base64
import contextlib
import copyreg
import functools
import io
import json
import operator
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from stable_baselines3 import DQN
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.save_util import json_to_data
from stable_baselines3.common.vec_env.base_vec_env import CloudpickleWrapper

from sb3_extra_buffers.cli import main
from sb3_extra_buffers.cli.inspect.pickles import read_pickle
from sb3_extra_buffers.recording import RecordBuffer

HERE = __name__.encode()
BOX = b"cgymnasium.spaces.box\nBox\n"
BUFFER = b"cstable_baselines3.common.buffers\nReplayBuffer\n"


class Call:
    """A call that is made when this is loaded."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.args


class Trap:
    """Makes a folder in each of the ways in which pickle brings an object to life."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "Trap":
        if args:
            os.mkdir(args[0])
        if kwargs:
            os.mkdir(kwargs["path"])
        return object.__new__(cls)

    def __setstate__(self, state: str) -> None:
        os.mkdir(state)

    def append(self, path: str) -> None:
        os.mkdir(path)

    def __setitem__(self, path: str, value: Any) -> None:
        os.mkdir(path)


def text(value: str) -> bytes:
    """Push a string."""
    data = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


def named(module: str, name: str) -> bytes:
    """Push what a module has, by values on the stack, which may be dotted in protocol 4."""
    return text(module) + text(name) + b"\x93"


def through_getattr(target: str) -> bytes:
    """Reach os through the globals of a method, with calls that only the opcode OBJ makes."""

    def attribute(of: bytes, name: str) -> bytes:
        return b"(cbuiltins\ngetattr\n" + of + text(name) + b"o"

    scope = attribute(attribute(BUFFER, "__init__"), "__globals__")
    builtins = b"(" + attribute(scope, "get") + text("__builtins__") + b"o"
    find = b"(" + attribute(builtins, "get") + text("__import__") + b"o"
    return b"\x80\x04" + b"(" + attribute(b"(" + find + text("os") + b"o", "mkdir") + text(target) + b"o."


def zip_appended(target: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("harmless", "nothing")
    return pickle.dumps(Call(os.mkdir, target)) + packed.getvalue()


def inner_json(target: str) -> bytes:
    inner = base64.b64encode(pickle.dumps(Call(os.mkdir, target))).decode()
    return pickle.dumps(Call(json_to_data, json.dumps({"x": {":serialized:": inner}})))


MKDIR = b"cos\nmkdir\n"
RUNS: dict[str, Callable[[str], bytes]] = {
    "CloudpickleWrapper": lambda target: pickle.dumps(CloudpickleWrapper(Call(os.mkdir, target))),
    "CloudpickleWrapper, protocol 2": lambda target: pickle.dumps(CloudpickleWrapper(Call(os.mkdir, target)), protocol=2),
    "a dotted name": lambda target: (
        b"\x80\x04" + named("stable_baselines3.common.save_util", "os.mkdir") + text(target) + b"\x85R."
    ),
    "json_to_data": inner_json,
    "getattr by OBJ": through_getattr,
    "a zip appended": zip_appended,
    "INST": lambda target: b"(" + text(target) + b"ios\nmkdir\n.",
    "INST at the end of a file": lambda target: b"(" + text(target) + b"ios\nmkdir!",
    "OBJ": lambda target: b"(" + MKDIR + text(target) + b"o.",
    "NEWOBJ": lambda target: b"\x80\x02c" + HERE + b"\nTrap\n" + text(target) + b"\x85\x81.",
    "NEWOBJ_EX": lambda target: b"\x80\x04c" + HERE + b"\nTrap\n)}" + text("path") + text(target) + b"s\x92.",
    "BUILD": lambda target: b"\x80\x02c" + HERE + b"\nTrap\n)\x81" + text(target) + b"b.",
    "APPEND": lambda target: b"\x80\x02c" + HERE + b"\nTrap\n)\x81" + text(target) + b"a.",
    "SETITEM": lambda target: b"\x80\x02c" + HERE + b"\nTrap\n)\x81" + text(target) + b"Ns.",
    "EXT1": lambda target: b"\x80\x02\x82\xf1" + text(target) + b"\x85R.",
    "EXT2": lambda target: b"\x80\x02\x83\xf1\x00" + text(target) + b"\x85R.",
    "EXT4": lambda target: b"\x80\x02\x84\xf1\x00\x00\x00" + text(target) + b"\x85R.",
    "names from the memo": lambda target: (
        b"\x80\x04" + text("os") + b"q\x05" + text("mkdir") + b"r\x06\x00\x00\x0000h\x05j\x06\x00\x00\x00\x93"
        b"\x94" + text(target) + b"\x85R."
    ),
    "names from the memo, as text": lambda target: b"Vos\np7\nVmkdir\np70\n00g7\ng70\n\x93" + text(target) + b"\x85R.",
    "DUP, POP and POP_MARK": lambda target: b"\x80\x04(NN1" + MKDIR + b"2N00" + text(target) + b"\x8520(0R.",
    "a name in pieces": lambda target: (
        b"\x80\x04" + named("_codecs", "decode") + b"C\x02os" + text("ascii") + b"\x86R" + text("mkdir") + b"\x93"
        + text(target) + b"\x85R."
    ),
    "partial": lambda target: pickle.dumps(Call(functools.partial(os.mkdir), target)),
    "methodcaller": lambda target: pickle.dumps(Call(operator.methodcaller("mkdir"), Path(target))),
    "eval": lambda target: pickle.dumps(Call(eval, f"__import__('os').mkdir({target!r})")),
    "a generator of random numbers": lambda target: pickle.dumps(
        Call(np.random._pickle.__generator_ctor, target, os.mkdir)  # type: ignore[attr-defined]
    ),
    "a tensor": lambda target: pickle.dumps(
        Call(th.storage._load_from_bytes, pickle.dumps(Call(os.mkdir, target)))  # type: ignore[no-untyped-call]
    ),
    "damage afterwards": lambda target: MKDIR + text(target) + b"\x85R" + b"\xff\xff",
    "an end too early": lambda target: MKDIR + text(target) + b"\x85R",
    "a frame that is too short": lambda target: b"\x80\x04\x95\x02" + bytes(7) + MKDIR + text(target) + b"\x85R.",
    "a call as an argument": lambda target: pickle.dumps(
        Call(getattr, Call(os.mkdir, target), "real")
    ),
    "protocol in the middle": lambda target: b"\x80\x04\x80\x02" + b"c__builtin__\neval\n"
    + text(f"__import__('os').mkdir({target!r})") + b"\x85R.",
}  # fmt: skip


@pytest.fixture
def extension() -> Any:
    copyreg.add_extension("os", "mkdir", 0xF1)
    yield
    copyreg.remove_extension("os", "mkdir", 0xF1)


@pytest.mark.usefixtures("extension")
@pytest.mark.parametrize("name", RUNS)
def test_what_runs_code_is_told_and_not_run(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target, path = tmp_path / "made", tmp_path / "buffer.pkl"
    path.write_bytes(RUNS[name](str(target)))
    code = main(["inspect", str(path)])
    assert not target.exists()
    assert code == 1 and "Do not load this file" in capsys.readouterr().out
    assert main(["inspect", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["foreign_code"]
    for load in (pickle.load, pickle._load):  # type: ignore[attr-defined]  # in C, and in Python, which reads lines otherwise
        with path.open("rb") as file, contextlib.suppress(Exception):
            load(file)
    assert target.is_dir(), "this test proves nothing: loading the file runs nothing"


SUSPICIOUS = {
    "attributes of a class are set": b"\x80\x02" + BUFFER + b"N}" + text("size") + BOX + b"s\x86b.",
    "a name that is computed": b"\x80\x04" + named("_codecs", "encode") + text("os") + text("latin1") + b"\x86R" + text("x")
    + b"\x93.",
    "a key": b"\x80\x02" + text("x") + b"Q.",
    "a key as text": b"Px\n.",
    "an attribute that Python calls": b"\x80\x02" + BOX + b")\x81}" + text("__setstate__") + BOX + b"sb.",
    "an attribute that is called": b"\x80\x02" + BOX + b")\x81}" + text("append") + BOX + b"sbNa.",
    "an attribute whose name is computed": b"\x80\x02" + BOX + b")\x81}" + b"NNsb.",
    "what a call gives is called": b"\x80\x02ctorch\ndevice\n" + text("cpu") + b"\x85R)R.",
    "arguments that are an object": b"\x80\x02ctorch\ndevice\n" + BOX + b")\x81R.",
    "numbers taken for objects": b"\x80\x02cnumpy\ndtype\n" + text("O8") + b"\x89\x88\x87R(K\x03" + text("|")
    + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb.",
    "objects taken for numbers": b"\x80\x02cnumpy\ndtype\n" + text("f8") + b"\x89\x88\x87R(K\x03" + text("|")
    + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x3ftb.",
    "an unknown class": pickle.dumps(Path("x")),
    "something after the end": pickle.dumps(None) + b"x",
}  # fmt: skip


@pytest.mark.parametrize("name", SUSPICIOUS)
def test_what_might_run_code_is_told(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "buffer.pkl"
    path.write_bytes(SUSPICIOUS[name])
    assert main(["inspect", str(path)]) == 1
    assert "Do not load this file" in capsys.readouterr().out


def test_a_buffer_with_one_bad_attribute_is_still_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    buffer: Any = ReplayBuffer(10, spaces.Box(0, 1, (3,)), spaces.Discrete(2), "cpu")
    buffer.extra = {"deep": [(Call(os.mkdir, str(tmp_path / "made")),)]}
    (tmp_path / "buffer.pkl").write_bytes(pickle.dumps(buffer))
    assert main(["inspect", str(tmp_path / "buffer.pkl")]) == 1
    shown = capsys.readouterr().out
    assert "0 of 10" in shown and f"{os.mkdir.__module__}.mkdir" in shown and not (tmp_path / "made").exists()


# -- models ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    path = tmp_path_factory.mktemp("model") / "model.zip"
    DQN("MlpPolicy", "CartPole-v1", buffer_size=10, device="cpu").save(path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_zip(path: Path, parts: dict[str, bytes] | list[tuple[str, bytes]]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items() if isinstance(parts, dict) else parts:
            archive.writestr(name, data)
    return path


def tensors(path: Path, program: bytes, name: str = "archive/data.pkl") -> bytes:
    return write_zip(path, {name: program, "archive/version": b"3\n"}).read_bytes()


def test_a_model_runs_what_is_in_its_parameters(parts: dict[str, bytes], tmp_path: Path, capsys: Any) -> None:
    data = json.loads(parts["data"])
    inner = cloudpickle.dumps(Call(os.mkdir, str(tmp_path / "made")))
    data["lr_schedule"] = {":type:": "harmless", ":serialized:": base64.b64encode(inner).decode()}
    path = write_zip(tmp_path / "model.zip", {**parts, "data": json.dumps(data).encode()})
    assert main(["inspect", str(path)]) == 1
    assert "mkdir, in lr_schedule" in capsys.readouterr().out and not (tmp_path / "made").exists()
    DQN.load(path, custom_objects={"lr_schedule": None})
    assert not (tmp_path / "made").exists()
    DQN.load(path)
    assert (tmp_path / "made").is_dir()


def test_a_model_runs_what_is_in_its_weights(parts: dict[str, bytes], tmp_path: Path, capsys: Any) -> None:
    program = pickle.dumps(Call(os.mkdir, str(tmp_path / "made")), protocol=2)
    for name, weights in {
        "zip": tensors(tmp_path / "x", program),
        "capitals": tensors(tmp_path / "x", program, "archive/DATA.PKL"),
        "older format": program,
        "cut off": parts["policy.pth"][:-30],
        "nothing": b"",
    }.items():
        path = write_zip(tmp_path / "model.zip", {**parts, "policy.pth": weights})
        assert main(["inspect", str(path)]) == 1, name
        assert "policy.pth" in capsys.readouterr().out
    path.write_bytes(tensors(tmp_path / "x", program))
    assert main(["inspect", str(path)]) == 1
    assert "a file of PyTorch" in capsys.readouterr().out and not (tmp_path / "made").exists()
    th.load(path, weights_only=False)
    assert (tmp_path / "made").is_dir()


def test_a_list_of_parts_that_only_pytorch_goes_by(parts: dict[str, bytes], tmp_path: Path) -> None:
    shifted = b"PK\x03\x04 something before " + parts["policy.pth"]
    path = write_zip(tmp_path / "model.zip", {**parts, "policy.pth": shifted})
    assert main(["inspect", str(path)]) == 1


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_parts_of_one_name(parts: dict[str, bytes], tmp_path: Path, capsys: Any) -> None:
    path = write_zip(tmp_path / "model.zip", [*parts.items(), ("policy.pth", parts["policy.pth"])])
    assert main(["inspect", str(path)]) == 1
    assert "two parts called policy.pth" in capsys.readouterr().out


def test_a_recording_that_is_a_model_too(parts: dict[str, bytes], tmp_path: Path, capsys: Any) -> None:
    recording = RecordBuffer(5, (4, 4))
    recording.add(np.zeros((4, 4), np.uint8), 1.0, 0, {}, done=True)
    recording.save(tmp_path / "play.rec")
    inner = base64.b64encode(cloudpickle.dumps(Call(os.mkdir, str(tmp_path / "made")))).decode()
    with zipfile.ZipFile(tmp_path / "play.rec", "a") as archive:
        archive.writestr("data", json.dumps({**json.loads(parts["data"]), "x": {":serialized:": inner}}))
        archive.writestr("policy.pth", parts["policy.pth"])
        archive.writestr("policy.optimizer.pth", parts["policy.optimizer.pth"])
    assert main(["inspect", str(tmp_path / "play.rec")]) == 1
    assert "mkdir, in x" in capsys.readouterr().out and not (tmp_path / "made").exists()
    DQN.load(tmp_path / "play.rec")
    assert (tmp_path / "made").is_dir()


def test_a_part_that_grows_without_end(tmp_path: Path, capsys: Any) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("data", "w") as part:
        for _ in range(200):
            part.write(bytes(1 << 20))
    assert main(["inspect", str(tmp_path / "model.zip")]) == 2
    assert "far larger than the file" in capsys.readouterr().err


@pytest.mark.parametrize(
    "data", [b"[" * 200_000, b"[]", b"\xff", b'{"x": {":serialized:": 5}}', b'{"x": {":serialized:": "!"}}']
)
def test_parameters_that_are_damaged(data: bytes, tmp_path: Path, capsys: Any) -> None:
    assert main(["inspect", str(write_zip(tmp_path / "model.zip", {"data": data}))]) in (1, 2)
    assert "Traceback" not in capsys.readouterr().err


def test_pickles_that_do_nothing_unusual_are_not_suspected() -> None:
    for value in (None, [1, 2.5, "x", b"y", (True, None)], {"a": {1, 2}, "b": frozenset([3])}, np.arange(5), np.float32(2)):
        for protocol in range(6):
            contents = read_pickle(io.BytesIO(pickle.dumps(value, protocol=protocol)))
            assert contents.foreign == [] and contents.damage is None and contents.unread == 0
