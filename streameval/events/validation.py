"""Check events, and reject those that break a rule.

Types are checked by the decoder. Lists of one event are checked before they become columns, everything else is checked
on whole columns. `EventLogger`, files, frames, arrays and Kafka all use these rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
from msgspec import UNSET
from numpy.typing import NDArray

from streameval.common.arrays import Array, Mask
from streameval.common.text import counted
from streameval.events.action_sets import ActionSets, Ragged, ScoredOutcomes
from streameval.events.plackett_luce import has_few_prefixes, max_spread
from streameval.events.schema import (
    MAX_TIMESTAMP,
    NOISE,
    ROUNDING_ERROR,
    Event,
    Identifier,
    Slot,
    named_cells,
    policy_cells,
)
from streameval.events.slates import SlateColumns

REASONS: tuple[str, ...] = (
    "malformed",
    "missing_field",
    "propensity_range",
    "probability_range",
    "distribution_sum",
    "reward_range",
    "not_finite",
    "unknown_action",
    "inconsistent_propensity",
    "duplicate",
    "too_late",
    "unreadable_batch",
)

MAX_DETAIL = 500  # characters


class Fault(NamedTuple):
    """Hold the reason, one of `REASONS`, and the detail of a rejection."""

    reason: str
    detail: str


class Rejected(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """Hold a message that is not an event.

    Attributes:
        reason: one of `REASONS`
        detail: the problem for a person to read, as `field: problem`
        value: the message, for the dead letters, or empty for a tombstone, a row of a table, or an event rejected later
        place: index of the message among the messages decoded together, from 0
        origin: topic, partition and offset, if known
    """

    reason: str
    detail: str
    value: bytes
    place: int = 0
    origin: tuple[str, int, int] | None = None


def rejection(
    reason: str, detail: str, value: bytes, index: int = 0, origin: tuple[str, int, int] | None = None
) -> Rejected:
    r"""Return a rejected message. Shorten its detail, which may quote the message, and make it printable.

    >>> rejection("malformed", "\ud800: \x1b[2J", b"").detail
    '\\ud800: \\x1b[2J'
    """
    if len(detail) > MAX_DETAIL:
        detail = detail[:MAX_DETAIL] + "..."
    if not detail.isprintable():
        detail = "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in detail)
    return Rejected(reason, detail, value, index, origin)


# --- Tolerances ---

SMALLER_UNITS = {"milliseconds": 1e14, "microseconds": 1e17, "nanoseconds": 1e20}  # the largest time in each unit
PROPENSITY_TOLERANCE = 1e-6  # relative difference between `propensity` and the logged action's entry of `propensities`
MAX_FEATURES = 4096  # per action: models of the reward need a matrix of this size squared
MAX_SLATE_ACTIONS = 500  # in all slots, with listed slates: estimates need a matrix of this size squared
MAX_DRAWN_ACTIONS = 1000  # the same of rankings drawn by scores
MAX_SLATE_PAIRS = 4_000_000  # of slots, in all listed slates: the probability of each pair of actions is summed

MAX_SCORE_DIFFERENCE = 500  # in a ranking: exp(-500) is still a precise number


def tolerance(actions: NDArray[np.int64]) -> Array:
    """Return how far the sums of distributions over this many actions may differ from 1.

    >>> tolerance(np.array([2, 20]))
    array([2.0e-06, 1.1e-05])
    """
    return np.asarray(NOISE + ROUNDING_ERROR * actions, dtype=np.float64)


# --- Lists of one event, which must fit together before they can become columns ---


def list_fault(event: Event) -> Fault | None:
    """Return the fault of an event whose fields do not fit together, or None."""
    if event.scored is not None:
        detail = next(_scored_mismatches(event), None)
    elif event.slots is not None:
        detail = next(_slate_mismatches(event, event.slots), None)
    elif event.action is UNSET:
        return Fault("missing_field", "action: missing")
    else:
        detail = _choice_mismatch(event)
    return None if detail is None else Fault("malformed", detail)


def _choice_mismatch(choice: Event | Slot) -> str | None:
    lists: list[Any] = [cell for cell in policy_cells(choice.policies) if cell.__class__ is list]
    lists += [values for values in (choice.propensities, choice.features) if values is not None]
    if choice.actions is None:
        return next(_mismatches(choice)) if lists else None
    actions, widths = len(choice.actions), set(map(len, choice.features or ()))
    fits = 0 < actions == len(set(choice.actions)) and {actions}.issuperset(map(len, lists))
    are_even = len(widths) <= 1 and max(widths, default=0) <= MAX_FEATURES
    return None if fits and are_even else next(_mismatches(choice))


def _mismatches(choice: Event | Slot) -> Iterator[str]:
    actions, rows = choice.actions or [], choice.features or []
    if choice.actions is not None and not actions:
        yield "actions: empty"
    seen: set[Identifier] = set()
    for action in actions:
        if action in seen:
            yield f"actions: {action!r} is listed twice"
        seen.add(action)
    lists: dict[str, Any] = {"propensities": choice.propensities, "features": choice.features}
    lists |= {f"policies.{policy}": cell for policy, cell in named_cells(choice.policies)}
    for name, values in lists.items():
        if isinstance(values, list) and choice.actions is None:
            yield f"{name}: a list over actions, but `actions` is missing"
        elif isinstance(values, list) and len(values) != len(actions):
            yield f"{name}: {counted(len(values), 'entry')} for {counted(len(actions), 'action')}"
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            yield f"features[{number}]: {counted(len(row), 'number')}, but features[0] has {len(rows[0])}"
        if len(row) > MAX_FEATURES:
            yield f"features[{number}]: {len(row)} numbers, more than the limit of {MAX_FEATURES}"


def _choice_fields(event: Event) -> Iterator[str]:
    """Yield the fields of a choice that an event has."""
    fields = {
        "action": None if event.action is UNSET else event.action,
        "propensity": event.propensity,
        "policies": None if all(map(_is_absent, policy_cells(event.policies))) else event.policies,
        "actions": event.actions,
        "propensities": event.propensities,
        "features": event.features,
    }
    yield from (field for field, value in fields.items() if value is not None)


def _is_absent(cell: Any) -> bool:
    return cell is None or cell != cell  # NaN: the event does not name the policy


def _scored_mismatches(event: Event) -> Iterator[str]:
    slates = [name for name in ("slots", "slate_logging", "slates") if getattr(event, name) is not None]
    for field in (*_choice_fields(event), *slates):
        yield f"{field}: not allowed together with `scored`"


def _slate_mismatches(slate: Event, slots: Sequence[Slot]) -> Iterator[str]:
    for field in _choice_fields(slate):
        yield f"{field}: not allowed together with `slots`"
    if not slots:
        yield "slots: empty"
    for number, slot in enumerate(slots):
        if detail := _choice_mismatch(slot):
            yield f"slots.{number}.{detail}"
    if slate.slates is not None or slate.slate_propensities is not None:
        yield from _list_mismatches(slate, slots)
    elif slate.slate_logging in ("uniform_ranking", "plackett_luce"):
        yield from _ranking_mismatches(slots)
        if slate.slate_logging == "plackett_luce":
            yield from score_mismatches(slate.scores, len(slots), len(slots[0].actions or ()))


def _ranking_mismatches(slots: Sequence[Slot]) -> Iterator[str]:
    shown: set[Identifier] = set()
    for number, slot in enumerate(slots):
        if slot.actions is None:
            yield f"slots.{number}.actions: missing, but a ranking is drawn from them"
        elif set(slot.actions) != set(slots[0].actions or ()):
            yield f"slots.{number}.actions: differ from slots.0; all slots of a ranking must list the same actions"
        elif len(slots) > len(slot.actions):
            yield f"slots: {len(slots)} for a ranking of {counted(len(slot.actions), 'action')}"
        if slot.action in shown:
            yield f"slots.{number}.action: {slot.action!r} is shown twice in a ranking"
        shown.add(slot.action)


def score_mismatches(scores: Any, slots: int, actions: int) -> Iterator[str]:
    """Yield what is wrong with the scores that a ranking was drawn by."""
    if scores is None:
        yield "scores: missing, but the ranking was drawn by them"
    elif not isinstance(scores, list) or not all(type(score) in (int, float) for score in scores):
        yield "scores: not a list of numbers"
    elif len(scores) != actions:
        yield f"scores: {counted(len(scores), 'entry')} for {counted(actions, 'action')}"
    elif not all(-1e300 < score < 1e300 for score in scores) or max(scores) - min(scores) > MAX_SCORE_DIFFERENCE:
        yield f"scores: differ by more than {MAX_SCORE_DIFFERENCE}, which leaves no chance to some actions"
    elif slots <= actions and slots * actions <= MAX_DRAWN_ACTIONS and not has_few_prefixes(actions, slots):
        spread, limit = max(scores) - sorted(scores)[-slots], max_spread(actions, slots)
        if spread > limit:
            yield (
                f"scores: the {slots} highest differ by {spread:.10g}, more than {limit:.4g} "
                f"in a ranking of {slots} of {actions} actions"
            )
    if slots * actions > MAX_DRAWN_ACTIONS:
        yield f"slots: {slots * actions} actions with `scores`, more than the limit of {MAX_DRAWN_ACTIONS}"


def _list_mismatches(slate: Event, slots: Sequence[Slot]) -> Iterator[str]:
    slates, propensities = slate.slates or [], slate.slate_propensities or []
    if slate.slate_logging is not None:
        yield "slate_logging: cannot be combined with `slates`"
    if not slates or len(slates) != len(propensities):
        yield f"slate_propensities: {counted(len(propensities), 'entry')} for {counted(len(slates), 'slate')}"
    for number, slot in enumerate(slots):
        if slot.actions is None:
            yield f"slots.{number}.actions: missing, but `slates` show them"
    choices = [set(slot.actions or ()) for slot in slots]
    rows = sum(map(len, choices))
    if rows > MAX_SLATE_ACTIONS:
        yield f"slots: {rows} actions with `slates`, more than the limit of {MAX_SLATE_ACTIONS}"
    if (pairs := len(slates) * len(slots) ** 2) > MAX_SLATE_PAIRS:
        yield f"slates: {pairs} pairs of slots in all of them, more than the limit of {MAX_SLATE_PAIRS}"
    if len(set(map(tuple, slates))) < len(slates):
        yield "slates: a slate is listed twice"
    for number, listed in enumerate(slates):
        yield from _listed_mismatches(f"slates[{number}]", listed, choices)


def _listed_mismatches(name: str, listed: Sequence[Identifier], choices: Sequence[set[Identifier]]) -> Iterator[str]:
    if len(listed) != len(choices):
        yield f"{name}: {counted(len(listed), 'action')} for {counted(len(choices), 'slot')}"
    for slot, (action, actions) in enumerate(zip(listed, choices, strict=False)):
        if action not in actions:
            yield f"{name}[{slot}]: {action!r} is not one of slots.{slot}.actions"


# --- Columns ---


BrokenRule: TypeAlias = tuple[Mask, str, Callable[[int], str]]
"""Rows [n] that break a rule, the reason of their rejection, and a function that describes one row."""


def first_faults(rules: Iterable[BrokenRule]) -> dict[int, Fault]:
    """Return the rows that break a rule, with the first rule that a row breaks."""
    faults: dict[int, Fault] = {}
    with np.errstate(invalid="ignore", over="ignore"):  # NaN compares as false, and infinity as larger: as intended
        for broken, reason, detail in rules:
            for row in np.flatnonzero(broken).tolist() if np.count_nonzero(broken) else ():
                if row not in faults:
                    faults[row] = Fault(reason, detail(row))
    return faults


def reward_within(reward: Array, low: float, high: float, name: str = "reward") -> BrokenRule:
    """Require rewards [n] in [low, high]."""
    broken = ~((reward >= low) & (reward <= high))
    return _number_rule("reward_range", name, reward, broken, f"is not in [{low:.10g}, {high:.10g}]")


def seconds_rule(timestamp: Array) -> BrokenRule:
    """Require timestamps [n] in seconds."""

    def detail(row: int) -> str:
        unit = next((unit for unit, most in SMALLER_UNITS.items() if abs(timestamp[row]) <= most), "a smaller unit")
        return f"timestamp: {timestamp[row]:.10g} is not a time in seconds since 1970; is it in {unit}?"

    return np.abs(timestamp) > MAX_TIMESTAMP, "malformed", detail


def finite(field: str, column: Array, broken: Mask) -> BrokenRule:
    """Require finite numbers [n].

    Args:
        field: the name of the column
        column: [n] the numbers
        broken: [n] whether a number is infinite or missing
    """
    return _number_rule("not_finite", field, column, broken, "is not a finite number")


def unit_interval_rule(field: str, column: Array) -> BrokenRule:
    """Require probabilities [n] in (0, 1]."""
    return _number_rule("propensity_range", field, column, ~((column > 0.0) & (column <= 1.0)), "is not in (0, 1]")


def _number_rule(reason: str, field: str, column: Array, broken: Mask, problem: str) -> BrokenRule:
    return broken, reason, lambda row: f"{field}: {column[row]:.10g} {problem}"


def single_choice_rule(slates: SlateColumns) -> BrokenRule:
    """Require single actions, or outcomes, in place of slates if propensities are estimated."""
    return slates.sizes > 0, "malformed", lambda _: "slots: propensities are estimated for single actions"


def choice_rules(
    policies: Sequence[str], probabilities: Array, propensity: Array, sets: ActionSets | None
) -> Iterator[BrokenRule]:
    """Yield the rules of choices, made by events or by slots."""
    if sets is not None:
        unknown = (sets.index < 0) & (sets.sizes > 0)
        yield unknown, "unknown_action", lambda row: f"action: not one of the {sets.sizes[row]} `actions`"
    yield np.isnan(propensity), "missing_field", lambda row: "propensity: missing, as is `propensities`"
    yield unit_interval_rule("propensity", propensity)
    yield probabilities_rule(policies, probabilities)
    if sets is not None:
        yield from _set_rules(sets, policies, propensity)


def _set_rules(sets: ActionSets, policies: Sequence[str], propensity: Array) -> Iterator[BrokenRule]:
    if sets.features is not None:
        features, widths = sets.features, sets.widths
        infinite = finite("", features.values, np.isinf(features.values))
        yield _event_rule(infinite, features, lambda event, index: f"features[{index // widths[event]}]")
    yield from _distribution("propensity_range", "propensities", sets, sets.propensities)
    yield _agreement(propensity, sets, sets.propensities, "`propensities` has {:.10g} for the action")
    for policy, values in zip(policies, sets.probabilities.T, strict=True):
        yield from _distribution("probability_range", f"policies.{policy}", sets, values, 1.0 + NOISE)


def _distribution(reason: str, field: str, rows: Ragged, values: Array, limit: float = 1.0) -> Iterator[BrokenRule]:
    """Yield the rules of distributions over the rows of events: entries in [0, 1] that sum to 1."""
    improbable = _number_rule(reason, "", values, (values < 0.0) | (values > limit), "is not in [0, 1]")
    yield _event_rule(improbable, rows, lambda _, index: f"{field}[{index}]")
    sizes = rows.sizes
    sums = np.bincount(rows.owner, weights=values, minlength=len(sizes))
    broken: Mask = (np.abs(sums - 1.0) > tolerance(sizes)) & (sizes > 0)
    yield broken, "distribution_sum", lambda row: f"{field}: sums to {sums[row]:.10g}, not to 1"


def _event_rule(rule: BrokenRule, rows: Ragged, name: Callable[[int, int], str]) -> BrokenRule:
    """Turn a rule about rows into a rule about events.

    Args:
        rule: the rule about rows
        rows: which rows belong to which event
        name: returns how the detail starts, from the number of the event and of its first broken row
    """
    broken, reason, detail_of_row = rule

    def detail(event: int) -> str:
        start, stop = rows.offsets[event : event + 2]
        index = int(broken[start:stop].argmax())
        return name(event, index) + detail_of_row(start + index)

    return np.bincount(rows.owner[broken], minlength=len(rows.offsets) - 1) > 0, reason, detail


def probabilities_rule(policies: Sequence[str], probabilities: Array) -> BrokenRule:
    """Require probabilities [n, P] of policies in [0, 1], NaN if missing."""
    broken = (probabilities < 0.0) | (probabilities > 1.0 + NOISE)
    return policy_rule(
        "probability_range",
        broken,
        lambda row, policy: f"policies.{policies[policy]}: {probabilities[row, policy]:.10g} is not in [0, 1]",
    )


def policy_rule(reason: str, broken: Mask, detail: Callable[[int, int], str]) -> BrokenRule:
    """Turn a rule about policies into a rule about rows.

    Args:
        reason: one of `REASONS`
        broken: [n, P] whether a policy breaks the rule in a row
        detail: describes a row and the first such policy
    """
    return np.logical_or.reduce(broken, axis=1), reason, lambda row: detail(row, int(broken[row].argmax()))


def _agreement(propensity: Array, sets: ActionSets, values: Array, other: str) -> BrokenRule:
    """Require that the propensity of the logged action is the same in both places, if it is in both.

    Args:
        propensity: [n] as given for the logged action
        sets: the actions of the choices
        values: [total] the propensities of all actions
        other: describes an entry of `values`
    """
    logged, rows = sets.logged
    expected = np.full(len(propensity), np.nan)
    expected[logged] = values[rows]
    broken: Mask = np.abs(propensity - expected) > PROPENSITY_TOLERANCE * np.maximum(propensity, expected)
    return (
        broken,
        "inconsistent_propensity",
        lambda row: f"propensity: {propensity[row]:.10g}, but {other.format(expected[row])}",
    )


def outcome_rules(scored: ScoredOutcomes, policies: Sequence[str], estimated: bool) -> Iterator[BrokenRule]:
    """Yield the rules of the outcomes of scored events, which lack propensities if these are estimated."""
    missing = scored.revealed & np.isnan(scored.propensity) & (not estimated)
    lacking: BrokenRule = missing, "missing_field", lambda _: "propensity: missing"
    yield _event_rule(lacking, scored, lambda *_: "scored.")
    outside = unit_interval_rule("propensity", np.where(np.isnan(scored.propensity), 1.0, scored.propensity))
    yield _event_rule(outside, scored, lambda *_: "scored.")
    yield _outcome_rule("not_finite", scored, policies, np.isinf(scored.outcomes), "is not a finite number")


def outcomes_within(scored: ScoredOutcomes, policies: Sequence[str], low: float, high: float) -> BrokenRule:
    """Require values of outcomes in [low, high]."""
    broken = (scored.outcomes < low) | (scored.outcomes > high)
    return _outcome_rule("reward_range", scored, policies, broken, f"is not in [{low:.10g}, {high:.10g}]")


def _outcome_rule(
    reason: str, scored: ScoredOutcomes, policies: Sequence[str], broken: Mask, problem: str
) -> BrokenRule:
    rule = policy_rule(
        reason,
        broken,
        lambda row, policy: f"scored.values.{policies[policy]}: {scored.outcomes[row, policy]:.10g} {problem}",
    )
    return _event_rule(rule, scored, lambda *_: "")


def slot_reward_rules(slates: SlateColumns, reward: Array, name: str = "reward") -> Iterator[BrokenRule]:
    """Yield the rules of the rewards of slots: finite, in all slots or in none, and with the sum `reward` [n]."""
    is_rewarded, infinite = ~np.isnan(slates.reward), finite(name, slates.reward, np.isinf(slates.reward))
    yield _event_rule(infinite, slates, lambda _, slot: f"slots.{slot}.")
    count = slates.per_event(is_rewarded[:, None].astype(float))[:, 0]
    partly = (~is_rewarded) & ((count > 0) & (count < slates.sizes))[slates.owner]
    lacking: BrokenRule = partly, "missing_field", lambda _: f"{name}: missing, and another slot has one"
    yield _event_rule(lacking, slates, lambda _, slot: f"slots.{slot}.")
    sums, sizes = slates.per_event(np.nan_to_num(np.stack([slates.reward, np.abs(slates.reward)], axis=1))).T
    apart = (count > 0) & (np.abs(sums - reward) > NOISE * np.maximum(sizes, np.abs(reward)))
    yield (
        apart,
        "malformed",
        lambda row: f"{name}: {reward[row]:.10g}, but the rewards of its slots sum to {sums[row]:.10g}",
    )


def slot_rewards_within(slates: SlateColumns, low: float, high: float) -> BrokenRule:
    """Require that the positive rewards of slots sum to at most `high`, and the negative ones to at least `low`."""
    rewards = np.nan_to_num(slates.reward)
    gains, losses = slates.per_event(np.stack([np.maximum(rewards, 0.0), np.minimum(rewards, 0.0)], axis=1)).T
    noise = NOISE * max((abs(end) for end in (low, high) if np.isfinite(end)), default=0.0)
    too_high, too_low = gains > max(high, 0.0) + noise, losses < min(low, 0.0) - noise
    return (
        too_high | too_low,
        "reward_range",
        lambda row: (
            f"slots: rewards of one sign sum to {(gains if too_high[row] else losses)[row]:.10g}, "
            f"which is not in [{low:.10g}, {high:.10g}]"
        ),
    )


def slate_rules(slates: SlateColumns, policies: Sequence[str]) -> Iterator[BrokenRule]:
    """Yield the rules of slates and of their slots."""
    listed = slates.listed
    yield from _distribution("propensity_range", "slate_propensities", listed, listed.probability)
    unlisted = (listed.sizes > 0) & (listed.logged < 0)
    yield unlisted, "unknown_action", lambda row: f"slots: not one of the {listed.sizes[row]} `slates`"
    marginals = _agreement(
        slates.propensity, slates.actions, slates.marginals, "the way the slate was logged gives {:.10g}"
    )
    choices = choice_rules(policies, slates.probabilities, slates.propensity, slates.actions)
    for rule in (*choices, marginals):
        yield _event_rule(rule, slates, lambda _, slot: f"slots.{slot}.")
