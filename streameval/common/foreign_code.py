"""Run code of the user or of another package. Whatever it raises becomes one kind of error."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from streameval.common.arrays import Array
from streameval.common.text import counted
from streameval.errors import StateError

__all__ = ["CodeError", "foreign_code", "numbers", "pickled", "unpickled"]

MAX_DETAIL = 200  # characters of the message of an exception


class CodeError(Exception):
    """Report that code of the user or of another package has failed."""


@contextmanager
def foreign_code() -> Iterator[None]:
    """Run code of the user or of another package. Whatever it raises becomes one kind of error.

    Only Ctrl-C passes. `sys.exit` and panics of extensions in Rust are no `Exception`, and would end the process.

    Raises:
        CodeError: The code has failed. The message names the exception.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise CodeError(_described(error)) from error


def _described(error: BaseException) -> str:
    text = ""
    with suppress(Exception):  # the text is made by foreign code too
        text = str(error)
    return f"{type(error).__name__}: {text}"[:MAX_DETAIL]


def pickled(made: Any, what: str, hint: str) -> bytes | None:
    """Pickle an object of foreign code, None if there is none.

    Args:
        made: the object
        what: names it in the message
        hint: the remedy

    Raises:
        StateError: The object cannot be pickled.
    """
    try:
        with foreign_code():
            return None if made is None else pickle.dumps(made)
    except CodeError as error:
        raise StateError(f"{what} cannot be saved: {error}", hint=hint) from error


def unpickled(content: bytes | None, what: str, hint: str) -> Any:
    """Invert `pickled`. It runs code, so the caller must trust the content.

    Raises:
        StateError: The object cannot be loaded.
    """
    try:
        with foreign_code():
            return None if content is None else pickle.loads(content)
    except CodeError as error:
        raise StateError(f"{what} cannot be loaded: {error}", hint=hint) from error


def numbers(answer: Any, length: int) -> Array:
    """Return an answer of foreign code as numbers [length].

    Raises:
        CodeError: The answer is not a list of numbers.
        ValueError: It has another length, or more than one dimension. The message says what was found.
    """
    with foreign_code():
        size = len(answer)
        array = np.asarray(answer if size <= length else (), dtype=np.float64)  # a longer one could fill the memory
    if array.ndim > 1:
        raise ValueError(counted(array.ndim, "dimension"))
    if size != length:
        raise ValueError(counted(size, "probability"))
    return array
