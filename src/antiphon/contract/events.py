"""Run events and the run manifest: the run log's lines, and the artifact's (K1, L5).

``payload`` holds what is observable and is compared by a replay. Times, durations, attempts, cache
marks and ids are ``meta``: they may differ between two runs that did the same.

| type                | payload                                                                       |
|---------------------|-------------------------------------------------------------------------------|
| run.started         | name, entry?, input?, callsOnly? (only calls were seen, from outside the code)|
| run.finished        | status (completed, failed, interrupted), output?, error?                      |
| interaction.started | input                                                                         |
| interaction.finished| output? or error?                                                             |
| call.started        | kind (tool, llm, mcp), name, namespace?, arguments or request, digest, nth,   |
|                     | approval? (the policy by which a person must approve the call)                |
| call.finished       | outcome (ok, error, denied, refusal), value? or error? {class, code, message} |
| call.chunk          | n, data (one chunk of a stream; meta.gapMs is the pause before it)            |
| decision            | what (reused, retry, blocked, breaker, loop, orphan, ambiguous, approval), …  |
| saga.opened         | saga, name, parent?                                                           |
| saga.undoing        | saga, name, why, byHand?, reason?                                             |
| saga.finished       | saga, name, state (closed, undone, stuck), writes?                            |
| draw                | what (now, random, uuid4 …), value                                            |
| prompt              | name, template, variables, text                                               |
| replay.diverged     | index, field differences                                                      |
| replay.divergedAtRefusal | sourceRunId, atSequence, originalEnvelopeKind, replayEnvelopeKind, …     |

``meta.sum`` is a check sum of the event as it was written: a recording that was changed afterwards is detected.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

import msgspec
import orjson

from antiphon.contract._base import UNSET, Millis, UnsetType, Value

_sha256 = hashlib.sha256
EVENT_VERSION = 2
"""1: release 0.1.0, with placeholders and with references to large parts inside payloads."""
UNSERIALISABLE = "$unserialisable"
"""The name that stands in place of a value that has no form in a recording, with the name of its type."""
RunStatus = Literal["running", "completed", "failed", "interrupted", "cancelled"]


def type_not_kept(value: Any) -> str | None:
    """The type of a recorded result that could not be written; ``None`` for any that was."""
    if type(value) is not dict:
        return None
    if UNSERIALISABLE in value and len(value) <= 2:
        return str(value[UNSERIALISABLE])
    return str(value.get("type")) if value.get("antiphon") == "not serialisable" else None  # the first spelling


class Event(Value, frozen=True):
    """One line of a run log. ``seq`` is gap-free storage order; ``lane`` and ``index`` are logical order."""

    run: str
    seq: int
    type: str
    at_ms: Millis
    lane: str = "0"
    index: int = 0
    call: str | None = None
    parent: str | None = None
    payload: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    v: int = EVENT_VERSION


class EventBody(Value, frozen=True):
    """An event before the store has given it a place: what :class:`~antiphon.ports.Row` carries as bytes."""

    lane: str = "0"
    index: int = 0
    call: str | None = None
    parent: str | None = None
    payload: msgspec.Raw | dict[str, Any] = {}
    meta: msgspec.Raw | dict[str, Any] = {}
    v: int = EVENT_VERSION


class CodeVersion(Value, frozen=True):
    """Which code ran: git commit, whether the tree had changes, digests of the entry point and of its files."""

    commit: str | None = None
    dirty: bool | None = None
    source_digest: str | None = None
    files: dict[str, str] | UnsetType = UNSET
    """The project's files that the entry point can reach, by their place beside it, to the digest of their source."""


class RunManifest(Value, frozen=True):
    """The head of a run: who, what, when, under which code and configuration."""

    id: str
    name: str
    status: RunStatus
    started_at_ms: Millis
    tenant: str = "default"
    workspace: str = "default"
    finished_at_ms: Millis | None = None
    session: str | None = None
    entry: str | None = None
    salt: str = ""
    """Of release 0.1.0: what its placeholders were made with."""
    seal: dict[str, str] | UnsetType = UNSET
    """The run's key, wrapped under a key of the store, and the run it was made for."""
    code: CodeVersion = CodeVersion()
    packages: dict[str, str] = {}
    config_digest: str = ""
    graph_digest: str = ""
    tool_schemas: dict[str, Any] = {}
    llm_config: dict[str, Any] = {}
    source_run: str | None = None
    replay: dict[str, Any] | UnsetType = UNSET
    tags: dict[str, str] = {}
    events: int = 0
    v: int = EVENT_VERSION


def is_reserved(run_id: str) -> bool:
    """Whether a run of this id keeps what the host or its operators decided: no file may bring one."""
    return run_id.startswith(("audit-", "host-"))


def audit_manifest(tenant: str, workspace: str, at_ms: int = 0) -> RunManifest:
    """The reserved run that keeps what people decided and operators did in a tenant."""
    return RunManifest(
        id=f"audit-{tenant}",
        name="audit",
        status="running",
        started_at_ms=at_ms,
        tenant=tenant,
        workspace=workspace,
        tags={"kind": "audit"},
    )


MASKS, SEALED, BLOBS, PSEUDONYMS = "masks", "sealed", "blobs", "pseudonyms"
"""What ``meta`` says beside user data: where stand-ins are, the sealed originals, which parts are blobs, and the
pseudonyms in the chunks of a stream. User data is never read as any of these."""
GIVEN = "given"
"""In ``meta`` of a run's beginning: which arguments of its input are written with tags, and which are lost."""
OF_THE_STORE = frozenset({"keyFingerprint", "claim", "execution"})
"""Digests of raw values in ``meta``: they never leave the store (D36)."""
SAME_AS = "sameAs"
"""In the ``meta`` of a call of a resumed run: lane and occurrence of the call that it is, if it was made elsewhere."""
CHUNKS = "chunks"
"""In the ``meta`` of the end of a stream that was read to its end: how many chunks it had."""
CLASSES = "classes"
"""In the ``meta`` of the end of a model call: the classes of its answer or chunks, each with the number of objects."""
AFTER_END = "afterEnd"
"""In the ``meta`` of events that came after the end of their run."""
TASKS = "tasks"
"""In the ``meta`` of the end of a run: tasks that were not awaited, or cancelled."""
REFUSAL_EVENT = "replay.divergedAtRefusal"
CALLS_ONLY = "callsOnly"
"""In the payload of a run's beginning: it holds only calls that were seen from outside the code that made them, whose
tasks, threads, draws and output are not known."""
ASKS_STREAM = "asksStream"
"""In the ``meta`` of a model call: whether a stream was asked for, where the body does not say it."""
RAW_DIGEST = "rawDigest"
"""In memory only: the digest of a call's arguments as they were."""
_OLD_PLACEHOLDER = re.compile(rb"\[secret:[a-z0-9_]{1,40}(?::[0-9a-f]{16})?\]")
_REF = re.compile(r"sha256:[0-9a-f]{64}")


def spilled(event: Event) -> dict[str, str]:
    """The parts of an event that are blobs: name of the payload's field (or ``sealed``) -> reference."""
    found = event.meta.get(BLOBS)
    if event.v > 1 or found is not None:
        named = found if type(found) is dict else {}
        return {name: ref for name, ref in named.items() if type(ref) is str and _REF.fullmatch(ref)}
    # release 0.1.0 wrote references in place of the parts
    return {
        name: value["$blob"]
        for name, value in event.payload.items()
        if type(value) is dict and value.keys() == {"$blob", "bytes"} and _REF.fullmatch(str(value["$blob"]))
    }


def as_returned(value: Any) -> Any:
    """An exact output without the marks around objects of the user's that look like a tag."""
    if type(value) is list:
        return [as_returned(item) for item in value]
    if type(value) is not dict:
        return value
    inner = value["$literal"] if value.keys() == {"$literal"} and type(value["$literal"]) is dict else value
    return {name: as_returned(item) for name, item in inner.items()}


def is_masked(event: Event) -> bool:
    """Whether the payload still contains masks."""
    if event.v > 1:
        return MASKS in event.meta and RAW_DIGEST not in event.meta
    return _OLD_PLACEHOLDER.search(orjson.dumps(event.payload)) is not None


def with_sum(kind: str, body: bytes) -> bytes:
    """The bytes of an event with their check sum as the last entry of ``meta``; *body* ends with its ``meta``."""
    if body[-2:] != b"}}":
        return body
    total = _sum(kind, body).encode()
    return b'%b%b"sum":"%b"}}' % (body[:-2], b"" if body[-3:-2] == b"{" else b",", total)


def sum_holds(event: Event) -> bool | None:
    """Whether the event is as it was written; ``None`` if it carries no check sum."""
    given = event.meta.get("sum")
    if given is None:
        return None
    meta = {name: value for name, value in event.meta.items() if name != "sum"}
    try:
        data = _bytes(msgspec.structs.replace(event, meta=meta))
    except TypeError:  # a number that no recorder writes
        return False
    return bool(given == _sum(event.type, data))


def summed(event: Event) -> Event:
    """The event with a new check sum, for one whose payload is kept in another way than it was written."""
    meta = {name: value for name, value in event.meta.items() if name != "sum"}
    bare = msgspec.structs.replace(event, meta=meta)
    return msgspec.structs.replace(bare, meta={**meta, "sum": _sum(event.type, _bytes(bare))})


def _bytes(event: Event) -> bytes:
    """What the check sum is made from; *event* carries none."""
    body: dict[str, Any] = {}
    if event.call is not None:
        body = {"lane": event.lane, "index": event.index, "call": event.call, "parent": event.parent}
    return orjson.dumps({**body, "payload": event.payload, "v": event.v, "meta": event.meta})


def _sum(kind: str, body: bytes) -> str:
    return _sha256(kind.encode() + body).hexdigest()[:16]
