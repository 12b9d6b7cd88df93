"""Work for another thread: who lets go of what it gave."""

from __future__ import annotations

import threading
import weakref

import pytest

from sb3_extra_buffers.storage.jobs import Job


class Thing:
    """Something that can be referred to weakly."""


@pytest.mark.parametrize("asked_for", [True, False])
def test_a_job_does_not_keep_its_result(asked_for: bool) -> None:
    """A thread that still holds the job must not be the one that frees a tensor, when the process may be ending."""
    made: list[weakref.ref[Thing]] = []

    def work() -> Thing:
        thing = Thing()
        made.append(weakref.ref(thing))
        return thing

    job = Job(work)
    thread = threading.Thread(target=job.run)
    thread.start()
    thread.join()
    assert made[0]() is not None
    if asked_for:
        assert job.result() is not None
    else:
        job.settle()
    assert made[0]() is None
