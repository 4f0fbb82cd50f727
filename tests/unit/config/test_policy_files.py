"""Read policy files in the section `policies`."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from streameval.config.model import Config
from streameval.ope.learning.learned import Learned


def configured(**options: Any) -> Config:
    return Config.model_validate({"policies": {"candidates": {"apprentice": {"kind": "learned", **options}}}})


def test_a_configuration_without_a_policy_file_may_write_null() -> None:
    assert configured(file=None, step=0.1).evaluator_config().learned_policies["apprentice"] == Learned(step=0.1)
    with pytest.raises(ValidationError, match="file"):
        configured(file=3)
