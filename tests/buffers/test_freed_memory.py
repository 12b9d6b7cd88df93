"""Rollout buffers have the C library keep what torch frees; seen in what stays resident."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sb3_extra_buffers.compressed import keep_freed_memory

PROBE = """
import numpy as np
from gymnasium import spaces
from sb3_extra_buffers.compressed import CompressedReplayBuffer, CompressedRolloutBuffer

def resident():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

def stays():
    "Kilobytes that are still there after memory was taken and freed, three times."
    before = resident()
    for _ in range(3):
        blocks = [bytearray(8 << 20) for _ in range(16)]
        for block in blocks:
            block[::4096] = b"x" * len(range(0, len(block), 4096))
        del blocks, block
    return resident() - before

image, vector = spaces.Box(0, 255, (1, 36, 36), np.uint8), spaces.Box(-1, 1, (4,), np.float32)
action = spaces.Discrete(2)
print(stays())
CompressedReplayBuffer(8, image, action, device="cpu")
CompressedRolloutBuffer(8, vector, action, device="cpu")
CompressedRolloutBuffer(8, image, action, device="meta")
CompressedRolloutBuffer(8, image, action, device="cpu", keep_freed_memory=False)
print(stays())
CompressedRolloutBuffer(8, image, action, device="cpu")
print(stays())
"""
KILOBYTES = 16 * (8 << 10)


def is_glibc() -> bool:
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError):
        return False


def without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}


@pytest.mark.memory
@pytest.mark.skipif(not (is_glibc() and Path("/proc/self/status").exists()), reason="needs glibc and /proc")
def test_freed_memory_goes_back_unless_a_rollout_of_images_was_made() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, check=False, env=without_settings(), timeout=600
    )
    assert done.returncode == 0, done.stderr
    at_first, with_others, kept = map(int, done.stdout.split())
    assert at_first < KILOBYTES // 4, "this machine keeps freed memory anyway"
    assert with_others < KILOBYTES // 4
    assert kept > KILOBYTES * 3 // 4


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
