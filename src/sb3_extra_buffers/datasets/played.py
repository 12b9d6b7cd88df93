"""Transitions from recordings and Minari datasets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.preprocessing import is_image_space, is_image_space_channels_first
from stable_baselines3.common.vec_env import VecTransposeImage

from sb3_extra_buffers._spaces import scale_actions
from sb3_extra_buffers._support import with_progress
from sb3_extra_buffers.compressed.files import Path
from sb3_extra_buffers.datasets.filling import new_buffer
from sb3_extra_buffers.recording import RecordBuffer, load_recording
from sb3_extra_buffers.recording.minari import load_minari
from sb3_extra_buffers.recording.records import spaces_of
from sb3_extra_buffers.recording.rows import map_parts


class _Step(NamedTuple):
    """A step of an environment."""

    obs: Any
    next_obs: Any
    action: Any
    reward: float
    done: bool
    timeout: bool


def replay_from_recording(
    recording: RecordBuffer | Path, *, channels_first: bool = True, progress: bool = False, **options: Any
) -> Any:
    """
    Make transitions of a recording with frames: an observation is a frame, the next one is the frame after it.

    Of the last step of an episode, the next observation is the final frame. Where that was not recorded, the last frame is
    repeated if the episode was over, as nothing follows from it then; else the step is left out.

    :param recording: The recording, or its file
    :param channels_first: Whether to put the channels of images first, as SB3's algorithms do
    :param progress: Whether to show a progress bar (on a terminal)
    :param options: Options of the buffer
    :return: A compressed replay buffer of one environment
    """
    if not isinstance(recording, RecordBuffer):
        recording = load_recording(recording)
    if recording.frame_shape is None:
        raise ValueError("the recording has no frames, so there are no observations")
    if len(recording) == 0:
        raise ValueError("the recording is empty")
    seen, done = spaces_of(recording)
    return _replay(_steps_of_recording(recording), len(recording), seen, done, channels_first, progress, options)


def _steps_of_recording(recording: RecordBuffer) -> Iterator[_Step]:
    for episode in recording.episodes():
        actions, rewards = episode.actions, episode.rewards
        frames = episode.iter_frames()
        frame = next(frames)
        for step in range(len(episode)):
            is_last = step == len(episode) - 1
            following = episode.final_frame if is_last else next(frames)
            if following is None and not episode.terminated:
                continue
            ends = is_last and bool(episode.done)
            timeout = ends and bool(episode.truncated)
            following = frame if following is None else following
            yield _Step(frame, following, actions[step], float(rewards[step]), ends, timeout)
            frame = following


def replay_from_minari(dataset: Any, *, channels_first: bool = True, progress: bool = False, **options: Any) -> Any:
    """
    Make transitions of a Minari dataset, somebody else's or one of ``export_minari``.

    :param dataset: A ``minari.MinariDataset``, or the id of a local one
    :param channels_first: Whether to put the channels of images first, as SB3's algorithms do
    :param progress: Whether to show a progress bar (on a terminal)
    :param options: Options of the buffer
    :return: A compressed replay buffer of one environment
    """
    dataset, notes = load_minari(dataset)
    steps = _steps_of_minari(dataset, set(notes.get("unfinished", ())))
    total, seen, done = int(dataset.total_steps), dataset.observation_space, dataset.action_space
    return _replay(steps, total, seen, done, channels_first, progress, options)


def _steps_of_minari(dataset: Any, unfinished: set[int]) -> Iterator[_Step]:
    for place, data in enumerate(dataset.iterate_episodes()):

        def at(step: int, observations: Any = data.observations) -> Any:
            return map_parts(lambda array: array[step], observations)

        last = len(data.rewards) - 1
        for step in range(len(data.rewards)):
            terminated, truncated = bool(data.terminations[step]), bool(data.truncations[step])
            done = (terminated or truncated) and not (step == last and place in unfinished)
            yield _Step(at(step), at(step + 1), data.actions[step], float(data.rewards[step]), done, done and not terminated)


def _replay(
    steps: Iterator[_Step],
    total: int,
    space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    channels_first: bool,
    progress: bool,
    options: Any,
) -> Any:
    turned = {key for key, part in _parts(space).items() if channels_first and _has_channels_last(part)}
    buffer = new_buffer(_turn_space(space, turned), action_space, total, 1, options)

    def as_row(obs: Any) -> Any:
        if isinstance(obs, dict):
            return {key: as_part(part, key) for key, part in obs.items()}
        return as_part(obs, None)

    def as_part(obs: Any, key: Any) -> Any:
        array = np.asarray(obs)[None]
        return VecTransposeImage.transpose_image(array) if key in turned else array

    for step in with_progress(steps, total, "reading", "step", progress):
        action = scale_actions(action_space, np.asarray(step.action))[None]
        infos = [{"TimeLimit.truncated": step.timeout}]
        rows = as_row(step.obs), as_row(step.next_obs)
        buffer.add(*rows, action, np.array([step.reward]), np.array([step.done]), infos)
    return buffer


def _parts(space: spaces.Space[Any]) -> dict[Any, spaces.Space[Any]]:
    return dict(space.spaces) if isinstance(space, spaces.Dict) else {None: space}


def _has_channels_last(space: spaces.Space[Any]) -> bool:
    if not isinstance(space, spaces.Box) or len(space.shape) != 3 or not is_image_space(space):
        return False
    return not is_image_space_channels_first(space)


def _turn_space(space: spaces.Space[Any], turned: set[Any]) -> spaces.Space[Any]:
    def turn(part: Any, key: Any) -> Any:
        if key not in turned:
            return part
        low, high = (np.moveaxis(bound, -1, 0) for bound in (part.low, part.high))
        return spaces.Box(low, high, dtype=part.dtype.type)

    parts = {key: turn(part, key) for key, part in _parts(space).items()}
    return parts[None] if None in parts else spaces.Dict(parts)
