"""Test the public names of the package."""

from __future__ import annotations

import pytest

import streameval


def test_every_public_name_is_found_and_listed() -> None:
    assert set(streameval.__all__) <= set(dir(streameval))
    assert all(getattr(streameval, name).__name__ == name for name in streameval.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'streameval' has no attribute 'Evalautor'"):
        getattr(streameval, "Evalautor")  # noqa: B009 - the type checker knows that there is none
