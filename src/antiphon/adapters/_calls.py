"""Tool calls of a framework, sent through the gateway: claim, retry, breaker, loop guard, record and replay.

A framework gives each call a closure; the gateway wants a registered function. So one function per tool name is
registered, and the closure travels in a context variable.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, NamedTuple

import msgspec

from antiphon._drive import drive
from antiphon._gateway import results
from antiphon._gateway.approval import needed
from antiphon._gateway.call import GuardedCall
from antiphon._gateway.gateway import AsyncGateway, Gateway
from antiphon._gateway.ids import uuid7
from antiphon._gateway.outcome import Outcome, said_in
from antiphon._gateway.plan import Verdict
from antiphon._gateway.turns import SessionState, TurnState, active_turn
from antiphon._scope import current_scope
from antiphon.contract.approval import REQUIRED
from antiphon.contract.envelope import Control, Payload, RetryBudget, Target, ToolCallEnvelope, Trace, Transport
from antiphon.contract.result import ToolResultEnvelope
from antiphon.contract.spec import ToolSpec
from antiphon.errors import AntiphonError, InvalidInput, class_name, raised_again
from antiphon.ops.app import Antiphon, current

Body = Callable[[dict[str, Any]], Any]
_BUDGET = RetryBudget(max_attempts=1000, max_elapsed_ms=86_400_000)
"""The tool's own policy is the smaller one and decides."""
_ENFORCED = Transport(dedupe_mode="enforced", retry_budget=_BUDGET)
_CONTROL, _TRACE = Control(), Trace()
_TURNS_KEPT = 512
_NO_ID = re.compile(r"[^0-9A-Za-z]+")
_SWITCH = re.compile(r"(?<=[0-9])[A-Za-z]|(?<=[A-Za-z])[0-9]")
_DRAWN, _SWITCHES = 16, 3

_body: ContextVar[Body] = ContextVar("antiphon_tool_body")


class Place(NamedTuple):
    """Where a call belongs: the session that survives a resume, the model's turn, and the call in it."""

    session: str | None
    """A thread, conversation or session id that is the same after a restart."""
    call_id: str | None
    turn: str | None = None
    """Id of the model's message; it tells two calls apart whose ids a provider counts from 0 in each message."""
    message: str | None = None
    """The same where the framework itself sees to what is called twice in a turn."""
    counted_in: str | None = None
    """Where the framework does not tell the message: what the id is good for, empty for the session, if that is known.
    It is no part of what makes a redelivery."""
    key: str | None = None
    """What the call is about, for one that has no id but a key of its own: it runs once for it."""

    @property
    def asked_in(self) -> str | None:
        """What tells the message from others, also after a resume."""
        return self.turn or self.message


class Given(NamedTuple):
    """What came of a call: its value, or a sentence for the model in place of one."""

    value: Any
    ok: bool
    code: str = ""
    message: str = ""
    reused: bool = False
    question: dict[str, Any] | None = None
    """What a person is asked, if one must approve the call first; its arguments are masked."""


def specs_of(tools: Iterable[ToolSpec] | Mapping[str, Mapping[str, Any]] | None) -> dict[str, ToolSpec]:
    """Declared tools by name; a mapping says ``{"send_email": {"idempotent": False}}``."""
    if tools is None:
        return {}
    if isinstance(tools, Mapping):
        for name, fields in tools.items():
            if "idempotent" not in fields:
                raise InvalidInput(f"Declare whether the tool {name!r} is idempotent: idempotent=…")
        return {name: ToolSpec(name=name, **{"reuse": "turn", **fields}) for name, fields in tools.items()}
    return {spec.name: _with_turn(spec) for spec in tools}


def _with_turn(spec: ToolSpec) -> ToolSpec:
    """Adapters know turns, so an answer is reused within one, unless the tool says otherwise (D35)."""
    return spec if spec.reuse is not None else msgspec.structs.replace(spec, reuse="turn")


Through = Antiphon | Gateway | AsyncGateway
"""What ``protect(…, gateway=)`` takes: a gateway of the kind that the calls need, or the object with both."""


class _One:
    """A single gateway in the place of an application: it serves calls of its own kind only."""

    def __init__(self, given: Gateway | AsyncGateway) -> None:
        self._given = given

    @property
    def gateway(self) -> Gateway:
        if not isinstance(self._given, Gateway):
            raise _other_kind("synchronously", "a Gateway")
        return self._given

    @property
    def async_gateway(self) -> AsyncGateway:
        if not isinstance(self._given, AsyncGateway):
            raise _other_kind("asynchronously", "an AsyncGateway")
        return self._given


def _other_kind(how: str, needed: str) -> InvalidInput:
    return InvalidInput(
        f"The framework makes this call {how}: gateway= must be {needed}.",
        hint="antiphon.Antiphon(...) has a gateway of either kind: protect(..., gateway=app).",
    )


class Approving(NamedTuple):
    """What a framework with approvals of its own says of a call that may need one."""

    verdict: Verdict | None = None
    """What its people decided."""
    shown_in: str = ""
    """Its name, if it shows them the question."""
    only_asks: bool = False
    """It shows the question before it makes the call: this one dispatches nothing."""


NOBODY: Final = Approving()


class GuardedTools:
    """The tools of one framework object, behind the gateway that was given or that of the current application."""

    def __init__(self, specs: Mapping[str, ToolSpec], through: Through | None = None) -> None:
        self._specs = dict(specs)
        self._app = through if through is None or isinstance(through, Antiphon) else _One(through)
        self._turns: OrderedDict[tuple[str, str], TurnState] = OrderedDict()

    @property
    def app(self) -> Antiphon | _One:
        """Where the calls go to: what was given, else the current application."""
        return self._app if self._app is not None else current()

    def spec(self, name: str, description: str = "") -> ToolSpec:
        """What is declared. A tool nobody declared is taken for one that must not be repeated."""
        found = self._specs.get(name)
        if found is None:
            found = self._specs[name] = ToolSpec(name=name, idempotent=False, reuse="turn", description=description)
        return found

    def call(
        self, spec: ToolSpec, arguments: Mapping[str, Any], place: Place, body: Body, approving: Approving = NOBODY
    ) -> Given:
        """One synchronous call. An exception of the tool itself comes out as it is."""
        gateway = self.app.gateway
        _registered(gateway, spec, _run)
        failure = _Failure(body)
        return drive(self._call(gateway, spec, arguments, place, failure, failure.run, approving))

    async def call_async(
        self,
        spec: ToolSpec,
        arguments: Mapping[str, Any],
        place: Place,
        body: Callable[[dict[str, Any]], Awaitable[Any]],
        approving: Approving = NOBODY,
    ) -> Given:
        """One asynchronous call."""
        gateway = self.app.async_gateway
        _registered(gateway, spec, _run_async)
        failure = _Failure(body)
        return await self._call(gateway, spec, arguments, place, failure, failure.run_async, approving)

    async def _call(
        self,
        gateway: Gateway | AsyncGateway,
        spec: ToolSpec,
        arguments: Mapping[str, Any],
        place: Place,
        failure: _Failure,
        body: Body,
        approving: Approving,
    ) -> Given:
        """Suspends only for an asynchronous gateway. A call without an id is known by its place in the run (D2)."""
        with self._around(place, body):
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
                return failure.given(call)
            if approving is not NOBODY:
                if approving.only_asks and not needed(call.plan, call.arguments):
                    return Given(None, False)
                call.options = call.options._replace(**approving._asdict())
                if approving.verdict is not None and approving.shown_in:  # people may change what the call says
                    call.options = call.options._replace(by_id=False)
            outcome = gateway.run(call)
            return failure.outcome(gateway, call, outcome if isinstance(outcome, Outcome) else await outcome)

    @contextmanager
    def _around(self, place: Place, body: Body) -> Iterator[None]:
        token = _body.set(body)
        turn = active_turn.set(self._turn(place)) if place.turn is not None else None
        try:
            yield
        finally:
            if turn is not None:
                active_turn.reset(turn)
            _body.reset(token)

    def _turn(self, place: Place) -> TurnState:
        session = _session(place)
        where = (session, place.turn or "")
        state = self._turns.get(where)
        if state is None:
            state = self._turns.setdefault(where, TurnState(SessionState(session, "default")))
            while len(self._turns) > _TURNS_KEPT:
                self._turns.popitem(last=False)
        return state


def _is_random(call_id: str) -> bool:
    """Whether an id was drawn, as OpenAI's and Anthropic's are: others may be counted from 0 in each response."""
    return any(
        len(part) >= _DRAWN and len(_SWITCH.findall(part)) >= _SWITCHES
        for part in _NO_ID.split(call_id.replace("-", ""))
    )


class _Failure:
    """Runs the body and remembers what it raised, so that the framework sees its own exception."""

    def __init__(self, body: Callable[[dict[str, Any]], Any]) -> None:
        self._body = body
        self._error: BaseException | None = None

    def run(self, params: dict[str, Any]) -> Any:
        try:
            return self._body(params)
        except Exception as error:
            self._error = error
            raise

    async def run_async(self, params: dict[str, Any]) -> Any:
        try:
            return await self._body(params)
        except Exception as error:
            self._error = error
            raise

    def outcome(self, gateway: Gateway | AsyncGateway, call: GuardedCall, outcome: Outcome) -> Given:
        """What the framework is given; a replay raises the exception that the recorded tool raised."""
        if outcome.code == "denied":
            return Given(None, False, outcome.code, results.denied(call, outcome).details)
        if outcome.code == REQUIRED:
            return self._asked(call, gateway.answer(call, outcome))
        if self._error is None and outcome.exception is not None and not _is_ours(outcome.exception):
            self._error = _in_its_words(call, outcome.exception)
        return self.given(gateway.answer(call, outcome))

    def _asked(self, call: GuardedCall, result: ToolResultEnvelope) -> Given:
        """A person has to decide: what they are asked."""
        error, spec = result.error, call.tool.spec
        approval = "" if not error or not error.approval_id else error.approval_id
        given = self.given(result)
        if not approval:  # where none could be asked for, there is nothing to decide
            return given
        approving = call.plan.approving
        arguments = call.plan.results.told(call.arguments if approving is None else approving.shown(call.arguments))
        asked = {"approvalId": approval, "tool": call.tool.full_name, "arguments": arguments}
        return given._replace(question={**asked, "description": spec.description} if spec.description else asked)

    def given(self, result: ToolResultEnvelope) -> Given:
        if result.ok:
            return Given(result.content, True, reused=result.from_cache)
        if self._error is not None:
            self._error.add_note(f"antiphon: {result.tool_name}: {result.code}")
            raise self._error
        message = "" if not result.error else result.error.message
        return Given(None, False, result.code, message, result.from_cache)


def _in_its_words(call: GuardedCall, error: BaseException) -> BaseException:
    """A recorded exception with the message it had: where the outcome is unknown, the gateway's words are around it."""
    said = said_in(str(error), call.tool.full_name)
    if said is None:
        return error
    recorded = error.data.get("recorded") if isinstance(error, AntiphonError) else None
    return raised_again({**(recorded or {"class": class_name(type(error))}), "message": said}) or error


def _is_ours(error: BaseException) -> bool:
    """Whether an exception is of the gateway's making (out of time): frameworks are told about it in words."""
    recorded = error.data.get("recorded") if isinstance(error, AntiphonError) else None
    name = str(recorded.get("class")) if isinstance(recorded, Mapping) else type(error).__module__
    ours = name.startswith("antiphon.") and not name.startswith("antiphon.adapters.")  # those raise as frameworks do
    return ours or not isinstance(error, Exception)


def _run(**params: Any) -> Any:
    return _body.get()(params)


async def _run_async(**params: Any) -> Any:
    return await _body.get()(params)


def _registered(gateway: Any, spec: ToolSpec, function: Callable[..., Any]) -> None:
    """Register the tool once; a declaration that changed replaces the one before."""
    found = gateway.find(spec.namespace, spec.name)
    if found is None or (found.spec is not spec and found.spec != spec and found.function in (_run, _run_async)):
        gateway.register(function, spec)


def _session(place: Place) -> str:
    if place.session is not None:
        return place.session
    scope = current_scope()
    return "default" if scope is None else scope.run_id


def _envelope(spec: ToolSpec, arguments: Mapping[str, Any], place: Place) -> ToolCallEnvelope:
    """The call. Its identity is the model's call id within the session; where there is neither session nor run, a new
    one, because call ids of different conversations may be equal (D2).
    """
    request = uuid7()
    told = place.session is not None or current_scope() is not None
    if not told and spec.approve is not None:  # whoever decides comes back with this id and nothing else
        told = _is_random(place.call_id or "")
    known = place.call_id if told else None
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
