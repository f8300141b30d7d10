"""The store's gauges: read when the metrics are read, never by a call (R11)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable
from typing import Any

from antiphon import _saga
from antiphon._gateway.owner import certainly_dead
from antiphon._gateway.plan import Plans
from antiphon._gateway.store_breaker import PROBE
from antiphon.contract.events import is_reserved
from antiphon.contract.record import is_unsettled, unknown_for
from antiphon.errors import StoreError
from antiphon.ports import SyncJournal
from antiphon.telemetry import _metrics as schema

log = logging.getLogger("antiphon.telemetry")

_ANSWER_S = 2.0
"""A store that takes longer to answer is down."""
_COUNT_S = 5.0
_MOST_RUNS = 1000
"""Per tenant and status: nobody needs to know how many more were interrupted."""


def update_gauges(plans: Plans, tenants: Iterable[str], left: Container[str] = ()) -> None:
    """Ask the store for its health and its counts of *tenants*, and set the metrics; *left*: runs nobody can resume.

    What the store does not report stays as it was. A store that fails here opens no breaker: only calls do that.
    """
    # the connections of the leases: a frozen store gets no further ones
    leases, tell, store = plans.leases, plans.reporter.sampled, plans.store.url
    shared = leases.of_process()
    is_open = any(one.breaker.is_open for one in shared)
    states = {"OPEN": float(is_open), "CLOSED": float(not is_open)}
    tell(schema.STORE_BREAKER, {(store, state): states[state] for state in schema.STORE_STATES})
    tell(schema.SAGAS, {(state,): float(number) for state, number in _saga.counts().items()})
    tell(schema.UNRECORDED, {(store,): float(sum(one.unrecorded for one in shared))})
    if is_open:
        tell(schema.STORE_UP, {(store,): 0.0})
        return
    began = plans.monotonic()
    try:
        _within(plans, lambda: leases.journal().renew(PROBE, 0, 1), _ANSWER_S)
        up = 1.0
    except StoreError as error:
        log.warning("the store does not answer: %s", error)
        up = 0.0
    tell(schema.STORE_UP, {(store,): up})
    tell(schema.STORE_LATENCY, {(store,): (plans.monotonic() - began) * 1000})
    if not up:
        return
    try:
        wanted, now_ms = tuple(tenants), plans.clock.now_ms()
        counts, interrupted = _within(plans, lambda: _counted(leases.journal(), wanted, left, now_ms), _COUNT_S)
    except StoreError as error:
        log.warning("the records could not be counted: %s", error)
        return
    plans.reporter.dedupe(counts)
    tell(schema.INTERRUPTED, {(store,): float(interrupted)})


def _within(plans: Plans, step: Callable[[], Any], seconds: float) -> Any:
    breaker = plans.store_breaker
    return breaker.within(step, seconds) if breaker.on else step()


def _counted(
    journal: SyncJournal, tenants: Iterable[str], left: Container[str], now_ms: int
) -> tuple[Counter[tuple[str, str]], int]:
    """The claim records by tool and state, and the interrupted runs."""
    counts: Counter[tuple[str, str]] = Counter()
    interrupted = 0
    for tenant in tenants:
        counts.update(journal.counts(tenant))
        for record in journal.earlier(tenant=tenant):  # an unknown outcome that others have followed is one
            if is_unsettled(record):
                counts[record.tool, unknown_for(now_ms - record.updated_at_ms)] += 1
        for status in ("running", "interrupted"):
            for run in journal.runs(tenant=tenant, status=status, limit=_MOST_RUNS):
                is_over = status == "interrupted" or run.id in left or certainly_dead(run.tags.get("owner", ""))
                interrupted += is_over and run.source_run is None and not is_reserved(run.id)
    return counts, interrupted
