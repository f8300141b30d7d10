"""A run log on a server does not make claims shared: who names only the log is told so, once."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import antiphon

SERVERS = ("postgresql://db.example/agents", "redis://cache.example:6379/0")


def _said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.name == "antiphon.config"]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "state"))
    caplog.set_level(logging.WARNING, "antiphon.config")


@pytest.mark.parametrize("server", SERVERS)
def test_only_the_log_on_a_server_is_warned_of_once(
    server: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        antiphon.Antiphon({"store": {"log": server}})
    (said,) = _said(caplog)
    assert "claims are in a file of this machine" in said
    assert str(tmp_path / "state" / "antiphon.db") in said
    assert "[store] url instead of log" in said


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("also", [{"claims": SERVERS[1]}, {"url": SERVERS[0]}, {"claims": "sqlite:///mine.db"}])
def test_claims_with_a_place_of_their_own_are_no_news(
    server: str, also: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    antiphon.Antiphon({"store": {"log": server, **also}})
    antiphon.Antiphon({"store": {"url": server}})
    antiphon.Antiphon({"store": {"log": "sqlite:///runs.db"}})
    assert _said(caplog) == []
