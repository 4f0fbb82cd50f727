"""The base of estimators, averages and intervals: frozen values with a kind and an optional name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

strict = ConfigDict(extra="forbid", allow_inf_nan=False)


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


Chosen = TypeVar("Chosen", bound=Component)


def chosen(option: str, value: Component | Mapping[str, Any] | str, kinds: TypeAdapter[Chosen]) -> Chosen:
    """The component that a caller gives as such, by the name of its kind, or as a mapping of options with its kind.

    Raises:
        ValueError: There is no such kind, or it has no such option.
    """
    if isinstance(value, Component):
        return value  # type: ignore[return-value]
    try:
        return kinds.validate_python(kind_as_mapping(value))
    except ValidationError as error:
        detail = error.errors()[0]
        if detail["type"] == "union_tag_invalid":
            known = detail["ctx"]["expected_tags"].replace("'", "")
            raise ValueError(f"{option}: expected one of {known}; found {detail['ctx']['tag']!r}") from None
        place = ".".join(map(str, detail["loc"]))
        raise ValueError(f"{option}: {place}: {detail['msg']}" if place else f"{option}: {detail['msg']}") from None


def chosen_all(
    option: str, values: Sequence[Component | Mapping[str, Any] | str], kinds: TypeAdapter[Chosen]
) -> tuple[Chosen, ...]:
    """The components of a list, each as `chosen` takes it.

    Raises:
        ValueError: This is not a list, or an item is not a component.
    """
    if isinstance(values, str | Mapping | Component):
        raise ValueError(f"{option} must be a list, found {values!r}")
    return tuple(chosen(f"{option}.{place}", value, kinds) for place, value in enumerate(values))
