"""Environments of which everything follows from numbers: who has played what, and when."""

from __future__ import annotations

from typing import Any

import numpy as np

from sb3_extra_buffers.distributed.blocks import Block, BlockBuilder, Field, Schema

RUN = b"a run of a test."
SIDE, DEPTH, EPISODE = 12, 3, 7
VECTOR = Field("vector", (3,), "<f4", False)
IMAGE = Field("image", (DEPTH, SIDE, SIDE), "|u1", True)
LAKE = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE), dtype=np.uint8)


def make_schema(n_envs: int = 2, block_steps: int = 16, is_dict: bool = True, method: str = "delta") -> Schema:
    """Observations are an image and a vector, or an image alone; the action is a number that does not repeat for long."""
    fields = (IMAGE, VECTOR) if is_dict else (Field(None, IMAGE.shape, IMAGE.dtype, True),)
    return Schema(fields, (1,), "<i8", "<u4", n_envs, block_steps, method, "gzip/1")


def stamp(collector: int, incarnation: int, env: int, step: int) -> int:
    """One number for a transition."""
    return ((collector * 4 + incarnation) * 4 + env) << 16 | step


def frame(who: int, step: int) -> np.ndarray:
    picture = LAKE.copy()
    picture[:, step % SIDE] = step % 251
    picture[0, :8] = np.frombuffer(np.array([who, step + 8], "<u4").tobytes(), np.uint8)
    return picture


def image(collector: int, incarnation: int, env: int, step: int) -> np.ndarray:
    """A frame stack; an episode begins with its first frame repeated."""
    who, first = stamp(collector, incarnation, env, 0), step - step % EPISODE
    return np.stack([frame(who, max(step - back, first)) for back in reversed(range(DEPTH))])


def final_image(collector: int, incarnation: int, env: int, step: int) -> np.ndarray:
    """What follows a step: the next image or, at the end of an episode, one that is nowhere else."""
    if step % EPISODE != EPISODE - 1:
        return image(collector, incarnation, env, step + 1)
    who = stamp(collector, incarnation, env, 0)
    return np.stack([frame(who, step - 1), frame(who, step), frame(who + 1, step) ^ 255])


def is_timeout(step: int) -> bool:
    return step % (2 * EPISODE) == EPISODE - 1


class Player:
    """Plays the environments of one collector."""

    def __init__(self, schema: Schema, collector: int = 0, incarnation: int = 0) -> None:
        self.schema, self.who = schema, (collector, incarnation)
        self.builder = BlockBuilder(schema, RUN, collector, incarnation)

    def _observe(self, look: Any, step: int) -> Any:
        envs = range(self.schema.n_envs)
        images = np.stack([look(*self.who, env, step) for env in envs])
        if self.schema.fields[0].key is None:
            return images
        vectors = np.stack([[step, env, self.who[0]] for env in envs]).astype(np.float32)
        return {"image": images, "vector": vectors + (look is final_image)}

    def step(self) -> None:
        step, n_envs = self.builder.steps, self.schema.n_envs
        actions = np.array([[stamp(*self.who, env, step)] for env in range(n_envs)])
        done = np.full(n_envs, step % EPISODE == EPISODE - 1)
        infos = [
            {"TimeLimit.truncated": is_timeout(step), "episode": {"r": float(step), "l": EPISODE, "t": 0.5}}
            if done[env]
            else {}
            for env in range(n_envs)
        ]
        both = self._observe(image, step), self._observe(final_image, step)
        self.builder.add(*both, actions, actions[:, 0] % 1000, done, infos, policy_version=step)

    def block(self, settled: int = 0) -> Block:
        """Play until a block is complete."""
        while not self.builder.is_full:
            self.step()
        return self.builder.seal(settled)


def check_values(schema: Schema, values: list[Any], n_steps: int = 1, gamma: float = 0.99) -> list[int]:
    """Every transition was played, and everything in it belongs together; returns their numbers."""
    actions, rewards, dones, discounts = values[-4:]
    stamps = actions[:, 0].astype(np.int64).tolist()
    for place, number in enumerate(stamps):
        who, step = number >> 16, number & 0xFFFF
        collector, incarnation, env = who >> 4, who >> 2 & 3, who & 3
        last_of_block = step - step % schema.block_steps + schema.block_steps - 1
        last = step
        while last < step + n_steps - 1 and last % EPISODE != EPISODE - 1 and last != last_of_block:
            last += 1
        assert np.array_equal(values[0][place], image(collector, incarnation, env, step)), "observation"
        assert np.array_equal(values[1][place], final_image(collector, incarnation, env, last)), "next observation"
        if schema.fields[0].key is not None:
            assert values[2][place].tolist() == [step, env, collector], "vector"
            assert values[3][place].tolist() == [last + 1, env + 1, collector + 1], "next vector"
        steps = range(step, last + 1)
        played = [np.float32(stamp(collector, incarnation, env, one) % 1000) * gamma ** (one - step) for one in steps]
        assert np.isclose(rewards[place, 0], sum(played), rtol=1e-5), "rewards"
        assert dones[place, 0] == (last % EPISODE == EPISODE - 1 and not is_timeout(last)), "done"
        assert np.isclose(discounts[place, 0], gamma ** len(steps)), "discount"
    return stamps


def stamps_of_block(schema: Schema, name: tuple[int, int, int]) -> set[int]:
    collector, incarnation, sequence = name
    steps = range(sequence * schema.block_steps, (sequence + 1) * schema.block_steps)
    return {stamp(collector, incarnation, env, step) for env in range(schema.n_envs) for step in steps}
