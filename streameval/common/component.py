"""The base of estimators, averages and intervals: frozen values with a kind and an optional name."""

from __future__ import annotations

from dataclasses import field

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

strict = ConfigDict(extra="forbid")


@dataclass(frozen=True, kw_only=True, config=strict)
class Component:
    """A configured choice; its label is what people see in metrics and reports, so two of one kind need names."""

    name: str | None = field(default=None, repr=False)
    kind: str = field(default="", repr=False)

    @property
    def label(self) -> str:
        """The name given by the user, else the kind."""
        return self.name or self.kind
