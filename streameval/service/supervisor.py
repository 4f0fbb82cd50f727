"""Tell systemd about the state of the process, see sd_notify(3). Other processes do nothing here."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress


class Supervisor:
    """Send messages to the socket that systemd names in NOTIFY_SOCKET, if any.

    A message that cannot be sent at once is lost: no supervisor holds up events.
    """

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address  # "@" is the abstract namespace
        usec, process = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", str(os.getpid()))
        is_watched = usec.isdecimal() and process == str(os.getpid())  # children of a watched process inherit both
        self._interval = int(usec) / 2e6 if is_watched else 0.0
        self._next = 0.0

    def tell(self, *lines: str) -> None:
        """Send assignments, such as `READY=1`."""
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto("\n".join(lines).encode(), self._address)

    def reloading(self) -> None:
        """Tell that a reload starts. `READY=1` ends it."""
        self.tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def turned(self) -> None:
        """Tell that the loop turns, twice in each interval of the watchdog."""
        if self._interval and time.monotonic() >= self._next:
            self._next = time.monotonic() + self._interval
            self.tell("WATCHDOG=1")
