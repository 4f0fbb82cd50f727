"""The errors a person may meet, each with a hint about what to do next."""

from __future__ import annotations

__all__ = ["ConfigError", "DamagedError", "InputError", "SourceError", "StateError", "StreamevalError"]


class _ErrorType(type):
    """The type of the errors: `dir` and `help` list their own names, not those of `Exception`."""

    def __dir__(cls) -> list[str]:
        own = (name for base in cls.__mro__ if base.__module__ == __name__ for name in vars(base))
        return [name for name in dict.fromkeys(own) if not name.startswith("_")]


class StreamevalError(Exception, metaclass=_ErrorType):
    """Base of all errors raised on purpose; the command line prints `message` and then `hint: ...`.

    >>> print(StreamevalError("the topic 'clicks' does not exist", hint="create it first").report())
    the topic 'clicks' does not exist
    hint: create it first
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def report(self) -> str:
        """The message and its hint as they are printed."""
        return f"{self.message}\nhint: {self.hint}"


class InputError(StreamevalError):
    """A file, an argument or a column of the user cannot be used. Exit code 2."""

    exit_code = 2


class ConfigError(InputError):
    """The configuration is wrong; the message names each path, the expected and the actual value."""


class StateError(InputError):
    """A state cannot be continued: another schema version, or another configuration."""


class DamagedError(StateError):
    """The content of a state is wrong: it was truncated or changed, or a key, type or shape does not fit."""


class SourceError(StreamevalError):
    """Events cannot be read, and waiting will not help (a topic that lost its offsets, a missing file)."""
