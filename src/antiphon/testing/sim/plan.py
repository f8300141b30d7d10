"""What a seed stands for: calls, tools, and what goes wrong."""

from __future__ import annotations

from random import Random
from typing import Any, Literal, NamedTuple

from antiphon.contract.spec import BreakerPolicy, ToolSpec
from antiphon.testing.sim.worker import LEASE_MS, spec_of

Kind = Literal["claims", "breaker"]
Ends = Literal["fine", "refused", "answer 400", "answer 503", "lost"]
LEASE_S = LEASE_MS / 1000
QUIET_S = 60.0
"""After this nothing goes wrong any more, and every call identity is delivered once again."""


class Fate(NamedTuple):
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
    mode: str = "enforced"
    key: str | None = None
    cancel_after: float | None = None
    deadline_s: float | None = None


class Plan:
    """Everything that was decided before the story begins; what is decided on the way comes from the same seed."""

    def __init__(self, seed: int) -> None:
        random = self._random = Random(seed * 2 + 1)
        self.seed = seed
        self.kind: Kind = "breaker" if seed % 5 == 4 else "claims"
        self.workers = random.randint(1, 2) if self.kind == "breaker" else random.randint(2, 4)
        self.idempotent = self.kind == "breaker" or random.random() < 0.5
        self.reconciles = not self.idempotent and random.random() < 0.4
        self.ends = QUIET_S + 40.0
        self.loss = random.choice((0.0, 0.0, 0.02, 0.1))
        self.skewed = random.random() < 0.3
        self.spec: ToolSpec = spec_of(
            idempotent=self.idempotent,
            reuse=random.choice(("never", "turn", "session", 5.0)),
            breaker=BreakerPolicy(consecutive=3, cooldown_ms=2_000, probe_lease_ms=8_000)
            if self.kind == "breaker"
            else BreakerPolicy(consecutive=1_000, min_calls=1_000),
        )
        self.deliveries = self._breaker_calls() if self.kind == "breaker" else self._claim_calls()
        self.pauses = [
            (random.uniform(0, 20), random.randrange(self.workers), random.choice((0.5, 2.0, LEASE_S + 1, 10.0)))
            for _ in range(random.choice((0, 0, 1, 2, 3)))
        ]
        self.kills = [
            (random.uniform(0, 20), random.randrange(self.workers)) for _ in range(random.choice((0, 0, 0, 1, 2)))
        ]

    def _claim_calls(self) -> list[Delivery]:
        random = self._random
        calls: list[Delivery] = []
        for intent in range(random.randint(1, 2)):
            given = random.random() < 0.2
            for identity in range(random.randint(1, 4)):
                base = random.uniform(0, 12)
                for _ in range(random.randint(1, 3)):
                    calls.append(
                        Delivery(
                            at=base + random.choice((0.0, 0.01, 0.5, 4.0, 15.0)) * random.random(),
                            worker=random.randrange(self.workers),
                            intent=f"i{intent}",
                            identity=f"i{intent}c{identity}",
                            mode=random.choice(("enforced", "enforced", "enforced", "bestEffort")),
                            key=f"key-i{intent}" if given else None,
                            cancel_after=random.uniform(0, 6) if random.random() < 0.15 else None,
                            deadline_s=random.uniform(1, 10) if random.random() < 0.15 else None,
                        )
                    )
        return calls

    def _breaker_calls(self) -> list[Delivery]:
        random = self._random
        return [
            Delivery(
                random.uniform(0, 25), random.randrange(self.workers), f"i{n}", f"i{n}c0", "enforced", None, None, None
            )
            for n in range(random.randint(15, 40))
        ]

    def fate(self, now: float) -> Fate:
        """How the next attempt goes; long ones outlive several leases."""
        random = self._random
        if now > QUIET_S:
            return Fate(0.01, 0.01, "fine")
        if self.kind == "breaker":
            ends: Ends = random.choice(("fine", "answer 503", "answer 503", "answer 503"))
            return Fate(0.0, random.choice((0.01, 0.2, 3.0, 6.0)) * random.random(), ends)
        length = random.choice((0.01, 0.3, LEASE_S, 4 * LEASE_S))
        ends = random.choices(("fine", "refused", "answer 400", "answer 503", "lost"), weights=(12, 2, 2, 1, 2))[0]
        return Fate(length * random.random(), length * random.random(), ends)

    def envelope(self, delivery: Delivery, number: int, now_ms: int) -> dict[str, Any]:
        """The call as it goes over the wire."""
        payload: dict[str, Any] = {"version": "1.0", "params": {"what": delivery.intent}}
        if delivery.key is not None:
            payload["idempotencyKey"] = delivery.key
        control: dict[str, Any] = {}
        if delivery.deadline_s is not None:
            control["deadlineAtMs"] = now_ms + int(delivery.deadline_s * 1000)
        return {
            "contractVersion": "1.1",
            "requestId": f"r{number}",
            "toolCallId": delivery.identity,
            "toolName": "act",
            "toolNamespace": "tools",
            "target": {"sessionKey": "s", "actorId": "a"},
            "payload": payload,
            "transport": {"dedupeMode": delivery.mode, "retryBudget": {"maxAttempts": 3, "maxElapsedMs": 30_000}},
            "control": control,
            "trace": {},
        }
