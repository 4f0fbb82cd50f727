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
from streameval.ingest.stages import ArrivalOrder, Deduplication, EventOrder, Stage
from streameval.service.startup import start_fresh
from support.messages import message
from support.paths import ROOT

BETWEEN_ROOMS, INSIDE = 25, 12
"""Classes to learn that go from room to room, and those that stay inside one.

A merge of two halves of one idea lowers a number; nothing may raise it.
"""
OFF_THE_ROAD = {"cli", "config", "engines"}
"""Packages that no event of one process passes: what they name may stay inside a room."""
PAST_ONE_PROCESS = ["ope/evaluator/merging", "ope/promotion/merged_checks.py"]
"""The parts of rooms that no event of one process passes."""
FAMILIES = {"Average", "Estimator", "IntervalMethod", "PromotionRule", "RewardModel"}
STAGES = (ArrivalOrder, Deduplication, EventOrder)
EVENTS, POLL = 2000, 1000


def room_of(module: str) -> str:
    """The room of a module: its package, such as `events`, within `ope` the part, such as `ope.averages`."""
    _, *names = module.split(".")
    return ".".join(names[: 2 if names[:1] == ["ope"] else 1])


@cache
def classes_met() -> dict[type, set[str]]:
    """The classes of the package whose instances are arguments or results of functions, from messages to a Report.

    For each the rooms of these functions.

    The messages are plain JSON events, and the configuration has only a topic and a candidate.
    """
    config = Config.model_validate({"source": {"kind": "kafka", "topic": "t"}, "policies": {"candidates": ["a"]}})
    start, met = start_fresh(config), defaultdict[type, set[str]](set)
    fields = {"policies": {"a": 0.5}, "propensity": 0.5}
    values = [message(number, timestamp=1e9 + number, reward=number % 2, **fields) for number in range(EVENTS)]

    def note(value: Any, module: str) -> None:
        for found in (value, *(value[:1] if isinstance(value, list | tuple) else ())):
            if not isinstance(found, type):  # the `cls` of a class method
                met[type(found)] |= {room_of(module)} if module.startswith("streameval.") else set()

    def profile(frame: FrameType, event: str, value: Any) -> None:
        module = frame.f_globals.get("__name__", "")
        if event == "call":
            for argument in frame.f_locals.values():
                note(argument, module)
        elif event == "return":
            note(value, module)

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
        note(part, "streameval.service")
    return {each: rooms for each, rooms in met.items() if each.__module__.startswith("streameval.")}


def class_to_learn(met: type) -> str:
    """The name of a class, or of the base of its family."""
    if issubclass(met, STAGES):
        return Stage.__name__
    return next((base.__name__ for base in met.__mro__ if base.__name__ in FAMILIES), met.__name__)


@cache
def modules_by_name() -> dict[str, set[Path]]:
    """The modules on the road that define or import each name, except those that only collect names."""
    found = defaultdict(set)
    package = ROOT / "streameval"
    left_out = [package / place for place in PAST_ONE_PROCESS]
    for path in package.rglob("*.py"):
        if any(map(path.is_relative_to, left_out)):
            continue
        for node in ast.walk(ast.parse(path.read_text())) if path.name != "__init__.py" else ():
            if isinstance(node, ast.ClassDef):
                found[node.name].add(path)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("streameval."):
                for alias in node.names:
                    found[alias.name].add(path)
    return found


def is_to_learn(met: type) -> bool:
    """Whether a class is neither a section of the configuration, nor one that no other module names."""
    if class_to_learn(met) != met.__name__:
        return True
    return not hasattr(met, "__pydantic_validator__") and len(modules_by_name()[met.__name__]) > 1


def leaves_its_room(met: type) -> bool:
    """Whether functions of another room take or return instances of a class, or a module there names it."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for path in modules_by_name()[met.__name__]}
    rooms = classes_met()[met] | {room_of(module) for module in modules}
    return not rooms - OFF_THE_ROAD <= {room_of(met.__module__)}


def test_contributing_lists_all_classes_on_the_road() -> None:
    """One of each family counts. Sections of the configuration do not, nor do classes that stay within a module."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (between,) = re.findall(r"^Classes on this road, .*?\. (\d+) go .*?:(.*?)\.\n\n", text, re.MULTILINE | re.DOTALL)
    (inside,) = re.findall(r"^(\d+) more stay inside .*?:(.*?)\.\s`tests", text, re.MULTILINE | re.DOTALL)
    every = {class_to_learn(met) for met in classes_met() if is_to_learn(met)}
    leaving = {class_to_learn(met) for met in classes_met() if is_to_learn(met) and leaves_its_room(met)}
    for (count, listed), found, most in ((between, leaving, BETWEEN_ROOMS), (inside, every - leaving, INSIDE)):
        assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(found)
        assert len(found) == int(count) <= most
