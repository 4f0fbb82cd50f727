"""Power: how many events it takes to see a lift of so much, with what the log explores."""

from __future__ import annotations

from streameval.power.detection import events_needed, smallest_lift
from streameval.power.exploration import Exploration, Relief
from streameval.power.outlook import Limit, Need, Outlook, Prospect, Span, outlook
from streameval.power.wishes import Wish

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
