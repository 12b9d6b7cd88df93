"""A recording with compressed frames."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sb3_extra_buffers.codecs import has_zstd
from sb3_extra_buffers.recording.buffers import RecordBuffer
from sb3_extra_buffers.recording.checks import FeatureSpec
from sb3_extra_buffers.recording.columns import Column, Rows
from sb3_extra_buffers.storage import CompressedArray, check_dtypes, make_spec

_CHUNK_ROWS = 4096
_RAW_BELOW = 512  # bytes of a frame below which compressing it would not pay, as in our other buffers


def _default_method() -> str | None:
    return "delta-zstd" if has_zstd() else None


class CompressedRecordBuffer(RecordBuffer):
    """
    Keeps frames compressed, bit for bit: hours of play in megabytes.

    The parameters are those of ``RecordBuffer`` (except ``force_alloc_mem``, as there is nothing to commit), and

    :param compression_method: Name or shorthand of the method, for example ``"zstd-5"``; None for the best one
        installed: ``"delta-zstd"``, because the frames of a recording are read in order
    :param compression_kwargs: Options of the method
    :param decompression_kwargs: The same for decompression
    :param dtypes: As for ``CompressedArray``
    """

    kind = "compressed"

    def __init__(
        self,
        buffer_size: int | None,
        frame_shape: tuple[int, ...] | None = None,
        frame_dtype: npt.DTypeLike = np.uint8,
        action_shape: tuple[int, ...] = (),
        action_dtype: npt.DTypeLike = np.int64,
        features: Mapping[str, FeatureSpec] | None = None,
        force_alloc_mem: bool = False,
        metadata: Mapping[str, Any] | None = None,
        *,
        compression_method: str | None = None,
        compression_kwargs: Mapping[str, Any] | None = None,
        decompression_kwargs: Mapping[str, Any] | None = None,
        dtypes: Mapping[str, npt.DTypeLike] | None = None,
    ) -> None:
        if force_alloc_mem:
            raise ValueError("force_alloc_mem is for RecordBuffer: compressed frames take memory as they come")
        self._options: dict[str, Any] = {
            "dtypes": dtypes,
            "compression_method": _default_method() if compression_method is None else compression_method,
            "compression_kwargs": compression_kwargs,
            "decompression_kwargs": decompression_kwargs,
        }
        super().__init__(
            buffer_size, frame_shape, frame_dtype, action_shape, action_dtype, features=features, metadata=metadata
        )

    @property
    def compression_method(self) -> str:
        """The method in use; ``"none"`` for frames so small that compressing them would not pay."""
        return self._method

    def _make_frames(self) -> Column | None:
        shape, dtype = self.frame_shape, self.frame_dtype
        if shape is None:
            return super()._make_frames()
        # Checked for small frames, too: a wrong option should not wait for the first large one.
        spec = make_spec(
            self._options["compression_method"],
            *check_dtypes(self._options["dtypes"], dtype, shape),
            self._options["compression_kwargs"],
            self._options["decompression_kwargs"],
        )
        if math.prod(shape) * dtype.itemsize < _RAW_BELOW:
            self._method = "none"
            return self._dense_column(shape, dtype)
        self._method = spec.method

        def make(rows: int) -> Rows:
            return CompressedArray((rows, 1, *shape), dtype, shape, **self._options)

        return Column(self.buffer_size, _CHUNK_ROWS, make)

    # There is one of these an episode: they need not be fast, but their number is not known in advance.

    def _keep_final(self, frame: npt.NDArray[Any] | None) -> Any:
        return None if frame is None else zlib.compress(np.ascontiguousarray(frame).data, 6)

    def _kept_final(self, kept: Any) -> npt.NDArray[Any]:
        return np.frombuffer(bytearray(zlib.decompress(kept)), self.frame_dtype).reshape(self.frame_shape or ())
