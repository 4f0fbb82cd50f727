"""Say why events cannot count, and what to do about it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress

import numpy as np

from streameval.common.text import counted
from streameval.events.arguments import number_hint
from streameval.events.batch import EventBatch
from streameval.events.frames import GLUE_REMEDY, REGISTRY_REMEDY
from streameval.events.validation import Rejected

REWARD_HINT = (
    "set reward.min and reward.max to the smallest and largest possible reward, or clip larger ones by above: clip"
)
EVENT_HINT = "`streameval schema` prints what an event looks like"
REJECTION_HINTS = {
    "malformed": EVENT_HINT,
    "missing_field": f"{EVENT_HINT}; if the log has other names, `streameval check` proposes `columns`",
    "propensity_range": "a propensity is greater than 0 and at most 1: write 0.25, not 25",
    "probability_range": "a probability is between 0 and 1: write 0.25, not 25",
    "distribution_sum": "log the probability of every action that could be chosen",
    "not_finite": "leave a field out of the event, or write null, if its value is not known",
    "unknown_action": "list every action that could be chosen, the logged one included",
    "inconsistent_propensity": "log the propensity of the action that was shown",
    "reward_range": REWARD_HINT,
    "duplicate": "give each decision its own event_id, unless these events were sent twice",
}
"""Remedies by the reason of a rejection."""
DETAIL_HINTS = {
    "propensity: missing": f"log it, or write propensity: {{kind: estimated}} if this log has none; {EVENT_HINT}",
    "reward: missing": "write 0 if nothing was earned: null and NaN mean that the reward is not known (pandas: "
    f"fillna(0)); {REJECTION_HINTS['missing_field']}",
    "event_id: missing": "events in JSON need ids, which show copies, while rows of tables need none: number lines, or "
    f"name the field in columns.event_id; {EVENT_HINT}",
    "policies: expected object, got array": 'write {"NAME": PROBABILITY}, or name the place of each in `columns`, e.g. '
    'columns: {policies: {new: policies.new.p}} for [{"id": "new", "p": 0.5}]',
}
"""Remedies by the start of the detail of a rejection, in place of those by its reason."""
OUT_OF_RANGE = re.compile(r": (\S+) is not in [\[(]0, 1\]$")
TEXT_FOR_NUMBER = re.compile(r"float, got str: '(.*)'$")
FORM_HINTS = {
    "ranking": "write ranking: {metric: dcg, examination: {kind: power, eta: 1.0}}, and leave `reward` out",
    "slots": "write estimators: [pseudo_inverse], or [iips] if each slot has a reward",
    "scored": "write policies: {production: NAME}, a name in scored.values, and estimators: [scored_snips]",
    "dsjson": "write source: {format: dsjson}, or add --format dsjson",
}
"""The options that read events of another form."""
MAX_DETAIL = 120
"""Characters of the detail of a rejected event."""


def remedy(rejected: Rejected, are_percent: bool | None = None) -> str:
    """Return how to correct events that are rejected for this reason.

    Args:
        rejected: one of the events
        are_percent: whether the probabilities of all of them look like percent, None = look at this one
    """
    detail = rejected.detail
    if "`columns`" in detail:
        return "correct that name, or the log"
    form = next((form for form in FORM_HINTS if f"`{form}`" in detail), None)
    if form is not None:
        return FORM_HINTS[form]
    if rejected.value[:1] in (b"\0", b"\1", b"\3"):
        is_glue = rejected.value[:1] == b"\3"
        frame, option = ("AWS Glue", GLUE_REMEDY) if is_glue else ("a schema registry", REGISTRY_REMEDY)
        return f"this is the frame of {frame}: {option}"
    if detail.startswith(("not JSON", "not a JSON object")):
        array = "; jq -c '.[]' FILE unpacks an array" if rejected.value[:1] == b"[" else ""
        return f"write each event as one JSON object, in its own line or message{array}; {EVENT_HINT}"
    number = OUT_OF_RANGE.search(detail)
    if number is not None and (is_percent(rejected) if are_percent is None else are_percent):
        value = float(number[1])
        is_right = REJECTION_HINTS[rejected.reason].partition(":")[0]
        return f"{is_right}: write {value / 100:g}, not {value:g}; divide by 100, as this looks like percent"
    text = TEXT_FOR_NUMBER.search(detail)
    hint = None if text is None else number_hint(text[1])
    start = next((start for start in DETAIL_HINTS if detail.startswith(start)), None)
    return hint or (REJECTION_HINTS.get(rejected.reason, EVENT_HINT) if start is None else DETAIL_HINTS[start])


def is_percent(rejected: Rejected) -> bool:
    """Return whether an event is rejected for a probability over 1 and of at most 100."""
    number = OUT_OF_RANGE.search(rejected.detail)
    return number is not None and 1 < float(number[1]) <= 100


class Rejections:
    """Count rejected events by reason, and keep the first of each."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._percents: Counter[str] = Counter()
        self._examples: dict[str, Rejected] = {}

    def __len__(self) -> int:
        return self._counts.total()

    def add(self, rejected: Iterable[Rejected]) -> None:
        """Count rejected events."""
        for event in rejected:
            self._counts[event.reason] += 1
            self._percents[event.reason] += is_percent(event)
            self._examples.setdefault(event.reason, event)

    def lines(self, accepted: int) -> Iterator[str]:
        """Yield a warning with the number by reason, and remedies, if any event was rejected."""
        if not len(self):
            return
        all_events = counted(len(self) + accepted, "event")
        yield f"warning: {len(self):,} of {all_events} {'was' if len(self) == 1 else 'were'} rejected"
        for reason, count in self._counts.most_common():
            first = self._examples[reason]
            place = "" if first.origin is None else f" ({first.origin[0]}:{first.origin[2]})"
            yield f"  {count:>9,}  {reason}  e.g. {first.detail[:MAX_DETAIL]}{place}"
        are_percent = {reason: count == self._percents[reason] for reason, count in self._counts.items()}
        for hint in dict.fromkeys(remedy(event, are_percent[reason]) for reason, event in self._examples.items()):
            yield f"hint: {hint}"


def joined_lines(lines: Iterable[str]) -> list[str]:
    """Return warnings as one text each, from their lines.

    >>> joined_lines(["warning: 1 of 2 events was rejected", "hint: log it"])
    ['1 of 2 events was rejected\\nhint: log it']
    """
    found: list[str] = []
    for line in lines:
        if line.startswith("warning: "):
            found.append(line.removeprefix("warning: "))
        else:
            found[-1] += f"\n{line}"
    return found


def absent_policy(policy: str, names: Sequence[str] = (), column: str | None = None) -> tuple[str, str]:
    """Say that no event has a probability of a policy, and what to do about it.

    Args:
        policy: the name of the policy
        names: names that events have
        column: the column of the policy in a table
    """
    numbers = 'numbers, or lists of numbers: write 0.25, not "0.25" or "0,25"'
    hint = f"the events name {', '.join(names)}" if names else f"the events name no policies, or not by {numbers}"
    if column is not None:
        hint = f"its column '{column}' must hold {numbers}"
    elif policy in names:
        hint = f"its values must be {numbers}"
    return f"no event has a probability of the policy '{policy}'", hint


class UnusableLog:
    """Collect what keeps a log from any estimate: all events are rejected, or none has a probability of a policy.

    Attributes:
        names: the policies that events had a probability of
    """

    def __init__(self) -> None:
        self.names = dict[str, None]()
        self._rejections, self._accepted, self._told = Rejections(), 0, set[str]()

    def add(self, batch: EventBatch) -> None:
        """Look at the next events."""
        if not self._accepted:
            self._rejections.add(batch.rejected)
        self._accepted += len(batch)
        if not self.names.keys() >= set(batch.policies):
            known = ~np.isnan(batch.probabilities) if batch.scored is None else np.ones((1, len(batch.policies)))
            self.names |= dict.fromkeys(compress(batch.policies, np.any(known, axis=0).tolist()))

    def warnings(self, absent: Iterable[str], names: Iterable[str] = ()) -> Iterator[str]:
        """Yield warnings that no earlier call has yielded.

        Args:
            absent: policies without a probability
            names: names of policies that the events have, if they were decoded without them
        """
        found = {"": "\n".join(self._rejections.lines(0)).removeprefix("warning: ")}
        if self._accepted:
            found = {policy: "\nhint: ".join(absent_policy(policy, [*self.names, *names])) for policy in absent}
        yield from (text for policy, text in found.items() if text and policy not in self._told)
        self._told |= found.keys()
