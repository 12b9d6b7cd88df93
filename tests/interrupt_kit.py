"""
Things that happen between two instructions of a buffer: a signal handler that runs, or Ctrl-C.

A trace stands for the signal, because it can be placed: it runs between any two bytecodes of the package or of SB3's
buffers, which is just where Python runs signal handlers.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import stable_baselines3

import sb3_extra_buffers

PLACES = tuple(str(Path(module.__file__ or "").parent) for module in (sb3_extra_buffers, stable_baselines3))


class Cut(BaseException):
    """What Ctrl-C is."""


def cut() -> None:
    raise Cut


def between(call: Callable[[], Any], at: int, action: Callable[[], Any]) -> int:
    """
    Make a call, and do something between two of its instructions.

    :param call: What to call
    :param at: After so many instructions; beyond the last one nothing happens
    :param action: What to do there; what it raises is raised there
    :return: How many instructions there were, up to where it was left
    """
    passed = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal passed
        if not frame.f_code.co_filename.startswith(PLACES):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            passed += 1
            if passed == at + 1:
                action()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return passed


def is_cut(call: Callable[[], Any], at: int) -> bool:
    """
    Make a call that is interrupted.

    :param call: What to call
    :param at: After so many instructions
    :return: Whether it was; not so if it had fewer
    """
    try:
        between(call, at, cut)
    except Cut:
        return True
    return False
