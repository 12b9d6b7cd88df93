"""Errors of the distributed layer."""

from __future__ import annotations

from sb3_extra_buffers.storage import StorageError


class BlockError(StorageError):
    """A message is not a block of this run, or is damaged; nothing of it was added."""


class ShardLostError(RuntimeError):
    """
    A shard does not answer any more.

    :param shard: Its number
    :param why: What is known
    """

    def __init__(self, shard: int, why: str) -> None:
        super().__init__(f"shard {shard} is lost: {why}")
        self.shard = shard

    def __reduce__(self) -> tuple[type[ShardLostError], tuple[int, str]]:
        return ShardLostError, (self.shard, self.args[0].partition(": ")[2])


class MissingError(TimeoutError):
    """Somebody did not answer in time; the message names who."""
