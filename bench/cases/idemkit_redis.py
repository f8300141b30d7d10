"""idemkit's method surface on Redis."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import redis.asyncio
from idemkit import MethodConfig, RedisBackend, idempotent

_serial = itertools.count(time.time_ns() // 1_000_000 * 1000)


def _guarded(url, file):
    client = redis.asyncio.Redis.from_url(url)
    backend = RedisBackend(client, namespace="idemkit")
    params = json.loads(Path(file).read_bytes())

    @idempotent(backend=backend, config=MethodConfig(key_fields=["params"], scope=lambda _: "session"))
    async def send(params):
        return {"ok": True}

    return client, send, params


async def miss(url, file):
    client, send, params = _guarded(url, file)

    async def call():
        await send(params={**params, "serial": next(_serial)})

    yield call
    await client.aclose()


async def reused(url, file):
    client, send, params = _guarded(url, file)
    await send(params=params)

    async def call():
        await send(params=params)

    yield call
    await client.aclose()
