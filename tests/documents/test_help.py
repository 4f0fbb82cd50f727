"""Check that `help(streameval)` explains every public name, and `dir` lists the options of a configurable class."""

from __future__ import annotations

import pydoc
import re

import streameval


def test_the_help_of_the_package_explains_every_public_name() -> None:
    text = pydoc.plain(pydoc.render_doc(streameval))
    assert [name for name in streameval.__all__ if not re.search(rf"^    (class )?{name}\(", text, re.MULTILINE)] == []
    assert "pydantic" not in text


def test_dir_lists_the_options_of_a_configurable_class_and_all_names_of_its_instances() -> None:
    assert dir(streameval.Window) == ["resolution", "span", "tau"]
    assert {"label", "tau"} <= set(dir(streameval.Window()))
