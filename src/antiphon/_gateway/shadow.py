"""Shadow mode: compute and log what would have been done, change nothing (R12).

Claims go under keys of their own, breakers into a registry of their own; nothing waits, blocks or retries.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from antiphon._gateway import claims
from antiphon._gateway.breakers import Breakers
from antiphon._gateway.call import Call, Outcome
from antiphon.decide import claim as rules
from antiphon.decide.breaker import Breaker, Permit
from antiphon.decide.retry import Retry, Stop, after_failure
from antiphon.errors import StoreError
from antiphon.ports import Claimed, Final

if TYPE_CHECKING:
    from antiphon._gateway.core import Core


class Shadow:
    """What the pipeline would have decided, kept apart from what it decides."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._breakers = Breakers(core.clock, core.settings.breaker_quorum)

    async def run(self, call: Call) -> Outcome:
        """Make the plain call, and say what would have become of it."""
        core = self._core
        key = f"shadow.{call.key}"
        verdict, version = await self._look(call, key)
        permits: list[tuple[Breaker, Permit]] = []
        if verdict == "run":
            for _, breaker in self._breakers.path(call.tool, call.hint):
                permit = breaker.permit(core.clock.monotonic())
                if isinstance(permit, Permit):
                    permits.append((breaker, permit))
                else:
                    verdict = "circuit_open"
        core.telemetry.shadow(call, verdict)
        outcome = await core.attempts.once(call)
        final = Final("done", call.tool.ttl.done_ms, payload=b"null", attempt_count=1)
        if outcome.exception is not None:
            final = self._failed(call, outcome.exception, permits, verdict)
        else:
            for breaker, permit in permits:
                breaker.success(permit, core.clock.monotonic())
        if version:
            try:
                await core.journal().settle(key, version, final)
            except StoreError as error:
                core.telemetry.shadow(call, error.code)
        return outcome

    async def _look(self, call: Call, key: str) -> tuple[str, int]:
        """What the claim would have said, and the version of the shadow claim if it was won."""
        core = self._core
        try:
            journal = core.journal()
            ask = claims.ask_of(core, call, key)
            got = await journal.begin(ask)
            if not isinstance(got, Claimed):
                decision = rules.decide(got, claims.claimant_of(call))
                if not isinstance(decision, rules.Run):
                    return type(decision).__name__.lower(), 0
                got = await journal.take(ask, decision.version)
            return "run", got.version if isinstance(got, Claimed) else 0
        except StoreError as error:
            return error.code, 0

    def _failed(self, call: Call, error: BaseException, permits: list[tuple[Breaker, Permit]], verdict: str) -> Final:
        core, tool = self._core, call.tool
        failure = core.attempts.failure_of(call, error)
        now = core.clock.monotonic()
        for breaker, permit in permits:
            breaker.failure(permit, now, failure.breaker_vote, failure.retry_after_ms)
        step = after_failure(
            failure,
            attempt=1,
            max_attempts=call.max_attempts,
            elapsed_ms=(now - call.started) * 1000,
            max_elapsed_ms=call.max_elapsed_ms,
            remaining_ms=None,
            policy=tool.retry,
            idempotent=tool.spec.idempotent,
            retry_safe=call.retry_safe or tool.spec.forward_key,
            breaker_open=any(breaker.is_open(now) for breaker, _ in permits),
            budget=None,
            now=now,
            chance=0.0,
        )
        if isinstance(step, Retry) and verdict == "run":
            core.telemetry.shadow(call, "retry")
        unknown = isinstance(step, Stop) and step.status == "outcome_unknown"
        code = rules.UNKNOWN_CODE if unknown else failure.code
        cause = (code, core.keeper.clean(failure.message), not failure.retriable, failure.retriable and not unknown)
        return Final("failed", tool.ttl.failed_ms, error=cause, attempt_count=1)
