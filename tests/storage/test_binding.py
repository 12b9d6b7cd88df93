"""What the compiled core takes from Python: no call crashes the interpreter, whatever it is given."""

from __future__ import annotations

import copy
import gc
import pickle
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar

import numpy as np
import pytest
from frames_kit import Watched, run_program

from sb3_extra_buffers.codecs.base import ByteArray
from sb3_extra_buffers.codecs.deflate import GzipCodec
from sb3_extra_buffers.storage import CompressedArray, StorageError, StoreLock
from sb3_extra_buffers.storage._core import READ_AHEAD, WRITE_AHEAD, FrameColumn, apply_patch, encode_patch
from sb3_extra_buffers.storage.layout import FrameLayout

HUGE = [2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - WRITE_AHEAD, 2**64 - 1, -1]


EVERY_MEMBER = """
import numpy as np
from sb3_extra_buffers.storage import _core

kinds = [kind for kind in vars(_core).values() if isinstance(kind, type) and kind.__module__ == _core.__name__]
assert {_core.FrameColumn, _core.Table, _core.PlainColumn, _core.Chunk, _core.Reading} <= set(kinds)
numbers = np.zeros(1, np.int64)
arguments = [(), (0,), (1,), (0, numbers), (0, numbers, numbers), (0, 0, numbers), (numbers, None, 0, numbers), (numbers,)]
for kind in kinds:
    try:
        made = kind.__new__(kind)
    except TypeError:
        continue
    for name in dir(kind):
        try:
            member = getattr(made, name)
        except Exception:
            continue
        for given in arguments if callable(member) else []:
            try:
                member(*given)
            except Exception:
                pass
print("alive")
"""


def test_what_new_makes_can_be_used_or_is_not_made() -> None:
    assert run_program(EVERY_MEMBER) == "alive"


def make_core(codec: Any, n_envs: int = 1, rows: int = 20, **changes: Any) -> FrameColumn:
    layout = FrameLayout.whole((4, 16), 1)
    options = {"frame_codec": codec, "group_codec": None, "references": False, "shift": 0, "lock": StoreLock(), **changes}
    return FrameColumn(rows, n_envs, 1, 16, layout, np.dtype(np.uint8), **options)


def read(core: FrameColumn, row: int) -> np.ndarray:
    out = np.empty((1, 4, 16), np.uint8)
    core.read(np.array([row]), np.zeros(1, np.int64), out)
    return out


def test_a_column_is_made_once_and_whole() -> None:
    core = make_core(GzipCodec())
    core.__init__()  # type: ignore[misc]
    assert (core.rows, core.n_envs, core.views) == (20, 1, 1)
    for attempt in (lambda: FrameColumn.__new__(FrameColumn), lambda: copy.copy(core), lambda: pickle.dumps(core)):  # type: ignore[call-arg]
        with pytest.raises(TypeError):
            attempt()


@pytest.mark.parametrize("number", [*HUGE, 0])
def test_sizes_at_the_edge(number: int) -> None:
    """Each is refused, or does nothing that it should not."""
    core = make_core(GzipCodec(), 2)
    obs = np.ones((2, 4, 16), np.uint8)
    core.write(0, obs)
    refused = (OverflowError, IndexError, ValueError, MemoryError, StorageError)
    calls = [
        lambda: core.write(number, obs),
        lambda: core.write(0, obs, number),
        lambda: core.write(0, obs[:1], envs=[number]),
        lambda: core.read([0], [0], np.empty((1, 4, 16), np.uint8), number),
        lambda: core.read([number], [0], np.empty((1, 4, 16), np.uint8)),
        lambda: core.read([0], [number], np.empty((1, 4, 16), np.uint8)),
        lambda: core.last_observation(number),
        lambda: core.set_patience(number),
        lambda: core.adopt(b"", number),
        lambda: make_core(GzipCodec(), 2**40 if number in (2**31, 2**32) else number),
        lambda: make_core(GzipCodec(), rows=number if number < 1 else max(number, 2**60)),  # not to take what can be had
        lambda: make_core(GzipCodec(), references=True, shift=number),
        lambda: core.set_layout(FrameLayout((4, number), 1, 0, 1)),
    ]
    for call in calls:
        with suppress(refused):
            call()
    if number:
        assert (read(core, 0) == 1).all()
    core.write(1, obs + np.uint8(1))
    assert (read(core, 1) == 2).all()


PATCHES_OF_ANY_SIZE = """
import numpy as np
from sb3_extra_buffers.storage._core import READ_AHEAD, WRITE_AHEAD, apply_patch

edges = [2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - WRITE_AHEAD, 2**64 - 1, -1, 0, 1, 8, 31, 32, 33]
for size in edges:
    for row in edges:
        for tokens in ([1, 0, 0], [3, 0, 253, 0, 130, 7], [2, 0, 200, 200], [255, 255]):
            patch = np.zeros(300 + READ_AHEAD, np.uint8)
            patch[: len(tokens)] = tokens
            memory = np.full(4096, 9, np.uint8)
            try:
                apply_patch(patch, memory[1024 : 1024 + 32 + WRITE_AHEAD], size, row)
            except (ValueError, OverflowError):
                pass
            assert (memory[:1024] == 9).all() and (memory[1024 + 32 + WRITE_AHEAD :] == 9).all()
print("alive")
"""


def test_patches_of_any_size() -> None:
    assert run_program(PATCHES_OF_ANY_SIZE) == "alive"


def test_a_frame_that_is_too_small_for_a_patch_is_refused() -> None:
    patch, frame = np.zeros(2 + READ_AHEAD, np.uint8), np.zeros(10 + WRITE_AHEAD, np.uint8)
    assert apply_patch(patch, frame, 10, 0) == 2
    for size in (11, 2**63, 2**64 - 1, 2**64 - WRITE_AHEAD):
        with pytest.raises(ValueError, match="not enough memory"):
            apply_patch(patch, frame, size, 0)
    with pytest.raises(ValueError, match="not enough memory"):
        apply_patch(patch, frame[: WRITE_AHEAD - 1], 0, 0)
    for where in ({"stop": 2**64 - 1}, {"pos": 2**64 - 1}, {"row": 2**64 - 1}, {"pos": 41, "stop": 40}):
        given = {"row": 0, "pos": 0, "stop": 40, **where}
        with pytest.raises(ValueError, match="do not fit"):
            encode_patch(frame[:8], frame[:8], out=np.zeros(40, np.uint8), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("rows", [2**56, 2**59])
def test_rows_that_are_not_written_take_no_memory(rows: int) -> None:
    array = CompressedArray((rows, 1, 8, 8), np.uint8, (8, 8))
    array[rows - 1] = np.full((1, 8, 8), 7, np.uint8)
    assert (array[rows - 1] == 7).all() and not array[5].any()
    assert array.memory_usage().total_bytes < 1 << 20


# -- what codecs are given ----------------------------------------------------------------------------------------------------


class Keeper(Watched):
    """A codec that keeps what it is given, and what that held."""

    def __init__(self) -> None:
        super().__init__(GzipCodec(), lambda _: None)
        self.kept: list[tuple[np.ndarray, bytes]] = []
        self.fails = False

    def encode(self, data: Any) -> bytes:
        self.kept.append((data, data.tobytes()))
        return super().encode(data)

    def decode(self, blob: Any, out: Any) -> None:
        if self.fails:
            self.kept += [(blob, blob.tobytes()), (out, bytes(out.size))]
            raise KeyboardInterrupt
        super().decode(blob, out)
        self.kept += [(blob, blob.tobytes()), (out, out.tobytes())]

    def check(self) -> None:
        for array, held in self.kept:
            assert array.tobytes() == held


def test_a_codec_may_keep_what_it_is_given() -> None:
    """Whatever becomes of the column: nothing of others shows there, and nobody else sees what is written there."""
    rng = np.random.default_rng(0)
    codec = Keeper()
    core = make_core(codec)
    twin = rng.integers(0, 3, (20, 1, 4, 16), dtype=np.uint8)
    obs = np.empty((1, 4, 16), np.uint8)
    for row in range(20):
        obs[:] = twin[row]
        core.write(row, obs)
    for row in (3, 7, 11):
        codec.fails = True
        with pytest.raises(KeyboardInterrupt):
            read(core, row)
        codec.fails = False
        assert (read(core, row + 1) == twin[row + 1]).all()
    codec.check()
    for array, _ in codec.kept:
        array[:] = 255
    for row in range(20):
        assert (read(core, row) == twin[row]).all()
    for array, held in codec.kept:
        array[:] = np.frombuffer(held, np.uint8)
    core.clear()
    for row in range(20):
        core.write(row, twin[-1 - row])
    del core
    gc.collect()
    codec.check()


@dataclass(frozen=True)
class Interrupted(GzipCodec):
    """Ctrl-C comes while it decodes."""

    name: ClassVar[str] = "interrupted"

    def _decompress(self, payload: ByteArray, size: int) -> bytes:
        raise KeyboardInterrupt


def arrays_in(traceback: TracebackType | None) -> list[np.ndarray]:
    """All arrays that a traceback keeps."""
    found = []
    while traceback is not None:
        found += [value for value in traceback.tb_frame.f_locals.values() if isinstance(value, np.ndarray)]
        traceback = traceback.tb_next
    return found


def test_a_traceback_keeps_no_memory_that_is_gone() -> None:
    core = make_core(Interrupted())
    core.write(0, np.ones((1, 4, 16), np.uint8))
    with pytest.raises(KeyboardInterrupt) as caught:
        read(core, 0)
    of_codecs = [array for array in arrays_in(caught.tb) if array.ndim == 1 and array.dtype == np.uint8]
    assert len(of_codecs) > 3
    for array in of_codecs:
        owner: Any = array
        while isinstance(owner, np.ndarray) and owner.base is not None:
            owner = owner.base
        assert not isinstance(owner, np.ndarray) or owner.flags.owndata


def test_a_codec_that_makes_its_output_smaller_is_refused() -> None:
    class Shrinks(Keeper):
        def decode(self, blob: Any, out: Any) -> None:
            out.resize(3, refcheck=False)

    core = make_core(Shrinks())
    core.write(0, np.ones((1, 4, 16), np.uint8))
    with pytest.raises(ValueError, match="from 64 to 3 bytes"):
        read(core, 0)
