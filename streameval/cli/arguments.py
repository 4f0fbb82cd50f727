"""Declare the arguments and options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from streameval.errors import InputError
from streameval.ingest.files.suffixes import LOG_SUFFIXES

DEFAULT_CONFIG = Path("streameval.yaml")
CONFIG_VARIABLE = "STREAMEVAL_CONFIG"
CONFIG_SUFFIXES = (".yaml", ".yml")
EVENT_SUFFIXES = (*LOG_SUFFIXES, ".json", ".log")

ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", envvar=CONFIG_VARIABLE, help="The configuration.")]
ConfigAndFiles = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE",
        help="The configuration (default: the file in STREAMEVAL_CONFIG, else streameval.yaml), then files of events: "
        "NDJSON or CSV (plain, .gz or .zst), Parquet or Arrow; - is stdin; also s3://, gs://, abfs:// and https://.",
        show_default=False,
    ),
]
Candidates = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="Take these candidates (separated by commas) and the defaults, without a configuration."
    ),
]
EventsFormat = Annotated[
    Literal["json", "dsjson", "parquet", "csv", "arrow"] | None,
    typer.Option(
        "--format", help="Format of the events. Default: from the file extension, else from the source settings."
    ),
]
Multiline = Annotated[
    bool,
    typer.Option("--multiline", help="Cells of CSV hold line breaks: do not warn of rows that take several lines."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed; equal seeds give equal events.")]


def split_config_and_files(arguments: list[str]) -> tuple[Path, list[str]]:
    """Split arguments into the configuration and the files of events.

    The first argument is the configuration unless it looks like a file of events.

    Raises:
        InputError: No file of events is named, or the configuration is not the first argument.
    """
    first, *others = arguments
    is_log = first.endswith(EVENT_SUFFIXES) or first == "-" or "://" in first
    is_config = first.endswith(CONFIG_SUFFIXES) or (others and not is_log)
    late = next((name for name in others if name.endswith(CONFIG_SUFFIXES)), None)
    if late is not None and not is_config:
        raise InputError(f"{first} is a log, not a configuration", hint=f"name the configuration first: {late} {first}")
    if not is_config:
        return Path(os.environ.get(CONFIG_VARIABLE, DEFAULT_CONFIG)), arguments
    if not others:
        hint = "name one after the configuration; `replay FILE --candidates NAMES` needs no configuration"
        raise InputError("no file of events is named", hint=hint)
    return Path(first), others


def candidate_names(candidates: str, file: str) -> list[str]:
    """Split the names of candidates at commas.

    Args:
        candidates: the argument of `--candidates`
        file: the first file, to refuse a configuration

    Raises:
        InputError: No candidate is named, or `file` is a configuration.
    """
    names = [name.strip() for name in candidates.split(",") if name.strip()]
    if not names:
        raise InputError("--candidates names no candidate", hint="e.g. --candidates challenger,even")
    if file.endswith(CONFIG_SUFFIXES):
        hint = f"leave --candidates out, or {file}"
        raise InputError(f"--candidates is for logs without a configuration, and {file} is one", hint=hint)
    return names
