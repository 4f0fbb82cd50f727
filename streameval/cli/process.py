"""What a program of ours asks of its process: a verb of the command line may, a library in somebody's process may not.

Only `cli` knows this module (the layers in pyproject.toml hold that).

Memory that arrays free is kept for the next ones, and not for ever.
"""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # as glibc numbers them
KEPT, LARGEST = 64 << 20, 32 << 20
"""Bytes that may lie free at the end of the heap, and the largest array that is taken from there."""
EVERY = 60.0
"""Seconds after which what was kept goes back: a moment's worth of page faults is nothing among so many."""


def keep_freed_memory() -> bool:
    """Tell the C library to keep, up to a limit, what is freed: whether there is one that can be told so (glibc).

    By itself it gives back to the system what one run of blocks used, and takes it anew, page by page, for the next
    one, which costs a quarter of the time of the main loop.

    Source: mallopt(3).
    """
    mallopt = _of_the_c_library("mallopt")
    return bool(mallopt and mallopt(MMAP_THRESHOLD, LARGEST) and mallopt(TRIM_THRESHOLD, KEPT))


def give_freed_memory_back() -> bool:
    """Let the system have all pages on which nothing is needed now, also those between others: whether there were any.

    Source: malloc_trim(3).
    """
    malloc_trim = _of_the_c_library("malloc_trim")
    return bool(malloc_trim and malloc_trim(0))


@contextmanager
def lending_memory(seconds: float = EVERY) -> Iterator[None]:
    """Give back every so often what was freed and kept: a process that once had much to catch up with is small again.

    What lies between things that are still needed would else never go back, and the largest moment so far decide for
    good how much memory is taken.
    """
    ended = threading.Event()

    def give_back() -> None:
        while not ended.wait(seconds):
            give_freed_memory_back()

    thread = threading.Thread(target=give_back, name="memory", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _of_the_c_library(name: str) -> Callable[..., int] | None:
    """A function of it; None where it has none of this name."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):
        return None
    return function


SWITCH_INTERVAL = 0.001
"""Seconds after which a thread at work makes way for another: at 5 ms, Python's own, a scrape waits ten times that."""
COLLECT_AFTER = (10_000, 10, 100)
"""Objects that come between collections of the youngest, and collections of each generation between those of the next.

Thousands of events wait for their order in time, and leave no cycles behind: with Python's own numbers (700, 10, 10)
all that wait were walked over every second or two, and a replay of events with action sets takes a tenth longer.
"""


def make_quick() -> None:
    """Ask for what suits every verb; called once, before it begins.

    The library under numpy must not share out matrices: ours are small, its threads would wait for each other. Memory
    that was freed is kept, and few collections look for cycles.
    """
    threadpool_limits(limits=1, user_api="blas")
    keep_freed_memory()
    gc.set_threshold(*COLLECT_AFTER)


@contextmanager
def responsive() -> Iterator[None]:
    """Ask besides, as long as it works, for what suits a verb that answers scrapes meanwhile: `run` and `demo`.

    Begun once, when everything is loaded and before the first event. What exists now stays for good: the garbage
    collector need not walk over it again and again, at 50 to 200 ms a time in which neither loop nor scrape moves. And
    memory that was freed is kept for a minute only, since such a verb runs for months.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()
    with lending_memory():
        yield
