"""External models, the code of users and other packages: a failure costs predictions, never the process."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask, State, from_plain, to_plain
from streameval.common.component import strict
from streameval.errors import ConfigError, StateError
from streameval.events import ActionSets
from streameval.ope.evidence.requirements import Requirement, Requirements
from streameval.ope.policies.python import make
from streameval.ope.reward_models.base import LoggedActions, RewardModel

FAILURES = ("predict_raised", "predict_malformed", "predict_not_finite", "learn_raised")
"""The failures of a model, a closed list. The first three count predictions, the last one events."""


class Learner(Protocol):
    """A model of the inputs that are made of the actions."""

    def predict(self, inputs: Any) -> ArrayLike:
        """A number for each of many actions; must not change the model."""

    def learn(self, inputs: Any, reward: Array) -> None:
        """Learn from the logged actions of one block and their rewards."""


@dataclass(frozen=True, kw_only=True, config=strict)
class ExternalModel(RewardModel):
    """A model made by code of the user or of another package.

    It predicts block by block, and learns the logged actions of each block after it. Where it fails, the mean of the
    rewards that it was given stands in, and the failure is counted. It does not receive sampling probabilities. The
    model is an object that changes while it learns: a state with one in it is used once.
    """

    is_external: ClassVar[bool] = True

    def make(self) -> Learner:
        """A new model; ConfigError when there is no such code."""
        raise NotImplementedError

    def inputs_of(self, log: LoggedActions) -> Sequence[Any] | Array:
        """The input of the model for each row."""
        raise NotImplementedError

    def check(self) -> None:
        self.make()

    def start(self) -> State:
        return {"model": None, "taught": np.zeros(2), "failures": dict.fromkeys(FAILURES, 0)}

    def fold(self, state: State, log: LoggedActions) -> tuple[Array, State]:
        model = self.make() if state["model"] is None else state["model"]
        work = _Work(model, state["taught"], dict(state["failures"]), log.reward_range)
        sets, reward, known, inputs = log.sets, log.reward, self._known(log.sets), self.inputs_of(log)
        prediction = np.zeros(len(sets.propensities))
        logged = np.full(len(reward), -1)
        logged[sets.logged[0]] = sets.logged[1]
        for part, events in zip(log.rows, np.split(np.arange(len(reward)), log.blocks), strict=True):
            rows = np.arange(part.start, part.stop)[known[part]]
            prediction[rows] = work.predict(_chosen(inputs, rows), len(rows))
            if len(reward) >= log.block:
                lessons = events[(logged[events] >= 0) & known[logged[events]]]
                work.learn(_chosen(inputs, logged[lessons]), reward[lessons])
        return prediction, {"model": work.model, "taught": work.taught, "failures": work.failures}

    def _known(self, sets: ActionSets) -> Mask:
        if Requirement.FEATURES not in self.needs:
            return np.ones(len(sets.propensities), dtype=bool)
        if sets.features is None:
            return np.zeros(len(sets.propensities), dtype=bool)
        return np.asarray(np.isfinite(sets.features).all(axis=1))

    def failures(self, state: State) -> Mapping[str, int]:
        return dict(state["failures"])

    def to_state(self, state: State) -> State:
        """The state as a plain value, with the model pickled: only a caller who names the model may load it."""
        try:
            pickled = None if state["model"] is None else pickle.dumps(state["model"])
        except Exception as error:
            raise StateError(
                f"the reward model {self.label} cannot be saved: {type(error).__name__}: {error}",
                hint="a model whose state is to be kept must be one that pickle can store",
            ) from error
        return {**to_plain({**state, "model": None}), "model": pickled}

    def from_state(self, saved: State) -> State:
        state = from_plain({**saved, "model": None})
        return {**state, "model": None if saved["model"] is None else pickle.loads(saved["model"])}


class _Work:
    """A model at work in one run of blocks."""

    def __init__(
        self, model: Learner, taught: Array, failures: dict[str, int], reward_range: tuple[float, float]
    ) -> None:
        self.model, self.taught, self.failures, self.reward_range = model, taught, failures, reward_range

    def predict(self, inputs: Any, rows: int) -> Array:
        """Predictions inside the reward range; the mean of the rewards so far where there are none."""
        count, total = self.taught
        mean = total / count if count else 0.0
        answer = self._asked(inputs, rows) if rows else np.zeros(0)
        usable = np.isfinite(answer)
        return np.clip(np.where(usable, answer, mean), *self.reward_range)

    def _asked(self, inputs: Any, rows: int) -> Array:
        nothing = np.full(rows, np.nan)
        try:
            answer = np.array(self.model.predict(inputs), dtype=np.float64)
        except Exception:  # noqa: BLE001 - a failing model must not stop the estimates
            self.failures["predict_raised"] += rows
            return nothing
        if answer.shape != (rows,):
            self.failures["predict_malformed"] += rows
            return nothing
        self.failures["predict_not_finite"] += int(np.count_nonzero(~np.isfinite(answer)))
        return answer

    def learn(self, inputs: Any, reward: Array) -> None:
        """Learn from a block; a model that raises may have learned a part of it."""
        if not len(reward):
            return
        self.taught = self.taught + np.array([len(reward), reward.sum()])
        try:
            self.model.learn(inputs, reward)
        except Exception:  # noqa: BLE001 - as above
            self.failures["learn_raised"] += len(reward)


def _chosen(inputs: Sequence[Any] | Array, rows: Any) -> Any:
    return inputs[rows] if isinstance(inputs, np.ndarray) else [inputs[row] for row in rows.tolist()]


@dataclass(frozen=True, config=strict)
class PythonModel(ExternalModel):
    """The model that `target` makes, a factory `package.module:factory` that is called with `options`.

    It returns an object with `predict(features)`, which takes the features [rows, d] of actions and returns a number
    for each row, and `learn(features, reward)`, which is called with the logged actions of a block afterwards.
    `predict` must not change later predictions: it is called for every Report.

    >>> class Mean:
    ...     count = total = 0.0
    ...     def predict(self, features: Array) -> Array:
    ...         return np.full(len(features), self.total / max(self.count, 1))
    ...     def learn(self, features: Array, reward: Array) -> None:
    ...         self.count, self.total = self.count + len(reward), self.total + reward.sum()
    """

    target: Annotated[str, Field(pattern=r"^\w+(\.\w+)*:\w+(\.\w+)*$")]
    options: Mapping[str, Any] = field(default_factory=dict)
    kind: Literal["python"] = field(default="python", kw_only=True, repr=False)

    @property
    def needs(self) -> Requirements:
        return frozenset({Requirement.FEATURES})

    def make(self) -> Learner:
        model: Learner = make(self.target, self.options)
        missing = [name for name in ("predict", "learn") if not callable(getattr(model, name, None))]
        if missing:
            raise ConfigError(
                f"{self.target} returns {type(model).__name__}, which has no {' and no '.join(missing)}",
                hint="a reward model has predict(features) and learn(features, reward)",
            )
        return model

    def inputs_of(self, log: LoggedActions) -> Array:
        features = log.sets.features
        return np.empty((len(log.sets.propensities), 0)) if features is None else features
