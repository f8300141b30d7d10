"""Run log and breaker states on Redis. The log is simple: a manifest and a list of events for each run.

Redis keeps the log in memory; teams put it on PostgreSQL or SQLite with ``ComposedStore``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from antiphon.contract.events import RunManifest
from antiphon.ports import BreakerRow, BreakerRows, Events, Manifests, Row
from antiphon.stores._common import BREAKER_KEPT_MS, RunQuery, event_of, is_wanted, manifest_of, manifests_of
from antiphon.stores.redis.client import Client
from antiphon.stores.redis.schema import Names, evalsha

_PAGE = 200
_SWEPT = 200
_LOOK_BACK = 1000
"""How many events can follow one whose reply was lost before it is written again."""

_encode = msgspec.json.Encoder().encode
breaker_of: Callable[[bytes | str], BreakerRow] = msgspec.json.Decoder(BreakerRow).decode
"""Decodes the row in a message on the breaker channel."""


class RedisLog:
    """The run-log half of the journal: a manifest, a list of events and an index by tenant; and the breakers."""

    def __init__(self, client: Client, names: Names) -> None:
        self._client = client
        self._names = names

    async def open_run(self, manifest: RunManifest) -> None:
        await self._keep(manifest, "NX")

    async def update_run(self, manifest: RunManifest) -> None:
        await self._keep(manifest)

    async def _keep(self, manifest: RunManifest, *condition: str) -> None:
        name, _ = self._names.run(manifest.id)
        index = self._names.runs(manifest.tenant)
        await self._client.execute(("SET", name, _encode(manifest), *condition))
        await self._client.execute(("ZADD", index, *condition, manifest.started_at_ms, manifest.id))

    async def append(self, run: str, rows: Sequence[Row]) -> int:
        _, name = self._names.run(run)
        nonce = self._client.nonce().encode()
        events = [b"%b\n%b\n%d\n%b" % (nonce, row.type.encode(), row.at_ms, row.body) for row in rows]
        again = evalsha("append", 1, name, _LOOK_BACK, *events) if events else ()
        return int(await self._client.execute(evalsha("append", 1, name, 0, *events), again=again))

    async def manifest(self, run: str) -> RunManifest | None:
        name, _ = self._names.run(run)
        document = await self._client.execute(("GET", name))
        return None if document is None else manifest_of(document)

    async def runs(self, **query: Any) -> Manifests:
        which = RunQuery(**query)
        index = self._names.runs(which.tenant)
        newest = "+inf" if which.before is None else which.before.at
        at = 0
        found: list[RunManifest] = []
        while len(found) < which.limit:
            members = await self._client.execute(("ZREVRANGEBYSCORE", index, newest, "-inf", "LIMIT", at, _PAGE))
            ids = [run for run in map(bytes.decode, members) if run.startswith(which.prefix)]
            documents = await self._client.execute_many([("GET", self._names.run(run)[0]) for run in ids])
            manifests = manifests_of(document for document in documents if document is not None)
            found += [manifest for manifest in manifests if is_wanted(manifest, which)]
            if len(members) < _PAGE:
                break
            at += _PAGE
        return found[: which.limit]

    async def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> Events:
        _, name = self._names.run(run)
        start = max(0, start)
        end = start + limit if stop is None else min(stop, start + limit)
        if end <= start:
            return []
        lines = await self._client.execute(("LRANGE", name, start, end - 1))
        return [event_of(start + at, _row(run, line)) for at, line in enumerate(lines)]

    async def delete_run(self, run: str) -> bool:
        name, events = self._names.run(run)
        document = await self._client.execute(("GET", name))
        if document is not None:
            await self._client.execute(("ZREM", self._names.runs(manifest_of(document).tenant), run))
        return bool(await self._client.execute(("UNLINK", name, events)))

    async def load_breakers(self, tenant: str) -> BreakerRows:
        values = await self._client.execute(("HVALS", self._names.breakers(tenant)[0]))
        return [breaker_of(value.partition(b"\n")[2]) for value in values]

    async def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        name, channel = self._names.breakers(tenant)
        await self._client.execute(evalsha("breaker", 1, name, row.key, row.epoch, _encode(row), channel))

    async def _sweep_breakers(self, tenant: str) -> None:
        """Drop states that ended long ago: each process of a fleet leaves one behind."""
        until = time.time_ns() // 1_000_000 - BREAKER_KEPT_MS
        gone = [row for row in await self.load_breakers(tenant) if 0 < row.until_ms < until]
        if gone:
            words = [word for row in gone[:_SWEPT] for word in (row.key, row.epoch)]
            await self._client.execute(evalsha("outdated", 1, self._names.breakers(tenant)[0], *words))


def _row(run: str, line: bytes) -> Row:
    _, kind, at_ms, body = line.split(b"\n", 3)
    return Row(run, kind.decode(), int(at_ms), body)
