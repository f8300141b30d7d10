"""Run log and breaker states on Redis. The log is plain: a manifest and a list of events for each run.

Redis keeps the log in memory; teams put it on PostgreSQL or SQLite with ``ComposedStore``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec

from antiphon.contract.events import Event, RunManifest
from antiphon.ports import BreakerRow, Row
from antiphon.stores import _redis_scripts as scripts
from antiphon.stores._common import BREAKER_KEPT_MS, event_of, manifest_of
from antiphon.stores._redis_keys import Names
from antiphon.stores._redis_link import Link

_PAGE = 200
_SWEPT = 200
_LOOK_BACK = 1000
"""How many events can follow one whose answer got lost before it is written again."""

_encode = msgspec.json.Encoder().encode
_breaker_of = msgspec.json.Decoder(BreakerRow).decode


class RunLog:
    """Runs: a manifest, a list of events, and an index by tenant."""

    def __init__(self, link: Link, names: Names, nonce: Callable[[], str]) -> None:
        self._link = link
        self._names = names
        self._nonce = nonce

    async def open_run(self, manifest: RunManifest) -> None:
        await self._keep(manifest, "NX")

    async def update_run(self, manifest: RunManifest) -> None:
        await self._keep(manifest)

    async def _keep(self, manifest: RunManifest, *condition: str) -> None:
        name, _, slot = self._names.run(manifest.id)
        index, index_slot = self._names.runs(manifest.tenant)
        await self._link.command(slot, "SET", name, _encode(manifest), *condition)
        await self._link.command(index_slot, "ZADD", index, "NX", manifest.started_at_ms, manifest.id)

    async def append(self, run: str, rows: Sequence[Row]) -> int:
        _, name, slot = self._names.run(run)
        nonce = self._nonce()
        events = [b"%b\n%b\n%d\n%b" % (nonce.encode(), row.type.encode(), row.at_ms, row.body) for row in rows]
        first = await self._link.run(
            scripts.APPEND, slot, (1, name, 0, *events), again=(1, name, _LOOK_BACK, *events) if events else ()
        )
        return int(first)

    async def manifest(self, run: str) -> RunManifest | None:
        name, _, slot = self._names.run(run)
        document = await self._link.command(slot, "GET", name)
        return None if document is None else manifest_of(document)

    async def runs(
        self, tenant: str, prefix: str, name: str, status: str, limit: int, before: str
    ) -> list[RunManifest]:
        """Manifests that fit, newest first, after *before* if it is given."""
        index, slot = self._names.runs(tenant)
        at = 0
        if before:
            rank = await self._link.command(slot, "ZREVRANK", index, before)
            if rank is None:
                return []
            at = rank + 1
        found: list[RunManifest] = []
        while len(found) < limit:
            members = await self._link.command(slot, "ZREVRANGE", index, at, at + _PAGE - 1)
            ids = [member.decode() for member in members]
            for manifest in await self._manifests([run for run in ids if run.startswith(prefix)]):
                if name in ("", manifest.name) and status in ("", manifest.status):
                    found.append(manifest)
            if len(members) < _PAGE:
                break
            at += _PAGE
        return found[:limit]

    async def _manifests(self, runs: Sequence[str]) -> list[RunManifest]:
        calls = []
        for run in runs:
            name, _, slot = self._names.run(run)
            calls.append((slot, ("GET", name)))
        documents = await self._link.commands(calls)
        return [manifest_of(document) for document in documents if document is not None]

    async def events(self, run: str, start: int, stop: int | None, limit: int) -> list[Event]:
        _, name, slot = self._names.run(run)
        end = start + limit if stop is None else min(stop, start + limit)
        if end <= start or start < 0:
            return []
        lines = await self._link.command(slot, "LRANGE", name, start, end - 1)
        return [event_of(start + at, _row(run, line)) for at, line in enumerate(lines)]

    async def delete_run(self, run: str) -> bool:
        name, events, slot = self._names.run(run)
        document = await self._link.command(slot, "GET", name)
        if document is not None:
            index, index_slot = self._names.runs(manifest_of(document).tenant)
            await self._link.command(index_slot, "ZREM", index, run)
        return bool(await self._link.command(slot, "UNLINK", name, events))


class BreakerStates:
    """The persisted breakers of each tenant, and the channel that tells the fleet of a change."""

    def __init__(self, link: Link, names: Names) -> None:
        self._link = link
        self._names = names

    async def load(self, tenant: str) -> list[BreakerRow]:
        name, _, slot = self._names.breakers(tenant)
        values = await self._link.command(slot, "HVALS", name)
        return [_breaker_of(value.partition(b"\n")[2]) for value in values]

    async def save(self, tenant: str, row: BreakerRow) -> None:
        name, channel, slot = self._names.breakers(tenant)
        await self._link.run(scripts.BREAKER, slot, (1, name, row.key, row.epoch, _encode(row), channel))

    async def sweep(self, tenant: str) -> None:
        """Drop the states that ended long ago: each process of a fleet leaves one behind."""
        until = time.time_ns() // 1_000_000 - BREAKER_KEPT_MS
        gone = [row for row in await self.load(tenant) if 0 < row.until_ms < until]
        if gone:
            name, _, slot = self._names.breakers(tenant)
            words = [word for row in gone[:_SWEPT] for word in (row.key, row.epoch)]
            await self._link.run(scripts.OUTDATED, slot, (1, name, *words))


def breaker_of(message: bytes) -> BreakerRow:
    """The row that a message on the channel of breakers carries."""
    return _breaker_of(message)


def _row(run: str, line: bytes) -> Row:
    _, kind, at_ms, body = line.split(b"\n", 3)
    return Row(run, kind.decode(), int(at_ms), body)
