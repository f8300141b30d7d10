"""The run log and the breakers on PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from antiphon.contract.events import RunManifest
from antiphon.errors import NotFound
from antiphon.ports import BreakerRow, BreakerRows, Cursor, Events, Manifests, Row
from antiphon.stores._common import BREAKER_KEPT_MS, ClaimQuery, RunQuery, event_of, manifest_of, manifests_of
from antiphon.stores.postgres.engine import Engine
from antiphon.stores.postgres.statements import breaker_of, from_text, log_params

_encode = msgspec.json.Encoder().encode
_NO_END = 2**62
_NEWEST = Cursor(_NO_END, "")
"""Everything follows it."""
_DELETE_BATCH = 5000
_APPEND_BATCH = 5000


class PostgresLog:
    """The run-log half of the journal."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._channel = engine.options.channel

    async def open_run(self, manifest: RunManifest) -> None:
        while not await self._engine.run("open_run", _manifest_params(manifest)):
            found = await self._engine.run("is_deleting", {"id": manifest.id})
            if found and not found[0][0]:
                return  # it is there already, and is left as it is
            await self._finish_deleting(manifest.id)

    async def update_run(self, manifest: RunManifest) -> None:
        await self._engine.run("update_run", _manifest_params(manifest))

    async def append(self, run: str, rows: Sequence[Row]) -> int:
        if not rows:
            found = await self._engine.run("next_seq", {"id": run})
            return int(found[0][0]) if found else 0
        first = await self._append(run, rows[:_APPEND_BATCH])
        for start in range(_APPEND_BATCH, len(rows), _APPEND_BATCH):
            await self._append(run, rows[start : start + _APPEND_BATCH])
        return first

    async def _append(self, run: str, rows: Sequence[Row]) -> int:
        params = log_params(run, rows)

        async def send(op: int) -> int:
            found = await self._engine.run("append", {**params, "op": op}, once=True)
            if not found:
                raise NotFound(f"Run {run!r} is being deleted; its events were not written.")
            return int(found[0][0])

        async def took_effect(op: int) -> int | None:
            first: int | None = (await self._engine.run("took_effect", {"op": op, "key": "", "run": run}))[0][0]
            return first

        return await self._engine.at_most_once(send, took_effect)

    async def manifest(self, run: str) -> RunManifest | None:
        rows = await self._engine.run("manifest", {"id": run})
        return manifest_of(rows[0][0]) if rows else None

    async def runs(self, **query: Any) -> Manifests:
        rows = await self._engine.run("runs", query_params(RunQuery(**query)), prepare=False)
        return manifests_of(row[0] for row in rows)

    async def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> Events:
        span = {"start": max(0, start), "stop": _NO_END if stop is None else stop, "limit": max(0, limit)}
        rows = await self._engine.run("events", {"run": run, **span})
        return [event_of(seq, Row(run, from_text(kind), at_ms, body)) for seq, kind, at_ms, body in rows]

    async def delete_run(self, run: str) -> bool:
        """Hide the run at once, then delete it in batches; ``sweep`` finishes a deletion that was interrupted."""
        if not await self._engine.run("delete_begin", {"id": run}):
            return False
        await self._finish_deleting(run)
        return True

    async def _finish_deleting(self, run: str) -> None:
        params = {"id": run, "limit": _DELETE_BATCH}
        while await self._engine.run("delete_batch", params):
            pass
        await self._engine.run("delete_end", {"id": run})

    async def _sweep_runs(self) -> None:
        for (run,) in await self._engine.run("half_deleted", {"limit": 10}, prepare=False):
            await self._finish_deleting(from_text(run))

    async def _sweep_breakers(self) -> None:
        """Drop states that ended long ago: each process of a fleet leaves one behind."""
        await self._engine.run("sweep_breakers", {"kept_ms": BREAKER_KEPT_MS}, prepare=False)

    async def load_breakers(self, tenant: str) -> BreakerRows:
        return [breaker_of(row) for row in await self._engine.run("load_breakers", {"tenant": tenant})]

    async def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        params = {**row._asdict(), "tenant": tenant, "channel": self._channel}
        await self._engine.run("save_breaker", params)


def query_params(which: ClaimQuery | RunQuery) -> dict[str, Any]:
    """The parameters of a list."""
    place = (which.before or _NEWEST)._asdict()
    return {**which._asdict(), **place, "limit": max(0, which.limit)}


def _manifest_params(manifest: RunManifest) -> dict[str, object]:
    return {
        "id": manifest.id,
        "tenant": manifest.tenant,
        "workspace": manifest.workspace,
        "name": manifest.name,
        "status": manifest.status,
        "session": manifest.session or "",
        "started_at_ms": manifest.started_at_ms,
        "manifest": _encode(manifest),
    }
