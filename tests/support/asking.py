"""Make HTTP clients of a streameval server."""

from __future__ import annotations

from typing import Any

import httpx

NOT_YET = 503


def asking(url: str) -> httpx.Client:
    """Return a client of the server at `url` that ignores the environment's proxies."""
    return httpx.Client(base_url=url, trust_env=False, timeout=60.0)


def report_of(client: httpx.Client) -> dict[str, Any] | None:
    """Return the Report that this server shows, or None before the first one."""
    answer = client.get("/api/v1/report")
    return None if answer.status_code == NOT_YET else dict(answer.raise_for_status().json())
