"""What the tests of GPU buffers share; see ``gpu_kit``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch as th


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Sums over several threads need not come out the same twice."""
    before = th.get_num_threads()
    th.set_num_threads(1)
    yield
    th.set_num_threads(before)
