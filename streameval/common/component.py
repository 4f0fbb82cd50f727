"""The base of estimators, averages and intervals: frozen values with a kind and an optional name."""

from __future__ import annotations

from dataclasses import field, fields, is_dataclass

from pydantic import BaseModel, ConfigDict
from pydantic.dataclasses import dataclass

strict = ConfigDict(extra="forbid", allow_inf_nan=False)


class StrictModel(BaseModel):
    """Refuse unknown options, and changes of values."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Configurable(type):
    """The type of the classes that people configure: `dir` and `help` list the options of such a class."""

    def __dir__(cls) -> list[str]:
        return [option.name for option in fields(cls) if option.repr] if is_dataclass(cls) else []


@dataclass(frozen=True, kw_only=True, config=strict)
class Component(metaclass=Configurable):
    """A configured choice; its label is what people see in metrics and reports, so two of one kind need names."""

    name: str | None = field(default=None, repr=False)
    kind: str = field(default="", repr=False)

    @property
    def label(self) -> str:
        """The name given by the user, else the kind."""
        return self.name or self.kind


def kind_as_mapping(value: object) -> object:
    """The name of a kind as a mapping of options; other values as they are."""
    return {"kind": value} if isinstance(value, str) else value
