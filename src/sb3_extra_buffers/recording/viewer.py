"""A recording as one HTML file that shows its episodes, offline."""

from __future__ import annotations

import base64
import html
import itertools
import json
import math
import os
import re
import zlib
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers import __version__
from sb3_extra_buffers._support import atomic_write, with_progress
from sb3_extra_buffers.recording.buffers import RecordBuffer
from sb3_extra_buffers.recording.pictures import Picture, are_pictures, as_rgb, colour_codes, palette_of, picture_size
from sb3_extra_buffers.recording.records import Episode
from sb3_extra_buffers.recording.video import choose_fps, count_pictures

_CHUNK_PIXELS = 2_000_000  # decoded by the browser in a few hundredths of a second
_MOST_CHUNK_FRAMES = 64
_LONGEST_FEATURE = 32


def write_viewer(
    recording: RecordBuffer,
    path: str | os.PathLike[str],
    episodes: Sequence[int] | None = None,
    title: str | None = None,
    fps: float | None = None,
    progress: bool = False,
) -> None:
    """
    Write a web page that shows episodes: a single file that needs no network and no server.

    :param recording: The recording
    :param path: File to write, ending with ``.html``
    :param episodes: Which episodes; negative numbers count from the end; all by default
    :param title: Heading; the environment's id (``metadata["env_id"]``) by default
    :param fps: Frames per second at normal speed; by default what the recording says (``metadata["fps"]``), or 30
    :param progress: Whether to show a progress bar (on a terminal)
    """
    if Path(path).suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"{os.fspath(path)} must end with .html")
    everything = list(recording.episodes())
    chosen = everything if episodes is None else [recording.episode(index) for index in episodes]
    heading = title or str(recording.metadata.get("env_id") or "Recording")
    shape = recording.frame_shape
    size = picture_size(shape) if shape is not None and are_pictures(shape) else None
    chunk_frames = 1 if size is None else min(max(_CHUNK_PIXELS // math.prod(size), 1), _MOST_CHUNK_FRAMES)
    data: dict[str, Any] = {
        "title": heading,
        "about": _about(recording, chosen, len(everything)),
        "made": f"made by sb3-extra-buffers {__version__}",
        "fps": choose_fps(recording, fps),
        "picture": None if size is None else {"height": size[0], "width": size[1]},
        "chunkFrames": chunk_frames,
        "actions": _about_actions(recording, chosen),
        "episodes": [],
    }
    n_chunks = 0
    for episode in chosen:
        pictures = 0 if size is None else count_pictures(episode)
        data["episodes"].append({**_episode(episode), "pictures": pictures, "firstChunk": n_chunks})
        n_chunks += -(-pictures // chunk_frames)
    drawn = chosen if size is not None else []
    chunks = itertools.chain.from_iterable(_chunks(episode, chunk_frames) for episode in drawn)
    here = files("sb3_extra_buffers.recording")
    page = here.joinpath("viewer.html").read_text(encoding="utf-8")
    texts = {
        "title": html.escape(heading),
        "data": _json(data),
        "script": here.joinpath("viewer.js").read_text(encoding="utf-8"),
    }
    before, after = page.split("{{chunks}}")
    with atomic_write(path) as beside, open(beside, "w", encoding="utf-8", newline="\n", errors="replace") as file:
        file.write(_completed(before, texts))
        shown = with_progress(chunks, n_chunks, f"writing {Path(path).name}", "chunk", progress)
        for number, chunk in enumerate(shown):
            file.write(f'<script type="text/plain" id="chunk-{number}"{chunk}</script>\n')
        file.write(_completed(after, texts))


def _completed(page: str, texts: dict[str, str]) -> str:
    # In one pass: what is put in may look like a place for something else.
    return re.sub(r"\{\{(\w+)\}\}", lambda place: texts[place[1]], page)


def _json(data: Any) -> str:
    # Inside of a script element nothing but its own end may look like a tag.
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _about(recording: RecordBuffer, chosen: list[Episode], total: int) -> str:
    steps = sum(len(episode) for episode in chosen)
    parts = [f"{len(chosen):,} episode{'' if len(chosen) == 1 else 's'}", f"{steps:,} step{'' if steps == 1 else 's'}"]
    if len(chosen) < total:
        parts[0] = f"{len(chosen):,} of {total:,} episodes"
    if recording.frame_shape is not None:
        shown = {"render": "rendered frames", "observation": "observations"}.get(str(recording.metadata.get("frames")))
        parts.append(f"{shown or 'frames'} of {'x'.join(map(str, recording.frame_shape))}")
    return ", ".join(parts)


def _about_actions(recording: RecordBuffer, chosen: list[Episode]) -> dict[str, Any]:
    space = recording.metadata.get("action_space")
    space = space if isinstance(space, dict) else {}
    meanings = recording.metadata.get("action_meanings")
    meanings = [str(meaning) for meaning in meanings] if isinstance(meanings, list) else []
    discrete = recording.action_shape == () and recording.action_dtype.kind in "iub"
    start = space["start"] if isinstance(space.get("start"), int) else 0
    if not discrete:
        limits = {key: _limits(space.get(key), recording.action_shape) for key in ("low", "high")}
        return {"discrete": False, "meanings": [], "start": 0, "n": 0, **limits}
    seen = [int(action) for episode in chosen for action in np.unique(episode.actions)]
    start = min(start, *seen) if seen else start
    n = max(space["n"] if isinstance(space.get("n"), int) else 0, len(meanings), max(seen, default=start) - start + 1)
    # With hundreds of actions a list of those that were never taken is of no use, and some of them would be far apart.
    return {"discrete": n <= 1024, "meanings": meanings, "start": start, "n": n if n <= 64 else 0, "low": None, "high": None}


def _limits(bounds: Any, shape: tuple[int, ...]) -> list[float] | None:
    try:
        limits = np.broadcast_to(np.array(bounds, np.float64), shape).reshape(-1)
    except (TypeError, ValueError, OverflowError):
        return None
    return limits.tolist() if np.isfinite(limits).all() else None


def _episode(episode: Episode) -> dict[str, Any]:
    features = {name: values for name, values in episode.features.items() if math.prod(values.shape[1:]) <= _LONGEST_FEATURE}
    return {
        "number": episode.number,
        "cut": episode.is_cut,
        "end": ("truncated" if episode.truncated else "terminated") if episode.done else "open",
        "rewards": _plain(episode.rewards),
        "actions": _plain(episode.actions),
        "features": {name: _plain(values) for name, values in features.items()},
    }


def _plain(values: npt.NDArray[Any]) -> list[Any]:
    """Numbers as JSON has them: short, and null for what it does not have."""
    if values.ndim > 1:
        values = values.reshape(len(values), -1)
    if values.dtype.kind == "c":
        values = values.astype(str)
    elif values.dtype.kind == "f" and np.isfinite(values).all() and (values == np.rint(values)).all():
        values = values.astype(np.int64) if (np.abs(values) < 1 << 53).all() else values
    listed: list[Any] = values.tolist()
    if values.dtype.kind != "f":
        return listed

    def short(value: Any) -> Any:
        if isinstance(value, list):
            return [short(one) for one in value]
        return float(f"{value:.7g}") if math.isfinite(value) else None

    return [short(value) for value in listed]


def _chunks(episode: Episode, chunk_frames: int) -> Iterator[str]:
    """Attributes and content of an element that holds some frames."""
    final = episode.final_frame
    frames = itertools.chain(episode.iter_frames(), [] if final is None else [final])
    while some := list(itertools.islice(frames, chunk_frames)):
        pixels, palette = _with_palette(np.stack([as_rgb(frame) for frame in some]))
        coding, array = _code(pixels)
        packed = zlib.compress(array, 6)
        colours = "" if palette is None else f' data-palette="{palette.tobytes().hex()}"'
        yield f' data-coding="{coding}"{colours}>{base64.b64encode(packed).decode()}'


def _code(pixels: Picture) -> tuple[str, Picture]:
    """
    Choose how to code some frames: as they are (``"p"``), or all but the first XORed with the one before (``"x"``).

    Neighbours in time are often, but not always, more alike than neighbours in a picture. A few frames tell.
    """
    changes = pixels.copy()
    changes[1:] ^= pixels[:-1]
    pays = len(zlib.compress(changes[:8].tobytes(), 1)) < len(zlib.compress(pixels[:8].tobytes(), 1))
    return ("x", changes) if pays else ("p", pixels)


def _with_palette(pictures: Picture) -> tuple[Picture, Picture | None]:
    """One byte a pixel and a palette, where there are no more than 256 colours, as in most games."""
    codes = colour_codes(pictures)
    is_used = np.zeros(1 << 24, np.bool_)
    is_used[codes] = True
    colours = np.flatnonzero(is_used)
    if len(colours) > 256:
        return np.ascontiguousarray(pictures), None
    places = np.zeros(1 << 24, np.uint8)
    places[colours] = np.arange(len(colours))
    return places[codes], palette_of(colours)
