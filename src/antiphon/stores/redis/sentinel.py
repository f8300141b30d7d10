"""The primary that Sentinel names, checked while the process runs: a demoted primary may answer for seconds."""

from __future__ import annotations

import inspect
import time
from typing import Any

from redis.exceptions import RedisError

from antiphon.stores.redis.url import Target, open_sentinels, open_server

ASK_EVERY_S = 0.1
"""A command is preceded by a query to Sentinel if its last answer is older."""
_SHARE = 10
"""Slow or missing Sentinels are asked less often: that takes at most a tenth of the time."""


class Sentinels:
    """The redis-py client of the primary, and how it is found. Not for two concurrent askers."""

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

        If no Sentinel can name one, the known one stays, whether it answers or not.
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
        """Sentinel's own answer takes precedence: the state that redis-py reads names the old primary for longer."""
        service = self._target.service
        await done(self._sentinels.discover_master(service))  # a Sentinel that sees a primary; it is now the first one
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
