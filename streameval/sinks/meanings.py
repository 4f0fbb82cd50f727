"""Intervals in words: what the bars and bands of the status page are about, and how far one may trust them."""

from __future__ import annotations

from collections.abc import Iterable

from streameval.report import Estimate
from streameval.sinks.charts import between, is_known

ABOUT = {
    "current": "about the value now",
    "average": "about the mean over the events that are looked back on",
    "estimand": "about what the estimator aims at, which is not quite the value",
}
KINDS = {
    "normal": "They go by the spread of what was seen, and are too narrow while few large weights carry the value.",
    "drift_aware": (
        "They allow for chance, for short and long memories that disagree, and for drift; right after a jump they are "
        "late."
    ),
    "empirical_bernstein": (
        "They hold however few events there are, if no weight is larger than what was seen or configured."
    ),
    "empirical_likelihood": (
        "They hold also where few large weights carry the value, or have yet to come, and lie unevenly around it."
    ),
    "confidence_sequence": "They hold at all times at once.",
}
WATCHED = {
    True: "They may be watched all day.",
    False: "Each is for one look at one number.",
}

OUTSIDE = (
    "What lies outside its interval is no fault: the interval is cut to the range of rewards, or, by empirical "
    "likelihood, knows that the mean weight is 1 in truth, which the value itself does not."
)


def meanings(estimates: Iterable[Estimate], confidence: float) -> tuple[str, ...]:
    """What the intervals of these estimates say: a text, or one for each kind, where they are of several.

    >>> known = {"lower": 0.1, "upper": 0.3, "kind": "confidence_sequence", "anytime": True, "covers": "average"}
    >>> unknown = dict.fromkeys(("effective_sample_size", "importance_weight_mean", "importance_weight_max"))
    >>> (text,) = meanings([Estimate("a", "ips", "window", 0.2, **known, **unknown)], 0.95)
    >>> text.partition(".")[0]
    '95 % intervals (confidence sequence) about the mean over the events that are looked back on'
    >>> text.endswith("They hold at all times at once. They may be watched all day.")
    True
    """
    kinds: dict[tuple[str, str, bool], dict[str, None]] = {}
    for each in estimates:
        kinds.setdefault((each.kind, each.covers, each.anytime), {})[each.estimator] = None
    whose = len(kinds) > 1
    return tuple(
        (f"{', '.join(estimators)}: " if whose else "") + _meaning(*kind, confidence)
        for kind, estimators in kinds.items()
    )


def _meaning(kind: str, covers: str, anytime: bool, confidence: float) -> str:
    head = f"{100 * confidence:g} % intervals ({kind.replace('_', ' ')}) {ABOUT.get(covers, '')}".rstrip()
    return " ".join(filter(None, (f"{head}.", KINDS.get(kind), WATCHED[anytime])))


def outside(estimates: Iterable[Estimate]) -> str:
    """What to say where a value or a lift lies outside its interval; empty where none does.

    >>> ends = dict.fromkeys(("effective_sample_size", "importance_weight_mean", "importance_weight_max"))
    >>> found = Estimate("a", "ips", "window", 1.02, 0.9, 1.0, "normal", False, "average", **ends)
    >>> outside([found]) == OUTSIDE
    True
    """
    return OUTSIDE if any(map(_is_outside, estimates)) else ""


def _is_outside(each: Estimate) -> bool:
    shown = ((each.value, each.lower, each.upper), (each.lift, each.lift_lower, each.lift_upper))
    return any(_lies_outside(value, between(lower, upper)) for value, lower, upper in shown)


def _lies_outside(value: float | None, ends: tuple[float, float] | None) -> bool:
    if ends is None or not is_known(value):
        return False
    rounding = 1e-9 * max(map(abs, (value, *ends)))
    return not ends[0] - rounding <= value <= ends[1] + rounding
