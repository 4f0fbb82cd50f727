"""Find different ports for programs that need a fixed one, and count the sockets of this process."""

from __future__ import annotations

import atexit
import random
import socket
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

PORTS = range(20_000, 32_000)
"""Ports below the ephemeral range of systems (Linux: from 32,768 on)."""

_claims = ExitStack()
atexit.register(_claims.close)


def free_port() -> int:
    """Return a port of 127.0.0.1 without a listener. No other process of these tests gets it."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return `count` different ports. A server keeps its port while it restarts."""
    drawn = random.SystemRandom().sample(PORTS, len(PORTS))  # independent of seeds that tests set
    free = (port for port in drawn if _is_claimed(port) and _is_silent(port))
    return [next(free) for _ in range(count)]


def _is_claimed(port: int) -> bool:
    """Claim the port, and return whether it is ours. The abstract socket of Linux ends with this process."""
    if sys.platform != "linux":
        return True
    claim = socket.socket(socket.AF_UNIX)
    try:
        claim.bind(f"\0streameval-tests-port-{port}")
    except OSError:
        claim.close()
        return False
    _claims.enter_context(claim)
    return True


def _is_silent(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def open_sockets() -> int:
    """Count the sockets that this process has open, including servers in its threads."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # closed in the meantime
            count += str(descriptor.readlink()).startswith("socket:")
    return count
