"""Files that appear whole or not at all."""

from sb3_extra_buffers._support import atomic_write as written_beside

__all__ = ["written_beside"]
