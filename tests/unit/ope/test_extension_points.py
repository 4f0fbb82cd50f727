"""An estimator, or a kind of interval, is one new file and one line in a union (and the import of its class)."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import streameval

PACKAGE = Path(streameval.__file__).parent

ESTIMATOR = '''
from dataclasses import field
from typing import ClassVar, Literal

from pydantic.dataclasses import dataclass

from streameval.common.arrays import State
from streameval.common.component import strict
from streameval.ope.estimators.base import Estimator, Terms
from streameval.ope.evidence.evidence import Evidence


@dataclass(frozen=True, config=strict)
class Half(Estimator):
    """Half of `ips`."""

    preference: ClassVar[int] = 0
    kind: Literal["half"] = field(default="half", kw_only=True, repr=False)

    def terms(self, evidence: Evidence, state: State) -> tuple[Terms, State]:
        return Terms(evidence.weighted_reward / 2), state
'''

INTERVAL = '''
from dataclasses import field
from typing import ClassVar, Literal

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array
from streameval.common.component import strict
from streameval.ope.averages.base import Reading
from streameval.ope.intervals.base import IntervalMethod, IntervalRequest


@dataclass(frozen=True, config=strict)
class Tenth(IntervalMethod):
    """A tenth to either side."""

    description: ClassVar[str] = "They are a fifth wide."
    kind: Literal["tenth"] = field(default="tenth", kw_only=True, repr=False)

    def _half_width(self, reading: Reading, request: IntervalRequest) -> Array:
        return np.full_like(reading.moments.value, 0.1)
'''

RUN = """
import numpy as np
from streameval import Evaluator, EventBatch
from streameval.config.model import Config

config = Config.model_validate({
    "source": {"kind": "file", "path": "-"},
    "policies": {"candidates": ["a"]},
    "estimators": ["%(estimator)s"],
    "averages": ["cumulative", "mixture"],
    "intervals": {"cumulative": "%(interval)s"},
})
events = EventBatch.from_arrays(reward=np.ones(1000), propensity=np.full(1000, 0.5), policies={"a": np.full(1000, 0.4)})
evaluator = Evaluator.from_plan(config.plan())
evaluator.update(events)
restored = Evaluator.from_state(evaluator.state())
assert restored.report().estimates == evaluator.report().estimates
estimate = evaluator.report().get("a", "%(estimator)s", "cumulative")
print(round(estimate.value, 9), estimate.kind, estimate.lower is not None)
"""


@pytest.mark.parametrize(
    ("folder", "module", "source", "name", "union", "options", "printed"),
    [
        ("estimators", "half", ESTIMATOR, "Half", "IPS\n", ("half", "normal"), "0.4 normal True"),
        ("intervals", "tenth", INTERVAL, "Tenth", "Normal ", ("ips", "tenth"), "0.8 tenth True"),
    ],
)
def test_one_file_and_one_line_of_a_union_are_enough(
    tmp_path: Path, folder: str, module: str, source: str, name: str, union: str, options: tuple[str, str], printed: str
) -> None:
    copy = tmp_path / "streameval"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "ope" / folder / f"{module}.py").write_text(source)
    init = copy / "ope" / folder / "__init__.py"
    text = init.read_text()
    place = text.index(union, text.index("Annotated["))
    text = f"{text[:place]}{name} | {text[place:]}"
    first = text.index(f"from streameval.ope.{folder}.")
    init.write_text(f"{text[:first]}from streameval.ope.{folder}.{module} import {name}\n{text[first:]}")
    program = RUN % dict(zip(("estimator", "interval"), options, strict=True))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.stdout.strip() == printed, done.stderr
