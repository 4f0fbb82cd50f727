"""An average: the mean of the last complete block."""

from dataclasses import field
from typing import Literal

import numpy as np
from pydantic.dataclasses import dataclass

from streameval.common.arrays import Array, State
from streameval.common.component import strict
from streameval.ope.averages.base import KernelAverage, KernelReading
from streameval.ope.averages.blocks import Blocks
from streameval.ope.averages.moments import nothing


@dataclass(frozen=True, config=strict)
class Latest(KernelAverage):
    """Weigh all events of the last complete block equally, and no others."""

    kind: Literal["latest"] = field(default="latest", kw_only=True, repr=False)

    def start_kernel(self, columns: int, block: int) -> State:
        return {"moments": nothing(columns)}

    def fold_kernel(self, state: State, blocks: Blocks, rate: Array) -> tuple[State, Array | float]:
        return {"moments": np.array(blocks.moments[-1])}, float(blocks.size)

    def read_kernel(self, state: State, tail: Blocks | None, rate: Array) -> KernelReading:
        return state["moments"], None, {}
