"""What the conformance rules stand on: requests, settlements, faces and concurrency, the same for both faces."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

from antiphon._drive import drive
from antiphon.contract.events import RunManifest
from antiphon.contract.record import DedupeRecord, RecordedExecution
from antiphon.ports import (
    Attempt,
    Begun,
    Claimed,
    ClaimTemplate,
    Existing,
    Journal,
    Row,
    Settlement,
    StaticClaimRequest,
    Store,
)
from antiphon.stores._adapters import AsyncFromSync

T = TypeVar("T")
Face = Literal["sync", "async"]
Step = Callable[[Journal], Awaitable[T]]

TTL_MS = 60_000
SHORT_MS = 400
"""Long enough for a loaded machine to act within it, short enough to wait for where time cannot be moved."""


def must(condition: object, what: str) -> None:
    """Fail with the sentence of the rule that was broken."""
    if not condition:
        raise AssertionError(what)


def claimed(answer: Begun) -> Claimed:
    """The answer of a call that has to win."""
    if not isinstance(answer, Claimed):
        raise AssertionError(f"the claim should have been won, but the store answered {answer}")
    return answer


def existing(answer: Begun | None) -> Existing:
    """The answer of a call that has to lose."""
    if not isinstance(answer, Existing):
        raise AssertionError(f"the store should have shown a record, but it answered {answer}")
    return answer


def check_attempts(record: DedupeRecord, attempts: Sequence[Attempt]) -> None:
    """Whether *record* tells of these attempts, and of no others."""
    execution = record.execution
    assert isinstance(execution, RecordedExecution)
    told = [(a.started_at_ms, a.finished_at_ms, a.error_code or "", a.retriable, a.status) for a in execution.attempts]
    expected = [(*attempt, "error" if attempt[2] else "success") for attempt in attempts]
    must(told == expected, f"attempts are kept: {expected}, not {told}")
    must(execution.attempt_count == len(attempts), "and counted")


class Harness:
    """A store under test in one face."""

    def __init__(
        self, make: Callable[[], Store], face: Face = "sync", advance: Callable[[int], None] | None = None
    ) -> None:
        self.make = make
        self.store: Store = make()
        self.face = face
        self._advance = advance
        self.name: str = uuid.uuid4().hex[:12]
        self.tenant: str = f"tenant-{self.name}"

    def open(self) -> Journal:
        """A journal of this face; one for threads behind coroutines that never suspend."""
        return AsyncFromSync(self.store.open_sync()) if self.face == "sync" else self.store.open_async()

    @property
    def has_clock(self) -> bool:
        """Whether time passes on the store's clock as fast as the rules like."""
        return self._advance is not None

    async def pass_ms(self, milliseconds: int) -> None:
        """Let time pass on the store's clock."""
        if self._advance is not None:
            self._advance(milliseconds)
        else:
            await self.sleep(milliseconds / 1000)

    async def sleep(self, seconds: float) -> None:
        """Let real time pass."""
        if self.face == "sync":
            import time

            time.sleep(seconds)
        else:
            import asyncio

            await asyncio.sleep(seconds)

    async def together(self, journal: Journal, steps: Sequence[Step[T]]) -> list[T]:
        """Run *steps* at the same time: threads in the synchronous face, tasks in the asynchronous one."""
        if self.face == "async":
            import asyncio

            return list(await asyncio.gather(*(step(journal) for step in steps)))
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(max_workers=len(steps)) as pool:
            return list(pool.map(lambda step: drive(_as_coroutine(step, journal)), steps))

    def key(self, name: str = "key") -> str:
        """A store key nobody else has."""
        return f"{name}-{self.name}"

    def request(self, key: str, identity: str = "call-1", **changes: Any) -> StaticClaimRequest:
        """A request for the claim on *key*; *changes* are fields of the request or of its template."""
        shared: dict[str, Any] = {
            "tool": "tools/send",
            "session": "session-1",
            "actor": "actor-1",
            "ttl_ms": TTL_MS,
            "lease_ms": TTL_MS,
            "owner": "process-1",
            "tenant": self.tenant,
            "workspace": "workspace-1",
        }
        values: dict[str, Any] = {
            "key": key,
            "identity": identity,
            "idempotency_key": f"given-{key}",
            "params": ("digest", "exact"),
            "request_id": f"request-of-{identity}",
            "token": f"token-of-{identity}",
            "call_id": identity,
        }
        for name, value in changes.items():
            (shared if name in shared else values)[name] = value
        return StaticClaimRequest(template=ClaimTemplate(**shared), **values)

    def rows(self, run: str, *types: str) -> list[Row]:
        """Events on their way into the log."""
        return [Row(run, kind, 1, b'{"lane":"0","index":0,"payload":{"n":1},"meta":{}}') for kind in types]

    def manifest(self, run: str, **changes: Any) -> RunManifest:
        """The head of a run."""
        values: dict[str, Any] = {"id": run, "name": "demo", "status": "running", "started_at_ms": 1_000}
        return RunManifest(**(values | {"tenant": self.tenant} | changes))


def done(payload: bytes | None = b'{"ok":true}', ttl_ms: int = TTL_MS, **changes: Any) -> Settlement:
    """A call that succeeded."""
    return Settlement("done", ttl_ms, payload=payload, attempt_count=1, **changes)


def failed(code: str = "refused", ttl_ms: int = TTL_MS) -> Settlement:
    """A call that did not."""
    return Settlement("failed", ttl_ms, error=(code, "it did not work", True, False), attempt_count=1)


async def _as_coroutine(step: Step[T], journal: Journal) -> T:
    return await step(journal)
