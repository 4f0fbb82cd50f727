"""What the command line shares with no verb in particular: how it prints, and how it ends."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
import typer.core
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from streameval.errors import StreamevalError

INTERRUPTED = 130
WIDTH_OF_FILES = 160


class Verbs(typer.core.TyperGroup):
    """The verbs, none of which complains when its reader leaves or when it is interrupted."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb that was asked for."""
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader has gone, as `head` does; Python must not complain about it while it shuts down.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except KeyboardInterrupt:
            say("interrupted\nhint: what was written so far is incomplete")
            raise typer.Exit(INTERRUPTED) from None
        return result


def run_app(app: typer.Typer) -> NoReturn:
    """Run a verb; every error becomes words, a hint and an exit code."""
    try:
        code = app(prog_name="streameval", standalone_mode=False)
    except StreamevalError as error:
        code = _fail(error.report(), error.exit_code)
    except typer.TyperException as error:
        verb = getattr(getattr(error, "ctx", None), "command_path", "streameval")
        code = _fail(f"{error.format_message()}\nhint: `{verb} --help` shows how it is used", error.exit_code)
    except Exception:  # noqa: BLE001 - the last place that can say anything
        traceback.print_exc()
        code = _fail("this is a fault in streameval\nhint: please report it, with the lines above", 1)
    sys.exit(code or 0)


def say(line: str) -> None:
    """A line for people, on stderr."""
    sys.stderr.write(f"{line}\n")


def console() -> Console:
    """Stdout; where it is no terminal, wide enough that nothing is cut."""
    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=WIDTH_OF_FILES)


@contextmanager
def progress_of_bytes() -> Iterator[Callable[[int, int | None], None]]:
    """A bar on stderr, told the bytes read and their total; none where nobody looks at a terminal."""
    terminal = Console(stderr=True)
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        task = progress.add_task("", total=None)
        yield lambda read, total: progress.update(task, completed=read, total=total)


def _fail(report: str, code: int) -> int:
    say(f"error: {report}")
    return code
