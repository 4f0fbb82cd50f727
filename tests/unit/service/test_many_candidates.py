"""Check that the work for a Report and its displays grows no faster than the number of candidates."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest

from streameval import Evaluator, EventBatch
from streameval.ingest.base import SourceStatus
from streameval.ope.answer import answers
from streameval.service.metrics import metrics_text
from streameval.service.status import DaemonStatus, History
from streameval.service.status_page.page import StatusPage

FEW, MANY = 30, 120
"""Numbers of candidates."""
MUCH_FASTER = 1.5
"""The number of steps may grow this many times as fast as the number of candidates; one that grows with its square
grows four times as fast here."""


def evaluator_of(candidates: int) -> Evaluator:
    """Return an evaluator after two thousand events."""
    rng = np.random.default_rng(4)
    names = [f"candidate-{number}" for number in range(candidates)]
    propensity = rng.uniform(0.1, 0.9, 2_000)
    targets = {name: propensity * rng.random(2_000) for name in names}
    evaluator = Evaluator(names)
    evaluator.update(EventBatch.from_arrays(reward=rng.random(2_000) < 0.3, propensity=propensity, policies=targets))
    evaluator.fold_pending()
    return evaluator


def steps(work: Callable[[], object]) -> int:
    """Return how many lines of Python `work` executes, with repetitions."""
    count, before = 0, sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def status_of(evaluator: Evaluator) -> DaemonStatus:
    report = evaluator.report()
    history = History().after(1.0, report).after(2.0, report)
    return DaemonStatus(source=SourceStatus(reached=True), at=3.0, report=report, history=history)


WORKS: dict[str, Callable[[Evaluator], Callable[[], object]]] = {
    "report": lambda evaluator: evaluator.report,
    "answers": lambda evaluator: partial(answers, evaluator.report()),
    "metrics": lambda evaluator: partial(metrics_text, status_of(evaluator)),
    "page": lambda evaluator: partial(StatusPage().render, status_of(evaluator)),
}


@pytest.mark.parametrize("kind", WORKS)
def test_the_work_grows_no_faster_than_the_number_of_candidates(kind: str) -> None:
    few, many = (WORKS[kind](evaluator_of(number)) for number in (FEW, MANY))
    for work in (few, many):
        work()  # some parts are made once
    assert steps(many) < MUCH_FASTER * MANY / FEW * steps(few)
