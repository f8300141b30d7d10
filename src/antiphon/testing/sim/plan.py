"""What a seed stands for: calls, tools, changes of the configuration, and what goes wrong."""

from __future__ import annotations

from random import Random
from typing import Any, Literal, NamedTuple

from antiphon.contract.spec import BreakerPolicy, ToolSpec, Ttls
from antiphon.decide.claim import ReuseRule

Kind = Literal["claims", "crowd", "interrupts", "retries", "breaker"]
"""Calls of all sorts; many at once; most of them cancelled; failures and long pauses; a failing dependency."""
Ends = Literal["fine", "refused", "answer 400", "answer 503", "lost"]
Way = Literal["execute", "turn", "function"]
LEASE_MS = 3_000
LEASE_S = LEASE_MS / 1000
QUIET_S = 50.0
"""After this nothing goes wrong any more, and every call identity is delivered once again."""
CALM_S = 40.0
"""After this every worker has its first configuration again."""
TOOL = "act"


class AttemptPlan(NamedTuple):
    """How one attempt goes: seconds before and after the moment of its effect, and how it ends."""

    before: float
    after: float
    ends: Ends


class Delivery(NamedTuple):
    """A call that reaches a worker."""

    at: float
    worker: int
    intent: str
    identity: str
    way: Way = "execute"
    named: bool = True
    """Whether it has a call id; a call without one cannot be redelivered."""
    mode: str = "enforced"
    key: str | None = None
    cancel_after: tuple[float, ...] = ()
    """When it is cancelled, and when once more."""
    deadline_s: float | None = None


class Outage(NamedTuple):
    """The store is away: it refuses, or it is frozen and takes what it was sent when it goes on."""

    at: float
    seconds: float
    frozen: bool


class Change(NamedTuple):
    """A live change of one worker's configuration, or a hook or listener that is added."""

    at: float
    worker: int
    what: str
    value: Any = None


def _policies(kind: Kind) -> tuple[BreakerPolicy, ...]:
    """What the breaker can be changed to; the first is the one a worker starts with."""
    if kind != "breaker":
        never = BreakerPolicy(consecutive=1_000, min_calls=1_000)
        return never, BreakerPolicy(consecutive=1_000, min_calls=1_000, cooldown_ms=1_000)
    base = BreakerPolicy(consecutive=3, cooldown_ms=2_000, probe_lease_ms=8_000)
    return base, BreakerPolicy(consecutive=2, cooldown_ms=3_000, probe_lease_ms=8_000)


_OFFSETS_S = ((0.0, 0.01, 0.5, 4.0, 15.0), (0.05, 0.3))
_KINDS: tuple[Kind, ...] = ("claims", "crowd", "retries", "interrupts", "claims", "crowd", "retries", "breaker")


class Plan:
    """Everything that was decided before the simulation begins; what is decided on the way comes from the same seed."""

    def __init__(self, seed: int, without: frozenset[str] = frozenset()) -> None:
        random = self._random = Random(seed * 2 + 1)
        self.seed = seed
        self.without = without
        """What a smaller schedule leaves out (:meth:`parts`)."""
        self.kind: Kind = _KINDS[seed % len(_KINDS)]
        self.workers: int = random.randint(1, 2) if self.kind == "breaker" else random.randint(2, 4)
        self.threads: list[bool] = [random.random() < 0.3 for _ in range(self.workers)]
        """Which workers have a synchronous gateway; the others have an asynchronous one."""
        self.idempotent: bool = self.kind == "breaker" or random.random() < 0.5
        self.reconciles: bool = not self.idempotent and random.random() < 0.4
        self.wants_context: bool = random.random() < 0.5
        """Whether the tool has a parameter for its context; one without takes the shortest way through the driver."""
        self.on_threads: bool = random.random() < 0.2
        """Whether the tool is synchronous for asynchronous gateways, too."""
        self.retry_base_ms = 1_000 if self.kind == "retries" else 50
        self.ends: float = QUIET_S + (40.0 if self.kind == "breaker" else 15.0)
        self.loss: float = random.choice((0.0, 0.0, 0.02, 0.1))
        self.outages: list[Outage] = [
            Outage(random.uniform(0, 20), random.choice((0.3, 2.0, LEASE_S, 6.0)), random.random() < 0.5)
            for _ in range(random.choice((0, 0, 0, 0, 1, 2)))
        ]
        self.cancels = random.choice(("waits", "drops", "goes on"))
        """What a cancellation does to a store step under way."""
        self.same_host: bool = random.random() < 0.3
        """Whether a worker can see that another one is dead."""
        self.policies: tuple[BreakerPolicy, ...] = _policies(self.kind)
        self.close_after: int = self.policies[0].close_after
        reads = self.idempotent and random.random() < 0.3
        reuse: ReuseRule = random.choice(("never", "turn", "session", 5.0))
        self.spec: ToolSpec = ToolSpec(
            name=TOOL,
            idempotent=self.idempotent,
            effect="read" if reads else None,
            reuse=reuse if self.idempotent or reuse == "turn" else "never",
            ttl=Ttls(done_ms=3_600_000, failed_ms=3_600_000, lease_ms=LEASE_MS),
        )
        self.given_keys: dict[str, str] = {}
        """Intents whose calls all have one key, from the envelope or from a hook."""
        self.deliveries: list[Delivery] = self._breaker_calls() if self.kind == "breaker" else self._claim_calls()
        pauses = random.choice((2, 4, 8)) if self.kind == "retries" else random.choice((0, 0, 1, 2, 3))
        self.pauses: list[tuple[float, int, float]] = [
            (random.uniform(0, 20), random.randrange(self.workers), random.choice((0.5, 2.0, LEASE_S + 1, 10.0)))
            for _ in range(pauses)
        ]
        self.kills: list[tuple[float, int]] = [
            (random.uniform(0, 20), random.randrange(self.workers)) for _ in range(random.choice((0, 0, 0, 1, 2)))
        ]
        self.changes: list[Change] = [
            change
            for _ in range(random.choice((0, 0, 0, 1, 2, 4, 8)))
            for change in self._change(random.uniform(0, 20))
        ]
        if "loss" in without:
            self.loss = 0.0
        self.outages = [outage for n, outage in enumerate(self.outages) if f"outage{n}" not in without]

    def parts(self) -> list[str]:
        """Everything that can be left out, by name; calls last."""
        lists = (("kill", self.kills), ("pause", self.pauses), ("change", self.changes), ("outage", self.outages))
        named = [f"{name}{n}" for name, found in lists for n in range(len(found))]
        return ["loss"] * bool(self.loss) + named + [f"call{n}" for n in range(len(self.deliveries))]

    # -- calls ---------------------------------------------------------------------------------------------------

    def _claim_calls(self) -> list[Delivery]:
        random, most = self._random, 5 if self.kind == "crowd" else 3
        calls: list[Delivery] = []
        for number in range(random.randint(2, 4) if self.kind == "interrupts" else random.randint(1, 2)):
            intent = f"i{number}"
            if random.random() < 0.2:
                self.given_keys[intent] = f"key-{intent}"
            base = random.uniform(0, 12)
            for identity in range(random.randint(2, 4) if self.kind == "crowd" else random.randint(1, 4)):
                base = base if self.kind == "crowd" else random.uniform(0, 12)
                calls += [
                    self._claim_call(intent, f"{intent}c{identity}", base) for _ in range(random.randint(1, most))
                ]
        return calls

    def _claim_call(self, intent: str, identity: str, base: float) -> Delivery:
        random = self._random
        way: Way = random.choices(("execute", "turn", "function"), weights=(5, 3, 2))[0]
        delivery = Delivery(
            at=base + random.choice(_OFFSETS_S[self.kind == "crowd"]) * random.random(),
            worker=random.randrange(self.workers),
            intent=intent,
            identity=identity,
            way=way,
            named=way != "function" and random.random() < 0.85,
            key=self.given_keys.get(intent),
            cancel_after=self._cancellations(),
        )
        if way != "execute":
            return delivery
        return delivery._replace(
            mode=random.choices(("enforced", "bestEffort", "disabled"), weights=(14, 5, 1))[0],
            deadline_s=random.uniform(1, 10) if random.random() < 0.15 else None,
        )

    def _cancellations(self) -> tuple[float, ...]:
        random = self._random
        if random.random() >= (0.7 if self.kind == "interrupts" else 0.15):
            return ()
        first = random.choice((0.02, 0.1, 6.0)) * random.random()
        return (first, 0.03 * random.random()) if random.random() < 0.4 else (first,)

    def _breaker_calls(self) -> list[Delivery]:
        random = self._random
        calls = []
        for n in range(random.randint(15, 40)):
            way: Way = random.choice(("execute", "turn", "function"))
            at, worker = random.uniform(0, 25), random.randrange(self.workers)
            cancel = (random.uniform(0, 3),) if random.random() < 0.15 else ()
            calls.append(Delivery(at, worker, f"i{n}", f"i{n}c0", way, named=way != "function", cancel_after=cancel))
        return calls

    # -- changes -------------------------------------------------------------------------------------------------

    def _change(self, at: float) -> list[Change]:
        """A change, and what takes it back."""
        random = self._random
        worker, until = random.randrange(self.workers), at + random.choice((0.05, 0.5, 6.0)) * random.random()
        what, value, back = random.choice(
            (
                ("enabled", False, True),
                ("tool off", True, False),
                ("shadow", True, False),
                ("tool in shadow", True, False),
                ("open_mode", False, True),
                ("derive_keys", False, True),
                ("timeout", random.choice((0.2, 2.0, 8.0)), None),
                ("attempts", random.choice((1, 2, 6)), 4),
                ("breaker", 1, 0),
                ("listener", None, None),
                ("before-hook", None, None),
                ("after-hook", None, None),
            )
        )
        changes = [Change(at, worker, what, value)]
        if what not in ("listener", "before-hook", "after-hook"):
            changes.append(Change(until, worker, what, back))
        return changes

    # -- on the way ----------------------------------------------------------------------------------------------

    def attempt(self, now: float) -> AttemptPlan:
        """How the next attempt goes; long ones outlive several leases."""
        random = self._random
        if now > QUIET_S:
            return AttemptPlan(0.01, 0.01, "fine")
        if self.kind == "breaker":
            ends: Ends = random.choice(("fine", "answer 503", "answer 503", "answer 503"))
            return AttemptPlan(0.0, random.choice((0.01, 0.2, 3.0, 6.0)) * random.random(), ends)
        length = random.choice((0.01, 0.2) if self.kind in ("crowd", "retries") else (0.01, 0.3, LEASE_S, 4 * LEASE_S))
        weights = (3, 8, 1, 1, 1) if self.kind == "retries" else (12, 2, 2, 1, 2)
        ends = random.choices(("fine", "refused", "answer 400", "answer 503", "lost"), weights)[0]
        return AttemptPlan(length * random.random(), length * random.random(), ends)

    def identity(self, delivery: Delivery, number: int) -> str:
        """What redeliveries of this call have in common; a call without an id is one of its own."""
        if delivery.key is not None:
            return delivery.key
        return delivery.identity if delivery.named else f"call {number}"

    def envelope(self, delivery: Delivery, number: int, now_ms: int) -> dict[str, Any]:
        """The call as it goes over the wire."""
        payload: dict[str, Any] = {"version": "1.0", "params": {"what": delivery.intent}}
        if delivery.key is not None and number % 2:  # else a hook gives it
            payload["idempotencyKey"] = delivery.key
        control: dict[str, Any] = {}
        if delivery.deadline_s is not None:
            control["deadlineAtMs"] = now_ms + int(delivery.deadline_s * 1000)
        named = {"toolCallId": delivery.identity} if delivery.named else {}
        return {
            "contractVersion": "1.1",
            "requestId": f"r{number}",
            **named,
            "toolName": TOOL,
            "toolNamespace": "tools",
            "target": {"sessionKey": "s", "actorId": "a"},
            "payload": payload,
            "transport": {"dedupeMode": delivery.mode, "retryBudget": {"maxAttempts": 3, "maxElapsedMs": 30_000}},
            "control": control,
            "trace": {},
        }
