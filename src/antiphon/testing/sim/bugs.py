"""Planted bugs: each breaks one invariant, and the simulator must find it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar
from unittest.mock import patch

from msgspec.structs import replace

from antiphon._gateway import admission, attempt, claim, repair, settlement
from antiphon._gateway.call import GuardedCall
from antiphon._gateway.leases import Leases
from antiphon._gateway.plan import Plans
from antiphon._gateway.steps import Reclaim, Step
from antiphon._gateway.streams import StreamState
from antiphon.contract.record import DedupeRecord
from antiphon.contract.spec import DidNotHappen
from antiphon.decide import claim as rules
from antiphon.decide.breaker import Breaker, Permit, Transition
from antiphon.decide.retry import Stop, after_failure
from antiphon.keys import KeyMaker
from antiphon.ports import Begun, ClaimRequest, Existing, Row, Settlement
from antiphon.stores._common import static_copy
from antiphon.testing.sim.store import Shared
from antiphon.testing.sim.world import Nap


class Bug(NamedTuple):
    """A mistake that somebody could make, the invariants that may detect it, and the attributes that it replaces."""

    what: str
    invariants: tuple[str, ...]
    changes: tuple[tuple[Any, str, Any], ...]

    @contextmanager
    def plant(self) -> Iterator[None]:
        """Plant the bug temporarily."""
        with ExitStack() as stack:
            for change in self.changes:
                stack.enter_context(patch.object(*change))
            yield


# -- in the store --------------------------------------------------------------------------------------------------


async def _settle_whoever_holds_it(
    self: Shared, key: str, version: int, settlement: Settlement, events: Sequence[Row]
) -> int | None:
    found = self.inner.read(key, "")
    return self.inner.settle(key, version if found is None else found.current.version, settlement, events)


async def _look_then_insert(self: Shared, request: ClaimRequest, events: Sequence[Row]) -> Begun:
    found = self.inner.read(request.key, request.identity)
    await Nap(0.005, uncancellable=True)
    if found is not None:
        return found
    self.inner.clear(request.key)
    return self.inner.begin(request, events)


async def _share_though_it_runs(self: Shared, key: str, identity: str, version: int) -> bool:
    self.inner.alias(key, identity, version)
    return True


async def _run_though_it_shares(self: Shared, request: ClaimRequest, version: int, events: Sequence[Row]) -> Begun:
    answer = self.inner.take_over(request, version, events)
    if isinstance(answer, Existing) and answer.current.version == version:
        again = static_copy(request)._replace(identity=f"{request.identity}, again")
        return self.inner.take_over(again, version, events)
    return answer


Answer = TypeVar("Answer", Begun, Existing | None)


def _without_history(answer: Answer) -> Answer:
    """One row per intent, overwritten by each new call identity."""
    if isinstance(answer, Existing) and answer.own is not None and answer.own.version != answer.current.version:
        return answer._replace(own=None)
    return answer


async def _begin_without_history(self: Shared, request: ClaimRequest, events: Sequence[Row]) -> Begun:
    return _without_history(self.inner.begin(request, events))


async def _read_without_history(self: Shared, key: str, identity: str) -> Existing | None:
    return _without_history(self.inner.read(key, identity))


async def _share_and_forget(self: Shared, key: str, identity: str, version: int) -> bool:
    return True


# -- in the rules --------------------------------------------------------------------------------------------------


def _takes_over_anything(current: DedupeRecord, now: int, asks: rules.Claimant) -> rules.Decision:
    decision = _real_in_flight(current, now, asks)
    return rules.Run(current.version, "takeover") if isinstance(decision, rules.Unknown) else decision


def _never_waits(current: DedupeRecord, now: int, asks: rules.Claimant) -> rules.Decision:
    return _real_in_flight(current, now, replace(asks, owner_gone=True))


def _shares_what_is_over(current: DedupeRecord, now: int, asks: rules.Claimant, overtaken: bool) -> rules.Decision:
    if current.state == "done":
        return rules.Reuse(current, "completed", shared=True)
    return _real_others_settled(current, now, asks, overtaken)


def _any_end_allows_a_retry(failure: Any, **known: Any) -> Any:
    return _real_after_failure(failure, **known | {"idempotent": True})


def _a_timeout_is_a_failure(failure: Any, **known: Any) -> Any:
    step = _real_after_failure(failure, **known)
    return step._replace(status="error") if isinstance(step, Stop) and step.status == "outcome_unknown" else step


_real_in_flight, _real_others_settled = rules._in_flight, rules._others_settled
_real_after_failure = after_failure


# -- in the gateway ------------------------------------------------------------------------------------------------


def _free_on_cancel(call: GuardedCall, why: str) -> Settlement:
    return settlement.not_dispatched(call)


def _never_asks_again(call: GuardedCall, _: None) -> Step:
    return attempt.dispatch(call)


def _forgets_the_claim(call: GuardedCall, reply: Begun | None) -> Step:
    assert call.extras.interrupt is not None
    return repair._settle(call, call.extras.interrupt)


def _only_reads(self: Reclaim, world: Any) -> Any:
    return world.journal.read(self.call.key, self.call.identity)


_real_recovered = repair._recovered


def _perhaps_nothing(call: GuardedCall, reply: Existing | None) -> Step:
    return _forgets_the_claim(call, reply) if reply is None else _real_recovered(call, reply)


def _abandons_nothing(self: Leases, *claim: Any) -> None:
    return None


def _says_nothing(call: GuardedCall, error: Any) -> None:
    return None


def _reads_the_callers_clock(call: GuardedCall, got: Existing) -> Step:
    return _real_decide(call, got._replace(now_ms=call.plan.now_ms()))


def _perhaps_means_no(call: GuardedCall, answer: Any) -> Step:
    return _real_reconciled(call, DidNotHappen() if answer is None else answer)


def _key_without_arguments(self: KeyMaker, params: Any, *more: Any) -> Any:
    return _real_quick(self, {}, *more)


def _left_is_left(self: StreamState, error: BaseException | None, why: str = "") -> Step | None:
    if isinstance(error, GeneratorExit):
        self.ended = True
        return None
    return _real_end(self, error, why)


_real_end = StreamState.end
_real_decide, _real_reconciled = claim._decide, claim._reconciled
_real_quick = KeyMaker.quick
_real_success = Breaker.success


def _a_cancelled_probe_is_good(self: Breaker, permit: Permit, now: float) -> tuple[Transition, ...]:
    return self.success(permit, now)


def _any_success_counts(self: Breaker, permit: Permit, now: float) -> tuple[Transition, ...]:
    if self.state != "HALF_OPEN" or permit.probe:
        return _real_success(self, permit, now)
    with self._lock:
        return self._good_probe()


BUGS: dict[str, Bug] = {
    "no-fencing": Bug(
        "settling does not look at the version",
        ("fencing", "one dispatch", "honest records", "identity"),
        ((Shared, "settle", _settle_whoever_holds_it),),
    ),
    "check-then-set": Bug(
        "the claim is looked up first and inserted later",
        ("leases", "one dispatch", "an end"),
        ((Shared, "begin", _look_then_insert),),
    ),
    "identity-overwritten": Bug(
        "a record knows only its last call identity",
        ("identity",),
        ((Shared, "begin", _begin_without_history), (Shared, "read", _read_without_history)),
    ),
    "two-answers": Bug(
        "one delivery of a call shares an answer while another one runs",
        ("identity",),
        ((Shared, "alias", _share_though_it_runs), (Shared, "take_over", _run_though_it_shares)),
    ),
    "overtaken-request": Bug(
        "a caller that is cancelled while it claims only reads, although its request may still be under way",
        ("an end", "leases"),
        ((Reclaim, "perform", _only_reads), (repair, "_recovered", _perhaps_nothing)),
    ),
    "release-on-cancel": Bug(
        "a cancelled call frees its claim although the tool was reached",
        ("honest records", "one dispatch"),
        ((settlement, "interrupted", _free_on_cancel), (repair, "interrupted", _free_on_cancel)),
    ),
    "no-renewal": Bug(
        "leases are not renewed",
        ("leases", "one dispatch"),
        ((Leases, "renew_due", lambda self, journal, now: None),),
    ),
    "zombie-retries": Bug(
        "a worker tries again without looking whether it still holds the claim",
        ("fencing", "one dispatch"),
        ((attempt, "_slept", _never_asks_again),),
    ),
    "stale-epoch": Bug(
        "a success that began before the breaker opened counts as a probe",
        ("epochs",),
        ((Breaker, "success", _any_success_counts),),
    ),
    "stale-plan": Bug(
        "a live change of the switches does not reach a decorated function",
        ("switches", "alone", "identity", "one dispatch"),
        ((Plans, "changed", lambda self: None),),
    ),
    "claim-left-in-flight": Bug(
        "a caller that is cancelled while it claims does not give the claim back",
        ("an end", "leases"),
        ((repair, "_recovered", _forgets_the_claim),),
    ),
    "nothing-is-abandoned": Bug(
        "a claim whose caller is interrupted twice is ended by nobody",
        ("an end", "leases"),
        ((Leases, "finish", _abandons_nothing),),
    ),
    "answer-not-remembered": Bug(
        "a shared answer is not kept for the caller that was given it",
        ("identity",),
        ((Shared, "alias", _share_and_forget),),
    ),
    "unknown-forgotten": Bug(
        "a call whose outcome is unknown counts as one that failed",
        ("one dispatch", "identity"),
        ((rules, "is_unknown", lambda record: False),),
    ),
    "takeover-of-a-write": Bug(
        "a lost call is taken over although it may not be repeated",
        ("one dispatch",),
        ((rules, "_in_flight", _takes_over_anything),),
    ),
    "lease-ignored": Bug(
        "a claim in flight counts as lost while its lease is alive",
        ("leases", "one dispatch"),
        ((rules, "_in_flight", _never_waits),),
    ),
    "clock-of-the-caller": Bug(
        "a lease is judged by the caller's clock, not by the store's",
        ("leases", "one dispatch"),
        ((claim, "_decide", _reads_the_callers_clock),),
    ),
    "new-call-vanishes": Bug(
        "a new call is answered with the result of an earlier equal one that was over when it came",
        ("no call vanishes",),
        ((rules, "_others_settled", _shares_what_is_over),),
    ),
    "retries-what-may-have-happened": Bug(
        "a failed attempt is repeated although it may have taken effect",
        ("one dispatch",),
        ((attempt, "after_failure", _any_end_allows_a_retry),),
    ),
    "timeout-is-a-failure": Bug(
        "an attempt whose end nobody saw is recorded as a failure",
        ("honest records",),
        ((attempt, "after_failure", _a_timeout_is_a_failure),),
    ),
    "not-recorded-unsaid": Bug(
        "a caller is not told that the store could not take its result",
        ("identity",),
        ((settlement, "_not_recorded", _says_nothing),),
    ),
    "perhaps-means-no": Bug(
        "a reconcile function that cannot say yet counts as: it did not happen",
        ("honest records", "one dispatch"),
        ((claim, "_reconciled", _perhaps_means_no),),
    ),
    "key-without-arguments": Bug(
        "calls with different arguments have one key",
        ("intent", "leases", "one dispatch", "identity", "an end"),
        ((KeyMaker, "quick", _key_without_arguments),),
    ),
    "shadow-binds": Bug(
        "a call in shadow takes the claim of calls that count",
        ("switches",),
        ((admission, "_SHADOW", ""),),
    ),
    "stream-left-unsettled": Bug(
        "a stream whose reader leaves is settled by nobody",
        ("an end", "leases"),
        ((StreamState, "end", _left_is_left),),
    ),
    "cancelled-probe-is-good": Bug(
        "a probe that was cancelled counts as a success",
        ("epochs",),
        ((Breaker, "neutral", _a_cancelled_probe_is_good),),
    ),
}
