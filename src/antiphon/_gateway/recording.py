"""What a call writes to the log of its run: its start with the claim, its end with the outcome."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from antiphon._gateway import codec
from antiphon._gateway.outcome import Outcome
from antiphon._scope import EARLIER, RunScope, Site, _cursor, current_scope
from antiphon.contract.events import PSEUDONYMS, SAME_AS, UNSERIALISABLE
from antiphon.contract.spec import ToolSpec
from antiphon.decide.classify import MESSAGE_LIMIT
from antiphon.errors import AntiphonError, class_name, held_by
from antiphon.ports import Attempt, Row, Store

SAID = "said"
"""In a recorded failure whose message is ours: the message of the tool's own exception."""
_AS_RECORDED = (SAID, "args", "attributes", "lost")
"""What the stand-in of a recorded exception is recorded with again."""
_SMALL = 16_384
"""Larger results are encoded by the recorder, which may spill them."""


class EventTemplate:
    """The parts of a tool's events that are the same for all its calls, as JSON."""

    __slots__ = ("decode", "head", "meta", "name", "streams")

    def __init__(self, spec: ToolSpec, streams: bool, decode: Callable[[bytes], Any]) -> None:
        self.decode: Callable[[bytes], Any] = decode
        self.name: str = f"{spec.namespace}/{spec.name}"
        self.streams: bool = streams
        head = {"kind": "tool", "name": spec.name, "namespace": spec.namespace}
        self.head: bytes = orjson.dumps(head)[:-1] + b',"arguments":'
        meta: dict[str, Any] = {"idempotent": spec.idempotent}
        if spec.effect is not None:
            meta["effect"] = spec.effect
        self.meta: bytes = orjson.dumps(meta)[1:-1]


@dataclass(slots=True, eq=False, repr=False)
class RunEntry:
    """The position of one call in its run, and what is written there."""

    scope: RunScope
    _template: EventTemplate
    together: bool
    """Claims and events share a store, hence a transaction."""
    approval: str = ""
    """The policy by which a person must approve the call."""
    entered: bool = False
    finished: bool = False
    """Whether the end of the call has been written."""
    _decisions: tuple[Row, ...] = ()
    _start: Sequence[Row] | None = None
    """The start event until it is in the log."""
    _outside: Any = None
    more: bytes = b""
    """Further entries of the start event's ``meta``, as JSON, each after a comma."""
    site: Site = field(init=False)
    _place: tuple[str, int] = field(init=False)
    """Lane and occurrence that identify the call: those of its site, unless the run is resumed."""
    _shown: tuple[bytes, str, Any] = field(init=False)
    """The arguments as they may be written, their digest, and what redaction did, if anything."""

    def enter(self, arguments: dict[str, Any], params: bytes | tuple[str, str]) -> tuple[str, str]:
        """Take the next position in the run; returns the digests of *params*, which the claim needs, too."""
        if isinstance(params, bytes):
            digest = hashlib.sha256(params).hexdigest()
            params = (digest, digest)
        self.enter_as(self.scope.shown(arguments, params[1]))
        return params

    def enter_as(self, shown: tuple[bytes, str, Any]) -> None:
        """The same for arguments whose written form is known."""
        self.entered = True
        self._shown = shown
        scope, name = self.scope, self._template.name
        cursor = _cursor.get()
        orphan = cursor is None or cursor[0] is not scope
        self.site = site = scope.enter(name, shown[1])
        earlier = scope.gateway_state.get(EARLIER)
        self._place = (site[0], site[2]) if earlier is None else earlier.place(name, shown[1], site)
        if orphan:
            self.decide("orphan", {"name": name}, {})

    @property
    def identity(self) -> str:
        """The identity of a call to which the model gave no id: its position in the run (D2)."""
        lane, nth = self._place
        return f"{self.scope.run_id}:{lane}:{self._template.name}:{self._shown[1][:16]}:{nth}"

    @property
    def plain(self) -> dict[str, Any]:
        """The arguments as plain, unmasked JSON: the arguments of a recorded call are compared with these."""
        data, _, masking = self._shown
        plain: dict[str, Any] = orjson.loads(data if masking is None else masking.original)
        return plain

    @property
    def digest(self) -> str:
        return self._shown[1]

    def go_inside(self) -> None:
        """Calls that the tool makes are nested in this one."""
        self._outside = self.scope.go_inside(self.site[3])

    def leave_tool(self) -> None:
        outside, self._outside = self._outside, None
        if outside is not None:
            _cursor.reset(outside)

    # -- events --------------------------------------------------------------------------------------------------

    def started(self, request_id: str, key: str, call_id: str | None) -> Sequence[Row]:
        """The start event, if it has not been written."""
        if not self.scope.records:
            return ()
        start = self._start
        if start is None:
            data, digest, masking = self._shown
            template = self._template
            payload = b'%b%b,"digest":"%b","nth":%d}' % (template.head, data, digest.encode(), self.site[2])
            if self.approval:
                payload = payload[:-1] + b',"approval":%b}' % orjson.dumps(self.approval)
            more = b"" if call_id is None else self._named(call_id)
            if self._place != (self.site.lane, self.site.nth):
                more += b',"%b":%b' % (SAME_AS.encode(), orjson.dumps(self._place))
            ids = (orjson.dumps(request_id), key[:16].encode(), template.meta, more + self.more)
            meta = b'{"requestId":%b,"keyFingerprint":"%b",%b%b}' % ids
            start = self._start = (self.scope.compose("call.started", self.site, payload, meta, masking),)
        return start

    def _named(self, call_id: str) -> bytes:
        """The caller's id as the log may hold it: no replay looks it up, and the claim stores it unchanged."""
        data, _, masking = self.scope.shown({"callId": call_id}, "")
        if masking is None:
            return b"," + data[1:-1]
        text = orjson.loads(data)["callId"]
        kinds = {text[mask.start : mask.start + mask.length]: mask.kind for mask in masking.masks}
        return b',%b,"%b":%b' % (data[1:-1], PSEUDONYMS.encode(), orjson.dumps(kinds))

    def begun(self) -> None:
        """The start event is in the log."""
        self._start = ()

    def decide(self, what: str, detail: dict[str, Any], meta: dict[str, Any]) -> None:
        """Note a decision of the gateway; it is written with the outcome."""
        self._decisions += (self.scope.encode("decision", self.site, {"what": what, "detail": detail}, meta),)

    def ended(
        self,
        outcome: Outcome | None,
        payload: bytes | None,
        took_ms: float,
        attempts: Sequence[Attempt] = (),
    ) -> Sequence[Row]:
        """The decisions, and the outcome of the call.

        Without an outcome the call simply succeeded, and *payload* is known to hold no secret.
        """
        scope, site = self.scope, self.site
        if not scope.records:
            return ()
        kind, took = "call.finished", round(took_ms, 3)
        if outcome is None and not self._decisions and payload is not None and len(payload) <= _SMALL:
            meta = b'{"status":"success","attempts":1,"durationMs":%b}' % orjson.dumps(took)
            return (scope.compose(kind, site, b'{"outcome":"ok","value":%b}' % payload, meta),)
        if outcome is None:
            outcome = Outcome("success", attempts=1)
            outcome.payload = payload
        rows = [*self._decisions, *self._chunks(outcome)]
        rows.append(scope.encode(kind, site, self._said(outcome), self._meta(outcome, took, attempts)))
        return rows

    def _chunks(self, outcome: Outcome) -> Sequence[Row]:
        """The chunks of a call that was answered from a record; those of a live one are in the log already."""
        given = outcome.notifications
        if outcome.from_cache and outcome.status == "success" and self._streamed(outcome):
            given = [(data if isinstance(data, (str, bytes)) else recordable(data), 0.0) for data in outcome.value]
        if not given:
            return ()
        chunks = self.scope.chunks(self.site)
        for data, gap_ms in given:
            chunks.add(data, gap_ms)
        rows: Sequence[Row] = chunks.remaining()
        return rows

    def _streamed(self, outcome: Outcome) -> bool:
        return self._template.streams and isinstance(outcome.value, list)

    def _said(self, outcome: Outcome) -> dict[str, Any]:
        if outcome.status != "success":
            if outcome.code == "denied":
                said = {"code": outcome.code, "message": outcome.message, "reason": outcome.reason}
                return {"outcome": "denied", "error": said}
            return {"outcome": "error", "error": self._error(outcome)}
        if self._streamed(outcome):
            return {"outcome": "ok", "value": {"chunks": len(outcome.value)}}
        if outcome.metadata is not None and "answeredBy" in outcome.metadata:  # it comes from a recording
            return {"outcome": "ok", "value": outcome.value}
        if outcome.payload is not None:
            return {"outcome": "ok", "value": orjson.Fragment(outcome.payload)}
        return {"outcome": "ok", "value": recordable(outcome.value, self._template.decode)}

    def _error(self, outcome: Outcome) -> dict[str, Any]:
        """How the call failed. The exception's own message is kept whole, so that a replay raises the same."""
        error, exception = error_of(outcome), outcome.exception
        if exception is None or isinstance(exception, AntiphonError):
            return error
        from antiphon.redact import without_values

        with suppress(Exception):
            error |= self._unquoted(held_by(exception, _held))
            text = str(exception)
            is_own = outcome.message in (text, without_values(text[:MESSAGE_LIMIT], self.scope.quoted))
            if text:  # if the message is ours, the tool's own is kept beside it
                error["message" if is_own else SAID] = self.scope.unquoted(text)
        return error

    def _unquoted(self, template: Any) -> Any:
        if isinstance(template, str):
            return self.scope.unquoted(template)
        if isinstance(template, list):
            return [self._unquoted(item) for item in template]
        return (
            {name: self._unquoted(item) for name, item in template.items()} if isinstance(template, dict) else template
        )

    def _meta(self, outcome: Outcome, took: float, attempts: Sequence[Attempt]) -> dict[str, Any]:
        meta: dict[str, Any] = {"status": outcome.status, "attempts": outcome.attempts, "durationMs": took}
        if self._template.streams:
            meta["stream"] = True
        if outcome.from_cache:
            meta["fromCache"] = outcome.matched_on
        if outcome.metadata:
            meta["metadata"] = outcome.metadata
        if outcome.breaker:
            meta["breakerState"] = outcome.breaker
        if len(attempts) > 1 or (attempts and outcome.status != "success"):  # otherwise there is nothing more to say
            meta["tries"] = [_try(attempt) for attempt in attempts]
        return meta


def _try(attempt: Attempt) -> dict[str, Any]:
    began, ended, code, retriable = attempt
    said = {"startedAtMs": began, "finishedAtMs": ended, "status": "error" if code else "success"}
    return {**said, "retriable": retriable, **({"errorCode": code} if code else {})}


def entry_of(template: EventTemplate, store: Store, tenant: str) -> RunEntry | None:
    """The entry of a call in the run of this context, if there is one. A run of another tenant takes no orphans."""
    scope = current_scope()
    if scope is None or (scope.tenant != tenant and _cursor.get() is None):
        return None
    return RunEntry(scope, template, _same_store(scope, store))


def _same_store(scope: RunScope, store: Store) -> bool:
    """Whether claims on *store* and events of the run share a transaction."""
    known = scope.gateway_state.get(store)
    if known is None:
        log: Any = scope.store
        known = log is store or (log is not None and not log.in_process and log.url == store.url)
        scope.gateway_state[store] = known
    return bool(known)


def recordable(value: Any, decode: Callable[[bytes], Any] = codec.plain) -> Any:
    """A result, or a chunk of a stream, as it is recorded; the name of its type where it has no such form."""
    try:
        return codec.written(value, decode)
    except codec.NotSerialisable as error:
        kind = type(value)
        return {UNSERIALISABLE: f"{kind.__module__}.{kind.__qualname__}", "detail": str(error)}


def _held(value: Any) -> Any:
    """The form of what an exception holds; a response body or a whole document is too large."""
    data = codec.encode(value)
    if len(data) > _SMALL:
        raise codec.NotSerialisable(type(value).__name__)
    return orjson.loads(data)


def error_of(outcome: Outcome) -> dict[str, Any]:
    """The failure in its recorded form: enough to raise it again."""
    exception = outcome.exception
    name = class_name(type(exception)) if exception is not None else ""
    number: Any = getattr(exception, "code", None)
    bare = exception is not None and outcome.message == type(exception).__name__ and not str(exception)
    recorded: Mapping[str, Any] = {}
    if isinstance(exception, AntiphonError) and "recorded" in exception.data:  # a replay's stand-in
        recorded = exception.data["recorded"]
        name, number, bare = str(recorded.get("class", "")), recorded.get("number"), bool(recorded.get("bare"))
    coded = {"number": number} if type(number) is int else {}  # the code of a protocol error
    said = {name: recorded[name] for name in _AS_RECORDED if recorded.get(name) is not None}
    without = {"bare": True} if bare else {}  # the message is the name of the class
    return {
        "class": name,
        "code": outcome.code,
        "message": outcome.message,
        "status": outcome.status,
        "retriable": outcome.retriable,
        "terminal": outcome.terminal,
        **coded,
        **without,
        **said,
    }
