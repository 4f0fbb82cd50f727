"""Share output, progress, errors and exit codes between commands."""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import typer
import typer.core

from streameval.errors import InputError, StreamevalError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

    from streameval.config.model import Config

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells and typer have it."""
MIN_FILE_WIDTH = 200
"""Characters per line if stdout is not a terminal: enough for every table."""
REMOVED_COMMANDS = {
    "broker": ("`broker` is now `demo --broker-only`", "run `streameval demo --broker-only`"),
    "hash-password": (
        "`hash-password` is gone: logins are a reverse proxy's",
        "see deploy/operate.md for recipes; programs log in with a bearer token (http.token_file)",
    ),
}
"""Message and hint for each command of earlier versions."""
PLAIN = str.maketrans(
    {"–": "-", "─": "-", "…": "...", "±": "+-", "·": "|", "•": "*", "×": "x", "→": "->", "\u00a0": " "}
)
"""What stands in for our own characters on a terminal that lacks them. Others are written as in JSON, e.g. \\u4e2d."""


class Commands(typer.core.TyperGroup):
    """Name the successor of a removed command, and end quietly if the reader of stdout has left."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command that the first argument names.

        Raises:
            InputError: The command was removed.
        """
        if args and args[0] in REMOVED_COMMANDS:
            message, hint = REMOVED_COMMANDS[args[0]]
            raise InputError(message, hint=hint)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            InputError: The disk of stdout is full. Such an error names no file.
            typer.Exit: The command ended with an exit code other than 0.
        """
        code = 0
        try:
            try:
                super().invoke(ctx)
            except typer.Exit as ending:
                code = ending.exit_code
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has left, as `head` does
            _close_stdout()
        except OSError as error:
            if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                raise
            _close_stdout()
            hint = "free some space, or write elsewhere; what was written so far is incomplete"
            raise InputError(f"the output cannot be written: {error.strerror}", hint=hint) from error
        if code:
            raise typer.Exit(code)


def _close_stdout() -> None:
    """Write to nowhere from now on: Python flushes stdout again at exit, and must not fail then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run_app(app: typer.Typer) -> NoReturn:
    """Run a command, print every error as a sentence with a hint, and exit with its code."""
    failure = ""
    accept_every_character()
    try:
        code = app(prog_name="streameval", standalone_mode=False) or 0
    except StreamevalError as error:
        failure, code = error.report(), error.exit_code
    except typer.TyperException as error:
        command = getattr(getattr(error, "ctx", None), "command_path", "streameval")
        failure, code = f"{error.format_message()}\nhint: `{command} --help` shows how it is used", error.exit_code
    except Exception:  # noqa: BLE001 - the last handler
        traceback.print_exc()
        failure, code = "this is a bug in streameval\nhint: please report it, with the lines above", 1
    if failure:
        say(f"error: {failure}")
    elif code == INTERRUPTED:
        say("interrupted\nhint: what was written so far is incomplete")
    sys.exit(code)


def accept_every_character() -> None:
    """Let stdout and stderr write every character, whatever their encoding."""
    codecs.register_error("streameval", _in_plain_characters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="streameval")


def _in_plain_characters(error: UnicodeError) -> tuple[str, int]:
    """Return what to write in place of the characters that an encoding lacks, and where to continue."""
    assert isinstance(error, UnicodeEncodeError)
    plain = error.object[error.start : error.end].translate(PLAIN)
    return plain.encode("ascii", "backslashreplace").decode("ascii"), error.end


def say(line: str) -> None:
    """Write a line to stderr."""
    sys.stderr.write(f"{line}\n")


def warning(message: str, hint: str) -> str:
    """Return a warning and what to do about it, as lines."""
    return f"warning: {message}\nhint: {hint}"


def warn(config: Config) -> None:
    """Warn about settings that are probably mistakes."""
    for problem in (*config.memory_warnings(), *config.doubts()):
        say(warning(problem.text(), problem.hint))


def silence_logs() -> None:
    """Drop all log messages: only the daemon logs, other commands print their errors."""
    from streameval.service.logging import configure_logging

    configure_logging("critical")


def console() -> Console:
    """Return a console on stdout, wide enough for every table unless stdout is a terminal."""
    from rich.console import Console

    terminal = Console(highlight=False)
    return terminal if terminal.is_terminal else Console(highlight=False, width=MIN_FILE_WIDTH)


@contextmanager
def progress_bar(*columns: ProgressColumn) -> Iterator[Progress]:
    """Show a progress bar on stderr if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    terminal = Console(stderr=True)
    with Progress(*columns, console=terminal, transient=True, disable=not terminal.is_terminal) as progress:
        yield progress


@contextmanager
def progress_of_bytes() -> Iterator[Callable[[int, int | None], None]]:
    """Show how much of the files has been read.

    Yields:
        A function that takes the bytes read and the total, None if unknown.
    """
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

    with progress_bar(TextColumn("reading"), BarColumn(), DownloadColumn(), TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=None)
        yield lambda read, total: progress.update(task, completed=read, total=total)
