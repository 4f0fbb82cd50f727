"""Run models made by code of users and of other packages: a failure costs predictions, never the process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from itertools import compress
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, Mask, State
from streameval.common.component import strict
from streameval.common.foreign_code import CodeError, foreign_code, numbers, pickled, unpickled
from streameval.errors import ConfigError
from streameval.ope.evidence.actions import NOTHING, Requirements
from streameval.ope.policies.python import make
from streameval.ope.policies.river import Described, inputs_of_context, river_object
from streameval.ope.reward_models.base import LoggedActions, RewardModel

STORED = "pickle must be able to store and load a model with a state that is to be kept"
FAILURES = ("predict_raised", "predict_malformed", "predict_not_finite", "learn_raised")
"""Reasons for failures of a model, a closed list. The first three count predictions, the last one events."""


@dataclass(frozen=True, kw_only=True, config=strict)
class ExternalModel(RewardModel):
    """Run a model made by code of the user or of another package.

    It predicts block by block, and learns the logged actions of each block afterwards. If it fails, the failure is
    counted, and the mean of the rewards that it has received replaces the prediction. It does not receive sampling
    probabilities. The model is an object that changes while it learns, so a state that contains one is used once.
    """

    is_external: ClassVar[bool] = True

    def make(self) -> Any:
        """Return a new model with `predict(inputs)` and `learn(inputs, rewards)`.

        Raises:
            ConfigError: There is no such code.
        """
        raise NotImplementedError

    def inputs_of(self, log: LoggedActions, is_usable: Mask, features: Array) -> NDArray[Any]:
        """Return the input of the model for each known row of actions, on the first axis.

        Args:
            log: the events
            is_usable: a mask of the rows with usable features [rows]
            features: the features of these rows [known rows, d]
        """
        raise NotImplementedError

    def check(self) -> None:
        self.make()

    def start(self) -> State:
        return {"model": None, "taught": np.zeros(2), "failures": dict.fromkeys(FAILURES, 0), "width": 0}

    def fold(self, state: State, log: LoggedActions) -> tuple[Array, State]:
        model = state["model"]
        if model is None:
            with suppress(ConfigError):  # it could be made when the configuration was checked; None fails, and counts
                model = self.make()
        taught, failures = state["taught"], dict(state["failures"])
        sets, reward, width = log.sets, log.reward, state["width"] or log.sets.first_width
        is_known, features = sets.features_of_width(width)
        if "features" not in self.needs:
            is_known, features = np.ones(len(is_known), dtype=bool), np.empty((len(is_known), 0))
        inputs, input_row = self.inputs_of(log, is_known, features), np.cumsum(is_known) - 1
        prediction = np.zeros(len(sets.propensities))
        logged = np.full(len(reward), -1)
        logged[sets.logged[0]] = sets.logged[1]
        for block_rows, events in zip(log.rows, np.split(np.arange(len(reward)), log.blocks), strict=True):
            rows = np.arange(block_rows.start, block_rows.stop)[is_known[block_rows]]
            answer = _predicted(model, inputs[input_row[rows]], failures)
            mean = taught[1] / taught[0] if taught[0] else 0.0
            prediction[rows] = np.clip(np.where(np.isfinite(answer), answer, mean), *log.reward_range)
            if len(reward) >= log.block:
                taught_events = events[(logged[events] >= 0) & is_known[logged[events]]]
                taught = taught + np.array([len(taught_events), reward[taught_events].sum()])
                _teach(model, inputs[input_row[logged[taught_events]]], reward[taught_events], failures)
        return prediction, {"model": model, "taught": taught, "failures": failures, "width": width}

    def failures(self, state: State) -> Mapping[str, int]:
        return dict(state["failures"])

    def to_state(self, state: State) -> State:
        """Return the state with the model pickled. Only a caller who names the model may load it.

        Raises:
            StateError: The model cannot be pickled.
        """
        return {**state, "model": pickled(state["model"], f"the reward model {self.label}", STORED)}

    def from_state(self, saved: State) -> State:
        """Return the inverse of `to_state`.

        Raises:
            StateError: The model cannot be loaded.
        """
        return {**saved, "model": unpickled(saved["model"], f"the reward model {self.label}", STORED)}


def _predicted(model: Any, inputs: NDArray[Any], failures: dict[str, int]) -> Array:
    """Return the model's predictions, NaN after a failure."""
    nothing = np.full(len(inputs), np.nan)
    if not len(inputs):
        return nothing
    try:
        with foreign_code():
            answered = model.predict(inputs)
        answer = numbers(answered, len(inputs)).copy()
    except CodeError:
        failures["predict_raised"] += len(inputs)
        return nothing
    except ValueError:
        failures["predict_malformed"] += len(inputs)
        return nothing
    failures["predict_not_finite"] += int(np.count_nonzero(~np.isfinite(answer)))
    return answer


def _teach(model: Any, inputs: NDArray[Any], reward: Array, failures: dict[str, int]) -> None:
    """Let the model learn a block. After an exception it may have learned a part of it."""
    try:
        if len(reward):
            with foreign_code():
                model.learn(inputs, reward)
    except CodeError:
        failures["learn_raised"] += len(reward)


@dataclass(frozen=True, config=strict)
class PythonModel(ExternalModel):
    """Make the model by calling a factory.

    The factory returns an object with two methods. `predict(features)` takes the features [rows, d] of actions and
    returns a number for each row. `learn(features, reward)` is called with the logged actions of a block afterwards.
    `predict` must not change later predictions, because every Report calls it.

    Args:
        target: the factory, as `package.module:factory`
        options: keyword arguments of the factory

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
        return frozenset({"features"})

    def make(self) -> Any:
        model = make(self.target, self.options)
        missing = [name for name in ("predict", "learn") if not callable(getattr(model, name, None))]
        if missing:
            raise ConfigError(
                f"{self.target} returns {type(model).__name__}, which has no {' and no '.join(missing)}",
                hint="a reward model has predict(features) and learn(features, reward)",
            )
        return model

    def inputs_of(self, log: LoggedActions, is_usable: Mask, features: Array) -> Array:
        return features


Input = Literal["features", "action", "context"]
EXAMPLE = "write {kind: river, model: linear_model.BayesianLinearRegression, parameters: {alpha: 1}}"


@dataclass(frozen=True, config=strict)
class RiverModel(ExternalModel):
    """Use a regressor of the river library.

    It calls Python for each action, so it suits streams of some thousand actions a second.

    Args:
        model: its name in river, e.g. `linear_model.BayesianLinearRegression`
        parameters: arguments of its constructor. A value `{model: NAME, parameters: {...}}` is made first, for
            ensembles and optimizers.
        inputs: what to make inputs from: an action's `features`, an indicator of the `action`'s name, and the numbers
            and texts of the event's `context`
        scale: whether numbers are scaled to mean 0 and variance 1

    Source: Montiel et al., River: machine learning for streaming data in Python, JMLR 2021.
    """

    model: Annotated[str, Field(pattern=r"^\w+(\.\w+)+$")]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    inputs: Annotated[tuple[Input, ...], Field(min_length=1)] = ("features", "action", "context")
    scale: bool = True
    kind: Literal["river"] = field(default="river", kw_only=True, repr=False)

    @property
    def needs(self) -> Requirements:
        return frozenset({"features"}) if "features" in self.inputs else NOTHING

    @property
    def needs_raw_fields(self) -> bool:
        return bool({"action", "context"} & set(self.inputs))

    def make(self) -> Any:
        from river.base import Regressor  # slow to import, and rarely used
        from river.preprocessing import StandardScaler

        regressor = river_object(self.model, self.parameters, EXAMPLE)
        if not isinstance(regressor, Regressor):
            raise ConfigError(f"river's {self.model} is not a regressor", hint=EXAMPLE)
        return _OneByOne(regressor, StandardScaler() if self.scale else None)

    def inputs_of(self, log: LoggedActions, is_usable: Mask, features: Array) -> NDArray[Any]:
        sets, raw_fields = log.sets, log.raw_fields
        logged = raw_fields.values if raw_fields and "context" in self.inputs else [{}] * len(sets.index)
        described = [inputs_of_context(fields.get("context")) for fields in logged]
        rows = [described[event] for event in sets.owner[is_usable].tolist()]
        keys = [f"feature_{index}" for index in range(features.shape[1])]
        named = [dict(zip(keys, values, strict=True)) for values in features.tolist()]
        rows = [({**row[0], **numbers}, row[1]) for row, numbers in zip(rows, named, strict=True)]
        if "action" in self.inputs:
            names = compress(log.names, is_usable)
            rows = [(row[0], {**row[1], f"action={name}": 1.0}) for row, name in zip(rows, names, strict=True)]
        return np.fromiter(rows, dtype=object, count=len(rows))


class _OneByOne:
    """Let a river regressor learn many actions at once."""

    def __init__(self, regressor: Any, scaler: Any) -> None:
        self.regressor, self.scaler = regressor, scaler

    def predict(self, inputs: Sequence[Described]) -> list[float]:
        return [self.regressor.predict_one(self._scaled(*described)) for described in inputs]

    def learn(self, inputs: Sequence[Described], reward: Array) -> None:
        for described, earned in zip(inputs, reward.tolist(), strict=True):
            if self.scaler is not None:
                self.scaler.learn_one(described[0])
            self.regressor.learn_one(self._scaled(*described), earned)

    def _scaled(self, numbers: Mapping[str, float], marks: Mapping[str, float]) -> dict[str, float]:
        return {**(numbers if self.scaler is None else self.scaler.transform_one(numbers)), **marks}
