"""Tell which Kafka broker a run of the tests will use, before anything is started."""

from __future__ import annotations

import os
import shutil

PROGRAMS = ("java", "openssl", "mvn")


def missing_programs() -> list[str]:
    """Return the programs for a real broker that are missing here."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


def expected_broker() -> str:
    """Return one line for the header of the run."""
    external = os.environ.get("STREAMEVAL_TEST_KAFKA")
    if external:
        return f"the broker at {external} (STREAMEVAL_TEST_KAFKA)"
    if missing := missing_programs():
        return f"librdkafka's mock cluster, because {' and '.join(missing)} cannot be found"
    return "Apache Kafka from Maven artifacts, on free ports"
