"""Ray, which only a fleet needs."""

from __future__ import annotations

import importlib
from typing import Any

from sb3_extra_buffers.codecs._optional import install_hint


def need_ray() -> Any:
    """
    Import Ray, or say what to install.

    :return: The module
    """
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ImportError(f"a fleet of collectors and shards needs ray: {install_hint('ray')}") from error
