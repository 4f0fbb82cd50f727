"""Environment variables that lie over the configuration file: STREAMEVAL_HTTP__PORT is `http.port`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import yaml

from streameval.yamlfile import Place, StrictLoader

PREFIX = "STREAMEVAL_"


class Override(NamedTuple):
    """A value, and the variable that it came from."""

    variable: str
    value: Any


Overrides = Mapping[Place, Override]


def overrides_in(environment: Mapping[str, str], parts: Collection[str]) -> Overrides:
    """The variables that speak of the configuration, by their place; `parts` are its keys at the top.

    A double underscore goes one level in. Other variables with the prefix are left alone unless they contain one:
    Kubernetes sets STREAMEVAL_PORT and STREAMEVAL_SERVICE_HOST beside a service called streameval.

    >>> overrides_in({"STREAMEVAL_HTTP__PORT": "80", "STREAMEVAL_PORT": "tcp://10.0.0.1:80"}, ["http"])
    {('http', 'port'): Override(variable='STREAMEVAL_HTTP__PORT', value='80')}
    """
    found: dict[Place, Override] = {}
    for variable, text in sorted(environment.items()):
        place = tuple(variable.removeprefix(PREFIX).lower().split("__"))
        if variable.startswith(PREFIX) and (len(place) > 1 or place[0] in parts):
            found[place] = Override(variable, _value(place[-1], text))
    return found


def overlaid(values: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """`values` with the overrides in their places; neither argument is changed."""
    result = dict(values)
    for place, override in overrides.items():
        inner = result
        for step in map(str, place[:-1]):
            below = inner.get(step)
            inner[step] = dict(below) if isinstance(below, dict) else {}
            inner = inner[step]
        inner[str(place[-1])] = override.value
    return result


def _value(key: str, text: str) -> Any:
    """Lists and mappings are written as in YAML. All else is text, and so is every password."""
    if "password" in key or not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return yaml.load(text, StrictLoader)
    except yaml.YAMLError:
        return text
