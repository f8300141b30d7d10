"""R6, D3: claims on Redis and the run log on PostgreSQL, by configuration, through crashes at the worst moments."""

from __future__ import annotations

import os
import signal
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.errors import OutcomeUnknown, StoreUnavailable
from antiphon.ops.doctor import examine
from antiphon.ports import SyncJournal
from antiphon.stores import ComposedStore
from tests.faults.fleet_kit import Effects, Tampered, Worker


@pytest.fixture
def config(valkey_url: str, postgres_database: str, unique: str, tmp_path: Path) -> Path:
    file = tmp_path / "antiphon.toml"
    claims, log = f"{valkey_url}?antiphon_prefix={unique}", postgres_database
    file.write_text(f'[store]\nclaims = "{claims}"\nlog = "{log}"\n')
    return file


def _application(config: Path, effects: Effects) -> tuple[antiphon.Antiphon, Any]:
    app = antiphon.Antiphon(config=config)

    @app.gateway.tool(idempotent=False)
    def charge(order: str) -> dict[str, str]:
        effects.add(f"charge:{order}")
        if order == "dies inside":
            os.kill(os.getpid(), signal.SIGKILL)
        return {"receipt": f"for {order}"}

    return app, charge


def _doomed(config: Path, effects: Effects, order: str, pipe: Connection) -> None:
    """A run whose process is killed: inside the tool, or between the outcome's event and the settled claim."""
    app, charge = _application(config, effects)
    settled: list[str] = []

    def settle(journal: SyncJournal, key: str, *arguments: Any) -> Any:
        settled.append(key)
        if len(settled) == 2 and order == "dies before settling":
            os.kill(os.getpid(), signal.SIGKILL)
        return journal.settle(key, *arguments)

    assert isinstance(app.store, ComposedStore)
    app.store.claims = Tampered(app.store.claims, settle=settle)
    with app.run("orders") as run:
        charge("first")
        pipe.send(run.id)
        charge(order)


def _crash(config: Path, effects: Effects, order: str) -> str:
    worker = Worker(_doomed, config, effects, order)
    run_id = worker.hear()
    worker.process.join(60)
    assert worker.process.exitcode == -signal.SIGKILL
    assert isinstance(run_id, str)
    return run_id


def test_the_configuration_composes_two_stores(config: Path, effects: Effects) -> None:
    app, charge = _application(config, effects)
    assert isinstance(app.store, ComposedStore)
    assert app.store.url.startswith("redis://")
    assert " + postgresql://" in app.store.url
    with app.run("orders") as run:
        assert charge("a") == {"receipt": "for a"}
    events = app.journal.events(run.id)
    assert [event.type for event in events if event.type.startswith("call.")] == ["call.started", "call.finished"]
    (record,) = app.journal.list(tenant="default")
    assert record.state == "done"
    facts = app.journal.ping()
    assert (facts["claims"]["store"], facts["log"]["store"]) == ("redis", "postgres")


def test_an_outcome_without_a_settled_claim_is_repaired_from_the_log(config: Path, effects: Effects) -> None:
    run_id = _crash(config, effects, "dies before settling")
    app, charge = _application(config, effects)
    with app.run("orders", resume=run_id):
        assert charge("first") == {"receipt": "for first"}
        assert charge("dies before settling") == {"receipt": "for dies before settling"}
    assert effects.file.read_text().splitlines() == ["charge:first", "charge:dies before settling"], "nothing ran twice"
    states = {record.state for record in app.journal.list(tenant="default")}
    assert states == {"done"}


def test_a_start_without_an_outcome_is_an_unknown(config: Path, effects: Effects) -> None:
    run_id = _crash(config, effects, "dies inside")
    app, charge = _application(config, effects)
    with app.run("orders", resume=run_id):
        assert charge("first") == {"receipt": "for first"}
        with pytest.raises(OutcomeUnknown):
            charge("dies inside")
    assert effects.file.read_text().splitlines() == ["charge:first", "charge:dies inside"], "nothing ran twice"


def test_without_the_log_nothing_is_dispatched(config: Path, effects: Effects) -> None:
    """A run that cannot be written fails closed, and its claim is given back."""
    app, charge = _application(config, effects)
    gone = False

    def append(journal: SyncJournal, *arguments: Any) -> int:
        if gone:
            raise StoreUnavailable("The log is gone.")
        return journal.append(*arguments)

    assert isinstance(app.store, ComposedStore)
    app.store.log = Tampered(app.store.log, append=append)
    with app.run("orders"):
        charge("a")
        gone = True
        with pytest.raises(antiphon.AntiphonError, match="not made"):
            charge("b")
        gone = False
        assert charge("b") == {"receipt": "for b"}
    assert effects.file.read_text().splitlines() == ["charge:a", "charge:b"]


def test_doctor_tells_that_only_the_log_is_shared(
    postgres_database: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "state"))
    (told,) = [one for one in examine(antiphon.Antiphon({"store": {"log": postgres_database}})) if _is_of_claims(one)]
    assert told["level"] == "warning"
    assert "[store] url" in told["hint"]
    assert not any(_is_of_claims(one) for one in examine(antiphon.Antiphon(config)))
    assert not any(_is_of_claims(one) for one in examine(antiphon.Antiphon({"store": {"url": postgres_database}})))


def _is_of_claims(finding: dict[str, Any]) -> bool:
    return finding["check"] == "store" and "claims are in a file of this machine" in finding["message"]
