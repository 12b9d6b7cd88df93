"""``init_jit`` under its documented import path; the code is in ``sb3_extra_buffers.codecs``."""

from sb3_extra_buffers.codecs import init_jit

__all__ = ["init_jit"]
