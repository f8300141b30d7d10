"""Every step of every kind of call, broken off by every kind of error: there is a repair (D54).

A call is made again and again, and each time another request of its driver fails, before or after it took effect.
Afterwards no claim is in flight, no lease is renewed, and the same call delivered once more is not sent twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from inspect import isawaitable
from itertools import count, product
from typing import Any, NamedTuple

import pytest

from antiphon._gateway import drivers, steps
from antiphon._gateway.call import NOTHING, GuardedCall
from antiphon._gateway.context import CallContext, held
from antiphon._gateway.drivers import AsyncRuntime, SyncRuntime
from antiphon._gateway.repair import broke_off
from antiphon._gateway.steps import Plain, Step
from antiphon._recording.recorder import Recorder
from antiphon.contract.spec import BreakerPolicy, Happened, RetryPolicy, ToolSpec, Ttls
from antiphon.errors import StoreError, StoreUnavailable
from antiphon.keys import KeyMaker
from antiphon.ports import Answer, ClaimTemplate, Invocation, Settlement, StaticClaimRequest
from antiphon.redact import Redactor, Rules
from antiphon.stores import MemoryStore
from antiphon.stores._adapters import AsyncFromSync
from tests.unit.gateway.kit import AsyncRig, HttpError, Rig, envelope
from tests.unit.gateway.test_keeping import FakeBlobs

Error = Callable[[], BaseException]


def unavailable() -> StoreUnavailable:
    return StoreUnavailable("The store is gone.")


ERRORS: tuple[Error, ...] = (
    lambda: ValueError("a mistake"),
    lambda: StoreError("The store says no."),
    unavailable,
    KeyboardInterrupt,
    asyncio.CancelledError,
    GeneratorExit,
)
COUNTED = {
    "begin",
    "take_over",
    "settle",
    "alias",
    "renew",
    "read",
    "wait",
    "save_breaker",
    "load_breakers",
    "forgotten",
}
PARAMS = {"to": "ada"}
LEASE_S = 60.0
REDACTOR = Redactor(Rules(), salt="00" * 16)


class Fault:
    """Lets one request fail, and then perhaps the next one."""

    def __init__(self) -> None:
        self.left = 0
        self.after = False
        self.errors: list[BaseException] = []
        self.where: list[str] = []

    def hits(self, name: str) -> BaseException | None:
        """The error of this request."""
        self.left -= 1
        if self.left or not self.errors:
            return None
        self.where.append(name)
        self.left = 1
        return self.errors.pop(0)

    def around(self, name: str, make: Callable[[], Any]) -> Any:
        error = self.hits(name)
        if error is not None and not self.after:
            raise error
        reply = make()
        if error is not None:
            raise error
        return reply


class FaultStore:
    """A memory store like one of another process."""

    url = "memory://broken-off"
    in_process = False

    def __init__(self) -> None:
        self.inner = MemoryStore()
        self.fault = Fault()
        self.while_waiting: Callable[[], object] = lambda: None
        self.aliases = True
        self.while_claiming: Callable[[], object] = lambda: None
        self.loses = False
        self.clock: Any = None

    def open_sync(self) -> Any:
        return _FaultJournal(self)

    def open_async(self) -> Any:
        journal: Any = _FaultJournal(self)
        return AsyncFromSync(journal)


class _FaultJournal:
    durable = True

    def __init__(self, store: FaultStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        def step(*args: Any, **more: Any) -> Any:
            return getattr(self._store.inner.open_sync(), name)(*args, **more)

        if name not in COUNTED:
            return step
        return lambda *args, **more: self._store.fault.around(name, lambda: self._made(name, step, *args, **more))

    def _made(self, name: str, step: Callable[..., Any], *args: Any, **more: Any) -> Any:
        if name == "wait":
            return self._store.while_waiting()
        if name == "begin":
            self._store.while_claiming()
        if name == "alias" and not self._store.aliases:
            return False
        if name == "settle" and self._store.loses:  # the server has restarted empty
            self._store.loses = False
            self._store.inner = MemoryStore(clock=self._store.clock)
            return None
        if name == "forgotten":
            return False
        return step(*args, **more)


class FaultWorld(SyncRuntime):
    """Requests that do not go to the journal fail, too."""

    fault: Fault

    def sleep(self, seconds: float) -> None:
        self.fault.around("sleep", lambda: super(FaultWorld, self).sleep(seconds))

    def append(self, *args: Any) -> None:
        self.fault.around("append", lambda: super(FaultWorld, self).append(*args))

    def replay(self, *args: Any) -> Any:
        return self.fault.around("ask", lambda: super(FaultWorld, self).replay(*args))

    def invoke(self, *args: Any) -> Any:
        return self.fault.around("invoke", lambda: super(FaultWorld, self).invoke(*args))

    def reconcile(self, *args: Any) -> Any:
        return self.fault.around("reconcile", lambda: super(FaultWorld, self).reconcile(*args))

    def audit(self, *args: Any) -> Any:
        return self.fault.around("audit", lambda: super(FaultWorld, self).audit(*args))

    def blocking(self, function: Any, *args: Any) -> Any:
        return self.fault.around(function.__name__, lambda: super(FaultWorld, self).blocking(function, *args))


class FaultLoopWorld(AsyncRuntime):
    """The same for an event loop."""

    fault: Fault

    async def _around(self, name: str, make: Any) -> Any:
        error = self.fault.hits(name)
        if error is not None and not self.fault.after:
            make.close()
            raise error
        reply = await make
        if error is not None:
            raise error
        return reply

    async def sleep(self, seconds: float) -> None:
        await self._around("sleep", super().sleep(seconds))

    async def append(self, *args: Any) -> None:
        await self._around("append", super().append(*args))

    async def replay(self, *args: Any) -> Any:
        return await self._around("ask", super().replay(*args))

    async def until_cancelled(self, what: str, after_ms: Any) -> None:
        self.fault.around("until cancelled", lambda: None)
        raise asyncio.CancelledError

    async def invoke(self, *args: Any) -> Any:
        return await self._around("invoke", super().invoke(*args))

    async def reconcile(self, function: Any, arguments: Any) -> Any:
        return self.fault.around("reconcile", lambda: function(*arguments))

    async def audit(self, *args: Any) -> Any:
        return await self._around("audit", super().audit(*args))

    async def blocking(self, function: Any, *args: Any) -> Any:
        return self.fault.around(function.__name__, lambda: function(*args))


def _watch(gateway: Any, fault: Fault, loop: bool) -> None:
    """Give a gateway that has no tools yet a world in which requests fail."""
    world: Any = (FaultLoopWorld if loop else FaultWorld)(gateway._plans, gateway._feed)
    world.fault = fault
    gateway._runtime = (lambda: world) if loop else world


# -- the calls -----------------------------------------------------------------------------------------------------


class Case:
    """A gateway, its tool, and what is there before the call is made."""

    def __init__(self, scenario: Scenario, *, loop: bool) -> None:
        self.store = FaultStore()
        self.blobs = FakeBlobs()
        settings = {"payload_limit": 10, **scenario.settings}
        kind = AsyncRig if loop else Rig
        self.rig = kind(self.store, parts={"blobs": lambda: self.blobs}, **settings)
        self.gateway: Any = self.rig.gateway
        self.clock = self.rig.clock
        self.store.inner = MemoryStore(clock=self.clock)
        _watch(self.gateway, self.store.fault, loop)
        self.effects: list[dict[str, Any]] = []
        self.results: list[Any] = list(scenario.results)
        spec = {"ttl": Ttls(lease_ms=int(LEASE_S * 1000)), "idempotent": False, **scenario.spec}
        if scenario.reads_back:
            spec["reconcile"] = lambda params: Happened("sent") if self.effects else False
        self.spec = ToolSpec(name="send", **spec)
        self.gateway.register(self._function(loop, scenario.context), self.spec)
        self.wire = scenario.wire
        self.around: Callable[[], AbstractContextManager[Any]] = nullcontext
        scenario.prepare(self)

    def _function(self, loop: bool, context: bool) -> Any:
        def plain(to: str) -> Any:
            return self.store.fault.around("tool", lambda: self._act(to))

        async def plain_async(to: str) -> Any:
            return plain(to)

        def with_context(to: str, ctx: CallContext) -> Any:
            return plain(to)

        async def with_context_async(to: str, ctx: CallContext) -> Any:
            return plain(to)

        if loop:
            return with_context_async if context else plain_async
        return with_context if context else plain

    def _act(self, to: str) -> Any:
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if isinstance(result, ConnectionRefusedError):
            raise result
        self.effects.append({"to": to})
        if isinstance(result, Exception):
            raise result
        return result

    async def make(self) -> Any:
        with self.around():
            found = self.gateway.execute(envelope(params=PARAMS, call_id="mine", **self.wire))
            return await found if isawaitable(found) else found

    async def escaped(self) -> BaseException | None:
        """Make the call; what it raised."""
        try:
            await self.make()
        except BaseException as error:
            return error
        return None

    # -- what others left ----------------------------------------------------------------------------------------

    def other(self, *, identity: str = "theirs", lease_s: float = LEASE_S, params: Any = None) -> tuple[str, int]:
        """Another process holds the claim; its key and version."""
        template = ClaimTemplate(
            tool="tools/send",
            session="s1",
            actor="a1",
            ttl_ms=3_600_000,
            lease_ms=int(lease_s * 1000),
            owner="elsewhere",
        )
        maker = KeyMaker(self.spec, session="s1", actor="a1")
        given = self.wire.get("key")
        keys = maker.keys(PARAMS) if given is None else maker.keys_given(params or PARAMS, given)
        request = StaticClaimRequest(
            keys.store_key,
            identity,
            template,
            keys.idempotency_key,
            (keys.params_digest, keys.params_digest_exact),
            "r1",
            "t1",
        )
        claimed = self.store.inner.open_sync().begin(request)
        return keys.store_key, claimed.version  # type: ignore[union-attr]

    def settle(self, claim: tuple[str, int], settlement: Settlement) -> None:
        self.store.inner.open_sync().settle(*claim, settlement)

    @property
    def in_flight(self) -> list[Any]:
        return self.store.inner.open_sync().list(tenant="default", state="inflight")


DONE = Settlement("done", 3_600_000, payload=b'"theirs"', attempt_count=1)
UNKNOWN = Settlement("failed", 3_600_000, error=("outcome_unknown", "nobody knows", True, False), attempt_count=1)


class Scenario(NamedTuple):
    """One kind of call."""

    spec: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    results: tuple[Any, ...] = ("sent",)
    context: bool = False
    wire: dict[str, Any] = {}
    prepare: Callable[[Case], object] = lambda case: None
    reads_back: bool = False
    """Whether the tool's read-back says what really happened here."""


def _expired(case: Case) -> None:
    case.other()
    case.clock.advance(LEASE_S + 1)


def _done(case: Case) -> None:
    case.settle(case.other(), DONE)


def _without_alias(case: Case) -> None:
    _done(case)
    case.store.aliases = False


def _unknown(case: Case) -> None:
    case.settle(case.other(), UNKNOWN)


def _waited_for(case: Case) -> None:
    claim = case.other()
    case.store.while_waiting = lambda: case.settle(claim, DONE)


def _slowly(case: Case) -> None:
    case.store.while_claiming = lambda: case.clock.advance(LEASE_S / 2)


def _kept_elsewhere(case: Case) -> None:
    ref = case.blobs.put("default", b'"a long one"')
    case.settle(case.other(identity="mine"), DONE._replace(payload=None, payload_ref=ref))


def _loses(case: Case) -> None:
    case.store.loses, case.store.clock = True, case.clock


def _forced_open(case: Case) -> None:
    case.settle(case.other(identity="mine"), DONE)
    case.rig.breaker().force_open(case.clock.monotonic(), "by hand")


def _other_params(case: Case) -> None:
    case.settle(case.other(params={"to": "bob"}), DONE)


def _recorded(case: Case, *, store: Any = None, invoker: Any = None) -> None:
    store = store or case.store

    @contextmanager
    def run() -> Iterator[None]:
        recorder = Recorder(
            "run-1",
            store=store,
            journal=store.open_sync(),
            clock=case.clock,
            redactor=REDACTOR,
            blobs=lambda: None,
            tenant="default",
        )
        recorder.scope.invoker = invoker
        token = recorder.scope.activate()
        try:
            yield
        finally:
            recorder.scope.deactivate(token)

    case.around = run


class Invoker:
    """A recording that answers."""

    def __init__(self, answer: Answer | None) -> None:
        self._answer = answer

    def answer_tool(self, call: Invocation) -> Answer | None:
        return self._answer


GIVEN_UP = {"code": "cancelled", "message": "tools/send was interrupted: CancelledError.", "status": "error"}

SCENARIOS = {
    "plain": Scenario(),
    "idempotent": Scenario({"idempotent": True}),
    "a read": Scenario({"idempotent": True, "effect": "read"}),
    "with a context": Scenario(context=True),
    "claimed slowly": Scenario(prepare=_slowly),
    "claimed slowly, a read": Scenario({"idempotent": True, "effect": "read"}, prepare=_slowly),
    "tried again": Scenario(results=(ConnectionRefusedError(111, "refused"), "sent")),
    "tried again with a context": Scenario(results=(ConnectionRefusedError(111, "refused"), "sent"), context=True),
    "failed": Scenario(results=(HttpError(400),)),
    "unknown": Scenario(results=(HttpError(500),)),
    "taken over": Scenario({"idempotent": True}, prepare=_expired),
    "lost by another": Scenario(prepare=_expired),
    "reconciled": Scenario({"reconcile": lambda params: Happened("read back")}, prepare=_unknown),
    "reconciled, large": Scenario({"reconcile": lambda params: Happened("read back" * 9)}, prepare=_unknown),
    "did not happen": Scenario(reads_back=True, prepare=_unknown),
    "approved": Scenario({"approve": "always", "approver": lambda asked: True}),
    "approved, recorded": Scenario({"approve": "always", "approver": lambda asked: True}, prepare=_recorded),
    "shared": Scenario({"idempotent": True, "reuse": 3600.0}, prepare=_done),
    "shared, not remembered": Scenario({"idempotent": True, "reuse": 3600.0}, prepare=_without_alias),
    "waited for": Scenario(prepare=_waited_for),
    "large": Scenario(results=("a long one",)),
    "kept elsewhere": Scenario(prepare=_kept_elsewhere),
    "breaker trips": Scenario({"breaker": BreakerPolicy(consecutive=1)}, results=(HttpError(500),)),
    "breaker open": Scenario(prepare=_forced_open),
    "lost": Scenario(prepare=_loses),
    "independent": Scenario({"on_conflict": "independent"}, wire={"key": "k"}, prepare=_other_params),
    "in shadow": Scenario(settings={"shadow": True}),
    "off": Scenario(settings={"enabled": False}),
    "recorded": Scenario(prepare=_recorded),
    "recorded elsewhere": Scenario(prepare=lambda case: _recorded(case, store=MemoryStore(clock=case.clock))),
    "recorded elsewhere, a read": Scenario(
        {"idempotent": True, "effect": "read"},
        prepare=lambda case: _recorded(case, store=MemoryStore(clock=case.clock)),
    ),
    "replayed": Scenario(prepare=lambda case: _recorded(case, invoker=Invoker(Answer("ok", "recorded")))),
    "replayed, live": Scenario(prepare=lambda case: _recorded(case, invoker=Invoker(None))),
    "replayed, given up": Scenario(
        prepare=lambda case: _recorded(case, invoker=Invoker(Answer("error", error=GIVEN_UP)))
    ),
    "retry policy": Scenario({"idempotent": True, "retry": RetryPolicy(max_attempts=3)}, results=(HttpError(503),) * 3),
}


# -- what is looked at ---------------------------------------------------------------------------------------------


def state_of(call: GuardedCall) -> str:
    if call.value is not NOTHING:
        return "returned" if call.version else "settled"
    if call.number and call.entered == call.number:
        return "entered"
    return "claimed" if call.version else "before the claim"


def name_of(step: Step | None) -> str:
    return "admission" if step is None else repr(step) if isinstance(step, Plain) else type(step).__name__


Seen = dict[str, set[str]]
"""The states of calls in which a step was broken off."""


@contextmanager
def watched(seen: Seen) -> Iterator[None]:
    """Note every break-off, and check that a step follows."""

    def spy(call: GuardedCall, step: Step | None, error: BaseException) -> Step:
        seen.setdefault(name_of(step), set()).add(state_of(call))
        repair = broke_off(call, step, error)
        assert isinstance(repair, (Plain, *steps.Request.__args__)), (step, error, repair)
        return repair

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(drivers, "broke_off", spy)
        yield


def stays_in_flight(where: str, error: BaseException, *, after: bool, shadow: bool) -> bool:
    """Whether nobody can end the claim: the store failed when it took it, or refuses to take its end (D10).

    A claim in shadow is not worth a second try.
    """
    if not isinstance(error, StoreError) or (isinstance(error, StoreUnavailable) and not shadow):
        return False
    return after if where in ("begin", "take_over") else where == "settle"


async def broken_off(name: str, nth: int, errors: Sequence[BaseException], *, after: bool, loop: bool) -> int:
    """How many of the errors were raised."""
    case = Case(SCENARIOS[name], loop=loop)
    fault, settings = case.store.fault, case.gateway._plans.settings
    fault.left, fault.after, fault.errors = nth, after, list(errors)
    escaped = await case.escaped()
    met = len(fault.where)
    about = f"{name}: request {nth}, {'after' if after else 'before'} it, {errors} at {fault.where}"
    if "given up" not in name:
        assert escaped is None or escaped in errors, f"{about}: {escaped!r} escaped"
    if set(fault.where).isdisjoint(("sleep", "ask", "until cancelled")):  # those do not go to a store
        assert not isinstance(escaped, StoreError), f"{about}: it escaped instead of being the answer"
    if not met:
        return 0
    fault.errors.clear()
    case.store.loses = False
    case.rig.leases.look()
    assert not case.rig.leases._held, f"{about}: a lease is still renewed"
    assert held.get() is None, f"{about}: the tool was not left"
    shadow = settings.shadow
    if not any(stays_in_flight(*one, after=after, shadow=shadow) for one in zip(fault.where, errors, strict=False)):
        ours = [record for record in case.in_flight if not record.owner.endswith("elsewhere")]
        assert not ours, f"{about}: a claim is left in flight"
    case.clock.advance(LEASE_S + 1)
    escaped = await case.escaped()
    assert escaped is None or "given up" in name, f"{about}: then {escaped!r} escaped"
    if not case.spec.idempotent and settings.enabled and not shadow:
        assert len(case.effects) <= 1, f"{about}: sent twice"
    return met


async def every_break_off(name: str, kinds: Sequence[Error], seen: Seen, *, loop: bool) -> int:
    """Break off each request of a call, before and after it took effect; how often."""
    done = 0
    for after in (False, True):
        for nth in count(1):
            errors = [kind() for kind in kinds]
            with watched(seen):
                breaking = broken_off(name, nth, errors, after=after, loop=loop)
                met = await asyncio.create_task(breaking, context=copy_context())
            if not met:
                break
            done += 1
    return done


both = pytest.mark.parametrize("loop", [False, True], ids=["threads", "loop"])


@both
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_call_that_is_broken_off_leaves_nothing_behind(name: str, loop: bool) -> None:
    for error in ERRORS:
        assert await every_break_off(name, (error,), {}, loop=loop) >= 2


@both
@pytest.mark.parametrize("name", SCENARIOS)
async def test_nor_does_one_that_is_broken_off_while_it_is_repaired(name: str, loop: bool) -> None:
    firsts: tuple[Error, ...] = (KeyboardInterrupt, unavailable)
    for first in firsts:
        assert await every_break_off(name, (first, KeyboardInterrupt), {}, loop=loop) >= 2


async def test_every_step_was_broken_off() -> None:
    """In these states of their calls; a step that is missing here has no test above."""
    seen: Seen = {}
    for name, loop in product(SCENARIOS, (False, True)):
        await every_break_off(name, (KeyboardInterrupt, KeyboardInterrupt), seen, loop=loop)
    early = {"before the claim"}
    assert seen == {
        **dict.fromkeys(
            ("Refresh", "Replay", "GivenUp", "BEGIN", "TakeOver", "Wait", "Alias", "Get", "TryRead"), early
        ),
        "SettleVersion": {"before the claim", "claimed", "returned"},
        "Reclaim": {"before the claim", "returned"},
        "Reconcile": early,
        "Consult": early,
        "Audit": early,
        "Forgotten": {"returned"},
        "Append": {"before the claim", "claimed", "settled"},
        "Dispatch": {"claimed", "entered"},
        "INVOKE": {"entered", "settled"},
        "Sleep": {"entered"},
        "Renew": {"claimed", "entered"},
        "Put": {"before the claim", "returned"},
        "SETTLE": {"claimed", "entered", "returned"},
        "Read": {"before the claim", "entered", "returned"},
        "ShareBreaker": {"entered"},
    }
    assert {kind.__name__ for kind in steps.Request.__args__} <= seen.keys()
