"""A whole guarded call of a gateway whose claims are on Redis."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import antiphon
from antiphon.stores import RedisStore

CALLERS = 64
_serial = itertools.count(time.time_ns() // 1_000_000 * 1000)


def _params(file: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path(file).read_bytes())
    return read


def _sync(url: str) -> tuple[antiphon.Gateway, Callable[..., Any]]:
    gateway = antiphon.Gateway(store=RedisStore(url))

    @gateway.tool(idempotent=True, reuse="session")
    def send(params: dict[str, Any]) -> dict[str, bool]:
        return {"ok": True}

    return gateway, send


def miss(url: str, file: str) -> Iterator[Callable[[], Any]]:
    gateway, send = _sync(url)
    params = _params(file)
    yield lambda: send(params={**params, "serial": next(_serial)})
    gateway.close()


def reused(url: str, file: str) -> Iterator[Callable[[], Any]]:
    gateway, send = _sync(url)
    params = _params(file)
    send(params=params)
    yield lambda: send(params=params)
    gateway.close()


def _async(url: str) -> tuple[antiphon.AsyncGateway, Callable[..., Awaitable[Any]]]:
    gateway = antiphon.AsyncGateway(store=RedisStore(url))

    @gateway.tool(idempotent=True, reuse="session")
    async def send(params: dict[str, Any]) -> dict[str, bool]:
        return {"ok": True}

    return gateway, send


async def async_miss(url: str, file: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    gateway, send = _async(url)
    params = _params(file)

    async def call() -> None:
        await send(params={**params, "serial": next(_serial)})

    yield call
    await gateway.close()


async def async_reused(url: str, file: str) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    gateway, send = _async(url)
    params = _params(file)
    await send(params=params)

    async def call() -> None:
        await send(params=params)

    yield call
    await gateway.close()


async def crowd(url: str, file: str) -> AsyncIterator[Callable[[int], Awaitable[None]]]:
    """64 callers of one event loop."""
    gateway, send = _async(url)
    params = _params(file)

    async def run(n: int) -> None:
        left = itertools.count(n - 1, -1)

        async def caller() -> None:
            while next(left) >= 0:
                await send(params={**params, "serial": next(_serial)})

        await asyncio.gather(*(caller() for _ in range(CALLERS)))

    yield run
    await gateway.close()
