"""How the interpreter divides its time between the loop that counts events and the thread that answers scrapes."""

from __future__ import annotations

import gc
import sys

SWITCH_INTERVAL = 0.001
"""Seconds after which a thread at work makes way for another: at 5 ms, Python's own, a scrape waits ten times that."""


def make_responsive() -> None:
    """Called once, when everything is loaded and before the first event.

    What exists now stays for good: the garbage collector need not walk over it again and again, at 50 to 200 ms a time
    in which neither loop nor scrape moves.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    gc.collect()
    gc.freeze()
