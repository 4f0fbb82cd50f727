"""Configure where metrics are pushed over OTLP."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Self

from pydantic import Field, SecretStr, model_validator

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
