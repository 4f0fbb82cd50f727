"""The trust check `propensities`: whether actions are chosen as often as the logged propensities say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streameval.ope.evaluator.plan import Plan
from streameval.ope.evaluator.room import Blocks, Room
from streameval.ope.evidence import frequencies
from streameval.ope.evidence.frequencies import FrequencyState
from streameval.ope.promotion import of_every_policy
from streameval.ope.report import TrustCheck


def start(plan: Plan) -> FrequencyState | None:
    """Start before the first event; None if propensities are not compared."""
    return frequencies.start() if plan.compares_propensities else None


def resume(plan: Plan, _before: Plan, state: FrequencyState | None) -> FrequencyState | None:
    """Return the state under another plan."""
    return state if state is not None and plan.compares_propensities else start(plan)


def observe(plan: Plan, state: FrequencyState | None, blocks: Blocks) -> FrequencyState | None:
    """Return the state after whole blocks."""
    return None if state is None else frequencies.fold(state, blocks.logged, plan.trust_error)


def checks(plan: Plan, state: FrequencyState, known: Sequence[TrustCheck]) -> Iterator[TrustCheck]:
    """The trust check of all policies, if there is anything to compare."""
    found = frequencies.judge(state, plan.trust_error)
    if found is not None:
        yield from of_every_policy(known, "propensities", *found)


ROOM = Room("frequencies", start, resume, observe=observe, checks=checks)
