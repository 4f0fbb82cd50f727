"""Configure the engine that evaluates events on executors, for more events than one process can take."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Literal

from pydantic import Field, PositiveInt

from streameval.common.component import StrictModel
from streameval.common.problems import Problem, expecting, objections
from streameval.common.text import Seconds
from streameval.ingest.base import SourceSettings
from streameval.ingest.kafka.settings import KafkaSettings
from streameval.ope.evaluator.config import EvaluatorConfig
from streameval.ope.evaluator.summaries import require_halves


class SparkSettings(StrictModel):
    """Configure Apache Spark: this process is the driver, and reads no message itself."""

    kind: Literal["spark"] = "spark"
    master: str | None = Field(
        None,
        pattern=r"^(yarn$|local|spark://|k8s://)",
        description="where executors run: local[4] for four processes here, spark://HOST:PORT, yarn, k8s://URL; null: "
        "as spark-submit says",
    )
    trigger: Seconds = Field(5.0, description="time between the starts of two batches, or more, e.g. 5s")
    most_per_partition: PositiveInt = Field(
        200_000, description="offsets of a partition that one batch takes at most; limits memory of executors"
    )
    options: dict[str, bool | int | float | str] = Field(
        {}, description="more options of Spark by its own names, e.g. {spark.executor.memory: 2g}"
    )


def engine_as_mapping(value: object) -> object:
    """Return `spark:local[4]` as a mapping of options, and other values unchanged.

    >>> engine_as_mapping("spark:local[4]")
    {'kind': 'spark', 'master': 'local[4]'}
    """
    if not isinstance(value, str):
        return None if value is False else value
    kind, _, master = value.partition(":")
    return None if kind == "off" else {"kind": kind} | ({"master": master} if master else {})


def engine_variables(text: str) -> dict[str, str]:
    """Return `spark:local[4]` of the command line as variables of the environment, which change only what they name."""
    options: Any = engine_as_mapping(text)
    return {f"STREAMEVAL_ENGINE__{key.upper()}": value for key, value in options.items()}


def engine_problems(
    source: SourceSettings | None, evaluator_config: EvaluatorConfig | None, *, decides: bool
) -> Iterator[Problem]:
    """Yield the settings that do not fit an engine, each with a remedy.

    Args:
        source: where events come from
        evaluator_config: what executors are to compute, None if it is not known
        decides: whether the configuration has decisions
    """
    if not isinstance(source, KafkaSettings):
        hint = "executors read ranges of offsets of a topic: leave engine out"
        yield Problem(("source", "kind"), expecting("'kafka', because there is an engine", "another source"), hint)
        return
    if source.rewards is not None:
        hint = "join rewards before they are written to the topic, or leave engine out: no executor sees both topics"
        yield Problem(("source", "rewards"), expecting("nothing next to engine", "a topic of rewards"), hint)
    if source.candidates is not None:
        hint = "join scores before they are written to the topic, or leave engine out: no executor sees both topics"
        message = expecting("nothing next to engine", "a topic of candidates")
        yield Problem(("source", "candidates"), message, hint)
    if source.duplicates:
        hint = "remove copies before they reach the topic, or leave engine out: no executor sees all copies of an event"
        yield Problem(("source", "duplicates"), expecting("'off' next to engine", f"{source.duplicates}"), hint)
    if source.order == "event_time":
        hint = "write order: arrival; blocks are folded by the time of their last events"
        yield Problem(("source", "order"), expecting("'arrival' next to engine", "'event_time'"), hint)
    if decides:
        yield Problem(("decisions",), expecting("nothing next to engine", "a topic"), "leave decisions or engine out")
    if evaluator_config is not None:
        yield from objections(partial(require_halves, evaluator_config), "engine")
