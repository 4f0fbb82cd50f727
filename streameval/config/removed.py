"""List the options that earlier versions had, with the reason why each is gone and what happens instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streameval.common.problems import KeyPath, Problem

REMOVED: Mapping[str, tuple[str, str]] = {}


def removed_options(values: object, path: KeyPath = ()) -> Iterator[Problem]:
    """Yield the removed options that a document has."""
    if isinstance(values, list):
        for index, item in enumerate(values):
            yield from removed_options(item, (*path, index))
    elif isinstance(values, dict):
        for key, value in values.items():
            yield from removed_options(value, (*path, key))
