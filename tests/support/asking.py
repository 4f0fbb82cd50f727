"""Asking a streameval server over HTTP, as a client does that keeps to its limits."""

from __future__ import annotations

import time
from typing import Any

import httpx

NOT_YET, TOO_OFTEN = 503, 429


class _Patient(httpx.HTTPTransport):
    """Asks again after as long as the server wants to be left alone.

    Tests that wait ask a hundred times a second, which exceeds the limit of a client. The faster the machine,
    the sooner an answer is a refusal, and a refusal has no data.
    """

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """The answer that is none of these refusals."""
        answer = super().handle_request(request)
        while answer.status_code == TOO_OFTEN:
            answer.close()
            time.sleep(float(answer.headers["retry-after"]))
            answer = super().handle_request(request)
        return answer


def asking(url: str, **options: Any) -> httpx.Client:
    """A client of the server at `url`, to which the environment's proxies mean nothing."""
    return httpx.Client(base_url=url, transport=_Patient(), trust_env=False, timeout=60.0, **options)


def report_of(client: httpx.Client) -> dict[str, Any] | None:
    """The Report that this server shows; None before its first."""
    answer = client.get("/api/v1/report")
    return None if answer.status_code == NOT_YET else dict(answer.raise_for_status().json())
