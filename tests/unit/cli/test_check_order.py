"""Test the warning of `check` that events arrive too late for their order, and its remedy."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from streameval.cli import check
from streameval.config.model import Config
from streameval.ingest.base import PartitionStatus, SourceStatus
from support.delayed_writers import TOPIC, LiveReading, Writers
from support.messages import message

CONFIG = Config.model_validate({"source": {"topic": TOPIC}, "policies": {"candidates": ["challenger"]}})


def hints(writers: Writers, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the hints about the order that the first events of these writers cause."""
    log = list(writers.log(2_000, seed=0))[: check.SAMPLED_EVENTS]
    values: list[bytes | None] = [
        message(number, timestamp=timestamp, policies={"challenger": 0.5})
        for number, (_, _, timestamp) in enumerate(log)
    ]
    partitions = tuple(PartitionStatus(TOPIC, number, 0, 0) for number in range(writers.partitions))
    sample = check.Probe(SourceStatus(True, partitions=partitions), 2_000, values, [sent for sent, _, _ in log])
    monkeypatch.setattr(check, "probe", lambda source: sample)
    return [finding.hint for finding in check.check_events(CONFIG) if finding.part == "source.max_lateness"]


@pytest.mark.parametrize(
    "writers",
    [Writers(flush=30.0, stagger=2.0, hosts=3), Writers(flush=30.0, stagger=4.0), Writers(flush=60.0, stagger=4.0)],
)
def test_the_hint_of_check_keeps_the_order(writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    (hint,) = hints(writers, monkeypatch)
    match = re.fullmatch(r"increase source\.max_lateness to (\d+s) to keep the order", hint)
    assert match is not None
    reading = LiveReading(writers, events=2_000, max_lateness=match[1])
    assert sum(later < earlier for earlier, later in pairwise(reading.times)) < 0.01 * 2_000


def test_check_has_no_hint_for_writers_that_send_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not hints(Writers(), monkeypatch)
