"""Estimate the errors of rating predictors from ratings that users reveal if they like the item: `python revealed.py`.

It takes a minute, and writes the part `revealed` of `results.json`. Source: Schnabel et al., Recommendations as
treatments, ICML 2016, section 6.2, for the predictors, the marginals and the propensities, and Lemma 5.1 for the bias.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streameval import Evaluator

Array = NDArray[np.float64]

MARGINALS = np.array([0.526, 0.242, 0.144, 0.062, 0.026])
"""Shares of the ratings 1 to 5 among all pairs of user and item."""
FADING, GUESSED, REVEALED = 0.25, 0.35, 0.05
"""The propensity of a rating r is in proportion to `FADING ** max(0, 4 - r)`, with a mean of `REVEALED`."""


def propensities(fading: float) -> Array:
    """Return the propensities of the ratings 1 to 5."""
    share: Array = fading ** np.array([3.0, 2.0, 1.0, 0.0, 0.0])
    return share * REVEALED / (share @ MARGINALS)


PROPENSITY = propensities(FADING)
LOGS, OUTCOMES, SAMPLE = 20, 100_000, 1_000
"""Logs, outcomes in each, and random outcomes that marginals are estimated from."""
OPTIONS: dict[str, Any] = {"averages": ["cumulative"], "production": "ones", "reward_range": (-5.0, 0.0), "drift": None}


def predictions(rating: Array, rng: np.random.Generator) -> dict[str, Array]:
    """Return what each predictor says about these ratings."""
    few = MARGINALS[4] * len(rating)

    def flipped(source: int) -> Array:
        """Take as many ratings of this size for a 5 as there are fives."""
        return np.where((rating == source) & (rng.random(len(rating)) < few / (rating == source).sum()), 5.0, rating)

    return {
        "ones": flipped(1),
        "fours": flipped(4),
        "rotate": np.where(rating == 1, 5.0, rating - 1),
        "skewed": np.clip(rng.normal(rating, (6 - rating) / 2), 0, 6),
        "coarsened": np.where(rating <= 3, 3.0, 4.0),
    }


def estimates(seed: int, outcomes: int = OUTCOMES) -> dict[str, dict[str, float]]:
    """Return the true mean absolute error of each predictor, and its estimates from one log.

    `bias` is the error of `scored_ips` with guessed propensities, and `lemma` the bias that Lemma 5.1 predicts.
    """
    rng = np.random.default_rng(seed)
    rating = rng.choice(5, outcomes, p=MARGINALS) + 1.0
    propensity, guessed = (known[rating.astype(int) - 1] for known in (PROPENSITY, propensities(GUESSED)))
    shown = rng.random(outcomes) < propensity
    errors = {name: np.abs(predicted - rating) for name, predicted in predictions(rating, rng).items()}
    shares = rng.multinomial(SAMPLE, MARGINALS) / SAMPLE
    events, wrong = _messages(propensity, shown, errors, rating), _messages(guessed, shown, errors, rating)
    model = {"kind": "tabular", "by": ["rating"], "marginals": dict(enumerate(shares.tolist(), start=1))}
    bayes = {"kind": "estimated", "model": model, "warm_up": outcomes // 10}
    candidates, (known, bayesian) = list(errors)[1:], (["scored_ips", "scored_snips"], ["scored_snips"])
    answers = [_values(Evaluator(candidates, known, **OPTIONS), events)]
    answers.append(_values(Evaluator(candidates, bayesian, propensity=bayes, **OPTIONS), events))
    answers.append(_values(Evaluator(candidates, ["scored_ips"], **OPTIONS), wrong))
    return {
        name: {
            "true": float(error.mean()),
            "naive": float(error[shown].mean()),
            "ips": answers[0][name, "scored_ips"],
            "snips": answers[0][name, "scored_snips"],
            "bayes": answers[1][name, "scored_snips"],
            "bias": answers[2][name, "scored_ips"] - float(error.mean()),
            "lemma": float((error * (propensity / guessed - 1)).mean()),
        }
        for name, error in errors.items()
    }


def _messages(propensity: Array, shown: NDArray[np.bool_], errors: Mapping[str, Array], rating: Array) -> list[bytes]:
    """Return the events of all outcomes with these propensities."""
    events = [json.dumps({"event_id": 0, "timestamp": 0, "scored": {"revealed": False}}).encode()] * len(shown)
    for index in np.flatnonzero(shown).tolist():
        values = {name: -float(error[index]) for name, error in errors.items()}
        outcome = {"propensity": propensity[index], "values": values}
        event = {"event_id": 0, "timestamp": 0, "scored": outcome, "rating": int(rating[index])}
        events[index] = json.dumps(event).encode()
    return events


def _values(evaluator: Evaluator, events: list[bytes]) -> Mapping[tuple[str, str], float]:
    """Return the estimated mean absolute errors by predictor and estimator."""
    evaluator.update(evaluator.config.decoder().decode_batch(events))
    return {(row.policy, row.estimator): -(row.value or 0.0) for row in evaluator.report().estimates}


def table(logs: int = LOGS, outcomes: int = OUTCOMES) -> dict[str, dict[str, list[float]]]:
    """Return the mean over the logs and the standard deviation, by predictor and column."""
    rows = [estimates(seed, outcomes) for seed in range(logs)]
    columns = {name: {column: [row[name][column] for row in rows] for column in rows[0][name]} for name in rows[0]}
    return {
        name: {
            column: [round(float(np.mean(values)), 4), round(float(np.std(values, ddof=1)), 4)]
            for column, values in by_column.items()
        }
        for name, by_column in columns.items()
    }


if __name__ == "__main__":
    results = Path(__file__).parent / "results.json"
    results.write_text(json.dumps(json.loads(results.read_text()) | {"revealed": table()}, indent=1) + "\n")
