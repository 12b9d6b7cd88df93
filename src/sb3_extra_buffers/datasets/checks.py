"""Whether transitions of one place can go to another."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces


def same_form(one: spaces.Space[Any], other: spaces.Space[Any]) -> bool:
    """
    Find out whether observations look the same; what bounds they keep to is of no account.

    :param one: A space
    :param other: Another one
    :return: Whether their elements have the same keys, shapes and types
    """
    if isinstance(one, spaces.Dict) and isinstance(other, spaces.Dict):
        return one.spaces.keys() == other.spaces.keys() and all(same_form(one[key], other[key]) for key in one.spaces)
    return type(one) is type(other) and one.shape == other.shape and one.dtype == other.dtype


def check_spaces(dataset: Any, buffer: Any) -> None:
    """
    Refuse a data set whose transitions a buffer does not take.

    :param dataset: The data set
    :param buffer: The buffer
    """
    if not same_form(dataset.observation_space, buffer.observation_space):
        raise ValueError(
            f"{dataset.path} holds observations of {dataset.observation_space}, but this {type(buffer).__name__} takes "
            f"{buffer.observation_space}: they must have the same keys, shapes and types. SB3 puts the channels of "
            "images first; convert() does so, too"
        )
    if dataset.action_space != buffer.action_space:
        raise ValueError(
            f"{dataset.path} holds actions of {dataset.action_space}, but this {type(buffer).__name__} takes "
            f"{buffer.action_space}; replay buffers hold actions scaled by the bounds of their space, so it has to be the same"
        )
