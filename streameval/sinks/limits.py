"""How often a client may ask: a bucket of tokens for each, of which only so many are kept."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

MOST_CLIENTS = 4096


class Buckets:
    """Lets each client through `rate` times a second, after `burst` times at once.

    >>> buckets = Buckets(rate=1.0, burst=2, clock=lambda: 0.0)
    >>> [buckets.take("10.0.0.1") for _ in range(3)], buckets.take("10.0.0.2")
    ([True, True, False], True)
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._levels: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()

    def take(self, client: Hashable) -> bool:
        """Whether there is a token for this client; it is taken."""
        now = self._clock()
        level, then = self._levels.pop(client, (float(self._burst), now))
        level = min(level + (now - then) * self._rate, self._burst)
        allowed = level >= 1.0
        self._levels[client] = (level - allowed, now)
        if len(self._levels) > MOST_CLIENTS:
            self._levels.popitem(last=False)  # who asked longest ago has most likely a full bucket
        return allowed


def network_of(address: str) -> str:
    """What counts as one client: an IPv4 address, or the /64 that one customer gets of IPv6.

    >>> network_of("192.0.2.1"), network_of("2001:db8::1:2:3"), network_of("?")
    ('192.0.2.1', '2001:db8::/64', '?')
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped or ipaddress.IPv6Network((parsed, 64), strict=False))
    return address
