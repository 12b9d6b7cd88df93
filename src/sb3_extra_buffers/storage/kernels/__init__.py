"""Compiled code of the storage layer. Its modules import numba, so they are imported late, at first use."""
