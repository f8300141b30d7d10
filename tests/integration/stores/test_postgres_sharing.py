"""D2: sharing a result and running a call exclude each other on PostgreSQL, also where both statements overlap.

A statement sees the other tables as they were when it began. That it had to wait for another one does not change that:
only the row both write, that of the call identity, is seen as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from antiphon.ports import Claimed, Existing, SyncJournal
from antiphon.stores import PostgresStore
from antiphon.stores.postgres.statements import claim_params, new_op, statements
from tests.integration.stores.postgres_kit import done, eventually, look, request_for

WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def journal(postgres_database: str) -> Iterator[SyncJournal]:
    journal = PostgresStore(postgres_database).open_sync()
    yield journal
    journal.close()


@contextmanager
def not_committed(dsn: str, name: str, params: dict[str, Any]) -> Iterator[None]:
    """A statement of the store that has been executed, and is committed at the end of the block."""
    statement = statements("antiphon")[name]
    with psycopg.connect(dsn, cursor_factory=psycopg.RawCursor) as connection:
        assert connection.execute(statement.text.encode(), statement.values(params)).fetchall()
        yield


def finished(journal: SyncJournal) -> int:
    """A call of another identity that is done: the version of its record."""
    held = journal.begin(request_for("k", "other"))
    assert isinstance(held, Claimed)
    settled = journal.settle("k", held.version, done())
    assert settled is not None
    return settled


def test_who_runs_waits_for_who_is_just_sharing_and_then_shares(postgres_database: str, journal: SyncJournal) -> None:
    version = finished(journal)
    shares = {"key": "k", "identity": "mine", "version": version}
    with ThreadPoolExecutor(1) as pool:
        with not_committed(postgres_database, "alias", shares):
            runs = pool.submit(lambda: journal.take_over(request_for("k", "mine"), version))
            eventually(lambda: look(postgres_database, WAITING))
            assert not runs.done()
        answer = runs.result(20)
    assert isinstance(answer, Existing)
    assert answer.own is not None
    assert (answer.current.version, answer.own.version) == (version, version)


def test_who_shares_waits_for_who_just_begins_to_run_and_then_does_not(
    postgres_database: str, journal: SyncJournal
) -> None:
    version = finished(journal)
    runs = {**claim_params(request_for("k", "mine"), new_op()), "version": version, "channel": "c"}
    with ThreadPoolExecutor(1) as pool:
        with not_committed(postgres_database, "take_over_bare", runs):
            shares = pool.submit(lambda: journal.alias("k", "mine", version))
            eventually(lambda: look(postgres_database, WAITING))
            assert not shares.done()
        assert shares.result(20) is False
    found = journal.read("k", "mine")
    assert found is not None
    assert found.own == found.current
    assert found.current.state == "inflight"
