"""Planted bugs in the PostgreSQL store: for each guarantee one, and the rule that must catch it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import pytest

from antiphon.stores import PostgresStore
from antiphon.stores.postgres.statements import Statement, statements
from antiphon.testing.journal_conformance import JournalConformance
from tests.integration.stores.postgres_kit import look


class Mutant(NamedTuple):
    """Each old text becomes its new one in the statements; *rule* must notice."""

    bug: str
    statements: tuple[str, ...]
    rule: str
    changes: dict[str, str]


ANY_VERSION = {"AND c.version = $": "AND c.version >= 0 * $"}
MUTANTS = [
    Mutant(
        "begin replaces a live record",
        ("begin_bare",),
        "one_of_many_begins",
        {"WHERE c.expires_at_ms <= excluded.updated_at_ms AND c.state <> 'inflight'": ""},
    ),
    Mutant(
        "take ignores the version",
        ("take_over_bare",),
        "one_of_many_takes",
        {
            "AS mine": "OR true AS mine",
            "OR (c.expires_at_ms <= excluded.updated_at_ms AND": "OR (0 < excluded.version OR",
        },
    ),
    Mutant("settle ignores the version", ("settle", "settle_bare"), "settle_is_fenced_after_takeover", ANY_VERSION),
    Mutant(
        "a settle reaches every earlier execution",
        ("settle_earlier",),
        "settle_is_fenced_after_takeover",
        {"AND ((": "OR (("},
    ),
    Mutant(
        "expired executions are listed",
        ("earlier",),
        "earlier_executions_are_listed",
        {"AND c.expires_at_ms > clock.ms": ""},
    ),
    Mutant(
        "a fenced settle loses its events",
        ("settle",),
        "settle_is_fenced_after_takeover",
        {"SELECT count(*) FROM ended": "SELECT FROM ended"},
    ),
    Mutant(
        "a lost begin logs all the same", ("begin",), "events_come_with_the_claim", {"(SELECT FROM won)": "(SELECT)"}
    ),
    Mutant("anyone may renew", ("renew",), "only_the_holder_renews", ANY_VERSION),
    Mutant("a settled claim is renewed", ("renew",), "only_the_holder_renews", {"AND c.state = 'inflight'": ""}),
    Mutant("a replaced execution is forgotten", ("take_over_bare",), "alias", {"c.live AND allowed.mine": "false"}),
    Mutant("an alias points nowhere", ("alias",), "alias", {"c.workspace, c.fence,": "c.workspace, c.fence + 1,"}),
    Mutant("a claim in flight is shared", ("alias",), "alias", {"AND state <> 'inflight'": ""}),
    Mutant(
        "who shared a result runs all the same",
        ("take_over_bare",),
        "an_identity_has_one_answer",
        {"SELECT due.mine AND (": "SELECT due.mine AND (true OR "},
    ),
    Mutant(
        "sharing and running do not wait for each other",
        ("alias",),
        "sharing_and_running_exclude_each_other",
        {"WHERE i.fence = excluded.fence OR (": "WHERE true OR ("},
    ),
    Mutant(
        "a result makes room for another",
        ("alias",),
        "an_identity_has_one_answer",
        {"i.fence < excluded.fence AND NOT (": "i.fence < excluded.fence OR NOT ("},
    ),
    Mutant(
        "a claim in flight expires",
        ("settle_bare",),
        "a_claim_in_flight_does_not_expire",
        {"OR c.state = 'inflight'": ""},
    ),
    Mutant(
        "a claim in flight that expired is replaced",
        ("begin_bare",),
        "a_claim_in_flight_does_not_expire",
        {"OR c.state = 'inflight'": "", "updated_at_ms AND c.state <> 'inflight'": "updated_at_ms"},
    ),
    Mutant(
        "a claim in flight is swept at first sight",
        ("sweep_claims",),
        "an_abandoned_claim_is_forgotten",
        {"c.state = 'inflight' AND c.expires_at_ms <=": "false AND c.expires_at_ms <="},
    ),
    Mutant(
        "a claim in flight is never swept",
        ("sweep_claims",),
        "an_abandoned_claim_is_forgotten",
        {"c.state = 'inflight' AND c.expires_at_ms <= greatest": "c.state = 'inflight' OR 0 > greatest"},
    ),
    Mutant("nobody is told", ("settle_bare",), "settle_wakes_all_waiters", {"WHEN c.waited": "WHEN false"}),
    Mutant(
        "nobody asks to be told", ("watch",), "settle_wakes_all_waiters", {"SET waited = true": "SET waited = false"}
    ),
    Mutant(
        "the sweep takes what lives",
        ("sweep_claims",),
        "lapsed_lease_is_still_seen",
        {"<= (SELECT ms FROM clock)": "> 0", "<= (SELECT ms / 60000 FROM clock)": "> 0"},
    ),
    Mutant("numbers start at one", ("append",), "event_ranges", {"l.n - 1": "l.n"}),
    Mutant(
        "an old epoch wins",
        ("save_breaker",),
        "breakers_keep_the_newest_epoch",
        {"WHERE b.epoch <= excluded.epoch": ""},
    ),
    Mutant(
        "tenants see each other",
        ("list",),
        "tenants_do_not_see_each_other",
        {"c.tenant = $1 AND": "$1::text IS NOT NULL AND"},
    ),
    Mutant(
        "a cursor is looked up among all tenants",
        ("list",),
        "a_list_goes_on_whatever_happened",
        {
            "AND (c.fence, c.key) < ($6, $7)": "AND c.fence < $6"
            " AND ($7 = '' OR EXISTS (SELECT FROM antiphon.claims WHERE key = $7))"
        },
    ),
]


@pytest.fixture
def schema(postgres_dsn: str, unique: str) -> Iterator[str]:
    yield unique
    look(postgres_dsn, f"DROP SCHEMA IF EXISTS {unique} CASCADE")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.bug)
def test_a_planted_bug_is_caught(
    mutant: Mutant, postgres_dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        JournalConformance(partial(PostgresStore, postgres_dsn, schema=schema)).check(mutant.rule)

    check()
    check()
    sound = dict(statements(schema))
    for name in mutant.statements:
        text = sound[name].text
        for old, new in mutant.changes.items():
            assert old in text, f"{name} has no {old!r} any more"
            text = text.replace(old, new.replace("antiphon.", f'"{schema}".'))
        sound[name] = Statement(name, text, sound[name].names)
    monkeypatch.setattr("antiphon.stores.postgres.connection.statements", lambda _: sound)
    monkeypatch.setattr("antiphon.testing.journal_conformance.PATIENCE_S", 3.0)  # nobody comes; why wait longer

    def check_often() -> None:
        for _ in range(200):  # a race shows its bug only now and then
            check()

    with pytest.raises(AssertionError):
        check_often()
