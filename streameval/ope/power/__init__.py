"""Power: how many events it takes to see a lift of so much, with what the log explores."""

from __future__ import annotations

from streameval.ope.power.exploration import Exploration, Relief
from streameval.ope.power.forecast import Limit, Need, Outlook, Prospect, Span, Wish, outlook
from streameval.ope.power.sample_size import events_needed, smallest_lift

__all__ = [
    "Exploration",
    "Limit",
    "Need",
    "Outlook",
    "Prospect",
    "Relief",
    "Span",
    "Wish",
    "events_needed",
    "outlook",
    "smallest_lift",
]
