"""Do the lists of one event fit together? Where they do not, they cannot become columns, and the event is malformed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streameval.common.text import counted
from streameval.events.schema import Event, Identifier, Slot, policy_cells, policy_names


def misfit(event: Event | Slot) -> str | None:
    """The first thing that does not fit, as `field: problem`; None when all of it does."""
    return None if _fits(event) else next(_misfits(event))


def _fits(event: Event | Slot) -> bool:
    lists: list[Any] = [cell for cell in policy_cells(event.policies) if cell.__class__ is list]
    lists += [values for values in (event.propensities, event.features) if values is not None]
    if event.actions is None:
        return not lists
    actions = len(event.actions)
    widths = set(map(len, event.features or ()))
    return 0 < actions == len(set(event.actions)) and {actions}.issuperset(map(len, lists)) and len(widths) <= 1


def _misfits(event: Event | Slot) -> Iterator[str]:
    actions, rows = event.actions or [], event.features or []
    if event.actions is not None and not actions:
        yield "actions: empty"
    seen: set[Identifier] = set()
    for action in actions:
        if action in seen:
            yield f"actions: {action!r} is listed twice"
        seen.add(action)
    for name, values in _lists(event):
        if event.actions is None:
            yield f"{name}: a list over actions, but `actions` is missing"
        elif len(values) != len(actions):
            yield f"{name}: {counted(len(values), 'entry')} for {counted(len(actions), 'action')}"
    for place, row in enumerate(rows):
        if len(row) != len(rows[0]):
            yield f"features[{place}]: {counted(len(row), 'number')}, where features[0] has {len(rows[0])}"


def _lists(event: Event | Slot) -> Iterator[tuple[str, list[Any]]]:
    cells = zip(policy_names(event.policies), policy_cells(event.policies), strict=True)
    named = {"propensities": event.propensities, "features": event.features}
    for name, values in (named | {f"policies.{policy}": cell for policy, cell in cells}).items():
        if isinstance(values, list):
            yield name, values
