"""A reward model that the user has written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from pydantic.dataclasses import dataclass

from streameval.arrays import Array
from streameval.errors import ConfigError
from streameval.events import ActionSets
from streameval.events.choices import Choices
from streameval.labels import strict
from streameval.needs import Need, Needs
from streameval.policies.python import find
from streameval.rewards.foreign import Foreign, Learner


@dataclass(frozen=True, config=strict)
class PythonModel(Foreign):
    """What `target` makes, a factory `package.module:factory` that is called with `options`.

    It returns an object with `predict(features)` of the features [rows, d] of actions, which gives a number for each
    row, and `learn(features, reward)`, which is told of the logged actions of a block afterwards. `predict` must change
    nothing that later predictions depend on: it is asked as often as a Report is wanted.

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
    def needs(self) -> Needs:
        return frozenset({Need.FEATURES})

    def make(self) -> Learner:
        factory = find(self.target)
        try:
            model: Learner = factory(**self.options)
        except Exception as error:  # whatever it raises, it is not ours
            raise ConfigError(
                f"{self.target} fails with the options {dict(self.options)}: {type(error).__name__}: {error}",
                hint="it is called with the options as keywords, and must return the model",
            ) from error
        missing = [name for name in ("predict", "learn") if not callable(getattr(model, name, None))]
        if missing:
            raise ConfigError(
                f"{self.target} returns {type(model).__name__}, which has no {' and no '.join(missing)}",
                hint="a reward model has predict(features) and learn(features, reward)",
            )
        return model

    def shown(self, sets: ActionSets, choices: Choices | None) -> Array:
        return np.empty((len(sets.propensities), 0)) if sets.features is None else sets.features
