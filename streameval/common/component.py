"""Define the base of estimators, averages and intervals: frozen values with a kind and an optional name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, is_dataclass
from typing import Any, TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

strict = ConfigDict(extra="forbid", allow_inf_nan=False)


class Configurable(type):
    """List only the options of a class in `dir` and `help`, without the internals of pydantic."""

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
    """Turn the name of a kind into a mapping of options, and leave other values as they are."""
    return {"kind": value} if isinstance(value, str) else value


Chosen = TypeVar("Chosen", bound=Component)


def chosen(option: str, value: Component | Mapping[str, Any] | str, kinds: TypeAdapter[Chosen]) -> Chosen:
    """Return the component that a caller gives as an object, as the name of its kind, or as a mapping of options.

    Args:
        option: the name of the option, for the message
        value: what the caller gave
        kinds: the union of all kinds

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
            kinds_text = detail["ctx"]["expected_tags"].replace("'", "")
            raise ValueError(f"{option}: expected one of {kinds_text}; found {detail['ctx']['tag']!r}") from None
        path = ".".join(map(str, detail["loc"]))
        raise ValueError(f"{option}: {path}: {detail['msg']}" if path else f"{option}: {detail['msg']}") from None


def chosen_all(
    option: str, values: Sequence[Component | Mapping[str, Any] | str], kinds: TypeAdapter[Chosen]
) -> tuple[Chosen, ...]:
    """Return the components of a list, each as `chosen` accepts it.

    Raises:
        ValueError: The value is not a list, or an item is not a component.
    """
    if isinstance(values, str | Mapping | Component):
        raise ValueError(f"{option} must be a list, found {values!r}")
    return tuple(chosen(f"{option}.{index}", value, kinds) for index, value in enumerate(values))
