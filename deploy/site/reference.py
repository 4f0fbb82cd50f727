"""Make the pages of the reference from models, schemas, metrics, alerts, the command line and `__all__`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from inspect import cleandoc, isclass, isroutine
from pathlib import Path
from types import ModuleType
from typing import Any

import options
import typer
import yaml
from values import described_type, markdown, prose, table

import streameval
from streameval.cli.app import app
from streameval.service.metrics import METRICS, SECTIONS

SCHEMAS = {
    "event": "Event",
    "ranking": "Ranking",
    "reward": "Reward",
    "decisions": "Transition of a promotion rule",
    "versions": "Frozen copy",
}
PARTS = (
    "errors",
    "event_logger",
    "events",
    "simulation",
    "ope.core",
    "ope.core.bank",
    "ope.core.base",
    "ope.core.layout",
    "ope.core.past",
    "ope.core.summary",
    "ope.estimators",
    "ope.evaluator.grid",
    "ope.evidence",
    "ope.evidence.largest_weights",
    "ope.intervals",
    "ope.intervals.empirical_likelihood",
    "ope.intervals.sequences",
    "ope.promotion",
    "ope.report",
    "ope.reward_models",
)
"""Modules below `streameval` with public names of their own, for those who extend it."""
FIRST_METRICS = ("promotion", "estimates")
"""Sections of metrics.toml that answer which candidate is better, and by how much."""
GROUPS = {
    "Evaluate": ("cli.compare", "ope.evaluator", "ope.report", "ingest.files.reading"),
    "Events": ("events", "event_logger"),
    "Estimators": ("ope.estimators", "ope.evidence"),
    "Averages": ("ope.core",),
    "Intervals": ("ope.intervals",),
    "Reward models": ("ope.reward_models",),
    "Candidates as code": ("ope.policies",),
    "Candidates that learn": ("ope.learning",),
    "Promotion": ("ope.promotion",),
    "Errors": ("errors",),
}
"""Headings of the Python reference, and the packages with the names below them."""


def pages(root: Path) -> dict[str, str]:
    """Return every page by its path."""
    return {
        "reference/configuration.md": options.page(root / "streameval" / "config" / "streameval.yaml"),
        "reference/cli.md": commands(),
        "reference/metrics.md": metrics(),
        "reference/events.md": events(root / "streameval" / "config" / "schemas"),
        "reference/report.md": report(root / "streameval" / "config" / "schemas"),
        "reference/runbooks.md": runbooks(root / "deploy" / "prometheus" / "rules" / "alerts.yml"),
        "reference/python.md": python_names(),
        "reference/parts.md": parts(),
    }


def commands() -> str:
    """Describe each command: its help, its arguments and its options."""
    text = ["# Command line", f"`streameval --help`: {app.info.help}"]
    registered: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in registered.items():
        context = typer.Context(command, info_name=f"streameval {name}")
        usage = " ".join(command.collect_usage_pieces(context))
        records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
        rows = [(f"`{names}`", markdown(description)) for names, description in filter(None, records)]
        text += [f"## streameval {name}", cleandoc(command.help), f"```text\nstreameval {name} {usage}\n```"]
        text.append(table(("argument or option", "description"), rows))
    return "\n\n".join(text) + "\n"


def metrics() -> str:
    """Describe all metrics, one table per section of metrics.toml, the ones about decisions first."""
    text = ["# Metrics", "`GET /metrics` has these families, and families of the process (`process_`, `python_`)."]
    text.append("A value that is not known is absent. [How to read them](../deploy/reference.md#metrics).")
    for section in dict.fromkeys((*FIRST_METRICS, *METRICS)):
        families, labels = METRICS[section], SECTIONS[section][0]
        rows = [(f"`{name}`", kind_of(name), markdown(help_text)) for name, (_, help_text) in families.items()]
        named = ", ".join(f"`{label}`" for label in labels) or "none"
        text += [f"## {section.replace('_', ' ').capitalize()}", f"Labels: {named}."]
        text.append(table(("metric", "type", "description"), rows))
    return "\n\n".join(text) + "\n"


def kind_of(metric: str) -> str:
    """Return the type of a family, as `streameval.service.metrics` derives it."""
    if metric.endswith("_total"):
        return "counter"
    if metric.endswith("_info"):
        return "info"
    return "histogram" if metric in {"streameval_event_delay_seconds", "streameval_batch_duration_seconds"} else "gauge"


def events(directory: Path) -> str:
    """Describe the wire formats in tables, from their JSON Schemas."""
    text = ["# Events and rewards"]
    text.append(
        "`streameval schema NAME` prints these as JSON Schema. [How to log](../examples/recommender/README.md)."
    )
    for name, title in SCHEMAS.items():
        schema = json.loads((directory / f"{name}.json").read_text())
        text += [f"## {title}", f"`streameval schema {name}`.", *objects(schema)]
    return "\n\n".join(text) + "\n"


def report(directory: Path) -> str:
    """Describe the fields of a Report."""
    schema = json.loads((directory / "report.json").read_text())
    text = [
        "# Report",
        "`Evaluator.report()` returns it. `streameval replay --json` and `/api/v1/report` are its JSON.",
    ]
    text.append("In Python: [`Report`](python.md#streameval.Report) and [`Estimate`](python.md#streameval.Estimate).")
    return "\n\n".join([*text, *objects(schema)]) + "\n"


def objects(schema: dict[str, Any], names: dict[str, str] | None = None) -> Iterator[str]:
    """Yield the tables of a schema and of the objects that it contains."""
    if description := schema.get("description"):
        yield prose(description)
    if "properties" in schema:
        names = names or {name: f"[{name}](#{name.lower()})" for name in schema.get("$defs", {})}
        required = set(schema.get("required", ()))
        rows = [
            (
                f"`{key}`",
                described_type(field, names),
                "required" if key in required else "",
                markdown(field.get("description", "")),
            )
            for key, field in schema["properties"].items()
        ]
        yield table(("field", "type", "", "description"), rows)
    for name, definition in schema.get("$defs", {}).items():
        yield f"### {name}"
        yield from objects(definition, names)


def runbooks(rules: Path) -> str:
    """List all alerts with their severity and links to their runbooks."""
    groups = yaml.safe_load(rules.read_text())["groups"]
    alerts = [rule for group in groups for rule in group["rules"] if "alert" in rule]
    rows = [
        (
            f"[{rule['alert']}](../deploy/runbooks/{rule['alert']}.md)",
            rule["labels"]["severity"],
            markdown(re.sub(r"\{\{ *\$(?:labels\.)?(\w+).*?\}\}", r"\1", rule["annotations"]["summary"])),
        )
        for rule in sorted(alerts, key=lambda rule: str(rule["alert"]))
    ]
    head = "# Runbooks\n\nA runbook for each alert: its meaning, where to look, what to do, and when to ignore it.\n\n"
    return head + table(("alert", "severity", "summary"), rows) + "\n"


def python_names() -> str:
    """List the names of `streameval.__all__` by subject."""
    text = ["# Python", "```pycon\n>>> import streameval as se\n```"]
    text.append(
        "These are the names of `streameval`. [Parts of the package](parts.md) has the public names of its packages."
    )
    homes = {name: getattr(streameval, name).__module__.removeprefix("streameval.") for name in streameval.__all__}
    for title, packages in GROUPS.items():
        own = [
            name for name, home in homes.items() if f"{home}.".startswith(tuple(f"{package}." for package in packages))
        ]
        text += [f"## {title}", *(f"::: streameval.{name}" for name in own)]
        homes = {name: home for name, home in homes.items() if name not in own}
    assert not homes, f"GROUPS lacks the packages of {homes}"
    return "\n\n".join(text) + "\n"


def parts() -> str:
    """List the names in `__all__` of packages inside `streameval`, by module."""
    text = ["# Parts of the package"]
    text.append("For those who extend streameval or use its parts alone: public names that `streameval` itself lacks.")
    for module in PARTS:
        loaded = import_module(f"streameval.{module}")
        values = {name: getattr(loaded, name) for name in loaded.__all__ if name not in streameval.__all__}
        documented = [name for name, value in values.items() if isclass(value) or isroutine(value)]
        others = [(f"`{name}`", content(value)) for name, value in values.items() if name not in documented]
        text += [f"## streameval.{module}", summary(loaded), table(("name", "value"), others)]
        text += [f"::: streameval.{module}.{name}" for name in documented]
    return "\n\n".join(text) + "\n"


def content(value: object) -> str:
    """Describe a constant by its value or its kind."""
    if isinstance(value, ModuleType):
        return f"[module](#{value.__name__.replace('.', '')})"
    shown = repr(value)
    return (
        f"`{shown}`" if len(shown) <= 100 else "a type alias" if "Annotated" in shown or "[" in shown else "a constant"
    )


def summary(module: ModuleType) -> str:
    """Return the first paragraph of the docstring."""
    return cleandoc(module.__doc__ or "").partition("\n\n")[0]
