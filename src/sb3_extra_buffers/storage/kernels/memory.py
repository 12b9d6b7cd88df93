"""Compiled: bytes at addresses, copied and compared fast."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import carray, int64, types, uint8, uint64
from numba.core import cgutils
from numba.extending import intrinsic

from sb3_extra_buffers.codecs._jit import jit_kernel
from sb3_extra_buffers.storage.records import WRITE_AHEAD

_WORD = ir.IntType(64)
_BLOCK = ir.VectorType(ir.IntType(8), WRITE_AHEAD)
_CHUNK = 128  # words compared between two looks at the result; long enough to vectorise


@intrinsic
def _pointer(typingctx, address):
    def codegen(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.uint64), codegen


@intrinsic
def copy_bytes(typingctx, target, source, count):
    """Copy ``count`` bytes from one address to another; the two must not overlap."""

    def codegen(context, builder, signature, arguments):
        target, source, count = arguments
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(target, cgutils.voidptr_t),
            builder.inttoptr(source, cgutils.voidptr_t),
            count,
            1,
        )
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), codegen


@intrinsic
def copy_block(typingctx, target, source):
    """Copy 32 bytes from one address to another."""

    def codegen(context, builder, signature, arguments):
        target, source = (builder.inttoptr(address, _BLOCK.as_pointer()) for address in arguments)
        builder.store(builder.load(source, align=1, typ=_BLOCK), target, align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), codegen


@intrinsic
def load_word(typingctx, address):
    """Read eight bytes at any address."""

    def codegen(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _WORD.as_pointer())
        return builder.load(pointer, align=1, typ=_WORD)

    return types.uint64(types.uint64), codegen


@intrinsic
def store_word(typingctx, address, value):
    """Write eight bytes at any address."""

    def codegen(context, builder, signature, arguments):
        pointer = builder.inttoptr(arguments[0], _WORD.as_pointer())
        builder.store(arguments[1], pointer, align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), codegen


@intrinsic
def fetch_line(typingctx, address):
    """Have the cache line at an address brought near while work goes on; any address will do."""

    def codegen(context, builder, signature, arguments):
        number = ir.IntType(32)
        kinds = [cgutils.voidptr_t, number, number, number]
        function = builder.module.declare_intrinsic("llvm.prefetch", kinds[:1], ir.FunctionType(ir.VoidType(), kinds))
        pointer = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        builder.call(function, [pointer, number(0), number(2), number(1)])  # to read, second-level cache, data
        return context.get_dummy_value()

    return types.void(types.uint64), codegen


@intrinsic
def different_bytes(typingctx, a, b):
    """Compare 64 bytes at each of two addresses: bit ``i`` is set where byte ``i`` differs."""

    def codegen(context, builder, signature, arguments):
        vector = ir.VectorType(ir.IntType(8), 64)
        left, right = (
            builder.load(builder.inttoptr(address, vector.as_pointer()), align=1, typ=vector) for address in arguments
        )
        return builder.bitcast(builder.icmp_unsigned("!=", left, right), _WORD)

    return types.uint64(types.uint64, types.uint64), codegen


@intrinsic
def trailing_zeros(typingctx, value):
    """Count the zero bits below the lowest set bit of a word that is not zero."""

    def codegen(context, builder, signature, arguments):
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@intrinsic
def leading_zeros(typingctx, value):
    """Count the zero bits above the highest set bit of a word that is not zero."""

    def codegen(context, builder, signature, arguments):
        return builder.ctlz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.uint64(types.uint64), codegen


@jit_kernel
def address_of(array):
    """Address of an array's first byte."""
    return uint64(array.ctypes.data)


@jit_kernel
def memory_at(address, size):
    """View memory as bytes."""
    return carray(_pointer(uint64(address)), (int64(size),), np.uint8)


@jit_kernel
def words_at(address, count):
    """View memory as 64-bit words."""
    return carray(_pointer(uint64(address)), (int64(count),), np.uint64)


@jit_kernel
def numbers_at(address, count):
    """View memory as 64-bit numbers."""
    return carray(_pointer(uint64(address)), (int64(count),), np.int64)


@jit_kernel
def half_words_at(address, count):
    """View memory as 32-bit words."""
    return carray(_pointer(uint64(address)), (int64(count),), np.uint32)


@jit_kernel
def quarter_words_at(address, count):
    """View memory as 16-bit words."""
    return carray(_pointer(uint64(address)), (int64(count),), np.uint16)


@jit_kernel
def same_bytes(a, b, count):
    """Tell whether the bytes at two addresses are equal."""
    rest = uint64(0)
    if (a | b) & uint64(7) == 0:  # else byte by byte: unaligned words are not for every machine
        n = uint64(count) >> uint64(3)
        x = words_at(a, n)
        y = words_at(b, n)
        i = uint64(0)
        while i < n:
            stop = min(n, i + uint64(_CHUNK))
            difference = uint64(0)
            for j in range(i, stop):
                difference |= x[j] ^ y[j]
            if difference:
                return False
            i = stop
        rest = n << uint64(3)
    left = memory_at(a, count)
    right = memory_at(b, count)
    different = uint8(0)
    for j in range(rest, uint64(count)):
        different |= left[j] ^ right[j]
    return different == 0
