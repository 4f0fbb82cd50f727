"""PromQL expressions that panels share. Each selects the chosen instances unless `of` selects others."""

from __future__ import annotations

from streameval_dashboards.selection import INSTANCE


def rate(counter: str, *labels: str, of: str = INSTANCE) -> str:
    """Increase of a counter per second, summed over all series with the same values of `labels`."""
    return f"{_sum(labels)}(rate({counter}{{{of}}}[$__rate_interval]))"


def in_an_hour(counter: str, *labels: str, of: str = INSTANCE) -> str:
    """Increase of a counter within an hour."""
    return f"{_sum(labels)}(increase({counter}{{{of}}}[1h]))"


def total(metric: str, *labels: str, of: str = INSTANCE) -> str:
    """The sum of a metric over all series with the same values of `labels`."""
    return f"{_sum(labels)}({metric}{{{of}}})"


def age(moment: str) -> str:
    """Seconds since the time in a metric; 0 if the clock of another machine is ahead."""
    return f"clamp_min(time() - {moment}{{{INSTANCE}}}, 0)"


def quantile(histogram: str, share: float) -> str:
    """Quantile of the recent observations of a histogram."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', 'le')})"


def or_none(expression: str, label: str = "") -> str:
    """The expression, or 0 with the label `none` if the feature is not in use."""
    nothing = f'label_replace(vector(0), "{label}", "none", "", "")' if label else "vector(0)"
    return f"{expression} or on () {nothing}"


def _sum(labels: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(labels)}) " if labels else "sum"
