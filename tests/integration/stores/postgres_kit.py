"""What the tests of the PostgreSQL store share: claim requests, rows, and a look into the tables."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import psycopg

from antiphon.ports import ClaimTemplate, Row, Settlement, StaticClaimRequest, SyncJournal


def request_for(
    key: str, identity: str = "a", *, token: str = "", idempotency_key: str = "computed", **template: Any
) -> StaticClaimRequest:
    """A request for the claim on *key*."""
    shared: dict[str, Any] = {
        "tool": "tools/send",
        "session": "s1",
        "actor": "actor",
        "ttl_ms": 60_000,
        "lease_ms": 30_000,
        "owner": "test",
    }
    return StaticClaimRequest(
        key=key,
        identity=identity,
        template=ClaimTemplate(**(shared | template)),
        idempotency_key=idempotency_key,
        params=("d" * 64, "e" * 64),
        request_id=f"request-{identity}",
        token=token or secrets.token_hex(4),
    )


def row(run: str, kind: str = "call.started", n: int = 0) -> Row:
    return Row(run, kind, 1_000 + n, b'{"lane":"0","index":%d,"payload":{"n":%d}}' % (n, n))


def done(value: bytes = b'{"ok": true}', ttl_ms: int = 60_000) -> Settlement:
    return Settlement("done", ttl_ms, payload=value, attempt_count=1)


def look(dsn: str, sql: str, *values: object) -> list[tuple[Any, ...]]:
    """Rows of a query on a connection of its own."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        cursor = connection.execute(cast("Any", sql), values or None)
        return cursor.fetchall() if cursor.description else []


def eventually(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Wait for *what* to be true."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")


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


def seqs(journal: SyncJournal, run: str) -> Sequence[int]:
    found: list[int] = []
    while events := journal.events(run, start=len(found), limit=500):
        found.extend(event.seq for event in events)
    return found
