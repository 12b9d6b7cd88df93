"""What the demo does, what it finds, and how that is written down."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sb3_extra_buffers import __version__

FRAME_STACK = 4
FRAME_BYTES = 84 * 84
BATCH_SIZE = 32

_LIBRARIES = ("stable-baselines3", "numpy", "torch", "gymnasium", "ale-py", "numba", "zstandard")


@dataclass(frozen=True)
class Plan:
    """
    What both sides do.

    :param env_id: Id of the game
    :param n_envs: Games played side by side
    :param rows: Steps of all games that the buffer holds
    :param train_steps: Transitions to collect while training
    :param seed: Of games, actions and training
    :param method: Compression method
    """

    env_id: str
    n_envs: int
    rows: int
    train_steps: int
    seed: int
    method: str

    @property
    def transitions(self) -> int:
        """Transitions that the buffer holds."""
        return self.rows * self.n_envs

    @property
    def rows_played(self) -> int:
        """A quarter more than fits, so that a full ring is measured too."""
        return self.rows + max(1, self.rows // 4)

    @property
    def played(self) -> int:
        """Transitions played."""
        return self.rows_played * self.n_envs

    @property
    def raw_bytes_per_transition(self) -> int:
        """What SB3 takes for the observation and the next one."""
        return 2 * FRAME_STACK * FRAME_BYTES


@dataclass(frozen=True)
class Filling:
    """
    What came of filling a buffer and sampling from it.

    :param played_digest: Hash of every transition that was played
    :param start_up_bytes: What the process grew by on first use of the buffer class: libraries, mostly
    :param memory_bytes: The most that it grew by since before the buffer was made, also while overwriting a full buffer
    :param memory_history: What it grew by on the way, as pairs of transitions played and bytes
    :param add_filling_us: Median microseconds of ``add`` (one step of all games) until the buffer was full
    :param add_full_us: Likewise in the full buffer
    :param sample_us: Median microseconds of ``sample(32)``
    :param sample_digests: Hash of every sampled batch, all of its fields
    """

    played_digest: str
    start_up_bytes: int
    memory_bytes: int
    memory_history: Sequence[tuple[int, int]]
    add_filling_us: float
    add_full_us: float
    sample_us: float
    sample_digests: Sequence[str]


@dataclass(frozen=True)
class Training:
    """
    What came of training.

    :param parameter_digests: Hash of every tensor of the trained policy, by name
    :param changed: How many of them training changed
    :param updates: Gradient updates
    :param seconds: How long ``learn`` took, with the other side's training at the same time
    """

    parameter_digests: Mapping[str, str]
    changed: int
    updates: int
    seconds: float


@dataclass(frozen=True)
class Comparison:
    """
    Both sides.

    :param plan: What was done
    :param sb3_filling: Filling SB3's buffer
    :param our_filling: Filling ours
    :param sb3_training: Training with SB3's buffer
    :param our_training: Training with ours
    :param other_cores: How many cores other programs had while buffers were filled and sampled from
    """

    plan: Plan
    sb3_filling: Filling
    our_filling: Filling
    sb3_training: Training
    our_training: Training
    other_cores: float = 0.0

    @property
    def same_game(self) -> bool:
        """Whether both buffers were given the same transitions."""
        return self.sb3_filling.played_digest == self.our_filling.played_digest

    @property
    def equal_batches(self) -> int:
        """How many sampled batches are equal to the bit."""
        pairs = zip(self.sb3_filling.sample_digests, self.our_filling.sample_digests, strict=True)
        return sum(theirs == ours for theirs, ours in pairs)

    @property
    def equal_parameters(self) -> int:
        """How many tensors of the trained policies are equal to the bit."""
        ours = self.our_training.parameter_digests
        return sum(ours.get(name) == digest for name, digest in self.sb3_training.parameter_digests.items())

    @property
    def samples_identical(self) -> bool:
        """Whether all batches are equal."""
        return self.equal_batches == len(self.sb3_filling.sample_digests) > 0

    @property
    def weights_identical(self) -> bool:
        """Whether training changed the weights, and to the same values."""
        same_names = self.sb3_training.parameter_digests.keys() == self.our_training.parameter_digests.keys()
        all_equal = self.equal_parameters == len(self.sb3_training.parameter_digests)
        return same_names and all_equal and self.sb3_training.changed > 0

    @property
    def all_identical(self) -> bool:
        """Whether nothing differs."""
        return self.same_game and self.samples_identical and self.weights_identical

    @property
    def memory_ratio(self) -> float:
        """Our memory over SB3's."""
        return self.our_filling.memory_bytes / self.sb3_filling.memory_bytes

    @property
    def time_ratios(self) -> dict[str, float]:
        """Our time over SB3's."""
        names = ("add_filling_us", "add_full_us", "sample_us")
        return {name: getattr(self.our_filling, name) / getattr(self.sb3_filling, name) for name in names}

    def write_json(self, path: Path) -> None:
        """
        Write all figures to a file.

        :param path: Where
        """
        from sb3_extra_buffers._support import atomic_write

        with atomic_write(path) as beside:
            beside.write_text(json.dumps(self._figures(), indent=2) + "\n", encoding="utf-8")

    def _figures(self) -> dict[str, Any]:
        return {
            "plan": {**asdict(self.plan), "transitions": self.plan.transitions},
            "outcome": {
                "memory_ratio": self.memory_ratio,
                "time_ratios": self.time_ratios,
                "transitions_identical": self.same_game,
                "samples_identical": self.samples_identical,
                "weights_identical": self.weights_identical,
            },
            "other_cores": self.other_cores,
            "sb3": {"filling": asdict(self.sb3_filling), "training": asdict(self.sb3_training)},
            "compressed": {"filling": asdict(self.our_filling), "training": asdict(self.our_training)},
            "made_with": versions(),
        }


def versions() -> dict[str, str]:
    """
    List the versions that matter.

    :return: Name to version, of what is installed
    """
    found = {"sb3-extra-buffers": __version__, "python": platform.python_version(), "system": platform.platform()}
    for library in _LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue
    return found
