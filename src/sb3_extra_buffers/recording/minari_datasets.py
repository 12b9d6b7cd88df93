"""Recordings and replay buffers to and from Minari datasets."""

from __future__ import annotations

import contextlib
import inspect
import os
import secrets
import shutil
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_extra_buffers import __version__
from sb3_extra_buffers.recording.buffers import RecordBuffer
from sb3_extra_buffers.recording.compressed_buffer import CompressedRecordBuffer
from sb3_extra_buffers.recording.errors import RecordingError
from sb3_extra_buffers.recording.optional import need, with_progress
from sb3_extra_buffers.recording.records import Episode
from sb3_extra_buffers.recording.replay_episodes import Trajectory, trajectories
from sb3_extra_buffers.recording.spaces import describe_space, spaces_of

_OURS = "sb3_extra_buffers"
"""Under this key of a dataset's metadata is what Minari has no place for."""

_NAMESPACE = "namespace_metadata.json"
"""What Minari puts into each folder of datasets."""


def export_minari(
    recording: RecordBuffer | ReplayBuffer,
    dataset_id: str,
    *,
    overwrite: bool = False,
    progress: bool = False,
    **options: Any,
) -> Any:
    """
    Export a recording, or what a replay buffer holds, to a Minari dataset (in ``MINARI_DATASETS_PATH``), bit for bit.

    Minari needs an observation after the last action of each episode. Where there is none (the episode is still running, or
    its final frame was not recorded), the last frame is repeated. Episodes that are not over are marked as truncated, as
    Minari itself does. Features become ``infos``. The observations of a replay buffer are exported as the algorithm sees
    them: SB3 puts the channels of images first.

    :param recording: A recording with frames, or a replay buffer, SB3's or ours
    :param dataset_id: Id of the dataset, for example ``"atari/pong-v0"``
    :param overwrite: Whether to replace a dataset of this id, which is an error otherwise; the old one is removed once the new
        one is complete
    :param progress: Whether to show a progress bar (on a terminal)
    :param options: Passed to ``minari.create_dataset_from_buffers``, for example ``algorithm_name`` or ``author``
    :return: The ``minari.MinariDataset``
    """
    minari = need("minari", "minari", "a Minari dataset")
    need("h5py", "minari", "a Minari dataset")
    export: _RecordingExport | _ReplayExport
    if isinstance(recording, RecordBuffer):
        export = _RecordingExport(recording)
    elif isinstance(recording, ReplayBuffer):
        export = _ReplayExport(recording)
    else:
        raise TypeError(f"expected a recording or a replay buffer, not {type(recording).__name__}")
    place = _new_place(dataset_id, overwrite)
    arguments = {
        "observation_space": export.observation_space,
        "action_space": export.action_space,
        "description": f"Exported by sb3-extra-buffers {__version__}",
        **_without_jpeg(minari),
        **options,
    }
    episodes = with_progress(export.episodes(), export.total, f"exporting {dataset_id}", "episode", progress)
    with _whole_or_not_at_all(place), warnings.catch_warnings():
        # Minari reminds of every option that was left out; who wants to give them knows them from its documentation.
        warnings.filterwarnings("ignore", message=".*(is set to None|env_spec is None).*", category=UserWarning)
        dataset = minari.create_dataset_from_buffers(dataset_id, episodes, **arguments)
        dataset.storage.update_metadata({_OURS: export.notes()})
    return dataset


def _new_place(dataset_id: str, overwrite: bool) -> Path:
    # Minari looks at the id when it has made its folder already.
    parse = need("minari.dataset.minari_dataset", "minari", "a Minari dataset").parse_dataset_id
    try:
        parse(dataset_id)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{dataset_id!r} is no id of a Minari dataset; allowed: letters, digits, - and _, a version at the end, and "
            'perhaps a namespace of at least two letters before it, as in "atari/pong-v0"'
        ) from error
    place = _place_of(dataset_id)
    if place.exists() and not (place / "data").is_dir():
        raise ValueError(f"{place} exists, but is no Minari dataset; choose another id")
    if place.exists() and not overwrite:
        raise ValueError(f"the Minari dataset {dataset_id!r} already exists in {place}; choose another id, or overwrite=True")
    return place


@contextlib.contextmanager
def _whole_or_not_at_all(place: Path) -> Iterator[None]:
    """A folder that is written in the context appears only if all goes well; else what was there before is there again."""
    new_parents = [folder for folder in place.parents if not folder.exists()]
    aside = place.with_name(f".{secrets.token_hex(6)}")  # Minari does not look at hidden folders
    was_there = place.exists()
    if was_there:
        place.rename(aside)
    try:
        yield
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        if was_there:
            aside.rename(place)
        with contextlib.suppress(OSError):  # somebody else may have put something there
            for folder in new_parents:
                if os.listdir(folder) == [_NAMESPACE]:
                    (folder / _NAMESPACE).unlink()
                folder.rmdir()
        raise
    if was_there:
        shutil.rmtree(aside, ignore_errors=True)


def _place_of(dataset_id: str) -> Path:
    get_path = need("minari.storage.datasets_root_dir", "minari", "a Minari dataset").get_dataset_path
    return Path(os.fspath(get_path(dataset_id)))


def _without_jpeg(minari: Any) -> dict[str, Any]:
    if "jpeg_encoding" not in inspect.signature(minari.create_dataset_from_buffers).parameters:
        raise ImportError(
            f"Minari {minari.__version__} stores images as JPEG, which changes them; install a version that can do without: "
            'pip install "minari[hdf5]>=0.5.4"'
        )
    return {"jpeg_encoding": False}


class _RecordingExport:
    def __init__(self, recording: RecordBuffer) -> None:
        if recording.frame_shape is None:
            raise ValueError("the recording has no frames, but a Minari dataset needs observations")
        if len(recording) == 0:
            raise ValueError("the recording is empty")
        bad = [name for name in recording.feature_specs if "/" in name]
        if bad:
            raise ValueError(f"the feature {bad[0]!r} has a slash in its name, which Minari takes for a folder")
        self._recording = recording
        self._episodes = list(recording.episodes())
        self.total = len(self._episodes)
        self._unfinished = [place for place, episode in enumerate(self._episodes) if not episode.done]
        self._without_final = [place for place, episode in enumerate(self._episodes) if episode.final_frame is None]
        self.observation_space, self.action_space = spaces_of(recording)

    def episodes(self) -> Iterator[Any]:
        return (self._episode(episode) for episode in self._episodes)

    def _episode(self, episode: Episode) -> Any:
        frames, final = episode.frames, episode.final_frame
        assert frames is not None
        return _episode_buffer(
            np.concatenate([frames, frames[-1:] if final is None else final[None]]),
            episode.actions,
            episode.rewards,
            episode.terminated,
            {name: np.concatenate([values, values[-1:]]) for name, values in episode.features.items()},
        )

    def notes(self) -> dict[str, Any]:
        recording = self._recording
        return {
            "version": __version__,
            "metadata": recording.metadata,
            "unfinished": self._unfinished,
            "without_final_frame": self._without_final,
            "is_open": recording.is_open,
            "first_episode": self._episodes[0].number,
            "is_cut": self._episodes[0].is_cut,
        }


class _ReplayExport:
    def __init__(self, buffer: ReplayBuffer) -> None:
        self._trajectories = trajectories(buffer)
        if not self._trajectories:
            raise ValueError("the replay buffer is empty")
        self.total = len(self._trajectories)
        self.observation_space = buffer.observation_space
        self.action_space = buffer.action_space

    def episodes(self) -> Iterator[Any]:
        return (self._episode(trajectory) for trajectory in self._trajectories)

    @staticmethod
    def _episode(trajectory: Trajectory) -> Any:
        return _episode_buffer(
            trajectory.observations(), trajectory.actions(), trajectory.rewards(), trajectory.end == "terminated", {}
        )

    def notes(self) -> dict[str, Any]:
        unfinished = [place for place, trajectory in enumerate(self._trajectories) if trajectory.end == "unfinished"]
        return {"version": __version__, "unfinished": unfinished}


def _episode_buffer(
    observations: Any, actions: Any, rewards: npt.NDArray[Any], terminated: bool, infos: dict[str, Any]
) -> Any:
    minari = need("minari.data_collector", "minari", "a Minari dataset")
    ends = np.zeros(len(rewards), np.bool_)
    ends[-1] = True
    none = np.zeros(len(rewards), np.bool_)
    return minari.EpisodeBuffer(
        observations=observations,
        actions=actions,
        rewards=rewards,
        terminations=ends if terminated else none,
        truncations=none if terminated else ends,
        infos=infos,
    )


def import_minari(
    dataset: Any,
    frame_key: str | None = None,
    buffer_class: type[RecordBuffer] | None = None,
    info_features: Sequence[str] | None = None,
    progress: bool = False,
    **options: Any,
) -> RecordBuffer:
    """
    Import a Minari dataset as a recording. If it was exported from a recording, that recording comes back unchanged.

    :param dataset: A ``minari.MinariDataset``, or the id of a local one
    :param frame_key: Which entry of Dict observations is the frame; the others become features (their values after the last
        action are dropped)
    :param buffer_class: What to import into; ``CompressedRecordBuffer`` by default
    :param info_features: Which ``infos`` become features; by default all numbers, and arrays of numbers, that the first
        episode has
    :param progress: Whether to show a progress bar (on a terminal)
    :param options: Options of the class, for example ``buffer_size`` or ``compression_method``
    :return: The recording
    """
    dataset, notes = load_minari(dataset)
    unfinished, without_final = set(notes.get("unfinished", ())), set(notes.get("without_final_frame", ()))
    recording: RecordBuffer | None = None
    total = dataset.total_episodes
    for place, data in enumerate(with_progress(dataset.iterate_episodes(), total, "importing", "episode", progress)):
        steps = len(data.rewards)
        frames, features = _observations(data.observations, frame_key)
        found = _infos(data.infos or {}, steps) if info_features is None else _named_infos(data, info_features)
        features |= {name: values for name, values in found.items() if recording is None or name in recording.feature_specs}
        if recording is None:
            recording = _new_recording(dataset, notes, frames, data.actions, features, buffer_class, frame_key, options)
            recording._episodes_gone, recording._is_cut = notes.get("first_episode", 0), notes.get("is_cut", False)
        missing = recording.feature_specs.keys() - features.keys()
        if missing:
            raise ValueError(
                f"episode {place} has no {', '.join(map(repr, sorted(missing)))}, which the first one has; name what all of "
                "them have with info_features"
            )
        final = None if place in without_final else frames[steps]
        last = steps - 1
        for step in range(steps):
            is_last = step == last and place not in unfinished
            terminated, truncated = bool(data.terminations[step]), bool(data.truncations[step])
            done = is_last and (terminated or truncated)
            recording.add(
                frames[step],
                data.rewards[step],
                data.actions[step],
                {name: values[step] for name, values in features.items()},
                done,
                truncated=done and not terminated,
                final_frame=final if done else None,
            )
        if not (notes.get("is_open", False) and place == total - 1):
            recording.end_episode(final)
    if recording is None:
        raise ValueError(f"the dataset {dataset.spec.dataset_id!r} has no episodes")
    return recording


def load_minari(dataset: Any) -> tuple[Any, dict[str, Any]]:
    """
    Open a Minari dataset.

    :param dataset: A ``minari.MinariDataset``, or the id of a local one
    :return: The dataset, and what ``export_minari`` has noted about it, if it has made it
    """
    minari = need("minari", "minari", "a Minari dataset")
    need("h5py", "minari", "a Minari dataset")
    if isinstance(dataset, str):
        if not _place_of(dataset).exists():
            raise FileNotFoundError(
                f"there is no Minari dataset {dataset!r} here, in {_place_of(dataset)}; `minari download {dataset}` fetches it"
            )
        dataset = minari.load_dataset(dataset)
    notes = dataset.storage.metadata.get(_OURS, {})
    if not _are_notes(notes):
        raise RecordingError(f"what the dataset says under {_OURS!r} about its recording is damaged")
    return dataset, notes


def _are_notes(notes: Any) -> bool:
    def is_count(value: Any) -> bool:
        return type(value) is int and 0 <= value < 1 << 48

    return (
        isinstance(notes, dict)
        and all(isinstance(notes.get(key, []), list) for key in ("unfinished", "without_final_frame"))
        and all(is_count(place) for key in ("unfinished", "without_final_frame") for place in notes.get(key, []))
        and all(isinstance(notes.get(key, False), bool) for key in ("is_open", "is_cut"))
        and is_count(notes.get("first_episode", 0))
        and isinstance(notes.get("metadata", {}), dict)
    )


def _observations(observations: Any, frame_key: str | None) -> tuple[npt.NDArray[Any], dict[str, Any]]:
    if isinstance(observations, dict):
        if frame_key not in observations:
            raise ValueError(
                f"frame_key is {frame_key!r}; it must say which entry of the observations is the frame: "
                f"{', '.join(map(repr, observations))}"
            )
        rest = {key: values for key, values in observations.items() if key != frame_key}
        nested = [key for key, values in rest.items() if not isinstance(values, np.ndarray)]
        if nested:
            raise TypeError(f"the entry {nested[0]!r} of the observations is not an array and cannot be recorded")
        return observations[frame_key], rest
    if not isinstance(observations, np.ndarray):
        raise TypeError(
            f"observations of type {type(observations).__name__} cannot be recorded, only arrays and dicts of arrays"
        )
    return observations, {}


def _infos(infos: dict[str, Any], steps: int) -> dict[str, npt.NDArray[Any]]:
    """Those of numbers, one a step, with or without one for the reset."""
    return {
        name: values
        for name, values in infos.items()
        if isinstance(values, np.ndarray) and values.dtype.kind in "biufc" and values.shape[:1] in ((steps,), (steps + 1,))
    }


def _named_infos(data: Any, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    found = _infos(data.infos or {}, len(data.rewards))
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"infos has no numbers called {missing[0]!r}; it has: {', '.join(map(repr, found)) or 'none'}")
    return {name: found[name] for name in names}


def _new_recording(
    dataset: Any,
    notes: dict[str, Any],
    frames: npt.NDArray[Any],
    actions: Any,
    features: dict[str, npt.NDArray[Any]],
    buffer_class: type[RecordBuffer] | None,
    frame_key: str | None,
    options: dict[str, Any],
) -> RecordBuffer:
    if not isinstance(actions, np.ndarray):
        raise TypeError(f"actions of type {type(actions).__name__} cannot be recorded, only arrays")
    metadata = notes.get("metadata")
    if metadata is None:
        seen = dataset.observation_space
        seen = seen[frame_key] if isinstance(seen, spaces.Dict) and frame_key is not None else seen
        said = {
            "env_id": dataset.env_spec.id if dataset.env_spec is not None else None,
            "frames": "observation",
            "action_space": describe_space(dataset.action_space),
            "frame_space": describe_space(seen),
        }
        metadata = {key: value for key, value in said.items() if value is not None}
    arguments: dict[str, Any] = {
        "buffer_size": None,
        "frame_shape": frames.shape[1:],
        "frame_dtype": frames.dtype,
        "action_shape": actions.shape[1:],
        "action_dtype": actions.dtype,
        "features": {name: (values.shape[1:], values.dtype) for name, values in features.items()},
        "metadata": metadata,
    }
    return (buffer_class or CompressedRecordBuffer)(**{**arguments, **options})
