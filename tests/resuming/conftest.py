"""Networks this small are quicker on one core, and wait for nobody else there."""

from collections.abc import Iterator

import pytest
import torch as th


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = th.get_num_threads()
    th.set_num_threads(1)
    yield
    th.set_num_threads(before)
