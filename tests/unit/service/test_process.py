"""Set up the process of a daemon, so that requests are answered during work."""

from __future__ import annotations

import gc
import sys

from streameval.service.process import make_responsive


def test_only_objects_loaded_at_start_are_exempt_from_garbage_collection() -> None:
    interval = sys.getswitchinterval()
    try:
        make_responsive()
        assert gc.get_freeze_count() > 10_000
        assert sys.getswitchinterval() == 0.001
        cycle: list[object] = [[]]
        cycle[0] = [cycle]
        del cycle
        assert gc.collect() >= 2
    finally:
        gc.unfreeze()
        sys.setswitchinterval(interval)
