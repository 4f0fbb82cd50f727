"""Any of river's regressors as a reward model."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Field
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.errors import ConfigError
from streameval.ope.evidence.requirements import NOTHING, Requirement, Requirements
from streameval.ope.reward_models.base import LoggedActions
from streameval.ope.reward_models.external import ExternalModel, Learner

Input = Literal["features", "action", "context"]
Described: TypeAlias = tuple[Mapping[str, float], Mapping[str, float]]
"""Numbers, which may be scaled, and indicators of texts and names, which are 1."""


@dataclass(frozen=True, config=strict)
class RiverModel(ExternalModel):
    """A regressor of the river library, by the name it has there, e.g. `linear_model.BayesianLinearRegression`.

    `parameters` are those of its constructor; one that is itself `{model: NAME, parameters: {...}}` is made first, for
    ensembles and optimizers. `inputs`: the inputs made of an action: its `features`, an indicator of the `action`'s
    name, and the numbers and texts of the event's `context`. `scale`: numbers are scaled to mean 0 and variance 1.

    It takes ten microseconds or more for each action, so that it suits streams of some thousand actions a second.

    Source: Montiel et al., River: machine learning for streaming data in Python, JMLR 2021.
    """

    model: Annotated[str, Field(pattern=r"^\w+(\.\w+)+$")]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    inputs: Annotated[tuple[Input, ...], Field(min_length=1)] = ("features", "action", "context")
    scale: bool = True
    kind: Literal["river"] = field(default="river", kw_only=True, repr=False)

    @property
    def needs(self) -> Requirements:
        return frozenset({Requirement.FEATURES}) if "features" in self.inputs else NOTHING

    @property
    def needs_raw_fields(self) -> bool:
        return bool({"action", "context"} & set(self.inputs))

    def make(self) -> Learner:
        from river.base import Regressor  # slow to import, and rarely used
        from river.preprocessing import StandardScaler

        regressor = _made(self.model, self.parameters)
        if not isinstance(regressor, Regressor):
            raise ConfigError(f"river's {self.model} is no regressor", hint=EXAMPLE)
        return _OneByOne(regressor, StandardScaler() if self.scale else None)

    def inputs_of(self, log: LoggedActions) -> Sequence[Described]:
        sets, raw_fields = log.sets, log.raw_fields
        contexts = raw_fields.contexts if raw_fields and "context" in self.inputs else [None] * len(sets.index)
        described = [_of_context(context) for context in contexts]
        rows = [described[event] for event in sets.owner.tolist()]
        if "features" in self.inputs and sets.features is not None:
            keys = [f"feature_{place}" for place in range(sets.features.shape[1])]
            values = sets.features.tolist()
            rows = [
                ({**row[0], **dict(zip(keys, v, strict=True))}, row[1]) for row, v in zip(rows, values, strict=True)
            ]
        if "action" in self.inputs:
            rows = [(row[0], {**row[1], f"action={name}": 1.0}) for row, name in zip(rows, log.names, strict=True)]
        return rows


class _OneByOne:
    """A river regressor that learns many actions at once."""

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


EXAMPLE = "write {kind: river, model: linear_model.BayesianLinearRegression, parameters: {alpha: 1}}"


def _made(name: str, parameters: Mapping[str, Any]) -> Any:
    module, _, attribute = name.rpartition(".")
    given = {
        key: _made(value["model"], value.get("parameters", {})) if _is_a_model(value) else value
        for key, value in parameters.items()
    }
    try:
        return getattr(importlib.import_module(f"river.{module}"), attribute)(**given)
    except Exception as error:  # a constructor may raise anything
        raise ConfigError(
            f"river's {name} cannot be made with the parameters {dict(parameters)}: {type(error).__name__}: {error}",
            hint=EXAMPLE,
        ) from error


def _is_a_model(value: Any) -> bool:
    return isinstance(value, Mapping) and "model" in value


def _of_context(context: Any) -> Described:
    """The numbers and texts of a context, by their paths, and an intercept.

    >>> _of_context({"hour": 9, "user": {"country": "NL", "new": True}})
    ({'context.hour': 9.0, 'context.user.new': 1.0}, {'intercept': 1.0, 'context.user.country=NL': 1.0})
    """
    leaves = dict(_leaves("context", context))
    numbers = {path: float(leaf) for path, leaf in leaves.items() if not isinstance(leaf, str)}
    texts = {f"{path}={leaf}": 1.0 for path, leaf in leaves.items() if isinstance(leaf, str)}
    return numbers, {"intercept": 1.0, **texts}


def _leaves(path: str, value: Any) -> Iterator[tuple[str, float | str]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{path}.{key}", inner)
    elif isinstance(value, str) or (isinstance(value, int | float) and abs(value) <= LARGEST):
        yield path, value


LARGEST = 1e30
"""Larger numbers, infinities and NaN are left out."""
