"""Finding out from the data whether observations are frame stacks, and noticing when they are not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sb3_extra_buffers.storage.layout import ByteArray, FrameLayout, candidates

_ENOUGH = 3.0
_ENOUGH_LOOKS = 3
_SHARE = 1 / 6  # of the frames of a stack that move at a step; of four at least one in three do
_EVERY_LOOK = 16
_LAST_LOOK = 1 << 12
_LOOKS_IN_A_ROW = 32

_STRAY_COST = 8
_PATIENCE = 16


def is_padded(frames: ByteArray) -> bool:
    """Find out whether an observation looks like the first of an episode: what is older than the newest frame was made up."""
    return not frames[:-1].any() or bool((frames[:-1] == frames[-1]).all())


@dataclass
class _Evidence:
    """
    What speaks for a layout.

    :param layout: The layout
    :param followed: Observations that followed it, and could not have but for luck in another
    :param moved: The same, each by the share of its frames that were seen to move
    :param score: That, less the observations that did not follow it
    :param looks: Looks at which a frame came in that was not the last one again
    """

    layout: FrameLayout
    followed: int = 0
    moved: float = 0.0
    score: float = 0.0
    looks: int = 0

    def weigh(self, before: ByteArray, after: ByteArray) -> None:
        """Take note of observations and what followed them."""
        old, new = self._frames(before), self._frames(after)
        fits = (new[:, 0] == old[:, 1]).all(axis=(1, 2))  # nearly every wrong guess ends here
        fits[fits] = (new[fits, :-1] == old[fits, 1:]).all(axis=(1, 2, 3))
        came_in = False
        for row in np.flatnonzero(fits).tolist():
            # A frame that stays the same while others move says nothing, nor does a plain ground on which something moves.
            moved = (new[row] != old[row]).any(axis=(1, 2))
            share = float(moved[:-1].mean())
            self.followed += share > 0
            self.moved += share
            self.score += share
            came_in = came_in or bool(moved[-1])
        self.looks += came_in
        if self.score > 0 and not fits.all():
            self.score -= sum(not is_padded(frames) for frames in new[~fits])
            if self.score <= 0:
                self.followed, self.moved, self.score, self.looks = 0, 0.0, 0.0, 0

    def _frames(self, obs: ByteArray) -> ByteArray:
        layout = self.layout
        return obs.reshape(len(obs), layout.outer, layout.depth, layout.part_bytes).swapaxes(1, 2)

    @property
    def is_enough(self) -> bool:
        """Whether the layout may be adopted."""
        return self.score >= _ENOUGH and self.looks >= _ENOUGH_LOOKS and self.moved >= _SHARE * self.followed


class StackSearch:
    """
    The search for a frame stack.

    One observation that follows another like a stack proves nothing: an object that moves up by a row does that, too, its
    rows being the frames; and so does one that leaves the upper half of the picture for the lower. A real stack does it
    at every step but for resets, all its frames move, and something new comes in at its end. So frames that were seen to
    move are counted, an observation that does not follow costs as much as one that does and all of whose frames move,
    and nothing counts before new frames have come in at several steps.
    """

    def __init__(self, obs_shape: tuple[int, ...], itemsize: int) -> None:
        self.evidence = [_Evidence(layout) for layout in candidates(obs_shape, itemsize)]
        self.looks_in_a_row = 0

    def look(self, before: ByteArray, after: ByteArray) -> FrameLayout | None:
        """Look for a stack in consecutive observations."""
        changed = (before != after).any(axis=1)
        if changed.any():
            for evidence in self.evidence:
                evidence.weigh(before[changed], after[changed])
        return next((evidence.layout for evidence in self.evidence if evidence.is_enough), None)

    def next_look(self, writes: int) -> int:
        """
        Say when to look again: at each of the first writes, then ever more rarely, but for some time again at each
        where there is something to be found.
        """
        if not self.evidence or writes >= _LAST_LOOK:
            return 0
        self.looks_in_a_row += 1
        suspects = any(evidence.score > 0 or evidence.looks for evidence in self.evidence)
        if writes < _EVERY_LOOK or (suspects and self.looks_in_a_row < _LOOKS_IN_A_ROW):
            return writes + 1
        self.looks_in_a_row = 0
        return 1 << writes.bit_length()

    def reject(self, layout: FrameLayout) -> None:
        """Begin anew, without a layout that has proved wrong: so there is an end to changing it."""
        self.evidence = [_Evidence(other.layout) for other in self.evidence if other.layout != layout]
        self.looks_in_a_row = 0


class Doubt:
    """
    The other side of ``StackSearch``: whether a layout of frames still pays.

    Observations that neither follow from the last one nor begin an episode are strays: their frames have to be looked for
    one by one, and stored by themselves. A few among many are nothing; each is made up for by ``_STRAY_COST`` observations.
    Going back to whole observations means storing again what is held, so that is done once strays have cost as much. At
    worst, time is spent twice, then, however large the buffer is.
    """

    def __init__(self, layout: FrameLayout, n_streams: int) -> None:
        self.layout = layout
        self.n_streams = n_streams
        self.strays = 0
        self.writes = 0

    def note_stray(self, writes: int) -> None:
        """Count a stray."""
        made_up = (writes - self.writes) * self.n_streams // _STRAY_COST
        self.strays = max(self.strays - made_up, 0) + 1
        if made_up:
            self.writes = writes

    def is_too_great(self, held: int) -> bool:
        """Decide whether to give the layout up."""
        # All streams may begin an episode at the same time.
        return self.layout.depth > 1 and self.strays > _PATIENCE + 2 * self.n_streams + held // self.layout.depth
