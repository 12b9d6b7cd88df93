"""Libraries that only some of the exports need."""

from sb3_extra_buffers._support import need, with_progress

__all__ = ["need", "with_progress"]
