"""Makes a token for programs and a login for people in a directory, unless they are there: for deploy/compose.yaml.

`token` is for Prometheus, `users` for streameval, `password` for Grafana. All containers of this machine's compose
project may read them; in production, secrets come from where yours are kept.
"""

from __future__ import annotations

import secrets
import sys
from pathlib import Path

from streameval.service.http.auth import PasswordHash

USER = "streameval"


def make(directory: Path) -> str:
    """Write what is missing; the password."""
    known = directory / "password"
    if not known.exists():
        password = secrets.token_urlsafe(12)
        (directory / "token").write_text(f"{secrets.token_hex(32)}\n")
        (directory / "users").write_text(f"{USER}:{PasswordHash.of(password)}\n")
        known.write_text(password)  # last: whoever finds it finds all
    return known.read_text()


if __name__ == "__main__":
    print(f"login for the status page and for Grafana: {USER} {make(Path(sys.argv[1]))}")
