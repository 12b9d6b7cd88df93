"""``sb3-extra-buffers bench``: compression methods side by side, on any environment or recording."""

from sb3_extra_buffers.cli.bench.command import add_command

__all__ = ["add_command"]
