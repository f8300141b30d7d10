"""Planted bugs: each breaks one law, and the simulator must find it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

from antiphon._gateway import settling
from antiphon._gateway.attempts import Attempts
from antiphon._gateway.call import Call
from antiphon._gateway.renewer import Renewer
from antiphon.decide.breaker import Breaker, Permit, Transition
from antiphon.ports import Ask, Claimed, Existing, Final, Row
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


async def _settle_whoever_holds_it(
    self: Shared, key: str, version: int, final: Final, events: Sequence[Row]
) -> int | None:
    found = await self.inner.read(key, "")
    return await self.inner.settle(key, version if found is None else found.current.version, final, events)


async def _look_then_insert(self: Shared, ask: Ask, events: Sequence[Row]) -> Claimed | Existing:
    found = await self.inner.read(ask.key, ask.identity)
    await Nap(0.005, deaf=True)
    if found is not None:
        return found
    await self.inner.clear(ask.key)
    return await self.inner.begin(ask, events)


async def _share_though_it_runs(self: Shared, key: str, identity: str, version: int) -> bool:
    await self.inner.alias(key, identity, version)
    return True


async def _run_though_it_shares(self: Shared, ask: Ask, version: int, events: Sequence[Row]) -> Claimed | Existing:
    answer = await self.inner.take(ask, version, events)
    if isinstance(answer, Existing) and answer.current.version == version:
        return await self.inner.take(ask._replace(identity=f"{ask.identity}, again"), version, events)
    return answer


@contextmanager
def _two_answers() -> Iterator[None]:
    with (
        patched(Shared, "alias", _share_though_it_runs),
        patched(Shared, "take", _run_though_it_shares),
    ):
        yield


def _without_history(answer: Any) -> Any:
    """One row per intent, overwritten by each new call identity."""
    if isinstance(answer, Existing) and answer.own is not None and answer.own.version != answer.current.version:
        return answer._replace(own=None)
    return answer


async def _begin_without_history(self: Shared, ask: Ask, events: Sequence[Row]) -> Claimed | Existing:
    return _without_history(await self.inner.begin(ask, events))  # type: ignore[no-any-return]


async def _read_without_history(self: Shared, key: str, identity: str) -> Existing | None:
    return _without_history(await self.inner.read(key, identity))  # type: ignore[no-any-return]


@contextmanager
def _identity_overwritten() -> Iterator[None]:
    with (
        patched(Shared, "begin", _begin_without_history),
        patched(Shared, "read", _read_without_history),
    ):
        yield


def _free_on_cancel(call: Call, why: str) -> Final:
    return settling.not_dispatched(call)


async def _never_asks_again(self: Attempts, call: Call) -> bool:
    return True


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
    "release-on-cancel": Bug(
        "a cancelled call frees its claim although the tool was reached",
        ("honest records", "one dispatch"),
        lambda: patched(settling, "interrupted_final", _free_on_cancel),
    ),
    "no-renewal": Bug(
        "leases are not renewed",
        ("leases", "one dispatch"),
        lambda: patched(Renewer, "renew_due", lambda self, journal, now: None),
    ),
    "zombie-retries": Bug(
        "a worker tries again without looking whether it still holds the claim",
        ("fencing", "one dispatch"),
        lambda: patched(Attempts, "_still_ours", _never_asks_again),
    ),
    "stale-epoch": Bug(
        "a success that began before the breaker opened counts as a probe",
        ("epochs",),
        lambda: patched(Breaker, "success", _any_success_counts),
    ),
}
