"""Import the names of a package at their first use (PEP 562)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, MutableMapping
from importlib import import_module
from typing import Any


def lazily(package: MutableMapping[str, Any], names: Collection[str], homes: Iterable[str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Args:
        package: the `globals()` of the package
        names: the public names of the package
        homes: modules, relative to the package. A name is imported from the first module that has it.
    """

    def __getattr__(name: str) -> Any:
        if name in names:
            for home in homes:
                module = import_module(f"{package['__name__']}.{home}")
                if hasattr(module, name):
                    return package.setdefault(name, getattr(module, name))
        raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")

    return __getattr__
