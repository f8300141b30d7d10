"""How events get from a running call into the log: redacted first, spilled if large, then written."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from antiphon._scope import RunScope, Site
from antiphon.canonical import canonical_json
from antiphon.contract.events import with_sum
from antiphon.errors import AntiphonError
from antiphon.ports import Blobs, Clock, Invoker, Journal, Row, Store
from antiphon.redact import Redactor

SPILL_BYTES = 65_536
"""Parts of an event larger than this go to the blob store."""

_OPTIONS = orjson.OPT_PASSTHROUGH_SUBCLASS | orjson.OPT_NON_STR_KEYS


def _default(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    wire = getattr(value, "to_wire", None)
    if callable(wire):
        return wire()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, (list, tuple)):
        return list(value)
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": hashlib.sha256(value).hexdigest(), "length": len(value)}
    if isinstance(value, bool | int | float):
        return float(value) if isinstance(value, float) else int(value)
    return {"$unserialisable": f"{type(value).__module__}.{type(value).__qualname__}"}


def dump(value: Any) -> bytes:
    """JSON bytes of anything a call may carry; what has no JSON form is named, never guessed."""
    try:
        return orjson.dumps(value, _default, _OPTIONS)
    except (TypeError, ValueError, RecursionError):
        return orjson.dumps({"$unserialisable": f"{type(value).__module__}.{type(value).__qualname__}"})


class Recorder:
    """Writes the events of one run."""

    def __init__(
        self,
        run_id: str,
        *,
        store: Store,
        journal: Journal,
        clock: Clock,
        redactor: Redactor,
        blobs: Callable[[], Blobs | None],
        tenant: str,
        workspace: str,
        invoker: Invoker | None = None,
        sink: Callable[[Sequence[Row], bool], Any] | None = None,
    ) -> None:
        self.run_id = run_id
        self.store = store
        self.journal = journal
        self.clock = clock
        self.redactor = redactor
        self.blobs = blobs
        self.tenant = tenant
        self._async: weakref.WeakKeyDictionary[Any, Journal] = weakref.WeakKeyDictionary()
        self.scope = RunScope(
            run_id,
            clock_ms=clock.now_ms,
            encode=self.encode,
            sink=sink or self.write,
            present=self.present,
            store=store,
            invoker=invoker,
            tenant=tenant,
            workspace=workspace,
        )

    def present(self, arguments: Any, digest: str) -> tuple[Any, str, bool]:
        """The arguments as they may be written. Digests of redacted arguments are made from the placeholders."""
        clean, changed = self.redactor.redact_bytes(dump(arguments))
        if not changed:
            return arguments, digest, False
        value = orjson.loads(clean)
        return value, hashlib.sha256(canonical_json(value)).hexdigest(), True

    def encode(self, kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> Row:
        """One event, ready to be written."""
        body: dict[str, Any] = {}
        if site is not None:
            body = {"lane": site.lane, "index": site.index, "call": site.call, "parent": site.parent}
        body["payload"], body["v"], body["meta"] = payload, 1, meta
        data, redacted = self.redactor.redact_bytes(dump(body))
        if len(data) > SPILL_BYTES:
            data = self._spill(data)
        elif redacted:
            data = orjson.dumps(orjson.loads(data))
        return Row(self.run_id, kind, self.clock.now_ms(), with_sum(kind, data))

    def _spill(self, data: bytes) -> bytes:
        """Replace large parts of the payload by references to blobs; equal parts are stored once."""
        blobs = self.blobs()
        if blobs is None:
            return data
        from antiphon._drive import drive

        body = orjson.loads(data)
        payload = body["payload"]
        for name, value in payload.items():
            part = orjson.dumps(value)
            if len(part) > SPILL_BYTES // 4:
                payload[name] = {"$blob": drive(blobs.put(self.tenant, part)), "bytes": len(part)}
        return orjson.dumps(body)

    async def write(self, rows: Sequence[Row], asynchronous: bool) -> None:
        """Append to the log, on the event loop's own journal where there is a loop."""
        await self._journal(asynchronous).append(self.run_id, rows)

    def _journal(self, asynchronous: bool) -> Journal:
        if not asynchronous:
            return self.journal
        import asyncio

        loop = asyncio.get_running_loop()
        journal = self._async.get(loop)
        if journal is None:
            journal = self._async[loop] = self.store.open_async()
        return journal

    async def close(self) -> None:
        """Let go of the journals opened for event loops."""
        import sys

        asyncio = sys.modules.get("asyncio")
        loop = asyncio._get_running_loop() if asyncio is not None else None
        if loop is not None and loop in self._async:
            await self._async.pop(loop).close()


async def resolve(payload: Any, blobs: Blobs | None, tenant: str) -> Any:
    """Bring spilled parts of an event's payload back."""
    if not isinstance(payload, dict):
        return payload
    resolved = dict(payload)
    for name, value in payload.items():
        if isinstance(value, dict) and set(value) == {"$blob", "bytes"}:
            if blobs is None:
                raise AntiphonError("The event refers to a blob and no blob store is configured.")
            resolved[name] = orjson.loads(await blobs.get(tenant, value["$blob"]))
    return resolved
