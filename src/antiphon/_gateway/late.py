"""Results of synchronous tools that were given up on: they settle the record the call left behind (R8)."""

from __future__ import annotations

import logging
from typing import Any

from antiphon._daemon import Latch
from antiphon._gateway import codec
from antiphon._gateway.call import GuardedCall
from antiphon._gateway.report import TraceData
from antiphon._gateway.tool import Tool
from antiphon._late import traceback_of
from antiphon.decide.claim import is_unknown
from antiphon.ports import Attempt, Settlement, SyncJournal

log = logging.getLogger("antiphon.gateway")

_PATIENCE_S = 60.0


class LateResult:
    """Handles a result that nobody waits for any more. It keeps the plan, not the call."""

    def __init__(self, call: GuardedCall, before: LateResult | None = None) -> None:
        """*before*: that of the previous attempt."""
        self._plan = plan = call.plan
        self.tool: Tool = plan.tool
        self.request_id = call.request_id
        self.call_id = call.call_id
        self.place, self.key = call.place, call.key
        self.trace_data: TraceData | None = call.trace_data
        self.over: Latch = Latch() if before is None else before.over
        """Set when the call has written its own end, which goes first."""
        self.uncertain_attempts: set[int] = set() if before is None else before.uncertain_attempts
        """The attempts of the call that may have had an effect."""
        self._number = call.number
        self.fences: set[int] = set() if before is None else before.fences
        """The versions of the call's claim: there is a further one if the store lost it."""
        self.fences.add(call.version)
        self._identity = call.identity
        self._began_ms = plan.now_ms()

    @property
    def fingerprint(self) -> str:
        return self._plan.plans.fingerprints.of(self.key)

    def __call__(self, value: Any, error: BaseException | None) -> None:
        self.over.wait(_PATIENCE_S)
        try:
            journal = self._plan.plans.store.open_sync()
            try:
                settled = self._settle(journal, value, error)
            finally:
                journal.close()
        except Exception as problem:
            log.error("the late result of %s could not be recorded\n%s", self.tool.full_name, traceback_of(problem))
        else:
            self._plan.reporter.late(self, settled)

    def _settle(self, journal: SyncJournal, value: Any, error: BaseException | None) -> bool:
        """Whether the record was still waiting for this result."""
        found = journal.read(self.key, self._identity)
        record = None if found is None else found.own
        if record is None or record.fence not in self.fences or record.state in ("done", "inflight"):
            return False
        if error is None:
            settlement = self._success(value)
        else:
            failure = self.tool.failure(error, self._plan.now_ms())
            if failure.may_have_applied or not is_unknown(record):
                return False
            self.uncertain_attempts.discard(self._number)
            if self.uncertain_attempts:  # this attempt had no effect, but an earlier one may have
                return False
            cause = (failure.code, self._plan.results.clean(failure.message), not failure.retriable, failure.retriable)
            attempts = (self._attempt(failure.code, failure.retriable),)
            settlement = Settlement("failed", self.tool.ttl.failed_ms, error=cause, attempts=attempts, attempt_count=1)
            if self._plan.is_keyed:  # nothing has happened: the key is free
                settlement = settlement._replace(state="cancelled", dispatched=False)
        return journal.settle(self.key, record.version, settlement) is not None

    def _success(self, value: Any) -> Settlement:
        results = self._plan.results
        base = Settlement("done", self._plan.ttl_ms, attempts=(self._attempt(),), attempt_count=1)
        try:
            settlement, spilled = results.keep(self.key, base, codec.encode(value, self.tool.decode), self.tool.streams)
            if spilled is None:
                return settlement
            return results.placed(settlement, results.required_blobs().put(results.tenant, spilled))
        except codec.NotSerialisable:
            return base
        except Exception as problem:
            log.error("the late result of %s could not be kept\n%s", self.tool.full_name, traceback_of(problem))
            return base

    def _attempt(self, code: str = "", retriable: bool = False) -> Attempt:
        return self._began_ms, self._plan.now_ms(), code, retriable
