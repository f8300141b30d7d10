"""The PostgreSQL store keeps every rule of the conformance suite, in both faces and across processes (R6, D2)."""

from __future__ import annotations

from functools import partial

import pytest

from antiphon.stores import PostgresStore
from antiphon.testing.journal_conformance import FACES, Face, JournalConformance
from tests.integration.stores.postgres_kit import look

RULES = JournalConformance.rules(across_processes=True, newer_records=True)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("rule", RULES)
def test_conformance(rule: str, face: Face, postgres_dsn: str, unique: str) -> None:
    def make_newer(key: str) -> None:
        look(postgres_dsn, f"UPDATE {unique}.claims SET v = 99 WHERE key = %s", key)

    make = partial(PostgresStore, postgres_dsn, schema=unique)
    try:
        JournalConformance(make, face, make_newer=make_newer).check(rule)
    finally:
        look(postgres_dsn, f"DROP SCHEMA IF EXISTS {unique} CASCADE")
