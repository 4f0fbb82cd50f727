"""The bases of policies that compute their distributions: when events arrive, or block by block as they learn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeGuard

from streameval.common.arrays import Array, State
from streameval.common.component import Configurable
from streameval.events import ActionSets, Fault, RawFields

Answer: TypeAlias = tuple[Array, dict[int, Fault]]
"""A distribution over the rows of action sets, and the events for which there is none, with the reason."""

Ask: TypeAlias = Callable[[ActionSets, RawFields], Answer]


class ComputedPolicy(metaclass=Configurable):
    """Base of policies that compute their distributions. Those with `scores` read this field of the events."""

    kind: str

    def prepare(self) -> Ask:
        """The function that computes the distributions of this policy."""
        return self.ask

    def ask(self, sets: ActionSets, raw_fields: RawFields) -> Answer:
        """The distributions of this policy over the rows of `sets`."""
        raise NotImplementedError


class Log(NamedTuple):
    """Consecutive events to predict, and to learn from where they are whole blocks.

    `propensity`, `reward`, `weight` [n]: of the logged actions, with the inverse sampling probability of the event; a
    reward is NaN where the event lacks it. `prediction` [rows]: what the reward model expected of each action before
    the block, NaN where it could not predict; None where no policy needs it. `raw_fields`: contexts and names of
    actions, for policies that need them.
    """

    sets: ActionSets
    propensity: Array
    reward: Array
    weight: Array
    block: int
    prediction: Array | None = None
    raw_fields: RawFields | None = None


class Copied(NamedTuple):
    """What the file of a frozen copy says besides what the policy knows.

    `events`: how many it learned from. `coefficients`: of a reward model in a state, None if it has none.
    `reward_range`: of the goal.
    """

    events: int
    coefficients: Callable[[Any], Array | None]
    reward_range: tuple[float, float]


class LearningPolicy(metaclass=Configurable):
    """Base of policies that follow the stream: each block is predicted first, and then learned from."""

    kind: str

    @property
    def learns(self) -> bool:
        """Whether it learns: code that may learn need not."""
        return True

    @property
    def is_external(self) -> bool:
        """Whether it is code of the user or of another package, whose state is more than arrays."""
        return False

    @property
    def needs_prediction(self) -> bool:
        """Whether `Log.prediction` is needed: the reward model then predicts each block before this policy does."""
        return False

    @property
    def keeps_model(self) -> bool:
        """Whether its state has a copy of the reward model, which predicts for this policy alone."""
        return False

    @property
    def follows_model(self) -> bool:
        """Whether it knows no more than the reward model does, of which its frozen copies have a copy."""
        return False

    @property
    def keeps_learning(self) -> bool:
        """Whether it changes while events flow: neither a frozen copy nor one whose steps have no length."""
        return True

    @property
    def needs_raw_fields(self) -> bool:
        """Whether `Log.raw_fields` are needed."""
        return False

    def start(self) -> State:
        """The state before the first event."""
        return {}

    def fold(self, state: State, log: Log) -> tuple[Answer, State]:
        """The distributions, each from the blocks before its own, and the state after the whole blocks."""
        raise NotImplementedError

    def predict(self, state: State, log: Log) -> Answer:
        """The distributions of the policy in this state, which stays: a part of a block teaches nothing."""
        return self.fold(state, log._replace(block=len(log.reward) + 1))[0]

    def file_content(self, state: State, copied: Copied) -> bytes | None:
        """Return the content of the file of a frozen copy in this state; None if it has no file."""
        return None

    def to_state(self, state: State) -> State:
        """The state as arrays and plain values."""
        return state

    def from_state(self, saved: State) -> State:
        """The inverse of `to_state`."""
        return saved


def learns(policy: object) -> TypeGuard[LearningPolicy]:
    """Whether a policy follows the stream: one that learns, or a frozen copy of one."""
    return isinstance(policy, LearningPolicy) and policy.learns
