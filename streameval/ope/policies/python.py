"""Run policies in the user's code: find them by name, and call them so that a failure affects that policy alone."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from streameval.common.arrays import Array
from streameval.common.foreign_code import CodeError, foreign_code, numbers
from streameval.common.text import counted
from streameval.errors import ConfigError
from streameval.events import ActionSets, Fault, RawFields
from streameval.events.action_sets import UNREADABLE, Index


@dataclass(frozen=True, slots=True)
class Decisions:
    """Hold the decisions of n events for a policy in code, as lists of n.

    Attributes:
        contexts: the contexts as Python values, None if the event has none
        actions: the actions to choose from, or their positions if events came as arrays
        features: one row for each action [actions, d], None if the event has none
    """

    contexts: Sequence[Any]
    actions: Sequence[Sequence[Any]]
    features: Sequence[Array | None]

    def __len__(self) -> int:
        return len(self.contexts)


TAKES_MANY = "; it takes the contexts, actions and features of many events, as lists"
ROWS = "return one list of probabilities for each event"
NO_CONTEXT = "; the event has no context: name its columns, e.g. columns={'context': ['country']}"
NO_CONTEXT_IN_ARRAYS = "; the event has no context: give contexts to EventBatch.from_arrays(context=...)"
Policy: TypeAlias = Callable[[Decisions], Sequence[ArrayLike]]


def make(target: str, options: Mapping[str, Any]) -> Any:
    """Return the object that `package.module:factory` makes of the options.

    Raises:
        ConfigError: The factory is missing or fails.
    """
    factory = find(target)
    try:
        with foreign_code():
            return factory(**options)
    except CodeError as error:
        raise ConfigError(
            f"{target} fails with the options {dict(options)}: {error}",
            hint="it is called once, with the options as keywords",
        ) from error


def find(target: str) -> Callable[..., Any]:
    """Return the factory called `package.module:factory`.

    Raises:
        ConfigError: There is no such factory.
    """
    module_name, _, name = target.partition(":")
    try:
        with foreign_code():
            target_object: Any = importlib.import_module(module_name)
    except CodeError as error:
        raise ConfigError(
            f"the module {module_name} cannot be imported: {error}",
            hint="install it, put its directory on PYTHONPATH, or run streameval in that directory",
        ) from error
    for attribute in name.split("."):
        target_object = getattr(target_object, attribute, None)
    if not callable(target_object):
        raise ConfigError(
            f"the module {module_name} has no function {name}", hint="write target: package.module:factory"
        )
    return target_object  # type: ignore[no-any-return]


def ask_policy(policy: Policy, sets: ActionSets, raw_fields: RawFields) -> tuple[Array, dict[int, Fault]]:
    """Return the distributions of a policy over the rows of the sets, and the reason for each event without one."""
    rows, events = np.full(len(sets.propensities), np.nan), np.flatnonzero(sets.sizes)
    unreadable = {event: raw_fields.values[event].get(UNREADABLE) for event in events.tolist()}
    faults = {event: Fault(*fault) for event, fault in unreadable.items() if fault}
    waiting = [np.setdiff1d(events, list(faults), assume_unique=True)]
    while waiting:
        events = waiting.pop()
        answers = _answers(policy, sets, raw_fields, events) if len(events) else []
        if len(answers) != len(events):  # some event is at fault, so search by halves
            waiting += [events[: len(events) // 2], events[len(events) // 2 :]]
            continue
        for event, answer in zip(events.tolist(), answers, strict=True):
            fault = _write(rows[sets.offsets[event] : sets.offsets[event + 1]], answer)
            if fault:
                faults[event] = fault
    return rows, faults


def _answers(policy: Policy, sets: ActionSets, raw_fields: RawFields, numbers: Index) -> Sequence[Any]:
    """Return the answers of a policy, one for each event.

    If it fails for one of several events, there are none, or another number of them.
    """
    decisions, events = decisions_of(sets, raw_fields, numbers), len(numbers)
    try:
        with foreign_code():
            answer: Any = policy(decisions)
            if isinstance(answer, str | bytes):
                return [Fault("malformed", f"the function returned text; {ROWS}")] * events
            answer = np.asarray(answer) if hasattr(answer, "columns") else answer  # a frame would give its names
            # an iterator may never end
            answers = list(islice(answer, events + 1)) if isinstance(answer, Iterable) else [answer] * events
    except CodeError as error:
        if "'Decisions'" in str(error):
            return [Fault("raised", f"{error}{TAKES_MANY}")] if events == 1 else []
        hint = NO_CONTEXT if "context" in raw_fields.values[numbers[0]] else NO_CONTEXT_IN_ARRAYS
        hint = "" if any(decisions.contexts) else hint
        return [Fault("raised", f"{error}{hint}")] if events == 1 else []
    if events == 1 and len(answers) != 1:
        return [
            Fault("malformed", f"the function returned {'2 or more rows' if answers else 'no row'} for 1 event; {ROWS}")
        ]
    return answers


def decisions_of(sets: ActionSets, raw_fields: RawFields, events: Any) -> Decisions:
    """Return these events, by their numbers, as a policy in code reads them."""
    chosen = [raw_fields.values[event] for event in events.tolist()]
    rows = [slice(*sets.offsets[event : event + 2].tolist()) for event in events]
    sizes = [span.stop - span.start for span in rows]
    return Decisions(
        contexts=[fields.get("context") for fields in chosen],
        actions=[fields.get("actions") or list(range(size)) for fields, size in zip(chosen, sizes, strict=True)],
        features=[_table(sets, event) for event in events.tolist()],
    )


def _expected(actions: int) -> str:
    return f"expected one probability for each of {counted(actions, 'action')}"


def _table(sets: ActionSets, event: int) -> Array | None:
    """Return a copy of the features of an event's actions, or None without any."""
    width = int(sets.widths[event])
    if sets.features is None or not width:
        return None
    return sets.features.values[slice(*sets.features.offsets[event : event + 2])].reshape(-1, width).copy()


def _write(rows: Array, answer: Any) -> Fault | None:
    """Copy a distribution to its rows. Return a fault if it does not fit."""
    if isinstance(answer, Fault):
        return answer
    try:
        rows[:] = numbers(answer, len(rows))
    except CodeError:
        return Fault("malformed", f"{type(answer).__name__} is not a list of numbers; {_expected(len(rows))}")
    except ValueError as error:
        return Fault("malformed", f"{error}; {_expected(len(rows))}")
    return None
