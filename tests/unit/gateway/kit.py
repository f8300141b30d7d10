"""What gateway tests stand on: a clock that moves only when told, tools that misbehave on order, envelopes."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from antiphon._gateway.gateway import AsyncGateway, Gateway
from antiphon._gateway.leases import Leases
from antiphon._gateway.plan import Dependencies
from antiphon._gateway.report import Reporter
from antiphon._gateway.settings import Settings
from antiphon.contract.record import DedupeRecord
from antiphon.contract.spec import BreakerPolicy, RetryPolicy
from antiphon.keys import KeyMaker
from antiphon.ports import ClaimTemplate, Clock, StaticClaimRequest
from antiphon.stores import MemoryStore

START_MS = 1_700_000_000_000
NEVER_TRIPS = BreakerPolicy(consecutive=1_000_000, min_calls=1_000)
_numbers = count(1)


class ManualClock(Clock):
    """Time and chance as the test wants them; sleeping only moves the hands, and is written down."""

    def __init__(self, chance: float = 0.5) -> None:
        super().__init__(seed=7)
        self.seconds = 1_000.0
        self.wall_offset_ms = START_MS - 1_000_000
        self.slept: list[float] = []
        self.chance = chance
        self.monotonic = lambda: self.seconds

    def now_ms(self) -> int:
        return int(self.seconds * 1000) + self.wall_offset_ms

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.chance

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)

    def advance(self, seconds: float) -> None:
        self.seconds += seconds


class Ears:
    """A listener that remembers."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, dict[str, Any]]] = []

    def emit(self, event: str, fields: Mapping[str, Any]) -> None:
        self.heard.append((event, dict(fields)))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.heard if name == event]


class Tally:
    """Metrics that remember."""

    def __init__(self) -> None:
        self.counts: dict[tuple[str, ...], int] = {}

    def _count(self, *labels: str) -> None:
        self.counts[labels] = self.counts.get(labels, 0) + 1

    def call_ended(self, tool: str, status: str, scope: str, duration_ms: float) -> None:
        self._count("calls", tool, status, scope)

    def bound(self, tool: str, status: str, scope: str, hit: str = "") -> Callable[[float], None]:
        def ended(duration_ms: float) -> None:
            self.call_ended(tool, status, scope, duration_ms)
            if hit:
                self.hit(tool, hit)

        return ended

    def dedupe(self, counts: Mapping[tuple[str, str], int]) -> None:
        return None

    def sampled(self, metric: Any, values: Mapping[tuple[str, ...], float]) -> None:
        return None

    def undone(self, tool: str, state: str) -> None:
        """Sagas have tests of their own."""

    def retried(self, tool: str, reason: str) -> None:
        self._count("retries", tool, reason)

    def hit(self, tool: str, state: str) -> None:
        self._count("hits", tool, state)

    def breaker(self, key: str, before: str, after: str) -> None:
        self._count("breaker", key, before, after)

    def described(self, tool: str, *, scope: str, effect: str, ttl_s: Mapping[str, float]) -> None:
        return None

    def render(self) -> str:
        return "\n".join(f"{' '.join(labels)} {number}" for labels, number in sorted(self.counts.items()))


class HttpError(Exception):
    """An exception with a status, as HTTP clients raise them."""

    def __init__(self, status: int, **headers: str) -> None:
        super().__init__(f"status {status}")
        self.response = _Response(status, {name.replace("_", "-"): value for name, value in headers.items()})


class _Response:
    def __init__(self, status: int, headers: dict[str, str]) -> None:
        self.status_code = status
        self.headers = headers


class Script:
    """A tool body that does, call by call, what the script says; the last entry repeats."""

    def __init__(self, *steps: Any) -> None:
        self.steps = list(steps)
        self.calls: list[dict[str, Any]] = []

    def __call__(self, **params: Any) -> Any:
        self.calls.append(params)
        step = self.steps[min(len(self.calls), len(self.steps)) - 1] if self.steps else len(self.calls)
        if isinstance(step, BaseException):
            raise step
        return step(**params) if callable(step) else step

    def __len__(self) -> int:
        return len(self.calls)


class Rig:
    """A synchronous gateway with everything in hand."""

    def __init__(
        self,
        store: Any = None,
        *,
        chance: float = 0.5,
        clock: ManualClock | None = None,
        parts: Any = None,
        **settings: Any,
    ) -> None:
        self.clock = clock or ManualClock(chance)
        self.store = store or MemoryStore(clock=self.clock)
        self.ears, self.tally = Ears(), Tally()
        self.parts = Dependencies(
            store=self.store,
            clock=self.clock,
            settings=Settings(**settings),
            reporter=Reporter(self.tally, (self.ears,)),
            renews=False,
            **(parts or {}),
        )
        self.gateway = Gateway(self.parts)

    @property
    def leases(self) -> Leases:
        """Leases are renewed when the test says ``look()``, not when the process's thread gets to it."""
        return self.gateway._plans.leases

    def tool(self, *steps: Any, name: str = "send", idempotent: bool = False, **spec: Any) -> Script:
        """Register a scripted tool ``name(to=..., text=...)``."""
        script = Script(*steps)

        def function(to: str = "ada", text: str = "hi") -> Any:
            return script(to=to, text=text)

        self.gateway.tool(name, idempotent=idempotent, **spec)(function)
        return script

    def execute(self, **changes: Any) -> Any:
        return self.gateway.execute(envelope(**changes))

    def records(self, **filters: Any) -> list[DedupeRecord]:
        return self.store.open_sync().list(tenant="default", **filters)

    def breaker(self, name: str = "send") -> Any:
        return self.gateway._plans.breakers.get(f"tool/tools/{name}")


def request_of(rig: Rig, *, identity: str, owner: str, lease_ms: int = 120_000) -> StaticClaimRequest:
    """A request for the claim on ``send(to="ada")`` of session s1, by another process."""
    template = ClaimTemplate(
        tool="tools/send", session="s1", actor="a1", ttl_ms=86_400_000, lease_ms=lease_ms, owner=owner
    )
    spec = rig.gateway._plans.tools["send"].spec
    keys = KeyMaker(spec, session="s1", actor="a1", tenant="default", workspace="default").keys({"to": "ada"})
    digests = (keys.params_digest, keys.params_digest_exact)
    return StaticClaimRequest(keys.store_key, identity, template, keys.idempotency_key, digests, "r", "token")


class AsyncRig(Rig):
    """The same for event loops."""

    gateway: AsyncGateway  # type: ignore[assignment]

    def __init__(self, store: Any = None, **options: Any) -> None:
        super().__init__(store, **options)
        self.gateway = AsyncGateway(self.parts)


def envelope(
    tool: str = "send",
    params: Mapping[str, Any] | None = None,
    *,
    call_id: str | None = None,
    request_id: str | None = None,
    key: str | None = None,
    mode: str = "enforced",
    session: str = "s1",
    actor: str = "a1",
    attempts: int = 4,
    elapsed_ms: int = 30_000,
    hints: Mapping[str, Any] | None = None,
    hint: str | None = None,
    deadline_at_ms: int | None = None,
    namespace: str = "tools",
    **target: Any,
) -> dict[str, Any]:
    """A call envelope in the wire form."""
    payload: dict[str, Any] = {"version": "1.0", "params": dict(params if params is not None else {"to": "ada"})}
    if key is not None:
        payload["idempotencyKey"] = key
    if hints:
        payload["callHints"] = dict(hints)
    transport: dict[str, Any] = {
        "dedupeMode": mode,
        "retryBudget": {"maxAttempts": attempts, "maxElapsedMs": elapsed_ms},
    }
    if hint is not None:
        transport["circuitBreakerHint"] = hint
    wire: dict[str, Any] = {
        "contractVersion": "1.1",
        "requestId": request_id or f"request-{next(_numbers)}",
        "toolName": tool,
        "toolNamespace": namespace,
        "target": {"sessionKey": session, "actorId": actor, **target},
        "payload": payload,
        "transport": transport,
        "control": {} if deadline_at_ms is None else {"deadlineAtMs": deadline_at_ms},
        "trace": {},
    }
    if call_id is not None:
        wire["toolCallId"] = call_id
    return wire


class Hold:
    """A place where a tool waits until the test lets it go on; both sides give up after a few seconds."""

    PATIENCE_S = 20.0

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()

    def wait_here(self) -> None:
        self.reached.set()
        assert self.go.wait(self.PATIENCE_S), "the test forgot to let the tool go on"

    def then(self, value: Any) -> Callable[..., Any]:
        """A tool body that waits here and returns *value*."""

        def body(**_: Any) -> Any:
            self.wait_here()
            return value

        return body

    def until_reached(self) -> None:
        assert self.reached.wait(self.PATIENCE_S), "the tool was never called"


def in_child(function: Callable[[], Any]) -> str:
    """What *function* returns in a forked child, as a string."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writing, str(function()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        said = told.read()
    os.waitpid(child, 0)
    return said


def in_thread(function: Callable[[], Any]) -> Thread:
    thread = Thread(function)
    thread.start()
    return thread


class Thread(threading.Thread):
    """A thread with a result."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self._function = function
        self._value: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:
            self._error = error

    def result(self) -> Any:
        self.join(Hold.PATIENCE_S)
        assert not self.is_alive(), "the thread did not end"
        if self._error is not None:
            raise self._error
        return self._value


def eventually(condition: Callable[[], Any], what: str) -> None:
    """Let other threads run until *condition* holds (no sleep: the interpreter lock is handed over)."""
    until = time.monotonic() + Hold.PATIENCE_S
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < until, what
        pause.wait(0.001)


async def settle_down(rounds: int = 20) -> None:
    """Let every ready task of the loop run."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def fast_retry(**changes: Any) -> RetryPolicy:
    return RetryPolicy(**({"base_ms": 200, "max_delay_ms": 4_000} | changes))
