"""Settings of the process: a verb of the command line may make them, a library must not."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as glibc numbers them
KEPT, LARGEST = 64 << 20, 32 << 20  # bytes of freed memory that the heap keeps, and of the largest array on it
TRIM_EVERY = 60.0  # seconds between two calls of `malloc_trim`: its page faults are then too few to matter
SWITCH_INTERVAL = 0.001  # seconds a thread works before another's turn; with Python's 5 ms a scrape waits 50 ms
COLLECT_AFTER = (10_000, 10, 100)
"""Thresholds of the garbage collector. With Python's (700, 10, 10) it walks over all buffered events, which leave no
cycles, every second or two, and a replay of events with action sets takes a tenth longer."""


def set_up_process() -> None:
    """Settings for every verb, made before numpy is imported.

    BLAS gets one thread unless the environment says otherwise: with more, our small matrices take three times the CPU.
    """
    for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ.setdefault(variable, "1")
    keep_freed_memory()
    gc.set_threshold(*COLLECT_AFTER)


@contextmanager
def responsive() -> Iterator[None]:
    """Further settings for `run` and `demo`, which answer requests while they work; entered before the first event.

    Everything that exists now is exempt from garbage collection: a full collection would stop the loop and every
    request for 50 to 200 ms. Freed memory goes back to the system once a minute.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()
    with trimming_memory():
        yield


def keep_freed_memory() -> bool:
    """Let glibc keep freed memory, up to a limit (see mallopt(3)); returns False for another C library.

    By default it returns the memory of each run of blocks to the system, and gets it back page by page for the next
    run, which takes a quarter of the time of the main loop.
    """
    mallopt = _c_function("mallopt")
    return bool(mallopt and mallopt(MMAP_THRESHOLD, LARGEST) and mallopt(TRIM_THRESHOLD, KEPT))


@contextmanager
def trimming_memory(seconds: float = TRIM_EVERY) -> Iterator[None]:
    """Return freed memory to the system at intervals, including free pages between used ones (see malloc_trim(3)).

    Without it a process keeps the memory of its largest backlog for as long as it runs.
    """
    malloc_trim, ended = _c_function("malloc_trim"), threading.Event()

    def trim() -> None:
        while malloc_trim and not ended.wait(seconds):
            malloc_trim(0)

    thread = threading.Thread(target=trim, name="memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _c_function(name: str) -> Callable[..., int] | None:
    """A function of the C library; None where it has none of this name."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return function
