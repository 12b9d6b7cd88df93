"""inspect: whatever is in a file, it ends, shows no traceback, and passes nothing on that a terminal would obey."""

import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.cli import main
from sb3_extra_buffers.compressed import CompressedReplayBuffer
from sb3_extra_buffers.recording import RecordBuffer

# Erases the line, sets the title, reverses text, hides it, ends the line; a lone surrogate; markup.
NASTY = "\x1b[2K\x1b]0;x\x07\r\n\x08\x7f\x9b2J\u202e\u2066\u200b\u00ad\u2028\ufeff\ud800[red]x[/red]"


def saved(path: Path, state: dict[str, Any] | None = None, **attributes: Any) -> Path:
    """A buffer with some attributes changed."""
    buffer: Any = ReplayBuffer(10, spaces.Box(0, 1, (3,)), spaces.Discrete(2), "cpu")
    buffer.__dict__.update(attributes, **(state or {}))
    path.write_bytes(pickle.dumps(buffer))
    return path


def shown(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    """What the command prints, of which every character can be printed."""
    code = main(["inspect", str(path), *options])
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    for line in (printed.out + printed.err).split("\n"):
        assert line.isprintable(), line
    return code, printed.out + printed.err


def long_name(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(data)) + data


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_names_that_a_terminal_would_obey(options: tuple[str, ...], tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(b"\x80\x04" + long_name(f"os{NASTY}") + long_name(f"system{NASTY}") + b"\x93)R.")
    code, text = shown(path, capsys, *options)
    assert code == 1 and "system" in text and "[red]x[/red]" in text


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_attributes_that_a_terminal_would_obey(options: tuple[str, ...], tmp_path: Path, capsys: Any) -> None:
    inner = spaces.Dict({f"key{NASTY}": spaces.Box(0, 1, (3,))})
    arrays = {f"part{NASTY}": np.zeros(3)}
    path = saved(tmp_path / "x.pkl", {f"name{NASTY}": f"value{NASTY}"}, observation_space=inner, arrays=arrays)
    code, text = shown(path, capsys, *options)
    assert code == 0 and "key" in text
    assert options or ("name" in text and "value" in text and "part" in text)


def test_file_names_that_a_terminal_would_obey(tmp_path: Path, capsys: Any) -> None:
    name = "x\x1b[2K\r\u202ey\udcff.pkl"
    assert shown(tmp_path / name, capsys)[0] == 2  # there is none
    path = saved(tmp_path / name)
    assert shown(path, capsys)[0] == 0
    path.write_text("no pickle")
    assert shown(path, capsys)[0] == 2


def test_an_output_that_knows_only_ascii(tmp_path: Path) -> None:
    path = saved(tmp_path / "größe ☃.pkl", motto="größe ☃")
    command = [sys.executable, "-m", "sb3_extra_buffers", "inspect", str(path)]
    done = subprocess.run(command, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=True)
    assert b"motto" in done.stdout and b"Traceback" not in done.stderr


def recording(path: Path, **changes: Any) -> Path:
    """A recording with some entries of its header changed."""
    buffer = RecordBuffer(5, (4, 4))
    buffer.add(np.zeros((4, 4), np.uint8), 1.0, 0, {}, done=True)
    buffer.save(path)
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    header = {**json.loads(parts["header.json"]), **changes}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in {**parts, "header.json": json.dumps(header).encode()}.items():
            archive.writestr(name, data)
    return path


HEADERS: dict[str, dict[str, Any]] = {
    "version": {"version": f"1{NASTY}"},
    "metadata": {"metadata": {f"key{NASTY}": f"value{NASTY}"}},
    "NaN": {"metadata": {"x": float("nan"), "y": [float("inf")]}},
    "fps": {"metadata": {"fps": int("9" * 400)}},
    "deep": {"metadata": {"x": eval("[" * 90 + "]" * 90)}},
    "features": {"features": {f"name{NASTY}": [[], "<f4"]}},
    "shape": {"frame_shape": None},
    "no shape": {"action_shape": None},
    "format": {"format_version": NASTY},
    "dtype": {"frame_dtype": "<f9"},
    "buffer_size": {"buffer_size": 10**400},
    "kind": {"kind": NASTY},
}


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("name", HEADERS)
def test_headers_of_recordings(name: str, options: tuple[str, ...], tmp_path: Path, capsys: Any) -> None:
    code, text = shown(recording(tmp_path / "play.rec", **HEADERS[name]), capsys, *options)
    assert code in (0, 2)
    if code == 0 and options:

        def refuse(value: str) -> Any:
            raise AssertionError(f"{value} is no JSON")

        json.loads(text, parse_constant=refuse)


def of_spaces(depth: int, inner: int = 0) -> bytes:
    """
    A buffer whose space has two parts that are one and the same, and so on: few bytes, and a text without end.

    Written by hand, for Python itself would not come to an end with it either.
    """
    program = [b"\x80\x04cgymnasium.spaces.discrete\nDiscrete\n)\x81r\x00\x00\x00\x00"]
    for place in range(1, depth + 1):
        part = b"j" + struct.pack("<I", inner or place - 1)
        parts = b"}(" + long_name("a") + part + long_name("b") + part + b"u"
        program.append(b"cgymnasium.spaces.dict\nDict\n)\x81r" + struct.pack("<I", place))
        program.append(b"}" + long_name("spaces") + parts + b"sb")
    state = long_name("buffer_size") + b"K\x05" + long_name("observation_space") + b"j" + struct.pack("<I", depth)
    return b"".join(program) + b"cstable_baselines3.common.buffers\nReplayBuffer\n)\x81}(" + state + b"ub."


@pytest.mark.parametrize(("depth", "inner"), [(3, 0), (60, 0), (50_000, 0), (1, 1)])
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_spaces_in_spaces(depth: int, inner: int, options: tuple[str, ...], tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(of_spaces(depth, inner))
    code, text = shown(path, capsys, *options)
    assert code == 0 and "Dict a: Dict a:" in text and len(text) < 2000


def changed(space: Any, **attributes: Any) -> Any:
    space.__dict__.update(attributes)
    return space


STRANGE: dict[str, Any] = {
    "many dimensions": lambda: {"observation_space": changed(spaces.Box(0, 1, (3,)), _shape=(3,) * 200_000)},
    "large dimensions": lambda: {"observation_space": changed(spaces.Box(0, 1, (3,)), _shape=(10**4000,) * 60)},
    "huge number": lambda: {"gamma": 10**10_000, "observation_space": changed(spaces.Discrete(2), n=10**10_000)},
    "huge counts": lambda: {"buffer_size": 10**10_000, "n_envs": -1},
    "counts of another kind": lambda: {"buffer_size": "many", "pos": None, "full": [1]},
    "no space": lambda: {"observation_space": None, "action_space": 5},
    "surrogate": lambda: {"word": "\ud800", "\ud800": 1},
    "many attributes": lambda: {f"name{i}": i for i in range(50_000)},
    "long text": lambda: {"word": "x" * 50_000, "y" * 50_000: 1},
    "parts": lambda: {"parts": {10**10_000: np.zeros(3), None: np.zeros(3), (1, 2): np.zeros(2)}},
    "equal hashes": lambda: {"parts": {number * (2**61 - 1): 0 for number in range(1, 200)}},
}


@pytest.mark.parametrize("options", [(), ("--json",)])
@pytest.mark.parametrize("name", STRANGE)
def test_strange_values(name: str, options: tuple[str, ...], tmp_path: Path, capsys: Any) -> None:
    path = saved(tmp_path / "x.pkl", STRANGE[name]())
    code, text = shown(path, capsys, *options)
    assert len(text) < 100_000
    assert code in (0, 1)
    assert ("transitions" in text) == ("counts" not in name)


def array(shape: bytes, dtype: bytes = b"U\x02u1", flags: bytes = b"K\x00") -> bytes:
    """A buffer with an array that NumPy did not write."""
    made = b"cnumpy\ndtype\n" + dtype + b"\x89\x88\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff" + flags + b"tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tc_codecs\nencode\n" + long_name("b")
    array += long_name("latin1") + b"\x86RtR(K\x01" + shape + made + b"\x89C\x01xtb"
    state = long_name("buffer_size") + b"K\x05" + long_name("observations") + array
    return b"\x80\x04cstable_baselines3.common.buffers\nReplayBuffer\n)\x81}(" + state + b"ub."


@pytest.mark.parametrize(
    "program",
    [
        array(b"(" + b"K\x02" * 200_000 + b"t"),
        array(b"(" + b"\x8b\xa0\x0f\x00\x00" + b"\x7f" * 4000 + b"t"),
        array(b"K\x02\x85", b"U\x04f999"),
        array(b"K\x02\x85", b"U\x02x9"),
        array(b"K\x02\x85", b"U\x0bU9999999999"),
        array(b"J\xff\xff\xff\xff\x85"),
        array(b"N\x85"),
        array(b"N"),
    ],
    ids=["200,000 dimensions", "a huge one", "f999", "x9", "U9999999999", "-1", "none", "no shape"],
)
def test_arrays_that_numpy_did_not_write(program: bytes, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(program)
    code, text = shown(path, capsys)
    assert code in (0, 1) and "ReplayBuffer" in text


PROGRAMS = {
    "deep list": b"]" * 500_000 + b"a" * 499_999 + b".",
    "deep tuple": b"N" + b"\x85" * 500_000 + b".",
    "millions of values": b"(" + b"N" * 2_000_000 + b"t.",
    "inner pickles": b"\x80\x04"
    + b"cstable_baselines3.common.vec_env.base_vec_env\nCloudpickleWrapper\n)\x81\x94B\x00\x10\x00\x00"
    + (b"N" * 4095 + b".")
    + b"\x940"
    + b"h\x00h\x01b0" * 1000
    + b"N.",
    "one state for all": b"\x80\x04cgymnasium.spaces.box\nBox\n\x94}\x94("
    + b"".join(long_name(f"a{number}") + b"N" for number in range(20_000))
    + b"u0"
    + b"h\x00)\x81h\x01b0" * 50_000
    + b"N.",
    "long line": b"V" + b"x" * 3_000_000 + b"\n.",
    "huge integer": b"L" + b"9" * 100_000 + b"L\n.",
    "hexadecimal integer": b"I0x10\n.",
    "huge size": b"\x8e" + b"\xff" * 8 + b".",
    "negative size": b"T\xff\xff\xff\xff.",
    "huge place": b"Np" + b"9" * 5000 + b"\n.",
    "huge frame": b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
    "nothing to take": b"R",
    "nothing at the end": b".",
    "no mark": b"t.",
    "empty mark": b"(o.",
    "no end": b"\x80\x04",
    "text in no encoding": b"c\xff\n\xff\n.",
    "text without quotes": b"Sx\n.",
    "text in another encoding": b"U\x01\xff.",
}


@pytest.mark.slow
def test_there_is_an_end_to_what_is_looked_at(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(PROGRAMS["inner pickles"].replace(b"h\x00h\x01b0" * 1000, b"h\x00h\x01b0" * 1_000_000))
    code, text = shown(path, capsys)
    assert code == 1 and "too much in it to check" in text


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_nobody_wrote_by_chance(name: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "x.pkl"
    path.write_bytes(PROGRAMS[name])
    code, _ = shown(path, capsys)
    assert code in (0, 1, 2)


# -- files that are none -----------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_what_would_never_end(tmp_path: Path, capsys: Any) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "pipe", tmp_path / "link", tmp_path / "loop", Path("/dev/zero"), tmp_path):
        assert shown(path, capsys)[0] == 2


def test_a_file_full_of_nothing(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "empty").touch()
    code, text = shown(tmp_path / "empty", capsys)
    assert code == 2 and "is empty" in text
    with (tmp_path / "zeros").open("wb") as file:
        file.write(b"V")
        file.truncate(1 << 40)
    assert shown(tmp_path / "zeros", capsys)[0] == 2


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path, capsys: Any) -> None:
    path = saved(tmp_path / "x.pkl")
    path.chmod(0)
    code, text = shown(path, capsys)
    assert code == 2 and "cannot read" in text


def test_symbolic_links_are_followed(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "link").symlink_to(saved(tmp_path / "x.pkl"))
    assert shown(tmp_path / "link", capsys)[0] == 0


def test_a_recording_that_is_cut_off(tmp_path: Path, capsys: Any) -> None:
    path = recording(tmp_path / "play.rec")
    whole = path.read_bytes()
    for size in (4, 40, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        code, text = shown(path, capsys)
        assert code == 2 == main(["view", str(path), "--no-open", "--output", str(tmp_path / "x.html")])
        assert "its end is missing" in text and "pickle" not in text
        capsys.readouterr()


def test_a_buffer_that_is_cut_off(tmp_path: Path, capsys: Any) -> None:
    buffer = CompressedReplayBuffer(10, spaces.Box(0, 255, (1, 36, 36), np.uint8), spaces.Discrete(2), "cpu")
    whole = io.BytesIO()
    pickle.dump(buffer, whole)
    path = tmp_path / "x.pkl"
    path.write_bytes(whole.getvalue()[:-20])
    code, text = shown(path, capsys)
    assert code == 2 and "damaged: the file ends too early" in text
