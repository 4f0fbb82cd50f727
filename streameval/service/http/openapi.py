"""Describe the HTTP API as OpenAPI 3.1, with the types of its answers."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import msgspec

from streameval.ope.report import Report
from streameval.service.http.history import HistoryAnswer
from streameval.service.status import own_version

__all__ = ["document"]

ERROR = {
    "type": "object",
    "properties": {"error": {"type": "string"}, "reason": {"type": "string"}},
    "required": ["error"],
}
TEXT = {"type": "string"}
NAMES = {"type": "array", "items": TEXT}
MOMENT = {"anyOf": [{"type": "number"}, {"type": "string", "format": "date-time"}]}


@cache
def document() -> bytes:
    """Return the description as JSON."""
    types, components = msgspec.json.schema_components(
        [Report, HistoryAnswer], ref_template="#/components/schemas/{name}"
    )
    for component in components.values():
        component["description"] = inspect.cleandoc(component["description"])
    report, history = types
    live, ready, reloaded = (_object(**{name: "boolean", "reason": "string"}) for name in ("live", "ready", "reloaded"))
    healthy = _object(healthy="boolean", seconds_since_last_turn="number")
    paths = {
        "/livez": _probe("Tell whether the loop turns and the source is read. If not, restart the process.", live),
        "/healthz": _probe("Tell whether the loop turns.", healthy),
        "/readyz": _probe("Tell whether the source answers and there is a Report.", ready),
        "/api/v1/report": _get(
            "Return the newest Report. The header `streameval-left-out` counts candidates that it lacks.",
            {200: _json(report), 503: _json(ERROR, "no Report yet")},
            _parameter("policy", NAMES, "Candidates to show."),
            _parameter("top", TEXT, "How many of the best to show, or `all`. By default all of up to 1,000, else 100."),
        ),
        "/api/v1/history": _get(
            "Return estimates and decisions of the last hours. Points are further apart the longer the time is.",
            {200: _json(history), 400: _json(ERROR, "no time")},
            _parameter("policy", NAMES, "Policies to return, by default all."),
            _parameter("from", MOMENT, "First moment, in epoch seconds or as ISO 8601."),
            _parameter("to", MOMENT, "Last moment."),
        ),
        "/metrics": _get(
            "Return the metrics for Prometheus.",
            {200: _answer("text/plain", TEXT, other="application/openmetrics-text")},
            _parameter("policy", NAMES, "Policies to show, by default production and the first 1,000 candidates."),
            _parameter("top", TEXT, "How many of the best candidates to show, or `all`."),
        ),
        "/openapi.json": _get("Return this description.", {200: _json({"type": "object"})}),
        "/": _get(
            "Return the status page.",
            {200: _answer("text/html", TEXT)},
            _parameter("policy", TEXT, "The only candidate to show."),
            _parameter("top", TEXT, "How many of the best candidates to show, 100 by default, or `all`."),
        ),
        "/live": _get(
            "Stream a server-sent event for each change of what is published.",
            {200: _answer("text/event-stream", TEXT), 503: _text("too many open streams")},
        ),
        "/-/reload": {
            "post": {
                "summary": "Reload the configuration.",
                "responses": _answers(
                    {
                        200: _json(reloaded),
                        202: _json(reloaded, "not ended yet"),
                        403: _json(reloaded, "no token is set"),
                        409: _json(reloaded, "the configuration is refused"),
                    }
                ),
            }
        },
    }
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {"title": "streameval", "version": own_version()},
            "security": [{"token": []}, {}],
            "paths": paths,
            "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        }
    )


def _object(**kinds: str) -> dict[str, Any]:
    """Return the schema of an object with these required fields."""
    properties = {name: {"type": kind} for name, kind in kinds.items()}
    return {"type": "object", "properties": properties, "required": [*kinds]}


def _answer(media: str, schema: Any, description: str = "OK", other: str = "") -> dict[str, Any]:
    content = {name: {"schema": schema} for name in (media, other) if name}
    return {"description": description, "content": content}


def _json(schema: Any, description: str = "OK") -> dict[str, Any]:
    return _answer("application/json", schema, description)


def _text(description: str) -> dict[str, Any]:
    return _answer("text/plain", TEXT, description)


def _answers(answers: dict[int, Any]) -> dict[str, Any]:
    """Return answers by status, with the one to a request without the token that the daemon needs."""
    return {str(status): answer for status, answer in ({401: _text("authentication required")} | answers).items()}


def _parameter(name: str, schema: Any, description: str) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": description, "schema": schema}


def _get(summary: str, answers: dict[int, Any], *parameters: Any) -> dict[str, Any]:
    return {"get": {"summary": summary, "parameters": parameters, "responses": _answers(answers)}}


def _probe(summary: str, schema: Any) -> dict[str, Any]:
    """Return a path that needs no token."""
    answers = {"200": _json(schema), "503": _json(schema, "no")}
    return {"get": {"summary": summary, "security": [{}], "responses": answers}}
