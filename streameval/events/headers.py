"""Name the probabilities that events list in the order of a header."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from msgspec.structs import replace

from streameval.events.schema import NAN, policies_type
from streameval.events.validation import Fault

__all__ = ["HeaderNames"]


class HeaderNames:
    """Name the entries of lists of probabilities.

    Numbers of known policies are packed into bytes as soon as their message is decoded, because a batch of lists with
    thousands of Python objects does not fit into the cache of a processor.

    Args:
        headers: the names of policies in the order of a list, by the value of `policies_of`
        policies: the policies to keep, None = all
    """

    def __init__(self, headers: Mapping[str, Sequence[str]], policies: Sequence[str] | None) -> None:
        self._headers = {header: _Header.of(names, policies) for header, names in headers.items()}
        self._numbers = None if policies is None else struct.Struct(f"{len(policies)}d")
        self._form: Callable[..., Any] | None = None if policies is None else policies_type(policies)

    def packing(self, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
        """Return a decoder that also packs lists."""
        return lambda message: self._packed(decode(message))

    def _packed(self, event: Any) -> Any:
        """Return the event with bytes for its list, if that has a number for each name of a known header."""
        cells = event.policies
        header = self._headers.get(event.policies_of) if cells.__class__ is list else None
        if header is None or self._numbers is None or len(cells) != len(header.names):
            return event
        try:
            return replace(event, policies=self._numbers.pack(*header.pick(cells)))
        except struct.error:  # null, or a distribution
            return event

    def named(self, event: Any) -> Any:
        """Return the event with names for its list or bytes, or its `Fault`."""
        cells = event.policies
        if isinstance(cells, bytes) and self._numbers is not None and self._form is not None:
            return replace(event, policies=self._form(*self._numbers.unpack(cells)))
        if not isinstance(cells, list):
            return event
        if event.policies_of is None:
            return Fault("malformed", "policies: a list needs `policies_of`, the name of its header")
        header = self._headers.get(event.policies_of)
        if header is None:
            known = f"source.policies_of, which has {', '.join(self._headers)}"
            return Fault("malformed", f"policies_of: {event.policies_of!r} is no header in {known}")
        if len(cells) != len(header.names):
            detail = f"{len(cells)} values for the {len(header.names)} names of {event.policies_of!r}"
            return Fault("malformed", f"policies: {detail}")
        if self._form is None:
            return replace(event, policies=dict(zip(header.names, cells, strict=True)))
        return replace(event, policies=self._form(*header.pick(cells)))


class _Header(NamedTuple):
    """Hold the names of a header, and what picks the cells of the policies from a list, NaN for others."""

    names: tuple[str, ...]
    pick: Callable[[list[Any]], Sequence[Any]]

    @classmethod
    def of(cls, names: Sequence[str], policies: Sequence[str] | None) -> _Header:
        if policies is None or tuple(policies) == tuple(names):
            return cls(tuple(names), list)
        place_of = {name: place for place, name in enumerate(names)}
        places = [place_of.get(policy, len(names)) for policy in policies]
        pick = itemgetter(*places, 0, 0)  # two more make a tuple of any number of places
        return cls(tuple(names), lambda cells: pick([*cells, NAN])[:-2])
