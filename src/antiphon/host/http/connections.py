"""Connections that clients leave half open: headers that never end, answers that nobody reads, too many at a time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, NamedTuple

from uvicorn.protocols.http.h11_impl import H11Protocol

from antiphon.config.model import HostSection

log: logging.Logger = logging.getLogger("antiphon.host")

_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"


class Limits(NamedTuple):
    """What a server process allows its clients."""

    header_s: float
    idle_s: float
    connections: int

    @classmethod
    def of(cls, settings: HostSection) -> Limits:
        """The limits of *settings*; half of the descriptors stay for the store, files and providers."""
        most = settings.max_connections
        try:
            import resource
        except ImportError:  # there is no such limit to ask for
            return cls(settings.header_timeout_s, settings.idle_timeout_s, most)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft > 0:
            most = max(8, min(most, soft // 2))
        return cls(settings.header_timeout_s, settings.idle_timeout_s, most)


class LimitedProtocol(H11Protocol):
    """Closes what makes no progress; where there is no more room, the connection that waited longest gives way."""

    refused: bool = False
    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    waiting_since: float = 0.0

    @property
    def limits(self) -> Limits:
        found: Limits = self.config.limits  # type: ignore[attr-defined]
        return found

    def connection_made(self, transport: Any) -> None:
        if len(self.connections) >= self.limits.connections and not self._give_way():
            log.warning("a connection was refused: %d are open", len(self.connections))
            self.refused = True
            transport.write(_REFUSAL)
            transport.close()
            return
        super().connection_made(transport)
        self.waiting_since = self.loop.time()
        self._expect_headers()

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being answered."""
        cycle: Any = self.cycle  # none before the first request
        return cycle is None or cycle.response_complete

    def _give_way(self) -> bool:
        waiting = [one for one in self.connections if isinstance(one, LimitedProtocol) and one.is_waiting]
        if not waiting:
            return False
        oldest = min(waiting, key=lambda one: one.waiting_since)
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def _expect_headers(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.limits.header_s, self.transport.abort)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        super().data_received(data)
        if self.is_waiting:
            self._expect_headers()  # from the first byte on; more bytes do not buy more time
        else:
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self.waiting_since = self.loop.time()
        super().on_response_complete()
        if not self.is_waiting:  # the next request was here already
            self._stop_waiting()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self.loop.call_later(self.limits.idle_s, self.transport.abort)

    def _read_again(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def resume_writing(self) -> None:
        self._read_again()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._read_again()
        if not self.refused:
            super().connection_lost(exc)
