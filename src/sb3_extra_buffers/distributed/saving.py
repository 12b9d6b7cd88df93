"""A checkpoint of a fleet: its shards, the model, and last the manifest."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from sb3_extra_buffers.distributed.crew import MOST_FAILURES, Died
from sb3_extra_buffers.distributed.errors import MissingError
from sb3_extra_buffers.distributed.manifest import save_manifest, save_model

if TYPE_CHECKING:
    from sb3_extra_buffers.distributed.fleet import Fleet
    from sb3_extra_buffers.distributed.shard_crew import ShardCrew


def save_fleet(fleet: Fleet, model: Any = None) -> None:
    """
    Save all shards, the model, and last a manifest with all clocks.

    :param fleet: The fleet
    :param model: The model; None for none
    """
    if fleet.checkpoint_dir is None or fleet.shards is None:
        raise ValueError("there is nowhere to save to: give the Fleet a checkpoint_dir, and a model a buffer of it")
    os.makedirs(fleet.checkpoint_dir, exist_ok=True)
    saved = _save_shards(fleet, fleet.shards)
    if model is not None:
        save_model(model, fleet.checkpoint_dir)
    settings = {
        "n_collectors": fleet.collectors.count,
        "envs_per_collector": fleet.collectors.lanes,
        "n_shards": fleet.n_shards,
        "block_steps": fleet.block_steps,
    }
    highest = max([fleet.incarnation, *fleet.collectors.incarnations])
    save_manifest(fleet.checkpoint_dir, fleet.run, highest, settings, saved, fleet.timesteps)


def _save_shards(fleet: Fleet, shards: ShardCrew) -> list[int]:
    """Save all of them; one that dies meanwhile is replaced, and all are saved again."""
    for _ in range(MOST_FAILURES + 1):
        try:
            return shards.save(fleet.shard_path)
        except Died as error:
            if not error.is_gone:
                raise RuntimeError(f"shard {error.number} could not be saved: {error.why}") from error
            fleet.replace_shard(error.number, error.why)
    raise MissingError(f"a checkpoint was begun {MOST_FAILURES + 1} times, and each time a shard was lost meanwhile")
