"""What a running tool may know about its own call."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, NamedTuple


class CallContext(NamedTuple):
    """Offered to a tool that has a parameter of this type, so that a downstream API can dedupe too.

    >>> def charge(amount: int, ctx: CallContext) -> str: ...
    """

    tool: str
    idempotency_key: str
    """Stable for the intent: forward it as the provider's idempotency key."""
    fence: int
    """Grows with every dispatch of the intent: a sink can refuse an older one."""
    deadline: float | None
    """End of the call as ``time.time()`` seconds."""
    attempt: int
    request_id: str
    call_id: str | None
    session: str
    actor: str


Held = tuple[str, Any]
"""The claims held by the calls around this one, innermost first: a key, and what is held further out (or ``None``)."""

held: ContextVar[Held | None] = ContextVar("antiphon_held", default=None)
running: ContextVar[CallContext | None] = ContextVar("antiphon_call", default=None)


def is_held(key: str) -> bool:
    """Whether a call around this one holds the claim on *key* (D33)."""
    link = held.get()
    while link is not None:
        if link[0] == key:
            return True
        link = link[1]
    return False


def current_call() -> CallContext | None:
    """The call whose tool is running here."""
    return running.get()
