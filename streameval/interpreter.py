"""What a program of ours asks of the interpreter and of its libraries: time goes to the loop and to scrapes."""

from __future__ import annotations

import gc
import sys

from threadpoolctl import threadpool_limits

SWITCH_INTERVAL = 0.001
"""Seconds after which a thread at work makes way for another: at 5 ms, Python's own, a scrape waits ten times that."""
COLLECT_AFTER = (10_000, 10, 100)
"""Objects that come between collections of the youngest, and collections of each generation between those of the next.

Thousands of events wait for their order in time, and leave no cycles behind: with Python's own numbers (700, 10, 10)
all that wait were walked over every second or two.
"""


def make_responsive() -> None:
    """Called once, when everything is loaded and before the first event.

    What exists now stays for good: the garbage collector need not walk over it again and again, at 50 to 200 ms a time
    in which neither loop nor scrape moves.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def compute_in_one_thread() -> None:
    """Keep the library under numpy from sharing out matrices: ours are small, its threads would wait for each other."""
    threadpool_limits(limits=1, user_api="blas")
