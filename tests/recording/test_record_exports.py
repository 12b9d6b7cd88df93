"""Videos and contact sheets, decoded again and compared."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image, ImageSequence
from recording_kit import Scene, play

from sb3_extra_buffers.recording import (
    CompressedRecordBuffer,
    FramelessRecordBuffer,
    RecordBuffer,
    RecordWrapper,
    export_contact_sheet,
    export_video,
)
from sb3_extra_buffers.recording.pictures import as_picture, as_rgb, evenly_spaced
from sb3_extra_buffers.recording.recorder import describe_env
from sb3_extra_buffers.recording.video import choose_fps


def decoded_mp4(path: Path) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """What ffmpeg says of a video, and its frames."""
    reader = imageio_ffmpeg.read_frames(str(path))
    about = next(reader)
    width, height = about["size"]
    frames = [np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader]
    return about, np.stack(frames)


def decoded_gif(path: Path) -> tuple[np.ndarray[Any, Any], list[int]]:
    """Frames of a gif and how long each is shown, in milliseconds."""
    frames, durations = [], []
    with Image.open(path) as image:
        for frame in ImageSequence.Iterator(image):
            frames.append(np.asarray(frame.convert("RGB")))
            durations.append(frame.info["duration"])
    return np.stack(frames), durations


def shown(recording: RecordBuffer, episode: int = 0) -> np.ndarray[Any, Any]:
    """The pictures of an episode, its final frame included."""
    chosen = recording.episode(episode)
    frames = [as_rgb(frame) for frame in chosen.iter_frames()]
    return np.stack(frames if chosen.final_frame is None else [*frames, as_rgb(chosen.final_frame)])


@pytest.fixture(scope="module")
def scene() -> RecordBuffer:
    """Episodes of pictures with an even and an odd side, of which none is like another."""
    env = RecordWrapper(Scene())
    play(env, 15)
    return env.buffer


@pytest.mark.parametrize("said", [10**400, float("inf"), float("nan"), -1, 0, 1e-300, 1e300, "fast", True, None, [30]])
def test_a_speed_that_makes_no_sense_is_that_of_most_games(said: Any, tmp_path: Path) -> None:
    assert describe_env(None, {"render_fps": said}, None)["fps"] is None
    recording = RecordBuffer(None, (8, 8))
    recording.add(np.zeros((8, 8), np.uint8), 0, 0)
    recording.metadata["fps"] = said
    assert choose_fps(recording, None) == 30
    export_video(recording, tmp_path / "a.gif")
    export_video(recording, tmp_path / "a.mp4")
    if said is not None:
        with pytest.raises(ValueError, match="fps is"):
            export_video(recording, tmp_path / "b.gif", fps=said)


def test_mp4_of_a_real_game(pong: RecordBuffer, tmp_path: Path) -> None:
    export_video(pong, tmp_path / "pong.mp4", episode=1, fps=15)
    about, frames = decoded_mp4(tmp_path / "pong.mp4")
    expected = shown(pong, 1)
    assert len(expected) == 61
    assert (about["fps"], about["size"]) == (15, (320, 420))
    assert about["pix_fmt"].startswith("yuv420p")  # what every player and browser shows
    assert about["codec"] == "h264"
    assert len(frames) == len(expected)
    for frame, wanted in zip(frames, expected, strict=True):
        large = wanted.repeat(2, axis=0).repeat(2, axis=1)
        assert np.abs(frame.astype(int) - large).mean() < 4
    # Each frame is the right one: the ball and the paddles are nearer to their own than to those before and after.
    middle = frames[:, ::2, ::2].astype(int)
    moved = [i for i in range(1, 60) if np.abs(expected[i].astype(int) - expected[i - 1]).sum() > 20_000]
    assert moved
    for i in moved:
        own, before = (np.abs(middle[i] - expected[j].astype(int)).sum() for j in (i, i - 1))
        assert own < before


@pytest.mark.parametrize("shape", [(31, 41, 3), (31, 40), (30, 41, 1), (4, 33, 35)])
def test_odd_sizes_are_padded(shape: tuple[int, ...], tmp_path: Path) -> None:
    recording = RecordBuffer(None, shape)
    for step in range(5):
        recording.add(np.full(shape, 40 * step, np.uint8), 0, 0)
    export_video(recording, tmp_path / "odd.mp4", scale=1, progress=False)
    about, frames = decoded_mp4(tmp_path / "odd.mp4")
    height, width = as_picture(np.zeros(shape, np.uint8)).shape[:2]
    assert about["size"] == (width + width % 2, height + height % 2)
    assert about["fps"] == 30
    for step, frame in enumerate(frames):
        assert np.abs(frame.astype(int) - 40 * step).max() < 6


def test_gif_of_a_real_game_is_exact(pong: RecordBuffer, tmp_path: Path) -> None:
    export_video(pong, tmp_path / "pong.gif", episode=0, fps=25, scale=1)
    frames, durations = decoded_gif(tmp_path / "pong.gif")
    expected = shown(pong, 0)
    assert sum(durations) == 40 * len(expected)
    # Frames that are alike may be stored as one that is shown for longer.
    held = np.repeat(np.arange(len(frames)), [duration // 40 for duration in durations])
    assert (frames[held] == expected).all()


def test_a_fast_gif_keeps_its_speed(scene: RecordBuffer, tmp_path: Path) -> None:
    export_video(scene, tmp_path / "fast.gif", fps=100, scale=1)
    frames, durations = decoded_gif(tmp_path / "fast.gif")
    assert durations == [20] * 4
    assert (frames == shown(scene)[::2]).all()


def test_more_colours_than_a_gif_has(tmp_path: Path) -> None:
    recording = RecordBuffer(None, (32, 32, 3))
    ramp = np.indices((32, 32)).transpose(1, 2, 0) * 8
    frame = np.dstack([ramp, np.full((32, 32), 99)]).astype(np.uint8)
    recording.add(frame, 0, 0)
    export_video(recording, tmp_path / "ramp.gif", scale=1)
    frames, _ = decoded_gif(tmp_path / "ramp.gif")
    assert np.abs(frames[0].astype(int) - frame).max() <= 32


def test_the_recording_says_how_fast(scene: RecordBuffer, tmp_path: Path) -> None:
    export_video(scene, tmp_path / "scene.mp4")
    about, frames = decoded_mp4(tmp_path / "scene.mp4")
    assert about["fps"] == 12
    assert frames.shape[1:3] == (240, 300)  # six times as large, so that one sees something
    export_video(scene.episode(1), tmp_path / "one.mp4")
    assert len(decoded_mp4(tmp_path / "one.mp4")[1]) == 4


def test_the_best_quality_is_still_what_players_show(scene: RecordBuffer, tmp_path: Path) -> None:
    """x264 writes "High 4:4:4 Predictive", which browsers refuse, as soon as it is asked to lose nothing."""
    for quality in (1, 5, 9.99, 10):
        export_video(scene, tmp_path / "a.mp4", quality=quality)
        data = (tmp_path / "a.mp4").read_bytes()
        profile = data[data.index(b"avcC") + 5]
        assert profile in (66, 77, 100), f"quality {quality}: profile {profile}"  # Baseline, Main, High
        assert decoded_mp4(tmp_path / "a.mp4")[0]["pix_fmt"].startswith("yuv420p")


def test_wrong_requests_are_told(scene: RecordBuffer, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    vectors = RecordBuffer(None, (4,))
    vectors.add(np.zeros(4, np.uint8), 0, 0)
    frameless = FramelessRecordBuffer(None)
    frameless.add(None, 0, 0)
    for call, error, message in [
        (lambda: export_video(scene, tmp_path / "a.avi"), ValueError, ".mp4 or .gif"),
        (lambda: export_video(scene, path, episode=9), IndexError, "there is no episode 9"),
        (lambda: export_video(scene, path, fps=0), ValueError, "fps is 0"),
        (lambda: export_video(scene, path, scale=0), ValueError, "scale is 0"),
        (lambda: export_video(scene, path, quality=11), ValueError, "quality is 11"),
        (lambda: export_video(vectors, path), ValueError, r"shape \(4,\) cannot be drawn"),
        (lambda: export_video(frameless, path), ValueError, "no frames to draw"),
        (lambda: export_video(scene, tmp_path / "no" / "a.mp4"), FileNotFoundError, "no folder"),
        (lambda: export_contact_sheet(scene, path), ValueError, "must end with .png"),
        (lambda: export_contact_sheet(scene, tmp_path / "a.png", columns=0), ValueError, "0 columns"),
    ]:
        with pytest.raises(error, match=message):
            call()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", [".mp4", ".gif"])
def test_an_interrupted_video_leaves_no_file(suffix: str, scene: RecordBuffer, tmp_path: Path, monkeypatch: Any) -> None:
    calls = []

    def interrupted(frame: Any) -> Any:
        calls.append(frame)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return as_rgb(frame)

    monkeypatch.setattr("sb3_extra_buffers.recording.video.as_rgb", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export_video(scene, tmp_path / f"a{suffix}")
    assert os.listdir(tmp_path) == []


def test_progress_is_shown_on_a_terminal(scene: RecordBuffer, tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    export_video(scene, tmp_path / "a.gif")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    export_video(scene, tmp_path / "a.gif", progress=False)
    assert capsys.readouterr().err == ""
    export_video(scene, tmp_path / "a.gif")
    assert "writing a.gif: 100%" in capsys.readouterr().err


def test_contact_sheet(pong: RecordBuffer, tmp_path: Path) -> None:
    export_contact_sheet(pong, tmp_path / "sheet.png", columns=4, rows=3)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    expected = shown(pong)
    gap, height, width = 4, 210, 160
    cell_height = (sheet.shape[0] - gap) // 3  # with a line for the number
    assert sheet.shape == (3 * cell_height + gap, 4 * (width + gap) + gap, 3)
    for order, place in enumerate(evenly_spaced(61, 12)):
        top, left = gap + order // 4 * cell_height, gap + order % 4 * (width + gap)
        assert (sheet[top : top + height, left : left + width] == expected[place]).all()
        number = sheet[top + height : top + cell_height - gap, left : left + width]
        assert number.max() > 150  # something is written there
    assert evenly_spaced(61, 12)[0] == 0 and evenly_spaced(61, 12)[-1] == 60


def test_a_contact_sheet_of_few_frames(scene: RecordBuffer, tmp_path: Path) -> None:
    export_contact_sheet(scene, tmp_path / "sheet.png", episode=1, scale=2)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape[1] == 4 * (100 + 2) + 2
    assert (sheet[2:82, 2:102] == shown(scene, 1)[0].repeat(2, 0).repeat(2, 1)).all()


@pytest.mark.parametrize(("total", "most"), [(1, 1), (5, 1), (5, 5), (5, 9), (100, 7), (8, 7)])
def test_evenly_spaced(total: int, most: int) -> None:
    places = evenly_spaced(total, most)
    assert len(places) == len(set(places)) == min(total, most)
    assert places == sorted(places) and places[0] == 0
    assert most == 1 or places[-1] == total - 1


def test_what_a_frame_looks_like() -> None:
    rng = np.random.default_rng(0)
    stack = rng.integers(0, 256, (84, 84, 4), np.uint8)
    assert (as_picture(stack) == stack[..., 3]).all()
    assert (as_picture(stack.transpose(2, 0, 1)) == stack[..., 3]).all()
    colour = rng.integers(0, 256, (60, 80, 12), np.uint8)
    assert (as_picture(colour) == colour[..., 9:]).all()
    assert (as_picture(colour[..., :1]) == colour[..., 0]).all()
    floats = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    assert as_picture(floats).tolist() == np.rint(floats * 255).astype(int).tolist()
    assert as_picture(np.array([[-5, 300, 7]])).tolist() == [[0, 255, 7]]
    assert as_picture(np.array([[True, False]])).tolist() == [[255, 0]]
    assert as_rgb(floats).shape == (3, 4, 3)
    for bad in ((4,), (100, 100, 100), (2, 3, 4, 5)):
        with pytest.raises(ValueError, match="cannot be drawn"):
            as_picture(np.zeros(bad))


def test_compressed_and_dense_give_the_same_file(scene: RecordBuffer, tmp_path: Path) -> None:
    dense = RecordBuffer(None, (40, 50, 3))
    for frame in scene.episode(0).iter_frames():
        dense.add(frame, 0, 0)
    compressed = CompressedRecordBuffer(None, (40, 50, 3))
    for frame in scene.episode(0).iter_frames():
        compressed.add(frame, 0, 0)
    for name, recording in {"a": dense, "b": compressed}.items():
        export_contact_sheet(recording, tmp_path / f"{name}.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
