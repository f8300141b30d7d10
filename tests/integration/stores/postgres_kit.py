"""What the tests of the PostgreSQL store share: asks, rows, and a look into the tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import psycopg

from antiphon._drive import drive
from antiphon.contract.record import RecordedRequest
from antiphon.ports import Ask, Final, Journal, Row
from antiphon.stores import PostgresStore
from antiphon.stores._postgres_journal import PostgresJournal

Query = Callable[..., list[tuple[Any, ...]]]
Start = Callable[[str], Journal]
"""``start("sync")`` or ``start("async")``: a journal of that face."""


def ask(key: str, identity: str = "a", *, ttl_ms: int = 60_000, lease_ms: int = 30_000, **changes: Any) -> Ask:
    request = RecordedRequest(
        session_key=changes.pop("session", "s1"),
        actor_id="actor",
        request_id=f"request-{identity}",
        params_digest="digest",
        identity=identity,
    )
    values: dict[str, Any] = {
        "tool": "tools/send",
        "idempotency_key": "computed",
        "owner": "test",
        "tenant": "default",
        "workspace": "default",
    }
    return Ask(key=key, identity=identity, request=request, ttl_ms=ttl_ms, lease_ms=lease_ms, **{**values, **changes})


def row(run: str, kind: str = "call.started", n: int = 0) -> Row:
    return Row(run, kind, 1_000 + n, b'{"lane":"0","index":%d,"payload":{"n":%d}}' % (n, n))


def done(value: bytes = b'{"ok": true}', ttl_ms: int = 60_000) -> Final:
    return Final("done", ttl_ms, payload=value, attempt_count=1)


def look(dsn: str, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Rows of a query on a connection of its own."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(cast("Any", sql), values or None)
        return cursor.fetchall() if cursor.description else []


def eventually(what: Callable[[], Any], seconds: float = 10.0) -> Any:
    """Wait for *what* to be true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")


def opened(store: PostgresStore) -> PostgresJournal:
    journal = store.open_sync()
    assert isinstance(journal, PostgresJournal)
    return journal


class Background:
    """A call on a thread of its own, with its result or error."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(work,), daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[], Any]) -> None:
        try:
            self._result = work()
        except BaseException as error:
            self._error = error

    def result(self, timeout: float = 30.0) -> Any:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "it hangs"
        if self._error is not None:
            raise self._error
        return self._result


def seqs(journal: Journal, run: str) -> Sequence[int]:
    found: list[int] = []
    while events := drive(journal.events(run, start=len(found), limit=500)):
        found.extend(event.seq for event in events)
    return found
