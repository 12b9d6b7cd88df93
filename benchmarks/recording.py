"""
How large are recordings? Plays Atari games at random and looks at what a recording takes in memory, as a file and as a page.

Frames are the pictures that the games render, 210x160 in colour.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import ale_py
import gymnasium as gym
from kit.results import ResultFile, console, options
from rich.progress import track

from sb3_extra_buffers.recording import RecordWrapper, write_viewer

GAMES = ("MsPacman", "Pong", "Breakout")


def record(game: str, steps: int) -> dict[str, Any]:
    """Record a game and weigh it."""
    env = RecordWrapper(gym.make(f"ALE/{game}-v5", render_mode="rgb_array"))
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in track(range(steps), f"playing {game}"):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            env.reset()
    buffer, usage = env.buffer, env.buffer.memory_usage()
    with tempfile.TemporaryDirectory() as folder:
        file, page = Path(folder) / "play.rec", Path(folder) / "play.html"
        buffer.save(file)
        write_viewer(buffer, page)
        sizes = {"file_bytes": file.stat().st_size, "page_bytes": page.stat().st_size}
    env.close()
    return {"game": game, "steps": steps, "raw_bytes": usage.raw_bytes, "memory_bytes": usage.total_bytes, **sizes}


def main() -> None:
    """Run what the command line says."""
    parser = options(__doc__, cache=False)
    parser.add_argument("--games", nargs="+", default=list(GAMES), help="what to play")
    parser.add_argument("--steps", type=int, default=6_000, help="how many steps of each")
    args = parser.parse_args()
    gym.register_envs(ale_py)
    results = ResultFile("recording", args.results)
    for game in args.games:
        if args.resume and results.has(game, steps=args.steps):
            continue
        row = record(game, args.steps)
        results.put(game, row)
        console.print(", ".join(f"{name} {value:,}" if isinstance(value, int) else value for name, value in row.items()))


if __name__ == "__main__":
    main()
