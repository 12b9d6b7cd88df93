"""The demo itself: a small one from end to end, and that its comparison can fail."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sb3_extra_buffers.cli import main
from sb3_extra_buffers.compressed import CompressedReplayBuffer

for module in ("ale_py", "cv2", "matplotlib", "psutil", "rich"):
    pytest.importorskip(module)

from sb3_extra_buffers.cli.demo import Comparison, Plan, Training  # noqa: E402
from sb3_extra_buffers.cli.measure import Load, Measured, Results, Source, busy_warning  # noqa: E402


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n" and head[12:16] == b"IHDR"
    width, height = struct.unpack(">II", head[16:])
    return width, height


def test_from_end_to_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "new" / "folder"
    options = ["--game", "pong", "--size", "400", "--n-envs", "2", "--train-steps", "80", "--output", str(output)]
    assert main(["demo", *options]) == 0

    shown = capfd.readouterr()
    for words in (
        "Pong: 400 transitions, 2 games",
        "memory of the buffer",
        "libraries, on top of it",
        "x smaller",
        "add, once full",
        "sample(32)",
    ):
        assert words in shown.out
    assert shown.out.count("identical") == 2 and "DIFFERENT" not in shown.out
    assert "transitions of Pong in SB3's buffer" in " ".join(shown.out.split())
    assert str(output / "demo.png") in shown.out and str(output / "demo.json") in shown.out
    assert "recommend Pong" in shown.out and "bench Pong" in shown.out and "view Pong.rec" in shown.out
    # Sparse lines, and nothing of what games and libraries say for themselves.
    assert shown.err and all(line.startswith("[") for line in shown.err.splitlines()), shown.err
    # The two sides take turns: no time is given as if it were that of one.
    ends = [line for line in shown.err.splitlines() if "done in" in line]
    assert len(ends) == 3 and all("SB3's buffer and ours" in line for line in ends[1:]), ends

    # One size, whatever is counted: not that of both sides, nor of what is played beyond it.
    everything = shown.out + shown.err
    assert set(re.findall(r"([0-9,]+) transitions", everything.partition("The ")[0])) == {"400"}
    assert set(re.findall(r"([0-9,]+) steps", everything)) == {"80"}

    figures = json.loads((output / "demo.json").read_text(encoding="utf-8"))
    assert figures["plan"]["transitions"] == 400 and figures["other_cores"] >= 0
    outcome = figures["outcome"]
    assert all(outcome[f"{what}_identical"] for what in ("samples", "weights"))
    theirs, ours = figures["sb3"]["filling"], figures["compressed"]["filling"]
    assert 0 < ours["memory_bytes"] < theirs["memory_bytes"]
    assert outcome["memory_ratio"] == pytest.approx(ours["memory_bytes"] / theirs["memory_bytes"])
    # SB3 keeps obs and next_obs raw; the process cannot have grown by less.
    assert theirs["memory_bytes"] > 0.95 * 400 * 2 * 4 * 84 * 84
    for side in (theirs, ours):
        assert min(side["add_us"], side["add_full_us"], side["sample_us"]) > 0 and len(side["sample_digests"]) == 100
    assert figures["sb3"]["training"]["updates"] > 0 and figures["sb3"]["training"]["changed"] > 0
    width, height = png_size(output / "demo.png")
    assert width > 1000 and height > 300 and (output / "demo.png").stat().st_size > 20_000


class OneBitOff(CompressedReplayBuffer):
    """Gives back one wrong bit a batch."""

    def sample(self, *args: Any, **kwargs: Any) -> Any:
        batch = super().sample(*args, **kwargs)
        batch.observations[0, -1, 42, 42] ^= 128
        return batch


class OneRewardOff(CompressedReplayBuffer):
    """Stores one wrong reward."""

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, *args: Any, **kwargs: Any) -> None:
        super().add(obs, next_obs, action, reward + (self.pos == 0), *args, **kwargs)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("wrong", [OneBitOff, OneRewardOff])
def test_a_wrong_buffer_is_found_out(wrong: Any, tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    from sb3_extra_buffers.cli import measure

    monkeypatch.setitem(measure._CLASSES, (False, False, False), wrong)
    monkeypatch.setattr("sb3_extra_buffers.compressed.CompressedReplayBuffer", wrong)
    options = ["--size", "64", "--n-envs", "2", "--train-steps", "64", "--seed", "3", "--method", "gzip", "--no-plot"]
    assert main(["demo", "--game", "Pong", *options, "--output", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert shown.count("DIFFERENT") == 2 and "identical" not in shown
    assert "Please report" in shown
    outcome = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))["outcome"]
    assert not outcome["samples_identical"] and not outcome["weights_identical"]
    assert not (tmp_path / "demo.png").exists()


PLAN = Plan("PongNoFrameskip-v4", 2, 32, 32, 3, "gzip")


def comparison() -> Comparison:
    sb3 = Measured(None, 1000, 5, 1000, 1.0, 1.0, 1.0, ["a", "b"])
    ours = replace(sb3, method="gzip", memory_bytes=10)
    training = Training({"weight": "a", "bias": "b"}, changed=2, updates=9, seconds=1.0)
    filling = Results(Source(PLAN.environments), 32, 2 * 4 * 84 * 84, ("Box", "Discrete"), sb3, [ours])
    return Comparison(PLAN, filling, training, training)


def test_each_difference_counts() -> None:
    same = comparison()
    assert same.all_identical and same.memory_ratio == 0.01
    filling, training = same.filling, same.our_training
    different = [
        replace(same, filling=replace(filling, ours=[replace(filling.ours[0], sample_digests=["a", "c"])])),
        replace(same, our_training=replace(training, parameter_digests={"weight": "a", "bias": "c"})),
        replace(same, our_training=replace(training, parameter_digests={"weight": "a"})),
        replace(same, our_training=replace(training, parameter_digests={"weight": "a", "bias": "b", "more": "c"})),
        # Weights that training never touched are equal without any merit of the buffer.
        replace(same, sb3_training=replace(same.sb3_training, changed=0)),
    ]
    assert not any(case.all_identical for case in different)


@pytest.mark.parametrize(("cores", "used", "busy"), [(2, 1.7, True), (2, 0.2, False), (16, 1.7, False), (1, 0.9, True)])
def test_a_busy_machine_is_told(cores: int, used: float, busy: bool, monkeypatch: Any) -> None:
    monkeypatch.setattr("psutil.cpu_count", lambda: cores)
    said = busy_warning(used)
    assert (said is not None) == busy
    assert not busy or f"{used} of its" in str(said)


@pytest.mark.skipif(os.name == "nt", reason="times of children are not known")
def test_other_programs_are_counted() -> None:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        load = Load()
        time.sleep(1.5)
        assert load.other_cores() > 0.3
    finally:
        for other in others:
            other.kill()
            other.wait()


def test_the_smallest_demo(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """So few rows that a quarter of them is none."""
    options = [
        "--game",
        "pong",
        "--size",
        "64",
        "--n-envs",
        "32",
        "--train-steps",
        "64",
        "--no-plot",
        "--output",
        str(tmp_path),
    ]
    assert main(["demo", *options]) == 0
    assert "64 transitions" in capfd.readouterr().out


@pytest.mark.skipif(os.name == "nt", reason="process groups and SIGINT of POSIX")
def test_ctrl_c_ends_parent_and_child(tmp_path: Path) -> None:
    import psutil

    command = [sys.executable, "-m", "sb3_extra_buffers", "demo", "--game", "Pong", "--output", str(tmp_path)]
    # A process group of its own gets the signal as a whole, as from a terminal. A run in the background ignores SIGINT
    # and hands that on, so it is set right first.
    demo = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert demo.stderr is not None
        assert "Play Pong" in demo.stderr.readline()
        deadline = time.monotonic() + 600
        while not (children := psutil.Process(demo.pid).children(recursive=True)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.killpg(demo.pid, signal.SIGINT)
        _, errors = demo.communicate(timeout=600)
    finally:
        demo.kill()
    assert demo.returncode == 130
    assert errors.strip().endswith("interrupted") and "Traceback" not in errors
    _, alive = psutil.wait_procs(children, timeout=300)
    assert alive == []
