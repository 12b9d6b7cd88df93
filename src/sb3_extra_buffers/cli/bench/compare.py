"""Play once, then measure one buffer after the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.cli.environments import Environments
from sb3_extra_buffers.cli.errors import UsageError
from sb3_extra_buffers.cli.progress import Stage, show_stages

if TYPE_CHECKING:
    from sb3_extra_buffers.cli.measuring import Measured


@dataclass(frozen=True)
class Source:
    """
    Where transitions come from: environments, or a recording.

    :param environments: What to play; of a recording only the stack counts
    :param recording: The file
    """

    environments: Environments
    recording: Path | None = None

    @property
    def title(self) -> str:
        """What to call it."""
        return self.environments.title if self.recording is None else self.recording.name

    @property
    def recorded_steps(self) -> int | None:
        """How many steps the recording has; None for environments, which can be played for ever."""
        if self.recording is None:
            return None
        from sb3_extra_buffers.recording import RecordingError, recording_info

        try:
            return recording_info(self.recording).steps
        except (RecordingError, OSError) as error:
            raise UsageError(str(error)) from error


@dataclass(frozen=True)
class Results:
    """
    What came of measuring.

    :param source: Where the transitions came from
    :param transitions: How many the buffers hold
    :param raw_bytes: What the observations of one transition take uncompressed: SB3 keeps both
    :param spaces: Observation and action space, written out
    :param sb3: Figures of SB3's own buffer
    :param ours: Figures of compressed ones
    :param other_cores: How many cores other programs had meanwhile
    """

    source: Source
    transitions: int
    raw_bytes: int
    spaces: tuple[str, str]
    sb3: Measured
    ours: Sequence[Measured]
    other_cores: float = 0.0

    def identical(self, measured: Measured) -> bool:
        """
        Tell whether a buffer gave the samples of SB3's.

        :param measured: Figures of the buffer
        :return: Whether every byte of them is the same
        """
        return measured.digest == self.sb3.digest

    @property
    def all_identical(self) -> bool:
        """Whether all of them did."""
        return all(self.identical(measured) for measured in self.ours)

    def write_json(self, path: Path) -> None:
        """
        Write all figures to a file.

        :param path: Where
        """
        from sb3_extra_buffers._support import atomic_write
        from sb3_extra_buffers.cli.demo.figures import versions

        def figures(measured: Measured) -> dict[str, Any]:
            ratios = {
                name: getattr(measured, name) / getattr(self.sb3, name)
                for name in ("memory_bytes", "add_us", "add_full_us", "sample_us")
            }
            return {**asdict(measured), "identical": self.identical(measured), "of_sb3": ratios}

        content = {
            "source": self.source.title,
            "environment": asdict(self.source.environments) if self.source.recording is None else None,
            "transitions": self.transitions,
            "raw_bytes_per_transition": self.raw_bytes,
            "observation_space": self.spaces[0],
            "action_space": self.spaces[1],
            "other_cores": self.other_cores,
            "sb3": figures(self.sb3),
            "methods": {str(measured.method): figures(measured) for measured in self.ours},
            "made_with": versions(),
        }
        with atomic_write(path) as beside:
            beside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def compare(source: Source, size: int, methods: Sequence[str], console: Any) -> tuple[Results, Any]:
    """
    Play, and measure every method; each in a process of its own.

    :param source: What to play
    :param size: How many transitions
    :param methods: Compression methods
    :param console: Where progress is shown
    :return: The figures, and what was played
    """
    from sb3_extra_buffers.cli.children import Call, run_in_children
    from sb3_extra_buffers.cli.load import Load
    from sb3_extra_buffers.cli.measuring import measure, rows_to_add
    from sb3_extra_buffers.cli.played import observation_bytes, play, replay_recording

    n_envs = source.environments.n_envs
    rows = -(-size // n_envs)
    played_rows = rows + max(1, rows // 4)
    verb = "Play" if source.recording is None else "Read"
    stages = [Stage(f"{verb} {source.title}", rows * n_envs, "transitions")]
    stages += [Stage(f"Measure {name}", played_rows * n_envs, "transitions") for name in ("SB3's buffer", *methods)]
    figures: list[Measured] = []
    load = Load()
    with show_stages(console, stages) as shown:
        if source.recording is None:
            call = Call(play, (source.environments, rows), shown.begin(0))
        else:
            call = Call(replay_recording, (source.recording, rows, source.environments.stack), shown.begin(0))
        (played,) = run_in_children(call)
        shown.end(0)
        assert rows_to_add(played) == played_rows
        for number, method in enumerate([None, *methods], start=1):
            figures += run_in_children(Call(measure, (played, method), shown.begin(number)))
            shown.end(number)
    spaces = (str(played.observation_space), str(played.action_space))
    raw_bytes = 2 * observation_bytes(played.observation_space)
    other_cores = load.other_cores()
    return Results(source, played.transitions, raw_bytes, spaces, figures[0], figures[1:], other_cores), played
