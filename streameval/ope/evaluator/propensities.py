"""Estimate propensities for logs that lack them. Each block is predicted first, and learned from afterwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct, structs

from streameval.common.arrays import Array, Mask, State, ratio
from streameval.common.foreign_code import CodeError, foreign_code, pickled, unpickled
from streameval.errors import ConfigError, StateError
from streameval.events import EventBatch
from streameval.events.action_sets import Index
from streameval.events.origin import NO_IDENTITY, Identity, fingerprints, mix64
from streameval.events.segments import SegmentColumns
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.estimated_propensity import EstimatedPropensity, FrequencyTable, RiverClassifier
from streameval.ope.evaluator.room import Incomplete, Present, Room
from streameval.ope.evidence.evidence import event_weight
from streameval.ope.policies.coded import Faults
from streameval.ope.policies.river import Described, inputs_of_context
from streameval.ope.promotion import repeat_for_policies
from streameval.ope.report import PropensityModel, TrustCheck

CLASSIFIER = "the classifier of propensities"
FEWEST_LEARNED = 10.0
"""Choices of an action before its propensity is estimated: the error is then about a third at most."""
MOST_ROWS = 200_000
"""Rows of a table, for actions and for their pairs with contexts; others have no row."""
SCORE_HORIZON = 100_000.0
"""Horizon in events of the scores of the model."""
REVEALED, HIDDEN = fingerprints(["scored.revealed", "scored.hidden"])
"""Actions that stand for the two fates of an outcome."""


class LoggedChoices(NamedTuple):
    """Hold the logged actions of consecutive events, by fingerprints that are 0 if unknown.

    A scored outcome is a choice between the two actions `REVEALED` and `HIDDEN`, in this order.

    Args:
        action: [n]. Logged action.
        context: [n]. Values of the fields `by`.
        weight: [n]. Inverse sampling probability.
        options: [rows]. Actions to choose from. An event without a list has one row, which is 0.
        owner: [rows]. Index of the event of each option.
        listed: [n]. Whether the event lists its actions.
        raw_fields: [n]. Contexts of events.
    """

    action: Identity
    context: Identity
    weight: Array
    options: Identity
    owner: Index
    listed: Mask
    raw_fields: Sequence[Mapping[str, Any]] = ()

    @property
    def asked(self) -> Identity:
        """Return the actions that get an estimated propensity, [n]: logged ones, and `REVEALED` of outcomes."""
        return np.where(self.action == HIDDEN, REVEALED, self.action)

    def part(self, events: slice) -> LoggedChoices:
        """Return a slice of these events."""
        rows = slice(*np.searchsorted(self.owner, [events.start, events.stop]))
        owner = self.owner[rows] - events.start
        action, context, weight = self.action[events], self.context[events], self.weight[events]
        raw_fields = self.raw_fields[events]
        return LoggedChoices(action, context, weight, self.options[rows], owner, self.listed[events], raw_fields)

    def shares(self, rates: Array) -> tuple[Array, Array]:
        """Return the probability of each action that is asked for [n] and of the options [rows], which sum to 1 if they
        are listed.

        Args:
            rates: [n + rows]. How often actions are chosen: `asked` first, then the options.
        """
        action_rates, option_rates = np.split(rates, [len(self.action)])
        total: Array = np.bincount(self.owner, weights=option_rates, minlength=len(self.action)).astype(np.float64)
        total[~self.listed] = 1.0
        return np.minimum(ratio(action_rates, total), 1.0), ratio(option_rates, total[self.owner])


class ChoiceCounts(Struct, frozen=True, eq=False):
    """Count how often actions were chosen and were available, by context, with one row for each pair that occurred.

    Args:
        keys: keys of the rows, ascending
        sums: [rows, 2]. Decayed choices of the action, and events that list it. The row of the action 0 counts events
            without a list, in which every action was available.
    """

    keys: Identity
    sums: Array

    @classmethod
    def none(cls) -> ChoiceCounts:
        return cls(np.zeros(0, dtype=np.uint64), np.zeros((0, 2)))

    def counts(self, context: Identity, action: Identity) -> tuple[Array, Array]:
        """Return the choices of these actions in these contexts, and the events in which they were available."""
        chosen, listed = self._rows(_key(context, action)).T
        return chosen, listed + self._rows(_key(context, np.full_like(action, NO_IDENTITY)))[:, 1]

    def after(self, choices: LoggedChoices, context: Identity, fading: float) -> ChoiceCounts:
        """Return the counts after a block.

        Args:
            choices: events of the block
            context: [n]. One context for each event, which may differ from the block's.
            fading: factor of the old counts
        """
        is_known = choices.action != NO_IDENTITY
        shown = is_known[choices.owner]
        keys = np.concatenate(
            [_key(context, choices.action)[is_known], _key(context[choices.owner], choices.options)[shown]]
        )
        row_weight = choices.weight[choices.owner][shown]
        added = np.zeros((len(keys), 2))
        added[: len(keys) - len(row_weight), 0], added[len(keys) - len(row_weight) :, 1] = (
            choices.weight[is_known],
            row_weight,
        )
        counts = self._with(keys)
        sums, index = counts.sums * fading, counts._indices(keys)
        np.add.at(sums, index[index >= 0], added[index >= 0])
        return structs.replace(counts, sums=sums)

    def _with(self, keys: Identity) -> ChoiceCounts:
        """Add rows for new keys, the first ones while there is room."""
        new, first = np.unique(keys, return_index=True)
        is_new = self._indices(new) < 0
        new = new[is_new][np.argsort(first[is_new])][: MOST_ROWS - len(self.keys)]
        if not len(new):
            return self
        every, sums = np.concatenate([self.keys, new]), np.concatenate([self.sums, np.zeros((len(new), 2))])
        order = np.argsort(every)
        return ChoiceCounts(every[order], sums[order])

    def _indices(self, keys: Identity) -> Index:
        """Return the row of each key, -1 without one."""
        if not len(self.keys):
            return np.full(len(keys), -1)
        index = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where(self.keys[index] == keys, index, -1)

    def _rows(self, keys: Identity) -> Array:
        rows, index = np.zeros((len(keys), 2)), self._indices(keys)
        rows[index >= 0] = self.sums[index[index >= 0]]
        return rows


def _key(context: Identity, action: Identity) -> Identity:
    return mix64(action + mix64(context))


class ClassifierState(Struct, frozen=True, eq=False):
    """Hold a classifier, which is None before the first event, and the number of events with which it failed."""

    classifier: Any = None
    failures: int = 0


class ScaledClassifier:
    """Scale the numbers for a river classifier. Its classes are the fingerprints of actions."""

    def __init__(self, model: RiverClassifier) -> None:
        from river.preprocessing import StandardScaler  # slow to import, and rarely used

        self._classifier: Any = model.make()
        self._scaler: Any = StandardScaler() if model.scale else None

    def predict(self, inputs: Described) -> Mapping[int, float]:
        """Return the probability of each action, or nothing if the classifier raises."""
        try:
            with foreign_code():
                predicted = dict(self._classifier.predict_proba_one(self._scaled(inputs)))
                return {action: float(probability) for action, probability in predicted.items()}
        except CodeError:
            return {}

    def learn(self, inputs: Described, action: int) -> bool:
        """Learn from a choice, and return False if the classifier raises."""
        try:
            with foreign_code():
                if self._scaler is not None:
                    self._scaler.learn_one(inputs[0])
                self._classifier.learn_one(self._scaled(inputs), action)
        except CodeError:
            return False
        return True

    def _scaled(self, inputs: Described) -> dict[str, float]:
        numbers, marks = inputs
        return {**(numbers if self._scaler is None else self._scaler.transform_one(numbers)), **marks}


def _described(choices: LoggedChoices, event: int) -> Described:
    return inputs_of_context(choices.raw_fields[event].get("context") if choices.raw_fields else None)


def _fading(horizon: float, choices: LoggedChoices) -> float:
    return float((1 - 1 / horizon) ** len(choices.action))


def rates(
    model: FrequencyTable | RiverClassifier, state: Any, choices: LoggedChoices, share: Array, outcomes: float
) -> Array:
    """Return how often each action is chosen in its context, 0 if a classifier fails.

    The result and `share` have the actions that are asked for first, then the options, [n + rows].

    Args:
        model: how to estimate
        state: state of the model
        choices: the events
        share: how often each action is chosen over all contexts
        outcomes: decayed number of outcomes, revealed or hidden
    """
    if isinstance(model, RiverClassifier):
        return np.zeros_like(share) if state.classifier is None else _classified(state.classifier, choices)
    if not model.by:
        return share
    context = np.concatenate([choices.context, choices.context[choices.owner]])
    actions = np.concatenate([choices.asked, choices.options])
    chosen, possible = state.counts(context, actions)
    if model.marginals is None:
        return np.asarray((chosen + model.shrinkage * share) / (possible + model.shrinkage))
    marginal = np.full(len(context), np.nan)
    values = _contexts([fingerprints(list(model.marginals))], len(model.marginals))
    for value, probability in zip(values, model.marginals.values(), strict=True):
        marginal[context == value] = probability
    revealed = (chosen + model.shrinkage * share) / (outcomes * marginal + model.shrinkage)
    is_hidden, is_revealed = choices.action == HIDDEN, choices.action == REVEALED
    revealed = np.where(np.append(is_hidden, is_hidden[choices.owner]), share, np.minimum(revealed, 1.0))
    revealed[~np.append(is_hidden | is_revealed, (is_hidden | is_revealed)[choices.owner])] = 0.0  # of other choices
    return np.where(actions == HIDDEN, 1.0 - np.roll(revealed, 1), revealed)


def _classified(classifier: ScaledClassifier, choices: LoggedChoices) -> Array:
    predictions = [classifier.predict(_described(choices, event)) for event in range(len(choices.action))]
    asked = [table.get(action, 0.0) for table, action in zip(predictions, choices.asked.tolist(), strict=True)]
    pairs = zip(choices.options.tolist(), choices.owner.tolist(), strict=True)
    shares = np.array([*asked, *(predictions[event].get(action, 0.0) for action, event in pairs)], dtype=np.float64)
    return np.where(np.isfinite(shares), np.clip(shares, 0.0, 1.0), 0.0)


def model_after(model: FrequencyTable | RiverClassifier, state: Any, choices: LoggedChoices) -> Any:
    """Return the state of the model after a block. A classifier is an object that changes."""
    if isinstance(model, FrequencyTable):
        return state.after(choices, choices.context, _fading(model.horizon, choices)) if model.by else state
    try:
        classifier = state.classifier or ScaledClassifier(model)
    except ConfigError:  # it could be made when the configuration was checked
        return structs.replace(state, failures=state.failures + int(np.count_nonzero(choices.action)))
    failures = sum(
        not classifier.learn(_described(choices, event), action)
        for event, action in enumerate(choices.action.tolist())
        if action
    )
    return ClassifierState(classifier, state.failures + failures)


class PropensityState(Struct, frozen=True, eq=False):
    """Hold the state behind estimated propensities.

    Attributes:
        events: number of events so far
        unknown: number of events without an estimate
        actions: choices over all contexts
        model: state of the model
        scores: [3]. Sums over recent events with an estimate: weights, `-ln p` by the model, `-ln p` by the shares of
            actions.
    """

    events: int
    unknown: int
    actions: ChoiceCounts
    model: Any
    scores: Array


def start(config: EvaluatorConfig) -> PropensityState | None:
    """Start before the first event, with None if propensities are logged."""
    if config.propensity is None:
        return None
    model = ClassifierState() if config.propensity.model.is_external else ChoiceCounts.none()
    return PropensityState(0, 0, ChoiceCounts.none(), model, np.zeros(3))


def resume(config: EvaluatorConfig, before: EvaluatorConfig, state: PropensityState | None) -> PropensityState | None:
    """Return the state of the config `before` under another one, or start from zero if the settings differ."""
    return state if config.propensity == before.propensity else start(config)


def complete(
    config: EvaluatorConfig, state: PropensityState, incomplete: Incomplete
) -> tuple[Incomplete, PropensityState]:
    """Return events with estimated propensities, NaN if unknown, and the state after the whole blocks."""
    settings, events = config.propensity, incomplete.events
    assert settings is not None
    estimated, every = np.full(len(events), np.nan), choices(settings, events)
    option_shares = [np.empty(0)]
    for first in range(0, len(events), config.block):
        part = slice(first, first + config.block)
        block = every.part(part)
        estimated[part], shares, overall = _predicted(settings, state, block)
        option_shares.append(shares)
        if len(block.action) == config.block:
            state = _after(settings, state, block, estimated[part], overall)
    sets, scored = events.action_sets, events.scored
    if sets is not None:
        is_known, listed = ~np.isnan(estimated)[every.owner], (sets.sizes > 0)[every.owner]
        shares = np.where(is_known, np.concatenate(option_shares), np.nan)
        sets = replace(sets, propensities=shares[listed])
    if scored is not None:
        propensity, is_outcome = estimated[scored.owner], scored.sizes > 0
        may_be = scored.revealed | np.isnan(propensity)  # a hidden outcome without an estimate is missing, and not 0
        scored = replace(scored, propensity=propensity, revealed=may_be)
        estimated = np.where(is_outcome, np.nan, estimated)
    return incomplete._replace(events=replace(events, propensity=estimated, action_sets=sets, scored=scored)), state


def choices(settings: EstimatedPropensity, events: EventBatch) -> LoggedChoices:
    """Return the choices among the events, which the model learns from."""
    sets, number = events.action_sets, len(events)
    sizes = np.zeros(number, dtype=np.int64) if sets is None else sets.sizes
    action = np.full(number, NO_IDENTITY)
    if events.actions is not None:
        is_known = events.actions.chosen >= 0
        action[is_known] = fingerprints(events.actions.names)[events.actions.chosen[is_known]]
    names = fingerprints(_names(events, sizes))
    if sets is not None and events.actions is None:
        listed, logged = sets.logged
        action[listed] = names[logged]
    segments = SegmentColumns.none((), number) if events.segments is None else events.segments
    context = _contexts([segments.column(field.name) for field in settings.fields], number)
    is_outcome = np.zeros(number, dtype=bool) if events.scored is None else events.scored.sizes > 0
    rows = np.where(is_outcome, 2, np.maximum(sizes, 1))
    owner = np.repeat(np.arange(number), rows)
    options = np.full(len(owner), NO_IDENTITY)
    options[(sizes > 0)[owner]] = names
    if events.scored is not None:
        action[is_outcome] = np.where(events.scored.revealed, REVEALED, HIDDEN)
        options[is_outcome[owner]] = np.tile([REVEALED, HIDDEN], np.count_nonzero(is_outcome))
    weight = event_weight(events)
    raw_fields = () if events.raw_fields is None else events.raw_fields.values
    action = action if events.slates is None else np.full(number, NO_IDENTITY)
    return LoggedChoices(action, context, weight, options, owner, is_outcome | (sizes > 0), raw_fields)


def _contexts(columns: Sequence[Identity], number: int) -> Identity:
    """Return one key for the values of each event in these columns, [n]."""
    context = np.full(number, NO_IDENTITY)
    for values in columns:
        context = mix64(context + values + np.uint64(1))
    return context


def _names(events: EventBatch, sizes: Index) -> Sequence[str]:
    """Return the name of each listed action, or its index if the event came without names."""
    logged = [{}] * len(sizes) if events.raw_fields is None else events.raw_fields.values
    return [
        str(name)
        for fields, size in zip(logged, sizes.tolist(), strict=True)
        for name in (fields.get("actions") or range(size))
    ]


def _predicted(
    settings: EstimatedPropensity, state: PropensityState, choices: LoggedChoices
) -> tuple[Array, Array, Array]:
    """Return the estimates (NaN if unknown), the estimates of all options, and the shares without the context."""
    every, number = np.concatenate([choices.asked, choices.options]), len(choices.action)
    chosen, possible = state.actions.counts(np.full_like(every, NO_IDENTITY), every)
    share = np.nan_to_num(ratio(chosen, possible))
    known = state.actions.counts(np.full(2, NO_IDENTITY), np.array([REVEALED, HIDDEN]))[0]
    outcomes, needed = float(known.sum()), np.where(choices.action == REVEALED, known.min(), chosen[:number])
    (estimated, option_shares), (overall, _) = map(
        choices.shares, (rates(settings.model, state.model, choices, share, outcomes), share)
    )
    is_known = (choices.action != NO_IDENTITY) & (needed >= FEWEST_LEARNED) & (estimated >= settings.floor)
    return np.where(is_known & (state.events >= settings.warm_up), estimated, np.nan), option_shares, overall


def _after(
    settings: EstimatedPropensity, state: PropensityState, choices: LoggedChoices, estimated: Array, overall: Array
) -> PropensityState:
    is_known = ~np.isnan(estimated)
    weight = choices.weight[is_known]
    shares = np.stack([estimated[is_known], overall[is_known]])
    shares = np.where(choices.action[is_known] == HIDDEN, 1.0 - shares, shares)
    losses = -np.log(np.maximum(shares, np.finfo(float).tiny))
    added = np.array([weight.sum(), *(losses @ weight)])
    everywhere = np.full_like(choices.context, NO_IDENTITY)
    fading = _fading(settings.model.horizon, choices)
    return PropensityState(
        events=state.events + len(is_known),
        unknown=state.unknown + int(np.count_nonzero(~is_known)),
        actions=state.actions.after(choices, everywhere, fading),
        model=model_after(settings.model, state.model, choices),
        scores=state.scores * _fading(SCORE_HORIZON, choices) + added,
    )


def rows(config: EvaluatorConfig, state: PropensityState, _present: Present) -> dict[str, PropensityModel]:
    """Return how well the model predicts."""
    assert config.propensity is not None
    losses = ratio(state.scores[1:], state.scores[0]).tolist()
    own, overall = (loss if np.isfinite(loss) else None for loss in losses)
    failures = state.model.failures if isinstance(state.model, ClassifierState) else 0
    model = config.propensity.model.kind
    return {"propensity_model": PropensityModel(model, state.events, state.unknown, own, overall, failures)}


def checks(
    config: EvaluatorConfig, _state: PropensityState, policy_checks: Sequence[TrustCheck]
) -> Iterator[TrustCheck]:
    """Yield the trust check `propensities`, which says that nothing is compared."""
    assert config.propensity is not None
    finding = f"not checked: they are estimated ({config.propensity.model.kind}), and intervals leave out their error"
    yield from repeat_for_policies(policy_checks, "propensities", True, finding)


def save(_config: EvaluatorConfig, state: PropensityState, _faults: Faults) -> PropensityState:
    """Return the state with a classifier pickled.

    Raises:
        StateError: The classifier cannot be pickled.
    """
    model = state.model
    if not isinstance(model, ClassifierState):
        return state
    classifier = pickled(model.classifier, CLASSIFIER, "choose a classifier that pickle can store")
    return structs.replace(state, model=structs.replace(model, classifier=classifier))


def load(
    config: EvaluatorConfig, saved: PropensityState, trusted: EstimatedPropensity | None, _faults: Faults
) -> PropensityState:
    """Return the inverse of `save`. A classifier is code, which is loaded only if the caller names it.

    Raises:
        StateError: The caller does not name it, or it cannot be loaded.
    """
    model = saved.model
    if not isinstance(model, ClassifierState) or model.classifier is None:
        return saved
    if trusted != config.propensity:
        raise StateError(
            "the state holds a classifier of propensities, which is code: it loads only if the caller names it",
            hint="give from_state the propensity that the configuration names",
        )
    hint = "install the version of river that made it, or start from zero"
    classifier = unpickled(model.classifier, CLASSIFIER, hint)
    return structs.replace(saved, model=structs.replace(model, classifier=classifier))


def without_code(config: EvaluatorConfig, plain: State, trusted: EstimatedPropensity | None) -> State:
    """Return a plain state without a classifier that the caller does not name. It gives no further estimates."""
    assert config.propensity is not None
    if not config.propensity.model.is_external or trusted == config.propensity:
        return plain
    return {**plain, "model": {**plain["model"], "classifier": None}}


ROOM = Room(
    "propensities",
    start,
    resume,
    complete=complete,
    rows=rows,
    checks=checks,
    save=save,
    load=load,
    without_code=without_code,
)
