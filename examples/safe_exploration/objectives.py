"""Measure how well each objective learns, and whether its estimates are true while it learns.

python objectives.py run       20 seeds of each study, resumable
python objectives.py table     results/ -> the tables of objectives.md
python objectives.py figures   the figure of the moving world
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from digits import DIGITS, Array, Digits, add_constant, weights_of
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from streameval import Evaluator, EventBatch, Learned, Ridge

HERE = Path(__file__).parent
RESULTS = HERE / "results"
SEEDS = 20
"""Seeds 0 to 19, fixed before the first run. No run was discarded."""

CANDIDATES: Mapping[str, Any] = {
    "ips": Learned(per_action=True),
    "snips": Learned(objective="snips", per_action=True),
    "dr": Learned(objective="dr", per_action=True),
    "cab": Learned(objective="cab", clip=10.0, per_action=True),
}
STEP, LONGER_STEP = 0.01, 0.02
"""Learning rate, chosen on seeds from 100, and the default for comparison."""
MODEL = Ridge(horizon=100_000, per_action=True)
SEQUENCE = "watched"
"""The average with a confidence sequence."""
LOOK = 1_000
"""Events between two looks at the estimates."""
EVENTS = 200_000
GAVE_UP, MORE_EVENTS = 14, 300_000
"""Seed of the run that ends lowest, after giving up a digit, and events after which that digit has come back."""


class Outcome(msgspec.Struct, frozen=True):
    """Hold the result of one candidate at the end of a run on digits.

    Args:
        candidate: Name of the candidate.
        seed: Seed of the run.
        events: Events of the run.
        truth: Mean over events of the candidate's true value when it was evaluated.
        estimate: Estimate by `ips` over all events.
        error: Standard error of the estimate.
        covered: Whether the confidence sequence held the truth so far at every look.
        weight: Mean importance weight.
        accuracy: Accuracy of the likeliest digit at the end.
        value: True value of the distribution itself at the end.
        production: True value of production.
    """

    candidate: str
    seed: int
    events: int
    truth: float
    estimate: float
    error: float
    covered: bool
    weight: float
    accuracy: float
    value: float
    production: float

    @property
    def errors(self) -> float:
        """Return the distance of the estimate to the truth in standard errors."""
        return abs(self.estimate - self.truth) / self.error


def run_on_digits(seed: int, events: int = EVENTS, step: float = STEP) -> list[Outcome]:
    """Run all candidates on the log of production, a classifier of 25 images that explores."""
    digits, rng = Digits.prepared(seed), np.random.default_rng([seed, 1])
    evaluator = Evaluator(
        {name: replace(candidate, step=step) for name, candidate in CANDIDATES.items()},
        estimators=["ips"],
        averages=["cumulative", {"kind": "cumulative", "name": SEQUENCE}],
        intervals={"cumulative": "normal", SEQUENCE: "confidence_sequence"},
        reward_model=MODEL,
        promotion=None,
        drift=None,
    )
    truths, covered = dict.fromkeys(CANDIDATES, 0.0), dict.fromkeys(CANDIDATES, True)
    for event in range(0, events, LOOK):
        batch = digits.log(digits.baseline, LOOK, rng)
        fine = 100 if event < 10 * LOOK else LOOK  # early, candidates change with every block
        for first in range(0, LOOK, fine):
            for name, policy in policies(evaluator, digits).items():
                truths[name] += fine * digits.value(policy)
            evaluator.update(batch[first : first + fine])
        evaluator.fold_pending()
        for row in evaluator.estimates([("ips", SEQUENCE)]):
            if row.policy in CANDIDATES and row.lower is not None and row.upper is not None:
                covered[row.policy] &= row.lower <= truths[row.policy] / (event + LOOK) <= row.upper
    final = policies(evaluator, digits)
    return [
        Outcome(
            name,
            seed,
            events,
            truths[name] / events,
            row.value or 0.0,
            ((row.upper or 0.0) - (row.lower or 0.0)) / 2 / NormalDist().inv_cdf(0.975),
            covered[name],
            row.importance_weight_mean or 0.0,
            float((final[name].argmax(axis=1) == digits.label).mean()),
            digits.value(final[name]),
            digits.value(digits.baseline),
        )
        for row in evaluator.estimates([("ips", "cumulative")])
        for name in CANDIDATES
        if row.policy == name
    ]


def policies(evaluator: Evaluator, digits: Digits) -> dict[str, Array]:
    """Return the present distributions of the candidates, [images, 10]."""
    weights = {name: evaluator.learned(name)["weights"] for name in CANDIDATES}
    even = np.full((len(digits.label), DIGITS), 1 / DIGITS)
    return {
        name: digits.chosen_by(candidate_weights) if candidate_weights.size else even
        for name, candidate_weights in weights.items()
    }


PASSES = 20
HEAVY_EVENTS = 5_000
FOR_LOGGER, PEAK, LEAST, NOISE = 100, 4.0, 0.001, 0.1
"""Images that the peaked logger is trained on, the power of its distributions, its smallest probability, and the share
of rewards that are wrong."""
PENALTY = 1.0


class Comparison(msgspec.Struct, frozen=True):
    """Hold accuracies on other images after training on a log with large weights.

    Args:
        seed: Seed of the log.
        logger: Accuracy of the logger.
        ips: Accuracy of the candidate that learns by IPS.
        poem: Accuracy of the candidate that learns with a penalty on variance.
        largest: Largest weight of a rewarded event.
    """

    seed: int
    logger: float
    ips: float
    poem: float
    largest: float


def run_on_large_weights(seed: int) -> Comparison:
    """Train both on a log of a peaked logger in several passes. Some rewards are wrong."""
    pixels, label = load_digits(return_X_y=True)
    rng = np.random.default_rng([seed, 2])
    order = rng.permutation(len(label))
    pixels, label = pixels[order] / 16.0, label[order]
    classifier = LogisticRegression(max_iter=1_000).fit(pixels[:FOR_LOGGER], label[:FOR_LOGGER])
    likely = classifier.predict_proba(pixels) ** PEAK
    logging = (1 - DIGITS * LEAST) * likely / likely.sum(axis=1, keepdims=True) + LEAST
    half = (len(label) + FOR_LOGGER) // 2
    image = rng.integers(FOR_LOGGER, half, size=HEAVY_EVENTS)
    action = np.minimum((rng.random((HEAVY_EVENTS, 1)) > logging[image].cumsum(axis=1)).sum(axis=1), DIGITS - 1)
    right = action == label[image]
    reward = np.where(rng.random(HEAVY_EVENTS) < NOISE, ~right, right).astype(float)
    features = add_constant(pixels)
    batch = EventBatch.from_arrays(
        reward=reward,
        action=action,
        propensities=logging[image],
        features=np.repeat(features[image][:, None], DIGITS, axis=1),
        policies={},
    )
    learning = Evaluator(
        {"ips": Learned(per_action=True), "poem": Learned(per_action=True, variance=PENALTY)},
        estimators=["ips"],
        averages=["cumulative"],
        promotion=None,
        drift=None,
    )
    for _ in range(PASSES):
        learning.update(batch)
    fresh = Digits(features[half:], label[half:], logging[half:], weights_of(classifier, DIGITS))
    accuracies = [fresh.value(fresh.chosen_by(learning.learned(name)["weights"])) for name in ("ips", "poem")]
    return Comparison(seed, fresh.value(fresh.baseline), *accuracies, float((reward / batch.propensity).max()))


MOVING: Mapping[str, Any] = {
    "ips": Learned(per_action=True),
    "dr": Learned(objective="dr", per_action=True),
    "ips, forgets": Learned(per_action=True, step=0.05, horizon=10_000),
    "dr, forgets": Learned(objective="dr", per_action=True, step=0.05, horizon=10_000),
}
MOVING_MODEL = Ridge(horizon=10_000, per_action=True)
PHASE, PHASES, MOVED = 25_000, 4, 4
"""Events between two changes, the number of phases, and the digits that exchange their meanings at each change."""
SERVED = 0.625
"""The share of production's own choices: with its exploration, half of all actions are random."""


class Course(msgspec.Struct, frozen=True):
    """Hold the true value of one candidate in the moving world after every 1,000 events."""

    candidate: str
    seed: int
    values: list[float]


def moving_digits(seed: int) -> Iterator[tuple[int, Digits, EventBatch]]:
    """Yield the number of events before a step, the digits, and the events of the step.

    The digits exchange their meanings at every change.
    """
    digits, rng = Digits.prepared(seed), np.random.default_rng([seed, 3])
    for event in range(0, PHASE * PHASES, LOOK):
        if event and event % PHASE == 0:
            meaning, moved = np.arange(DIGITS), rng.choice(DIGITS, MOVED, replace=False)
            meaning[moved] = np.roll(moved, 1)
            digits = replace(digits, label=meaning[digits.label])
        yield event, digits, digits.log(SERVED * digits.baseline + (1 - SERVED) / DIGITS, LOOK, rng)


def following(candidates: Mapping[str, Any]) -> Evaluator:
    """Return an evaluator of candidates in the moving world."""
    return Evaluator(
        candidates, estimators=["ips"], averages=["cumulative"], reward_model=MOVING_MODEL, promotion=None, drift=None
    )


def run_on_moving_digits(seed: int) -> list[Course]:
    """Return the values of all candidates. `frozen` is what `ips` was at the first change."""
    values: dict[str, list[float]] = {name: [] for name in (*MOVING, "frozen", "production")}
    evaluator, frozen = following(MOVING), np.empty(0)
    for event, digits, batch in moving_digits(seed):
        evaluator.update(batch)
        now = {name: digits.chosen_by(evaluator.learned(name)["weights"]) for name in MOVING}
        frozen = now["ips"] if event < PHASE else frozen
        for name, policy in {**now, "frozen": frozen, "production": digits.baseline}.items():
            values[name].append(round(digits.value(policy), 4))
    return [Course(name, seed, path) for name, path in values.items()]


COPIED, EVERY, KEEP = "dr, forgets", 10_000, 2
"""Candidate that is copied, events between two copies, and number of newest copies that are kept."""


COPIED_SEEDS = 1
"""A single run, because a picture could not distinguish copies of several runs."""


class Copy(msgspec.Struct, frozen=True):
    """Hold the true value of a frozen copy after every 1,000 events, from its first event until it is retired."""

    number: int
    seed: int
    values: list[float]


def run_on_copies(seed: int) -> list[Copy]:
    """Return the copies that `{kind: versions_of, every: 10000, keep: 2}` makes, for as long as they are candidates."""
    evaluator, copies, candidates = following({COPIED: MOVING[COPIED]}), list[Copy](), list[tuple[Copy, Array]]()
    for event, digits, batch in moving_digits(seed):
        evaluator.update(batch)
        for copy, policy in candidates:
            copy.values.append(round(digits.value(policy), 4))
        number, since = divmod(event + LOOK, EVERY)
        if not since:
            policy = digits.chosen_by(evaluator.learned(COPIED)["weights"])
            copies.append(Copy(number, seed, [round(digits.value(policy), 4)]))
            candidates = [*candidates, (copies[-1], policy)][-KEEP:]
    return copies


STUDIES: Mapping[str, tuple[Callable[[int], Any], Any]] = {
    "objectives": (run_on_digits, Outcome),
    "large_weights": (lambda seed: [run_on_large_weights(seed)], Comparison),
    "moving": (run_on_moving_digits, Course),
    "copies": (lambda seed: run_on_copies(seed) if seed < COPIED_SEEDS else [], Copy),
    "longer_steps": (lambda seed: run_on_digits(seed, step=LONGER_STEP), Outcome),
    "more_events": (lambda seed: run_on_digits(seed, MORE_EVENTS) if seed == GAVE_UP else [], Outcome),
}
"""A function for one run and the type of its lines, by the name of the results."""

app = typer.Typer(help=__doc__, add_completion=False, rich_markup_mode=None)
Results = Annotated[Path, typer.Option(help="directory of the results")]


def stored(study: str, results: Path = RESULTS) -> list[Any]:
    """Return the stored lines of a study."""
    path = results / f"{study}.jsonl"
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=STUDIES[study][1]) for line in lines]


@app.command()
def run(
    seeds: Annotated[int, typer.Option(min=1, help="0, 1, 2 and so on")] = SEEDS, results: Results = RESULTS
) -> None:
    """Run and store the missing runs."""
    results.mkdir(parents=True, exist_ok=True)
    for study, (once, _) in STUDIES.items():
        done = {line.seed for line in stored(study, results)}
        with (results / f"{study}.jsonl").open("ab") as file:
            for seed in track([seed for seed in range(seeds) if seed not in done], study):
                file.write(b"".join(msgspec.json.encode(line) + b"\n" for line in once(seed)))
                file.flush()


@app.command()
def table(
    results: Results = RESULTS,
    document: Annotated[Path, typer.Option(help="document whose tables are filled in")] = HERE / "objectives.md",
) -> None:
    """Fill in the tables of the document from the stored results."""
    from objectives_summary import fill_in

    document.write_text(fill_in(document.read_text(), *(stored(study, results) for study in STUDIES)))


@app.command()
def figures(results: Results = RESULTS) -> None:
    """Draw the figure of the moving world from the stored runs."""
    from objectives_summary import draw

    draw(stored("moving", results), stored("copies", results), results / "moving.png")


if __name__ == "__main__":
    app()
