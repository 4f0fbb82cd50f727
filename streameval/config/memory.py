"""Find the memory that this process may use."""

from __future__ import annotations

import os
from pathlib import Path

GROUPS = Path("/proc/self/cgroup")
"""Control groups of this process, as lines `id:controllers:path`. Version 2 of cgroups names no controllers."""
LIMITS = {"": "memory.max", "memory": "memory/memory.limit_in_bytes"}
"""File with the limit of the root group, below `/sys/fs/cgroup`, by controllers."""


def usable_memory(groups: Path = GROUPS, mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of the machine's memory, or the lowest limit of a control group around this process.

    A container sees its own group at the root, whatever the path of that group is on the node.

    Args:
        groups: the file that lists the groups of this process
        mounted: the directory with the files of groups
    """
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers in LIMITS:
            root = mounted / LIMITS[controllers]
            group = root.parent / path.lstrip("/")
            files = [directory / root.name for directory in (group, *group.parents)]
            texts = [file.read_text().strip() for file in files if file.is_file()]
            limits += [int(text) for text in texts if text.isdigit()]  # no limit is written as `max`
    return min(limits)
