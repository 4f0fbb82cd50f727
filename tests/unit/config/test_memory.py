"""Find the memory that a process may use if control groups limit it."""

from __future__ import annotations

from pathlib import Path

import pytest

from streameval.config import model
from streameval.config.memory import usable_memory
from streameval.config.model import Config
from streameval.errors import ConfigError

GIB = 2**30
NO_LIMIT_OF_VERSION_1 = 9_223_372_036_854_771_712


def usable(folder: Path, groups: str, limits: dict[str, object]) -> int:
    """Return the usable memory for groups in `/proc/self/cgroup` and files in `/sys/fs/cgroup`."""
    for path, limit in limits.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(f"{limit}\n")
    (folder / "groups").write_text(groups)
    return usable_memory(folder / "groups", folder)


@pytest.mark.parametrize(
    ("groups", "limits"),
    [
        pytest.param("0::/\n", {"memory.max": GIB}, id="a container"),
        pytest.param("0::/", {"memory.max": "max", "memory.limit_in_bytes": 1}, id="no limit"),
        pytest.param(
            "0::/system.slice/streameval.service\n",
            {"system.slice/streameval.service/memory.max": "max", "system.slice/memory.max": GIB},
            id="a unit in a slice with a limit",
        ),
        pytest.param(
            "4:memory:/kubepods/pod-7\n2:cpu:/\n0::/\n",
            {"memory/memory.limit_in_bytes": GIB},
            id="a container, version 1",
        ),
        pytest.param("4:memory:/", {"memory/memory.limit_in_bytes": NO_LIMIT_OF_VERSION_1}, id="no limit, version 1"),
    ],
)
def test_the_lowest_limit_of_a_control_group_is_the_usable_memory(
    tmp_path: Path, groups: str, limits: dict[str, object]
) -> None:
    machine = usable_memory(tmp_path / "no groups")
    assert machine > GIB
    assert usable(tmp_path, groups, limits) == (GIB if GIB in limits.values() else machine)


def test_windows_of_10_gib_are_refused_in_a_container_of_1_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = usable(tmp_path, "0::/", {"memory.max": GIB})
    monkeypatch.setattr(model, "usable_memory", lambda: memory)
    window = {"kind": "window", "tau": 2 * 10**9, "resolution": 100}
    config = Config.model_validate({"source": {"topic": "t"}, "policies": {"candidates": ["a"]}, "averages": [window]})
    with pytest.raises(ConfigError, match=r"the estimates take [\d.]+ GiB .* this process may use 1\.0 GiB"):
        list(config.memory_warnings())
    assert config.full_bytes() > 10 * GIB
