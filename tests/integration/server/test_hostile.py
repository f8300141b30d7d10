"""Hostile documents in every place where a host takes one; ``make bench ONLY=hostile`` runs all thousand."""

from __future__ import annotations

from bench.hostile import KINDS, campaign, document


def test_documents_are_the_same_every_time() -> None:
    assert {document(number).kind for number in range(len(KINDS))} == set(KINDS)
    for number in range(100):
        assert document(number).raw == document(number).raw


def test_a_host_survives_and_serves_its_other_tenant() -> None:
    found = campaign(2 * len(KINDS), least=10)
    assert found.problems == []
    assert found.restarts == 0
    assert len(found.attacked) >= 1
    assert found.statuses.keys() <= {"2xx", "4xx"}
