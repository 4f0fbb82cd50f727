"""Memory that arrays free is kept for the next ones."""

from __future__ import annotations

import ctypes

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as glibc numbers them
KEPT, LARGEST = 64 << 20, 32 << 20
"""Bytes that may lie free at the end of the heap, and the largest array that is taken from there."""


def keep_freed_memory() -> bool:
    """Tell the C library to keep, up to a limit, what is freed: whether there is one that can be told so (glibc).

    By itself it gives back to the system what one run of blocks used, and takes it anew, page by page, for the next
    one, which costs a quarter of the time of the main loop.

    Source: mallopt(3).
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(MMAP_THRESHOLD, LARGEST) and mallopt(TRIM_THRESHOLD, KEPT))
