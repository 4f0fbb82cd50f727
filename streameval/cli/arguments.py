"""Arguments that several verbs share: the configuration, and files of events."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from streameval.cli.terminal import CONFIG_SUFFIXES
from streameval.errors import InputError

EventsFormat = Literal["json", "dsjson", "parquet", "csv"]
DEFAULT_CONFIG = Path("streameval.yaml")
CONFIG_VARIABLE = "STREAMEVAL_CONFIG"
ConfigAndFiles = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE",
        help="The configuration (by default streameval.yaml, or the file that STREAMEVAL_CONFIG names), and then files "
        "of events: NDJSON or CSV (also .gz, .zst) or Parquet; - is stdin.",
        show_default=False,
    ),
]
EVENT_SUFFIXES = (".ndjson", ".jsonl", ".json", ".log", ".csv", ".parquet", ".gz", ".zst")
FormatOfEvents = Annotated[
    EventsFormat | None,
    typer.Option(
        "--format", help="Format of the events. Default: from the file extension, else from the source settings."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def config_and_files(arguments: list[str]) -> tuple[Path, list[str]]:
    """The configuration, which is the first argument unless that is a file of events; and the files of events.

    Raises:
        InputError: There is no file of events.
    """
    first, *others = arguments
    is_config = first.endswith(CONFIG_SUFFIXES) or (others and not first.endswith(EVENT_SUFFIXES) and first != "-")
    late = next((name for name in others if name.endswith(CONFIG_SUFFIXES)), None)
    if late is not None and not is_config:
        raise InputError(f"{first} is a log, not a configuration", hint=f"name the configuration first: {late} {first}")
    if not is_config:
        return Path(os.environ.get(CONFIG_VARIABLE, DEFAULT_CONFIG)), arguments
    if not others:
        hint = "name one after the configuration; `replay FILE --candidates NAMES` needs no configuration"
        raise InputError("no file of events is named", hint=hint)
    return Path(first), others
