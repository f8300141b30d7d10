"""The meaning of a seed: calls, tools, changes of the configuration, and faults."""

from __future__ import annotations

from functools import cached_property
from random import Random
from typing import Any, Literal, NamedTuple

from antiphon.contract.spec import BreakerPolicy, ToolSpec, Ttls
from antiphon.decide.claim import ReuseRule
from antiphon.testing.sim.disk import FAULTS, DiskFault

Kind = Literal["claims", "crowd", "interrupts", "retries", "breaker"]
"""Calls of all kinds; many at once; most of them cancelled; failures and long pauses; a failing dependency."""
Ends = Literal["fine", "refused", "answer 400", "answer 503", "lost"]
Way = Literal["execute", "turn", "function", "once", "adapter", "stream"]
Store = Literal["any", "sqlite", "redis", "postgres"]
"""The memory store behind a network that does what any network may do; the real SQLite store on a virtual disk; a Redis
that fails over; a PostgreSQL whose connections are cut while it continues with what it was sent.
"""
LEASE_MS = 3_000
LEASE_S = LEASE_MS / 1000
QUIET_S = 50.0
"""After this there are no more faults, and every call identity is delivered once more."""
CALM_S = 40.0
"""After this every worker has its initial configuration again."""
TOOL = "act"
ADAPTED, STREAMED = "adapted", "streamed"
"""A tool that a framework's adapter guards, and one that answers in chunks."""
INSIDE = ".inside"
"""Suffix of the intent of a call made by a tool."""
SHORT_LIFE_S = 8.0


class AttemptPlan(NamedTuple):
    """The course of one attempt: seconds before and after its effect, and how it ends."""

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
    tool: str = TOOL
    leaves: bool = False
    """Whether the reader of a stream leaves after its first chunk."""

    @property
    def without_metadata(self) -> bool:
        """Whether the answer comes without metadata."""
        return self.way not in ("execute", "turn")


class Outage(NamedTuple):
    """The store is unavailable: it refuses, it is frozen and processes its backlog when it continues, or it is slow."""

    at: float
    seconds: float
    frozen: bool
    slow_s: float = 0.0
    """How long every step takes."""


class Failover(NamedTuple):
    """A replica takes over that lacks the writes of the last *lag* seconds."""

    at: float
    lag: float


class BadDisk(NamedTuple):
    """For some time each write or fsync may fail."""

    at: float
    seconds: float
    fault: DiskFault
    rate: float


class Change(NamedTuple):
    """A live change of one worker's configuration, or an added hook or listener."""

    at: float
    worker: int
    what: str
    value: Any = None


def _policies(kind: Kind) -> tuple[BreakerPolicy, ...]:
    """The breaker policies that a change chooses from; a worker starts with the first one."""
    if kind != "breaker":
        never = BreakerPolicy(consecutive=1_000, min_calls=1_000)
        return never, BreakerPolicy(consecutive=1_000, min_calls=1_000, cooldown_ms=1_000)
    base = BreakerPolicy(consecutive=3, cooldown_ms=2_000, probe_lease_ms=8_000)
    return base, BreakerPolicy(consecutive=2, cooldown_ms=3_000, probe_lease_ms=8_000)


_OFFSETS_S = ((0.0, 0.01, 0.5, 4.0, 15.0), (0.05, 0.3))
_LONG_EVERY = 5
"""One in so many schedules of a kind is long."""
_KINDS: tuple[Kind, ...] = ("claims", "crowd", "retries", "interrupts", "claims", "crowd", "retries", "breaker")


class Plan:
    """Everything decided before the simulation begins; later decisions are drawn from the same seed."""

    def __init__(self, seed: int, without: frozenset[str] = frozenset()) -> None:
        random = self._random = Random(seed * 2 + 1)
        more = self._more = Random(seed * 2 + 1_000_000_007)
        self.seed = seed
        self.without = without
        """Parts that a smaller schedule leaves out (:meth:`parts`)."""
        self.kind: Kind = _KINDS[seed % len(_KINDS)]
        self.short: bool = seed // len(_KINDS) % _LONG_EVERY != 0
        """True for most schedules: few calls find most of what can be found, in a third of the time."""
        most = 2 if self.kind == "breaker" else 3 if self.short else 4
        self.workers: int = random.randint(1 if self.kind == "breaker" else 2, most)
        self.threads: list[bool] = [random.random() < 0.3 for _ in range(self.workers)]
        """Which workers have a synchronous gateway; the others have an asynchronous one."""
        self.idempotent: bool = self.kind == "breaker" or random.random() < 0.5
        self.reconciles: bool = not self.idempotent and random.random() < 0.6
        self.wants_context: bool = random.random() < 0.5
        """Whether the tool has a parameter for its context; without one the driver takes its shortest path."""
        self.on_threads: bool = random.random() < 0.2
        """Whether asynchronous gateways also get a synchronous tool."""
        self.retry_base_ms = 1_000 if self.kind == "retries" else 50
        self.ends: float = QUIET_S + 80.0
        """When renewals stop: the last attempt and the one around it have ended by then."""
        self.loss: float = random.choice((0.0, 0.0, 0.02, 0.1))
        self.outages: list[Outage] = [
            Outage(random.uniform(0, 20), random.choice((0.3, 2.0, LEASE_S, 6.0)), random.random() < 0.5)
            for _ in range(random.choice((0, 0, 0, 0, 1, 2)))
        ]
        self.cancels = random.choice(("waits", "drops", "goes on"))
        """The effect of a cancellation on a store step in progress."""
        self.same_host: bool = random.random() < 0.3
        """Whether a worker can detect that another one is dead."""
        self.policies: tuple[BreakerPolicy, ...] = _policies(self.kind)
        self.close_after: int = self.policies[0].close_after
        self.store: Store = more.choices(("any", "sqlite", "redis", "postgres"), weights=(12, 1, 4, 2))[0]
        self.failovers: list[Failover] = []
        self.bad_disks: list[BadDisk] = []
        self._store_faults()
        self.reenters: bool = more.random() < 0.2
        """Whether tools occasionally call another tool."""
        self.life_s: float = SHORT_LIFE_S if self.kind != "breaker" and more.random() < 0.15 else 3_600.0
        """How long the outcome of a call without a key of its own is kept."""
        reads = self.idempotent and random.random() < 0.3
        reuse: ReuseRule = random.choice(("never", "turn", "session", 5.0))
        self.spec: ToolSpec = ToolSpec(
            name=TOOL,
            idempotent=self.idempotent,
            effect="read" if reads else None,
            reuse=reuse if self.idempotent or reuse == "turn" else "never",
            ttl=Ttls(done_ms=int(self.life_s * 1000), failed_ms=int(self.life_s * 1000), lease_ms=LEASE_MS),
        )
        self.given_keys: dict[str, str] = {}
        """Intents whose calls all have one key, from the envelope or from a hook."""
        self.named_keys: dict[str, str] = {}
        """… from ``once`` or ``turn.call``."""
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
        self.bad_disks = [bad for n, bad in enumerate(self.bad_disks) if f"disk{n}" not in without]
        if "inside" in without:
            self.reenters = False

    def _store_faults(self) -> None:
        """Faults specific to this kind of store."""
        more = self._more
        if self.store == "sqlite":  # no network
            self.cancels, self.loss, self.outages, self.same_host = "waits", 0.0, [], True
            self.bad_disks = [
                BadDisk(
                    more.uniform(0, 18), more.choice((0.5, 3.0, 8.0)), more.choice(FAULTS), more.choice((0.1, 0.5, 1))
                )
                for _ in range(more.choice((0, 1, 1, 2)))
            ]
        elif self.store == "redis":
            self.cancels = "drops"
            self.failovers = [
                Failover(more.uniform(2, 20), more.choice((0.05, 0.5, 2.0))) for _ in range(more.choice((0, 1, 1, 2)))
            ]
            self.outages += [Outage(found.at, 0.2, frozen=False) for found in self.failovers]
        elif self.store == "postgres":
            self.cancels = "goes on"
        if self.store in ("redis", "postgres") and more.random() < 0.4:
            slow = more.choice((0.2, 0.8, 1.5))
            self.outages.append(Outage(more.uniform(0, 20), more.choice((2.0, 6.0)), frozen=False, slow_s=slow))

    @cached_property
    def tools(self) -> set[str]:
        """The tools that are called."""
        return {TOOL, *(delivery.tool for delivery in self.deliveries)}

    @cached_property
    def streamed(self) -> set[str]:
        """The intents of calls to the streaming tool."""
        return {delivery.intent for delivery in self.deliveries if delivery.tool == STREAMED}

    @cached_property
    def adapted(self) -> set[str]:
        """The intents of calls that come from an adapter, which names another actor."""
        return {delivery.intent for delivery in self.deliveries if delivery.tool == ADAPTED}

    def is_keyed(self, identity: str) -> bool:
        """Whether a call has a key of its own."""
        return identity in self.given_keys.values() or identity in self.named_keys.values()

    def parts(self) -> list[str]:
        """Everything that can be left out, by name; calls last."""
        lists: tuple[tuple[str, list[Any]], ...] = (
            ("kill", self.kills),
            ("pause", self.pauses),
            ("change", self.changes),
            ("outage", self.outages),
            ("failover", self.failovers),
            ("disk", self.bad_disks),
        )
        named = [f"{name}{n}" for name, found in lists for n in range(len(found))]
        whole = ["loss"] * bool(self.loss) + ["inside"] * self.reenters
        return whole + named + [f"call{n}" for n in range(len(self.deliveries))]

    # -- calls ---------------------------------------------------------------------------------------------------

    def _claim_calls(self) -> list[Delivery]:
        random, crowd = self._random, self.kind == "crowd"
        intents = (2, 4) if self.kind == "interrupts" else (1, 2)
        identities, most = (2 if crowd else 1, 4), 5 if crowd else 3
        if self.short:
            intents = (1, 2) if self.kind == "interrupts" else (1, 1)
            identities, most = (2 if crowd else 1, 3), 3 if crowd else 2
        calls: list[Delivery] = []
        for number in range(random.randint(*intents)):
            intent = f"i{number}"
            tool, named = self._way_of(intent)
            if random.random() < 0.2 and tool == TOOL and not named:
                self.given_keys[intent] = f"key-{intent}"
            base = random.uniform(0, 12)
            for identity in range(random.randint(*identities)):
                base = base if crowd else random.uniform(0, 12)
                calls += [
                    self._another_way(self._claim_call(intent, f"{intent}c{identity}", base), tool)
                    for _ in range(random.randint(1, most))
                ]
        return calls

    def _way_of(self, intent: str) -> tuple[str, bool]:
        """The tool of an intent, and whether its calls pass a key."""
        tool = self._more.choices((TOOL, ADAPTED, STREAMED), weights=(7, 1, 2))[0]
        if tool == TOOL and self._more.random() < 0.12:
            self.named_keys[intent] = f"about-{intent}"
        return tool, intent in self.named_keys

    def _another_way(self, call: Delivery, tool: str) -> Delivery:
        """The call as it is made for that tool, or with a key."""
        if tool == ADAPTED:
            return call._replace(tool=tool, way="adapter", mode="enforced", deadline_s=None)
        if tool == STREAMED:
            leaves = self._more.random() < 0.15
            if call.way == "function":
                return call._replace(tool=tool, way="stream", leaves=leaves)
            return call._replace(tool=tool)
        if call.intent in self.named_keys:
            way: Way = "turn" if call.way == "turn" else "once"
            return call._replace(way=way, key=self.named_keys[call.intent], mode="enforced", deadline_s=None)
        return call

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
        for n in range(random.randint(12, 20) if self.short else random.randint(15, 40)):
            way: Way = random.choice(("execute", "turn", "function"))
            at, worker = random.uniform(0, 14 if self.short else 25), random.randrange(self.workers)
            cancel = (random.uniform(0, 3),) if random.random() < 0.15 else ()
            calls.append(Delivery(at, worker, f"i{n}", f"i{n}c0", way, named=way != "function", cancel_after=cancel))
        return calls

    # -- changes -------------------------------------------------------------------------------------------------

    def _change(self, at: float) -> list[Change]:
        """A change, and the one that reverts it."""
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

    # -- during the simulation -----------------------------------------------------------------------------------

    def attempt(self, now: float) -> AttemptPlan:
        """The course of the next attempt; long ones outlive several leases."""
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

    def calls_inside(self, what: str) -> bool:
        """Whether the tool calls another one this time."""
        return self.reenters and not what.endswith(INSIDE) and self._more.random() < 0.4

    def fails_late(self) -> bool:
        """Whether a failing stream sends a chunk first."""
        return self._more.random() < 0.5

    def identity(self, delivery: Delivery, number: int) -> str:
        """The identity shared by redeliveries of this call; a call without an id has its own."""
        if delivery.key is not None:
            return delivery.key
        return delivery.identity if delivery.named else f"call {number}"

    def envelope(self, delivery: Delivery, number: int, now_ms: int) -> dict[str, Any]:
        """The call in its wire form."""
        payload: dict[str, Any] = {"version": "1.0", "params": {"what": delivery.intent}}
        if delivery.key is not None and number % 2:  # else a hook supplies it
            payload["idempotencyKey"] = delivery.key
        control: dict[str, Any] = {}
        if delivery.deadline_s is not None:
            control["deadlineAtMs"] = now_ms + int(delivery.deadline_s * 1000)
        named = {"toolCallId": delivery.identity} if delivery.named else {}
        return {
            "contractVersion": "1.1",
            "requestId": f"r{number}",
            **named,
            "toolName": delivery.tool,
            "toolNamespace": "tools",
            "target": {"sessionKey": "s", "actorId": "a"},
            "payload": payload,
            "transport": {"dedupeMode": delivery.mode, "retryBudget": {"maxAttempts": 3, "maxElapsedMs": 30_000}},
            "control": control,
            "trace": {},
        }
