"""Choose the format and the compression of an answer that a client prefers."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping

import zstandard

from streameval.service.metrics import OPENMETRICS, TEXT, TEXT_1, Format

__all__ = ["compressed", "format_of"]

COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "zstd": lambda body: zstandard.ZstdCompressor(level=3).compress(body),
    "gzip": lambda body: gzip.compress(body, compresslevel=1, mtime=0),
}
"""Compressions, the quickest one first."""


def format_of(accept: str) -> Format:
    """Return the format of metrics that an Accept header prefers, `TEXT` if it names none that there is."""
    for kind, parameters in _preferred(accept):
        version = parameters.get("version")
        if kind == "application/openmetrics-text" and version in (None, "1.0.0"):
            return OPENMETRICS
        if kind == "text/plain" and version == "1.0.0":
            return TEXT_1
        if kind in ("text/plain", "text/*", "*/*") and version in (None, "0.0.4"):
            return TEXT
    return TEXT


def compressed(body: bytes, accept_encoding: str) -> tuple[bytes, dict[str, str]]:
    """Return the body in a compression that the client accepts, and the headers that say so."""
    accepted = {name for name, _ in _preferred(accept_encoding)}
    for name, compress in COMPRESSORS.items():
        if name in accepted:
            return compress(body), {"content-encoding": name}
    return body, {}


def _preferred(header: str) -> list[tuple[str, Mapping[str, str]]]:
    """Return the names in a header such as Accept with their parameters, the preferred ones first.

    >>> _preferred("text/plain;version=0.0.4;q=0.5, text/html, image/png;q=0")
    [('text/html', {}), ('text/plain', {'version': '0.0.4', 'q': '0.5'})]
    """
    entries = []
    for entry in header.lower().split(","):
        name, *rest = (part.strip() for part in entry.split(";"))
        parameters = {key.strip(): value.strip().strip('"') for key, _, value in (part.partition("=") for part in rest)}
        try:
            quality = float(parameters.get("q", "1"))
        except ValueError:
            quality = 0.0
        if name and quality > 0.0:
            entries.append((quality, name, parameters))
    return [(name, parameters) for _, name, parameters in sorted(entries, key=lambda entry: -entry[0])]
