"""Runs: found by id, unique prefix or ``latest``, read, listed, and shown as a tree (K8)."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from antiphon import _saga
from antiphon._diff import plural
from antiphon._gateway.ids import uuid7
from antiphon._gateway.owner import certainly_dead, owner_token
from antiphon._lineage import outside
from antiphon._recording.foreign import PARTIAL, conversation
from antiphon._recording.run import AFTER_END_TAG, EXIT_TAG, OPEN_TAG
from antiphon._recording.seals import Originals
from antiphon._replay.recording import Recording, full_name
from antiphon.blobs.local import ContentBlobs
from antiphon.contract.events import MASKS, OF_THE_STORE, SEALED, Event, RunManifest, is_reserved, spilled
from antiphon.errors import ArtifactError, InvalidInput, NotFound, StoreError
from antiphon.ops import Progress, each, silent
from antiphon.ops.costs import answered_by, cost_of, model_of, tokens_of
from antiphon.ops.resources import Resources
from antiphon.ports import Clock, Cursor, Journal, Row, SyncJournal
from antiphon.redact._pointers import PIECE, masks_in, text_at, viewed

if TYPE_CHECKING:
    from antiphon._recording.seals import RunKey
    from antiphon.redact._standins import Pseudonyms

log: logging.Logger = logging.getLogger("antiphon.run")

LATEST = "latest"
_PAGE = 100


def find_run(app: Resources, wanted: str | None) -> RunManifest:
    """The manifest of a run named by id, unique prefix, or ``latest`` (``None`` means the same)."""
    journal = app.journal
    if wanted is None or wanted == LATEST:
        for manifest in all_runs(app):
            if manifest.source_run is None and not is_audit(manifest):
                return manifest
        where = f"Looked in {app.store.url}."
        raise NotFound("There is no recorded run yet.", hint=f"{where} Record one: antiphon run agent.py:main")
    exact = journal.manifest(wanted)
    if exact is not None and exact.tenant == app.tenant:
        return exact
    if not wanted.strip():
        raise InvalidInput("The run id is empty.")
    matches = [found for found in journal.runs(tenant=app.tenant, prefix=wanted, limit=10) if not is_audit(found)]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        newest = [found for found in journal.runs(tenant=app.tenant, limit=4) if not is_audit(found)][:3]
        last = ", ".join(f"{m.id} ({m.name})" for m in newest)
        hint = (
            f"The latest: {last}. List them: antiphon runs"
            if last
            else "Nothing has been recorded yet: antiphon run FILE:FUNCTION"
        )
        raise NotFound(f"There is no run {wanted!r}.", hint=f"Looked in {app.store.url}. {hint}")
    listed = ", ".join(f"{m.id} ({m.name})" for m in matches)
    raise NotFound(f"{wanted!r} matches several runs.", hint=f"Candidates: {listed}", code="ambiguous")


def is_audit(manifest: RunManifest) -> bool:
    """Whether this is the audit log: stored like a run, but not made by an agent."""
    return is_reserved(manifest.id)


def all_runs(app: Resources, **wanted: str) -> Iterator[RunManifest]:
    """The runs that match, newest first, read page by page; the audit log is included."""
    before: Cursor | None = None
    while page := app.journal.runs(tenant=app.tenant, limit=_PAGE, before=before, **wanted):
        before = Cursor.of_run(page[-1])
        yield from page


def is_artifact(wanted: str) -> bool:
    """Whether *wanted* names a file rather than a run."""
    return wanted.endswith((".antiphon", ".kurral", ".json")) or Path(wanted).is_file()


def replay_manifest(app: Resources, source: RunManifest, kind: str, **more: Any) -> RunManifest:
    """A replay is itself a run, linked to its source (K1)."""
    return msgspec.structs.replace(
        source,
        id=uuid7(),
        started_at_ms=app.clock.now_ms(),
        source_run=source.id,
        salt="",  # of release 0.1.0; this run is written in the current format
        tags={"owner": owner_token(), "replay": kind},
        **more,
    )


def load_recording(
    app: Resources,
    manifest: RunManifest,
    *,
    unseal: bool = True,
    shown: bool = False,
    seen: Callable[[Event], None] | None = None,
) -> Recording:
    """The recording, ready for queries; spilled payloads are loaded on demand.

    With its key it holds the originals of masked values, unless *unseal* is false; *shown* is for people, with masks.
    *seen* receives each event as written.
    """
    if shown:
        return Recording.load(manifest, _UnsandboxedLog(app.journal), app.whole, viewed)
    key = app.keys.key_of(manifest) if unseal else None
    redactor = app._redactor.for_run(os.urandom(32) if key is None else key.key)
    opened = None if key is None else opener(app, key, redactor.pseudonyms)
    recording = Recording.load(manifest, _UnsandboxedLog(app.journal), app.whole, opened, seen)
    for text, kind in recording.masks.pseudonyms.items():
        redactor.pseudonyms.learn(text, text, kind)
    recording.masks.users = redactor.users
    recording.masks.pseudonym_of = lambda text: redactor.pseudonyms.values.get(text, text)
    recording.masks.lost = 0 if opened is None else opened.originals.lost
    recording.view = redactor.shown().redact
    return recording


def opener(app: Resources, key: RunKey, pseudonyms: Pseudonyms) -> _Opener:
    """Restores the originals in the events of a run; *pseudonyms* learn them."""
    return _Opener(Originals(key), pseudonyms, app.whole)


def learn_values(app: Resources, manifest: RunManifest, pseudonyms: Pseudonyms, *, last: int | None = None) -> None:
    """Let *pseudonyms* learn the values that are masked in a run, up to event *last*; its continuation masks them."""
    key = app.keys.key_of(manifest)
    if key is None:
        return
    opened = opener(app, key, pseudonyms)
    for event in app.events(manifest.id):
        if last is not None and event.seq > last:
            break
        with contextlib.suppress(NotFound, ArtifactError):  # the blob with its originals is lost or damaged
            opened(event)


class _Opener:
    """Restores the originals in events, and learns which pseudonym stands for which value."""

    def __init__(self, originals: Originals, pseudonyms: Pseudonyms, whole: Callable[[Event], Event]) -> None:
        self.originals = originals
        self._pseudonyms = pseudonyms
        self._whole = whole

    def __call__(self, event: Event) -> Event:
        if MASKS not in event.meta:
            return event
        if SEALED in spilled(event):
            event = self._whole(event)
        opened = self.originals.unseal(event)
        if opened is not event:
            for mask in masks_in(event.meta[MASKS]):
                value, stands = text_at(opened.payload, mask), text_at(event.payload, mask)
                if value and len(value) == len(stands) and mask.kind != PIECE:
                    self._pseudonyms.learn(value, stands, mask.kind)
        return opened


class _UnsandboxedLog:
    """The log of a recording, read from inside a sandbox: the store may need the network."""

    def __init__(self, journal: SyncJournal) -> None:
        self._journal = journal

    def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> list[Event]:
        with outside():
            return self._journal.events(run, start=start, stop=stop, limit=limit)


class ReservedRun:
    """A run without an agent: a log of what operators or the host changed. Every process appends to it."""

    def __init__(self, journal: Journal, clock: Clock, manifest: RunManifest) -> None:
        self._journal = journal
        self._clock = clock
        self._manifest = manifest
        self._run = manifest.id
        self._next = 0
        self._read_at = float("-inf")

    async def read(self, *, at_most_every_s: float = 0.0) -> list[Event]:
        """Events appended since the last call; none if that was less than *at_most_every_s* ago."""
        now = time.monotonic()
        found: list[Event] = []
        if now - self._read_at < at_most_every_s:
            return found
        self._read_at = now
        start = self._next
        while batch := await self._journal.events(self._run, start=start):
            if start == 0 and not await self._is_ours():
                log.error("the run %s comes from a file or another tenant: its content is ignored", self._run)
                return []
            start = batch[-1].seq + 1
            found += batch
        self._next = max(self._next, start)  # only now: if the store fails, all of them are read again
        return found

    async def _is_ours(self) -> bool:
        """Whether the run with this id is the expected log; release 0.1.0 imported any id."""
        there = await self._journal.manifest(self._run)
        return there is not None and there.tenant == self._manifest.tenant and "imported" not in there.tags

    async def append(self, kind: str, payload: dict[str, Any]) -> None:
        """Append one entry."""
        now = self._clock.now_ms()
        await self._journal.open_run(msgspec.structs.replace(self._manifest, started_at_ms=now))
        if not await self._is_ours():
            raise StoreError(f"The run {self._run} comes from a file or another tenant. Nothing was written to it.")
        body = orjson.dumps({"payload": payload, "meta": {}, "v": 1})
        await self._journal.append(self._run, (Row(self._run, kind, now, body),))


def real_status(manifest: RunManifest) -> str:
    """The status; a run whose process has died was interrupted, whatever its manifest says."""
    if manifest.status == "running" and certainly_dead(manifest.tags.get("owner", "")):
        return "interrupted"
    return manifest.status


def list_runs(
    app: Resources, *, prefix: str = "", name: str = "", status: str = "", limit: int = 20, replays: bool = False
) -> list[dict[str, Any]]:
    """The newest runs as plain data."""
    found = itertools.islice(_fitting(app, prefix, name, status, replays), limit)
    return [{**summary(manifest), "events": event_count(app, manifest)} for manifest in found]


def count_runs(app: Resources, *, prefix: str = "", name: str = "", status: str = "", replays: bool = False) -> int:
    """How many runs :func:`list_runs` would list without a limit."""
    return sum(1 for _ in _fitting(app, prefix, name, status, replays))


def _fitting(app: Resources, prefix: str, name: str, status: str, replays: bool) -> Iterator[RunManifest]:
    # a killed run could not record how it ended
    for said in ("running", "interrupted") if status == "interrupted" else (status,):
        for manifest in all_runs(app, prefix=prefix, name=name, status=said):
            hidden = is_audit(manifest) or (manifest.source_run is not None and not replays)
            if not hidden and (not status or real_status(manifest) == status):
                yield manifest


def event_count(app: Resources, manifest: RunManifest) -> int:
    """How many events a run has; for one that did not end, the log itself is asked."""
    if manifest.events or manifest.status not in ("running", "interrupted"):
        return manifest.events

    def there(seq: int) -> bool:
        return bool(app.journal.events(manifest.id, start=seq, stop=seq + 1, limit=1))

    beyond = 1
    while there(beyond - 1):
        beyond *= 2
    return bisect.bisect_left(range(beyond), True, key=lambda seq: not there(seq))


def summary(manifest: RunManifest) -> dict[str, Any]:
    """A run in one line."""
    end = manifest.finished_at_ms
    tags = manifest.tags
    return {
        "id": manifest.id,
        "name": manifest.name,
        "status": real_status(manifest),
        **{name: int(tags[name]) for name in (EXIT_TAG, AFTER_END_TAG, OPEN_TAG) if tags.get(name, "").isdecimal()},
        "startedAtMs": manifest.started_at_ms,
        "finishedAtMs": end,
        "durationMs": None if end is None else end - manifest.started_at_ms,
        "entry": manifest.entry,
        "sourceRun": manifest.source_run,
        "events": manifest.events,
        "tenant": manifest.tenant,
    }


def one_event(app: Resources, run: str, seq: int, *, reveal: bool = False) -> Event:
    """A single event with its spilled parts; nothing else of the run is read.

    Redacted values are shown as masks, unless *reveal* asks for the originals.
    """
    found = app.journal.events(run, start=seq, stop=seq + 1, limit=1) if seq >= 0 else []
    if not found:
        manifest = app.journal.manifest(run)
        count = 0 if manifest is None else event_count(app, manifest)
        raise NotFound(f"Run {run} has no event {seq}.", hint=f"It has 0 to {count - 1}." if count else "It has none.")
    event = app.whole(found[0])
    if not reveal:
        return viewed(event)
    manifest = app.journal.manifest(run)
    key = None if manifest is None else app.keys.key_of(manifest)
    if key is None:
        raise InvalidInput(
            f"The originals of run {run} cannot be read here.",
            hint="Set ANTIPHON_REPLAY_KEY, or use the store that recorded it.",
        )
    event = Originals(key).unseal(event)
    return msgspec.structs.replace(event, meta={n: v for n, v in event.meta.items() if n not in OF_THE_STORE})


def context_of(app: Resources, run: str, seq: int, *, reveal: bool = False) -> dict[str, Any]:
    """Exactly what the model saw at event *seq* (the start of a model call); masked unless *reveal* is set."""
    event = one_event(app, run, seq, reveal=reveal)
    if event.payload.get("kind") != "llm":
        raise InvalidInput(f"Event {seq} is {event.type}, not a model call.", hint="Find one: antiphon show RUN --json")
    request = event.payload.get("providerRequest") or event.payload.get("request")
    found = {"run": run, "seq": seq, "provider": event.payload.get("provider"), "request": request}
    if PARTIAL in event.payload and isinstance(request, dict):  # of a format that does not tell it
        before = [one_event(app, run, number, reveal=reveal) for number in range(seq + 1)]
        found |= {"request": {**request, "messages": conversation(before)}, "rebuilt": True}
    return found


class Node:
    """One line of the timeline; holds what is displayed, without payloads."""

    __slots__ = ("children", "notes", "undoes", "wire")

    def __init__(self, started: Event) -> None:
        payload = started.payload
        self.undoes: Node | None = None
        """The write that it undoes."""
        self.children: list[Node] = []
        self.notes: list[dict[str, Any]] = []
        self.wire: dict[str, Any] = {
            "seq": started.seq,
            "kind": payload.get("kind", started.type),
            "name": full_name(payload) if payload.get("kind") else started.type,
            "lane": started.lane,
            "startedAtMs": started.at_ms,
            "outcome": None,
            "meta": {},
        }
        if payload.get("kind") == "llm":
            self.wire["model"] = model_of(payload) or None
        what = payload.get("name") if started.type == "prompt" else payload.get("what")
        if what:
            self.wire["what"] = what
        if started.meta.get("orphan"):
            self.wire["orphan"] = True
        if started.meta.get("saga"):
            self.wire["saga"] = str(started.meta["saga"])

    def finish(self, event: Event) -> None:
        self._end(event, event.payload.get("outcome"), _shown_meta(event.meta))

    def end(self, event: Event, outcome: str) -> None:
        """For a workflow node, which has no call of its own."""
        self._end(event, outcome, {"durationMs": event.at_ms - self.wire["startedAtMs"]})

    def _end(self, event: Event, outcome: Any, meta: dict[str, Any]) -> None:
        self.wire |= {"outcome": outcome, "meta": meta}
        if isinstance(event.payload.get("error"), dict):
            self.wire["error"] = event.payload["error"]

    def note(self, event: Event) -> None:
        self.notes.append({"what": event.payload.get("what"), **_plain(event.meta)})

    def to_wire(self) -> dict[str, Any]:
        wire = {**self.wire, "notes": self.notes}
        if self.children:
            wire["children"] = [child.to_wire() for child in self.children]
        return wire


def _plain(meta: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in meta.items() if name != "sum"}


_NUMBERS = ("durationMs", "attempts", "gapMs", "ageMs")


def _shown_meta(meta: dict[str, Any]) -> dict[str, Any]:
    """A number from an imported recording; left out if it is not one."""
    shown = _plain(meta)
    for name in _NUMBERS:
        if name in shown and (isinstance(shown[name], bool) or not isinstance(shown[name], (int, float))):
            del shown[name]
    if "usage" in shown:
        given, taken = tokens_of(shown["usage"])
        shown["usage"] = {"inputTokens": given, "outputTokens": taken}
    return shown


def timeline(app: Resources, manifest: RunManifest) -> dict[str, Any]:
    """The run as a tree of calls, with what happened to each."""
    tree = _Tree(app.config.prices)
    last: Event | None = None
    ended: Event | None = None
    of_sagas: list[Event] = []
    imported: dict[str, Any] | None = None
    for event in map(viewed, app.events(manifest.id)):
        last = event
        if event.type.startswith("saga."):
            of_sagas.append(event)
            continue
        if not event.meta.get("afterEnd"):
            ended = event
        if event.type == "import" and imported is None:
            event = app.whole(event) if "completeness" in event.payload else event
            imported = {name: event.payload[name] for name in ("format", "completeness") if name in event.payload}
        tree.add(event)
    status = real_status(manifest)
    end = {} if ended is None else ended.payload
    sagas = tree.with_sagas(_saga.states(of_sagas, over=status != "running"))
    return {
        **summary(manifest),
        "status": status,
        "events": 0 if last is None else last.seq + 1,
        "stoppedAt": None if status not in ("interrupted", "running") or last is None else last.seq,
        "timeline": [node.to_wire() for node in tree.roots],
        "counts": tree.counted,
        "sagas": sagas,
        "tokens": tree.tokens,
        "cost": round(tree.cost, 6) if app.config.prices else None,
        "output": end.get(
            "output", end.get("outputs") if ended is not None and ended.type == "run.completed" else None
        ),
        "error": end.get("error"),
        **({"imported": imported} if imported is not None else {}),
    }


_NODE_ENDS = {"node.completed": "ok", "node.failed": "error", "node.cancelled": "cancelled"}
_OF_THE_RUN = ("run.started", "run.completed", "run.failed", "run.cancelled")


class _Tree:
    """Places the events of a run in the tree, one by one."""

    def __init__(self, prices: Mapping[str, Any]) -> None:
        self._prices = prices
        self.roots: list[Node] = []
        self.counted = dict.fromkeys("calls models nodes retries reused blocked errors afterEnd".split(), 0)
        self.tokens = {"input": 0, "output": 0}
        self.cost = 0.0
        self._calls: dict[str, Node] = {}
        self._open: Node | None = None
        """The workflow node that is being executed; what happens meanwhile is nested below it."""

    def add(self, event: Event) -> None:
        kind = event.type
        if event.meta.get("workflow"):
            self._workflow(event)
        elif kind == "call.started":
            self._started(event)
        elif kind == "call.finished":
            found = self._calls.get(event.call or "")
            if found is not None:
                found.finish(event)
                self._count(found, event)
                if found.undoes is not None and found.wire["outcome"] == "ok":
                    found.undoes.wire["undo"] = "undone"
        elif kind == "decision":
            if event.payload.get("what") == "retry":
                self.counted["retries"] += 1
            found = self._calls.get(event.call or "")
            if found is not None:
                found.note(event)
            else:
                self._place().append(Node(event))
        elif kind in ("draw", "prompt", "interaction.started", "interaction.finished"):
            self._place().append(Node(event))

    def with_sagas(self, sagas: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
        """The sagas, each with its number of calls; their fate is noted on their lines."""
        for saga in sagas.values():
            saga["calls"] = 0
            for write in saga["writes"]:
                node = self._calls.get(str(write.get("call")))
                if node is not None and "saga" in node.wire:
                    node.wire["undo"] = str(write.get("state"))
        for node in self._calls.values():
            if (found := sagas.get(node.wire.get("saga", ""))) is not None:
                found["calls"] += 1
        return list(sagas.values())

    def _place(self) -> list[Node]:
        return self.roots if self._open is None else self._open.children

    def _started(self, event: Event) -> None:
        node = Node(event)
        parent = self._calls.get(event.parent or "")
        (self._place() if parent is None else parent.children).append(node)
        self._calls[event.call or ""] = node
        undone = self._calls.get(str(event.meta.get("of"))) if event.meta.get("undoes") else None
        if undone is not None:
            node.undoes, node.wire["undoes"] = undone, undone.wire["seq"]
        self.counted["models" if event.payload.get("kind") == "llm" else "calls"] += 1
        self.counted["afterEnd"] += bool(event.meta.get("afterEnd"))

    def _count(self, node: Node, event: Event) -> None:
        outcome = event.payload.get("outcome")
        blocked = answered_by(event.meta) == "blocked"
        if event.meta.get("fromCache") and not blocked:
            self.counted["reused"] += 1
        if blocked or outcome == "denied" or event.meta.get("status") == "circuit_open":
            self.counted["blocked"] += 1
        elif outcome == "error":
            self.counted["errors"] += 1
        given, taken = tokens_of(event.meta.get("usage"))
        self.tokens["input"] += given
        self.tokens["output"] += taken
        self.cost += cost_of(self._prices.get(str(node.wire.get("model"))), event.meta.get("usage"))

    def _workflow(self, event: Event) -> None:
        """An event of a host run: nodes become lines, other facts are noted next to them."""
        if event.type == "node.started":
            self._open = Node(event)
            self._open.wire |= {"kind": "node", "name": _text(event, "nodeId"), "what": _text(event, "typeId")}
            self.roots.append(self._open)
            self.counted["nodes"] += 1
        elif event.type in _NODE_ENDS and self._open is not None and self._open.wire["name"] == _text(event, "nodeId"):
            self._open.end(event, _NODE_ENDS[event.type])
            self._open = None
        elif self._open is not None:
            shown = {name: value for name, value in event.payload.items() if isinstance(value, (str, int, float))}
            shown.pop("nodeId", None)
            self._open.notes.append({**shown, "what": event.type})
        elif event.type not in _OF_THE_RUN:
            self.roots.append(Node(event))
            self.roots[-1].wire["what"] = _text(event, "nodeId")


def _text(event: Event, name: str) -> str:
    return str(event.payload.get(name, ""))


# -- deleting what is no longer needed; never within the advertised replay window (L7) --------------------------------

_DAY_MS = 86_400_000


def _size(app: Resources, run: str) -> int:
    return sum(len(orjson.dumps(event.payload)) + 200 for event in app.events(run))


def delete_old_runs(
    app: Resources,
    *,
    older_than_days: float | None = None,
    keep: int | None = None,
    max_bytes: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Delete runs by age, count and size; without any of these, those past the retention window."""
    now = app.clock.now_ms()
    window_days = app.config.record.retention_days
    if older_than_days is None and keep is None and max_bytes is None:
        older_than_days = window_days
    runs = [manifest for manifest in all_runs(app) if not is_audit(manifest)]
    doomed: dict[str, RunManifest] = {}
    if older_than_days is not None:
        limit = now - older_than_days * _DAY_MS
        doomed |= {m.id: m for m in runs if (m.finished_at_ms or m.started_at_ms) < limit}
    if keep is not None:
        doomed |= {m.id: m for m in runs[max(0, keep) :]}
    if max_bytes is not None:
        used = 0
        sizes = ((manifest, _size(app, manifest.id)) for manifest in runs)
        for manifest, size in progress(sizes, len(runs), "measuring, runs"):
            used += size
            if used > max_bytes:
                doomed[manifest.id] = manifest
    protected = 0
    if not force:
        edge = now - window_days * _DAY_MS
        old = {m.id: m for m in doomed.values() if (m.finished_at_ms or m.started_at_ms) < edge}
        protected, doomed = len(doomed) - len(old), old
    deleted = [manifest for manifest in doomed.values() if real_status(manifest) != "running"]
    blobs = app.blobs if not dry_run and isinstance(app.blobs, ContentBlobs) else None
    others = [] if blobs is None else blobs.other_stores()  # asked first: an unreachable bucket stops everything
    gone: list[str] = []

    def delete(manifest: RunManifest) -> None:
        app.journal.delete_run(manifest.id)
        gone.append(manifest.id)

    try:
        each(delete, [] if dry_run else deleted, progress, "deleting, runs")
        unused = 0 if blobs is None or others else _unused_blobs(app, blobs, progress)
        claims = 0 if dry_run else app.journal.sweep()
    except StoreError as error:
        if not gone:
            raise
        said = f"{error.message} Deleted before the failure: {plural(len(gone), 'run')}; some payloads may be left."
        raise StoreError(said, hint=f"{error.hint} Then run antiphon gc again.".lstrip(), code=error.code) from error
    return {
        "dryRun": dry_run,
        "runs": [summary(manifest) for manifest in deleted],
        "protected": protected,
        "retentionDays": window_days,
        "blobs": unused,
        "blobsSharedWith": others,
        "claims": claims,
    }


def _unused_blobs(app: Resources, blobs: ContentBlobs, progress: Progress) -> int:
    """Delete payloads of this store that no run or claim refers to any more.

    A payload is stored before the event that refers to it: while anything runs, nothing is deleted. An existing payload
    is not written again, so a run may come to need one that was unused a moment ago. Payloads that seem unused are
    therefore set aside first, where no run finds them. Whatever relied on one before that is still running, or has left
    its references: after a second check the payload is put back or deleted.
    """
    for left in list(blobs.aside(app.tenant)):  # by a process that was killed between the two checks
        blobs.put_back(app.tenant, left)
    found = list(blobs.refs(app.tenant))
    if not found or _busy(app):
        return 0
    read: dict[str, int] = {}
    used = _used(app, read, progress)
    dead = blobs.since_note(app.tenant, (ref for ref in found if ref not in used))
    if not dead or _busy(app) or blobs.other_stores():
        return 0
    each(lambda ref: blobs.set_aside(app.tenant, ref), dead, progress, "setting aside, payloads")
    wanted = set(dead) if _busy(app) or blobs.other_stores() else _used(app, read, progress).intersection(dead)
    for ref in wanted:
        blobs.put_back(app.tenant, ref)
    unused = [ref for ref in dead if ref not in wanted]
    each(lambda ref: blobs.delete_aside(app.tenant, ref), unused, progress, "deleting, payloads")
    return len(unused)


def _used(app: Resources, read: dict[str, int], progress: Progress) -> set[str]:
    """The payloads that claims and events refer to; *read* holds how far each run was read, and is updated."""
    used: set[str] = set()

    def look(run: str) -> None:
        for event in app.events(run, start=read.get(run, 0)):
            used.update(spilled(event).values())
            read[run] = event.seq + 1

    each(look, [manifest.id for manifest in all_runs(app)], progress, "looking for payloads, runs")
    claims = app.journal.list(tenant=app.tenant, limit=1_000_000)
    for record in (*claims, *app.journal.earlier(tenant=app.tenant)):
        if isinstance(record.payload_ref, str):
            used.add(record.payload_ref.removeprefix("sealed+"))
    return used


def _busy(app: Resources) -> bool:
    """Whether a run is open or a call in flight."""
    running = app.journal.runs(tenant=app.tenant, status="running", limit=1_000)
    if any(real_status(manifest) == "running" for manifest in running):
        return True
    claims = app.journal.list(tenant=app.tenant, state="inflight", limit=1_000)
    return any(not certainly_dead(claim.owner) for claim in claims)
