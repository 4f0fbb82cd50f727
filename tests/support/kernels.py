"""Load kernels in the form that is not compiled."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any


def uncompiled(module: ModuleType) -> Any:
    """Load the module from its source, whether or not it is compiled."""
    folder, name = Path(str(module.__file__)).parent, module.__name__
    spec = importlib.util.spec_from_file_location(name, folder / f"{name.rpartition('.')[2]}.py")
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded
