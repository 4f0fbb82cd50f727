"""Turn doctests in docstrings into blocks of code, because Markdown would take `>>>` for quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"(?m)^(?P<indent> *)>>> .*(?:\n(?! *$).*)*")


class Doctests(griffe.Extension):
    """Put each doctest of each docstring between fences."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of a module, class or function after it is read."""
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(fenced, obj.docstring.value)


def fenced(doctest: re.Match[str]) -> str:
    """Put a doctest between fences with its indentation."""
    indent = doctest["indent"]
    return f"{indent}```pycon\n{doctest[0]}\n{indent}```"
