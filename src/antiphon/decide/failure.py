"""A classified failure: what went wrong in one attempt, and what follows from it (R7, D5, D8).

| question                      | answered by             | rule                                                       |
|-------------------------------|-------------------------|------------------------------------------------------------|
| may the attempt be repeated?  | ``retriable``           | R7's lists, then the tool's own                            |
| did it surely have no effect? | ``certainly_no_effect`` | D5: refused, DNS, pool timeout, 429, 503 with Retry-After  |
| may it have had an effect?    | ``may_have_applied``   | D3: everything else that is not a definite answer          |
| what does the breaker learn?  | ``breaker_vote``        | D8: transport, timeout, retriable status; 429: rate only   |
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["transport", "timeout", "throttle", "quota", "answer", "validation", "refusal", "unclassified"]
Phase = Literal["not_sent", "sent", "answered"]
Vote = Literal["failure", "rate_only", "success", "none"]

RETRIABLE_STATUSES = frozenset((408, 429, 500, 502, 503, 504))
TERMINAL_STATUSES = frozenset((400, 401, 403, 404, 413, 422))
UNSURE_4XX = frozenset((408, 499))
"""Client errors that say nothing about whether the request was carried out."""
NO_EFFECT_CODES = frozenset(("ECONNREFUSED", "EAI_AGAIN", "dns", "pool_timeout", "rate_limited"))
"""D5's list, apart from the statuses. A connect timeout is not on it: it ends as an unknown outcome."""
LOCAL_CODES = frozenset(("pool_timeout", "tls_certificate", "invalid_url"))
"""Failures on our side of the wire: they say nothing about the health of the dependency."""

_DEFINITE = frozenset(("answer", "validation", "refusal", "quota"))


class Failure(NamedTuple):
    """One attempt that did not succeed. ``message`` is as raised: redact it before storing it."""

    code: str
    message: str
    kind: Kind
    retriable: bool
    phase: Phase
    status: int | None = None
    retry_after_ms: int | None = None
    exception: str = ""
    """Qualified name of the exception's class."""
    unclassified: bool = False
    """On no list: terminal unless the tool's list says otherwise, and to be logged (R7)."""
    still_running: bool = False
    """The attempt timed out but its thread could not be stopped (R8)."""
    before_effect: bool = False
    """The tool had not reached its point of no return, and never will (D40)."""

    @property
    def certainly_no_effect(self) -> bool:
        """Whether even a tool that is not idempotent may be retried (D5)."""
        if self.before_effect:
            return True
        if self.phase == "sent":
            return False
        if self.code in NO_EFFECT_CODES or self.status == 429:
            return True
        return self.status == 503 and self.retry_after_ms is not None

    @property
    def definite(self) -> bool:
        """Whether the other side (or a check before it) clearly said no (D5)."""
        if self.kind not in _DEFINITE:
            return self.before_effect or self.code in LOCAL_CODES
        return self.status is None or (400 <= self.status < 500 and self.status not in UNSURE_4XX)

    @property
    def may_have_applied(self) -> bool:
        """Whether this attempt may have had an effect (D3)."""
        return not (self.certainly_no_effect or self.definite)

    @property
    def breaker_vote(self) -> Vote:
        """What this attempt says about the dependency (D8).

        A completed round trip with a definite answer (404, 422, a spent quota) is a sign of health, hence
        ``success``; what never reached the dependency or cannot be read is no vote at all.
        """
        if self.code in LOCAL_CODES:
            return "none"
        if self.kind == "quota":
            return "success"
        if self.kind == "answer" and self.status is None:
            return "success" if self.phase == "answered" else "none"
        if self.code == "rate_limited" or self.status == 429:
            return "rate_only"
        if self.retriable or self.kind in ("transport", "timeout") or self.status in RETRIABLE_STATUSES:
            return "failure"
        return "success" if self.status is not None and self.definite else "none"


def timed_out(seconds: float, *, still_running: bool = False) -> Failure:
    """The failure of an attempt that exceeded our own time limit of *seconds*."""
    return Failure(
        "ETIMEDOUT",
        f"The attempt did not finish within {seconds:g} s.",
        "timeout",
        True,
        "sent",
        exception="antiphon.TimedOut",
        still_running=still_running,
    )
