"""Let a daemon learn from a recommender's log, and a recommender deploy what the daemon has proven better."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from support.paths import ROOT
from support.scripts import importable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

EXAMPLE = ROOT / "examples" / "safe_exploration"


@pytest.fixture
def serve() -> Iterator[ModuleType]:
    with importable(EXAMPLE):
        yield import_module("serve")


def test_a_frozen_copy_is_deployed_when_it_is_promotable_and_is_better_than_the_baseline(
    serve: ModuleType, tmp_path: Path
) -> None:
    digits = import_module("digits").Digits.prepared(0)
    deployed = serve.run(tmp_path, digits, 17_500, "bsea", 0)
    assert [(events, name) for events, name, _ in deployed] == [(15_000, "frozen-6")]
    assert deployed[0][2] > digits.value(digits.baseline) + 0.1
    with np.load(tmp_path / "apprentice.npz") as file:
        assert digits.value(digits.chosen_by(file["weights"])) == deployed[0][2]
    log = (tmp_path / "daemon.log").read_text()
    assert '"level": "error"' not in log
    assert log.count('"event": "serving"') == 1, "the daemon keeps running"
    assert '"added": ["apprentice"], "removed": ["apprentice"' in log
