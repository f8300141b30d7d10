"""Tool calls of a framework, sent through the gateway: claim, retry, breaker, loop guard, record and replay."""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from antiphon._drive import drive
from antiphon._gateway import codec, results
from antiphon._gateway.approval import needed
from antiphon._gateway.call import GuardedCall
from antiphon._gateway.gateway import AsyncGateway, BaseGateway, Gateway
from antiphon._gateway.ids import uuid7
from antiphon._gateway.outcome import Outcome, said_in
from antiphon._gateway.plan import Verdict
from antiphon._gateway.turns import SessionState, TurnState, active_turn
from antiphon._scope import current_scope
from antiphon.adapters._pending import Body, PendingCall, making, run, run_async
from antiphon.contract.approval import REQUIRED
from antiphon.contract.envelope import Control, Payload, RetryBudget, Target, ToolCallEnvelope, Trace, Transport
from antiphon.contract.result import ToolResultEnvelope
from antiphon.contract.spec import ToolSpec
from antiphon.errors import AntiphonError, InvalidInput, ResultNotKept, class_name, rebuild_exception
from antiphon.ops.app import Antiphon, current

G = TypeVar("G", bound=BaseGateway)
_BUDGET = RetryBudget(max_attempts=1000, max_elapsed_ms=86_400_000)
"""So large that the tool's own policy always decides."""
_ENFORCED = Transport(dedupe_mode="enforced", retry_budget=_BUDGET)
_CONTROL, _TRACE = Control(), Trace()
_TURNS_KEPT = 512
_NO_ID = re.compile(r"[^0-9A-Za-z]+")
_SWITCH = re.compile(r"(?<=[0-9])[A-Za-z]|(?<=[A-Za-z])[0-9]")
_DRAWN, _SWITCHES = 16, 3


class CallIdentity(NamedTuple):
    """Identifies a call: the session, which survives a resume, the model's turn, and the call in it."""

    session: str | None
    """A thread, conversation or session id that survives a restart."""
    call_id: str | None
    turn: str | None = None
    """Id of the model's message; it distinguishes calls if a provider numbers their ids from 0 in each message."""
    message: str | None = None
    """The same, if the framework itself handles repeated calls within a turn."""
    counted_in: str | None = None
    """The scope of the call id, if known, where the framework does not give the message; empty means the session. It is
    not part of the identity of a redelivery."""
    key: str | None = None
    """An idempotency key, for a call without an id; the call runs once per key."""

    @property
    def asked_in(self) -> str | None:
        """What identifies the message, even after a resume."""
        return self.turn or self.message


class ToolAnswer(NamedTuple):
    """The result of a call: its value, or a message for the model instead."""

    value: Any
    ok: bool
    code: str = ""
    message: str = ""
    reused: bool = False
    question: dict[str, Any] | None = None
    """The approval question, if the call needs approval; its arguments are masked."""


Tools = Iterable[ToolSpec] | Mapping[str, Mapping[str, Any]] | None
"""What ``protect(…, tools=)`` takes."""


def specs_of(tools: Tools) -> dict[str, ToolSpec]:
    """Declared tools by name, from specs or a mapping such as ``{"send_email": {"idempotent": False}}``."""
    if tools is None:
        return {}
    if isinstance(tools, Mapping):
        for name, fields in tools.items():
            if "idempotent" not in fields:
                raise InvalidInput(f"Declare whether the tool {name!r} is idempotent: idempotent=…")
        return {name: ToolSpec(name=name, **{"reuse": "turn", **fields}) for name, fields in tools.items()}
    return {spec.name: _with_turn(spec) for spec in tools}


def _with_turn(spec: ToolSpec) -> ToolSpec:
    """The spec with reuse within a turn, which adapters know, unless the tool says otherwise (D35)."""
    return spec if spec.reuse is not None else msgspec.structs.replace(spec, reuse="turn")


GatewayLike = Antiphon | Gateway | AsyncGateway
"""What ``protect(…, gateway=)`` takes: a gateway of the right kind, or the object that has both kinds."""


class ApprovalContext(NamedTuple):
    """The state of a call in a framework with its own approvals."""

    verdict: Verdict | None = None
    """The decision made in the framework."""
    shown_in: str = ""
    """The name of the framework, if it shows the question."""
    only_asks: bool = False
    """Whether to ask only: the framework shows the question first, so nothing is dispatched."""


NOBODY: Final = ApprovalContext()


class GuardedTools:
    """The tools of one framework object, behind the given gateway or that of the current application."""

    def __init__(self, specs: Mapping[str, ToolSpec], through: GatewayLike | None = None) -> None:
        self._specs = dict(specs)
        self._through = through
        self._turns: OrderedDict[tuple[str, str], TurnState] = OrderedDict()

    def _gateway(self, kind: type[G]) -> G:
        """The gateway for calls of one kind: the given one, or that of the given or current application."""
        through = current() if self._through is None else self._through
        if isinstance(through, Antiphon):
            through = through.gateway if kind is Gateway else through.async_gateway
        if not isinstance(through, kind):
            how, needed = ("synchronously", "a Gateway") if kind is Gateway else ("asynchronously", "an AsyncGateway")
            raise InvalidInput(
                f"The framework makes this call {how}: gateway= must be {needed}.",
                hint="antiphon.Antiphon(...) has a gateway of either kind: protect(..., gateway=app).",
            )
        return through

    def spec(self, name: str, description: str = "") -> ToolSpec:
        """The declared spec; an undeclared tool is treated as not idempotent."""
        found = self._specs.get(name)
        if found is None:
            found = self._specs[name] = ToolSpec(name=name, idempotent=False, reuse="turn", description=description)
        return found

    def call(
        self,
        spec: ToolSpec,
        arguments: Mapping[str, Any],
        place: CallIdentity,
        body: Body,
        approval: ApprovalContext = NOBODY,
    ) -> ToolAnswer:
        """One synchronous call; an exception raised by the tool propagates unchanged."""
        gateway = self._gateway(Gateway)
        _registered(gateway, spec, run)
        return drive(self._call(gateway, spec, arguments, place, _ToolCall(body), approval))

    async def call_async(
        self,
        spec: ToolSpec,
        arguments: Mapping[str, Any],
        place: CallIdentity,
        body: Callable[[dict[str, Any]], Awaitable[Any]],
        approval: ApprovalContext = NOBODY,
    ) -> ToolAnswer:
        """One asynchronous call."""
        gateway = self._gateway(AsyncGateway)
        _registered(gateway, spec, run_async)
        return await self._call(gateway, spec, arguments, place, _ToolCall(body), approval)

    async def _call(
        self,
        gateway: Gateway | AsyncGateway,
        spec: ToolSpec,
        arguments: Mapping[str, Any],
        place: CallIdentity,
        pending: _ToolCall,
        approval: ApprovalContext,
    ) -> ToolAnswer:
        """Make the call, suspending only with an async gateway; a call without an id is identified by position (D2)."""
        with making(pending), self._in_turn(place):
            if place.call_id is None:
                alone = TurnState(SessionState(_session(place), "default"))
                call = gateway.named_call(alone, f"{spec.namespace}/{spec.name}", arguments, None, place.key)
            else:
                call = gateway.envelope_call(_envelope(spec, arguments, place))
                if isinstance(call, GuardedCall) and place.asked_in is None:
                    tied, counted_in = place.counted_in is not None, place.counted_in or ""
                    if _is_random(place.call_id):
                        tied, counted_in = True, ""
                    call.options = call.options._replace(by_id=tied, counted_in=counted_in)
            if isinstance(call, ToolResultEnvelope):
                return pending.given(call)
            if approval is not NOBODY:
                if approval.only_asks and not needed(call.plan, call.arguments):
                    return ToolAnswer(None, False)
                call.options = call.options._replace(**approval._asdict())
                if approval.verdict is not None and approval.shown_in:  # people may have changed the arguments
                    call.options = call.options._replace(by_id=False)
            outcome = gateway.run(call)
            return pending.outcome(gateway, call, outcome if isinstance(outcome, Outcome) else await outcome)

    @contextmanager
    def _in_turn(self, place: CallIdentity) -> Iterator[None]:
        turn = active_turn.set(self._turn(place)) if place.turn is not None else None
        try:
            yield
        finally:
            if turn is not None:
                active_turn.reset(turn)

    def _turn(self, place: CallIdentity) -> TurnState:
        session = _session(place)
        where = (session, place.turn or "")
        state = self._turns.get(where)
        if state is None:
            state = self._turns.setdefault(where, TurnState(SessionState(session, "default")))
            while len(self._turns) > _TURNS_KEPT:
                self._turns.popitem(last=False)
        return state


def _is_random(call_id: str) -> bool:
    """Whether an id looks random, as OpenAI's and Anthropic's do; others may be numbered from 0 in each response."""
    return any(
        len(part) >= _DRAWN and len(_SWITCH.findall(part)) >= _SWITCHES
        for part in _NO_ID.split(call_id.replace("-", ""))
    )


class _ToolCall(PendingCall):
    """A tool call of a framework, and its result."""

    def outcome(self, gateway: Gateway | AsyncGateway, call: GuardedCall, outcome: Outcome) -> ToolAnswer:
        """The result for the framework; a replay raises the exception that the tool raised when recorded."""
        if outcome.code == "denied":
            return ToolAnswer(None, False, outcome.code, results.denied(call, outcome).details)
        if outcome.code == REQUIRED:
            return self._asked(call, gateway.answer(call, outcome))
        if self.error is None and outcome.exception is not None and not _is_ours(outcome.exception):
            self.error = _in_its_words(call, outcome.exception)
        if outcome.status == "success" and outcome.from_cache and outcome.value is None:
            try:
                results.check_kept(call, outcome)
            except ResultNotKept as lost:
                return ToolAnswer(None, False, lost.code, lost.message, True)
        return self.given(gateway.answer(call, outcome))

    def _asked(self, call: GuardedCall, result: ToolResultEnvelope) -> ToolAnswer:
        """The result with the approval question."""
        error, spec = result.error, call.tool.spec
        approval = "" if not error or not error.approval_id else error.approval_id
        given = self.given(result)
        if not approval:  # no approval could be requested, so there is nothing to decide
            return given
        approval_rule = call.plan.approval_rule
        arguments = call.plan.results.for_listeners(
            call.arguments if approval_rule is None else approval_rule.shown(call.arguments)
        )
        asked = {"approvalId": approval, "tool": call.tool.full_name, "arguments": arguments}
        return given._replace(question={**asked, "description": spec.description} if spec.description else asked)

    def given(self, result: ToolResultEnvelope) -> ToolAnswer:
        if result.ok:
            return ToolAnswer(result.content, True, reused=result.from_cache)
        if self.error is not None:
            self.error.add_note(f"antiphon: {result.tool_name}: {result.code}")
            raise self.error
        message = "" if not result.error else result.error.message
        return ToolAnswer(None, False, result.code, message, result.from_cache)


def pause_text(asked: Any) -> str:
    """What a tool that pauses asks for, as text from which :func:`paused_for` restores it."""
    try:
        return codec.encode(asked).decode()
    except codec.NotSerialisable:
        return json.dumps(asked, default=str)


def paused_for(text: str) -> Any:
    """What a recorded pause asked for."""
    return codec.revived(json.loads(text))


def _in_its_words(call: GuardedCall, error: BaseException) -> BaseException:
    """A recorded exception with its original message, which the gateway wraps if the outcome is unknown."""
    said = said_in(str(error), call.tool.full_name)
    if said is None:
        return error
    recorded = error.data.get("recorded") if isinstance(error, AntiphonError) else None
    return rebuild_exception({**(recorded or {"class": class_name(type(error))}), "message": said}) or error


def _is_ours(error: BaseException) -> bool:
    """Whether the gateway raised the exception (a timeout); frameworks then get a message instead."""
    recorded = error.data.get("recorded") if isinstance(error, AntiphonError) else None
    name = str(recorded.get("class")) if isinstance(recorded, Mapping) else type(error).__module__
    ours = name.startswith("antiphon.") and not name.startswith("antiphon.adapters.")  # adapters raise like frameworks
    return ours or not isinstance(error, Exception)


def _registered(gateway: Any, spec: ToolSpec, function: Callable[..., Any]) -> None:
    """Register the tool once; a changed declaration replaces the previous one."""
    found = gateway.find(spec.namespace, spec.name)
    if found is None or (found.spec is not spec and found.spec != spec and found.function in (run, run_async)):
        gateway.register(function, spec)


def _session(place: CallIdentity) -> str:
    if place.session is not None:
        return place.session
    scope = current_scope()
    return "default" if scope is None else scope.run_id


def _envelope(spec: ToolSpec, arguments: Mapping[str, Any], place: CallIdentity) -> ToolCallEnvelope:
    """The envelope of the call, identified by the model's call id within the session; without a session or run, by a
    new id, because call ids of different conversations may be equal (D2).
    """
    request = uuid7()
    names_call = place.session is not None or current_scope() is not None
    if not names_call and spec.approve is not None:  # the decision comes back with this id only
        names_call = _is_random(place.call_id or "")
    known = place.call_id if names_call else None
    identity = request if known is None else f"{place.asked_in}:{known}" if place.asked_in else known
    return ToolCallEnvelope(
        contract_version="1.1",
        request_id=request,
        tool_name=spec.name,
        tool_namespace=spec.namespace,
        target=Target(session_key=_session(place)[:256], actor_id="default"),
        payload=Payload(version="1.0", params=dict(arguments)),
        transport=_ENFORCED,
        control=_CONTROL,
        trace=_TRACE,
        tool_call_id=identity[-256:],
    )
