"""How events get from a running call into the log: redacted first, spilled if large, then written."""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec
import orjson

from antiphon._recording.plain import digest_of, dump, quick_dump, with_members
from antiphon._recording.seals import KeyRing, RunKey, context, part_of
from antiphon._scope import RunScope, Site, Write, WriteAsync
from antiphon._seal import Sealer
from antiphon.contract.events import (
    AFTER_END,
    BLOBS,
    EVENT_VERSION,
    MASKS,
    PSEUDONYMS,
    SEALED,
    Event,
    RunManifest,
    spilled,
    sum_holds,
    summed,
    with_sum,
)
from antiphon.errors import AntiphonError
from antiphon.ports import Blobs, Clock, Invoker, Journal, Row, Store, SyncJournal
from antiphon.redact import Mask, Redactor
from antiphon.redact._pointers import differences, pseudonyms_of
from antiphon.redact._redactor import in_json
from antiphon.stores._adapters import AsyncFromSync

Part = str | bytes | tuple[Any, Any]
"""The text of a plain message, any other message as JSON, and the rest of a request: as JSON, or model and provider."""
_BARE = {"model", "provider", "messages", "tools"}
_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_PARTS_KEPT = 4096
_LENGTH_KEPT = 4_000_000


class RedactionCache:
    """Parts of conversations that were checked for secrets and contain none.

    The next request of a conversation repeats the previous one: the prompt, the tools, all earlier messages. Only what
    is new has to be checked. A message is checked as a whole, with its field names, so checking the parts finds the
    same as checking the request; users' rules may name any field, so with them every request is checked in full.
    """

    __slots__ = ("_known", "_length", "_redactor", "_values")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._known: set[Part] = set()
        self._length = 0
        self._values = 0

    def has_no_secret(self, request: dict[str, Any]) -> bool:
        """Whether a canonical request contains nothing to redact; ``False`` also means unknown."""
        messages = request.get("messages")
        if type(messages) is not list or not self._redactor.in_parts:
            return False
        if len(messages) == 2 and type(messages[0]) is str and self._redactor.redact(messages) is not messages:
            return False  # a name and its value
        known = self._known
        values = len(self._redactor.pseudonyms.values)
        if values != self._values:  # new secrets have to be looked for in all parts
            known.clear()
            self._values, self._length = values, 0
        fresh: dict[Part, Any] = {}
        for message in messages:
            role = message.get("role") if type(message) is dict and len(message) == 2 else None
            content = message.get("content") if type(role) is str and role in _ROLES else None
            part = content if type(content) is str else dump(message)
            if part not in known:
                fresh[part] = message
        model, provider = request.get("model"), request.get("provider")
        bare = request.keys() == _BARE and not request["tools"] and type(model) is type(provider) is str
        rest: Part = (model, provider) if bare else dump({**request, "messages": None})
        if rest not in known:
            fresh[rest] = {**request, "messages": None}
        return not fresh or self._look(fresh)

    def _look(self, fresh: dict[Part, Any]) -> bool:
        if self._redactor.redact_bytes(dump(list(fresh.values())))[1]:
            return False
        self._length += sum(map(len, fresh))
        if len(self._known) > _PARTS_KEPT or self._length > _LENGTH_KEPT:
            self._known.clear()
            self._length = 0
        self._known.update(fresh)
        return True


Body = Callable[[str, Site | None, dict[str, Any], dict[str, Any]], bytes]
Taken = bytes | tuple[dict[str, Any], dict[str, Any]]
"""Payload and ``meta`` as JSON, or as values that nobody modifies."""


class LateRow(Row):
    """A row whose body is built when it is read: for stores that live in the process.

    The content of the event is captured at once, so that later changes by the caller do not show in it. Redaction and
    checksum happen on first read. In place of the body is a list that holds what it is built from, and later the body
    itself.
    """

    __slots__ = ()

    def __repr__(self) -> str:  # never shows content that is not redacted yet
        return f"LateRow({self.run!r}, {self.type!r}, {self.at_ms})"

    @property
    def body(self) -> bytes:
        late: Any = self[3]
        found: bytes | tuple[Body, str, Site | None, Taken] = late[0]
        if isinstance(found, bytes):
            return found
        write, kind, site, taken = found
        payload, meta = orjson.loads(taken if isinstance(taken, bytes) else orjson.dumps(taken))
        body = late[0] = write(kind, site, payload, meta)
        return body


_DIGESTS_KEPT = 100_000
GROUP = 64
"""How many chunks are written at once."""
LONGEST_S = 0.1
"""A chunk that is ready waits at most this long for others, as long as the reader keeps reading."""

_FIXED = (str, int, float, bool, type(None), bytes)
Encode = Callable[[int, Any, float, Any], Row]


class Chunks:
    """Takes the chunks of one stream and returns the rows to write (D18, D21).

    A chunk goes to its reader first. It is recorded once no secret can extend across its end, and chunks are written in
    groups: a reader never waits for a commit per chunk.
    """

    __slots__ = ("_count", "_encode", "_fresh", "_ready", "_redactor", "_since", "_stream", "_waiting")

    def __init__(self, redactor: Redactor, encode: Encode) -> None:
        self._redactor = redactor
        self._encode = encode
        """(number, data as recorded, pause before it in ms, original data) -> row."""
        self._fresh: list[tuple[Any, bool, float]] = []
        """(data, whether it is JSON of something the reader may modify, pause)."""
        self._waiting: deque[tuple[Any, float]] = deque()
        """(data, pause) of chunks whose end may still become part of a secret."""
        self._ready: list[Row] = []
        self._stream: Any = None
        self._count = 0
        self._since = 0.0

    def add(self, data: Any, gap_ms: float) -> None:
        """Record a chunk on its way to the reader; must be fast, because the reader is waiting."""
        if not self._fresh and not self._ready:
            self._since = time.monotonic()
        changes = data.__class__ not in _FIXED  # snapshot what the reader could modify
        self._fresh.append((dump(data) if changes else data, changes, gap_ms))

    def due(self) -> list[Row]:
        """The rows to write now, if any are due; called when the reader asks for more."""
        waiting = len(self._fresh) + len(self._ready)
        if not waiting or (waiting < GROUP and time.monotonic() - self._since < LONGEST_S):
            return []
        self._take()
        self._since = time.monotonic()
        rows, self._ready = self._ready, []
        return rows

    def remaining(self) -> list[Row]:
        """Everything that is left, at the end of the stream."""
        self._take()
        if self._stream is not None:
            self._add_ready(self._stream.finish())
        rows, self._ready = self._ready, []
        return rows

    def _take(self) -> None:
        fresh, self._fresh = self._fresh, []
        if fresh and self._stream is None:
            from antiphon.redact._stream import redacting

            self._stream = redacting(self._redactor, fresh[0][0])
        for data, changes, gap_ms in fresh:
            chunk = orjson.loads(data) if changes else data
            self._waiting.append((chunk, gap_ms))
            self._add_ready(self._stream.feed(chunk))

    def _add_ready(self, chunks: list[Any]) -> None:
        for data in chunks:
            original, gap_ms = self._waiting.popleft()
            self._ready.append(self._encode(self._count, data, gap_ms, original))
            self._count += 1

    @property
    def found(self) -> dict[str, str]:
        """The pseudonyms in the stream, with their kinds."""
        return {} if self._stream is None else self._stream.found


def restore_blobs(event: Event, blobs: Blobs | None, tenant: str) -> Event:
    """The event with its spilled parts restored, and a checksum that still shows whether it was altered."""
    parts = spilled(event)
    if not parts:
        return event
    if blobs is None:
        raise AntiphonError("The event refers to a blob and no blob store is configured.")
    brought = {name: orjson.loads(blobs.get(tenant, ref)) for name, ref in parts.items() if name != SEALED}
    meta = {name: value for name, value in event.meta.items() if name != BLOBS}
    if SEALED in parts:
        meta[SEALED] = blobs.get(tenant, parts[SEALED]).decode()
    made = msgspec.structs.replace(event, payload={**event.payload, **brought}, meta=meta)
    return summed(made) if sum_holds(event) else made


SPILL_BYTES = 65_536
"""Parts of an event larger than this go to the blob store."""

_quoted = orjson.dumps
_decode_parts = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_new: Any = tuple.__new__  # half the cost of a named tuple's own constructor

OUR_FIELDS = frozenset(
    "kind name namespace digest rawDigest nth key keyOf recipe variant outcome n what status provider entry".split()
)
"""Payload fields with our own vocabulary, tool names and digests: nothing to redact."""
_OUR_EVENTS = frozenset({"call.started", "call.chunk", "call.finished", "decision", "draw"})
_OUR_OTHERS = frozenset({"entry", "status"})
"""In all other events a name may be any user text."""
OUR_META = frozenset(
    "requestId keyFingerprint idempotent callId effect status attempts durationMs fromCache breakerState gapMs tries"
    " afterEnd orphan usage stopReason stream transport matchedOn ageMs masks sealed blobs pseudonyms given".split()
)
"""The same for ``meta``."""


class Masking(NamedTuple):
    """What redaction did to a document: where stand-ins are, and the original."""

    masks: list[Mask]
    original: bytes
    digest: str = ""
    """Of a call's original arguments."""


class _Shared(msgspec.Struct, eq=False):
    """A journal and how many runs use it."""

    journal: Journal
    users: int = 0


class LoopJournals:
    """A store's asynchronous journals: one per event loop, shared by all its runs, closed with the last of them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._shared: weakref.WeakKeyDictionary[Any, _Shared] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def share(self, loop: Any, journal: Journal) -> None:
        """Let all runs in *loop* use a journal that somebody else closes."""
        with self._lock:
            self._shared[loop] = _Shared(journal, 1)

    def take(self, loop: Any) -> Journal:
        """Get the journal of a loop for one more run."""
        with self._lock:
            found = self._shared.get(loop)
            if found is None:
                found = self._shared[loop] = _Shared(self._store.open_async())
            found.users += 1
            return found.journal

    async def give_back(self, loop: Any) -> None:
        """Release the running loop's journal for one run."""
        with self._lock:
            found = self._shared.get(loop)
            if found is None:
                return
            found.users -= 1
            if found.users > 0:
                return
            del self._shared[loop]
        await found.journal.close()


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
        key: RunKey | None = None,
        ring: KeyRing | None = None,
        invoker: Invoker | None = None,
        write: Write | None = None,
        write_async: WriteAsync | None = None,
        loops: LoopJournals | None = None,
    ) -> None:
        """*write* and *write_async*: where events go instead of the journal; give both or neither. *loops*: the
        asynchronous journals that this run shares with others.

        Originals are sealed with *key* if there is a *ring* that can wrap it.
        """
        self.run_id = run_id
        self.store = store
        self.journal = journal
        self.clock = clock
        self.key: RunKey = key or RunKey.new(run_id, keeps=ring is not None)
        self.redactor: Redactor = redactor.for_run(self.key.key)
        """Replaces secrets by pseudonyms under the run's key."""
        self._ring = ring
        self.blobs = blobs
        self.tenant = tenant
        self._in_process = store.in_process
        """Events of an in-process store are serialised when somebody reads them: most are never read."""
        self._presented: tuple[Any, bytes] = (None, b"")
        """The last arguments checked, if they contain no secret: their start event comes right after."""
        self._redaction_cache = RedactionCache(self.redactor)
        self._written: set[str] = set()
        """Digests of arguments that were written unredacted. Equal ones keep their digest even after a value in them
        was found to be a secret: equal calls of a run have one digest and are counted together.
        """
        self._placed: tuple[Site | None, bytes] = (None, b"")
        """The last site written and the beginning of its events: an end usually follows its start."""
        self._now_ms = clock.now_ms
        self._loops = loops or LoopJournals(store)
        self._async: weakref.WeakKeyDictionary[Any, Journal] = weakref.WeakKeyDictionary()
        in_memory = self._in_process and write is None
        if write is None and write_async is None:
            write, write_async = partial(journal.append, run_id), self._append_async
        self.scope: RunScope = RunScope(
            run_id=run_id,
            clock_ms=clock.now_ms,
            encode=self.encode,
            write=write,
            write_async=write_async,
            in_memory=in_memory,
            present=self.redact_arguments,
            shown=self.redact_arguments_json,
            known=self.known,
            compose=self.compose,
            chunks=self.chunks,
            store=store,
            invoker=invoker,
            tenant=tenant,
        )

    @functools.cached_property
    def _seal(self) -> Callable[[bytes, bytes], str] | None:
        """Seals originals; created with the first of them, when the run's manifest gets the key."""
        if not self.key.keeps or self._ring is None:
            return None
        self.key = self._ring.ready(self.key)
        if self.key.wrapped:
            known = self.journal.manifest(self.run_id)
            if known is not None and known.seal != self.key.to_wire():
                self.journal.update_run(msgspec.structs.replace(known, seal=self.key.to_wire()))
        return Sealer(self.key.key).seal if self.key.keeps else None

    def after_end(self, tell: Callable[[int], None]) -> None:
        """From now on events are addenda of a run that has ended: they are marked, and *tell* receives the count."""
        scope = self.scope
        encode, compose = scope.encode, scope.compose
        calls = 0

        def counted(kind: str) -> None:
            nonlocal calls
            if kind == "call.started":
                calls += 1
            if kind in ("call.started", "call.finished"):
                tell(calls)

        def late(kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> Row:
            counted(kind)
            return encode(kind, site, payload, {**meta, AFTER_END: True})

        def late_compose(kind: str, site: Site, payload: bytes, meta: bytes, masking: Masking | None = None) -> Row:
            counted(kind)
            return compose(kind, site, payload, b'{"%b":true,%b' % (AFTER_END.encode(), meta[1:]), masking)

        scope.encode, scope.compose = late, late_compose

    @functools.cached_property
    def _viewer(self) -> Redactor:
        return self.redactor.shown()

    def known(self) -> Redactor | None:
        """Masks the values that were found in the run so far; ``None`` if there are none."""
        return self._viewer if self.redactor.pseudonyms else None

    def view(self, value: Any) -> Any:
        """A value of the run as others may see it, with masks."""
        return self._viewer.redact(orjson.loads(dump(value)))

    def masked(self, data: bytes) -> tuple[bytes, Masking | None]:
        """Serialised JSON, redacted."""
        found = self.redactor.mask(data)
        return (data, None) if found is None else (found[0], Masking(found[1], data))

    def learn_from(self, other: Recorder) -> None:
        """Add the secrets of another run to the known ones."""
        found = other.redactor.pseudonyms
        for value, pseudonym in list(found.values.items()):
            self.redactor.pseudonyms.of(found.kinds[pseudonym], value)
        self.scope.quoted.update(other.scope.quoted)

    def redact_arguments_json(self, arguments: Any, digest: str) -> tuple[bytes, str, Any]:
        """The arguments as they may be written; if they contain secrets, the digest is computed from the pseudonyms."""
        data = quick_dump(arguments)
        if data is None:
            data = dump(arguments)
            with suppress(Exception):  # nested too deeply, or whatever the classes of the arguments raise
                self.redactor.mask(dump(with_members(arguments)))  # learns what only a member's name tells
        clean, masking = self.masked(data)
        if masking is None:
            self._note_written(digest)
            return data, digest, None
        masking = Masking(masking.masks, masking.original, digest)
        if digest not in self._written:
            digest = digest_of(orjson.loads(clean))
        return clean, digest, masking

    def _note_written(self, digest: str) -> None:
        if len(self._written) >= _DIGESTS_KEPT:  # a run may last for weeks
            self._written.clear()
        self._written.add(digest)

    def redact_arguments(self, arguments: Any, digest: str) -> tuple[Any, str, Any]:
        """The same with the arguments as values."""
        if type(arguments) is dict and self._redaction_cache.has_no_secret(arguments):
            self._presented = arguments, dump(arguments)
            self._note_written(digest)
            return arguments, digest, None
        data, digest, masking = self.redact_arguments_json(arguments, digest)
        if masking is not None:
            self._presented = None, b""
            return orjson.loads(data), digest, masking
        self._presented = arguments, data
        return arguments, digest, None

    def encode(self, kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> Row:
        """One event, ready to be written."""
        if self._in_process:
            taken = self._taken(payload, meta)
            if taken is not None:
                late = [(self._body, kind, site, taken)]
                return _new(LateRow, (self.run_id, kind, self._now_ms(), late))  # type: ignore[no-any-return]
        return Row(self.run_id, kind, self._now_ms(), self._body(kind, site, payload, meta))

    def _taken(self, payload: dict[str, Any], meta: dict[str, Any]) -> Taken | None:
        """A snapshot of the event's content; ``None`` if it is large."""
        known, part = self._presented
        if known is not None:
            if payload.get("request") is known:
                payload = {**payload, "request": orjson.Fragment(part)}
                if "providerRequest" not in payload and len(part) < SPILL_BYTES // 2:
                    return payload, meta  # text and numbers of our own
            elif payload.get("arguments") is known:
                payload = {**payload, "arguments": orjson.Fragment(part)}
        taken = dump((payload, meta))
        return taken if len(taken) <= SPILL_BYTES else None

    def _body(self, kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> bytes:
        extra_meta: dict[str, Any] = {}
        if kind != "draw" or payload["what"] == "stdin":  # other draws are times, numbers and ids that we create
            payload, extra_meta = self._clean_payload(kind, site, payload, meta)
        if not OUR_META.issuperset(meta):
            meta = self._clean_meta(meta)
        return self._document(kind, site, payload, {**meta, **extra_meta} if extra_meta else meta)

    def _document(self, kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]) -> bytes:
        if site is None:
            body = {"payload": payload, "v": EVENT_VERSION, "meta": meta}
        else:
            lane, index, _, call, parent = site
            head = {"lane": lane, "index": index, "call": call, "parent": parent}
            body = {**head, "payload": payload, "v": EVENT_VERSION, "meta": meta}
        return with_sum(kind, dump(body))

    def compose(self, kind: str, site: Site, payload: bytes, meta: bytes, masking: Masking | None = None) -> Row:
        """One event whose parts are serialised already; byte for byte what :meth:`encode` makes of them.

        *masking* is what redaction did to its arguments.
        """
        extra_meta: dict[str, Any] = {}
        if masking is not None:
            extra_meta = self._extra_meta(kind, site, None, {"arguments": masking}, masking.digest)
        elif self.redactor.knows(payload):
            return self.encode(kind, site, orjson.loads(payload), orjson.loads(meta))
        if len(payload) > SPILL_BYTES:
            payload, blobs = self._without_large_parts(payload)
            if blobs:
                extra_meta = {**extra_meta, BLOBS: {**blobs, **extra_meta.get(BLOBS, {})}}
        if extra_meta:
            meta = b"%b%b%b" % (meta[:-1], b"" if meta == b"{}" else b",", orjson.dumps(extra_meta)[1:])
        known, head = self._placed
        if known is not site:
            lane, index, _, call, parent = site
            place = (_quoted(lane), index, _quoted(call), _quoted(parent))
            head = b'{"lane":%b,"index":%d,"call":%b,"parent":%b,"payload":' % place
            self._placed = site, head
        body = b'%b%b,"v":2,"meta":%b}' % (head, payload, meta)
        return _new(Row, (self.run_id, kind, self._now_ms(), with_sum(kind, body)))  # type: ignore[no-any-return]

    def _clean_payload(
        self, kind: str, site: Site | None, payload: dict[str, Any], meta: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The payload without secrets and large parts, and what ``meta`` says about both."""
        ours = OUR_FIELDS if kind in _OUR_EVENTS else _OUR_OTHERS
        clean: dict[str, Any] = {}
        parts: list[tuple[str, bytes]] = []
        changed: dict[str, Masking] = {}
        size = 0
        for name, value in payload.items():
            if name in ours or value is None or value is True or value is False:
                clean[name] = value
                continue
            known, part = self._presented
            if value is not known:
                part = dump(value)
                if kind != "call.chunk":  # redacted already, as part of its stream
                    part, masking = self.masked(part)
                    if masking is not None:
                        changed[name] = masking
            parts.append((name, part))
            size += len(part)
            clean[name] = orjson.Fragment(part)
        part_number = part_of(payload, meta)
        extra_meta = (
            self._extra_meta(kind, site, part_number, changed, str(payload.get("rawDigest", ""))) if changed else {}
        )
        clean.pop("rawDigest", None)
        if size > SPILL_BYTES:
            blobs = self._spilled(parts)
            clean |= dict.fromkeys(blobs)
            if blobs:
                extra_meta[BLOBS] = {**blobs, **extra_meta.get(BLOBS, {})}
        return clean, extra_meta

    def _extra_meta(
        self, kind: str, site: Site | None, part: Any, changed: dict[str, Masking], digest: str
    ) -> dict[str, Any]:
        """What ``meta`` says about the masked parts of a payload: where the masks are, and the sealed originals."""
        masks = [
            [f"/{name}{pointer}", start, length, of, True] if key else [f"/{name}{pointer}", start, length, of]
            for name, masking in changed.items()
            for pointer, start, length, of, key in masking.masks
        ]
        extra_meta: dict[str, Any] = {MASKS: masks}
        seal = self._seal
        if seal is not None:
            kept = b",".join(b"%b:%b" % (_quoted(name), self._kept(m.original)) for name, m in changed.items())
            data = b'{"payload":{%b}%b}' % (kept, b',"digest":%b' % _quoted(digest) if digest else b"")
            call = None if site is None else site.call
            sealed = seal(data, context(self.key.run, kind, call, part))
            blobs = self.blobs() if len(sealed) > SPILL_BYTES // 4 else None
            if blobs is None:
                extra_meta[SEALED] = sealed
            else:
                extra_meta[BLOBS] = {SEALED: blobs.put(self.tenant, sealed.encode())}
        return extra_meta

    def _kept(self, data: bytes) -> bytes:
        """An original as it is sealed: even there, credentials of this machine's environment are replaced."""
        for needle, value, kind in self.redactor.credentials:
            if needle in data:
                data = data.replace(needle, in_json(self.redactor.pseudonyms.of(kind, value)))
        return data

    def _without_large_parts(self, payload: bytes) -> tuple[bytes, dict[str, str]]:
        """A secret-free payload without its large parts, and references to those."""
        parts = {name: bytes(part) for name, part in _decode_parts(payload).items()}
        free = [(name, part) for name, part in parts.items() if name not in OUR_FIELDS]
        if sum(len(part) for _, part in free) <= SPILL_BYTES:
            return payload, {}
        blobs = self._spilled(free)
        rest = {name: None if name in blobs else orjson.Fragment(part) for name, part in parts.items()}
        return orjson.dumps(rest), blobs

    def _clean_meta(self, meta: dict[str, Any]) -> dict[str, Any]:
        free = {name: value for name, value in meta.items() if name not in OUR_META}
        return {**meta, **self.view(free)}

    def import_foreign_event(self, event: Event) -> Row:
        """An event of another format, stored as if it had been recorded here: redacted, with sealed originals."""
        payload = event.payload
        field = "request" if "request" in payload else "arguments"
        if event.type == "call.started":
            payload = {**payload, "name": self.view(payload["name"])}
            clean, masking = self.masked(dump(payload[field]))
            if masking is not None:  # no digest may be computed from raw values (D36)
                payload |= {"rawDigest": payload["digest"], "digest": digest_of(orjson.loads(clean))}
        site = None if event.call is None else Site(event.lane, event.index, 0, event.call, event.parent)
        return Row(self.run_id, event.type, event.at_ms, self._body(event.type, site, payload, event.meta))

    def import_event(self, event: Event) -> Row:
        """An imported event, stored like our own: redacted, with large parts spilled.

        Pseudonyms that it declares are kept.
        """
        holds = sum_holds(event)
        for text, kind in pseudonyms_of(event):
            self.redactor.pseudonyms.learn(text, text, kind)
        ours = {name: event.meta[name] for name in (MASKS, SEALED, PSEUDONYMS, "sum") if name in event.meta}
        payload, extra_meta = event.payload, dict[str, Any]()
        clean, masking = self.masked(dump(payload))
        if masking is not None:
            payload = orjson.loads(clean)
            ours[MASKS] = [mask.to_wire() for mask in masking.masks]
        parts = [(name, orjson.dumps(value)) for name, value in payload.items()]
        sealed = str(ours.get(SEALED, ""))
        if sum(len(part) for _, part in parts) > SPILL_BYTES:
            extra_meta = self._spilled(parts)
            payload = {**payload, **dict.fromkeys(extra_meta)}
        blobs = self.blobs() if len(sealed) > SPILL_BYTES // 4 else None
        if blobs is not None:
            extra_meta = {**extra_meta, SEALED: blobs.put(self.tenant, sealed.encode())}
            del ours[SEALED]
        free = {name: value for name, value in event.meta.items() if name not in ours and name != BLOBS}
        meta = {**self.view(free), **ours, **({BLOBS: extra_meta} if extra_meta else {})}
        version = EVENT_VERSION if spilled(event) else event.v  # documents cannot refer to blobs: this is user data
        kept = msgspec.structs.replace(event, payload=payload, meta=meta, v=version)
        if holds:  # one that was altered before the import stays marked
            kept = summed(kept)
        body = {name: getattr(kept, name) for name in ("lane", "index", "call", "parent", "payload", "v", "meta")}
        return Row(self.run_id, event.type, event.at_ms, orjson.dumps(body))

    def clean_manifest(self, manifest: RunManifest) -> RunManifest:
        """The head of the run without secrets; ids, digests and the owner are kept."""
        # neither our field names nor the names of packages are secrets, even where a secret is the same word
        free = ("name", "entry", "tags", "llm_config", "tool_schemas")
        clean = dict(zip(free, self.view([getattr(manifest, name) for name in free]), strict=True))
        clean["packages"] = dict(zip(manifest.packages, self.view(list(manifest.packages.values())), strict=True))
        if "owner" in manifest.tags:
            clean["tags"]["owner"] = manifest.tags["owner"]
        return self.with_key(msgspec.structs.replace(manifest, **clean))

    def with_key(self, manifest: RunManifest) -> RunManifest:
        """The manifest with the run's key as it is currently wrapped."""
        return msgspec.structs.replace(manifest, seal=self.key.to_wire() or manifest.seal)

    def _spilled(self, parts: list[tuple[str, bytes]]) -> dict[str, str]:
        """References to the large parts, stored before the event that refers to them; equal parts are stored once."""
        blobs = self.blobs()
        if blobs is None:
            return {}
        return {name: blobs.put(self.tenant, part) for name, part in parts if len(part) > SPILL_BYTES // 4}

    def chunks(self, site: Site) -> Chunks:
        """Takes the chunks of a stream at *site*."""

        declared: set[str] = set()

        def encode(number: int, data: Any, gap_ms: float, original: Any) -> Row:
            meta: dict[str, Any] = {"gapMs": round(gap_ms, 3)}
            clean, was = dump(data), dump(original)
            if clean == was:
                return self.scope.encode("call.chunk", site, {"n": number, "data": data}, meta)
            fresh = {text: kind for text, kind in chunks.found.items() if text not in declared}
            declared.update(fresh)
            if fresh:
                meta[PSEUDONYMS] = fresh
            masking = Masking(differences(orjson.loads(was), orjson.loads(clean)), was)
            extra_meta = self._extra_meta("call.chunk", site, number, {"data": masking}, "")
            body = self._document(
                "call.chunk", site, {"n": number, "data": orjson.Fragment(clean)}, {**meta, **extra_meta}
            )
            return Row(self.run_id, "call.chunk", self._now_ms(), body)

        chunks = Chunks(self.redactor, encode)
        return chunks

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
            journal = self._async[loop] = self._loops.take(loop)
        return journal

    async def close(self) -> None:
        """Release the journals opened for event loops."""
        import sys

        asyncio = sys.modules.get("asyncio")
        loop = asyncio._get_running_loop() if asyncio is not None else None
        if loop is not None and loop in self._async:
            del self._async[loop]
            await self._loops.give_back(loop)
