"""Raise errors that a person may meet, each with a hint about what to do next."""

from __future__ import annotations

import re

__all__ = [
    "ConfigError",
    "DamagedError",
    "InputError",
    "SourceError",
    "StateError",
    "StreamevalError",
    "missing_package",
    "without_secrets",
]

QUERY = re.compile(r"(://[^\s?'\"<>\\]*\?)[^\s'\"<>\\]+")
LOGIN = re.compile(r"(https?://|://(?=[^\s/?#@'\"<>\\]*:))[^\s/?#'\"<>\\]*@", re.IGNORECASE)
"""What stands before the host: any user of a web server, else a user with a password."""


def without_secrets(text: str) -> str:
    """Hide queries and logins of addresses in a text: the queries of signed addresses are as good as passwords.

    >>> without_secrets("https://store/log.csv?sig=s3cret does not exist")
    'https://store/log.csv?*** does not exist'
    """
    return LOGIN.sub(r"\1***@", QUERY.sub(r"\1***", text)) if "://" in text else text


class StreamevalError(Exception):
    """Represent any error that is raised on purpose. The command line prints `message` and then `hint: ...`.

    >>> print(StreamevalError("the topic 'clicks' does not exist", hint="create it first").report())
    the topic 'clicks' does not exist
    hint: create it first
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str) -> None:
        self.message, self.hint = without_secrets(message), without_secrets(hint)
        super().__init__(self.message)
        self.add_note(f"hint: {self.hint}")  # which a traceback and a notebook show

    def report(self) -> str:
        """Return the message and its hint as they are printed."""
        return f"{self.message}\nhint: {self.hint}"


class InputError(StreamevalError):
    """Report a file, an argument or a column of the user that cannot be used. The exit code is 2."""

    exit_code = 2


class ConfigError(InputError):
    """Report a wrong configuration. The message names each path, the expected and the actual value."""


class StateError(InputError):
    """Report a state that cannot be continued, because its schema or its configuration is another one."""


class DamagedError(StateError):
    """Report a damaged state: it was truncated or changed, or a key, type or shape does not fit."""


class SourceError(StreamevalError):
    """Report that events cannot be read, and that waiting will not help, e.g. after a topic has lost its offsets."""


def missing_package(user: str, package: str, extra: str) -> InputError:
    """Return the error about a package of an extra that something needs.

    Args:
        user: what needs the package, such as a format
        package: the package
        extra: the extra of streameval that installs it
    """
    return InputError(f"{user} needs {package}, which is not installed", hint=f"pip install 'streameval[{extra}]'")
