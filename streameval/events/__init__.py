"""Events: messages, rows of tables or arrays become an `EventBatch` of columns, or are `Rejected` with a reason.

In the order of decoding: `schema` (the types of the JSON), `decoder` (and `dsjson`), `diagnosis` (refused messages),
`columns`, `validation`, `batch` with its parts `action_sets`, `slates` and `origin`. Arrays enter by `from_arrays`.
"""

from streameval.events.action_sets import ActionSets, RawFields
from streameval.events.batch import EventBatch, RewardBatch
from streameval.events.decoder import JsonDecoder, RewardDecoder, Table
from streameval.events.dsjson import DsjsonDecoder
from streameval.events.origin import Origin, fingerprints
from streameval.events.schema import Event, json_schema
from streameval.events.validation import REASONS, Fault, Rejected

__all__ = [
    "REASONS",
    "ActionSets",
    "DsjsonDecoder",
    "Event",
    "EventBatch",
    "Fault",
    "JsonDecoder",
    "Rejected",
    "RawFields",
    "Origin",
    "RewardBatch",
    "RewardDecoder",
    "Table",
    "fingerprints",
    "json_schema",
]
