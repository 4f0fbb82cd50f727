"""Write one JSON file per dashboard: `python -m streameval_dashboards DIRECTORY`."""

import json
import sys
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from streameval_dashboards import pipeline, policies

UNKNOWN = {"auto", "auto_count", "auto_min", "footer"}
"""Fields that the SDK adds to every variable and table by default. Grafana's own types lack them."""


def write(directory: Path) -> None:
    """Write all dashboards, each to a file named after its uid."""
    for board in (policies.dashboard(), pipeline.dashboard()):
        content = _drop_unknown(json.loads(JSONEncoder().encode(board)))
        (directory / f"{board.uid}.json").write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def _drop_unknown(value: Any) -> Any:
    if isinstance(value, list):
        return [_drop_unknown(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _drop_unknown(entry) for key, entry in value.items() if key not in UNKNOWN}
    return value


if __name__ == "__main__":
    write(Path(sys.argv[1]))
