"""Events: the wire format, and many of them as columns.

A message is decoded to an `Event` or is `Rejected` with its reason; many messages become one `EventBatch`. In the order
of reading: `wire` (the types, which are the schema), `format` (the way of a message), `second_look` (what the decoder
refused), `shapes` (lists that must fit), `columns`, `rules` (numbers that must make sense), `batch`, `action_sets`.
`dsjson` reads another wire format to the same events.
"""

from streameval.events.action_sets import ActionSets
from streameval.events.batch import EventBatch
from streameval.events.decoder import JsonDecoder
from streameval.events.dsjson import DsjsonDecoder
from streameval.events.rejection import REASONS, Rejected
from streameval.events.schema import Event, json_schema

__all__ = ["REASONS", "ActionSets", "DsjsonDecoder", "Event", "EventBatch", "JsonDecoder", "Rejected", "json_schema"]
