"""Planted bugs: each breaks one law, and the simulator must find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from antiphon._gateway import attempt, repair, settlement
from antiphon._gateway.call import GuardedCall
from antiphon._gateway.leases import Leases
from antiphon._gateway.plan import Plans
from antiphon._gateway.steps import Reclaim, Step
from antiphon.decide.breaker import Breaker, Permit, Transition
from antiphon.ports import Claimed, ClaimRequest, Existing, Row, Settlement, StaticClaimRequest
from antiphon.testing.sim.store import Shared
from antiphon.testing.sim.world import Nap


class Bug(NamedTuple):
    """A mistake somebody could make, and the laws that may notice it."""

    what: str
    laws: tuple[str, ...]
    plant: Callable[[], AbstractContextManager[None]]


@contextmanager
def patched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put *value* in the place of an attribute for a while."""
    real = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, real)


# -- in the store --------------------------------------------------------------------------------------------------


async def _settle_whoever_holds_it(
    self: Shared, key: str, version: int, settlement: Settlement, events: Sequence[Row]
) -> int | None:
    found = self.inner.read(key, "")
    return self.inner.settle(key, version if found is None else found.current.version, settlement, events)


async def _look_then_insert(self: Shared, request: ClaimRequest, events: Sequence[Row]) -> Claimed | Existing:
    found = self.inner.read(request.key, request.identity)
    await Nap(0.005, deaf=True)
    if found is not None:
        return found
    self.inner.clear(request.key)
    return self.inner.begin(request, events)


async def _share_though_it_runs(self: Shared, key: str, identity: str, version: int) -> bool:
    self.inner.alias(key, identity, version)
    return True


async def _run_though_it_shares(
    self: Shared, request: ClaimRequest, version: int, events: Sequence[Row]
) -> Claimed | Existing:
    answer = self.inner.take_over(request, version, events)
    if isinstance(answer, Existing) and answer.current.version == version:
        return self.inner.take_over(_as_another(request), version, events)
    return answer


def _as_another(request: ClaimRequest) -> StaticClaimRequest:
    return StaticClaimRequest(
        key=request.key,
        identity=f"{request.identity}, again",
        template=request.template,
        idempotency_key=request.idempotency_key,
        params=request.params,
        request_id=request.request_id,
        token=request.token,
        call_id=request.call_id,
    )


@contextmanager
def _two_answers() -> Iterator[None]:
    with (
        patched(Shared, "alias", _share_though_it_runs),
        patched(Shared, "take_over", _run_though_it_shares),
    ):
        yield


def _without_history(answer: Any) -> Any:
    """One row per intent, overwritten by each new call identity."""
    if isinstance(answer, Existing) and answer.own is not None and answer.own.version != answer.current.version:
        return answer._replace(own=None)
    return answer


async def _begin_without_history(self: Shared, request: ClaimRequest, events: Sequence[Row]) -> Claimed | Existing:
    return _without_history(self.inner.begin(request, events))  # type: ignore[no-any-return]


async def _read_without_history(self: Shared, key: str, identity: str) -> Existing | None:
    return _without_history(self.inner.read(key, identity))  # type: ignore[no-any-return]


@contextmanager
def _identity_overwritten() -> Iterator[None]:
    with (
        patched(Shared, "begin", _begin_without_history),
        patched(Shared, "read", _read_without_history),
    ):
        yield


# -- in the gateway ------------------------------------------------------------------------------------------------


def _free_on_cancel(call: GuardedCall, why: str) -> Settlement:
    return settlement.not_dispatched(call)


@contextmanager
def _release_on_cancel() -> Iterator[None]:
    with patched(settlement, "interrupted", _free_on_cancel), patched(repair, "interrupted", _free_on_cancel):
        yield


def _never_asks_again(call: GuardedCall, _: None) -> Step:
    return attempt.dispatch(call)


def _forgets_the_claim(call: GuardedCall, reply: Claimed | Existing | None) -> Step:
    assert call.extras.interrupt is not None
    return repair._settle(call, call.extras.interrupt)


def _only_reads(self: Reclaim, world: Any) -> Any:
    return world.journal.read(self.call.key, self.call.identity)


_real_recovered = repair._recovered


def _perhaps_nothing(call: GuardedCall, reply: Existing | None) -> Step:
    return _forgets_the_claim(call, reply) if reply is None else _real_recovered(call, reply)


@contextmanager
def _overtaken_request() -> Iterator[None]:
    with patched(Reclaim, "ask", _only_reads), patched(repair, "_recovered", _perhaps_nothing):
        yield


def _abandons_nothing(self: Leases, *claim: Any) -> None:
    return None


_real_success = Breaker.success


def _any_success_counts(self: Breaker, permit: Permit, now: float) -> tuple[Transition, ...]:
    if self.state != "HALF_OPEN" or permit.probe:
        return _real_success(self, permit, now)
    with self._lock:
        return self._good_probe()


BUGS: dict[str, Bug] = {
    "no-fencing": Bug(
        "settling does not look at the version",
        ("fencing", "one dispatch", "honest records", "identity"),
        lambda: patched(Shared, "settle", _settle_whoever_holds_it),
    ),
    "check-then-set": Bug(
        "the claim is looked up first and inserted later",
        ("leases", "one dispatch"),
        lambda: patched(Shared, "begin", _look_then_insert),
    ),
    "identity-overwritten": Bug(
        "a record knows only its last call identity",
        ("identity",),
        _identity_overwritten,
    ),
    "two-answers": Bug(
        "one delivery of a call shares an answer while another one runs",
        ("identity",),
        _two_answers,
    ),
    "overtaken-request": Bug(
        "a caller that is cancelled while it claims only reads, although its request may still be under way",
        ("an end", "leases"),
        _overtaken_request,
    ),
    "release-on-cancel": Bug(
        "a cancelled call frees its claim although the tool was reached",
        ("honest records", "one dispatch"),
        _release_on_cancel,
    ),
    "no-renewal": Bug(
        "leases are not renewed",
        ("leases", "one dispatch"),
        lambda: patched(Leases, "renew_due", lambda self, journal, now: None),
    ),
    "zombie-retries": Bug(
        "a worker tries again without looking whether it still holds the claim",
        ("fencing", "one dispatch"),
        lambda: patched(attempt, "_slept", _never_asks_again),
    ),
    "stale-epoch": Bug(
        "a success that began before the breaker opened counts as a probe",
        ("epochs",),
        lambda: patched(Breaker, "success", _any_success_counts),
    ),
    "stale-plan": Bug(
        "a live change of the switches does not reach a decorated function",
        ("switches", "alone", "identity"),
        lambda: patched(Plans, "changed", lambda self: None),
    ),
    "claim-left-in-flight": Bug(
        "a caller that is cancelled while it claims does not give the claim back",
        ("an end", "leases"),
        lambda: patched(repair, "_recovered", _forgets_the_claim),
    ),
    "nothing-is-abandoned": Bug(
        "a claim whose caller is interrupted twice is ended by nobody",
        ("an end", "leases"),
        lambda: patched(Leases, "abandon", _abandons_nothing),
    ),
}
