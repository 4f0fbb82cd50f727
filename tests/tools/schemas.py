"""Write the JSON Schemas in the package from the types of events, rewards, Reports and decisions: `make schemas`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from streameval.events import json_schema, ranking_schema, reward_schema, score_schema
from streameval.ope.report import Report
from streameval.service.decisions import DecisionMessage, VersionMessage
from support.paths import ROOT

SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "event": json_schema,
    "ranking": ranking_schema,
    "reward": reward_schema,
    "candidates": score_schema,
    "report": Report.json_schema,
    "decisions": DecisionMessage.json_schema,
    "versions": VersionMessage.json_schema,
}
"""The function that returns each schema, by the name that `streameval schema` takes."""

if __name__ == "__main__":
    for name, schema in SCHEMAS.items():
        path = ROOT / "streameval" / "config" / "schemas" / f"{name}.json"
        path.write_text(json.dumps(schema(), indent=2) + "\n", encoding="utf-8")
