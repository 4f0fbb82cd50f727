"""Run a schema registry with Confluent's requests and answers, and encode messages with its schemas."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from io import BytesIO
from typing import Any

import fastavro

from support.http_servers import QuietHandler, serving

USER, PASSWORD = "reader", "a-secret"

EVENT_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Decision",
    "fields": [
        {"name": "event_id", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "choice",
            "type": {
                "type": "record",
                "name": "Choice",
                "fields": [{"name": "banner", "type": "string"}, {"name": "probability", "type": "double"}],
            },
        },
        {"name": "reward", "type": ["null", "double"]},
        {"name": "policies", "type": {"type": "map", "values": "double"}},
    ],
}
EVENT_COLUMNS = {"timestamp": "at", "action": "choice.banner", "propensity": "choice.probability"}


def event(number: int, **changes: Any) -> dict[str, Any]:
    choice = {"banner": f"banner {number % 2}", "probability": 0.5}
    record = {"event_id": f"e-{number}", "at": 1_700_000_000_000 + number, "choice": choice, "reward": 1.0}
    return record | {"policies": {"challenger": 0.25}} | changes


def encoded(record: Mapping[str, Any], number: int, schema: Any = EVENT_SCHEMA) -> bytes:
    """Return a message with a record and the id of its schema."""
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), dict(record))
    return b"\0" + number.to_bytes(4, "big") + stream.getvalue()


class Registry(ThreadingHTTPServer):
    """Answer requests for schemas.

    Attributes:
        schemas: Answers by path.
        requests: Paths of all requests.
        refusals: Status and body by path, in place of an answer. A body of None comes byte by byte, without an end.
        needs_login: Whether requests without the login are refused.
        headers: More headers of all answers.
    """

    daemon_threads = True

    def __init__(self, port: int, needs_login: bool) -> None:
        super().__init__(("127.0.0.1", port), _Answers)
        self.needs_login = needs_login
        self.schemas: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.refusals: dict[str, tuple[int, Any]] = {}
        self.headers: dict[str, str] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def clear(self) -> None:
        """Forget all schemas and requests."""
        self.schemas.clear()
        self.requests.clear()
        self.refusals.clear()

    def register(self, number: int, schema: Any = EVENT_SCHEMA, subject: str = "", **more: Any) -> None:
        """Add a schema, as the newest one of a subject if it has one."""
        answer = {"schema": schema if isinstance(schema, str) else json.dumps(schema)} | more
        self.schemas[f"/schemas/ids/{number}"] = answer
        for version in ("latest", "1") if subject else ():
            self.schemas[f"/subjects/{subject}/versions/{version}"] = answer | {"subject": subject, "id": number}


class _Answers(QuietHandler):
    server: Registry

    def end_headers(self) -> None:
        for name, value in self.server.headers.items():
            self.send_header(name, value)
        super().end_headers()

    def do_GET(self) -> None:
        self.server.requests.append(self.path)
        login = f"Basic {b64encode(f'{USER}:{PASSWORD}'.encode()).decode()}"
        schema = self.server.schemas.get(self.path.partition("?")[0])
        code, answer = (200, schema) if schema else (404, {"error_code": 40403, "message": "Schema not found"})
        if self.server.needs_login and self.headers["Authorization"] != login:
            code, answer = 401, {"error_code": 401, "message": "Unauthorized"}
        code, answer = self.server.refusals.get(self.path.partition("?")[0], (code, answer))
        if code // 100 == 3:
            self.send_response(code)
            self.send_header("Location", answer)
            self.end_headers()
        elif answer is None:
            self.answer_slowly(code)
        else:
            self.answer(code, answer, "application/vnd.schemaregistry.v1+json")


@contextmanager
def schema_registry(port: int = 0, *, needs_login: bool = False) -> Iterator[Registry]:
    with serving(Registry(port, needs_login)) as registry:
        yield registry
