"""What a failure of PostgreSQL means: did the statement take effect, may it be tried again, what to tell people."""

from __future__ import annotations

from enum import Enum
from typing import Any

import psycopg

from antiphon.errors import ConfigError, StoreError, StoreUnavailable

_SETTING = "`[store] url` (or `log`, `claims`)"
_REDO = frozenset({"40001", "40P01"})
_REFUSED = (
    "authentication failed",
    "no password supplied",
    "no pg_hba.conf entry",
    "role ",
    "certificate",
    "SCRAM",
    "peer authentication",
)


class Fate(Enum):
    """What became of a statement that raised."""

    REDO = "certainly not done; do it again"
    LOST = "the connection broke, nobody knows"
    STALE = "this connection leads to a server that takes no writes; another one may not"
    FAILED = "certainly not done, and trying again would not help"


class Unreachable(StoreUnavailable):
    """No connection could be made; one may be possible a moment later."""


class AnswerLost(Exception):
    """The connection broke after a statement was sent: it may or may not have taken effect."""

    def __init__(self, reason: StoreUnavailable, session: Any) -> None:
        super().__init__(str(reason))
        self.reason = reason
        self.session = session
        """The server process that may still run the statement, if known."""


def fate_of(error: Exception, *, connected: bool, idle: bool) -> Fate:
    """Judge by the server's code first, then by what became of the connection."""
    state = _code(error)
    if state in _REDO:
        return Fate.REDO
    if state == "25006":
        return Fate.STALE
    # A server that goes down may say so after it has committed, so its goodbye proves nothing.
    if not connected or state.startswith(("57P", "08")) or (not state and not idle):
        return Fate.LOST
    return Fate.FAILED


def cannot_connect(error: Exception, url: str) -> Unreachable | ConfigError:
    """The one sentence for a server that did not let us in."""
    if isinstance(error, psycopg.ProgrammingError):  # its text quotes the address, password included
        return ConfigError(
            "The address of the PostgreSQL server cannot be read.",
            path="store",
            hint=f"Write {_SETTING} as postgresql://user:password@host:port/database.",
        )
    said = _first_line(error)
    if any(word in said for word in _REFUSED):
        return Unreachable(
            f"PostgreSQL at {url} refused the login: {said}",
            hint=f"Check user, password and TLS options in {_SETTING}. Nothing was written.",
        )
    return Unreachable(
        f"PostgreSQL at {url} cannot be reached: {said}",
        hint=f"Check host, port and database in {_SETTING}, and that the server runs. Nothing was written.",
    )


def connection_lost(error: Exception, url: str) -> Unreachable:
    """For a connection that broke under a statement."""
    return Unreachable(
        f"The connection to PostgreSQL at {url} broke: {_first_line(error)}",
        hint="The statement may or may not have taken effect.",
    )


def all_lost(url: str) -> Unreachable:
    """For a pool whose connections all broke and could not be replaced."""
    return Unreachable(
        f"All connections to PostgreSQL at {url} broke.",
        hint=f"Check that the server in {_SETTING} runs. Nothing was written.",
    )


def no_free_connection(size: int, seconds: float) -> StoreUnavailable:
    """For a pool that stayed empty."""
    return StoreUnavailable(
        f"All {size} connections to PostgreSQL stayed busy for {seconds:g} s.",
        hint="Give PostgresStore more max_connections, or make fewer calls at once. Nothing was written.",
    )


def closed() -> StoreUnavailable:
    """For a journal used after its end."""
    return StoreUnavailable("This journal is closed.", hint="Open another one with store.open_sync() or open_async().")


def refused(error: Exception, url: str, statement: str) -> StoreError:
    """For a statement that certainly was not carried out."""
    state = _code(error)
    said = _first_line(error)
    if state == "25006":
        text, hint = "is read-only", f"Point {_SETTING} to the primary, or add target_session_attrs=read-write."
    elif state in ("53100", "53200", "53300", "53400", "54000"):
        text, hint = f"is full: {said}", f"Free space or connections on the server that {_SETTING} names."
    elif state in ("55P03", "57014"):
        text, hint = f"did not finish in time: {said}", "Look for long transactions on the antiphon tables."
    elif state == "42501":
        text, hint = f"denies access: {said}", f"Grant the role in {_SETTING} its rights, or migrate as the owner."
    elif state in ("3F000", "42P01", "42703"):
        text, hint = f"lacks tables of the store: {said}", "Apply the migrations: PostgresStore(dsn).migrate()."
    else:
        return StoreError(f"PostgreSQL at {url} refused the statement '{statement}' ({state or 'no code'}): {said}")
    return StoreUnavailable(f"PostgreSQL at {url} {text}.", hint=f"{hint} Nothing was written.")


def _code(error: Exception) -> str:
    return getattr(error, "sqlstate", None) or ""


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
