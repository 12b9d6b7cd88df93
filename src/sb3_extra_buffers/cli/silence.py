"""Libraries that talk for themselves would tear a progress bar apart."""

from __future__ import annotations

import logging
import warnings


def hush() -> None:
    """Let only errors through, in this process."""
    import gymnasium as gym

    warnings.simplefilter("ignore")
    gym.logger.min_level = gym.logger.ERROR
    logging.getLogger("sb3_extra_buffers").setLevel(logging.ERROR)
    try:
        import ale_py
    except ImportError:
        return
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
