"""The command line, ``sb3-extra-buffers``."""

from sb3_extra_buffers.cli.app import main

__all__ = ["main"]
