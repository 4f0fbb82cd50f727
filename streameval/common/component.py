"""Define the base of estimators, averages and intervals: frozen values with a kind and an optional name."""

from __future__ import annotations

from dataclasses import field, fields, is_dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError, field_validator
from pydantic.dataclasses import dataclass

from streameval.common.problems import ProblemsError, hints_of_python, problems_of

strict = ConfigDict(extra="forbid", allow_inf_nan=False)


class StrictModel(BaseModel):
    """Refuse unknown options, and changes of values."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*")
    @classmethod
    def _has_no_nul(cls, value: object) -> object:
        """Refuse text with a NUL, at which C libraries end it or fail."""
        text = value.get_secret_value() if isinstance(value, SecretStr) else value
        if isinstance(text, str) and "\0" in text:
            raise ValueError("expected text, found a NUL character in it")
        return value


class Configurable(type):
    """Name wrong arguments as a configuration does, and list only the options of a class in `dir` and `help`."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        """Make a value.

        Raises:
            ProblemsError: An argument is wrong, missing or unknown.
        """
        with hints_of_python(cls.__name__):
            try:
                return super().__call__(*arguments, **options)
            except ValidationError as error:
                raise ProblemsError(problem.below(cls.__name__) for problem in problems_of(error, cls)) from None

    def __dir__(cls) -> list[str]:
        return [option.name for option in fields(cls) if option.repr] if is_dataclass(cls) else []


@dataclass(frozen=True, kw_only=True, config=strict)
class Component(metaclass=Configurable):
    """Hold a configured choice.

    Metrics and reports show its label, so two choices of one kind need names.
    """

    name: str | None = field(default=None, repr=False)
    kind: str = field(default="", repr=False)

    @property
    def label(self) -> str:
        """Return the name given by the user, otherwise the kind."""
        return self.name or self.kind


def kind_as_mapping(value: object) -> object:
    """Return the name of a kind as a mapping of options, and other values unchanged."""
    return {"kind": value} if isinstance(value, str) else value
