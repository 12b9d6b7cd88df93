"""What the compiled core takes from Python: no call crashes the interpreter, whatever it is given."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar

import numpy as np
import pytest
from store_kit import Watched, limits

import sb3_extra_buffers
from sb3_extra_buffers.codecs.base import ByteArray
from sb3_extra_buffers.codecs.deflate import GzipCodec
from sb3_extra_buffers.storage import CompressedArray, StoreLock
from sb3_extra_buffers.storage._core import READ_AHEAD, WRITE_AHEAD, Store, apply_patch, encode_patch, set_limits
from sb3_extra_buffers.storage.layout import FrameLayout

HUGE = [2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - WRITE_AHEAD, 2**64 - 1, -1]


def in_a_child(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program that may take the interpreter with it."""
    source = str(Path(sb3_extra_buffers.__file__).parents[1])
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r})\n{program}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


EVERY_MEMBER = """
import numpy as np
from sb3_extra_buffers.storage import _core

kinds = [kind for kind in vars(_core).values() if isinstance(kind, type) and kind.__module__ == _core.__name__]
assert _core.Store in kinds
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
    done = in_a_child(EVERY_MEMBER)
    assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr


def make_core(codec: Any, n_streams: int = 1, **changes: Any) -> Store:
    layout = FrameLayout.whole((4, 16), 1)
    options = {"frame_codec": codec, "group_codec": None, "references": False, "shift": 0, "lock": StoreLock()}
    return Store(layout, n_streams, **{**options, **changes})


def test_a_store_is_made_once_and_whole() -> None:
    core = make_core(GzipCodec())
    core.new_index(3)
    core.__init__(FrameLayout.whole((9, 9), 1), 7, GzipCodec(), None, False, 0, StoreLock())  # type: ignore[misc]
    assert core.n_streams == 1 and core.cells(0) == 3
    for attempt in (lambda: Store.__new__(Store), lambda: copy.copy(core), lambda: pickle.loads(pickle.dumps(core))):
        with pytest.raises(TypeError):
            attempt()


@pytest.mark.parametrize("number", [*HUGE, 0])
def test_sizes_at_the_edge(number: int) -> None:
    """Each is refused, or does nothing that it should not."""
    core = make_core(GzipCodec(), 2)
    core.new_index(6)
    obs, rows = np.ones((2, 4, 16), np.uint8), np.zeros(1, np.int64)
    core.write(0, 0, obs)
    refused = (OverflowError, IndexError, ValueError, MemoryError)
    calls = [
        lambda: core.write(number, 0, obs),
        lambda: core.write(0, number, obs),
        lambda: core.write_cells(number, np.zeros(1, np.int64), obs[:1]),
        lambda: core.read(rows, None, number, np.empty((1, 4, 16), np.uint8)),
        lambda: core.cells(number),
        lambda: core.last_observation(number),
        lambda: core.image(number),
        lambda: core.announce_read(number),
        lambda: core.new_index(number if number < 1 else max(number, 2**60)),  # not to take what can be had
        lambda: setattr(core, "patience", number),
        lambda: make_core(GzipCodec(), 2**40 if number in (2**31, 2**32) else number),
        lambda: make_core(GzipCodec(), references=True, shift=number),
        lambda: FrameLayout((4, number), 1, 0, 1) and core.rebuild(FrameLayout((4, number), 1, 0, 1)),
    ]
    for call in calls:
        with suppress(refused):
            call()
    if -(2**63) <= number < 2**63:
        cells = np.array([number], np.int64)
        if number:
            with pytest.raises(IndexError):
                core.write_cells(0, cells, obs[:1])
            assert not core.read(cells, None, 0, np.empty((1, 4, 16), np.uint8))
            assert not core.read(rows, cells, 0, np.empty((1, 4, 16), np.uint8))
    out = np.empty((2, 4, 16), np.uint8)
    assert core.read(np.arange(2), None, 0, out) and (out == 1).all()
    assert not core.write(1, 0, obs + np.uint8(1)), "a layout without a stack is never in doubt"


def test_all_the_patience_there_is() -> None:
    """A sum with it must not begin again at 0."""
    core = Store(FrameLayout((4, 16), 1, 0, 1), 1, GzipCodec(), None, False, 0, StoreLock())
    core.new_index(50)
    core.patience = 2**64 - 1
    rng = np.random.default_rng(0)
    for row in range(50):
        assert not core.write(row, 0, rng.integers(1, 256, (1, 4, 16), dtype=np.uint8))


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
    done = in_a_child(PATCHES_OF_ANY_SIZE)
    assert (done.returncode, done.stdout.strip()) == (0, "alive"), done.stderr


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


def test_limits_have_names_and_bounds() -> None:
    before = set_limits()
    with pytest.raises(TypeError, match=r"no limit 'nothing'; there are first_room, block_rows, .*frame_numbers"):
        set_limits(nothing=1)
    for name in before:
        for number in (-1, 0, 2**63, 2**64 - 1, 2**64):
            with pytest.raises(ValueError, match=f"{name} must be from"):
                set_limits(**{name: number})
    assert set_limits() == before
    for name in before:
        with limits(**{name: 128}):
            array = CompressedArray((5, 1), np.uint8, (8, 8))
            for row in range(5):
                array[row] = row
            assert (array[:, 0, 0, 0] == np.arange(5)).all()


@pytest.mark.parametrize(
    ("cells", "told"),
    [(2**50, f"{2**52:,} bytes"), (2**60, f"{2**62:,} bytes"), (2**62, "more bytes than can be"), (2**63 - 1, "more bytes")],
)
def test_an_index_that_is_too_large(cells: int, told: str) -> None:
    with pytest.raises(MemoryError, match=f"out of memory: {told}"):
        make_core(GzipCodec()).new_index(cells)
    with pytest.raises(MemoryError, match=f"out of memory: {told}"):
        CompressedArray((cells, 1, 8, 8), np.uint8, (8, 8))


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
    """Whatever becomes of the store: nothing of others shows there, and nobody else sees what is written there."""
    rng = np.random.default_rng(0)
    codec = Keeper()
    core = make_core(codec)
    core.new_index(20)
    twin = rng.integers(0, 3, (20, 1, 4, 16), dtype=np.uint8)
    obs = np.empty((1, 4, 16), np.uint8)
    for row in range(20):
        obs[:] = twin[row]
        core.write(row, 0, obs)
    out = np.empty((1, 4, 16), np.uint8)
    for row in (3, 7, 11):
        codec.fails = True
        with pytest.raises(KeyboardInterrupt):
            core.read(np.array([row]), None, 0, out)
        codec.fails = False
        assert core.read(np.array([row + 1]), None, 0, out) and (out == twin[row + 1]).all()
    codec.check()
    for array, _ in codec.kept:
        array[:] = 255
    for row in range(20):
        assert core.read(np.array([row]), None, 0, out) and (out == twin[row]).all()
    for array, held in codec.kept:
        array[:] = np.frombuffer(held, np.uint8)
    core.clear()
    for row in range(20):
        core.write(row, 0, twin[-1 - row])
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
    core.new_index(2)
    core.write(0, 0, np.ones((1, 4, 16), np.uint8))
    with pytest.raises(KeyboardInterrupt) as caught:
        core.read(np.zeros(1, np.int64), None, 0, np.empty((1, 4, 16), np.uint8))
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
    core.new_index(1)
    core.write(0, 0, np.ones((1, 4, 16), np.uint8))
    with pytest.raises(ValueError, match="from 64 to 3 bytes"):
        core.read(np.zeros(1, np.int64), None, 0, np.empty((1, 4, 16), np.uint8))
