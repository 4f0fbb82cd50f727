"""Run policies in code of the user or of another package, which may learn. A failure costs their own events."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import field
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask, State
from streameval.common.component import strict
from streameval.common.foreign_code import CodeError, foreign_code, pickled, unpickled
from streameval.errors import ConfigError, StateError
from streameval.events import Fault, RawFields
from streameval.events.action_sets import Index
from streameval.ope.policies.base import Answer, Ask, Copied, LearningPolicy, Log
from streameval.ope.policies.own_choices import LearnsFrom, OwnLimit
from streameval.ope.policies.python import Decisions, ask_policy, decisions_of, make

TO_BYTES = "to_bytes() returns bytes that the recommender can read; without it, frozen copies have no file"
LEARNER = "a policy that learns"
COPIED = "copy.deepcopy and pickle must support the object that the factory returns"


class LearnsToDecide(Protocol):
    """Learn to decide. An optional `to_bytes()` gives the content of the files of frozen copies."""

    def predict(self, decisions: Decisions, /) -> Sequence[ArrayLike]:
        """Return one distribution for each decision, with one probability for each of its actions."""

    def learn(self, decisions: Decisions, action: Index, propensity: Array, reward: Array, /) -> None:
        """Learn from logged decisions: the position of each logged action, its propensity and its reward."""


class ExternalPolicy(LearningPolicy):
    """Run a policy that learns, made by code of the user or of another package.

    It predicts block by block, and learns the logged actions with known rewards after each block. A copy of the object
    predicts an unfinished block, and each block of a frozen copy, so that asking changes nothing. The object does not
    receive sampling probabilities. It changes while it learns, so a state that contains one is used once.
    """

    @property
    def is_external(self) -> bool:
        return True

    @property
    def needs_raw_fields(self) -> bool:
        return True

    def make(self) -> LearnsToDecide:
        """Return a new object, which has learned nothing.

        Raises:
            ConfigError: There is no such code.
        """
        raise NotImplementedError

    def check(self) -> None:
        """Check that an object can be made, copied and kept.

        Raises:
            ConfigError: The object cannot be made or copied, or lacks a method.
        """
        made = self.make()
        missing = [name for name in ("predict", "learn") if not callable(getattr(made, name, None))]
        if missing:
            raise ConfigError(
                f"{type(made).__name__} has no {' and no '.join(missing)}",
                hint="a policy that learns has predict(decisions) and learn(decisions, action, propensity, reward)",
            )
        try:
            with foreign_code():
                pickle.loads(pickle.dumps(deepcopy(made)))
        except CodeError as error:
            raise ConfigError(f"{type(made).__name__} cannot be copied and saved: {error}", hint=COPIED) from error

    def start(self) -> State:
        """Return the state before the first event. `failures` counts the events that it could not learn from."""
        return {"model": None, "steps": 0, "failures": 0}

    def fold(self, state: State, log: Log) -> tuple[Answer, State]:
        """Return the distributions and the state after the whole blocks.

        The state also has `unlearned`, the reason for each block that was not learned. It must be removed.
        """
        try:
            model = self.make() if state["model"] is None else state["model"]
        except ConfigError as error:  # it could be made when the configuration was checked
            return _unanswered(log, error.message), {**state, "unlearned": []}
        answers, steps, failures, unlearned = [], state["steps"], state["failures"], []
        for block in _blocks(log):
            is_whole = len(block.reward) == log.block
            answers.append(_asked(model, block) if is_whole else _copy_asked(model, block))
            if is_whole:
                steps += 1
                try:
                    _teach(model, block)
                except CodeError as error:
                    failures += int(_is_learned(block).sum())
                    unlearned.append(str(error))
        return _joined(answers, log), {"model": model, "steps": steps, "failures": failures, "unlearned": unlearned}

    def predict(self, state: State, log: Log) -> Answer:
        try:
            model = self.make() if state["model"] is None else state["model"]
        except ConfigError as error:
            return _unanswered(log, error.message)
        return _joined([_copy_asked(model, block) for block in _blocks(log)], log)

    def copied(self, state: State) -> State:
        try:
            with foreign_code():
                return deepcopy(state)
        except CodeError as error:
            raise StateError(f"{LEARNER} cannot be copied: {error}", hint=COPIED) from error

    def to_state(self, state: State) -> State:
        """Return the state with the object pickled. Only a caller who names the policy may load it.

        Raises:
            StateError: The object cannot be pickled.
        """
        return {**state, "model": pickled(state["model"], LEARNER, COPIED)}

    def from_state(self, saved: State) -> State:
        """Return the inverse of `to_state`.

        Raises:
            StateError: The object cannot be loaded.
        """
        return {**saved, "model": unpickled(saved["model"], LEARNER, COPIED)}

    def content(self, state: State) -> bytes | None:
        """Return the content of a policy file for a recommender, or None if the object has no `to_bytes()`.

        Raises:
            StateError: The method fails, or does not return bytes.
        """
        give = getattr(state["model"], "to_bytes", None)
        if give is None:
            return None
        try:
            with foreign_code():
                content = give()
        except CodeError as error:
            raise StateError(f"{LEARNER} cannot be written to a file: {error}", hint=TO_BYTES) from error
        if not isinstance(content, bytes):
            raise StateError(f"to_bytes() of {LEARNER} gave {type(content).__name__}", hint=TO_BYTES)
        return content

    def file_content(self, state: State, copied: Copied) -> bytes | None:
        return self.content(state)


def _blocks(log: Log) -> Iterator[Log]:
    """Yield the blocks of a log. The last one may be unfinished."""
    for first in range(0, len(log.reward), log.block):
        yield log.take(slice(first, first + log.block))


def _asked(model: LearnsToDecide, block: Log) -> Answer:
    return ask_policy(model.predict, block.sets, block.raw_fields or RawFields.none(len(block.reward)))


def _copy_asked(model: LearnsToDecide, block: Log) -> Answer:
    """Ask a copy, so that the answer changes nothing."""
    try:
        with foreign_code():
            copied = deepcopy(model)
    except CodeError as error:
        return _unanswered(block, f"it cannot be copied: {error}")
    return _asked(copied, block)


def _unanswered(log: Log, reason: str) -> Answer:
    """Return no distribution for any event."""
    fault = Fault("raised", reason)
    return np.full(len(log.sets.propensities), np.nan), dict.fromkeys(range(len(log.reward)), fault)


def _joined(answers: Sequence[Answer], log: Log) -> Answer:
    """Join the answers of all blocks."""
    faults: dict[int, Fault] = {}
    for index, (_, block_faults) in enumerate(answers):
        faults |= {index * log.block + event: fault for event, fault in block_faults.items()}
    return np.concatenate([np.empty(0), *(rows for rows, _ in answers)]), faults


def _is_learned(block: Log) -> Mask:
    """Tell which events of a block a policy learns from: it learns known rewards of known actions."""
    return (block.sets.index >= 0) & ~np.isnan(block.reward)


def _teach(model: LearnsToDecide, block: Log) -> None:
    """Let the object learn a block.

    Raises:
        CodeError: The object has failed, perhaps after learning some of the events.
    """
    events = np.flatnonzero(_is_learned(block))
    if len(events):
        decisions = decisions_of(block.sets, block.raw_fields or RawFields.none(len(block.reward)), events)
        with foreign_code():
            model.learn(decisions, block.sets.index[events], block.propensity[events], block.reward[events])


def _factory(target: str) -> str:
    if not re.fullmatch(r"\w+(\.\w+)*:\w+(\.\w+)*", target):
        raise ValueError("expected package.module:factory")
    return target


@dataclass(frozen=True, config=strict)
class PythonPolicy(ExternalPolicy):
    """Make a policy by calling a factory once.

    The factory returns the policy. The policy is called with `Decisions` of many events and returns one distribution
    for each event, with one probability for each of its actions. When it raises, it is called again for each half of
    the events, so that a bad event affects no other. Hence its answers must not depend on how events are batched.

    With `learns: true` the factory returns an object with two methods. `predict(decisions)` is called like the policy.
    `learn(decisions, action, propensity, reward)` is called after each block with the logged decisions with known
    rewards. It receives the position of the action in the list, its propensity and its reward, arrays of [n]. A copy of
    the object predicts whenever nothing is to be learned, so `copy.deepcopy` and pickle must support it. With a method
    `to_bytes()`, each frozen copy is also written to a file `NAME-3.bin` with these bytes, for a recommender that reads
    them.

    Args:
        target: the factory, as `package.module:factory`
        options: keyword arguments of the factory
        learns: whether it learns from the stream
        learns_from: `all` logged events, or `own` choices alone, as it would have made them: see `own_choices.fold`
        own_limit: with `own`, importance weights up to this one are replayed exactly

    >>> from streameval.ope.policies.python import Decisions, Policy
    >>> def cautious(first: float) -> Policy:
    ...     def policy(decisions: Decisions) -> list[list[float]]:
    ...         rest = [(1 - first) / (len(actions) - 1) for actions in decisions.actions]
    ...         return [[first] + [p] * (len(a) - 1) for p, a in zip(rest, decisions.actions)]
    ...     return policy
    >>> cautious(first=0.5)(Decisions(contexts=[None], actions=[["a", "b", "c"]], features=[None]))
    [[0.5, 0.25, 0.25]]
    """

    target: Annotated[str, AfterValidator(_factory), Field(description="the factory, as package.module:factory")]
    options: Annotated[Mapping[str, Any], Field(description="keyword arguments of the factory")] = field(
        default_factory=dict
    )
    learns: Annotated[bool, Field(description="true: it learns from the stream, by predict and learn")] = False
    learns_from: LearnsFrom = "all"
    own_limit: OwnLimit = 10.0
    kind: Literal["python"] = field(default="python", kw_only=True, repr=False)

    def prepare(self) -> Ask:
        """Return the function that asks the user's code.

        Raises:
            ConfigError: The code cannot be imported, or its factory fails.
        """
        policy = self.make()
        if not callable(policy):
            raise ConfigError(
                f"{self.target} returns {type(policy).__name__}, which cannot be called",
                hint="a factory returns a callable that takes Decisions and gives one distribution for each of them",
            )
        return lambda sets, raw_fields: ask_policy(policy, sets, raw_fields)

    def make(self) -> Any:
        return make(self.target, self.options)

    def check(self) -> None:
        if self.learns:
            super().check()
        else:
            self.prepare()


@dataclass(frozen=True, eq=False, config=strict)
class FunctionPolicy(PythonPolicy):
    """Ask a Python function that was given as a candidate. A configuration names code instead: see `PythonPolicy`.

    It equals the policy without the function that a saved state has.

    Args:
        function: takes `Decisions` and returns one distribution for each
    """

    function: Callable[[Decisions], Sequence[ArrayLike]] = field(kw_only=True, repr=False)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PythonPolicy) and (self.target, self.learns) == (other.target, other.learns)

    def __hash__(self) -> int:
        return hash(self.target)

    @classmethod
    def from_function(cls, function: Callable[[Decisions], Sequence[ArrayLike]]) -> FunctionPolicy:
        """Name the function by its module and its name."""
        name = getattr(function, "__qualname__", type(function).__qualname__)
        module = getattr(function, "__module__", None) or type(function).__module__
        return cls(re.sub(r"[^\w.:]", "", f"{module}:{name}"), function=function)

    def make(self) -> Any:
        return self.function
