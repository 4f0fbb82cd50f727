"""Policies that are code: they compute their distributions over the actions of events, which need not log them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import AfterValidator, Field, PositiveFloat, TypeAdapter
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.common.text import counted
from streameval.events import ActionSets, Fault, RawFields
from streameval.ope.policies.python import ask_policy, load

Answer: TypeAlias = tuple[Array, dict[int, Fault]]
"""A distribution over the rows of action sets, and the events for which there is none, with the reason."""

Ask: TypeAlias = Callable[[ActionSets, RawFields], Answer]


def _factory(target: str) -> str:
    if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", target):
        raise ValueError("expected package.module:factory")
    return target


ScoresField = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, config=strict)
class Logged:
    """The probabilities that events carry under the policy's name."""

    reads: ClassVar[None] = None
    kind: Literal["logged"] = field(default="logged", kw_only=True, repr=False)


@dataclass(frozen=True, config=strict)
class Uniform:
    """All actions with the same probability, `1 / K` for each of K.

    >>> sets = ActionSets(np.array([0, 4]), np.array([0]), np.full(4, 0.25), None, np.empty((4, 0)))
    >>> Uniform().prepare()(sets, RawFields.none(1))[0]
    array([0.25, 0.25, 0.25, 0.25])
    """

    reads: ClassVar[None] = None
    kind: Literal["uniform"] = field(default="uniform", kw_only=True, repr=False)

    def prepare(self) -> Ask:
        """The function that computes the distributions of this policy."""
        return lambda sets, _: (_uniform(sets), {})


@dataclass(frozen=True, config=strict)
class First:
    """Always the first action listed."""

    reads: ClassVar[None] = None
    kind: Literal["first"] = field(default="first", kw_only=True, repr=False)

    def prepare(self) -> Ask:
        """The function that computes the distributions of this policy."""
        return lambda sets, _: (_one_hot(sets, sets.offsets[:-1][sets.sizes > 0]), {})


@dataclass(frozen=True, config=strict)
class EpsilonGreedy:
    """The action with the highest score, the first of equals; with probability `epsilon` a uniformly random action.

    `scores`: the field of the events that lists a number for each action.
    """

    epsilon: Annotated[float, Field(ge=0, le=1)]
    scores: ScoresField = "scores"
    kind: Literal["epsilon_greedy"] = field(default="epsilon_greedy", kw_only=True, repr=False)

    @property
    def reads(self) -> str:
        """The field with the scores."""
        return self.scores

    def prepare(self) -> Ask:
        """The function that computes the distributions of this policy."""

        def ask(sets: ActionSets, raw_fields: RawFields) -> Answer:
            scores, faults = _scores(sets, raw_fields, self.scores)
            best = np.flatnonzero(scores == _highest(sets, scores))
            _, first = np.unique(sets.owner[best], return_index=True)
            greedy = _one_hot(sets, best[first])
            return self.epsilon * _uniform(sets) + (1 - self.epsilon) * greedy, faults

        return ask


@dataclass(frozen=True, config=strict)
class Softmax:
    """`exp(score / temperature)`, normalised: towards the best action for low temperatures, towards all for high ones.

    `scores`: the field of the events that lists a number for each action.
    """

    temperature: PositiveFloat = 1.0
    scores: ScoresField = "scores"
    kind: Literal["softmax"] = field(default="softmax", kw_only=True, repr=False)

    @property
    def reads(self) -> str:
        """The field with the scores."""
        return self.scores

    def prepare(self) -> Ask:
        """The function that computes the distributions of this policy."""

        def ask(sets: ActionSets, raw_fields: RawFields) -> Answer:
            scores, faults = _scores(sets, raw_fields, self.scores)
            with np.errstate(over="ignore", invalid="ignore"):
                powers = np.exp((scores - _highest(sets, scores)) / self.temperature)
            sums = np.bincount(sets.owner, weights=powers, minlength=len(sets.index))
            return powers / sums[sets.owner], faults

        return ask


@dataclass(frozen=True, config=strict)
class PythonPolicy:
    """A policy made by `target`, a factory `package.module:factory` that is called once with `options`.

    It returns the policy, which is called with `Decisions` of many events and returns one distribution for each, with
    one probability for each action of the event. When it raises, it is called again for each half of the
    events, so that a bad event affects no other; hence its answers must not depend on how events are batched.

    >>> from streameval.ope.policies.python import Decisions, Policy
    >>> def cautious(first: float) -> Policy:
    ...     def policy(decisions: Decisions) -> list[list[float]]:
    ...         rest = [(1 - first) / (len(actions) - 1) for actions in decisions.actions]
    ...         return [[first] + [p] * (len(a) - 1) for p, a in zip(rest, decisions.actions)]
    ...     return policy
    >>> cautious(first=0.5)(Decisions(contexts=[None], actions=[["a", "b", "c"]], features=[None]))
    [[0.5, 0.25, 0.25]]
    """

    target: Annotated[str, AfterValidator(_factory)]
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: Literal["python"] = field(default="python", kw_only=True, repr=False)
    reads: ClassVar[str] = ""

    def prepare(self) -> Ask:
        """The function that asks the user's code; ConfigError when it cannot be imported or made."""
        policy = load(self.target, self.options)
        return lambda sets, raw_fields: ask_policy(policy, sets, raw_fields)


CodedPolicy: TypeAlias = Uniform | First | EpsilonGreedy | Softmax | PythonPolicy
AnyPolicy: TypeAlias = Annotated[Logged | CodedPolicy, Field(discriminator="kind")]
_POLICY: TypeAdapter[Any] = TypeAdapter(AnyPolicy)


def named_policies(candidates: Sequence[str] | Mapping[str, Any]) -> dict[str, Any]:
    """Candidates by name: those of a list are logged, those of a mapping are policies, or their kind or settings.

    >>> named_policies({"even": "uniform", "shadow": Logged()})
    {'even': Uniform(), 'shadow': Logged()}
    """
    if isinstance(candidates, Mapping):
        spelled = {name: {"kind": each} if isinstance(each, str) else each for name, each in candidates.items()}
        return {name: _POLICY.validate_python(each) for name, each in spelled.items()}
    return dict.fromkeys(candidates, Logged())


def fields_read(policies: Iterable[Any]) -> tuple[str, ...] | None:
    """The fields with scores that these policies read; None when none of them reads more than action sets."""
    reading = [policy.reads for policy in policies if policy.reads is not None]
    return tuple(dict.fromkeys(name for name in reading if name)) if reading else None


def _uniform(sets: ActionSets) -> Array:
    sizes = sets.sizes
    return np.repeat(1.0 / np.maximum(sizes, 1), sizes)


def _one_hot(sets: ActionSets, rows: Any) -> Array:
    chosen = np.zeros(len(sets.propensities))
    chosen[rows] = 1.0
    return chosen


def _highest(sets: ActionSets, scores: Array) -> Array:
    """The highest score of its event, for each row."""
    filled = np.flatnonzero(sets.sizes)
    highest = np.maximum.reduceat(scores, sets.offsets[filled]) if len(filled) else np.empty(0)
    return np.repeat(highest, sets.sizes[filled])


def _scores(sets: ActionSets, raw_fields: RawFields, name: str) -> Answer:
    """The scores as rows; 0 for an event without usable ones."""
    scores, faults = np.zeros(len(sets.propensities)), {}
    given: Sequence[Any] = raw_fields.scores.get(name) or [None] * len(sets.index)
    for event in np.flatnonzero(sets.sizes).tolist():
        rows = slice(sets.offsets[event], sets.offsets[event + 1])
        fault, numbers = _numbers(name, given[event], rows.stop - rows.start)
        if fault is None:
            scores[rows] = numbers
        else:
            faults[event] = fault
    return scores, faults


def _numbers(name: str, given: Any, actions: int) -> tuple[Fault | None, Any]:
    if given is None:
        return Fault("missing_field", f"{name}: missing"), None
    if not isinstance(given, list) or not all(type(number) in (int, float) for number in given):
        return Fault("malformed", f"{name}: not a list of numbers"), None
    if len(given) != actions:
        return Fault("malformed", f"{name}: {counted(len(given), 'entry')} for {counted(actions, 'action')}"), None
    if not all(-1e300 < number < 1e300 for number in given):
        return Fault("not_finite", f"{name}: a number is too large"), None
    return None, given
