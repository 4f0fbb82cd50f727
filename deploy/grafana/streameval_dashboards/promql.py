"""Build PromQL expressions that panels share. Each selects the chosen instances unless `selector` selects others."""

from __future__ import annotations

from streameval_dashboards.selection import INSTANCE


def rate(counter: str, *labels: str, selector: str = INSTANCE) -> str:
    """Return the increase of a counter per second, summed over all series with equal values of `labels`."""
    return f"{_sum(labels)}(rate({counter}{{{selector}}}[$__rate_interval]))"


def hourly_increase(counter: str, *labels: str, selector: str = INSTANCE) -> str:
    """Return the increase of a counter within an hour."""
    return f"{_sum(labels)}(increase({counter}{{{selector}}}[1h]))"


def total(metric: str, *labels: str, selector: str = INSTANCE) -> str:
    """Return the sum of a metric over all series with equal values of `labels`."""
    return f"{_sum(labels)}({metric}{{{selector}}})"


def age(moment: str) -> str:
    """Return the seconds since the time in a metric, or 0 if the clock of another machine is ahead."""
    return f"clamp_min(time() - {moment}{{{INSTANCE}}}, 0)"


def quantile(histogram: str, share: float) -> str:
    """Return a quantile of the recent observations of a histogram."""
    return f"histogram_quantile({share}, {rate(f'{histogram}_bucket', 'le')})"


def or_none(expression: str, label: str = "") -> str:
    """Return the expression, or 0 with the label `none` if the feature is not in use."""
    nothing = f'label_replace(vector(0), "{label}", "none", "", "")' if label else "vector(0)"
    return f"{expression} or on () {nothing}"


def _sum(labels: tuple[str, ...]) -> str:
    return f"sum by ({', '.join(labels)}) " if labels else "sum"
