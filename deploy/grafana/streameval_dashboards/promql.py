"""Expressions of PromQL that panels share; each is about the chosen instances unless `of` says otherwise."""

from __future__ import annotations

from streameval_dashboards.selection import INSTANCE


def rate(counter: str, *labels: str, of: str = INSTANCE) -> str:
    """By how much a counter rises per second, all series with the same values of `labels` together."""
    return f"{_sum(labels)}(rate({counter}{{{of}}}[$__rate_interval]))"


def in_an_hour(counter: str, *labels: str, of: str = INSTANCE) -> str:
    """By how much a counter has risen within an hour."""
    return f"{_sum(labels)}(increase({counter}{{{of}}}[1h]))"


def total(metric: str, *labels: str, of: str = INSTANCE) -> str:
    """The sum of a metric over all series with the same values of `labels`."""
    return f"{_sum(labels)}({metric}{{{of}}})"


def age(moment: str) -> str:
    """How long ago something was, from a metric that says when; 0 where a clock elsewhere is ahead."""
    return f"clamp_min(time() - {moment}{{{INSTANCE}}}, 0)"


def quantile(histogram: str, share: float) -> str:
    """What this share of the observations of late is below."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', 'le')})"


def or_none(expression: str, label: str = "") -> str:
    """0, under the name `none`, where nobody asked for what the expression is about."""
    nothing = f'label_replace(vector(0), "{label}", "none", "", "")' if label else "vector(0)"
    return f"{expression} or on () {nothing}"


def _sum(labels: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(labels)}) " if labels else "sum"
