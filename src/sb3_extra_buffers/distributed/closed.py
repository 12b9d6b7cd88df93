"""What a model that was saved has for its fleet."""

from __future__ import annotations

from typing import Any


class ClosedFleet:
    """What a saved model has for its fleet: it can act, and needs another fleet to learn."""

    schema = None
    size = 0

    def start_shards(self, *args: Any) -> None:
        """There are none to start."""

    def sample(self, batch_size: int) -> Any:
        """Say what is missing."""
        raise RuntimeError(
            "this model was saved without its fleet; load it with replay_buffer_kwargs=dict(fleet=fleet) to go on"
        )
