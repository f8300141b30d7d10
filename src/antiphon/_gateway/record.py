"""What a call leaves in the run log, and how a replay answers it instead of the world."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from antiphon._drive import AFTER, drive, until_cancelled, was_given_up
from antiphon._gateway import codec, edge
from antiphon._gateway.call import Call, Outcome, failed
from antiphon._scope import RunScope, Site, is_orphan
from antiphon.canonical import canonical_digest
from antiphon.contract.events import UNSERIALISABLE
from antiphon.errors import AntiphonError, ReplayMiss, StoreError, class_name, raised_again
from antiphon.ports import Answer, Invocation, Row

if TYPE_CHECKING:
    from antiphon._gateway.core import Core
log = logging.getLogger("antiphon.gateway")
READER_STOPPED = "its reader stopped"


def enter(call: Call, scope: RunScope) -> None:
    """Give the call its place in the run."""
    if call.site is None:
        if is_orphan(scope):
            decision(call, "orphan", {"name": call.tool.full_name}, {})
        call.log_params, call.log_digest, call.redacted = scope.present(call.params, call.exact)
        call.site = scope.enter(call.tool.full_name, call.log_digest)
    if not call.identity:
        call.identity = identity_of(scope, call.site, call.tool.full_name, call.log_digest)


def identity_of(scope: RunScope, site: Site, name: str, digest: str) -> str:
    """Who a call is that the model gave no id: its place in the run (D2)."""
    return f"{scope.run_id}:{site.lane}:{name}:{digest[:16]}:{site.nth}"


def same_store(core: Core, scope: RunScope) -> bool:
    """Whether claims and events share a transaction."""
    known = scope.gateway_state.get(core)
    if known is None:
        store = scope.store
        url = getattr(store, "url", "memory")
        known = store is core.store or (url == core.store.url and not url.startswith("memory"))
        scope.gateway_state[core] = known
    return bool(known)


def _started(call: Call, scope: RunScope) -> Row:
    assert call.site is not None
    spec = call.tool.spec
    payload: dict[str, Any] = {
        "kind": "tool",
        "name": spec.name,
        "namespace": spec.namespace,
        "arguments": call.log_params,
        "digest": call.log_digest,
        "nth": call.site.nth,
    }
    if call.redacted:
        payload["keyOf"] = "redacted"
    meta: dict[str, Any] = {
        "requestId": call.request_id,
        "keyFingerprint": call.fingerprint,
        "idempotent": spec.idempotent,
    }
    if spec.effect is not None:
        meta["effect"] = spec.effect
    if call.call_id is not None:
        meta["callId"] = call.call_id
    return scope.encode("call.started", call.site, payload, meta)


def _ended(core: Core, call: Call, outcome: Outcome, scope: RunScope) -> list[Row]:
    """Decisions, the pieces of a stream that was given from a record, and the outcome."""
    rows = list(call.rows or ())
    if outcome.from_cache and outcome.status == "success" and _streams(call) and isinstance(outcome.value, list):
        assert call.site is not None
        pieces = scope.pieces(call.site)
        for data in outcome.value:
            pieces.add(data if isinstance(data, (str, bytes)) else recordable(data), 0.0)
        rows += pieces.rest()
    return [*rows, _finished(core, call, outcome, scope)]


def _streams(call: Call) -> bool:
    return call.tool.kind in ("generator", "async_generator")


def _finished(core: Core, call: Call, outcome: Outcome, scope: RunScope) -> Row:
    payload: dict[str, Any] = {"outcome": "ok"}
    if outcome.status == "success":
        streamed = _streams(call) and isinstance(outcome.value, list)
        payload["value"] = {"chunks": len(outcome.value)} if streamed else _result(outcome)
    elif outcome.code == "denied":
        payload["outcome"] = "denied"
        payload["error"] = {"code": outcome.code, "message": outcome.message, "reason": outcome.reason}
    else:
        payload["outcome"] = "error"
        payload["error"] = error_of(outcome)
    meta: dict[str, Any] = {
        "status": outcome.status,
        "attempts": outcome.attempts,
        "durationMs": round((core.clock.monotonic() - call.started) * 1000, 3),
    }
    if _streams(call):
        meta["stream"] = True
    if outcome.from_cache:
        meta["fromCache"] = outcome.matched_on
    if outcome.metadata:
        meta["metadata"] = outcome.metadata
    if outcome.breaker:
        meta["breakerState"] = outcome.breaker
    if len(call.attempts) > 1 or (call.attempts and outcome.status != "success"):  # else there is nothing more to say
        meta["tries"] = [attempt.to_wire() for attempt in call.attempts]
    return scope.encode("call.finished", call.site, payload, meta)


def _result(outcome: Outcome) -> Any:
    if outcome.metadata is not None and "answeredBy" in outcome.metadata:  # it comes from a recording
        return outcome.value
    return recordable(outcome.value)


def recordable(value: Any) -> Any:
    """A result, or a piece of a stream, as it is recorded; the name of its type where it has no such form."""
    try:
        return codec.written(value)
    except codec.NotSerialisable as error:
        kind = type(value)
        return {UNSERIALISABLE: f"{kind.__module__}.{kind.__qualname__}", "detail": str(error)}


def error_of(outcome: Outcome) -> dict[str, Any]:
    """The failure as it is recorded: enough to raise it again."""
    exception = outcome.exception
    kind = type(exception)
    name = class_name(kind) if exception is not None else ""
    if isinstance(exception, AntiphonError) and "recorded" in exception.data:  # a replay's stand-in
        name = str(exception.data["recorded"].get("class", ""))
    return {
        "class": name,
        "code": outcome.code,
        "message": outcome.message,
        "status": outcome.status,
        "retriable": outcome.retriable,
        "terminal": outcome.terminal,
    }


def decision(call: Call, what: str, detail: dict[str, Any], meta: dict[str, Any]) -> None:
    """Note a decision of the gateway, to be written with the outcome."""
    scope = call.scope
    if scope is not None and scope.sink is not None:
        row = scope.encode("decision", call.site, {"what": what, "detail": detail}, meta)
        call.rows = [*(call.rows or ()), row]


def start_rows(core: Core, call: Call) -> Sequence[Row]:
    """The start event, if it can be written in the claim's own transaction."""
    scope = call.scope
    if scope is None or call.site is None or scope.sink is None or not same_store(core, scope):
        return ()
    return (_started(call, scope),)


async def start(core: Core, call: Call) -> None:
    """Write the start event by itself."""
    scope = call.scope
    if scope is None or scope.sink is None or call.site is None:
        return
    await scope.sink((_started(call, scope),), core.asynchronous)
    call.recorded = True


def finish_rows(core: Core, call: Call, outcome: Outcome) -> Sequence[Row]:
    """Decisions and the outcome event, if they can be written in the claim's own transaction."""
    scope = call.scope
    if scope is None or scope.sink is None or call.site is None or not same_store(core, scope):
        return ()
    return _ended(core, call, outcome, scope)


async def finish(core: Core, call: Call, outcome: Outcome, asynchronous: bool) -> None:
    """Write what has not been written yet: all of it for a call that was answered without a claim."""
    scope = call.scope
    if scope is None or scope.sink is None or call.site is None:
        return
    rows = [] if call.recorded else [_started(call, scope)]
    rows += _ended(core, call, outcome, scope)
    call.rows = call.site = None
    try:
        await scope.sink(rows, asynchronous)
    except StoreError as error:  # the call is over: its outcome is worth more than its event
        log.error("the run log misses the end of a call of %s: %s", call.tool.full_name, error)
        core.telemetry.outage(call, error, False)
        outcome.metadata = {**(outcome.metadata or {}), "notRecorded": error.code}


# -- replay ------------------------------------------------------------------------------------------------------


async def ask_invoker(core: Core, call: Call, scope: RunScope) -> Outcome | None:
    """Let the run's invoker answer; ``None`` means that the live pipeline may run the call."""
    call.exact = canonical_digest(call.params)  # the other keys are for claims, and a replay makes none
    enter(call, scope)
    assert scope.invoker is not None and call.site is not None
    tool = call.tool
    streaming = _streams(call)
    invocation = Invocation("tool", tool.full_name, call.log_params, call.log_digest, call.site, tool.spec, streaming)
    answer = await scope.invoker.answer(invocation)
    if answer is None:
        return None
    outcome = from_answer(call, answer)
    if core.asynchronous and not answer.chunks and was_given_up(answer.error):
        await start(core, call)
        try:
            await until_cancelled(tool.full_name, answer.meta.get(AFTER))
        finally:
            await finish(core, call, outcome, core.asynchronous)
    if not streaming or (answer.chunks is None and answer.outcome != "ok"):
        await finish(core, call, outcome, core.asynchronous)
        if outcome.status == "success":
            outcome.value = codec.as_declared(tool.decode, outcome.value)
        return outcome
    await start(core, call)
    pieces = codec.revived(list(answer.chunks if answer.chunks is not None else outcome.value or ()))
    pauses = answer.meta.get("gapsMs", ())
    if tool.kind == "async_generator":
        outcome.stream = _given_async(core, call, outcome, pieces, pauses, answer.meta.get(AFTER))
    else:
        outcome.stream = _given(core, call, outcome, pieces, pauses)
    return outcome


def _given(core: Core, call: Call, outcome: Outcome, pieces: list[Any], pauses: Sequence[float]) -> Iterator[Any]:
    """The pieces of a recorded stream; its end is written when the reader has come to it, or has left."""
    left = 0
    try:
        for data, pause in zip_longest(pieces, pauses):
            if pause:
                time.sleep(pause / 1000)
            left += 1
            yield data
    except GeneratorExit:
        drive(finish(core, call, _left(call, left), core.asynchronous))
        raise
    drive(finish(core, call, _with_pieces(outcome, pieces), core.asynchronous))
    if outcome.status != "success":
        raise _stream_failure(call, outcome)


async def _given_async(
    core: Core, call: Call, outcome: Outcome, pieces: list[Any], pauses: Sequence[float], after: Any = None
) -> AsyncIterator[Any]:
    left = 0
    try:
        for data, pause in zip_longest(pieces, pauses):
            if pause:
                import asyncio

                await asyncio.sleep(pause / 1000)
            left += 1
            yield data
    except GeneratorExit:
        await finish(core, call, _left(call, left), core.asynchronous)
        raise
    if outcome.code == "stream_broken_off" and not outcome.message.endswith(READER_STOPPED):
        try:
            await until_cancelled(call.tool.full_name, after)
        finally:
            await finish(core, call, outcome, core.asynchronous)
    await finish(core, call, _with_pieces(outcome, pieces), core.asynchronous)
    if outcome.status != "success":
        raise _stream_failure(call, outcome)


def _with_pieces(outcome: Outcome, pieces: list[Any]) -> Outcome:
    if outcome.status == "success":
        outcome.value = pieces
    return outcome


def _left(call: Call, pieces: int) -> Outcome:
    """The reader of a recorded stream stopped; said in the words of a live one."""
    message = f"The stream of {call.tool.full_name} was broken off after {pieces} pieces: {READER_STOPPED}"
    return failed("error", "stream_broken_off", message)


def _stream_failure(call: Call, outcome: Outcome) -> BaseException:
    if outcome.code == "stream_broken_off":
        return ReplayMiss(f"The recorded reader left the stream of {call.tool.full_name} here; now it reads on.")
    return edge.exception_of(call, outcome)


def from_answer(call: Call, answer: Answer) -> Outcome:
    """A recorded answer as an outcome; recorded errors come back as errors."""
    if answer.outcome == "ok":
        outcome = Outcome("success", answer.value, attempts=0)
    else:
        error = answer.error or {}
        code = "denied" if answer.outcome == "denied" else str(error.get("code", "error"))
        outcome = failed(
            error.get("status", "error"),
            code,
            str(error.get("message", "")),
            retriable=bool(error.get("retriable", False)),
            reason=str(error.get("reason", "")),
        )
        outcome.exception = raised_again(error)
    outcome.from_cache = answer.source != "live"
    outcome.metadata = {"answeredBy": answer.source}
    return outcome
