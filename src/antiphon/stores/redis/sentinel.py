"""The primary that Sentinel names, also while a process runs: a primary that was demoted may answer for seconds."""

from __future__ import annotations

import inspect
import time
from typing import Any

from redis.exceptions import RedisError

from antiphon.stores.redis.url import Target, open_sentinels, open_server

ASK_EVERY_S = 0.1
"""Whoever sends a command asks Sentinel first if its answer is older."""
_SHARE = 10
"""Sentinels that are slow or gone are asked less often: that takes a tenth of the time at most."""


class Sentinels:
    """The client of redis-py for the primary, and how it is found. Not for two askers at once."""

    def __init__(self, target: Target, library: str) -> None:
        self._target = target
        self._library = library
        self._sentinels = open_sentinels(target, library)
        self._address: tuple[str, int] | None = None
        self._ask_at = 0.0
        self.primary: Any = None

    @property
    def current(self) -> bool:
        """Whether the primary was confirmed a moment ago."""
        return time.monotonic() < self._ask_at

    def doubt(self) -> None:
        """The primary did not work: ask before the next command."""
        self._ask_at = 0.0

    async def ask(self) -> Any:
        """The client of the former primary, if there is a new one.

        If no Sentinel can name one, the one that is known stays: what it answers, or does not, is its own affair.
        """
        began = time.monotonic()
        try:
            address = await self._named()
        except (RedisError, OSError):
            if self.primary is None:
                raise
            address = self._address
        now = time.monotonic()
        self._ask_at = now + max(ASK_EVERY_S, _SHARE * (now - began))
        if address is None or address == self._address:
            return None
        former, self.primary = self.primary, open_server(self._target, self._library, address)
        self._address = address
        return former

    async def _named(self) -> Any:
        """Sentinel's own answer comes first: the state that redis-py reads has the old primary for longer."""
        service = self._target.service
        await done(self._sentinels.discover_master(service))  # a Sentinel that sees a primary; it is the first now
        return await done(self._sentinels.sentinels[0].sentinel_get_master_addr_by_name(service))

    async def close(self) -> None:
        for client in (self.primary, self._sentinels):
            if client is not None:
                await close(client)


async def close(client: Any) -> None:
    """Close a client of redis-py."""
    await done(client.aclose() if hasattr(client, "aclose") else client.close())


async def done(result: Any) -> Any:
    """What redis-py returns, or what it lets us await."""
    return await result if inspect.isawaitable(result) else result
