"""The road of one event: the classes on it are those that CONTRIBUTING lists, and no more."""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from streameval.config.model import Config
from streameval.ingest.base import Records
from streameval.ingest.stages import ArrivalOrder, Deduplication, EventOrder, RewardRange, Stage
from streameval.service.startup import start_fresh
from support.messages import message
from support.paths import ROOT

MOST = 37
"""Classes to learn. A merge of two halves of one idea lowers the number; nothing may raise it."""
FAMILIES = {"Average", "Estimator", "IntervalMethod", "PromotionRule", "RewardModel"}
STAGES = (ArrivalOrder, Deduplication, EventOrder, RewardRange)
EVENTS, POLL = 8000, 2000


def classes_met() -> set[type]:
    """The classes of the package whose instances are arguments or results of functions, from messages to a Report.

    The messages are plain JSON events, and the configuration has only a topic and a candidate.
    """
    config = Config.model_validate({"source": {"kind": "kafka", "topic": "t"}, "policies": {"candidates": ["a"]}})
    start, met = start_fresh(config), set[type]()
    fields = {"policies": {"a": 0.5}, "propensity": 0.5}
    values = [message(number, timestamp=1e9 + number, reward=number % 2, **fields) for number in range(EVENTS)]

    def note(value: Any) -> None:
        for found in (value, *(value[:1] if isinstance(value, list | tuple) else ())):
            met.add(type(found))

    def profile(frame: FrameType, event: str, value: Any) -> None:
        if event == "call":
            for argument in frame.f_locals.values():
                note(argument)
        elif event == "return":
            note(value)

    sys.setprofile(profile)
    try:
        for first in range(0, EVENTS, POLL):
            records = [Records("t", 0, range(first, first + POLL), values[first : first + POLL])]
            start.evaluator.update(start.pipeline.take(records, {("t", 0): None}, 2e9))
        start.evaluator.fold_pending()
        report = start.evaluator.report(2e9)
    finally:
        sys.setprofile(None)
    for part in (report.events, report.policies, report.estimates, report.promotion, report.trust, report.transitions):
        note(part)
    return {each for each in met if each.__module__.startswith("streameval.")}


def class_to_learn(met: type) -> str:
    """The name of a class, or of the base of its family."""
    if issubclass(met, STAGES):
        return Stage.__name__
    return next((base.__name__ for base in met.__mro__ if base.__name__ in FAMILIES), met.__name__)


@cache
def modules_by_name() -> dict[str, set[Path]]:
    """The modules of the package in which each name occurs, except those that only collect names."""
    found = defaultdict(set)
    for path in (ROOT / "streameval").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())) if path.name != "__init__.py" else ():
            if isinstance(node, ast.Name | ast.ClassDef | ast.Attribute):
                found[node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None) or node.name].add(
                    path
                )
    return found


def is_to_learn(met: type) -> bool:
    """Whether a class is neither a section of the configuration, nor one that no other module names."""
    if class_to_learn(met) != met.__name__:
        return True
    return not hasattr(met, "__pydantic_validator__") and len(modules_by_name()[met.__name__]) > 1


def test_contributing_lists_all_classes_on_the_road() -> None:
    """One of each family counts. Sections of the configuration do not, nor do classes that stay within a module."""
    found = {class_to_learn(met) for met in classes_met() if is_to_learn(met)}
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (listed,) = re.findall(r"^Classes on this road, .*?\.\s`tests", text, re.MULTILINE | re.DOTALL)
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(found)
    assert len(found) <= MOST
