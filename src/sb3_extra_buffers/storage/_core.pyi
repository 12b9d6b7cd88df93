from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from typing_extensions import Buffer

from sb3_extra_buffers.codecs import Codec
from sb3_extra_buffers.storage.layout import FrameLayout
from sb3_extra_buffers.storage.locks import StoreLock

BLOCK_ROWS: int
READ_AHEAD: int
WRITE_AHEAD: int

Integers = npt.NDArray[np.integer[Any]] | Sequence[int]

class Mapping:
    def __init__(self, file: int, size: int) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def will_need(self, first: int, size: int) -> None: ...
    def leave(self) -> None: ...

class Chunk:
    first_row: int
    rows: int

    def __init__(self, data: Buffer) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Reading:
    def finish(self) -> tuple[npt.NDArray[Any], ...]: ...

class Pieces:
    n_pieces: int

    def __init__(self, rows: int, piece_rows: int, n_envs: int, cell_bytes: Sequence[int]) -> None: ...
    def put(self, piece: int, data: Buffer) -> None: ...
    def gather(self, column: int, rows: Integers, envs: Integers, out: npt.NDArray[Any]) -> None: ...

class FrameColumn:
    layout: FrameLayout
    lock: StoreLock
    dtype: np.dtype[Any]
    rows: int
    n_envs: int
    views: int
    obs_bytes: int
    writes: int
    next_look: int
    layout_fails: bool
    accept: Callable[[Any, int], npt.NDArray[Any]] | None

    # Its arguments are taken by __cinit__, so that classes on top of it have an __init__ of their own:
    # rows, n_envs, views, chunk_rows, layout, dtype, frame_codec, group_codec, references, shift, lock.
    def __new__(
        cls,
        rows: int,
        n_envs: int,
        views: int,
        chunk_rows: int,
        layout: FrameLayout,
        dtype: np.dtype[Any],
        frame_codec: Codec,
        group_codec: Codec | None,
        references: bool,
        shift: int,
        lock: StoreLock,
        *args: Any,
        **kwargs: Any,
    ) -> FrameColumn: ...
    def revise_layout(self, envs: Sequence[int], obs: tuple[npt.NDArray[Any], ...]) -> None: ...
    def write(
        self,
        row: int,
        obs: npt.NDArray[Any],
        view: int = 0,
        other: npt.NDArray[Any] | None = None,
        envs: Integers | None = None,
    ) -> None: ...
    def set_layout(self, layout: FrameLayout) -> None: ...
    def set_patience(self, observations: int) -> None: ...
    def clear(self) -> None: ...
    def last_observation(self, env: int) -> npt.NDArray[np.uint8] | None: ...
    def read(
        self,
        rows: Integers,
        envs: Integers,
        out: npt.NDArray[Any],
        view: int = 0,
        other_out: npt.NDArray[Any] | None = None,
    ) -> None: ...
    @property
    def sealed_bytes(self) -> int: ...
    def spans(self) -> tuple[list[tuple[Chunk, int, int, int]], tuple[Chunk, int, int, int] | None]: ...
    def adopt(self, data: Buffer, first_row: int = -1, chunk_row: int = 0, rows: int = -1) -> None: ...
    def adopt_row(self, chunk: Chunk, row: int, chunk_row: int) -> None: ...
    def exchange(self, chunk: Chunk, copy: Chunk) -> None: ...
    def arrange(self, chunk: Chunk) -> Chunk: ...
    def usage(self) -> tuple[int, int, int, int, int]: ...
    def coded_frames(self) -> list[int]: ...

class PlainColumn:
    array: npt.NDArray[Any]
    reshapes: bool
    accept: Callable[[Any], Any] | None

    def __init__(
        self, array: npt.NDArray[Any], reshapes: bool = False, accept: Callable[[Any], Any] | None = None
    ) -> None: ...
    def set_array(self, array: npt.NDArray[Any]) -> None: ...

class Table:
    rows: int
    n_envs: int
    n_values: int
    wraps: bool
    appended: int
    failed: int
    attributes: dict[str, Any]
    lock: StoreLock
    columns: tuple[FrameColumn | PlainColumn, ...]
    names: tuple[str | None, ...]

    def __init__(
        self,
        columns: Sequence[FrameColumn | PlainColumn],
        rows: int,
        n_envs: int,
        lock: StoreLock,
        wraps: bool = True,
        names: Sequence[str | None] | None = None,
    ) -> None: ...
    def append(self, values: tuple[Any, ...], attributes: dict[str, Any] | None = None) -> None: ...
    def begin_read(
        self,
        rows: Integers,
        envs: Integers,
        wanted: tuple[int, ...] | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> Reading: ...
    def clear(self, attributes: dict[str, Any] | None = None, replaced: dict[str, Any] | None = None) -> None: ...

def checksum(data: Buffer) -> int: ...
def set_leaves(sums: npt.NDArray[np.float64], leaves: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> None: ...
def find_leaves(sums: npt.NDArray[np.float64], targets: npt.NDArray[np.float64], leaves: npt.NDArray[np.int64]) -> None: ...
def use_kernels(name: str) -> str: ...
def refuse_allocation(after: int) -> int: ...
def encode_patch(
    before: npt.NDArray[np.uint8],
    now: npt.NDArray[np.uint8],
    row: int,
    out: npt.NDArray[np.uint8],
    pos: int,
    stop: int,
    row_above: int = 0,
) -> tuple[int, int]: ...
def apply_patch(patch: npt.NDArray[np.uint8], frame: npt.NDArray[np.uint8], size: int, row: int) -> int: ...
