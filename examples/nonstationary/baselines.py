"""Estimate values by methods for nonstationary data that were published after 2019."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from contest import Answer, Contestant, Floats

from streameval import EventBatch
from streameval.simulation import BATCH, Drift, Moment

TERMS, MARGIN = 5, 0.05
"""Terms of the cosine basis, and how far it reaches beyond the last time, in shares of all times: as the authors'."""
INTERVAL = 10_000
"""Events of an interval in regression-assisted DR."""
PRIOR = 100
"""Number of events that the reward model of a phase takes from all phases."""
Z = 1.96


def regression_assisted(reward: Floats, weight: Floats, proxy: Floats, proxy_value: Floats) -> tuple[Floats, Floats]:
    """Return values by regression-assisted DR, and their standard errors [candidates].

    The proxy f is a model of the reward that was learned from the past. The present interval of n events corrects it by
    a regression `b` of the reward on `x = (1, f)`, with the importance weights w as weights:

    `b = (sum w x x')^-1 sum w x r`, and the value is `X . b + mean(w (r - x . b))` with `X = (1, F)`

    F is the value of the candidate if f is the reward. The standard error is that of `w g (r - x . b)` with
    `g = 1 + (X - mean(w x)) (mean(w x x'))^-1 x`.

    Args:
        reward: Rewards of the present interval [n].
        weight: Importance weights [n, candidates].
        proxy: f of the logged actions [n].
        proxy_value: F [candidates].

    Source: Liu, Chandak, Thomas & White, AISTATS 2023, with one prediction from the past, and the variance of their
    experiments. Their F averages over a known population of contexts.
    """
    events, columns = len(reward), np.stack([np.ones_like(proxy), proxy])
    inverse = np.linalg.pinv(np.einsum("nc,in,jn->cij", weight, columns, columns, optimize=True) / events)
    coefficients = np.einsum("cij,jc->ci", inverse, columns * reward @ weight / events)
    target = np.stack([np.ones_like(proxy_value), proxy_value], axis=1)
    residual = weight * (reward[:, None] - columns.T @ coefficients.T)
    value = (target * coefficients).sum(axis=1) + residual.mean(axis=0)
    gain = np.einsum("ci,cij->cj", target - (columns @ weight / events).T, inverse)
    return value, np.std(residual * (1 + columns.T @ gain.T), axis=0, ddof=1) / np.sqrt(events)


def forecast(mass: Floats, total: Floats) -> Floats:
    """Return the value at the next time, by a regression of the values at times 0 to K - 1 on a basis [candidates].

    `phi(K) (sum_k mass_k phi(k) phi(k)')^-1 sum_k phi(k) total_k` with `phi(k) = cos(pi j k / (K + 1 + .05 K))`, j < 5

    With equal masses and the sums of `w r` it is ordinary least squares. With the sums of w and of `w r` it is weighted
    by the importance weights.

    Args:
        mass: Weight of each time [times, candidates].
        total: Weighted sum of the rewards of each time [times, candidates].

    Source: Chandak et al., Optimizing for the future in non-stationary MDPs, ICML 2020: the forecasts of Pro-OLS and
    Pro-WLS, with the basis of the authors' code. The importance weights are not clipped.
    """
    times = len(mass)
    reach = times + 1 + int(MARGIN * times)
    basis = np.cos(np.pi * np.outer(np.arange(times + 1) / reach, np.arange(TERMS)))
    past, future = basis[:-1], basis[-1]
    gram = mass.T @ (past[:, :, None] * past[:, None, :]).reshape(times, -1)
    inverse = np.linalg.pinv(gram.reshape(-1, TERMS, TERMS), hermitian=True)
    return np.asarray(np.einsum("i,cij,cj->c", future, inverse, total.T @ past))


class Batch(NamedTuple):
    """Hold what the baselines need of a batch of n events.

    Args:
        reward: Rewards [n].
        weight: Importance weights [n, candidates].
        logged: 1 and the features of the logged actions [n, 1 + features].
        offered: Mean expectation of these under each candidate [candidates, 1 + features].
    """

    reward: Floats
    weight: Floats
    logged: Floats
    offered: Floats

    @classmethod
    def from_events(cls, events: EventBatch, width: int) -> Batch:
        """Read events with the features and the distributions of all actions."""
        sets = events.action_sets
        assert sets is not None
        assert sets.probabilities is not None
        features = sets.features_of_width(width)[1]
        logged = np.insert(features[sets.logged[1]], 0, 1.0, axis=1)
        offered = np.insert(sets.probabilities.T @ features / len(events), 0, 1.0, axis=1)
        return cls(events.reward, events.probabilities / events.propensity[:, None], logged, offered)


class Phase:
    """Add up the batches of times with equal features.

    Args:
        width: Number of features of an action.
        candidates: Number of candidates.
    """

    def __init__(self, width: int, candidates: int) -> None:
        self.events, self.gram, self.moment = 0, np.zeros((1 + width, 1 + width)), np.zeros(1 + width)
        self.earned = np.zeros(candidates)
        self.weighted, self.offered = np.zeros((2, candidates, 1 + width))

    def add(self, batch: Batch) -> None:
        """Add sums of `x x'`, `x r`, `w r` and `w x`, and of the expectation of x under each candidate."""
        self.events += len(batch.reward)
        self.gram += batch.logged.T @ batch.logged
        self.moment += batch.reward @ batch.logged
        self.earned += batch.reward @ batch.weight
        self.weighted += batch.weight.T @ batch.logged
        self.offered += batch.offered * len(batch.reward)


def opfv(matching: Phase, everything: Phase, robust: bool) -> Floats:
    """Return values at a time t' by OPFV [candidates].

    It takes rewards at times with the same features phi as t', such as the same hour of the day:

    `mean(1{phi(t) = phi(t')} / p w (r - f(x, t, a)) + sum_a pi(a|x) f(x, t', a))`

    p is the share of the events that match. The robust form takes the contexts of these events alone: it multiplies the
    second term by `1{phi(t) = phi(t')} / p`, too. Here the model f is linear in the features of the action. It is
    learned from the events that match, and from all events as if they were 100.

    Args:
        matching: Events with the features of t'.
        everything: All events.
        robust: Whether contexts may drift.

    Source: Shimizu et al., Off-policy evaluation and learning for the future under non-stationarity, 2025, with one phi
    for contexts and rewards. They let the data choose phi. Here it is given.
    """
    share = PRIOR / everything.events
    model = np.linalg.lstsq(matching.gram + share * everything.gram, matching.moment + share * everything.moment)[0]
    contexts = matching if robust and matching.events else everything
    correction = (matching.earned - matching.weighted @ model) / max(matching.events, 1)
    return np.asarray(correction + contexts.offered @ model / contexts.events)


@dataclass(frozen=True)
class Baseline:
    """Name a baseline in line-ups of the study."""

    name: str


BASELINES = tuple(
    map(Baseline, ("regression-assisted dr", "opfv", "opfv, robust", "prognosticator, ols", "prognosticator, wls"))
)
Entrant: TypeAlias = Contestant | Baseline


class Baselines:
    """Run all baselines on one stream.

    The feature of a time in OPFV is the cluster that the drift has reached, if clusters return. Otherwise all times are
    equal.

    Args:
        width: Number of features of an action.
        candidates: Number of candidates.
        drift: Drift of the world.
    """

    def __init__(self, width: int, candidates: int, drift: Drift) -> None:
        self._width, self._drift = width, drift
        self._everything = Phase(width, candidates)
        self._phases = [Phase(width, candidates) for _ in range(drift.clusters)]
        self._recent = deque[Batch](maxlen=2 * INTERVAL // BATCH)
        self._mass, self._total = list[Floats](), list[Floats]()

    def watch(self, moments: Sequence[Moment]) -> None:
        """Process the next batches of the stream."""
        for moment in moments:
            batch = Batch.from_events(moment.events, self._width)
            self._phase.add(batch)
            self._everything.add(batch)
            self._recent.append(batch)
            self._mass.append(batch.weight.sum(axis=0))
            self._total.append(batch.reward @ batch.weight)

    def answers(self) -> Mapping[str, Answer]:
        """Return the current estimates of all baselines."""
        mass, total = np.array(self._mass), np.array(self._total)
        value, error = self._regression_assisted()
        nothing = np.full_like(value, np.nan)
        values = (
            *(opfv(self._phase, self._everything, robust) for robust in (False, True)),
            forecast(np.full_like(mass, BATCH), total),
            forecast(mass, total),
        )
        answers = [Answer(value, value - Z * error, value + Z * error)]
        answers += [Answer(value, nothing, nothing) for value in values]
        return {baseline.name: answer for baseline, answer in zip(BASELINES, answers, strict=True)}

    @property
    def _phase(self) -> Phase:
        """Return the phase of the next batch. The world draws a batch after the one before it as it was."""
        drift, events = self._drift, max(self._everything.events - BATCH, 0)
        return self._phases[events // drift.span % drift.clusters if drift.cycle else 0]

    def _regression_assisted(self) -> tuple[Floats, Floats]:
        """Learn the proxy from the interval before the present one. They are equally long."""
        length = (len(self._recent) + 1) // 2
        batches = list(self._recent)
        past, present = batches[:-length], batches[-length:]
        model = np.zeros(1 + self._width)
        if past:
            logged = np.concatenate([batch.logged for batch in past])
            reward = np.concatenate([batch.reward for batch in past])
            model = np.linalg.lstsq(logged.T @ logged, logged.T @ reward)[0]
        reward, weight, logged = (
            np.concatenate([getattr(batch, name) for batch in present]) for name in ("reward", "weight", "logged")
        )
        offered = np.mean([batch.offered for batch in present], axis=0)
        return regression_assisted(reward, weight, logged @ model, offered @ model)
