"""One guarded call: everything known about it, and nothing that waits.

Functions of ``admission``, ``claim``, ``attempt``, ``settlement`` and ``repair`` decide what comes next and return it
as a step; a driver performs the step and passes the reply back (``steps``, ``drivers``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from antiphon import _lineage, _scope
from antiphon._gateway.approval_rule import ApprovalState
from antiphon._gateway.context import CallContext, Held, held, running
from antiphon._gateway.hooks import HookCall
from antiphon._gateway.ids import uuid7
from antiphon._gateway.outcome import Outcome
from antiphon._gateway.plan import NO_OPTIONS, Options, Permits, Place, Plan, Policy
from antiphon._gateway.point import Point, point
from antiphon._gateway.recording import RunEntry, entry_of
from antiphon._gateway.report import TraceData
from antiphon._gateway.tool import Tool
from antiphon._gateway.turns import Guard, Pair, TurnState, active_session, active_turn
from antiphon.contract.approval import ASKING, note_spent
from antiphon.contract.result import Retried
from antiphon.decide.breaker import Refusal
from antiphon.decide.claim import Reuse
from antiphon.errors import StoreError
from antiphon.ports import Attempt, ClaimTemplate, Pin, Row, Settlement

NOTHING: Any = object()
"""Stands for the result of a tool that has not returned one."""
_NOBODY: Place = ("default", "default", None)
_active_runs, _cursor, _origin = _scope._active, _scope._cursor.get, _lineage.origin_var.get
_turn, _session = active_turn.get, active_session.get
_held, _set_held = held.get, held.set


class Extras:
    """State that only calls off the plain path need. Plain calls share one instance, which is never changed."""

    poll_interval_s: float = 1.0
    """Seconds until a waiter polls, unnotified, whether the holder's process still exists."""
    waited_for = 0
    """The in-flight version that this call has been waiting for."""
    waits_long = False
    """Whether the log says that this call has waited for a long time."""
    refusals = 0
    """How often the store has refused to change a record that it says is the current one."""
    approval_state: ApprovalState | None = None
    """What is known about the approval, if a person must approve the call."""
    hooked: HookCall | None = None
    loop_note = ""
    claimed: float = 0.0
    """When its claim was won, if that was not soon after the start of the call."""
    began: float = 0.0
    """When the current attempt began, if that was not the start of the call."""
    may_have_applied = False
    """A failed attempt may have had its effect."""
    dispatched = False
    """An attempt was interrupted, and its effect is uncertain."""
    last: Outcome | None = None
    """The outcome of the last attempt, if another one may follow."""
    retried: tuple[Retried, ...] = ()
    was_reread = False
    """Whether the record was read after it could not be settled."""
    left = False
    """Its caller is gone: only the record remains to be written."""
    unprotected = ""
    """Why the call was made without a claim."""
    verdict = ""
    """What the gateway would have done, in shadow mode."""
    is_shadow_twin = False
    """It is the twin of a call in shadow mode: it finds the verdict, and the tool is not called."""
    ended: Callable[[Any], None] | None = None
    """Called when a call in shadow mode ends."""
    outer_running: CallContext | None = None
    point: Point | None = None
    """Whether the current attempt has passed the point of no return, if its tool says where that is."""
    outer_point: Point | None = None
    late: Any = None
    """Settles the record with a result that arrives after the call was given up (R8)."""
    stream: Any = None
    """The stream that the caller reads."""
    replayed = False
    """The recording answers."""
    write: Any = None
    """What its saga remembers of the call (:class:`~antiphon._gateway.undo.Write`), until the call has ended."""
    outage: StoreError | None = None
    """Why the claim is released before the tool is called."""
    interrupt: BaseException | None = None


NO_EXTRAS = Extras()


@dataclass(slots=True, init=False, eq=False, repr=False)
class GuardedCall:
    """The state of one call. It reads no store, never waits, and starts nothing.

    It is also the request for its own claim (:class:`~antiphon.ports.ClaimRequest`). ``outcome`` stays ``None`` for a
    call that simply succeeds: ``value`` says it all (:meth:`result`).
    """

    # who asks, for what
    plan: Plan
    options: Options
    policy: Policy
    arguments: dict[str, Any]
    place: Place
    turn: TurnState | None
    run: RunEntry | None
    request_id: str
    call_id: str | None
    identity: str
    """What makes a call a redelivery; empty until a call without an id has its position in the run."""
    token: str
    # its keys, set when it is admitted
    key: str
    idempotency_key: str
    params: bytes | tuple[str, str]
    template: ClaimTemplate
    pair: Pair
    pin: Pin | None
    guard: Guard | None
    # its attempts
    permits: Permits
    started: float
    version: int
    """The version of its claim; 0: none."""
    number: int
    """Attempts begun."""
    entered: int
    """Attempts whose tool was called."""
    attempts: tuple[Attempt, ...]
    """Attempts that have ended."""
    outer: Held | None
    value: Any
    # its end
    refusal: Refusal | None
    """What an open breaker says: the answer, unless a record has a better one."""
    reuse: Reuse | None
    """The record that answers, and how it was found."""
    reused_at_ms: int
    """When that was, on the store's clock."""
    hit: str
    """The state of that record, as the metrics name it, once it has answered."""
    payload: bytes | None
    settlement: Settlement | None
    events: Sequence[Row]
    outcome: Outcome | None
    extras: Extras

    def off_path(self) -> Extras:
        """The extras of this call, which is not a plain one from here on."""
        if self.extras is NO_EXTRAS:
            self.extras = Extras()
        return self.extras

    def result(self) -> Outcome:
        """The outcome of the call, created on request."""
        outcome = self.outcome
        if outcome is None:
            outcome = self.outcome = Outcome("success", self.value, self.number)
            outcome.payload = self.payload
            if self.hit:
                self.label(outcome)
        return outcome

    def label(self, outcome: Outcome) -> None:
        """Label the outcome as answered by a record."""
        reuse = self.reuse
        assert reuse is not None
        outcome.from_cache = True
        outcome.matched_on = reuse.matched_on
        outcome.age_ms = age_ms = self.reused_at_ms - reuse.record.updated_at_ms
        if reuse.shared:
            more = {"from": "an equal call", "matchedOn": reuse.matched_on, "ageMs": max(0, age_ms)}
            outcome.note(reused=True, **more)

    def leave_tool(self) -> None:
        """The call has left the tool."""
        _set_held(self.outer)
        if self.run is not None:
            self.run.leave_tool()
        if self.plan.tool.context_param is not None:
            running.set(self.extras.outer_running)
        if self.plan.tool.has_point:
            point.set(self.extras.outer_point)

    # -- what others read ----------------------------------------------------------------------------------------

    @property
    def began(self) -> float:
        """When the current attempt began."""
        return self.extras.began or self.started

    @property
    def claimed(self) -> float:
        """When its claim was won; of a call that did not wait for it, the start of the call."""
        return self.extras.claimed or self.started

    @property
    def tool(self) -> Tool:
        return self.plan.tool

    @property
    def tool_name(self) -> str:
        return self.plan.name

    @property
    def fingerprint(self) -> str:
        return self.plan.plans.fingerprints.of(self.key)

    @property
    def trace_data(self) -> TraceData | None:
        return self.options.trace_data

    @property
    def deadline(self) -> float | None:
        return self.policy.deadline

    @property
    def lease_ms(self) -> int:
        return self.plan.lease_ms

    @property
    def renew_every(self) -> float:
        return self.plan.renew_every

    @property
    def stream(self) -> Any:
        return self.extras.stream

    @property
    def wait_replicas(self) -> int:
        return self.plan.plans.settings.wait_replicas if self.policy.safety else 0

    @property
    def shown(self) -> str:
        """The arguments, sealed or masked, of a call that only a person can settle if its worker is lost."""
        plan = self.plan
        shown = plan.results.for_claim(self.key, self.arguments) if plan.shows else ""
        state = self.extras.approval_state
        if state is None:
            return shown
        return ASKING if state.spending is None else note_spent(state.spending, shown)


def new_call(plan: Plan, arguments: dict[str, Any]) -> GuardedCall:
    """A call of a decorated function, in the session, turn and run of the current context."""
    call = GuardedCall()
    call.plan = plan
    call.options = NO_OPTIONS
    call.arguments = arguments
    call.outer = outer = _held()
    call.turn = turn = _turn()
    session = _session() if turn is None else turn.session
    call.place = _NOBODY if session is None else session.place
    if outer is not None:
        call.turn = None  # turn control is about the calls that the model requests, not those of its tools
    call.request_id = call.identity = call.token = uuid7()
    call.run = call.call_id = call.pin = call.guard = None
    call.refusal = call.reuse = call.outcome = call.payload = call.settlement = None
    if _active_runs or _cursor() is not None or _origin() is not None:
        call.run = entry_of(plan.event_template, plan.plans.store, plan.plans.settings.tenant)
        if call.run is not None:
            call.identity = ""
            if session is None:
                call.place = call.run.scope.place
    call.version = call.number = call.entered = 0
    call.hit = ""
    call.events = call.attempts = ()
    call.value = NOTHING
    call.extras = NO_EXTRAS
    return call
