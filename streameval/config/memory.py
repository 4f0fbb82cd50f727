"""The memory that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

GROUPS = Path("/proc/self/cgroup")
"""Lines `id:controllers:path` of the control groups of this process; version 2 of cgroups names no controllers."""
LIMITS = {"": "memory.max", "memory": "memory/memory.limit_in_bytes"}
"""By controllers: the file with the limit of the root group, as mounted in `/sys/fs/cgroup`."""


def usable_memory(groups: Path = GROUPS, mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes: the memory of the machine, or the lowest limit of a control group of this process and of those around it.

    A container sees its own group at the root, whatever the path of that group is on the node.
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers in LIMITS:
            root = mounted / LIMITS[controllers]
            group = root.parent / path.lstrip("/")
            files = [place / root.name for place in (group, *group.parents)]
            found = [file.read_text().strip() for file in files if file.is_file()]
            limits += [int(limit) for limit in found if limit.isdigit()]  # no limit is written as `max`
    return min(limits)
