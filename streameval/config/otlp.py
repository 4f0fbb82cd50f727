"""Configure where metrics are pushed over OTLP."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from streameval.common.component import StrictModel
from streameval.common.text import Seconds

PATH = "/v1/metrics"


class OtlpSettings(StrictModel):
    """Push the metrics to a receiver of OpenTelemetry, by OTLP over HTTP."""

    endpoint: str = Field(
        pattern="^https?://",
        description="the address of the receiver, e.g. http://localhost:4318; /v1/metrics is added",
    )
    interval: Seconds = Field(15.0, description="time between two pushes, e.g. 15s")
    headers: dict[str, SecretStr] = Field({}, description="headers of each request, e.g. {authorization: Bearer ...}")

    @field_validator("endpoint")
    @classmethod
    def _is_an_address(cls, endpoint: str) -> str:
        if not urlsplit(endpoint).hostname:
            raise ValueError("the address has no host, e.g. http://localhost:4318")
        if "?" in endpoint or "#" in endpoint:
            raise ValueError("the address has a query or a fragment: pass tokens in headers")
        return endpoint

    @model_validator(mode="after")
    def _is_installed(self) -> Self:
        try:
            is_installed = find_spec("opentelemetry.exporter.otlp.proto.http") is not None
        except ModuleNotFoundError:  # a package above it is missing, too
            is_installed = False
        if not is_installed:
            raise ValueError("otlp requires a package that is not installed: pip install 'streameval[otlp]'")
        return self

    @property
    def url(self) -> str:
        """Return the address that metrics are sent to."""
        return f"{self.endpoint.rstrip('/').removesuffix(PATH)}{PATH}"
