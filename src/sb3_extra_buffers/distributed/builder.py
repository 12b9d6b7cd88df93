"""What a collector has played and not sent yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from sb3_extra_buffers.distributed.block import Block, Episode, Name
from sb3_extra_buffers.distributed.schema import Array, Schema


class BlockBuilder:
    """
    Takes steps of all environments of a collector, and makes blocks of them.

    :param schema: What blocks look like
    :param run: 16 bytes that are the run's own
    :param collector: Number of the collector
    :param incarnation: How often it has been replaced
    """

    def __init__(self, schema: Schema, run: bytes, collector: int, incarnation: int) -> None:
        self.schema, self.run = schema, run
        self.collector, self.incarnation = collector, incarnation
        self.sequence = 0
        self.steps = 0
        """Steps of all blocks so far, the open one included."""
        self._table = schema.make_table(schema.block_steps)
        self._episodes: list[Episode] = []
        self._rows = 0
        self._version = 0

    @property
    def is_full(self) -> bool:
        """Whether the block is complete, and has to be sealed before the next step."""
        return self._rows == self.schema.block_steps

    def add(
        self, obs: Any, next_obs: Any, actions: Any, rewards: Any, dones: Any, infos: Any, policy_version: int = 0
    ) -> None:
        """
        Add a step, as ``ReplayBuffer.add`` takes it.

        :param obs: Observations, one an environment
        :param next_obs: What followed; at the end of an episode its last observation
        :param actions: Actions as they are stored
        :param rewards: Rewards
        :param dones: Whether episodes ended
        :param infos: What else environments told
        :param policy_version: The policy that has acted
        """
        if self.is_full:
            raise ValueError("the block is complete: seal it before the next step")
        schema, lanes = self.schema, self.schema.lanes
        stored = np.asarray(actions).reshape(lanes, *schema.action_shape)
        narrow = stored.astype(schema.stored_action_dtype)
        if not np.array_equal(narrow, stored.astype(schema.action_dtype), equal_nan=stored.dtype.kind == "f"):
            raise ValueError(f"actions {stored.tolist()} do not fit {schema.stored_action_dtype}, in which they are sent")
        done = np.asarray(dones).reshape(lanes).astype(np.bool_)
        timeouts = np.array([bool(info.get("TimeLimit.truncated", False)) for info in infos])
        values: list[Any] = []
        for field in schema.fields:
            for view in (obs, next_obs):
                part = view if field.key is None else view[field.key]
                values.append(np.asarray(part).reshape(lanes, *field.shape))
        rewarded = np.asarray(rewards, dtype=np.float32).reshape(lanes)
        self._table.table.append((*values, narrow, rewarded, done, timeouts))
        self._version = policy_version if self._rows == 0 else min(self._version, policy_version)
        self._episodes += [
            _episode(lane, self._rows, info) for lane, info in enumerate(infos) if done[lane] and "episode" in info
        ]
        self._rows += 1
        self.steps += 1

    def seal(self, settled: int = 0) -> bytes:
        """
        Make a message of a complete block, and begin the next one.

        :param settled: Blocks before this one have been acknowledged
        :return: The message
        """
        if not self.is_full:
            raise ValueError(f"the block has {self._rows} of {self.schema.block_steps} steps")
        table, name = self._table, Name(self.collector, self.incarnation, self.sequence)
        columns: list[Array] = [table.arrays[column.name] for column in self.schema.columns]
        rest = columns, table.chunks(), table.splits(), tuple(self._episodes)
        first = self.steps - self.schema.block_steps
        message = Block(self.schema, self.run, name, settled, self._version, first, *rest).encode()
        table.table.clear()
        self._episodes, self._rows = [], 0
        self.sequence += 1
        return message


def _episode(lane: int, step: int, info: Mapping[str, Any]) -> Episode:
    told = info["episode"]
    success = info.get("is_success")
    return Episode(
        lane, step, float(told["r"]), int(told["l"]), float(told.get("t", 0.0)), -1 if success is None else int(bool(success))
    )
