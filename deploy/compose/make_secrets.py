"""Create a token for programs and a login for people in a directory, unless they exist: for deploy/compose.yaml.

`token` is for Prometheus, `users` for streameval, `password` for Grafana. All containers of this compose project may
read them; in production, use your own secret store.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from streameval.service.http.auth import hash_password

USER = "streameval"


def make(directory: Path) -> str:
    """Write missing files; return the password."""
    known = directory / "password"
    if not known.exists():
        password = secrets.token_urlsafe(12)
        (directory / "token").write_text(f"{secrets.token_hex(32)}\n")
        (directory / "users").write_text(f"{USER}:{hash_password(password)}\n")
        known.write_text(password)  # last: if this file exists, all files exist
    return known.read_text()


if __name__ == "__main__":
    print(f"login for the status page and for Grafana: {USER} {make(Path(sys.argv[1]))}")
