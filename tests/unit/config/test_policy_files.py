"""Read policy files in the section `policies`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from streameval.config.model import Config
from streameval.ope.learning.learned import Learned
from streameval.ope.learning.learned_ranker import LearnedRanker
from streameval.ope.policies import policy_file


def configured(**options: Any) -> Config:
    return Config.model_validate({"policies": {"candidates": {"apprentice": {"kind": "learned", **options}}}})


def test_a_configuration_without_a_policy_file_may_write_null() -> None:
    assert configured(file=None, step=0.1).evaluator_config().learned_policies["apprentice"] == Learned(step=0.1)
    with pytest.raises(ValidationError, match="file"):
        configured(file=3)


def test_a_ranker_starts_from_the_file_of_a_ranker_alone(tmp_path: Path) -> None:
    path = tmp_path / "ranker.npz"
    path.write_bytes(policy_file.to_bytes(LearnedRanker(loss="dcg"), np.array([[1.0, -0.5]]), 100))
    options = {"kind": "learned_ranker", "file": str(path), "step": 0.0}
    config = Config.model_validate({"policies": {"candidates": {"ranker": options}}, "ranking": {}})
    expected = LearnedRanker(loss="dcg", weights=((1.0, -0.5),), step=0.0)
    assert config.evaluator_config().learned_policies == {"ranker": expected}
    with pytest.raises(ValidationError, match="of kind learned_ranker, expected learned"):
        configured(file=str(path))
