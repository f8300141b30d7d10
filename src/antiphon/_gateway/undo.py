"""Undo: what a saga remembers of a write, and the call that reverses its effect (D50).

An undo is a call like any other. Its key is the execution it undoes, so it is dispatched at most once. Before it
requests its claim it marks the record of that execution, so that no call is answered any more with a result that no
longer holds; one whose outcome is unknown is settled first.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, NamedTuple

import orjson

from antiphon import _saga
from antiphon._gateway import approval, claim, codec
from antiphon._gateway import outcome as outcomes
from antiphon._gateway.call import NOTHING, GuardedCall, new_call
from antiphon._gateway.outcome import Outcome, failed
from antiphon._gateway.owner import certainly_dead, is_made_with
from antiphon._gateway.plan import Options, Plans
from antiphon._gateway.settlement import answered, unknown
from antiphon._gateway.steps import Get, Read, SettleVersion, Step
from antiphon._gateway.tool import Tool, it_has
from antiphon.contract._base import UNSET
from antiphon.contract.approval import is_asking
from antiphon.contract.record import DedupeRecord
from antiphon.contract.spec import DidNotHappen, Happened, ToolSpec
from antiphon.decide import claim as rules
from antiphon.errors import InvalidInput
from antiphon.keys import key_text
from antiphon.ports import Existing, Settlement

UNDO = "undo"
"""In the metadata of an undo: that there was nothing to undo."""
NOT_READABLE = "its arguments or its result cannot be read any more"
_MAYBE = frozenset({"timeout", "retry_exhausted", "retriable_error"})
"""Error codes of calls that may have had an effect although their tool may be repeated."""


class Execution(NamedTuple):
    """One dispatch of a write: its claim, and its arguments."""

    key: str
    identity: str
    token: str
    """The token of its claim request: unlike the ids that a client gives, no other execution has it."""
    tool: Tool
    arguments: dict[str, Any]
    is_known: bool
    """Whether its result is known; otherwise its record has to tell the outcome."""
    call_name: str
    """Its position in the run."""


class Undo(NamedTuple):
    """The declared inverse of a tool."""

    tool: Tool
    result: str
    """The parameter that takes the result of the undone call."""
    names: frozenset[str] | None
    """The arguments it takes besides that; ``None``: all."""
    plans: Plans
    run: Callable[[GuardedCall], Any]

    def start(self, of: Execution, value: Any) -> Any:
        """Make the call that undoes an execution: its outcome, or an awaitable of it."""
        names = self.names
        given = {name: one for name, one in of.arguments.items() if names is None or name in names}
        call = new_call(self.plans.plan(self.tool).keyed(), {self.result: None if value is NOTHING else value, **given})
        key, kind = key_text(of.token)
        call.options = Options(given_key=key, keyed=kind, undoes=of)
        call.turn = None  # not part of a turn: the model did not request it
        return self.run(call)


def parameters(tool: Tool, function: Any) -> tuple[str, frozenset[str] | None]:
    """The parameter that takes the result, and the arguments that an undo takes besides it."""
    found = list(inspect.signature(function).parameters.values())
    plain = [one for one in found if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    hint = f"Write: def undo_{tool.spec.name}(result, *, {', '.join(sorted(tool.accepts or ())) or 'arguments'})."
    if not plain or plain[0].kind is inspect.Parameter.KEYWORD_ONLY:
        raise InvalidInput(f"The undo of {tool.full_name} has no parameter for the result.", hint=hint)
    result, names = plain[0].name, frozenset(one.name for one in plain[1:])
    accepts = tool.accepts
    if accepts is not None:
        needed = {one.name for one in plain[1:] if one.default is one.empty}
        if result in accepts:
            raise InvalidInput(
                f"The first parameter of the undo of {tool.full_name} takes the result, and {result!r} is an argument "
                "of the tool.",
                hint=hint,
            )
        if missing := sorted(needed - accepts):
            raise InvalidInput(
                f"The undo of {tool.full_name} takes {', '.join(missing)}, which the tool does not have "
                f"({it_has(accepts)}).",
                hint=hint,
            )
    takes_all = any(one.kind is one.VAR_KEYWORD for one in found)
    return result, None if takes_all else names


def is_write(spec: ToolSpec) -> bool:
    """Whether a tool changes something, according to its declaration."""
    return spec.effect == "write" or (spec.effect is None and not spec.idempotent)


class Write:
    """What a saga remembers of a write."""

    def __init__(self, saga: _saga.Core, call: GuardedCall, call_name: str) -> None:
        self.saga = saga
        self.tool = tool = call.plan.tool
        self._reporter = call.plan.reporter
        self.tool_name = tool.full_name
        self.call_name = call_name
        self.why_not = "" if tool.undo is not None else _saga.NO_UNDO
        self.order = 0
        self.reused = False
        self._arguments = dict(call.arguments)
        self._value: Any = NOTHING
        self._execution = ("", "", "replayed")

    def claimed(self, call: GuardedCall) -> None:
        """The call has its keys: its start event names saga and execution."""
        self._execution = (call.key, call.identity, call.token)
        assert call.run is not None
        call.run.more = b',"saga":%b,"execution":%b' % (
            orjson.dumps(self.saga.id),
            orjson.dumps({"key": call.key, "identity": call.identity, "token": call.token}),
        )

    def recorded(self, meta: Mapping[str, Any]) -> None:
        """In a replay: the recording answers."""
        self.reused = bool(meta.get("reused"))
        self.order = int(meta.get("settled", 0))

    def ended(self, call: GuardedCall) -> None:
        """The call has ended; only what this very call dispatched is undone."""
        extras, outcome = call.extras, call.outcome
        extras.write = None
        if not self.call_name and call.run is not None:
            self.call_name = call.run.site.call
        if extras.replayed:
            mine = not self.reused
        else:
            mine = call.entered > 0 and not call.hit and not (outcome is not None and outcome.from_cache)
        if outcome is None or outcome.status == "success":
            self._value = call.value if outcome is None else outcome.value
        elif not _may_have_effect(call, outcome):
            mine = False
        self.order = self.order or _saga.next_order()
        self.saga.settle(self, has_effect=mine)

    def report_state(self, state: str, why: str) -> None:
        self._reporter.undone(self.tool, state, why)

    def undo(self) -> Any:
        undo: Undo | None = self.tool.undo
        assert undo is not None
        known = self._value is not NOTHING
        of = Execution(*self._execution, self.tool, self._arguments, known, self.call_name)
        return undo.start(of, self._value)


def _may_have_effect(call: GuardedCall, outcome: Outcome) -> bool:
    """Whether a failed call may have had an effect."""
    if outcome.code == rules.UNKNOWN_CODE or call.extras.may_have_applied:
        return True
    settlement = call.settlement
    if settlement is not None and settlement.error is not None and settlement.error[0] == rules.UNKNOWN_CODE:
        return True
    if call.extras.replayed:
        return may_have_effect(outcome.code, outcome.status)
    return settlement is not None and settlement.state == "cancelled" and settlement.dispatched


def may_have_effect(code: str, status: str) -> bool:
    """The same for a failure that is known from the log only."""
    return code in (rules.UNKNOWN_CODE, "cancelled") or status in _MAYBE


def join(call: GuardedCall) -> Outcome | None:
    """Remember a write of a saga; an outcome means that its saga takes no more writes."""
    run, tool = call.run, call.plan.tool
    assert run is not None
    if call.options.undoes is not None or not (tool.undo is not None or is_write(tool.spec)):
        return None
    saga = _saga.saga_of(run.scope)
    if saga is None or call.extras.write is not None:
        return None
    asks_recording = run.scope.invoker is not None and not run.entered
    if not saga.asynchronous and call.plan.plans.inline_kind == "async":
        message = f"{tool.full_name} is asynchronous, and the saga {saga.name!r} was opened with `with`."
        outcome = failed("error", "validation_error", message)
        outcome.exception = InvalidInput(message, hint="Write: async with run.saga(...). Nothing ran.")
        return outcome
    write = Write(saga, call, run.site.call if run.entered else "")
    if not saga.join(write):
        return None if asks_recording else outcomes.undoing(tool.full_name, saga.name, saga.state)
    call.off_path().write = write
    if not asks_recording:
        write.claimed(call)
    return None


# -- before an undo asks for its claim -----------------------------------------------------------------------------


def prepare(call: GuardedCall) -> Step:
    """Read the record of the execution to undo."""
    of: Execution = call.options.undoes
    if call.run is not None:
        call.run.more = b',"undoes":%b,"of":%b' % (orjson.dumps(of.token), orjson.dumps(of.call_name))
    return Read(of.key, of.identity, _found)


def _found(call: GuardedCall, reply: Existing | None) -> Step:
    of: Execution = call.options.undoes
    record = None if reply is None else (reply.own or reply.current)
    if reply is None or record is None or not is_made_with(record.owner, of.token):
        return claim.begin_named(call) if of.is_known else _still_unknown(call)
    is_current = record.version == reply.current.version
    if record.state == "inflight":
        return _in_flight(call, record, reply.now_ms)
    if record.state == "done" or rules.is_undone(record):
        if not of.is_known:
            return _fetch(call, record, is_current)
        return _mark_undone(call, record, is_current)
    if not rules.is_unknown(record) and not may_have_effect("", _status(record)):
        return _nothing_to_undo(call)
    if of.is_known:  # the result was seen, although it could not be written
        return claim.begin_named(call)
    if of.tool.spec.reconcile is None:
        return _still_unknown(call)
    return claim.read_back(call, of.tool, of.arguments, record, lambda call, answer: _reconciled(call, record, answer))


def _status(record: DedupeRecord) -> str:
    return "" if record.error is UNSET or not record.error.should_retriable else "retriable_error"


def _in_flight(call: GuardedCall, record: DedupeRecord, now_ms: int) -> Step:
    of: Execution = call.options.undoes
    until = 0 if record.lock_until_ms is UNSET else record.lock_until_ms
    if until > now_ms and not certainly_dead(record.owner):
        message = f"{of.tool.full_name} is still in flight: it is undone when it has settled."
        return answered(call, failed("retriable_error", "in_flight", message, retriable=True))
    if is_asking(record):  # a person was to be asked: nothing was sent
        return _nothing_to_undo(call)
    past = copy(call)  # a person who settles it has to see its arguments
    past.plan, past.arguments = call.plan.plans.plan(of.tool), of.arguments
    settlement = approval.kept_by(record, unknown(past, "its worker was lost"))
    return SettleVersion(of.key, record.version, settlement, _read_again)


def _read_again(call: GuardedCall, version: int | None) -> Step:
    of: Execution = call.options.undoes
    refused = None if version is not None else claim.refused_again(call)
    return refused or Read(of.key, of.identity, _found)


def _fetch(call: GuardedCall, record: DedupeRecord, is_current: bool) -> Step:
    """A late result: the record has it."""
    if record.payload_ref is UNSET:
        return _fetched(call, record, is_current, None)
    results = call.plan.results
    return Get(
        results.required_blobs(),
        results.tenant,
        results.ref_of(record),
        lambda call, blob: _fetched(call, record, is_current, blob),
    )


def _fetched(call: GuardedCall, record: DedupeRecord, is_current: bool, blob: bytes | None) -> Step:
    of: Execution = call.options.undoes
    try:
        payload = call.plan.results.kept(record, blob)
        if payload is None:
            raise InvalidInput("it was not kept")
        value = of.tool.decode(payload)
    except Exception as error:
        message = f"The kept result of {of.tool.full_name} cannot be read ({type(error).__name__})."
        return answered(call, failed("error", "not_readable", message))
    _give(call, value)
    return _mark_undone(call, record, is_current)


def _give(call: GuardedCall, value: Any) -> None:
    undo: Undo = call.options.undoes.tool.undo
    call.arguments[undo.result] = value
    if call.plan.approval_rule is not None:  # the log keeps what was found without the result: a replay has no other
        call.off_path().approval_state = approval.approval_state_of(call)


def _mark_undone(call: GuardedCall, record: DedupeRecord, is_current: bool) -> Step:
    """From now on no call is answered with it; then the undo takes the path of every call."""
    if rules.is_undone(record) or not is_current:  # one that others have followed cannot be marked
        return claim.begin_named(call)
    settlement = Settlement(
        "failed",
        record.ttl_ms,
        payload=None if record.payload is UNSET else bytes(record.payload),
        payload_ref=None if record.payload_ref is UNSET else record.payload_ref,
        payload_sealed=None if record.payload_sealed is UNSET else record.payload_sealed,
        output_redacted=record.output_redacted is True,
        error=rules.UNDONE,
    )
    return SettleVersion(record.key, record.version, settlement, _marked_undone)


def _marked_undone(call: GuardedCall, version: int | None) -> Step:
    return claim.begin_named(call) if version is not None else _read_again(call, None)


def _reconciled(call: GuardedCall, record: DedupeRecord, answer: Any) -> Step:
    """Act on the answer of the write's read-back."""
    if isinstance(answer, DidNotHappen):
        settlement = approval.kept_by(record, Settlement("cancelled", record.ttl_ms, dispatched=False))
        return SettleVersion(record.key, record.version, settlement, _marked_as_not_sent)
    if not isinstance(answer, Happened):
        return _still_unknown(call)
    _give(call, answer.value)
    settlement = Settlement("failed", call.plan.ttl_ms, error=rules.UNDONE, attempt_count=1)
    with contextlib.suppress(Exception):  # without it, a second attempt asks a person
        payload = codec.encode(answer.value, call.plan.tool.decode)
        kept, spilled = call.plan.results.keep(record.key, settlement, payload, False)
        settlement = settlement if spilled is not None else kept
    return SettleVersion(record.key, record.version, settlement, _marked_undone)


def _marked_as_not_sent(call: GuardedCall, version: int | None) -> Step:
    return _nothing_to_undo(call) if version is not None else _read_again(call, None)


def _nothing_to_undo(call: GuardedCall) -> Step:
    outcome = Outcome("success")
    outcome.note(**{UNDO: "nothing to undo"})
    return answered(call, outcome)


def _still_unknown(call: GuardedCall) -> Step:
    of: Execution = call.options.undoes
    return answered(call, claim.unknown_outcome(call, of.tool.full_name, of.key))
