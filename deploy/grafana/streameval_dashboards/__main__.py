"""`python -m streameval_dashboards DIRECTORY` writes one JSON file a dashboard."""

import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from streameval_dashboards import pipeline, policies


def write(directory: Path) -> None:
    """All dashboards, each to a file that has its uid as name."""
    encoder = JSONEncoder(indent=2, sort_keys=True)
    for board in (policies.dashboard(), pipeline.dashboard()):
        (directory / f"{board.uid}.json").write_text(encoder.encode(board) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
