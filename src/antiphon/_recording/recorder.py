"""How events get from a running call into the log: redacted first, spilled if large, then written."""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
import orjson

from antiphon._recording.familiar import Familiar
from antiphon._recording.late import LateRow, Taken
from antiphon._recording.pieces import Pieces
from antiphon._recording.plain import dump
from antiphon._scope import RunScope, Site, Write, WriteAsync
from antiphon.canonical import canonical_json
from antiphon.contract.events import Event, RunManifest, sum_holds, summed, with_sum
from antiphon.ports import Blobs, Clock, Invoker, Journal, Row, Store, SyncJournal
from antiphon.redact import Redactor
from antiphon.stores._adapters import AsyncFromSync

__all__ = ["SPILL_BYTES", "Recorder", "dump"]

SPILL_BYTES = 65_536
"""Parts of an event larger than this go to the blob store."""

_quoted = orjson.dumps
_decode_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_new: Any = tuple.__new__  # half the price of a named tuple's own constructor

OUR_FIELDS = frozenset(
    "kind name namespace digest nth key keyOf recipe variant outcome n what status provider entry".split()
)
"""Fields of a payload that hold our own words, names of tools and digests: nothing to redact."""
_OUR_EVENTS = frozenset({"call.started", "call.chunk", "call.finished", "decision"})
_OUR_OTHERS = frozenset({"entry", "status"})
"""In all other events a name may be anything that people write."""
OUR_META = frozenset(
    "requestId keyFingerprint idempotent callId effect status attempts durationMs fromCache breakerState gapMs tries"
    " orphan usage stopReason stream transport matchedOn ageMs".split()
)
"""The same for ``meta``."""


class Recorder:
    """Writes the events of one run."""

    def __init__(
        self,
        run_id: str,
        *,
        store: Store,
        journal: SyncJournal,
        clock: Clock,
        redactor: Redactor,
        blobs: Callable[[], Blobs | None],
        tenant: str,
        workspace: str,
        invoker: Invoker | None = None,
        write: Write | None = None,
        write_async: WriteAsync | None = None,
    ) -> None:
        """*write* and *write_async*: where events go instead of the journal; give both or neither."""
        self.run_id = run_id
        self.store = store
        self.journal = journal
        self.clock = clock
        self.redactor = redactor
        self.blobs = blobs
        self.tenant = tenant
        self._in_process = store.in_process
        """Events of a store in this process are written out when somebody reads them: most are never read."""
        self._presented: tuple[Any, bytes] = (None, b"")
        """The arguments looked at last: their start event comes right after."""
        self._familiar = Familiar(redactor)
        self._placed: tuple[Site | None, bytes] = (None, b"")
        """The site written last and the beginning of its events: an end mostly follows its start."""
        self._now_ms = clock.now_ms
        self._async: weakref.WeakKeyDictionary[Any, Journal] = weakref.WeakKeyDictionary()
        in_memory = self._in_process and write is None
        if write is None and write_async is None:
            write, write_async = partial(journal.append, run_id), self._append_async
        self.scope = RunScope(
            run_id,
            clock_ms=clock.now_ms,
            encode=self.encode,
            write=write,
            write_async=write_async,
            in_memory=in_memory,
            present=self.present,
            shown=self.shown,
            compose=self.compose,
            pieces=self.pieces,
            store=store,
            invoker=invoker,
            tenant=tenant,
            workspace=workspace,
        )

    def shown(self, arguments: Any, digest: str, canonical: bytes | None = None) -> tuple[bytes, str, bool]:
        """The arguments as they may be written. Digests of redacted arguments are made from the placeholders."""
        data = dump(arguments)
        both = None if canonical is None else self.redactor.redact_both(data, canonical)
        if both is not None:
            clean, other = both
            return (data, digest, False) if clean is data else (clean, hashlib.sha256(other).hexdigest(), True)
        clean, changed = self.redactor.redact_bytes(data)
        if not changed:
            return data, digest, False
        value = orjson.loads(clean)
        return orjson.dumps(value), hashlib.sha256(canonical_json(value)).hexdigest(), True

    def present(self, arguments: Any, digest: str) -> tuple[Any, str, bool]:
        """The same with the arguments as values."""
        if type(arguments) is dict and self._familiar.has_no_secret(arguments):
            self._presented = arguments, dump(arguments)
            return arguments, digest, False
        data, digest, changed = self.shown(arguments, digest)
        value = orjson.loads(data) if changed else arguments
        self._presented = value, data
        return value, digest, changed

    def encode(self, kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> Row:
        """One event, ready to be written."""
        if self._in_process:
            taken = self._taken(payload, meta)
            if taken is not None:
                late = [(self._body, kind, site, taken)]
                return _new(LateRow, (self.run_id, kind, self._now_ms(), late))  # type: ignore[no-any-return]
        return Row(self.run_id, kind, self._now_ms(), self._body(kind, site, payload, meta))

    def _taken(self, payload: dict[str, Any], meta: dict[str, Any]) -> Taken | None:
        """What the event says, so that nobody can change it any more; ``None`` if it is large."""
        known, part = self._presented
        if known is not None:
            if payload.get("request") is known:
                payload = {**payload, "request": orjson.Fragment(part)}
                if "providerRequest" not in payload and len(part) < SPILL_BYTES // 2:
                    return payload, meta  # texts and numbers of our own
            elif payload.get("arguments") is known:
                payload = {**payload, "arguments": orjson.Fragment(part)}
        taken = dump((payload, meta))
        return taken if len(taken) <= SPILL_BYTES else None

    def _body(self, kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> bytes:
        if kind != "draw":  # times, numbers and ids of our own making
            payload = self._clean_payload(payload, OUR_FIELDS if kind in _OUR_EVENTS else _OUR_OTHERS)
        if not OUR_META.issuperset(meta):
            meta = self._clean_meta(meta)
        if site is None:
            body = {"payload": payload, "v": 1, "meta": meta}
        else:
            lane, index, _, call, parent = site
            head = {"lane": lane, "index": index, "call": call, "parent": parent}
            body = {**head, "payload": payload, "v": 1, "meta": meta}
        return with_sum(kind, dump(body))

    def compose(self, kind: str, site: Site, payload: bytes, meta: bytes) -> Row:
        """One event whose parts are written already; byte for byte what :meth:`encode` makes of them."""
        if len(payload) > SPILL_BYTES:
            payload = self._without_large_parts(payload)
        known, head = self._placed
        if known is not site:
            lane, index, _, call, parent = site
            place = (_quoted(lane), index, _quoted(call), _quoted(parent))
            head = b'{"lane":%b,"index":%d,"call":%b,"parent":%b,"payload":' % place
            self._placed = site, head
        body = b'%b%b,"v":1,"meta":%b}' % (head, payload, meta)
        return _new(Row, (self.run_id, kind, self._now_ms(), with_sum(kind, body)))  # type: ignore[no-any-return]

    def _clean_payload(self, payload: dict[str, Any], ours: frozenset[str]) -> dict[str, Any]:
        """The payload without secrets; large parts of it become references to blobs."""
        clean: dict[str, Any] = {}
        parts: list[tuple[str, bytes]] = []
        size = 0
        for name, value in payload.items():
            if name in ours or value is None or value is True or value is False:
                clean[name] = value
                continue
            known, part = self._presented
            if value is not known:
                part = self._clean(value)
            parts.append((name, part))
            size += len(part)
            clean[name] = orjson.Fragment(part)
        if size > SPILL_BYTES:
            clean |= self._spilled(parts)
        return clean

    def _without_large_parts(self, payload: bytes) -> bytes:
        """A payload that holds no secret, with references to its large parts."""
        parts = {name: bytes(part) for name, part in _decode_parts(payload).items()}
        free = [(name, part) for name, part in parts.items() if name not in OUR_FIELDS]
        if sum(len(part) for _, part in free) <= SPILL_BYTES:
            return payload
        return orjson.dumps({name: orjson.Fragment(part) for name, part in parts.items()} | self._spilled(free))

    def _clean(self, value: Any) -> bytes:
        data = dump(value)
        clean, changed = self.redactor.redact_bytes(data)
        return orjson.dumps(orjson.loads(clean)) if changed else data

    def _clean_meta(self, meta: dict[str, Any]) -> dict[str, Any]:
        free = {name: value for name, value in meta.items() if name not in OUR_META}
        return {**meta, **orjson.loads(self._clean(free))}

    def take(self, event: Event) -> Row:
        """An event from elsewhere, kept as our own are: redacted, its large parts spilled."""
        holds = sum_holds(event)
        payload = orjson.loads(self._clean(event.payload))
        parts = [(name, orjson.dumps(value)) for name, value in payload.items()]
        if sum(len(part) for _, part in parts) > SPILL_BYTES:
            payload |= self._spilled(parts)
        kept = msgspec.structs.replace(event, payload=payload, meta=orjson.loads(self._clean(event.meta)))
        if holds:  # one that was changed before it came here still says so
            kept = summed(kept)
        body = {name: getattr(kept, name) for name in ("lane", "index", "call", "parent", "payload", "v", "meta")}
        return Row(self.run_id, event.type, event.at_ms, orjson.dumps(body))

    def clean_manifest(self, manifest: RunManifest) -> RunManifest:
        """The head of the run without secrets; ids, digests and who owns it stay as they are."""
        free = {name: getattr(manifest, name) for name in ("name", "tags", "llm_config", "tool_schemas")}
        clean = orjson.loads(self._clean(free))
        if "owner" in manifest.tags:
            clean["tags"]["owner"] = manifest.tags["owner"]
        return msgspec.structs.replace(manifest, **clean)

    def _spilled(self, parts: list[tuple[str, bytes]]) -> dict[str, Any]:
        """References to the large ones, kept before the event that names them is written; equal parts are kept once."""
        blobs = self.blobs()
        if blobs is None:
            return {}
        return {
            name: {"$blob": blobs.put(self.tenant, part), "bytes": len(part)}
            for name, part in parts
            if len(part) > SPILL_BYTES // 4
        }

    def pieces(self, site: Site) -> Pieces:
        """What takes the pieces of a stream at *site*."""

        def encode(number: int, data: Any, gap_ms: float) -> Row:
            return self.scope.encode("call.chunk", site, {"n": number, "data": data}, {"gapMs": round(gap_ms, 3)})

        return Pieces(self.redactor, encode)

    async def _append_async(self, rows: Sequence[Row]) -> None:
        if self._in_process:
            self.journal.append(self.run_id, rows)
        else:
            await self.journal_for(True).append(self.run_id, rows)

    def journal_for(self, asynchronous: bool) -> Journal:
        """The journal of the running event loop, or one whose coroutines never suspend."""
        if not asynchronous or self._in_process:
            return AsyncFromSync(self.journal)
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
