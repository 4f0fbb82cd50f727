"""Propose `columns` for a log with its own names of fields, by the names and values of its first messages."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import msgspec
import yaml

from streameval.config.model import Config
from streameval.events.diagnosis import DECODE_ERRORS
from streameval.events.frames import unframed
from streameval.events.records import read_cell

MAX_DEPTH = 4
"""Objects inside of each other that are looked into."""
MAX_NAMES = 100
"""Names that are looked at, and that a message lists."""
MIN_SECONDS = 1e8
"""1973: smaller numbers are not taken for times."""
POLICIES = "policies."
ENOUGH = 0.5
"""Share of the messages that have a field under its name. With fewer, another name is looked for."""

Values: TypeAlias = Sequence[Any]
"""The values of one name, without null, in the messages that have it."""


def _all(is_one: Callable[[Any], bool]) -> Callable[[Values], bool]:
    return lambda values: all(map(is_one, values))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _is_time(value: Any) -> bool:
    if isinstance(value, str):
        with suppress(ValueError):
            return bool(datetime.fromisoformat(value))
    return _is_number(value) and value >= MIN_SECONDS


def _is_probability(value: Any) -> bool:
    return _is_number(value) and not isinstance(value, bool) and 0 <= value <= 1


def _is_distribution(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_probability, value))


def _is_name(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _are_ids(values: Values) -> bool:
    return all(map(_is_name, values)) and len(set(values)) > len(values) / 2


@dataclass(frozen=True)
class Look:
    """Tell what the name and the values of a field look like.

    Attributes:
        names: usual names, the most telling one first
        fits: whether values can be the field's
        is_required: whether events need the field
    """

    names: Sequence[str]
    fits: Callable[[Values], bool]
    is_required: bool = True


LOOKS: Mapping[str, Look] = {
    "propensity": Look(
        ("propensity", "propensity_score", "pscore", "prob", "probability", "action_prob", "p", "score"),
        lambda values: all(map(_is_probability, values)) and min(values) > 0,
    ),
    "timestamp": Look(
        ("timestamp", "event_time", "ts", "time", "datetime", "created_at", "occurred_at", "at", "date", "created"),
        _all(_is_time),
    ),
    "event_id": Look(
        ("event_id", "decision_id", "request_id", "impression_id", "message_id", "uuid", "guid", "key", "id"),
        _are_ids,
    ),
    "reward": Look(
        (
            "reward",
            "click",
            "clicked",
            "clicks",
            "conversion",
            "converted",
            "purchase",
            "purchased",
            "bought",
            "revenue",
            "outcome",
            "label",
            "feedback",
            "result",
            "value",
            "r",
            "y",
        ),
        _all(_is_number),
    ),
    "action": Look(
        (
            "action",
            "arm",
            "chosen",
            "choice",
            "decision",
            "variant",
            "treatment",
            "banner",
            "item",
            "item_id",
            "product",
            "product_id",
            "article",
            "offer",
            "creative",
            "ad",
            "shown",
            "a",
        ),
        _all(_is_name),
    ),
    "actions": Look(
        ("actions", "arms", "choices", "options", "items"), _all(lambda value: isinstance(value, list)), False
    ),
    "propensities": Look(("propensities", "probs", "probabilities", "distribution"), _all(_is_distribution), False),
    "context": Look(("context", "features", "ctx"), _all(lambda value: isinstance(value, dict)), False),
    "unit": Look(
        ("unit", "user_id", "user", "visitor", "visitor_id", "session", "session_id", "customer_id", "member_id"),
        _all(_is_name),
        False,
    ),
}
"""In the order in which fields choose their names."""


def records_of(messages: Iterable[bytes | None], *, are_cells: bool = False) -> list[dict[str, Any]]:
    """Return the messages that are JSON objects.

    Args:
        messages: JSON, with or without the frame of a serializer
        are_cells: values are the text of cells of CSV
    """
    records = []
    for message in messages:
        with suppress(*DECODE_ERRORS):
            record = msgspec.json.decode(unframed(message or b""), type=dict[str, Any])
            records.append({name: read_cell(text, "reward") for name, text in record.items()} if are_cells else record)
    return records


def values_by_name(records: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each path, such as `choice.p`, in the order of their first appearance."""
    values: dict[str, list[Any]] = {}
    for record in records:
        for path, value in _paths(record):
            if path in values or len(values) < MAX_NAMES:
                values.setdefault(path, []).append(value)
    return values


def _paths(record: Mapping[str, Any], prefix: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if value is None:
            continue
        yield prefix + name, value
        for inner, item in _objects(value) if depth < MAX_DEPTH else ():
            yield from _paths(item, f"{prefix}{name}.{inner}", depth + 1)


def _objects(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects in a value, each with the steps to it: an object in a list is found by its first text."""
    if isinstance(value, dict):
        yield "", value
    for item in value if isinstance(value, list) else ():
        name = next((text for text in item.values() if isinstance(text, str)), "") if isinstance(item, dict) else ""
        if name and "." not in name:
            yield f"{name}.", item


def proposed_columns(config: Config, records: Sequence[Mapping[str, Any]]) -> tuple[list[str], dict[str, str]]:
    """Return the fields that most messages lack, and the names that look like one, by field or `policies.NAME`.

    Args:
        config: tells the fields that are needed, and the names that they have now
        records: the first messages
    """
    values, columns = values_by_name(records), config.columns
    names = {field: getattr(columns, field) for field in LOOKS} | {"event_id": columns.event_id or "event_id"}
    names["reward"] = columns.reward or config.reward_field

    may_come_later = config.candidates_topic is not None
    policies = () if may_come_later else config.evaluator_config().logged_policies
    paths = {POLICIES + name: columns.policies.get(name, POLICIES + name) for name in policies}
    absent = [name.removeprefix(POLICIES) for name in _lacking(paths, values, len(records))]
    lacking = _lacking(names, values, len(records))
    unused = {path: some for path, some in values.items() if path not in names.values()}
    found: dict[str, str] = {}
    for policy in absent:
        if (path := _of_policy(policy, unused)) is not None:
            found[POLICIES + policy] = path
            del unused[path]
    found |= _alike(lacking, unused)
    has_lists = {"actions", "propensities"} & set(lacking) <= set(found)
    unneeded = {"propensity"} if has_lists or config.propensity is not None else set()
    unneeded |= {"reward"} if config.reward_topic is not None else set()
    missing = [field for field in lacking if LOOKS[field].is_required and field not in unneeded]
    return missing + [POLICIES + policy for policy in absent], found


def _lacking(names: Mapping[str, str | list[str]], values: Mapping[str, Values], messages: int) -> list[str]:
    """Return the fields that most messages do not have under their names."""

    def is_there(name: str | list[str]) -> bool:
        return isinstance(name, list) or len(values.get(name, ())) >= ENOUGH * messages

    return [field for field, name in names.items() if not is_there(name)]


def _alike(fields: Iterable[str], unused: dict[str, list[Any]]) -> dict[str, str]:
    """Return the path that looks most like each field, and remove it from the unused ones."""
    found = {}
    for field in fields:
        if (path := _like(LOOKS[field], unused)) is not None:
            found[field] = path
            del unused[path]
    return found


def _like(look: Look, values: Mapping[str, Values]) -> str | None:
    """Return the path that looks most like a field, None if none does."""
    ranked = []
    for path, some in values.items():
        rank = _rank(path, look.names)
        if rank < math.inf and look.fits(some):
            ranked.append((rank, path.count("."), path))
    return min(ranked)[2] if ranked else None


def _rank(path: str, names: Sequence[str]) -> float:
    """Return the position of the last name of a path in a list. A name that only ends in a listed one comes later."""
    words = _words(path.rpartition(".")[2])
    for rank, name in enumerate(names):
        if words == _words(name):
            return rank
    ends = [rank for rank, name in enumerate(names) if words[-1:] == [name] and len(name) > 1]
    return len(names) + ends[0] if ends else math.inf


def _of_policy(policy: str, values: Mapping[str, Values]) -> str | None:
    """Return the path of the probability of a policy: it has the words of its name, or is inside of such an object."""
    name = set(_words(policy))
    fitting = [
        path
        for path, some in values.items()
        if name <= {word for part in path.split(".") for word in _words(part)}
        if all(_is_probability(value) or _is_distribution(value) for value in some)
    ]
    return min(fitting, key=lambda path: (path.count("."), len(path)), default=None)


def _words(name: str) -> list[str]:
    """Return the words of a name.

    >>> _words("eventTime"), _words("p_new-v2")
    (['event', 'time'], ['p', 'new', 'v2'])
    """
    return [word.lower() for word in re.findall(r"[A-Z]?[^\W_A-Z]+|[A-Z]+(?![^\W_A-Z])", name)]


def columns_hint(config: Config, missing: Sequence[str], proposed: Mapping[str, Any]) -> str:
    """Return what to do about fields that events lack.

    Args:
        config: the configuration, with `columns` of its own
        missing: the fields that events lack
        proposed: the names that were found
    """
    unlike, hints = [field for field in missing if field not in proposed], []
    if proposed:
        hints.append(_copying(proposed, {"columns": _section(config, proposed)}))
    if unlike:
        hints.append(f"{', '.join(unlike)}: log it, or name it in `columns`")
    if "reward" in unlike:
        hints.append("if rewards come later, set source.rewards")
    return "\n".join(hints)


def reward_columns_hint(config: Config, records: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the names of fields that rewards seem to have, None if there are none.

    Args:
        config: the configuration, with a topic of rewards
        records: the first messages of this topic
    """
    assert config.reward_topic is not None
    columns = config.reward_topic.columns
    names = {"timestamp": columns.timestamp or "timestamp", "event_id": columns.event_id or "event_id"}
    names["reward"] = columns.reward or config.reward_field
    values = values_by_name(records)
    unused = {path: some for path, some in values.items() if path not in names.values()}
    found = _alike(_lacking(names, values, len(records)), unused)
    own = columns.model_dump(exclude_none=True) | found
    return _copying(found, {"source": {"rewards": {"columns": own}}}) if found else None


def _copying(proposed: Mapping[str, str], section: Mapping[str, Any]) -> str:
    likeness = ", ".join(f"'{path}' looks like {field}" for field, path in proposed.items())
    text = yaml.safe_dump(dict(section), sort_keys=False, allow_unicode=True, width=math.inf).rstrip()
    return f"{likeness}; if so, copy into the configuration:\n{text}"


def _section(config: Config, proposed: Mapping[str, str]) -> dict[str, Any]:
    """Return the section `columns`, with the names that the configuration has already."""
    columns = config.columns.model_dump(exclude_defaults=True)
    policies = columns.pop("policies", {})
    columns |= {field: path for field, path in proposed.items() if not field.startswith(POLICIES)}
    policies |= {field.removeprefix(POLICIES): path for field, path in proposed.items() if field.startswith(POLICIES)}
    return columns | ({"policies": policies} if policies else {})
