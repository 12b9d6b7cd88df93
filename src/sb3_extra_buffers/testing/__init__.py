"""
Checks that anybody can run over a codec or a buffer of their own; ours run through the same ones.

Plain functions that raise ``AssertionError``: call them from a test of whatever framework.
"""

from sb3_extra_buffers.testing.buffers import check_replay_buffer, check_rollout_buffer
from sb3_extra_buffers.testing.codecs import check_codec
from sb3_extra_buffers.testing.compare import assert_same

__all__ = ["assert_same", "check_codec", "check_replay_buffer", "check_rollout_buffer"]
