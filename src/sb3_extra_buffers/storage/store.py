"""The observation store: what is known of observations in Python, over the compiled core that holds their frames."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.storage._core import Store
from sb3_extra_buffers.storage.errors import StorageError
from sb3_extra_buffers.storage.layout import ByteArray, FrameLayout
from sb3_extra_buffers.storage.locks import StoreLock
from sb3_extra_buffers.storage.methods import CoderSpec
from sb3_extra_buffers.storage.stacks import StackSearch

Observations = npt.NDArray[Any]


def _bytes_of(obs: Observations) -> ByteArray:
    """Observations as rows of bytes, in C order."""
    return np.ascontiguousarray(obs).reshape(len(obs), -1).view(np.uint8)


class FrameStore:
    """
    Observations of ``n_streams`` environments, in arrays that share frames.

    An array is known by its number. Its cell ``c`` belongs to environment ``c % n_streams``.

    :param obs_shape: Shape of one observation, of at least one element
    :param dtype: Type of its elements
    :param n_streams: Number of environments
    :param spec: How frames are coded
    :param lock: Held by every call; a new one by default
    """

    def __init__(
        self,
        obs_shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        n_streams: int,
        spec: CoderSpec,
        lock: StoreLock | None = None,
    ) -> None:
        self.dtype = np.dtype(dtype)
        self.obs_shape = obs_shape
        self.n_streams = n_streams
        self.spec = spec
        self.lock = StoreLock() if lock is None else lock
        self.search = StackSearch(obs_shape, self.dtype.itemsize)
        self.writes = 0  # counted for as long as a frame stack is looked for
        self.next_look = 1  # which write to look at; 0 for none
        self.layout_fails = False
        self.core = self._make_core(FrameLayout.whole(obs_shape, self.dtype.itemsize))

    def _make_core(self, layout: FrameLayout, image: bytes | None = None) -> Store:
        codec, group_codec = self.spec.codecs()
        return Store(layout, self.n_streams, codec, group_codec, self.spec.references, self.spec.shift, self.lock, image)

    @property
    def layout(self) -> FrameLayout:
        """How observations split into frames."""
        layout: FrameLayout = self.core.layout
        return layout

    def new_index(self, cells: int) -> int:
        """
        Make an array of unwritten cells.

        :param cells: How many
        :return: Its number
        """
        return self.core.new_index(cells)

    def clear(self) -> None:
        """Forget all observations; layout and memory stay."""
        self.core.clear()

    # -- writing --------------------------------------------------------------------------------------------------

    def write_row(
        self, row: int, index: int, obs: Observations, other: int = -1, other_obs: Observations | None = None
    ) -> None:
        """
        Write one observation of every environment to a row of an array, and to the same row of another. Both or neither.

        :param row: The row
        :param index: The array
        :param obs: ``(n_streams, *obs_shape)`` of the store's dtype, in any memory order
        :param other: Another array; -1 for none
        :param other_obs: What follows ``obs``, for that array
        """
        if self.next_look or self.layout_fails:
            with self.lock:
                parts = 1 if other_obs is None else 2
                if self.writes + parts < self.next_look and not self.layout_fails:
                    self.writes += parts  # nothing to look at yet
                else:
                    self._revise_layout(range(self.n_streams), obs if other_obs is None else (obs, other_obs))
                self.layout_fails = self.core.write(row, index, obs, other, other_obs)
            return
        if self.core.write(row, index, obs, other, other_obs):
            self.layout_fails = True

    def write_cells(self, index: int, cells: npt.NDArray[np.int64], obs: Observations) -> None:
        """
        Write observations to any cells, one after the other.

        :param index: The array
        :param cells: ``(m,)``
        :param obs: ``(m, *obs_shape)`` of the store's dtype
        """
        streams = (cells % self.n_streams).tolist()
        with self.lock:
            start = 0
            while start < len(cells):  # as far as environments are distinct
                stop = start
                seen: set[int] = set()
                while stop < len(cells) and streams[stop] not in seen:
                    seen.add(streams[stop])
                    stop += 1
                some = obs[start:stop]
                self._revise_layout(streams[start:stop], some)
                self.layout_fails = self.core.write_cells(index, cells[start:stop], some)
                start = stop

    # -- the layout -----------------------------------------------------------------------------------------------

    def _revise_layout(self, streams: Any, obs: Observations | tuple[Observations, Observations]) -> None:
        """Before something is written: look for a frame stack, or give one up that does not pay."""
        if self.layout_fails:
            self._give_up_layout()
        parts = obs if isinstance(obs, tuple) else (obs,)
        for place, part in enumerate(parts):
            if not self.next_look:
                return
            self.writes += 1
            if self.writes == self.next_look:
                self._look(streams, part, parts[place - 1] if place else None)

    def _look(self, streams: Any, obs: Observations, before: Observations | None) -> None:
        """Look for a frame stack between observations and those before them; once there is one, store by frames."""
        after = _bytes_of(obs)
        if before is None:
            last = [self.core.last_observation(stream) for stream in streams]
            known = [place for place, memory in enumerate(last) if memory is not None]
            after = after[known]
            earlier = np.array([last[place] for place in known], dtype=np.uint8).reshape(after.shape)
        else:
            earlier = _bytes_of(before)
        layout = self.search.look(earlier, after) if len(after) else None
        self.next_look = self.search.next_look(self.writes)
        if layout is not None and self._adopt(layout):  # else there was no memory for it, and there may be some later
            self.next_look = 0

    def _give_up_layout(self) -> None:
        self.layout_fails = False
        failed = self.layout
        if self._adopt(FrameLayout.whole(self.obs_shape, self.dtype.itemsize)):
            self.search.reject(failed)
            self.writes = max(self.writes, 1)
            self.next_look = self.search.next_look(self.writes)

    def _adopt(self, layout: FrameLayout) -> bool:
        """Store everything again, under another layout; tells whether that was possible. If not, all stays as it is."""
        try:
            self.core.rebuild(layout)
        except (MemoryError, StorageError):
            return False
        return True

    # -- reading --------------------------------------------------------------------------------------------------

    def read(
        self,
        rows: npt.NDArray[np.int64],
        columns: npt.NDArray[np.int64] | None,
        index: int,
        out: Observations,
        other: int = -1,
        other_out: Observations | None = None,
    ) -> bool:
        """
        Read observations of an array, or of two at the same places; frames that they share are decoded once.

        :param rows: ``(m,)`` of int64, C-contiguous: rows, or cells where there are no columns
        :param columns: ``(m,)`` of int64, C-contiguous: environments; None for none
        :param index: The array
        :param out: C-contiguous output ``(m, *obs_shape)`` of the store's dtype
        :param other: Another array; -1 for none
        :param other_out: Its output
        :return: False, and the outputs hold anything, where an index is negative or out of bounds
        """
        return self.core.read(rows, columns, index, out, other, other_out)

    # -- copies ---------------------------------------------------------------------------------------------------

    def copy_of(self, index: int) -> FrameStore:
        """
        Copy one array and the frames.

        :param index: The array
        :return: A store that holds it alone, as its array 0
        """
        twin = object.__new__(FrameStore)
        twin.__setstate__({**self._state(index), "lock": StoreLock()})
        return twin

    def _state(self, only_index: int) -> dict[str, Any]:
        with self.lock:  # the image is of this layout
            core = {"layout": self.core.layout, "image": self.core.image(only_index)}
            return {**self.__dict__, "core": core, "search": copy.deepcopy(self.search)}

    def __getstate__(self) -> dict[str, Any]:
        return self._state(-1)

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        core = state.pop("core")
        self.__dict__.update(state)
        layout = core["layout"]
        if (layout.obs_shape, layout.itemsize) != (self.obs_shape, self.dtype.itemsize):
            raise StorageError(
                "the saved observations are damaged: their shape is not that of the store; load another copy of the file"
            )
        self.core = self._make_core(layout, core["image"])
