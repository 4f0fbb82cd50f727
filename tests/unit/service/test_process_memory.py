"""Reuse the memory of freed arrays without a page fault for each page."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from streameval.service.process import keep_freed_memory

PAGES = 25_000_000 // resource.getpagesize()
COUNTED = """
import resource
import numpy as np
from streameval.service.process import keep_freed_memory
keep_freed_memory()
[np.ones(625_000) for _ in range(5)]
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
[np.ones(625_000) for _ in range(5)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_memory_freed_by_arrays_is_used_again() -> None:
    if not keep_freed_memory():
        pytest.skip("this C library has no such setting")
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True)
    assert int(done.stdout) < PAGES / 10


LEFT = """
import resource, threading
from pathlib import Path
from streameval.service.process import keep_freed_memory, return_large_arrays

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6

def grow():
    document = bytearray()
    for _ in range(30):
        document += bytes(1_000_000)

keep_freed_memory()
return_large_arrays()
before = megabytes()
for _ in range(4):
    thread = threading.Thread(target=grow)
    thread.start()
    thread.join()
print(megabytes() - before)
"""


def test_threads_of_a_daemon_keep_no_large_array() -> None:
    if not keep_freed_memory():
        pytest.skip("this C library has no such setting")
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 10
