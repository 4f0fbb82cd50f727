"""Define the settings of promotion: the rules, their shared requirements, and the limits of the trust checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any

from pydantic import BeforeValidator, Discriminator, Field, Tag, TypeAdapter
from pydantic.dataclasses import dataclass

from streameval.common.component import Configurable, kind_as_mapping, strict
from streameval.common.text import Seconds
from streameval.ope.promotion.rules import AnyRule, Paired, Periodic
from streameval.ope.promotion.rules.periodic import AUTO, PeriodText

SHARED = ("tau", "max_weight", "period", "min_periods", "memory")
"""Parameters that fill in for every rule that has them and does not set them."""
OneRule = Annotated[AnyRule, BeforeValidator(kind_as_mapping), Tag("rule")]
SeveralRules = Annotated[tuple[OneRule, ...], Field(min_length=1), Tag("rules")]


@dataclass(frozen=True, config=strict)
class Trust(metaclass=Configurable):
    """Limit the trust checks. Nothing is promotable while a policy exceeds one of these limits."""

    error: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="the probability that the check of mean weights, clusters or propensities ever fails on sound logs",
    )
    effective_sample_size: float = Field(
        default=100.0, ge=0, description="the smallest effective sample size that passes"
    )
    largest_share: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="the largest share of the value, or of all weights, that one event may carry",
    )
    rejected_share: float = Field(
        default=0.05, gt=0, le=1, description="the largest share of the latest events that may be rejected"
    )
    unsupported_share: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="the largest share of a ranking's gain at ranks whose items production did not show",
    )
    missing_share: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="the largest share of the averaged events that a policy may lack, on every average",
    )
    clipped_share: float = Field(
        default=0.05, gt=0, le=1, description="the largest share of the latest rewards that may be clipped"
    )
    unmatched_share: float = Field(
        default=0.05, gt=0, le=1, description="the largest share of the latest rewards that may have no decision"
    )
    stale_after: Seconds | None = Field(
        default=3600.0,
        description="age of the newest event above which nothing is promoted, e.g. 1h; null disables this check",
    )


@dataclass(frozen=True, config=strict)
class Promotion(metaclass=Configurable):
    """Define when a candidate may replace production.

    A rule must hold for `hold` block ends in a row, after `min_events` events of the candidate, while all trust checks
    pass.

    Args:
        rule: one or several rules, each a name or a mapping with its `kind` and parameters. By default `periodic`, with
            `paired` in its place if events have no timestamps.
        min_events: the number of events before the first decision
        margin: the lift that a candidate must exceed, in units of reward
        hold: block ends for which the test must hold
        family_size: candidates that share the error probability equally. Without it the i-th candidate ever added gets
            `6 delta / (pi^2 i^2)`.
        max_weight: for every rule that has this parameter and does not set it
        tau: for every rule that has this parameter and does not set it
        trust: the limits of the trust checks
        period: for `periodic`, the length of a period, or `auto`
        min_periods: for `periodic`, the number of periods before the first decision
        memory: for `periodic`, the number of periods to remember

    >>> Promotion.of(["sea", {"kind": "anytime", "tau": 50_000}]).rules, Promotion.of("off")
    ((Sea(max_weight=None), Anytime(tau=50000)), None)
    """

    rule: Annotated[
        OneRule | SeveralRules, Discriminator(lambda value: "rules" if isinstance(value, list | tuple) else "rule")
    ] = Field(
        default=Periodic(), description="the test a candidate must pass, or a list of tests that run side by side"
    )
    min_events: int = Field(default=10_000, ge=0, description="the number of events before the first decision")
    margin: float = Field(default=0.0, description="the lift that a candidate must exceed")
    hold: int = Field(default=10, ge=1, description="block ends for which the test must hold")
    family_size: int | None = Field(
        default=None,
        ge=1,
        description="candidates that share the error probability (sea, anytime, confidence_sequence)",
    )
    max_weight: float | None = Field(
        default=None,
        gt=0,
        description="upper limit of the importance weights (sea); absent: the largest seen",
    )
    tau: int | None = Field(
        default=None,
        ge=1,
        description="anytime proves the mean lift of at most the last 2 tau events; absent: since the start",
    )
    trust: Trust = Field(default=Trust(), description="limits of the trust checks")
    period: PeriodText = Field(
        default=AUTO,
        description="periodic: auto (days, and weeks once one is known), 24h, 7d or another duration",
    )
    min_periods: int | None = Field(
        default=None, ge=1, description="periodic: periods before the first decision; null: 2, and 1 from a week on"
    )
    memory: int | None = Field(
        default=None, ge=2, description="periodic: periods to remember; null: 14, and 8 from a week on"
    )

    @classmethod
    def of(cls, value: Promotion | Mapping[str, Any] | Sequence[str] | str | None) -> Promotion | None:
        """Parse the name of a rule, a list of rules or a mapping of options. Return None for `off`.

        Raises:
            ValueError: The value names no rule or option.
        """
        if value is None or value == "off" or isinstance(value, Promotion):
            return value if isinstance(value, Promotion) else None
        return _PROMOTION.validate_python(value if isinstance(value, Mapping) else {"rule": value})

    @property
    def rules(self) -> tuple[AnyRule, ...]:
        """Return the rules with the shared parameters filled in, each once."""
        rules = self.rule if isinstance(self.rule, tuple) else (self.rule,)
        return tuple(dict.fromkeys(map(self._completed, rules)))

    @cached_property
    def companion(self) -> Paired | None:
        """Return the rule that is shown beside `periodic`: whether a candidate is better at this minute.

        It decides only if events lack the timestamps that `periodic` needs.
        """
        has = {type(rule) for rule in self.rules}
        return Paired() if Periodic in has and Paired not in has else None

    def _completed(self, rule: AnyRule) -> AnyRule:
        shared: dict[str, Any] = {name: getattr(self, name) for name in SHARED}
        missing = [key for key in shared if hasattr(rule, key) and getattr(rule, key) is None]
        return replace(rule, **{key: shared[key] for key in missing})

    def check(self, block: int) -> None:
        """Check the settings for blocks of this many events.

        Raises:
            ValueError: A setting does not fit such blocks, or two rules have one label.
        """
        labels = [rule.label for rule in (*self.rules, self.companion) if rule is not None]
        repeated = sorted({label for label in labels if labels.count(label) > 1})
        if repeated:
            raise ValueError(f"{' and '.join(repeated)} is configured twice; give one of them a name")
        for rule in self.rules:
            rule.check(block)


_PROMOTION: TypeAdapter[Promotion] = TypeAdapter(Promotion)
