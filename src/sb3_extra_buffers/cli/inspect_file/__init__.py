"""``sb3-extra-buffers inspect``: what is in a file, without running code from it."""

from sb3_extra_buffers.cli.inspect_file.command import add_command

__all__ = ["add_command"]
