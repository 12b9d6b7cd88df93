"""Recordings and replay buffers to and from Minari datasets."""

from __future__ import annotations

from typing import Any

from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers.recording.buffers import RecordBuffer


def export_minari(recording: RecordBuffer | ReplayBuffer, dataset_id: str, *, progress: bool = False, **options: Any) -> Any:
    """
    Export a recording, or what a replay buffer holds, to a Minari dataset (in ``MINARI_DATASETS_PATH``).

    :param recording: A recording with frames, or a replay buffer of SB3 or of ours
    :param dataset_id: Id of the dataset, for example ``"atari/pong-v0"``; it must not exist yet
    :param progress: Whether to show a progress bar
    :param options: Passed to ``minari.create_dataset_from_buffers``, for example ``algorithm_name``, ``author``
    :return: The ``minari.MinariDataset``
    """
    raise NotImplementedError


def import_minari(
    dataset: Any,
    frame_key: str | None = None,
    buffer_class: type[RecordBuffer] | None = None,
    progress: bool = False,
    **options: Any,
) -> RecordBuffer:
    """
    Import a recording from a Minari dataset.

    :param dataset: A ``minari.MinariDataset``, or the id of one that is here
    :param frame_key: Which entry of Dict observations is the frame; the others become features
    :param buffer_class: What to import into; ``CompressedRecordBuffer`` by default
    :param progress: Whether to show a progress bar
    :param options: Options of the class, for example ``compression_method``
    :return: The recording
    """
    raise NotImplementedError
