"""Create a password for Grafana in a directory, unless it exists, for deploy/compose.yaml.

All containers of the project can read it. In production, use your own secret store.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

USER = "streameval"


def make(directory: Path) -> str:
    """Write the password if it is missing, and return it."""
    path = directory / "password"
    if not path.exists():
        path.write_text(secrets.token_urlsafe(12))
    return path.read_text()


if __name__ == "__main__":
    print(f"login for changes in Grafana: {USER} {make(Path(sys.argv[1]))}")
