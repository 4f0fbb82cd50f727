"""What the loop and the scrape wait for in the interpreter, in a process of its own: it is changed for good."""

from __future__ import annotations

import json
import os
import subprocess
import sys

MEASURED = """
import gc, json, sys, time
import streameval.cli, streameval.running, streameval.sinks.http
from streameval.interpreter import make_responsive

def seconds():
    started = time.perf_counter()
    gc.collect()
    return time.perf_counter() - started

before = min(seconds() for _ in range(5))
make_responsive()
after = min(seconds() for _ in range(5))
kept = [[]]
kept[0].append(kept)
del kept
print(json.dumps({"before": before, "after": after, "found": gc.collect(), "interval": sys.getswitchinterval()}))
"""

THREADS = """
import sys
from threadpoolctl import threadpool_info
sys.argv = ["streameval", "--version"]
from streameval.cli import main
try:
    main()
finally:
    print(max(each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"))
"""


def test_a_full_garbage_collection_no_longer_walks_over_what_was_loaded_and_still_finds_what_is_new() -> None:
    found = json.loads(subprocess.run([sys.executable, "-c", MEASURED], check=True, capture_output=True).stdout)
    assert found["after"] < 0.2 * found["before"]
    assert found["found"] >= 2
    assert found["interval"] == 0.001


def test_matrices_are_computed_in_one_thread_whatever_the_environment_says() -> None:
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", THREADS], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "1"
