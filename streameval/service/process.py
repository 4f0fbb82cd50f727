"""Settings and signals of the process: a verb of the command line may set them, a library must not."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as glibc numbers them
FREE_BYTES_KEPT = 64 << 20  # freed memory that the heap keeps
LARGEST_HEAP_ARRAY = 32 << 20  # bytes; larger arrays are allocated outside the heap
LARGEST_DAEMON_ARRAY = 1 << 20  # the same for a daemon
SWITCH_INTERVAL = 0.001  # seconds a thread works before another's turn; with Python's 5 ms a scrape waits 50 ms
COLLECT_AFTER = (10_000, 10, 100)
"""Thresholds of the garbage collector. With Python's (700, 10, 10) it walks over all buffered events, which leave no
cycles, every second or two, and a replay of events with action sets takes a tenth longer."""


def set_up_process() -> None:
    """Settings for every verb, made before numpy is imported.

    BLAS gets one thread unless the environment says otherwise: with more, our small matrices take three times the CPU.
    The working directory is the last on the path of modules, so that a configuration can name Python code in it.
    """
    if "" not in sys.path:
        sys.path.append("")
    for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ.setdefault(variable, "1")
    keep_freed_memory()
    gc.set_threshold(*COLLECT_AFTER)


def return_large_arrays() -> bool:
    """A further setting for `run` and `demo`, made before a state is loaded: glibc returns large arrays to the system.

    In a daemon they are those of snapshots and of fetched messages. Kept by the threads that made them, they take 50 to
    70 MiB, and more from hour to hour. A replay has none, and for events of 40 actions it would take 7 % more processor
    time. Returns False for another C library.
    """
    return keep_freed_memory(LARGEST_DAEMON_ARRAY)


def make_responsive() -> None:
    """Further settings for `run` and `demo`, which answer requests while they work; made before the first event.

    Everything that exists now is exempt from garbage collection: a full collection would stop the loop and every
    request for 50 to 200 ms.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()


def keep_freed_memory(largest: int = LARGEST_HEAP_ARRAY) -> bool:
    """Let glibc keep freed memory, up to a limit (see mallopt(3)); returns False for another C library.

    `largest`: the bytes above which an array is not on the heap, and is returned to the system.

    By default it returns the memory of each run of blocks to the system, and gets it back page by page for the next
    run: a replay then has five times as many page faults, and takes a tenth longer.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(MMAP_THRESHOLD, largest) and mallopt(TRIM_THRESHOLD, FREE_BYTES_KEPT))


# --- Signals: SIGTERM and SIGINT stop the daemon, SIGHUP reloads its configuration ---


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """The first SIGTERM or SIGINT calls `stop`, a second one ends the process at once."""
    asked = False

    def handle(number: int) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        stop()

    with _handling(handle, signal.SIGTERM, signal.SIGINT):
        yield


@contextmanager
def on_hangup(call: Callable[[], None]) -> Iterator[None]:
    """SIGHUP calls `call`; without this, it ends the process."""
    with _handling(lambda _: call(), signal.SIGHUP):
        yield


@contextmanager
def _handling(handle: Callable[[int], None], *numbers: signal.Signals) -> Iterator[None]:
    """Handles these signals in the main thread, the only one that can; in other threads nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    previous = {number: signal.signal(number, lambda number, _: handle(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
