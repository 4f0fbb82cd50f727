"""Feed millions of mutated messages: `make fuzz`.

None may crash anything or leave a number that is not finite.
"""

from __future__ import annotations

import argparse
import math
import random
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from streameval import Evaluator
from streameval.events import REASONS, DsjsonDecoder, EventBatch, JsonDecoder, RewardBatch, RewardDecoder
from streameval.events.origin import Origin
from streameval.events.schema import NOISE
from streameval.ope.core import AdaptiveWindow, Cumulative, Decay, Mixture, Window
from streameval.ope.estimators import (
    CAB,
    DM,
    DR,
    IIPS,
    IPS,
    RIPS,
    SNIPS,
    ClippedIPS,
    ControlVariate,
    PseudoInverse,
    ScoredIPS,
    ScoredSNIPS,
    StratifiedDR,
    StratifiedIPS,
    Switch,
    WeightedPseudoInverse,
)
from support.fuzz_messages import FORMATS, POLICIES, Mutator, corpus

BATCH = 2000
REPORT_EVERY = 10

WEIGHTED = [IPS(), SNIPS(), ClippedIPS(cap=10), ControlVariate(), StratifiedIPS(threshold=5)]
MODELLED = [DM(), DR(), Switch(cap=10), CAB(cap=10), StratifiedDR(threshold=5)]
IN_SLOTS = [IPS(), PseudoInverse(), WeightedPseudoInverse(), IIPS(), RIPS()]
ESTIMATORS = {
    "compact": WEIGHTED,
    "full": [SNIPS(), *MODELLED],
    "slate": IN_SLOTS,
    "dsjson": [SNIPS(), PseudoInverse()],
    "scored": [SNIPS(), DR()],
    "outcome": [ScoredIPS(), ScoredSNIPS(), IPS()],
    "late_reward": [IPS()],
}
CODED = {
    "even": "uniform",
    "soft": {"kind": "softmax", "temperature": 0.5, "scores": "scores"},
    "bold": {"kind": "epsilon_greedy", "epsilon": 0.1, "scores": "scores"},
}
RANGES = [(0.0, 1.0), (-1e15, 1e15), None]


class Subject:
    """Feed messages to a format and an evaluator, and check the results."""

    def __init__(self, kind: str, seed: int, reward_range: tuple[float, float] | None = (0.0, 1.0)) -> None:
        self.kind = kind
        chance = random.Random(seed)
        self._mutator = Mutator(corpus(kind, chance), chance)
        form = DsjsonDecoder if kind == "dsjson" else JsonDecoder
        names = ["baseline", "b"] if kind == "dsjson" else POLICIES
        self._format = form(names, reward_range=reward_range, scores=["scores"] if kind == "scored" else None)
        production = names[0] if kind == "outcome" else "logging"
        self._evaluator = Evaluator(
            dict.fromkeys([name for name in names if name != production], "logged")
            | (CODED if kind == "scored" else {}),
            estimators=ESTIMATORS[kind],
            production=production,
            averages=[Cumulative(), Window(tau=1000), Decay(alpha=0.999), AdaptiveWindow(), Mixture()],
            reward_range=reward_range or (-1e50, 1e50),
        )
        self.verdicts: Counter[str] = Counter()

    def feed(self, count: int) -> None:
        """Decode this many mutated messages and count them.

        Raises:
            AssertionError: A result is wrong.
        """
        messages = self._mutator.messages(count)
        batch = self._format.decode_batch(messages)
        check_batch(batch, messages)
        self._evaluator.update(batch)
        self._count(batch)

    def check_report(self) -> None:
        """Check that every number of the Report is finite, or None."""
        for path, number in numbers_in(msgspec.to_builtins(self._evaluator.report())):
            assert math.isfinite(number), f"{self.kind}: {path} is {number}"

    def _count(self, batch: EventBatch | RewardBatch) -> None:
        self.verdicts.update(rejection.reason for rejection in batch.rejected)
        self.verdicts["accepted"] += len(batch)


class LateRewards(Subject):
    """Feed rewards in separate messages, which are only decoded."""

    def feed(self, count: int) -> None:
        messages = self._mutator.messages(count)
        batch = RewardDecoder().decode_batch(messages, Origin.from_parts("rewards", [(0, range(count))]))
        check_rejected(batch, messages)
        assert np.isfinite(batch.reward).all()
        assert np.isfinite(batch.timestamp).all()
        self._count(batch)


def check_batch(batch: EventBatch, messages: Sequence[bytes | None]) -> None:
    """Check that each message is an event or rejected for a known reason, and that columns keep the rules."""
    check_rejected(batch, messages)
    assert np.isfinite(batch.reward).all()
    assert not np.isinf(batch.timestamp).any()
    logged = batch.propensity if batch.scored is None else batch.propensity[batch.scored.sizes == 0]
    if batch.scored is not None:
        assert not np.isinf(batch.scored.outcomes).any()
        logged = np.append(logged, batch.scored.propensity[batch.scored.revealed])
    for chances in (logged, batch.sampling_probability):
        assert ((chances > 0) & (chances <= 1)).all()
    cells = [batch.probabilities]
    for sets in (batch.action_sets, batch.slates and batch.slates.actions):
        if sets is not None:
            cells += [sets.propensities, sets.probabilities]
            assert sets.features is None or np.isfinite(sets.features.values).all()
    for values in cells:
        assert (np.isnan(values) | ((values >= 0) & (values <= 1 + NOISE))).all()


def check_rejected(batch: EventBatch | RewardBatch, messages: Sequence[bytes | None]) -> None:
    """Check that each message is counted once, and that the detail of a rejection is printable."""
    assert len(batch) + len(batch.rejected) == len(messages)
    for rejection in batch.rejected:
        assert rejection.reason in REASONS
        assert rejection.value == (messages[rejection.place] or b"")
        assert rejection.detail.isprintable()


def numbers_in(value: Any, path: str = "report") -> list[tuple[str, float]]:
    """Return all numbers inside a value with their paths."""
    if isinstance(value, float):
        return [(path, value)]
    if isinstance(value, dict):
        return [number for key, inner in value.items() for number in numbers_in(inner, f"{path}.{key}")]
    if isinstance(value, list | tuple):
        return [number for key, inner in enumerate(value) for number in numbers_in(inner, f"{path}[{key}]")]
    return []


def fuzz(count: int, seed: int, reward_range: tuple[float, float] | None = (0.0, 1.0)) -> Counter[str]:
    """Feed this many messages, in equal parts of each format, check all, and return the verdicts by format."""
    verdicts: Counter[str] = Counter()
    for kind in FORMATS:
        subject = (LateRewards if kind == "late_reward" else Subject)(kind, seed, reward_range)
        left, turn = count // len(FORMATS), 0
        while left > 0:
            subject.feed(min(BATCH, left))
            left, turn = left - BATCH, turn + 1
            if turn % REPORT_EVERY == 0 or left <= 0:
                subject.check_report()
        verdicts.update({f"{kind} {verdict}": number for verdict, number in subject.verdicts.items()})
    return verdicts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("error")
    started_at, done, verdicts = time.monotonic(), 0, Counter[str]()
    portion = min(options.messages, 400_000)
    for turn, start in enumerate(range(0, options.messages, portion)):
        verdicts += fuzz(portion, options.seed + turn, RANGES[turn % len(RANGES)])
        done = start + portion
        print(f"{done:,} messages in {time.monotonic() - started_at:.0f} s, seed {options.seed + turn}", flush=True)
    for verdict, number in sorted(verdicts.items()):
        print(f"{number:>12,} {verdict}")


if __name__ == "__main__":
    main()
