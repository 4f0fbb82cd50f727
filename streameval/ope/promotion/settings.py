"""What a team configures of promotion: the rules, what they share, and when numbers are not to be trusted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.common.text import Seconds
from streameval.ope.intervals.sequences import error_shares

RuleName: TypeAlias = Literal["paired", "anytime", "sea", "bsea"]
NEEDS_LIFT: tuple[RuleName, ...] = ("paired", "anytime")
"""Rules that look at the lift on a mixture."""
OFF = "off"


@dataclass(frozen=True, config=strict)
class Trust:
    """Limits beyond which the numbers of a policy are not believed, and nothing is promoted by them."""

    error: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="the chance that a sound log is ever blamed for its mean weight, per policy",
    )
    effective_sample_size: float = Field(
        default=100.0, ge=0, allow_inf_nan=False, description="the least effective sample size that is enough"
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
    stale_after: Seconds | None = Field(
        default=3600.0, description="age of the newest event at which nothing is promoted, e.g. 1h; null is never"
    )


@dataclass(frozen=True, config=strict)
class Promotion:
    """When a candidate may replace production.

    `rule`: one rule, or several that run side by side. A rule must hold for `hold` block ends in a row, after
    `min_events` events that the candidate has, while all trust checks pass. `family_size`: how many candidates share
    the error probability of `sea`, of `anytime` and of confidence sequences; without it the i-th ever added gets
    `6 delta / (pi^2 i^2)`.
    `max_weight`: no importance weight is larger; without it `sea` takes the largest seen. `tau`: `anytime` is about at
    most the last 2 tau events, not about all since the start.

    >>> Promotion.of("sea").rules, Promotion.of("off")
    (('sea',), None)
    """

    rule: RuleName | tuple[RuleName, ...] = Field(
        default="paired",
        min_length=1,
        description="the test a candidate must pass, or a list of tests that run side by side",
    )
    min_events: int = Field(default=10_000, ge=0, description="no decision before so many events")
    margin: float = Field(default=0.0, allow_inf_nan=False, description="the lift that a candidate must exceed")
    hold: int = Field(default=10, ge=1, description="block ends for which the test must hold")
    family_size: int | None = Field(
        default=None,
        ge=1,
        description="candidates that share the error probability (sea, anytime, confidence_sequence)",
    )
    max_weight: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="no importance weight is larger (sea); absent: the largest seen",
    )
    tau: int | None = Field(
        default=None,
        ge=1,
        description="anytime proves the mean lift of at most the last 2 tau events; absent: since the start",
    )
    trust: Trust = Trust()

    @classmethod
    def of(cls, wish: Promotion | Mapping[str, Any] | Sequence[str] | str | None) -> Promotion | None:
        """From the name of a rule, names of rules, or a mapping of options; None for `off`. ValueError for others."""
        if wish is None or wish == OFF or isinstance(wish, Promotion):
            return wish if isinstance(wish, Promotion) else None
        return _PROMOTION.validate_python(wish if isinstance(wish, Mapping) else {"rule": wish})

    @property
    def rules(self) -> tuple[RuleName, ...]:
        """The rules, each once."""
        return (self.rule,) if isinstance(self.rule, str) else tuple(dict.fromkeys(self.rule))

    def check(self, block: int) -> None:
        """ValueError when these settings are of no use with blocks of so many events."""
        if self.tau is not None and self.tau < block:
            raise ValueError(f"promotion.tau must be a block of {block} events or more, found {self.tau}")

    def settings(self) -> dict[str, Any]:
        """What `of` makes it from, as a plain value."""
        plain: dict[str, Any] = _PROMOTION.dump_python(self, mode="json")
        return plain

    def errors(self, confidence: float, ranks: Sequence[int]) -> Array:
        """The error probability of each candidate, whose `ranks` say the how many-th it is that was ever added.

        Without a family size all of them together, however many may come, have `1 - confidence`:

        >>> errors = Promotion().errors(0.95, range(1, 1001))
        >>> errors[:2].round(4), bool(errors.sum() < 0.05)
        (array([0.0304, 0.0076]), True)
        """
        return error_shares(1.0 - confidence, ranks, self.family_size)


_PROMOTION: TypeAdapter[Promotion] = TypeAdapter(Promotion)
