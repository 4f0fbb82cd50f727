"""Check the arguments of functions that read events."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Real

from streameval.errors import InputError


def require_names(argument: str, names: object) -> None:
    """Check that names are a list: one text would be read letter by letter.

    Raises:
        InputError: They are something else.
    """
    if isinstance(names, str) or not isinstance(names, Iterable) or not all(isinstance(name, str) for name in names):
        example = [names] if isinstance(names, str) else ["challenger"]
        raise InputError(
            f"{argument}: expected a list of names, found {names!r:.60}", hint=f"write {argument}={example}"
        )


def require_one_reward(field: object, column: str | None) -> None:
    """Check that the reward is named by `reward_field` or by `columns`, and not by both in two ways.

    Raises:
        InputError: It is named twice, or its name is no text.
    """
    if not isinstance(field, str):
        raise InputError(f"reward_field: expected a name, found {field!r:.60}", hint='write e.g. reward_field="click"')
    if column not in (None, field) and field != "reward":
        message = f"reward_field: expected nothing next to columns['reward'] ({column!r}), found {field!r}"
        raise InputError(message, hint="name the reward once")


def require_range(reward_range: object) -> None:
    """Check that a range has a smaller and a larger number, if it is given.

    Raises:
        InputError: It is something else.
    """
    if reward_range is None:
        return
    ends = reward_range if isinstance(reward_range, tuple | list) else ()
    if len(ends) != 2 or not all(isinstance(end, Real) for end in ends) or not ends[0] < ends[1]:
        message = f"reward_range: expected the smallest and the largest reward, found {reward_range!r:.60}"
        raise InputError(message, hint="write e.g. reward_range=(0, 1)")


def require_fields(segments: object) -> None:
    """Check that segments are a mapping from name to field, if they are given.

    Raises:
        InputError: They are something else.
    """
    if segments is None:
        return
    if not isinstance(segments, Mapping) or not all(
        isinstance(text, str) for item in segments.items() for text in item
    ):
        hint = 'write e.g. segments={"country": "context.country"}'
        raise InputError(f"segments: expected a mapping from name to field, found {segments!r:.60}", hint=hint)
