"""What went wrong between the store and its Redis, in words."""

from __future__ import annotations

from typing import Any, Final

from antiphon.errors import StoreError, StoreUnavailable
from antiphon.stores.redis.url import Target

TRANSIENT: Final = ("LOADING", "TRYAGAIN", "CLUSTERDOWN", "MASTERDOWN", "BUSY ", "READONLY", "NOREPLICAS")
"""Replies that a fail-over, a start or a moved slot makes go away: the command is retried."""

_TOO_FEW_RIGHTS: Final = (
    "does not allow this user what the store needs",
    "The rules it takes are in docs/how-to/run-a-fleet-redis.md.",
)
_MEANING: Final = {
    "NOAUTH": ("asks for a password", "Put user and password into the URL."),
    "WRONGPASS": ("refused user or password", "Check user and password in the URL."),
    "ERR invalid password": ("refused the password", "Check the password in the URL."),
    "ERR AUTH": ("does not want a password", "Take the password out of the URL."),
    "NOPERM": _TOO_FEW_RIGHTS,
    "ERR ACL failure": _TOO_FEW_RIGHTS,
    "READONLY": ("is a read-only replica", "Give the address of the primary, or of the Sentinels."),
    "OOM": ("is full (maxmemory)", "Raise maxmemory; the policy must stay noeviction."),
    "MISCONF": ("refuses writes because it cannot write its snapshot", "Look at the server's log and disk."),
    "LOADING": ("is still loading its data", "Try again in a moment."),
    "CLUSTERDOWN": ("is a Cluster that is down", "Look at CLUSTER INFO."),
    "MASTERDOWN": ("has lost its primary", "Look at the replication state."),
    "NOREPLICAS": ("has too few replicas to accept writes", "Look at the replication state."),
    "BUSY ": ("is busy with a script", "Look for slow scripts of others."),
    "ERR DB index": ("does not have this database", "Check the number after the host in the URL."),
    "ERR unknown command": ("does not know a command this store needs", "It takes Redis 6.2 or newer, or Valkey."),
}


def reply_text(error: Exception) -> str:
    """An error reply as the server sent it: redis-py takes its code off."""
    code = getattr(error, "status_code", None)
    return f"{code} {error}" if code else str(error)


def refused(target: Target, error: Exception) -> StoreUnavailable:
    """An error reply in words: what it means, which setting to look at."""
    text = reply_text(error)
    for start, (meaning, hint) in _MEANING.items():
        if text.startswith(start) or f" -{start}" in text:  # inside a script, older servers put words before it
            return _unavailable(target, meaning, f"{hint} Look at {target.setting}.", reply=text[:200])
    return _unavailable(target, f"answered: {text[:200]}", f"Look at {target.setting}.", reply=text[:200])


def unreachable(target: Target, error: BaseException) -> StoreUnavailable:
    """The network's error in words."""
    why = f"{error.__class__.__name__}: {error}"
    return _unavailable(target, f"cannot be reached ({why})", f"Is it running, and is {target.setting} right?")


def closed() -> StoreUnavailable:
    """For whoever uses a journal after its end."""
    return StoreUnavailable("The store was closed.", hint="Open it again.")


def _unavailable(target: Target, what: str, hint: str, **data: Any) -> StoreUnavailable:
    return StoreUnavailable(f"The Redis at {target.safe_url} {what}.", hint=hint, store="redis", **data)


def fresh(error: Exception) -> Exception:
    """The same error for another caller: an exception object belongs to one traceback."""
    if isinstance(error, StoreError):
        return type(error)(error.message, hint=error.hint, code=error.code, **error.data)
    return error
