"""How a replay answers a call in place of the tool."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import zip_longest
from typing import Any

from antiphon._drive import AFTER, until_cancelled, was_cancelled
from antiphon._gateway import codec, results
from antiphon._gateway.approval import needed
from antiphon._gateway.call import GuardedCall
from antiphon._gateway.outcome import Outcome, approval_in, failed, said_in
from antiphon._gateway.recording import SAID
from antiphon._gateway.settlement import refused
from antiphon._gateway.steps import DONE, Append, GivenUp, Replay, Step
from antiphon.contract.approval import REQUIRED
from antiphon.errors import InvalidInput, ReplayMiss, rebuild_exception
from antiphon.keys import exact_params
from antiphon.ports import AS_RECORDED, BEGUN, NOT_KEPT, Answer, Invocation, Row

READER_STOPPED = "its reader stopped"


def ask(call: GuardedCall, go_live: Callable[[GuardedCall], Step]) -> Step:
    """Let the run's invoker answer; it may decide that the call is made live."""
    run, tool = call.run, call.plan.tool
    assert run is not None
    call.key = ""  # keys are for claims, and a replay makes none
    given, written, known = call.arguments, None, None
    if not tool.spec.serialisers:
        look = getattr(run.scope.invoker, "known_arguments", None)
        known = None if look is None else look(given)
    if known is not None:
        written, digest = known
        run.enter_as((written, digest, None))
    else:
        try:
            params = exact_params(given, tool.spec)
            run.enter(tool.written(given), params)
        except InvalidInput as error:
            call.policy = call.plan.policy
            return refused(call, failed("error", "validation_error", str(error)))
        if not isinstance(params, bytes):
            given = run.plain
    if needed(call.plan, call.arguments):  # the start of the call says so, and is compared with the recorded one
        assert call.plan.approval_rule is not None
        run.approval, written = call.plan.approval_rule.policy, None
    name, spec, streams = tool.full_name, tool.spec, tool.streams
    invocation = Invocation("tool", name, given, run.digest, run.site, spec, streams, written=written)

    def answered(call: GuardedCall, answer: Answer | None) -> Step:
        return go_live(call) if answer is None else _replayed(call, answer)

    return Replay(run, invocation, answered)


def _replayed(call: GuardedCall, answer: Answer) -> Step:
    call.off_path().replayed = True
    call.policy, call.turn = call.plan.policy, None
    outcome = call.outcome = _outcome(answer, call.plan.name)
    if call.extras.write is not None:
        call.extras.write.recorded(answer.meta)
    plan, run = call.plan, call.run
    assert run is not None
    start = () if BEGUN in answer.meta else run.started(call.request_id, call.key, call.call_id)
    asynchronous = plan.plans.inline_kind == "async"
    if asynchronous and not answer.chunks and was_cancelled(answer.error):

        def wait(call: GuardedCall, _: None) -> Step:
            run.begun()
            return GivenUp(plan.name, answer.meta.get(AFTER), _wrong)

        return Append(run, start, wait)
    if not plan.tool.streams or (answer.chunks is None and answer.outcome != "ok"):
        run.finished = True
        ended = getattr(run.scope.invoker, "ended", None)
        if ended is None and answer.chunks:  # a separate run, with its chunks
            outcome.notifications = list(zip_longest(answer.chunks, answer.meta.get("gapsMs", ()), fillvalue=0.0))
        if ended is None or AS_RECORDED not in answer.meta:
            return Append(run, (*start, *_end(call)), _given)
        if BEGUN in answer.meta:
            return _given(call, None)

        def given(call: GuardedCall, _: None) -> Step:
            ended(run.site)
            return _given(call, None)

        return Append(run, start, given)

    def stream(call: GuardedCall, _: None) -> Step:
        run.begun()
        chunks = codec.revived(list(answer.chunks if answer.chunks is not None else outcome.value or ()))
        pauses = answer.meta.get("gapsMs", ())
        if call.extras.write is not None:
            call.extras.write.ended(call)
        if plan.tool.kind == "async_generator":
            outcome.stream = _stream_async(call, outcome, chunks, pauses, answer.meta.get(AFTER))
        else:
            outcome.stream = _stream(call, outcome, chunks, pauses)
            next(outcome.stream)
        return DONE

    return Append(run, start, stream)


def _wrong(call: GuardedCall, _: None) -> Step:
    raise AssertionError("a call that was given up has no reply")


def _given(call: GuardedCall, _: None) -> Step:
    outcome = call.outcome
    assert outcome is not None
    if outcome.status == "success":
        outcome.value = codec.as_declared(call.plan.tool.decode, outcome.value)
    if call.extras.write is not None:
        call.extras.write.ended(call)
    return DONE


def _outcome(answer: Answer, tool: str) -> Outcome:
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
        said = error.get(SAID)
        if said is None and code == "outcome_unknown":  # recorded by an earlier release
            said = said_in(outcome.message, tool)
        outcome.exception = rebuild_exception(error if said is None else {**error, "message": said}, codec.revived)
    outcome.from_cache = answer.source != "live"
    outcome.metadata = {"answeredBy": answer.source}
    if NOT_KEPT in answer.meta:
        outcome.note(payload=answer.meta[NOT_KEPT])
    if outcome.code == REQUIRED:
        outcome.metadata["approvalId"] = approval_in(outcome.message)
    return outcome


def _end(call: GuardedCall, outcome: Outcome | None = None) -> Sequence[Row]:
    assert call.run is not None
    took_ms = (call.plan.monotonic() - call.started) * 1000
    return call.run.ended(outcome or call.outcome, None, took_ms)


# -- recorded streams ----------------------------------------------------------------------------------------------


def _stream(call: GuardedCall, outcome: Outcome, chunks: list[Any], pauses: Sequence[float]) -> Iterator[Any]:
    """The chunks of a recorded stream; its end is written when the reader has reached it or has stopped reading."""
    assert call.run is not None
    write = call.run.scope.write
    given = 0
    try:
        yield None  # begun by its maker: even if nobody reads it, its end is written
        for data, pause in zip_longest(chunks, pauses):
            if pause:
                time.sleep(pause / 1000)
            given += 1
            yield data
    except GeneratorExit:
        if write is not None:
            write(_end(call, _left(call, given)))
        raise
    if write is not None:
        write(_end(call, _with_chunks(outcome, chunks)))
    if outcome.status != "success":
        raise _stream_failure(call, outcome)


async def _stream_async(
    call: GuardedCall, outcome: Outcome, chunks: list[Any], pauses: Sequence[float], after_ms: Any
) -> AsyncIterator[Any]:
    import asyncio

    async def end(of: Outcome) -> None:
        assert call.run is not None
        if call.run.scope.write_async is not None:
            await call.run.scope.write_async(_end(call, of))

    given = 0
    try:
        for data, pause in zip_longest(chunks, pauses):
            if pause:
                await asyncio.sleep(pause / 1000)
            given += 1
            yield data
    except GeneratorExit:
        await end(_left(call, given))
        raise
    if outcome.code == "stream_broken_off" and not outcome.message.endswith(READER_STOPPED):
        try:
            await until_cancelled(call.plan.name, after_ms)
        finally:
            await end(outcome)
    await end(_with_chunks(outcome, chunks))
    if outcome.status != "success":
        raise _stream_failure(call, outcome)


def _with_chunks(outcome: Outcome, chunks: list[Any]) -> Outcome:
    if outcome.status == "success":
        outcome.value = chunks
    return outcome


def _left(call: GuardedCall, chunks: int) -> Outcome:
    """The reader of a recorded stream stopped; worded as for a live one."""
    message = f"The stream of {call.plan.name} ended early after {chunks} chunks: {READER_STOPPED}"
    return failed("error", "stream_broken_off", message)


def _stream_failure(call: GuardedCall, outcome: Outcome) -> BaseException:
    if outcome.code == "stream_broken_off":
        return ReplayMiss(
            f"The recorded reader stopped reading the stream of {call.plan.name} here; the replay continues reading."
        )
    return results.exception_of(call, outcome)
