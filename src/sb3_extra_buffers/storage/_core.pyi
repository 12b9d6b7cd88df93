from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs import Codec
from sb3_extra_buffers.storage.layout import FrameLayout
from sb3_extra_buffers.storage.locks import StoreLock

READ_AHEAD: int
WRITE_AHEAD: int

class Store:
    layout: FrameLayout
    n_streams: int
    segments: int
    segment_bytes: int
    work: tuple[int, int, int]
    patience: int

    def __init__(
        self,
        layout: FrameLayout,
        n_streams: int,
        frame_codec: Codec,
        group_codec: Codec | None,
        references: bool,
        shift: int,
        lock: StoreLock,
        image: bytes | None = None,
    ) -> None: ...
    def new_index(self, cells: int) -> int: ...
    def write(
        self,
        row: int,
        index: int,
        obs: npt.NDArray[Any],
        other: int = -1,
        other_obs: npt.NDArray[Any] | None = None,
    ) -> bool: ...
    def write_cells(self, index: int, cells: npt.NDArray[np.int64], obs: npt.NDArray[Any]) -> bool: ...
    def announce_read(self, count: int) -> None: ...
    def read(
        self,
        rows: npt.NDArray[np.int64],
        columns: npt.NDArray[np.int64] | None,
        index: int,
        out: npt.NDArray[Any],
        other: int = -1,
        other_out: npt.NDArray[Any] | None = None,
    ) -> bool: ...
    def rebuild(self, layout: FrameLayout) -> None: ...
    def clear(self) -> None: ...
    def cells(self, index: int) -> int: ...
    def last_observation(self, stream: int) -> npt.NDArray[np.uint8] | None: ...
    def image(self, only_index: int = -1) -> bytes: ...
    def usage(self) -> tuple[int, int, int, int, int]: ...

def set_leaves(sums: npt.NDArray[np.float64], leaves: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> None: ...
def find_leaves(sums: npt.NDArray[np.float64], targets: npt.NDArray[np.float64], leaves: npt.NDArray[np.int64]) -> None: ...
def is_plain(value: Any, dtype: np.dtype[Any] | None, shape: tuple[int, ...]) -> bool: ...
def set_step(
    row: int,
    actions: Any,
    action: Any,
    rewards: Any,
    reward: Any,
    dones: Any,
    done: Any,
    timeouts: Any,
    infos: Any,
) -> None: ...
def use_kernels(name: str) -> str: ...
def refuse_allocation(after: int) -> int: ...
def set_limits(**limits: int) -> dict[str, int]: ...
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
