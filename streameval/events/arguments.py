"""Check the arguments with which Python reads events. Each refusal names the argument and what was found."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, NoReturn

from streameval.common.problems import Problem, ProblemsError, expecting, shown
from streameval.events.segments import SegmentField

DECIMAL_COMMA = re.compile(r"[-+]?[\d.]*,\d+")
TRUTH_WORDS = frozenset(["yes", "no", "y", "n", "true", "false", "t", "f", "on", "off", "ja", "nein", "oui", "non"])


def found(value: object) -> str:
    """Return a value as a message shows it, or its type if the value takes several lines or is an object.

    >>> found("new"), found([1, 2]), found(object())
    ("'new'", '[1, 2]', 'object')
    """
    text = shown(value)
    return type(value).__name__ if "\n" in text or " object at 0x" in text else text


def refuse_argument(name: str, expected: str, value: object, hint: str) -> NoReturn:
    """Refuse the value of an argument.

    Raises:
        ProblemsError: Always.
    """
    raise ProblemsError([Problem((name,), expecting(expected, found(value)), hint)])


def by_name(argument: str, value: Any, hint: str) -> Mapping[str, Any]:
    """Return an argument that maps names to values, such as a mapping or a frame. None maps nothing.

    Raises:
        ProblemsError: It is something else.
    """
    if not hasattr(value, "items") and value is not None:
        refuse_argument(argument, "a mapping by name", value, hint)
    return {} if value is None else dict(value.items())


def list_of_names(argument: str, names: Any) -> list[str] | None:
    """Return an argument that lists names, None without any.

    Raises:
        ProblemsError: It is not a list of names.
    """
    is_list = isinstance(names, Iterable) and not isinstance(names, str | bytes)
    listed = list(names) if is_list else []
    if names is not None and not (is_list and all(isinstance(name, str) for name in listed)):
        refuse_argument(argument, "a list of names", names, f'write {argument}=["NAME"], also for one name')
    return None if names is None else listed


def check_options(reward_field: object, estimated: object) -> None:
    """Check the types of options.

    Raises:
        ProblemsError: One has another type.
    """
    if not isinstance(reward_field, str):
        hint = "reward_field is the name of one field; several rewards are an option of compare: rewards={...}"
        refuse_argument("reward_field", "the name of a field", reward_field, hint)
    if not isinstance(estimated, bool):
        refuse_argument("estimated", "True or False", estimated, "estimated=True is for logs without propensities")


def require_one_reward(field: str, column: str | None) -> None:
    """Check that `reward_field` and `columns` do not name two fields of the reward.

    Raises:
        ProblemsError: They do.
    """
    if column not in (None, field) and field != "reward":
        expected = f"nothing next to columns['reward'] ({column!r})"
        refuse_argument("reward_field", expected, field, "name the reward once")


def range_of_reward(value: Any) -> tuple[float, float] | None:
    """Return the smallest and the largest reward, None for any.

    Raises:
        ProblemsError: They are not two numbers, or the first is not the smaller one.
    """
    ends = list(value) if isinstance(value, Iterable) else []
    if value is not None and not (
        len(ends) == 2 and all(isinstance(end, Real) for end in ends) and float(ends[0]) < float(ends[1])
    ):
        hint = "write reward_range=(SMALLEST, LARGEST), e.g. (0, 1)"
        refuse_argument("reward_range", "the smallest and a larger reward", value, hint)
    return None if value is None else (float(ends[0]), float(ends[1]))


def segment_fields(segments: Any) -> list[SegmentField]:
    """Return the segments with their fields.

    Raises:
        ProblemsError: They are not fields by name.
    """
    hint = 'write segments={"country": "context.country"}, the field of each segment by its name'
    fields = by_name("segments", segments, hint)
    for name, field in fields.items():
        if not isinstance(field, str):
            refuse_argument(f"segments.{name}", "the name of a field", field, hint)
    return [SegmentField(name, field) for name, field in fields.items()]


def remedy_of(value: Any, item: Any = None) -> str:
    """Return how to make something that can be read of a value that cannot.

    Args:
        value: the value
        item: an item of it that cannot be read, by default the first one of a list

    >>> remedy_of(b"log.csv"), remedy_of([{"action": "a"}])
    ('write it as text: os.fsdecode(path)', 'make a frame of them, e.g. pandas.DataFrame(rows)')
    """
    if isinstance(value, bytes):
        return "write it as text: os.fsdecode(path)"
    if isinstance(value, str) or hasattr(value, "__fspath__"):
        return "read_events and streameval.compare read files"
    if is_series(value):
        return "give the whole frame, and name its columns in `columns`"
    if hasattr(value, "read"):
        return "give its path, or `-` for standard input"
    if hasattr(value, "dtype"):
        return "name its columns: pandas.DataFrame(array, columns=[...])"
    first = value[0] if item is None and isinstance(value, Sequence) and value else item
    if isinstance(first, bytes):
        return "write them as text: os.fsdecode(path)"
    if isinstance(first, Mapping):
        return "make a frame of them, e.g. pandas.DataFrame(rows)"
    if hasattr(first, "__arrow_c_stream__"):
        return f"join the frames into one, e.g. {type(first).__module__.partition('.')[0]}.concat(frames)"
    return "give the path of a file (CSV, Parquet, Arrow or NDJSON), or a frame to EventBatch.from_frame"


def number_hint(text: str) -> str | None:
    """Return how to turn text into a number, None if it is no number.

    >>> number_hint("50 %")
    'divide percent by 100; pandas: column.str.rstrip("% ").astype(float) / 100'
    """
    word = text.strip()
    if DECIMAL_COMMA.fullmatch(word):
        return (
            'write a decimal point for the comma: pandas.read_csv(path, decimal=","), '
            'or column.str.replace(",", ".").astype(float)'
        )
    if word.lower() in TRUTH_WORDS:
        return f'write 1 and 0 for words such as {word}; pandas: column.map({{"yes": 1, "no": 0}})'
    if word.endswith("%"):
        return 'divide percent by 100; pandas: column.str.rstrip("% ").astype(float) / 100'
    try:
        float(word)
    except ValueError:
        return None
    return f"write the number {word} without quotes; pandas: column.astype(float)"


def is_series(value: Any) -> bool:
    """Return whether a value is one column of a frame of pandas or polars."""
    return hasattr(value, "to_frame") and not hasattr(value, "columns")
