"""Propensities that are estimated: of logs that lack them. Each block is predicted first, and then learned from."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from msgspec import Struct, structs
from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask, State, ratio
from streameval.common.component import Configurable, kind_as_mapping, strict
from streameval.errors import ConfigError, StateError
from streameval.events import EventBatch
from streameval.events.action_sets import Index
from streameval.events.origin import NO_IDENTITY, Identity, fingerprints, mix64
from streameval.events.segments import SegmentField, require_known_before
from streameval.ope.estimators import AnyEstimator, Estimator
from streameval.ope.evidence.evidence import LARGEST_WEIGHT
from streameval.ope.policies.river import Described, inputs_of_context, river_object
from streameval.ope.report import PropensityModel
from streameval.ope.reward_models.external import EXAMPLE

FOR_ESTIMATES = ", ".join(each.kind for each in get_args(get_args(AnyEstimator)[0]) if each.takes_estimated)
"""The kinds of estimators that take estimates."""
FEWEST_LEARNED = 10.0
"""Choices of an action before its propensity is estimated: the error is then about a third at most."""
MOST_ROWS = 200_000
"""Rows of a table, for actions and for their pairs with contexts; others have no row."""
SCORE_HORIZON = 100_000.0
"""Horizon in events of the scores of the model."""


class LoggedChoices(NamedTuple):
    """The logged actions of consecutive events, by fingerprints that are 0 where they are unknown.

    `action`, `context`, `weight` [n]: the logged action, the values of the fields `by`, and the inverse sampling
    probability. `options` [rows], `owner` [rows]: the actions to choose from, and their events; the only row of an
    event that does not list them is 0. `listed` [n]: whether it does. `raw_fields` [n]: with the contexts of events.
    """

    action: Identity
    context: Identity
    weight: Array
    options: Identity
    owner: Index
    listed: Mask
    raw_fields: Sequence[Mapping[str, Any]] = ()

    def part(self, events: slice) -> LoggedChoices:
        """Consecutive events of these."""
        rows = slice(*np.searchsorted(self.owner, [events.start, events.stop]))
        owner = self.owner[rows] - events.start
        action, context, weight = self.action[events], self.context[events], self.weight[events]
        raw_fields = self.raw_fields[events]
        return LoggedChoices(action, context, weight, self.options[rows], owner, self.listed[events], raw_fields)

    def shares(self, rates: Array) -> tuple[Array, Array]:
        """The probability of each logged action [n], and of the options [rows], which sum to 1 where they are listed.

        `rates` [n + rows]: of the logged actions, then of the options.
        """
        of_actions, of_options = np.split(rates, [len(self.action)])
        total: Array = np.bincount(self.owner, weights=of_options, minlength=len(self.action)).astype(np.float64)
        total[~self.listed] = 1.0
        return np.minimum(ratio(of_actions, total), 1.0), ratio(of_options, total[self.owner])


class ChoiceCounts(Struct, frozen=True, eq=False):
    """How often actions were chosen and could have been, by context, with one row for each pair that occurred.

    `keys`: of the rows, ascending. `sums` [rows, 2]: decayed choices of the action, and events that list it; the row of
    the action 0 has the events without a list, in which every action could be chosen.
    """

    keys: Identity
    sums: Array

    @classmethod
    def none(cls) -> ChoiceCounts:
        return cls(np.zeros(0, dtype=np.uint64), np.zeros((0, 2)))

    def of(self, context: Identity, action: Identity) -> tuple[Array, Array]:
        """The choices of these actions in these contexts, and the events in which they could be chosen."""
        chosen, listed = self._rows(_key(context, action)).T
        return chosen, listed + self._rows(_key(context, np.full_like(action, NO_IDENTITY)))[:, 1]

    def after(self, choices: LoggedChoices, context: Identity, fading: float) -> ChoiceCounts:
        """The counts after a block; `context` [n]: that of each event, which need not be that of the block."""
        known = choices.action != NO_IDENTITY
        shown = known[choices.owner]
        keys = np.concatenate(
            [_key(context, choices.action)[known], _key(context[choices.owner], choices.options)[shown]]
        )
        of_rows = choices.weight[choices.owner][shown]
        added = np.zeros((len(keys), 2))
        added[: len(keys) - len(of_rows), 0], added[len(keys) - len(of_rows) :, 1] = choices.weight[known], of_rows
        counts = self._with(keys)
        sums, place = counts.sums * fading, counts._places(keys)
        np.add.at(sums, place[place >= 0], added[place >= 0])
        return structs.replace(counts, sums=sums)

    def _with(self, keys: Identity) -> ChoiceCounts:
        """With rows for new keys, the first ones while there is room."""
        new, first = np.unique(keys, return_index=True)
        is_new = self._places(new) < 0
        new = new[is_new][np.argsort(first[is_new])][: MOST_ROWS - len(self.keys)]
        if not len(new):
            return self
        every, sums = np.concatenate([self.keys, new]), np.concatenate([self.sums, np.zeros((len(new), 2))])
        order = np.argsort(every)
        return ChoiceCounts(every[order], sums[order])

    def _places(self, keys: Identity) -> Index:
        """The row of each key, -1 without one."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[place] == keys, place, -1)

    def _rows(self, keys: Identity) -> Array:
        found, place = np.zeros((len(keys), 2)), self._places(keys)
        found[place >= 0] = self.sums[place[place >= 0]]
        return found


def _key(context: Identity, action: Identity) -> Identity:
    return mix64(action + mix64(context))


@dataclass(frozen=True, config=strict)
class FrequencyTable(metaclass=Configurable):
    """How often each action was chosen among the events in which it could be, in each context.

    A context is a value of each of the fields `by`: text, whole numbers, true and false. With `n` choices of the action
    in the context, `m` events of the context in which it could be chosen, and the same share `q` of all contexts, the
    estimate is `(n + k q) / (m + k)`, with `shrinkage` k. Where events list their `actions`, estimates are divided by
    their sum over the list. Old events decay with `horizon` (events).

    A context that the logging policy used, and that `by` lacks, makes the estimate wrong.
    """

    is_external: ClassVar[bool] = False

    by: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="the fields that the logging policy chose by, e.g. [context.country, position]"
    )
    shrinkage: PositiveFloat = Field(
        default=10.0, description="events of the share over all contexts that each context starts with"
    )
    horizon: float = Field(default=100_000.0, ge=100, description="in events, after which old choices count less")
    kind: Literal["tabular"] = Field(default="tabular", kw_only=True, repr=False)

    def start(self) -> ChoiceCounts:
        """Start before the first event."""
        return ChoiceCounts.none()

    def rates(self, state: ChoiceCounts, choices: LoggedChoices, share: Array) -> Array:
        """How often each action is chosen in its context; `share`: how often in all contexts.

        Both are of the logged actions, then of the options: [n + rows].
        """
        if not self.by:
            return share
        context = np.concatenate([choices.context, choices.context[choices.owner]])
        chosen, possible = state.of(context, np.concatenate([choices.action, choices.options]))
        return (chosen + self.shrinkage * share) / (possible + self.shrinkage)

    def after(self, state: ChoiceCounts, choices: LoggedChoices) -> ChoiceCounts:
        """The state after a block."""
        return state.after(choices, choices.context, _fading(self.horizon, choices)) if self.by else state


class ClassifierState(Struct, frozen=True, eq=False):
    """Hold a classifier, None before the first event, and the number of events with which it failed."""

    classifier: Any = None
    failures: int = 0


@dataclass(frozen=True, config=strict)
class RiverClassifier(metaclass=Configurable):
    """A classifier of the river library that predicts the logged action from the `context` of the event.

    `model`: its name there, e.g. `linear_model.SoftmaxRegression`. `parameters`: as of the reward model of river. The
    inputs are the numbers and texts of the context; numbers are scaled to mean 0 and variance 1 if `scale`. Where
    events list their `actions`, estimates are divided by their sum over the list. It calls Python for each event, and
    does not receive sampling probabilities. Its state is code: a snapshot is loaded only if the configuration names it.
    """

    is_external: ClassVar[bool] = True
    by: ClassVar[tuple[str, ...]] = ()
    horizon: ClassVar[float] = 100_000.0

    model: Annotated[str, Field(pattern=r"^\w+(\.\w+)+$")] = Field(
        description="the name of a classifier in river, e.g. linear_model.SoftmaxRegression"
    )
    parameters: Mapping[str, Any] = Field(default_factory=dict, description="the arguments of its constructor")
    scale: bool = Field(default=True, description="whether numbers are scaled to mean 0 and variance 1")
    kind: Literal["river"] = Field(default="river", kw_only=True, repr=False)

    def make(self) -> ScaledClassifier:
        """A new classifier.

        Raises:
            ConfigError: There is none of this name, or with these parameters.
        """
        from river.base import Classifier  # slow to import, and rarely used
        from river.preprocessing import StandardScaler

        classifier = river_object(self.model, self.parameters, EXAMPLE)
        if not (isinstance(classifier, Classifier) and classifier._multiclass):
            hint = "e.g. linear_model.SoftmaxRegression or naive_bayes.BernoulliNB"
            raise ConfigError(f"river's {self.model} is not a classifier of several classes", hint=hint)
        return ScaledClassifier(classifier, StandardScaler() if self.scale else None)

    def start(self) -> ClassifierState:
        """Start before the first event."""
        return ClassifierState()

    def rates(self, state: ClassifierState, choices: LoggedChoices, share: Array) -> Array:
        """The predicted probability of each logged action, then of the options; 0 where the classifier fails."""
        if state.classifier is None:
            return np.zeros_like(share)
        found = [state.classifier.predict(_described(choices, event)) for event in range(len(choices.action))]
        logged = [each.get(action, 0.0) for each, action in zip(found, choices.action.tolist(), strict=True)]
        pairs = zip(choices.options.tolist(), choices.owner.tolist(), strict=True)
        rates = np.array([*logged, *(found[event].get(action, 0.0) for action, event in pairs)], dtype=np.float64)
        return np.where(np.isfinite(rates), np.clip(rates, 0.0, 1.0), 0.0)

    def after(self, state: ClassifierState, choices: LoggedChoices) -> ClassifierState:
        """The state after a block; the classifier is an object that changes."""
        classifier = state.classifier or self.make()
        failures = sum(
            not classifier.learn(_described(choices, event), action)
            for event, action in enumerate(choices.action.tolist())
            if action
        )
        return ClassifierState(classifier, state.failures + failures)


class ScaledClassifier:
    """A river classifier whose numbers are scaled; its classes are the fingerprints of actions."""

    def __init__(self, classifier: Any, scaler: Any) -> None:
        self._classifier, self._scaler = classifier, scaler

    def predict(self, inputs: Described) -> Mapping[int, float]:
        """The probability of each action; empty where the classifier raises."""
        try:
            return dict(self._classifier.predict_proba_one(self._scaled(inputs)))
        except Exception:  # noqa: BLE001 - a failing model must not stop the estimates
            return {}

    def learn(self, inputs: Described, action: int) -> bool:
        """Learn from a choice; False if the classifier raises."""
        try:
            if self._scaler is not None:
                self._scaler.learn_one(inputs[0])
            self._classifier.learn_one(self._scaled(inputs), action)
        except Exception:  # noqa: BLE001 - as above
            return False
        return True

    def _scaled(self, inputs: Described) -> dict[str, float]:
        numbers, marks = inputs
        return {**(numbers if self._scaler is None else self._scaler.transform_one(numbers)), **marks}


def _described(choices: LoggedChoices, event: int) -> Described:
    return inputs_of_context(choices.raw_fields[event].get("context") if choices.raw_fields else None)


def _fading(horizon: float, choices: LoggedChoices) -> float:
    return float((1 - 1 / horizon) ** len(choices.action))


class PropensityState(Struct, frozen=True, eq=False):
    """Hold what estimated propensities come from.

    Attributes:
        events: the number of events so far
        unknown: the number of events without an estimate
        actions: choices in all contexts
        model: the state of the model
        scores: sums of the weights of recent events that had an estimate, and of `-ln p` by the model and by the shares
            of actions [3]
    """

    events: int
    unknown: int
    actions: ChoiceCounts
    model: Any
    scores: Array


@dataclass(frozen=True, config=strict)
class EstimatedPropensity(metaclass=Configurable):
    """Propensities that a model estimates from the logged actions, for logs that lack them.

    The model predicts the logged action of each event from the blocks before its own, and then learns from the block.
    Propensities that events carry are ignored. An event has no estimate, and is missing for all candidates, among the
    first `warm_up` events, where its action was chosen less than ten times before, and where the estimate is below
    `floor`. Intervals leave out the error of the estimates: only estimators that a wrong scale of the weights does not
    bias, or that correct a reward model, may use them.

    Source: Hirano, Imbens & Ridder, Econometrica 2003, for estimated propensities; Dudik, Langford & Li, ICML 2011, for
    why a reward model corrects their errors.
    """

    model: Annotated[
        FrequencyTable | RiverClassifier, Field(discriminator="kind"), BeforeValidator(kind_as_mapping)
    ] = Field(
        default=FrequencyTable(), description="the model that estimates, e.g. {kind: tabular, by: [context.country]}"
    )
    floor: float = Field(
        default=0.001, gt=0, lt=1, description="an event whose estimate is smaller is missing for all candidates"
    )
    warm_up: NonNegativeInt = Field(default=1000, description="events before the first estimate")
    kind: Literal["estimated"] = Field(default="estimated", kw_only=True, repr=False)

    @property
    def fields(self) -> list[SegmentField]:
        """The fields of events that the model reads."""
        return [SegmentField(name, name) for name in self.model.by]

    def check(self) -> None:
        """Check the fields.

        Raises:
            ValueError: A field is not known before the decision, or given twice.
            ConfigError: The classifier cannot be made.
        """
        for each in self.fields:
            require_known_before(each)
        if len(set(self.model.by)) < len(self.model.by):
            raise ValueError("`by` names a field twice")
        if isinstance(self.model, RiverClassifier):
            self.model.make()

    def check_with(self, estimators: Mapping[str, Estimator], segments: Sequence[SegmentField], others: bool) -> None:
        """Check the settings together with the rest of a plan; `others`: it has a ranking or arms.

        Raises:
            ValueError: They do not fit together.
        """
        self.check()
        for label, each in estimators.items():
            if not each.takes_estimated:
                raise ValueError(f"{label} needs logged propensities; estimated ones are for {FOR_ESTIMATES}")
        if others:
            raise ValueError("propensities are estimated for single actions, without a `ranking` or arms of a ramp")
        for segment in segments:
            if segment.name in self.model.by and segment.field != segment.name:
                raise ValueError(f"`by` names the field {segment.name}, and a segment of another field has this name")

    def start(self) -> PropensityState:
        """Start before the first event."""
        return PropensityState(0, 0, ChoiceCounts.none(), self.model.start(), np.zeros(3))

    def fold(self, state: PropensityState, events: EventBatch, block: int) -> tuple[EventBatch, PropensityState]:
        """The events with estimated propensities, NaN where they are unknown, and the state after the whole blocks."""
        estimated, every = np.full(len(events), np.nan), self.choices(events)
        of_options = [np.empty(0)]
        for first in range(0, len(events), block):
            part = slice(first, first + block)
            choices = every.part(part)
            estimated[part], shares, overall = self._predicted(state, choices)
            of_options.append(shares)
            if len(choices.action) == block:
                state = self._after(state, choices, estimated[part], overall)
        sets = events.action_sets
        if sets is not None:
            known, listed = ~np.isnan(estimated)[every.owner], every.listed[every.owner]
            shares = np.where(known, np.concatenate(of_options), np.nan)
            sets = replace(sets, propensities=shares[listed])
        return replace(events, propensity=estimated, action_sets=sets), state

    def choices(self, events: EventBatch) -> LoggedChoices:
        """The choices among the events, from which the model learns."""
        sets, number = events.action_sets, len(events)
        sizes = np.zeros(number, dtype=np.int64) if sets is None else sets.sizes
        single = events.slates is None and events.scored is None
        action = np.full(number, NO_IDENTITY)
        if events.actions is not None:
            known = events.actions.chosen >= 0
            action[known] = fingerprints(events.actions.names)[events.actions.chosen[known]]
        if sets is not None and events.raw_fields is None:  # arrays: actions are their positions
            listed = np.flatnonzero(sets.index >= 0)
            action[listed] = fingerprints(sets.index[listed].tolist())
        context = np.full(number, NO_IDENTITY)
        for each in self.fields:
            values = NO_IDENTITY if events.segments is None else events.segments.of_name(each.name)
            context = mix64(context + values + np.uint64(1))
        rows = np.maximum(sizes, 1)
        owner = np.repeat(np.arange(number), rows)
        options = np.full(len(owner), NO_IDENTITY)
        options[(sizes > 0)[owner]] = fingerprints(_names(events, sizes)) if sizes.any() else NO_IDENTITY
        with np.errstate(over="ignore"):
            weight = 1.0 / events.sampling_probability
        weight = np.where(weight <= LARGEST_WEIGHT, weight, 0.0)
        raw_fields = () if events.raw_fields is None else events.raw_fields.values
        action = action if single else np.full(number, NO_IDENTITY)
        return LoggedChoices(action, context, weight, options, owner, sizes > 0, raw_fields)

    def _predicted(self, state: PropensityState, choices: LoggedChoices) -> tuple[Array, Array, Array]:
        """The estimates, NaN where they are unknown, those of all options, and the shares without the context."""
        every, number = np.concatenate([choices.action, choices.options]), len(choices.action)
        chosen, possible = state.actions.of(np.full_like(every, NO_IDENTITY), every)
        share = np.nan_to_num(ratio(chosen, possible))
        (estimated, of_options), (overall, _) = map(
            choices.shares, (self.model.rates(state.model, choices, share), share)
        )
        known = (choices.action != NO_IDENTITY) & (chosen[:number] >= FEWEST_LEARNED) & (estimated >= self.floor)
        return np.where(known & (state.events >= self.warm_up), estimated, np.nan), of_options, overall

    def _after(
        self, state: PropensityState, choices: LoggedChoices, estimated: Array, overall: Array
    ) -> PropensityState:
        known = ~np.isnan(estimated)
        weight = choices.weight[known]
        losses = -np.log(np.maximum(np.stack([estimated[known], overall[known]]), np.finfo(float).tiny))
        added = np.array([weight.sum(), *(losses @ weight)])
        everywhere = np.full_like(choices.context, NO_IDENTITY)
        fading = _fading(self.model.horizon, choices)
        return PropensityState(
            events=state.events + len(known),
            unknown=state.unknown + int(np.count_nonzero(~known)),
            actions=state.actions.after(choices, everywhere, fading),
            model=self.model.after(state.model, choices),
            scores=state.scores * _fading(SCORE_HORIZON, choices) + added,
        )

    def read(self, state: PropensityState) -> PropensityModel:
        """How well the model predicts."""
        losses = ratio(state.scores[1:], state.scores[0]).tolist()
        own, overall = (loss if np.isfinite(loss) else None for loss in losses)
        failures = state.model.failures if isinstance(state.model, ClassifierState) else 0
        return PropensityModel(self.model.kind, state.events, state.unknown, own, overall, failures)

    def to_state(self, state: PropensityState) -> PropensityState:
        """Return the state with a classifier pickled.

        Raises:
            StateError: The classifier cannot be pickled.
        """
        model = state.model
        if not isinstance(model, ClassifierState):
            return state
        try:
            pickled = None if model.classifier is None else pickle.dumps(model.classifier)
        except Exception as error:
            problem = f"the classifier of propensities cannot be saved: {type(error).__name__}: {error}"
            raise StateError(problem, hint="choose a classifier that pickle can store") from error
        return structs.replace(state, model=structs.replace(model, classifier=pickled))

    def from_state(self, saved: PropensityState, trusted: EstimatedPropensity | None) -> PropensityState:
        """Return the inverse of `to_state`. A classifier is code, which is loaded only if the caller names it.

        Raises:
            StateError: The caller does not name it.
        """
        model = saved.model
        if not isinstance(model, ClassifierState) or model.classifier is None:
            return saved
        if trusted != self:
            raise StateError(
                "the state holds a classifier of propensities, which is code: it loads only if the caller names it",
                hint="give from_state the propensity that the configuration names",
            )
        return structs.replace(saved, model=structs.replace(model, classifier=pickle.loads(model.classifier)))

    def without_code(self, saved: State, trusted: EstimatedPropensity | None) -> State:
        """A plain state without a classifier that the caller does not name: there is then no further estimate."""
        if not self.model.is_external or trusted == self:
            return saved
        return {**saved, "model": {**saved["model"], "classifier": None}}


def _names(events: EventBatch, sizes: Index) -> Sequence[str]:
    """The name of each listed action; its position where the event came without names."""
    logged = [{}] * len(sizes) if events.raw_fields is None else events.raw_fields.values
    return [
        str(name)
        for fields, size in zip(logged, sizes.tolist(), strict=True)
        for name in (fields.get("actions") or range(size))
    ]


def require(propensity: EstimatedPropensity | None, events: EventBatch) -> None:
    """Require events that have propensities, unless these are estimated.

    Raises:
        ValueError: They have none.
    """
    if propensity is None and events.scored is None and np.isnan(events.propensity).any():
        raise ValueError(
            'the events have no propensities: log them, or give the evaluator propensity={"kind": "estimated"}'
        )


def weighable(events: EventBatch) -> EventBatch:
    """The events with a propensity of 1, and without candidates, where the propensity is unknown.

    Production that is `logging` needs none.
    """
    unknown = np.isnan(events.propensity)
    return replace(
        events,
        propensity=np.where(unknown, 1.0, events.propensity),
        probabilities=np.where(unknown, np.nan, events.probabilities.T).T,
    )
