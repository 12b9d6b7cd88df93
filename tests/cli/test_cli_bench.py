"""The benchmark: a small one from end to end, what it measures, and how options are read."""

import argparse
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from sb3_extra_buffers.cli import main
from sb3_extra_buffers.cli.environments import Environments, find_environment
from sb3_extra_buffers.cli.options import byte_count, times_as_long

for module in ("matplotlib", "psutil", "rich"):
    pytest.importorskip(module)

from sb3_extra_buffers.cli.measure import (  # noqa: E402
    Measured,
    Played,
    Results,
    Source,
    batch_digest,
    make_buffer,
    measure,
    measuring,
    play,
    replay_recording,
)

SB3 = Measured(None, 1000, 5, 1000, 10.0, 10.0, 30.0, ["a"])


def ignore(done: int) -> None:
    pass


def test_bench_from_end_to_end(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ale_py")
    output = tmp_path / "out"
    options = ["--size", "200", "--n-envs", "2", "--methods", "delta,gzip1", "--output", str(output)]
    assert main(["bench", "pong", *options]) == 0
    shown = capfd.readouterr()
    assert "Pong: 200 transitions, 2 environments, stacks of 4" in shown.out
    assert shown.out.count("identical") == 2 and "SB3's own" in shown.out
    assert all(line.startswith("[") for line in shown.err.splitlines()), shown.err

    figures = json.loads((output / "bench.json").read_text(encoding="utf-8"))
    assert figures["transitions"] == 200 and figures["raw_bytes_per_transition"] == 2 * 4 * 84 * 84
    assert list(figures["methods"]) == ["delta", "gzip/1"] or list(figures["methods"]) == ["delta", "gzip1"]
    for method in figures["methods"].values():
        assert method["identical"] and 0 < method["stored_bytes"] < 0.2 * figures["sb3"]["stored_bytes"]
        assert method["of_sb3"]["sample_us"] == pytest.approx(method["sample_us"] / figures["sb3"]["sample_us"])
    assert figures["sb3"]["stored_bytes"] == 200 * 2 * 4 * 84 * 84
    assert (output / "bench.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def record_spots(path: Path, steps: int = 60) -> None:
    from sb3_extra_buffers.recording import RecordWrapper

    find_environment("cli_envs:Spots-v0")
    env = RecordWrapper(gym.make("Spots-v0", render_mode="rgb_array"))
    for step in range(steps):
        if step % 20 == 0:
            env.reset(seed=step)
        env.step(0)
    env.buffer.save(path)


@pytest.mark.usefixtures("in_this_process")
def test_bench_of_a_recording(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "play.rec"
    record_spots(path)
    options = ["--stack", "3", "--size", "100", "--methods", "gzip1", "--no-plot", "--output", str(tmp_path)]
    assert main(["bench", str(path), *options]) == 0
    shown = capfd.readouterr().out
    assert "play.rec: 100 transitions, stacks of 3" in shown
    figures = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert "(9, 40, 40)" in figures["observation_space"] and figures["environment"] is None
    assert not (tmp_path / "bench.png").exists()
    words = " ".join(shown.split())
    assert "The recording has 60 steps, so it was read 1.7 times over." in words
    usage = figures["methods"]["gzip1"]["usage"]
    assert f"gzip1: {usage}." in words and "of observations in" in usage and figures["sb3"]["usage"] is None


@pytest.mark.usefixtures("in_this_process")
def test_a_recording_is_not_repeated_unasked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "play.rec"
    record_spots(path, steps=80)
    assert main(["bench", str(path), "--methods", "gzip1", "--no-plot", "--output", str(tmp_path)]) == 0
    shown = capfd.readouterr().out
    assert "play.rec: 80 transitions" in shown and "times over" not in shown


@pytest.mark.parametrize("is_folder", [True, False])
@pytest.mark.usefixtures("in_this_process")
def test_something_called_like_the_environment_is_in_no_way(is_folder: bool, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "CartPole-v1").mkdir() if is_folder else (tmp_path / "CartPole-v1").write_text("notes")
    assert main(["bench", "CartPole-v1", "--size", "64", "--methods", "gzip", "--no-plot"]) == 0


@pytest.mark.usefixtures("in_this_process")
def test_a_recording_needs_no_suffix(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    record_spots(tmp_path / "play.rec")
    (tmp_path / "play.rec").rename("CartPole-v1")
    assert main(["bench", "CartPole-v1", "--methods", "gzip", "--no-plot", "--output", "out"]) == 0
    assert json.loads((tmp_path / "out" / "bench.json").read_text())["source"] == "CartPole-v1"
    assert json.loads((tmp_path / "out" / "bench.json").read_text())["environment"] is None


@pytest.mark.usefixtures("in_this_process")
def test_a_recording_is_shown_as_it_was(tmp_path: Path) -> None:
    from sb3_extra_buffers.recording import load_recording

    path = tmp_path / "play.rec"
    record_spots(path)
    played = replay_recording(path, 70, None, tmp_path, ignore)
    recording = load_recording(path)
    steps = list(played.replay())
    assert played.observation_space.shape == (3, 40, 40) and len(steps) == 70
    for number, step in enumerate(steps):
        frame = recording[number % 60].frame
        assert np.array_equal(step.obs[0], frame.transpose(2, 0, 1))
        assert step.done[0] == (number % 20 == 19)
        if number % 20 < 19:
            assert np.array_equal(step.next_obs[0], recording[number % 60 + 1].frame.transpose(2, 0, 1))
    assert np.array_equal(steps[19].next_obs[0], recording.episode(0).final_frame.transpose(2, 0, 1))


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["CartPol"], ["did you mean", "CartPole-v1"]),
        (["nothing.rec"], ["there is no recording nothing.rec"]),
        ([__file__], ["test_cli_bench.py"]),
        (["CartPole-v1", "--methods", "zstdd"], ["unknown compression method 'zstdd'"]),
        (["CartPole-v1", "--methods", ","], ["--methods is empty"]),
        (["CartPole-v1", "--output", __file__], ["cannot create the folder"]),
        (["cli_envs:Broken-v0", "--no-plot", "--methods", "gzip"], ["the simulator is not licensed"]),
        (["cli_envs:Spots-v0", "--no-plot", "--methods", "gzip", "--size", "999_999_999"], ["choose a smaller --size"]),
    ],
)
def test_mistakes(argv: list[str], words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["bench", *argv]) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words), message
    assert "Traceback" not in message


def results(**changes: Any) -> Results:
    ours = [
        replace(SB3, method=name, memory_bytes=10 * n, sample_digests=["a"])
        for n, name in enumerate(("delta", "gzip"), start=1)
    ]
    found = Results(Source(Environments("CartPole-v1", 4)), 100, 2 * 100, ("Box", "Discrete"), SB3, ours)
    return replace(found, **changes)


def test_a_wrong_sample_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    wrong = results(ours=[replace(SB3, method="delta"), replace(SB3, method="gzip", sample_digests=["b"])])
    assert results().all_identical and not wrong.all_identical
    monkeypatch.setattr("sb3_extra_buffers.cli.measure.compare", lambda *_: wrong)
    assert main(["bench", "CartPole-v1", "--output", str(tmp_path)]) == 1
    shown = capsys.readouterr().out
    assert shown.count("DIFFERENT") == 1 and "Please report" in shown and "nothing to gain" in shown
    assert not json.loads((tmp_path / "bench.json").read_text())["methods"]["gzip"]["identical"]


@pytest.fixture
def spots(in_this_process: None, tmp_path: Path) -> Played:
    return play(Environments("cli_envs:Spots-dict-v0", 2), 40, tmp_path, ignore)


def test_what_is_measured_is_what_was_played(spots: Played) -> None:
    steps = list(spots.replay())
    assert sum(step.done.any() for step in steps) == 2
    ended = next(step for step in steps if step.done.all())
    assert ended.next_obs["step"].tolist() == [[20.0], [20.0]] and ended.infos[0]["TimeLimit.truncated"]
    for before, after in pairwise(steps):
        if not before.done.any():
            assert np.array_equal(before.next_obs["camera"], after.obs["camera"])
    figures = [measure(spots, method, 20, ignore) for method in (None, "gzip/1")]
    assert figures[0].sample_digests == figures[1].sample_digests and figures[1].stored_bytes < figures[0].stored_bytes
    assert min(figures[1].add_us, figures[1].add_full_us, figures[1].sample_us) > 0
    # The digest sees every field.
    buffers = [make_buffer(spots, 40, None) for _ in range(2)]
    for buffer in buffers:
        for step in steps:
            buffer.add(*step)
    assert batch_digest(buffers[0], 8, 0) == batch_digest(buffers[1], 8, 0)
    buffers[1].observations["step"] += 1  # type: ignore[index]
    assert batch_digest(buffers[0], 8, 0) != batch_digest(buffers[1], 8, 0)


@pytest.mark.parametrize(
    ("text", "count"), [("4GB", 4 * 10**9), ("500 mb", 5 * 10**8), ("1.5GiB", 3 * 2**29), ("100", 100), ("2k", 2000)]
)
def test_amounts_of_memory(text: str, count: int) -> None:
    assert byte_count(text) == count


def test_amounts_mean_the_same_everywhere(tmp_path: Path) -> None:
    """``max_memory`` of a ring and ``--memory`` of a command: GB are decimal, GiB are binary."""
    from sb3_extra_buffers._support import parse_bytes

    for text, count in (
        ("2GB", 2 * 10**9),
        ("2 GiB", 2 << 30),
        ("1.5k", 1500),
        ("3MiB", 3 << 20),
        ("7", 7),
        ("500 mb", 5 * 10**8),
    ):
        assert byte_count(text) == parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "4 gigs", "1e9"])
def test_wrong_amounts_of_memory(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="500MB, 4GB"):
        byte_count(text)


def test_factors() -> None:
    assert times_as_long("1.5x") == times_as_long("1.5") == 1.5
    for text in ("fast", "0", "-1", "inf", "nan"):
        with pytest.raises(argparse.ArgumentTypeError, match="factor"):
            times_as_long(text)


def test_a_turn_is_short(spots: Played) -> None:
    """Whenever measuring yields, another buffer has its turn: a machine that is busy for a while is busy for all of them."""
    turns = list(measuring(spots, "gzip/1", batches=10))
    assert turns == sorted(turns) and turns[-1] == 50 * 2
    assert max(after - before for before, after in pairwise(turns)) <= 16 * 2, "rows"
    assert turns.count(100) >= 200 / 5, "samples"


PICTURES = [
    [("delta", 2.85e6, 15, 159), ("delta-zstd", 2.77e6, 14, 1003), ("zstd-3", 5.39e6, 68, 6131), ("gzip1", 5e6, 207, 75_090)],
    [("delta", 118e6, 9_999, 234), ("rle-jit", 61e6, 75, 42)],
    [("a-method-with-a-long-name/-100", 1e3, 1e6, 1e7)],
    [("delta", 119_000_000, 75, 234)],
]


@pytest.mark.parametrize("rows", PICTURES)
@pytest.mark.parametrize("other_cores", [0.0, 1000.0])
def test_each_number_is_beside_its_bar(rows: list[tuple[str, float, float, float]], other_cores: float) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from sb3_extra_buffers.cli.plot import make_figure

    sb3 = replace(SB3, memory_bytes=119_000_000, add_full_us=75.0, sample_us=234.0)
    ours = [
        replace(sb3, method=name, memory_bytes=int(memory), add_full_us=add, sample_us=sample)
        for name, memory, add, sample in rows
    ]
    figure = make_figure(results(sb3=sb3, ours=ours, other_cores=other_cores), "A note.")
    FigureCanvasAgg(figure).draw()
    assert len(figure.axes) == 3
    below = figure._supxlabel.get_window_extent()  # type: ignore[attr-defined]
    assert ("busy" in figure._supxlabel.get_text()) == (other_cores > 0)  # type: ignore[attr-defined]
    for number, chart in enumerate(figure.axes):
        assert len(chart.texts) == len(chart.patches) == len(rows) + 1
        assert len({text.get_text().split()[1] for text in chart.texts}) == 1, "one unit"
        assert chart.get_window_extent().y0 > below.y1
        right = figure.axes[number + 1].get_window_extent().x0 if number < 2 else figure.bbox.x1
        for text, bar in zip(chart.texts, chart.patches, strict=True):
            box, its_bar = text.get_window_extent(), bar.get_window_extent()
            assert its_bar.x1 < box.x0 < its_bar.x1 + 20 and box.x1 <= right, text.get_text()
            assert its_bar.y0 < (box.y0 + box.y1) / 2 < its_bar.y1
    title = figure._suptitle.get_text()  # type: ignore[attr-defined]
    assert title.startswith("CartPole-v1, 100 transitions") and ("of the memory of SB3's" in title) == (len(rows) == 1)
