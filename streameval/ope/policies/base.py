"""Define the bases of policies that compute distributions: when events arrive, or block by block as they learn."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from streameval.common.arrays import Array, State
from streameval.common.component import Configurable
from streameval.events import ActionSets, Fault, RawFields
from streameval.events.rankings import Rankings
from streameval.events.slates import SlateColumns

Answer: TypeAlias = tuple[Array, dict[int, Fault]]
"""A distribution over the rows of action sets, or ranks of the rows of pages; the reason for each event without."""

Ask: TypeAlias = Callable[[ActionSets, RawFields], Answer]


class ComputedPolicy(metaclass=Configurable):
    """Compute the distributions of a policy. Subclasses with `scores` read this field of the events."""

    kind: str

    def prepare(self) -> Ask:
        """Return the function that computes the distributions of this policy."""
        return self.ask

    def ask(self, sets: ActionSets, raw_fields: RawFields) -> Answer:
        """Return the distributions of this policy over the rows of `sets`."""
        raise NotImplementedError


class Log(NamedTuple):
    """Hold consecutive events to predict. A policy learns from whole blocks.

    Attributes:
        sets: the actions of n events
        propensity: the propensities of the logged actions [n]
        reward: the rewards, NaN if an event lacks it [n]
        weight: the inverse sampling probabilities [n]
        block: the number of events in a block
        prediction: what the reward model expected of each action before the block, NaN if it could not predict, None if
            no policy needs it [rows]
        raw_fields: contexts and names of actions, for policies that need them
        reward_range: the lowest and the highest possible reward
        rankings: the pages, None if the events are decisions
        looks: the probability of a look at each item of the pages, NaN if it is unknown [rows of the pages]
        signal: 1 for a click and 0 without one, minus the noise [rows of the pages]
        slates: the slates, None without any
    """

    sets: ActionSets
    propensity: Array
    reward: Array
    weight: Array
    block: int
    prediction: Array | None = None
    raw_fields: RawFields | None = None
    reward_range: tuple[float, float] = (0.0, 1.0)
    rankings: Rankings | None = None
    looks: Array | None = None
    signal: Array | None = None
    slates: SlateColumns | None = None

    def take(self, events: slice) -> Log:
        """Return consecutive decisions. Pages have no place in them."""
        first, last, _ = events.indices(len(self.reward))
        rows = slice(self.sets.offsets[first], self.sets.offsets[last])
        return self._replace(
            sets=self.sets.take(events),
            propensity=self.propensity[events],
            reward=self.reward[events],
            weight=self.weight[events],
            prediction=None if self.prediction is None else self.prediction[rows],
            raw_fields=None if self.raw_fields is None else self.raw_fields.take(events),
        )


class Copied(NamedTuple):
    """Hold what the file of a frozen copy says besides what the policy knows.

    Attributes:
        events: the number of events that it learned from
        coefficients: returns the coefficients of a reward model in a state, None if it has none
        reward_range: the lowest and the highest reward of the primary reward
    """

    events: int
    coefficients: Callable[[Any], Array | None]
    reward_range: tuple[float, float]


class LearningPolicy(metaclass=Configurable):
    """Follow the stream: predict each block first, then learn from it.

    Subclasses may have the options `learns_from` and `own_limit` of `own_choices`.
    """

    kind: str
    learns_from: str = "all"
    own_limit: float = 10.0

    @property
    def learns(self) -> bool:
        """Tell whether the policy learns. Code that may learn need not."""
        return True

    @property
    def is_external(self) -> bool:
        """Tell whether it is code of the user or of another package, with a state that is more than arrays."""
        return False

    @property
    def needs_prediction(self) -> bool:
        """Tell whether `Log.prediction` is needed, so that the reward model predicts each block first."""
        return False

    @property
    def keeps_model(self) -> bool:
        """Tell whether its state has a copy of the reward model, which predicts for this policy alone."""
        return False

    @property
    def follows_model(self) -> bool:
        """Tell whether it knows no more than the reward model does. Its frozen copies then hold a copy of the model."""
        return False

    @property
    def learns_each_event(self) -> bool:
        """Tell whether it learns its own choices one by one. Other policies learn all choices of a block together."""
        return False

    @property
    def ranks_pages(self) -> bool:
        """Tell whether it ranks the items of pages. Other policies give distributions over actions."""
        return False

    @property
    def fills_slots(self) -> bool:
        """Tell whether it fills the slots of slates. Other policies choose single actions or rank pages."""
        return False

    @property
    def keeps_learning(self) -> bool:
        """Tell whether it changes while events flow.

        A frozen copy does not, and a policy with steps of length 0 does not.
        """
        return True

    @property
    def needs_raw_fields(self) -> bool:
        """Tell whether `Log.raw_fields` are needed."""
        return False

    def start(self) -> State:
        """Return the state before the first event."""
        return {}

    def fold(self, state: State, log: Log) -> tuple[Answer, State]:
        """Return the distributions, each from the blocks before its own, and the state after the whole blocks."""
        raise NotImplementedError

    def predict(self, state: State, log: Log) -> Answer:
        """Return the distributions of the policy in this state, without learning."""
        return self.fold(state, log._replace(block=len(log.reward) + 1))[0]

    def file_content(self, state: State, copied: Copied) -> bytes | None:
        """Return the content of the file of a frozen copy in this state, or None if it has no file."""
        return None

    def copied(self, state: State) -> State:
        """Return a copy of the state, which changes no more.

        Raises:
            StateError: Code that learns cannot be copied.
        """
        return deepcopy(state)

    def to_state(self, state: State) -> State:
        """Return the state as arrays and plain values."""
        return state

    def from_state(self, saved: State) -> State:
        """Invert `to_state`."""
        return saved


def learns(policy: object) -> TypeGuard[LearningPolicy]:
    """Tell whether a policy follows the stream: it learns, or it is a frozen copy of one that does."""
    return isinstance(policy, LearningPolicy) and policy.learns
