"""Rollout buffers have the C library keep what torch frees; counted in pages that the system hands out."""

import os
import subprocess
import sys

import pytest

from sb3_extra_buffers.compressed import keep_freed_memory

PROBE = """
import resource
import numpy as np
from gymnasium import spaces
from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer

def faults():
    "Pages that are fetched when memory is taken and freed for the third time."
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [bytearray(8 << 20) for _ in range(16)]
        for block in blocks:
            block[::4096] = b"x" * len(range(0, len(block), 4096))
        del blocks, block
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

image, vector = spaces.Box(0, 255, (1, 36, 36), np.uint8), spaces.Box(-1, 1, (4,), np.float32)
action = spaces.Discrete(2)
print(faults())
CompressedReplayBuffer(8, image, action, device="cpu")
CompressedRolloutBuffer(8, vector, action, device="cpu")
CompressedRolloutBuffer(8, image, action, device="meta")
CompressedRolloutBuffer(8, image, action, device="cpu", keep_freed_memory=False)
print(faults())
CompressedRolloutBuffer(8, image, action, device="cpu")
print(faults())
"""
PAGES = 16 * (8 << 20) // 4096


def is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError):
        return False


def without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}


@pytest.mark.skipif(not is_glibc(), reason="another C library")
def test_freed_memory_is_fetched_again_unless_a_rollout_of_images_was_made() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=False, env=without_settings(), timeout=300
    )
    assert done.returncode == 0, done.stderr
    at_first, with_others, kept = map(int, done.stdout.split())
    assert at_first > PAGES // 2, "this machine keeps freed memory anyway"
    assert with_others > PAGES // 2
    assert kept < PAGES // 50


@pytest.mark.parametrize(
    ("name", "value"), [("MALLOC_TRIM_THRESHOLD_", "131072"), ("GLIBC_TUNABLES", "glibc.malloc.trim_threshold=131072")]
)
def test_who_has_decided_is_not_overruled(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    assert not keep_freed_memory()


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ.keys() - without_settings().keys():
        monkeypatch.delenv(name)

    def unknown(name: str) -> str:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(os, "confstr", unknown, raising=False)
    assert not keep_freed_memory()
