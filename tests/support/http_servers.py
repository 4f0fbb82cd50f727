"""Run HTTP servers in a thread for as long as a test needs them, without output."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TypeVar

Server = TypeVar("Server", bound=HTTPServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Run the server until the end of the block, and close it then."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class QuietHandler(BaseHTTPRequestHandler):
    """Answer requests without a line in the output of tests."""

    def answer(self, code: int, body: object, content_type: str = "application/json") -> None:
        """Send bytes as they are, and any other value as JSON."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def answer_slowly(self, code: int) -> None:
        """Send byte after byte until the client gives up."""
        self.send_response(code)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b" ")
                time.sleep(0.01)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the output of tests short."""
