"""Read pyproject.toml and the locks."""

from __future__ import annotations

import re
import tomllib

from packaging.utils import canonicalize_name

from support.paths import ROOT

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def pinned(lock: str) -> dict[str, set[str]]:
    """Return the pinned versions by name. There are several if they depend on the version of Python."""
    pins: dict[str, set[str]] = {}
    for name, number in re.findall(r"^([A-Za-z0-9_.-]+)==([^ \\]+)", (ROOT / "requirements" / lock).read_text(), re.M):
        pins.setdefault(canonicalize_name(name), set()).add(number)
    return pins
