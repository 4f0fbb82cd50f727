"""Print the messages of Alertmanager, one line per alert, as a stand-in for a pager (for deploy/compose.yaml)."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

LARGEST = 1 << 20


class Printing(BaseHTTPRequestHandler):
    """Accept every POST with any content."""

    def do_POST(self) -> None:
        """Print the alerts sent to /page or /ticket, the receivers of deploy/alertmanager/alertmanager.yml."""
        size = int(self.headers.get("content-length", 0))
        body = self.rfile.read(min(size, LARGEST))
        for line in lines(self.path, body):
            print(line, flush=True)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Write no access log, because the alerts are enough."""


def lines(path: str, body: bytes) -> list[str]:
    """Return the lines to print for a message."""
    try:
        alerts = json.loads(body)["alerts"]
        return [f"{path} {alert['status']}: {alert['annotations'].get('summary', alert['labels'])}" for alert in alerts]
    except (ValueError, KeyError, TypeError):
        return [f"{path} is not a message of Alertmanager: {body[:200]!r}"]


if __name__ == "__main__":
    ThreadingHTTPServer(("", int(sys.argv[1])), Printing).serve_forever()
