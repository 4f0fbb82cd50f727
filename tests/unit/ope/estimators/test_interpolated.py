"""Test estimators between the reward model and the importance weight: identities, bias, and missing fields."""

from __future__ import annotations

import math
from dataclasses import field, replace
from typing import ClassVar, Literal

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass

from streameval import Evaluator
from streameval.common.component import strict
from streameval.common.problems import ProblemsError
from streameval.events import EventBatch
from streameval.ope.core import Cumulative
from streameval.ope.estimators import (
    CAB,
    CABDR,
    DM,
    DR,
    IPS,
    AnyEstimator,
    ClippedIPS,
    StaticBlend,
    Switch,
)
from streameval.ope.estimators.interpolated import PREDICTED, WEIGHED, WEIGHTS, Interpolated
from streameval.ope.evidence import Evidence
from streameval.ope.evidence.actions import NOTHING, Requirement, Requirements
from streameval.ope.reward_models import Tabular
from support import parts
from support.bandits import CANDIDATE, random_bandit, values_of, without_features
from support.strategies import examples

Array = NDArray[np.float64]

CAP = parts.CAP
FAMILY = [estimator for estimator in parts.estimators() if isinstance(estimator, Interpolated)]
exactly = examples(60)


def distributions(events: int, actions: int, shares: st.SearchStrategy[float]) -> st.SearchStrategy[Array]:
    tables = arrays.arrays(float, (events, actions), elements=shares).filter(lambda table: table.any(axis=1).all())
    return tables.map(lambda table: table / table.sum(axis=1, keepdims=True))


@st.composite
def full_support(draw: st.DrawFn) -> Evidence:
    """Draw events of equal size with actions that the logging policy may take, and any predictions."""
    events, actions = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    numbers = arrays.arrays(float, (events, actions), elements=st.floats(-1, 1))
    return Evidence.from_actions(
        reward=draw(arrays.arrays(float, events, elements=st.floats(-1, 1))),
        action=draw(arrays.arrays(int, events, elements=st.integers(0, actions - 1))),
        propensities=draw(distributions(events, actions, st.floats(0.01, 1))),
        target=draw(distributions(events, actions, st.floats(1e-6, 1) | st.just(0.0))),
        prediction=draw(numbers),
    )


def terms(estimator: AnyEstimator, evidence: Evidence) -> Array:
    return estimator.terms(evidence, estimator.start(policies=1))[0].numerator[:, 0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (StaticBlend(tau=1), IPS()),
        (Switch(cap=math.inf), IPS()),
        (CAB(cap=math.inf), IPS()),
        (ClippedIPS(cap=math.inf), IPS()),
        (StaticBlend(tau=0), DM()),
        (Switch(cap=0), DM()),
        (CAB(cap=0), DM()),
        (CABDR(cap=0), DM()),
        (CABDR(cap=math.inf), DR()),
    ],
    ids=lambda estimator: repr(estimator),
)
@exactly
@given(evidence=full_support())
def test_at_the_end_of_its_parameter_each_term_equals_the_term_of_another_estimator(
    one: AnyEstimator, other: AnyEstimator, evidence: Evidence
) -> None:
    np.testing.assert_allclose(terms(one, evidence), terms(other, evidence), rtol=1e-12, atol=1e-12)


@exactly
@given(evidence=full_support())
def test_without_a_model_dr_is_ips_and_cab_is_clipped_ips(evidence: Evidence) -> None:
    assert evidence.actions is not None
    blind = evidence.with_predictions(np.zeros_like(evidence.actions.prediction))
    np.testing.assert_allclose(terms(DR(), blind), terms(IPS(), blind), rtol=1e-12, atol=1e-12)
    for blended in (CAB(cap=CAP), CABDR(cap=CAP)):
        np.testing.assert_allclose(terms(blended, blind), terms(ClippedIPS(cap=CAP), blind), rtol=1e-12, atol=1e-12)


@exactly
@given(evidence=full_support(), cap=st.floats(1, 100))
def test_with_the_logging_policy_as_target_switch_and_cab_are_the_reward(evidence: Evidence, cap: float) -> None:
    assert evidence.actions is not None
    actions = replace(evidence.actions, probability=evidence.actions.propensity[:, None])
    same = replace(evidence, importance_weight=np.ones_like(evidence.importance_weight), actions=actions)
    for estimator in (Switch(cap=cap), CAB(cap=cap), ClippedIPS(cap=cap), IPS()):
        np.testing.assert_allclose(terms(estimator, same), same.reward, rtol=1e-12, atol=1e-12)


@exactly
@given(evidence=full_support(), cap=st.floats(0, 50), tau=st.floats(0, 1))
def test_every_row_of_the_table_equals_the_published_formula(evidence: Evidence, cap: float, tau: float) -> None:
    sets = evidence.actions
    assert sets is not None
    pi, q = sets.probability[:, 0], sets.prediction
    big, w, r = pi / sets.propensity, evidence.importance_weight[:, 0], evidence.reward
    q_logged = q[sets.sets.logged[1]]

    def summed(values: Array) -> Array:
        return np.array([summands.sum() for summands in np.split(values, sets.sets.offsets[1:-1])])

    clipped = np.minimum(w, cap)
    with np.errstate(divide="ignore", invalid="ignore"):
        left = np.where(big == 0, 0, 1 - np.minimum(cap / big, 1))
    published = {
        DM(): summed(pi * q),
        DR(): summed(pi * q) + w * (r - q_logged),
        StaticBlend(tau=tau): (1 - tau) * summed(pi * q) + tau * w * r,
        Switch(cap=cap): summed(pi * q * (big > cap)) + w * r * (w <= cap),
        CAB(cap=cap): summed(pi * q * left) + clipped * r,
        CABDR(cap=cap): summed(pi * q) + clipped * (r - q_logged),
    }
    for estimator, expected in published.items():
        np.testing.assert_allclose(terms(estimator, evidence), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("estimator", FAMILY, ids=lambda case: case.label)
def test_a_row_needs_the_logging_distribution_if_the_weight_decides_the_part_of_the_model(
    estimator: Interpolated,
) -> None:
    needs = estimator.needs
    assert needs in (NOTHING, PREDICTED, WEIGHED)
    if needs:
        depends = np.ptp(estimator.beta(WEIGHTS)) > 0 and not estimator.corrected
        assert needs == (WEIGHED if depends else PREDICTED)


@pytest.mark.parametrize("cap", [0.0, 1.0, 1e6, math.inf])
def test_switch_and_cab_take_the_model_for_actions_that_are_never_logged(cap: float) -> None:
    evidence = Evidence.from_actions(
        reward=[0.0], action=[0], propensities=[[1.0, 0.0]], target=[[0.4, 0.6]], prediction=[0.3, 0.5]
    )
    logged = 0.4 * 0.3 if cap < 0.4 else 0.0
    for estimator in (Switch(cap=cap), CAB(cap=cap)):
        assert terms(estimator, evidence) == pytest.approx([0.6 * 0.5 + logged], rel=1e-12)
    assert terms(CABDR(cap=cap), evidence) == pytest.approx([0.12 + 0.3 - min(cap, 0.4) * 0.3], rel=1e-12)


@pytest.mark.parametrize("wrong", [-0.1, math.nan])
@pytest.mark.parametrize("kind", [Switch, CAB, CABDR])
def test_a_cap_below_zero_or_null_is_refused(kind: type, wrong: float) -> None:
    with pytest.raises(ProblemsError, match="cap"):
        kind(cap=wrong)


@pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan])
def test_a_blend_above_1_is_refused(wrong: float) -> None:
    with pytest.raises(ProblemsError, match="tau"):
        StaticBlend(tau=wrong)


RANGED = [estimator for estimator in parts.estimators() if not estimator.uses_clicks and estimator.needs <= WEIGHED]
every_estimator = pytest.mark.parametrize("estimator", RANGED, ids=lambda case: case.label)


def rescaled(evidence: Evidence, scale: float, shift: float) -> Evidence:
    """Return the evidence with rewards and predictions times `scale` plus `shift`."""
    assert evidence.actions is not None
    moved = replace(evidence, reward=evidence.reward * scale + shift)
    return moved.with_predictions(evidence.actions.prediction * scale + shift)


@every_estimator
@exactly
@given(evidence=full_support(), scale=st.floats(0.1, 3), shift=st.floats(-2, 2))
def test_no_term_lies_outside_its_range_or_further_from_another_than_its_width(
    estimator: AnyEstimator, evidence: Evidence, scale: float, shift: float
) -> None:
    moved = rescaled(evidence, scale, shift)
    weight, actual = moved.importance_weight[:, 0], terms(estimator, moved)
    limits = estimator.term_range((shift - scale, shift + scale), moved.importance_weight.max(axis=0))
    counted = np.minimum(weight, limits.heaviest)
    rounding = 1e-9 * (1 + np.abs(actual))
    assert np.all(actual >= limits.low_offset + limits.low_slope * counted - rounding)
    assert np.all(actual <= limits.high_offset + limits.high_slope * counted + rounding)
    if estimator.ratio:  # the linearised term of `snips`
        assume(weight.any())
        actual = actual - weight * (actual.sum() / weight.sum())
    assert np.ptp(actual) <= limits.width[0] * (1 + 1e-9) + 1e-9


@dataclass(frozen=True, config=strict)
class Shrunk(Interpolated):
    """Define a row as a user may, `beta(w) = s / (w^2 + s)`. Its product with w is largest at the root of s."""

    is_biased_by_design: ClassVar[bool] = True
    shrinkage: float = 10.0
    kind: Literal["shrunk"] = field(default="shrunk", kw_only=True, repr=False)

    def beta(self, weight: Array) -> Array:
        with np.errstate(over="ignore"):
            return self.shrinkage / (np.square(weight) + self.shrinkage)


@dataclass(frozen=True, config=strict)
class ShrunkDR(Shrunk):
    """Correct the model by the optimistic shrinkage of Su et al., ICML 2020."""

    needs: ClassVar[Requirements] = PREDICTED
    corrected: ClassVar[bool] = True


@dataclass(frozen=True, config=strict)
class Exact(ShrunkDR):
    """State the exact limit of `ShrunkDR`."""

    @property
    def limit(self) -> float:
        return math.sqrt(self.shrinkage)


@dataclass(frozen=True, config=strict)
class ShrunkBlend(Shrunk):
    """Let the model stand in for the share that is cut off."""

    needs: ClassVar[Requirements] = WEIGHED


@dataclass(frozen=True, config=strict)
class Late(Interpolated):
    """Weigh small weights less, and let the model stand in for them."""

    needs: ClassVar[Requirements] = WEIGHED
    kind: Literal["late"] = field(default="late", kw_only=True, repr=False)

    def beta(self, weight: Array) -> Array:
        return np.minimum(weight, 1.0)


@dataclass(frozen=True, config=strict)
class Twice(Interpolated):
    """Define a product with w that rises to 3, falls, and rises again to 2."""

    kind: Literal["twice"] = field(default="twice", kw_only=True, repr=False)

    def beta(self, weight: Array) -> Array:
        return np.where(weight <= 3, 1.0, np.where(weight < 50, 1.0, 2.0) / np.maximum(weight, 3.0))


OWN: list[Interpolated] = [Shrunk(), ShrunkDR(), ShrunkBlend(), ShrunkDR(shrinkage=1e-4), Exact(), Late(), Twice()]
ROWS = [*FAMILY, *OWN]


@pytest.mark.parametrize("row", ROWS, ids=repr)
def test_a_row_has_a_limit_if_its_product_with_the_weight_is_bounded(row: Interpolated) -> None:
    product = WEIGHTS * row.beta(WEIGHTS)
    rises = product[-1] > product[WEIGHTS < 1e6].max() * (1 + 1e-9)
    assert math.isfinite(row.limit) == (product.any() and not rises)
    assert np.all(product <= row.limit * (1 + 1e-9))
    assert np.all(product[row.limit < WEIGHTS] <= product[row.limit >= WEIGHTS].max(initial=0.0) + 0.02 * row.limit)


@pytest.mark.parametrize("row", [estimator for estimator in ROWS if math.isfinite(estimator.limit)], ids=repr)
def test_the_limit_that_is_searched_for_equals_the_exact_one(row: Interpolated) -> None:
    exact = math.sqrt(row.shrinkage) if isinstance(row, Shrunk) else 3.0 if isinstance(row, Twice) else row.limit
    looked_for = Interpolated.limit.__get__(row)
    assert exact <= looked_for <= 1.014 * exact


@pytest.mark.parametrize("shrinkage", [1.0, 3.0, 10.0])
@pytest.mark.parametrize("interval", ["empirical_likelihood", "normal", "confidence_sequence"])
def test_intervals_with_the_limit_that_is_searched_for_equal_those_with_the_exact_one(
    shrinkage: float, interval: str
) -> None:
    rows = [ShrunkDR(shrinkage=shrinkage), Exact(shrinkage=shrinkage, name="exact")]
    evaluator = Evaluator([CANDIDATE], rows, [Cumulative()], intervals={"cumulative": interval})
    evaluator.update(random_bandit(seed=5, smallest=0.02).log(2_000, seed=5))
    report = evaluator.report()
    actual, exact = (report.get(CANDIDATE, row.label, "cumulative") for row in rows)
    assert None not in (actual.lower, exact.lower)
    assert actual.lower == pytest.approx(exact.lower, abs=0.02 * (exact.upper - exact.lower))
    assert actual.upper == pytest.approx(exact.upper, abs=0.02 * (exact.upper - exact.lower))


def test_a_range_holds_for_weights_below_the_largest() -> None:
    """Check a weight of 3.16 with a shrinkage of 10: half of it counts, which corrects the model by up to 1.58."""
    widths = ShrunkDR().term_range((0.0, 1.0), np.array([1.0, 10**0.5, 100.0, np.inf, np.nan])).width
    assert widths[0] == pytest.approx(1 + 2 / 1.1, rel=0.007)
    assert widths[1:3] == pytest.approx(1 + 10**0.5, rel=0.007)
    assert np.all(widths[:3] >= [1 + 2 / 1.1, 1 + 10**0.5, 1 + 10**0.5])
    assert widths[3] >= widths[2]
    assert np.isnan(widths[4])


@pytest.mark.parametrize("estimator", ROWS, ids=repr)
@given(weights=st.lists(st.floats(0, 1e7), min_size=2, max_size=20))
def test_a_range_is_at_least_as_wide_for_a_larger_weight(estimator: AnyEstimator, weights: list[float]) -> None:
    width = estimator.term_range((-1.0, 2.0), np.sort(weights)).width
    assert np.all(np.diff(width) >= 0)


@pytest.mark.parametrize("estimator", OWN, ids=lambda case: case.label)
@exactly
@given(evidence=full_support(), scale=st.floats(0.1, 3), shift=st.floats(-2, 2))
def test_terms_of_a_row_of_a_user_lie_inside_its_range(
    estimator: Interpolated, evidence: Evidence, scale: float, shift: float
) -> None:
    moved = rescaled(evidence, scale, shift)
    weight, actual = moved.importance_weight[:, 0], terms(estimator, moved)
    limits = estimator.term_range((shift - scale, shift + scale), moved.importance_weight.max(axis=0))
    rounding = 1e-9 * (1 + np.abs(actual))
    assert np.ptp(actual) <= limits.width[0] + rounding.max()
    assert np.all(actual >= limits.lowest(weight) - rounding)
    assert np.all(actual <= limits.highest(weight) + rounding)


def described(**gone: bool) -> EventBatch:
    """Draw a hundred events.

    Args:
        gone: Names of the fields that every other event lacks.
    """
    batch = random_bandit(seed=3, smallest=0.1).log(100, seed=3)
    sets = batch.action_sets
    assert sets is not None
    columns = {name: getattr(sets, name).copy() for name in ("propensities", "probabilities")}
    rows = np.flatnonzero(sets.owner % 2 == 0)
    logged = sets.logged[1]
    for name in gone.keys() & columns.keys():
        kept = columns[name][logged].copy()
        columns[name][rows] = np.nan
        columns[name][logged] = kept
    changed = replace(batch, action_sets=replace(sets, **columns))
    return without_features(changed, np.arange(100) % 2 == 0) if "features" in gone else changed


@pytest.mark.parametrize(
    ("gone", "need"), [("propensities", "logging"), ("probabilities", "target"), ("features", "prediction")]
)
def test_an_event_is_missing_only_for_estimators_that_need_its_missing_field(gone: str, need: Requirement) -> None:
    evaluator = Evaluator([CANDIDATE], estimators=FAMILY, averages=[Cumulative()])
    evaluator.update(described(**{gone: True}))
    report = evaluator.report()
    halves = Evaluator([CANDIDATE], estimators=FAMILY, averages=[Cumulative()])
    halves.update(described())
    complete = halves.report()
    for estimator in FAMILY:
        size, full_size = (
            one.get(CANDIDATE, estimator.label, "cumulative").effective_sample_size for one in (report, complete)
        )
        assert size is not None
        assert full_size is not None
        assert (size == pytest.approx(full_size)) == (need not in estimator.needs), estimator.label


def test_the_mean_of_every_action_needs_no_features() -> None:
    actual = values_of(described(features=True), FAMILY, reward_model=Tabular())
    assert actual == values_of(described(), FAMILY, reward_model=Tabular())
    assert None not in actual.values()


def test_events_with_the_logged_action_alone_are_missing_for_the_family_and_not_for_ips() -> None:
    batch = EventBatch.from_arrays(reward=[1, 0], propensity=[0.5, 0.5], policies={CANDIDATE: [0.5, 0.25]})
    actual = values_of(batch, FAMILY)
    labels = {label for label, value in actual.items() if value is not None}
    assert labels == {estimator.label for estimator in FAMILY if not estimator.needs}


@pytest.mark.parametrize(
    ("gone", "field", "estimators"),
    [
        ("propensities", "`propensities`", ("switch", "cab")),
        ("probabilities", f"`policies.{CANDIDATE}` as a list over `actions`", ("dm", "dr", "switch", "cab")),
        ("features", "`features`", ("dm", "dr", "switch", "cab")),
    ],
)
def test_fields_that_the_first_events_lack_are_named(gone: str, field: str, estimators: tuple[str, ...]) -> None:
    evaluator = Evaluator([CANDIDATE], estimators=[IPS(), DM(), DR(), Switch(cap=5), CAB(cap=5)])
    (actual, *others) = evaluator.missing_fields(described(**{gone: True}))
    if gone == "propensities":  # propensities are also the distribution of the logging policy as a target
        assert set(actual.estimators) >= set(estimators)
    else:
        assert actual.estimators == estimators
    assert (actual.field, actual.lacking, actual.events, others) == (field, 50, 100, [])
    assert str(actual).startswith(f"50 of the first 100 events have no {field}")
    assert (actual.wanted_by == "ridge") == (gone == "features")
    assert not evaluator.missing_fields(described())
