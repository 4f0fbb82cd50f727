"""Turn messages, rows of tables and arrays into an `EventBatch` of columns, or reject them with a reason.

In the order of decoding: `schema` (the types of JSON), `decoder` (also `dsjson` and `records`), `diagnosis` (refused
messages), `columns`, `validation`, and `batch` with its parts `action_sets`, `slates`, `rankings` and `origin`. Tables
enter by `arrow`, arrays by `from_arrays`.

Names are imported at their first use, so that the process of a recommender need not import numpy.
"""

from typing import TYPE_CHECKING

from streameval.common.lazy import lazily

if TYPE_CHECKING:
    from streameval.events.action_sets import ActionSets, RawFields
    from streameval.events.batch import EventBatch, RewardBatch
    from streameval.events.decoder import JsonDecoder, RankingDecoder, RewardDecoder
    from streameval.events.dsjson import DsjsonDecoder
    from streameval.events.origin import Origin, fingerprints
    from streameval.events.rankings import ranking_schema
    from streameval.events.schema import Event, json_schema, reward_schema, score_schema
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
    "RankingDecoder",
    "RewardBatch",
    "RewardDecoder",
    "fingerprints",
    "json_schema",
    "reward_schema",
    "score_schema",
    "ranking_schema",
]

if not TYPE_CHECKING:
    __getattr__ = lazily(
        globals(),
        __all__,
        (
            "schema",
            "validation",
            "origin",
            "action_sets",
            "batch",
            "decoder",
            "dsjson",
            "rankings",
        ),
    )
