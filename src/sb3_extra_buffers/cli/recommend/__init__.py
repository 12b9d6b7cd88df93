"""``sb3-extra-buffers recommend``: the method that suits an environment, and the lines to paste."""

from sb3_extra_buffers.cli.recommend.command import add_command

__all__ = ["add_command"]
