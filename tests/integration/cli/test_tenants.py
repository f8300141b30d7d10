"""Operators see the claims and approvals of every tenant of a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import antiphon
from antiphon.cli import main
from antiphon.errors import ApprovalRequired


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """One call of tenant acme whose outcome is unknown, and one that waits for approval."""
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "state"))
    url = f"sqlite:///{tmp_path / 's.db'}"
    gateway = antiphon.Gateway(store=url, tenant="acme")

    @gateway.tool(idempotent=False, key="order")
    def charge(order: str) -> None:
        raise RuntimeError("no answer")

    @gateway.tool(idempotent=False, key="order", approve="always")
    def refund(order: str) -> None: ...

    with pytest.raises(RuntimeError):
        charge("A-1")
    with pytest.raises(ApprovalRequired):
        refund("A-1")
    gateway.close()
    return url


def test_unknown_outcomes_of_other_tenants_are_found_and_settled(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def antiphon(*words: str) -> str:
        assert main([*words, "--store", store]) == 0
        return capsys.readouterr().out

    said = antiphon("doctor")
    assert "1 outcome unknown (tools/charge: 1; by tenant acme: 1)" in said
    assert "antiphon claims list --state unknown --tenant TENANT" in said
    said = antiphon("claims", "list", "--state", "unknown")
    assert said.startswith("No claims of tenant default. Looked in ")
    assert said.endswith("These tenants have some (--tenant): acme.\n")
    assert "approval waiting" in antiphon("claims", "list", "--tenant", "acme")
    assert antiphon("claims", "list", "--state", "done").startswith("No claims. Looked in ")
    assert "antiphon claims resolve CLAIM --tenant acme" in antiphon("claims", "list", "--tenant", "acme")
    (claim,) = json.loads(antiphon("claims", "--state", "unknown", "--tenant", "acme", "--json"))["claims"]
    antiphon("claims", "resolve", claim["fingerprint"], "--did-not-happen", "--tenant", "acme")
    assert "none unknown" in antiphon("doctor")


def test_approvals_of_other_tenants(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    def antiphon(*words: str) -> str:
        assert main(["approvals", *words, "--store", store]) == 0
        return capsys.readouterr().out

    assert antiphon().startswith("No approvals of tenant default waiting. Looked in ")
    assert antiphon().endswith("These tenants have some (--tenant): acme.\n")
    assert antiphon("--state", "denied").startswith("No approvals denied. Looked in ")
    (waiting,) = json.loads(antiphon("--tenant", "acme", "--json"))["approvals"]
    assert "approved" in antiphon("approve", waiting["id"], "--as", "grace", "--tenant", "acme")
    assert antiphon("--tenant", "acme").startswith("No approvals of tenant acme waiting. Looked in ")
