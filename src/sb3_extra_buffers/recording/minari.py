"""Recordings and replay buffers to and from Minari datasets."""

from __future__ import annotations

import contextlib
import inspect
import itertools
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
from sb3_extra_buffers._spaces import describe_space, unscale_actions
from sb3_extra_buffers._support import need, with_progress
from sb3_extra_buffers.recording.buffers import CompressedRecordBuffer, RecordBuffer, add_episode
from sb3_extra_buffers.recording.records import Episode, RecordingError, spaces_of
from sb3_extra_buffers.recording.rows import BufferRows, OfflineEpisode, Rows, find_episodes

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
    if isinstance(recording, ReplayBuffer) and getattr(recording, "optimize_memory_usage", False):
        raise ValueError(
            "a buffer of SB3 with optimize_memory_usage has lost what was seen at the end of each episode; "
            "CompressedReplayBuffer has not, and takes less memory"
        )
    if not isinstance(recording, (RecordBuffer, ReplayBuffer)):
        raise TypeError(f"expected a recording or a replay buffer, not {type(recording).__name__}")
    source = recording if isinstance(recording, RecordBuffer) else BufferRows(recording)
    return export_rows(source, dataset_id, overwrite, progress, options)


def export_rows(source: RecordBuffer | Rows, dataset_id: str, overwrite: bool, progress: bool, options: dict[str, Any]) -> Any:
    """Export a recording, or transitions, to a Minari dataset, see ``export_minari``."""
    minari = _minari()
    episodes: Sequence[Episode | OfflineEpisode]
    if isinstance(source, RecordBuffer):
        _check_recording(source)
        observation_space, action_space = spaces_of(source)
        episodes = list(source.episodes())
    else:
        if not source.used:
            raise ValueError("the replay buffer is empty")
        observation_space, action_space = source.observation_space, source.action_space
        episodes = list(itertools.chain.from_iterable(find_episodes(source, env) for env in range(source.n_envs)))
    place = _new_place(dataset_id, overwrite)
    arguments = {
        "observation_space": observation_space,
        "action_space": action_space,
        "description": f"Exported by sb3-extra-buffers {__version__}",
        **_without_jpeg(minari),
        **options,
    }
    made = (_as_minari(episode, action_space) for episode in episodes)
    shown = with_progress(made, len(episodes), f"exporting {dataset_id}", "episode", progress)
    with _whole_or_not_at_all(place), warnings.catch_warnings():
        # Minari warns of every option that was left out. They are in its documentation.
        warnings.filterwarnings("ignore", message=".*(is set to None|env_spec is None).*", category=UserWarning)
        dataset = minari.create_dataset_from_buffers(dataset_id, shown, **arguments)
        dataset.storage.update_metadata({_OURS: _notes(source, episodes)})
    return dataset


def _minari() -> Any:
    need("h5py", "minari", "a Minari dataset")
    return need("minari", "minari", "a Minari dataset")


def _check_recording(recording: RecordBuffer) -> None:
    if recording.frame_shape is None:
        raise ValueError("the recording has no frames, but a Minari dataset needs observations")
    if len(recording) == 0:
        raise ValueError("the recording is empty")
    bad = [name for name in recording.feature_specs if "/" in name]
    if bad:
        raise ValueError(f"the feature {bad[0]!r} has a slash in its name, which Minari takes for a folder")


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
    """A folder that is written in the context appears only if all goes well; otherwise the old one is put back."""
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
        with contextlib.suppress(OSError):  # another process may have put something there
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


def _as_minari(episode: Episode | OfflineEpisode, action_space: spaces.Space[Any]) -> Any:
    infos: dict[str, Any] = {}
    if isinstance(episode, OfflineEpisode):
        observations, actions = episode.observations, unscale_actions(action_space, episode.actions)
    else:
        frames, final, actions = episode.frames, episode.final_frame, episode.actions
        assert frames is not None
        observations = np.concatenate([frames, frames[-1:] if final is None else final[None]])
        infos = {name: np.concatenate([values, values[-1:]]) for name, values in episode.features.items()}
    ends = np.arange(len(episode)) == len(episode) - 1
    none = np.zeros(len(episode), np.bool_)
    terminated = episode.terminated
    return need("minari.data_collector", "minari", "a Minari dataset").EpisodeBuffer(
        observations=observations,
        actions=actions,
        rewards=episode.rewards,
        terminations=ends if terminated else none,
        truncations=none if terminated else ends,
        infos=infos,
    )


def _notes(source: RecordBuffer | Rows, episodes: Sequence[Episode | OfflineEpisode]) -> dict[str, Any]:
    over = [episode.terminated or episode.truncated for episode in episodes]
    notes: dict[str, Any] = {
        "version": __version__,
        "unfinished": [place for place, is_over in enumerate(over) if not is_over],
    }
    if isinstance(source, RecordBuffer):
        without = [place for place, episode in enumerate(source.episodes()) if episode.final_frame is None]
        notes |= {"metadata": source.metadata, "without_final_frame": without, "is_open": source.is_open}
        notes |= {"first_episode": source.episode(0).number, "is_cut": source.episode(0).is_cut}
    return notes


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
        found = _infos(data, info_features)
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
        terminated, truncated = bool(data.terminations[-1]), bool(data.truncations[-1])
        add_episode(
            recording,
            iter(frames),
            data.actions,
            data.rewards,
            features,
            done=(terminated or truncated) and place not in unfinished,
            truncated=not terminated,
            final_frame=None if place in without_final else frames[steps],
            is_open=notes.get("is_open", False) and place == total - 1,
        )
    if recording is None:
        raise ValueError(f"the dataset {dataset.spec.dataset_id!r} has no episodes")
    return recording


def load_minari(dataset: Any) -> tuple[Any, dict[str, Any]]:
    """Open a Minari dataset, given by itself or by its id; also returns what ``export_minari`` has noted about it."""
    minari = _minari()
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
    """Check notes: a dataset may come from a stranger."""

    def are_counts(values: Any) -> bool:
        return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 48 for value in values)

    return (
        isinstance(notes, dict)
        and all(are_counts(notes.get(name, [])) for name in ("unfinished", "without_final_frame"))
        and are_counts([notes.get("first_episode", 0)])
        and all(isinstance(notes.get(name, False), bool) for name in ("is_open", "is_cut"))
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


def _infos(data: Any, names: Sequence[str] | None) -> dict[str, npt.NDArray[Any]]:
    """Infos that are numbers, one a step, with or without one for the reset: those of these names, or all."""
    steps = len(data.rewards)
    found = {
        name: values
        for name, values in (data.infos or {}).items()
        if isinstance(values, np.ndarray) and values.dtype.kind in "biufc" and values.shape[:1] in ((steps,), (steps + 1,))
    }
    missing = [name for name in names or () if name not in found]
    if missing:
        raise ValueError(f"infos has no numbers called {missing[0]!r}; it has: {', '.join(map(repr, found)) or 'none'}")
    return found if names is None else {name: found[name] for name in names}


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
        known = {
            "env_id": dataset.env_spec.id if dataset.env_spec is not None else None,
            "frames": "observation",
            "action_space": describe_space(dataset.action_space),
            "frame_space": describe_space(seen),
        }
        metadata = {key: value for key, value in known.items() if value is not None}
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
