"""Parts that all verbs share: output, progress, errors and exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import typer
import typer.core

from streameval.errors import StreamevalError

if TYPE_CHECKING:
    from rich.console import Console

    from streameval.config.model import Config

INTERRUPTED = 130
WIDTH_OF_FILES = 200
CONFIG_SUFFIXES = (".yaml", ".yml")


class Verbs(typer.core.TyperGroup):
    """Ends every verb quietly when the reader of its output leaves, and with a message on Ctrl-C."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb that was asked for.

        Raises:
            typer.Exit: The verb failed; the error has been printed.
        """
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader left, as `head` does: Python must not fail again when it flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            say("interrupted\nhint: what was written so far is incomplete")
            raise typer.Exit(INTERRUPTED) from None
        return result


def run_app(app: typer.Typer) -> NoReturn:
    """Run a verb; every error becomes words, a hint and an exit code."""
    failure = ""
    try:
        code = app(prog_name="streameval", standalone_mode=False) or 0
    except StreamevalError as error:
        failure, code = error.report(), error.exit_code
    except typer.TyperException as error:
        verb = getattr(getattr(error, "ctx", None), "command_path", "streameval")
        failure, code = f"{error.format_message()}\nhint: `{verb} --help` shows how it is used", error.exit_code
    except Exception:  # noqa: BLE001 - the last handler
        traceback.print_exc()
        failure, code = "this is a bug in streameval\nhint: please report it, with the lines above", 1
    if failure:
        say(f"error: {failure}")
    sys.exit(code)


def say(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{line}\n")


def console() -> Console:
    """A rich console on stdout; if that is not a terminal, wide enough that nothing is cut."""
    from rich.console import Console

    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=WIDTH_OF_FILES)


@contextmanager
def progress_of_bytes() -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar on stderr if that is a terminal; call it with the bytes read and their total (None: unknown)."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    terminal = Console(stderr=True)
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        task = progress.add_task("", total=None)
        yield lambda read, total: progress.update(task, completed=read, total=total)


def warn(config: Config) -> None:
    """Warn of settings that are probably not meant.

    Raises:
        ConfigError: Its state takes more than all of the memory.
    """
    for warning in (*config.memory_warnings(), *config.without_effect()):
        say(f"warning: {warning}")
