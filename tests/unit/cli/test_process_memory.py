"""Memory that arrays free is reused, without a page fault for each page."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from streameval.cli.process import keep_freed_memory

PAGES = 25_000_000 // resource.getpagesize()
COUNTED = """
import resource
import numpy as np
from streameval.cli.process import keep_freed_memory
keep_freed_memory()
[np.ones(625_000) for _ in range(5)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
[np.ones(625_000) for _ in range(5)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

RETURNED = """
import resource, time
from pathlib import Path
import numpy as np
from streameval.cli.process import keep_freed_memory, trimming_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

keep_freed_memory()
made = [(np.ones(60_000), np.ones(500)) for _ in range(100)]
needed = [small for _, small in made]
del made
before = resident()
with trimming_memory(0.05):
    for _ in range(600):
        time.sleep(0.1)
        if resident() < before - 20_000_000:
            break
print(before - resident())
"""


def test_free_memory_between_used_blocks_returns_to_the_system() -> None:
    if not keep_freed_memory():
        pytest.skip("this C library has no such setting")
    done = subprocess.run([sys.executable, "-c", RETURNED], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 20_000_000


def test_memory_freed_by_arrays_is_used_again() -> None:
    if not keep_freed_memory():
        pytest.skip("this C library has no such setting")
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True)
    assert int(done.stdout) < PAGES / 10
