"""Check whether actions are chosen as often as the logged propensities say (trust check `propensities`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.room import Blocks, Room
from streameval.ope.evidence import frequencies
from streameval.ope.evidence.frequencies import FrequencyState
from streameval.ope.promotion import repeat_for_policies
from streameval.ope.report import TrustCheck


def start(config: EvaluatorConfig) -> FrequencyState | None:
    """Start before the first event, with None if propensities are not compared."""
    return frequencies.start() if config.compares_propensities else None


def resume(config: EvaluatorConfig, _before: EvaluatorConfig, state: FrequencyState | None) -> FrequencyState | None:
    """Return the state under another config."""
    return state if state is not None and config.compares_propensities else start(config)


def observe(config: EvaluatorConfig, state: FrequencyState | None, blocks: Blocks) -> FrequencyState | None:
    """Return the state after whole blocks."""
    return None if state is None else frequencies.fold(state, blocks.logged, config.trust_error)


def checks(config: EvaluatorConfig, state: FrequencyState, policy_checks: Sequence[TrustCheck]) -> Iterator[TrustCheck]:
    """Yield the trust check of all policies, if there is anything to compare."""
    verdict = frequencies.judge(state, config.trust_error)
    if verdict is not None:
        yield from repeat_for_policies(policy_checks, "propensities", *verdict)


ROOM = Room("frequencies", start, resume, observe=observe, checks=checks)
