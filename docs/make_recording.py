"""
Make the pictures of recording.md with our own recorder: ``python docs/make_recording.py``.

The player follows the ball, which it finds in the memory of the game, more or less: to hit it always in the same way would be
dull. The pictures of the viewer need Chromium.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
import numpy as np

from sb3_extra_buffers.recording import RecordBuffer, RecordWrapper, export_contact_sheet, export_video, write_viewer

STATIC = Path(__file__).parent / "_static"
BALL_X, BALL_Y, PADDLE_X = 99, 101, 72
NOOP, FIRE, RIGHT, LEFT = range(4)
SEED = 2
GIF_STEPS = slice(1190, 1310)
VIEWER_STEP = 1212


def follow_ball(ram: Any, rng: np.random.Generator) -> int:
    """
    Choose what to do in Breakout.

    :param ram: Memory of the game
    :param rng: How to aim
    :return: The action
    """
    if ram[BALL_Y] == 0:
        return FIRE
    ahead = int(ram[BALL_X]) - int(ram[PADDLE_X]) - 8 + rng.integers(-6, 7)
    return RIGHT if ahead > 3 else LEFT if ahead < -3 else NOOP


def record() -> RecordBuffer:
    """
    Play an episode of Breakout.

    :return: The recording
    """
    gym.register_envs(ale_py)
    game = gym.make("ALE/Breakout-v5", render_mode="rgb_array", frameskip=4, repeat_action_probability=0.0)
    env = RecordWrapper(game, info_features=["lives"])
    env.reset(seed=SEED)
    rng = np.random.default_rng(SEED)
    over = False
    while not over:
        _, _, terminated, truncated, _ = env.step(follow_ball(env.unwrapped.ale.getRAM(), rng))  # type: ignore[attr-defined]
        over = terminated or truncated
    env.close()
    return env.buffer


def part_of(recording: RecordBuffer, steps: slice) -> RecordBuffer:
    """
    Cut a piece out of a recording.

    :param recording: The recording
    :param steps: Which steps
    :return: A recording of these
    """
    assert recording.frame_shape is not None
    piece = RecordBuffer(None, recording.frame_shape, metadata=recording.metadata)
    chosen = recording[steps]
    for frame, reward, action in zip(chosen.frame, chosen.reward, chosen.action, strict=True):
        piece.add(frame, reward, action)
    return piece


def photograph(page: Path, step: int) -> None:
    """
    Take pictures of the viewer, wide and narrow.

    :param page: The viewer
    :param step: The step that it shows
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, width, height, scheme in (("viewer", 1180, 890, "light"), ("viewer-phone", 390, 844, "dark")):
            view = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            view.goto(f"{page.as_uri()}#step={step}")
            view.wait_for_selector(f'#screen[data-step="{step}"]')
            view.screenshot(path=STATIC / f"recording-{name}.png")
        browser.close()


def main() -> None:
    """Make all of them."""
    recording = record()
    print(recording)
    export_video(part_of(recording, GIF_STEPS), STATIC / "recording.gif", fps=20, scale=1)
    export_contact_sheet(recording, STATIC / "recording-sheet.png", columns=6, rows=2)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "breakout.html"
        write_viewer(recording, page)
        photograph(page, VIEWER_STEP)


if __name__ == "__main__":
    main()
