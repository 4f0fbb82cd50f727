"""Set up the process and its signals. Commands do that; a library must not."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # numbers of glibc
MAX_FREE_BYTES = 64 << 20  # freed memory that the heap keeps
MAX_HEAP_ARRAY_BYTES = 32 << 20  # larger arrays are allocated outside the heap
MAX_DAEMON_HEAP_ARRAY_BYTES = 1 << 20
SWITCH_INTERVAL_SECONDS = 0.001  # with Python's 5 ms, a scrape waits 50 ms
WATCH_SECONDS = 2.0
COLLECT_AFTER = (10_000, 10, 100)
"""Thresholds of the garbage collector. With Python's (700, 10, 10), it walks over all buffered events every second or
two, though they leave no cycles, and a replay of events with action sets takes a tenth longer."""


def set_up_process() -> None:
    """Set up the process of any command, before numpy is imported.

    BLAS gets one thread unless the environment says otherwise: more threads triple the processor time of our small
    matrices. The working directory becomes the last entry of the module path, so that a configuration can name Python
    code there.
    """
    if "" not in sys.path:
        sys.path.append("")
    for variable in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ.setdefault(variable, "1")
    keep_freed_memory()
    gc.set_threshold(*COLLECT_AFTER)


def return_large_arrays() -> bool:
    """Let glibc return large arrays to the system. For `run` and `demo`, before a state is loaded.

    Snapshots and fetched messages are such arrays. If the threads that made them kept their memory, a daemon would take
    50 to 70 MiB more, growing by the hour. A replay has no such threads, and would take 7 % more processor time.

    Returns:
        False if the C library has no such setting.
    """
    return keep_freed_memory(MAX_DAEMON_HEAP_ARRAY_BYTES)


def make_responsive() -> None:
    """Let requests be answered during work. For `run` and `demo`, before the first event.

    Everything that exists now is exempt from garbage collection, since a full collection would stop the loop and every
    request for 50 to 200 ms.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    gc.collect()
    gc.freeze()


def keep_freed_memory(max_array_bytes: int = MAX_HEAP_ARRAY_BYTES) -> bool:
    """Let glibc keep freed memory up to a limit, as mallopt(3) describes.

    By default, glibc returns the memory of each run of blocks, and gets it back page by page for the next one. A replay
    then has five times as many page faults, and takes a tenth longer.

    Args:
        max_array_bytes: Size above which arrays are not on the heap, and their memory is returned.

    Returns:
        False if the C library has no such setting.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    return bool(mallopt(MMAP_THRESHOLD, max_array_bytes) and mallopt(TRIM_THRESHOLD, MAX_FREE_BYTES))


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first SIGTERM or SIGINT. A second one ends the process at once."""
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
def hangup_handler(call: Callable[[], object]) -> Iterator[None]:
    """Call a function on SIGHUP, which would otherwise end the process."""
    with _handling(lambda _: call(), signal.SIGHUP):
        yield


@contextmanager
def watching(path: Path, call: Callable[[], object]) -> Iterator[None]:
    """Call a function when the content of a file has changed, and is the same in two readings `WATCH_SECONDS` apart.

    A file that is missing or cannot be read for a while is no change.
    """
    ended = threading.Event()
    known = before = _content(path)

    def watch() -> None:
        nonlocal known, before
        while not ended.wait(WATCH_SECONDS):
            now = _content(path)
            if now is not None and now == before and now != known:
                known = now
                call()
            before = now

    threading.Thread(target=watch, name="streameval-watch", daemon=True).start()
    try:
        yield
    finally:
        ended.set()


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


@contextmanager
def _handling(handle: Callable[[int], object], *numbers: signal.Signals) -> Iterator[None]:
    """Handle signals in the main thread, the only one that can. Other threads change nothing."""
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    previous = {number: signal.signal(number, lambda number, _: handle(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
