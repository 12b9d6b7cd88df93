"""``sb3-extra-buffers demo``: SB3's replay buffer and ours, side by side on a real game."""

from sb3_extra_buffers.cli.demo.command import add_command

__all__ = ["add_command"]
