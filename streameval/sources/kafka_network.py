"""kafka-python's network, made so that any thread may close it at any time."""

from __future__ import annotations

from threading import RLock
from typing import Any

from kafka.errors import KafkaTimeoutError
from kafka.net.compat import KafkaNetClient
from kafka.net.selector import NetworkSelector


class Network(KafkaNetClient):  # type: ignore[misc]  # the library ships no types
    """The library's network. By itself it would not bear to be closed by two threads, or while it begins."""

    def __init__(self, **options: Any) -> None:
        self._loop = _Loop(**options)
        self._loop.network = self
        super().__init__(net=self._loop, **options)

    def ask(self, timeout: float) -> None:
        """Ask the cluster what there is now; raises KafkaError, RuntimeError when this is closed, then or meanwhile."""

        async def asked() -> None:
            await self._manager.wait_for(self.cluster.request_update(), 1000 * timeout)

        try:
            self._loop.run(asked)
        except KafkaTimeoutError:
            raise KafkaTimeoutError(f"no metadata within {timeout:g} s") from None

    def close(self, node_id: object = None) -> None:
        with self._loop.lock:
            super().close(node_id)


class _Loop(NetworkSelector):  # type: ignore[misc]
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lock = RLock()
        self.network: Network | None = None  # so that it can be closed for as long as its thread runs

    def start(self) -> None:
        """Begin to work in a thread, unless it was closed; the library's thread overlooks an end until it works."""
        with self.lock:
            if not self._closed:
                super().start()
                self.run(bool)  # does nothing, at work
