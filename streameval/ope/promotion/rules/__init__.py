"""Judge which candidates beat production at the end of every block. Promotion rules are frozen values."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from streameval.ope.promotion.rules.base import Judgement, PromotionRule, RuleContext
from streameval.ope.promotion.rules.lifts import Anytime, Paired
from streameval.ope.promotion.rules.periodic import Periodic
from streameval.ope.promotion.rules.sea import Bsea, Sea

AnyRule = Annotated[Periodic | Paired | Anytime | Sea | Bsea, Field(discriminator="kind")]

__all__ = ["AnyRule", "Anytime", "Bsea", "Judgement", "Paired", "Periodic", "PromotionRule", "RuleContext", "Sea"]
