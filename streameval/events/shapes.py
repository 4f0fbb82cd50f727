"""Do the lists of one event fit together? Where they do not, they cannot become columns, and the event is malformed."""

from __future__ import annotations

from streameval.events.wire import Event, Identifier, policy_items


def has_lists(event: Event) -> bool:
    """Whether the event has anything per action, its policies aside."""
    return event.actions is not None or event.propensities is not None or event.features is not None


def misfit(event: Event) -> str | None:
    """The first thing that does not fit, as `field: problem`; None when all of it does."""
    if event.actions is None:
        return _needs_actions(event)
    return _not_distinct(event.actions) or _wrong_length(event, len(event.actions)) or _ragged(event.features or [])


def _needs_actions(event: Event) -> str | None:
    lists = {"propensities": event.propensities, "features": event.features} | _distributions(event)
    given = [name for name, values in lists.items() if values is not None]
    return f"{given[0]}: a list over actions, but `actions` is missing" if given else None


def _not_distinct(actions: list[Identifier]) -> str | None:
    if not actions:
        return "actions: empty"
    if len(set(actions)) == len(actions):
        return None
    twice = next(action for place, action in enumerate(actions) if action in actions[:place])
    return f"actions: {twice!r} is listed twice"


def _wrong_length(event: Event, expected: int) -> str | None:
    lists = {"propensities": event.propensities, "features": event.features} | _distributions(event)
    for name, values in lists.items():
        if values is not None and len(values) != expected:
            return f"{name}: {len(values)} entries for {expected} actions"
    return None


def _ragged(rows: list[list[float]]) -> str | None:
    for place, row in enumerate(rows):
        if len(row) != len(rows[0]):
            return f"features[{place}]: {len(row)} numbers, where features[0] has {len(rows[0])}"
    return None


def _distributions(event: Event) -> dict[str, list[float]]:
    return {f"policies.{name}": cell for name, cell in policy_items(event.policies) if isinstance(cell, list)}
