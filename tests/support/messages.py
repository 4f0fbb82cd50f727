"""Make events as messages."""

from __future__ import annotations

import json
from typing import Any

from streameval.events import EventBatch, JsonDecoder
from support.strategies import encode


def message(number: int, **fields: Any) -> bytes:
    """Return an event of a coin as JSON, with its number as identifier and time. A field that is `...` is left out."""
    event = {"event_id": number, "timestamp": number, "action": "a", "propensity": 0.5, "reward": 1} | fields
    return json.dumps({name: value for name, value in event.items() if value is not ...}).encode()


def batch_of(*events: Any, **settings: Any) -> EventBatch:
    """Decode these events as JSON with these settings."""
    return JsonDecoder(**settings).decode_batch(encode(event) for event in events)
