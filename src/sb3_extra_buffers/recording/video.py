"""Episodes as videos and contact sheets."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import reprlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sb3_extra_buffers._support import atomic_write, need, with_progress
from sb3_extra_buffers.recording.buffers import FASTEST, SLOWEST, RecordBuffer, frames_per_second
from sb3_extra_buffers.recording.pictures import (
    Picture,
    as_rgb,
    check_scale,
    choose_episode,
    colour_codes,
    enlarge,
    evenly_spaced,
    palette_of,
)
from sb3_extra_buffers.recording.records import Episode

_HEIGHT = 240
_FASTEST_GIF = 50  # browsers slow down what has less than two hundredths of a second a frame


def export_video(
    recording: RecordBuffer | Episode,
    path: str | os.PathLike[str],
    episode: int = 0,
    fps: float | None = None,
    progress: bool = True,
    scale: int | None = None,
    quality: int = 8,
) -> None:
    """
    Export an episode as a video, including its final frame if that was recorded.

    :param recording: A recording, or one episode
    :param path: File to write, ending with ``.mp4`` or ``.gif``
    :param episode: Which episode of a recording; negative numbers count from the end
    :param fps: Frames per second; by default what the recording says (``metadata["fps"]``), or 30
    :param progress: Whether to show a progress bar (on a terminal)
    :param scale: Draw each pixel as a square of this size; by default, frames are enlarged to at least 240 pixels in height
    :param quality: Quality of an mp4, from 1 to 10
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".mp4", ".gif"):
        raise ValueError(f"{os.fspath(path)} ends with {suffix or 'no suffix'!r}; videos can be .mp4 or .gif")
    if not 1 <= quality <= 10:
        raise ValueError(f"quality is {quality}; allowed: 1 to 10")
    chosen = choose_episode(recording, episode)
    rate = choose_fps(chosen.buffer, fps)
    pictures = _pictures(chosen)
    first = next(pictures)
    size = check_scale(scale, max(1, math.ceil(_HEIGHT / first.shape[0])))
    everything = (enlarge(picture, size) for picture in itertools.chain([first], pictures))
    shown = with_progress(everything, count_pictures(chosen), f"writing {Path(path).name}", "frame", progress)
    with atomic_write(path) as beside:
        if suffix == ".mp4":
            _write_mp4(beside, shown, rate, quality)
        else:
            _write_gif(beside, shown, rate)


def choose_fps(recording: RecordBuffer, fps: float | None) -> float:
    """Choose the frames per second: what was asked for, what the recording says, or 30."""
    if fps is None:
        return frames_per_second(recording.metadata.get("fps")) or 30.0
    rate = frames_per_second(fps)
    if rate is None:
        raise ValueError(f"fps is {reprlib.repr(fps)}; allowed: {SLOWEST} to {FASTEST:,.0f}")
    return rate


def count_pictures(episode: Episode) -> int:
    """Count the pictures of an episode: its steps, and one more if its final frame is there."""
    return len(episode) + (episode.final_frame is not None)


def _pictures(episode: Episode) -> Iterator[Picture]:
    final = episode.final_frame
    return map(as_rgb, itertools.chain(episode.iter_frames(), [] if final is None else [final]))


def _write_mp4(path: Path, pictures: Iterator[Picture], fps: float, quality: int) -> None:
    ffmpeg = need("imageio_ffmpeg", "recording", "writing an mp4")
    first = _even(next(pictures))
    height, width = first.shape[:2]
    crf = max(1, int(51 * (1 - quality / 10)))  # 0 would be lossless, in a profile that browsers do not play
    # imageio_ffmpeg's own writer does not ask how ffmpeg ended: on a full disk it leaves half a video without a word.
    command = [
        *(ffmpeg.get_ffmpeg_exe(), "-y", "-v", "error"),
        *("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{fps:g}", "-i", "-"),
        *("-c:v", "libx264", "-pix_fmt", "yuv420p", "-crf", str(crf), str(path)),
    ]
    with tempfile.TemporaryFile() as complaints:
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=complaints) as process:
            assert process.stdin is not None
            try:
                with contextlib.suppress(BrokenPipeError):  # the reason is reported below
                    process.stdin.write(first.data)
                    for picture in pictures:
                        process.stdin.write(_even(picture).data)
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            complaints.seek(0)
            message = complaints.read(1000).decode(errors="replace").strip()
            raise OSError(f"ffmpeg could not write the video: {message or f'it ended with {process.returncode}'}")


def _even(picture: Picture) -> Picture:
    """Repeat the last line or column where their number is odd: players want half as many dots of colour as of light."""
    height, width = picture.shape[:2]
    if height % 2 == 0 and width % 2 == 0:
        return np.ascontiguousarray(picture)
    return np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")


def _write_gif(path: Path, pictures: Iterator[Picture], fps: float) -> None:
    image = need("PIL.Image", "recording", "writing a gif")
    every = math.ceil(fps / _FASTEST_GIF)
    images = (_with_palette(picture, image) for picture in itertools.islice(pictures, 0, None, every))
    hundredths = max(round(100 * every / fps), 2)
    first = next(images)
    first.save(path, format="GIF", save_all=True, append_images=images, duration=10 * hundredths, loop=0, optimize=False)


def _with_palette(picture: Picture, image: Any) -> Any:
    """A gif has 256 colours a frame. Where a frame has no more, as those of games, it is shown exactly."""
    colours, places = np.unique(colour_codes(picture), return_inverse=True)
    if len(colours) > 256:
        return image.fromarray(picture).quantize(256, dither=image.Dither.NONE)
    indexed = image.fromarray(places.astype(np.uint8).reshape(picture.shape[:2]), mode="P")
    indexed.putpalette(palette_of(colours).tobytes())
    return indexed


def export_contact_sheet(
    recording: RecordBuffer | Episode,
    path: str | os.PathLike[str],
    episode: int = 0,
    columns: int = 8,
    rows: int = 6,
    scale: int | None = None,
) -> None:
    """
    Export frames of an episode, evenly spaced from the first to the last, side by side as a PNG. Below each one is the number
    of its step.

    :param recording: A recording, or one episode
    :param path: File to write, ending with ``.png``
    :param episode: Which episode of a recording; negative numbers count from the end
    :param columns: Frames in a row
    :param rows: Number of rows, at most
    :param scale: Draw each pixel as a square of this size; 1 by default
    """
    if Path(path).suffix.lower() != ".png":
        raise ValueError(f"{os.fspath(path)} must end with .png")
    if columns < 1 or rows < 1:
        raise ValueError(f"a sheet of {columns} columns and {rows} rows holds no frames")
    chosen = choose_episode(recording, episode)
    size = check_scale(scale, 1)
    places = evenly_spaced(count_pictures(chosen), columns * rows)
    image, draw, font = (need(f"PIL.{name}", "recording", "a contact sheet") for name in ("Image", "ImageDraw", "ImageFont"))
    pictures = [enlarge(as_rgb(_frame_at(chosen, place)), size) for place in places]
    height, width = pictures[0].shape[:2]
    gap, label = max(2, width // 40), max(8, width // 12)
    cell_height, cell_width = height + label + gap, width + gap
    columns = min(columns, len(pictures))
    lines = -(-len(pictures) // columns)
    sheet = image.new("RGB", (columns * cell_width + gap, lines * cell_height + gap), (24, 24, 24))
    writer, letters = draw.Draw(sheet), font.load_default(label)
    for order, (place, picture) in enumerate(zip(places, pictures, strict=True)):
        top, left = gap + order // columns * cell_height, gap + order % columns * cell_width
        sheet.paste(image.fromarray(picture), (left, top))
        writer.text((left + width, top + height), str(place), fill=(200, 200, 200), font=letters, anchor="ra")
    with atomic_write(path) as beside:
        sheet.save(beside, format="PNG", optimize=True)


def _frame_at(episode: Episode, place: int) -> Any:
    return episode.final_frame if place == len(episode) else episode[place].frame
