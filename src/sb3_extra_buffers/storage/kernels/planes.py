"""Compiled: from planes to pixels and back."""

from __future__ import annotations

from numba import uint64

from sb3_extra_buffers.codecs._jit import jit_kernel


@jit_kernel
def planes_to_pixels(planes, pixels, depth, count, item):
    """
    Bring the values of a pixel together.

    :param planes: Bytes of ``depth`` planes of ``count`` values
    :param pixels: As many bytes, filled
    :param depth: Number of planes
    :param count: Values in a plane
    :param item: Bytes a value
    """
    n = uint64(count)
    width = uint64(item)
    values = uint64(depth)
    if width == uint64(1) and values == uint64(3):
        for i in range(n):
            pixels[uint64(3) * i] = planes[i]
            pixels[uint64(3) * i + uint64(1)] = planes[n + i]
            pixels[uint64(3) * i + uint64(2)] = planes[uint64(2) * n + i]
        return
    for c in range(values):
        for i in range(n):
            for t in range(width):
                pixels[(i * values + c) * width + t] = planes[(c * n + i) * width + t]


@jit_kernel
def pixels_to_planes(pixels, planes, depth, count, item):
    """
    Undo ``planes_to_pixels``.

    :param pixels: Bytes of ``count`` pixels
    :param planes: As many bytes, filled
    :param depth: Number of planes
    :param count: Values in a plane
    :param item: Bytes a value
    """
    n = uint64(count)
    width = uint64(item)
    values = uint64(depth)
    if width == uint64(1) and values == uint64(3):
        for i in range(n):
            planes[i] = pixels[uint64(3) * i]
            planes[n + i] = pixels[uint64(3) * i + uint64(1)]
            planes[uint64(2) * n + i] = pixels[uint64(3) * i + uint64(2)]
        return
    for c in range(values):
        for i in range(n):
            for t in range(width):
                planes[(c * n + i) * width + t] = pixels[(i * values + c) * width + t]
