"""`python -m streameval_dashboards DIRECTORY` writes one JSON file per dashboard."""

import json
import sys
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from streameval_dashboards import pipeline, policies

UNKNOWN = {"auto", "auto_count", "auto_min", "footer"}
"""Fields that the SDK adds to every variable and table by default, but that Grafana's own types do not have."""


def write(directory: Path) -> None:
    """Write all dashboards, each to a file named after its uid."""
    for board in (policies.dashboard(), pipeline.dashboard()):
        known = _known(json.loads(JSONEncoder().encode(board)))
        (directory / f"{board.uid}.json").write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


def _known(value: Any) -> Any:
    if isinstance(value, list):
        return [_known(each) for each in value]
    if isinstance(value, dict):
        return {key: _known(each) for key, each in value.items() if key not in UNKNOWN}
    return value


if __name__ == "__main__":
    write(Path(sys.argv[1]))
