"""D36: what is masked in a run is masked in every channel, by the same mask, and originals are shown on demand only."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import antiphon
from antiphon.redact import Redactor
from antiphon.stores import SQLiteStore
from antiphon.telemetry.otel import OtelListener

AGENT = """
import antiphon

gateway = antiphon.Antiphon().gateway


@gateway.tool(idempotent=False)
def pay(recipient: str, note: str) -> dict:
    return {"paid": recipient, "contact": "bob.builder@example.org"}


@gateway.tool(idempotent=True)
def fails(recipient: str) -> str:
    raise ValueError(f"no account {recipient}")


@antiphon.agent
def main(text):
    mail = text.split()[-1]
    found = pay(recipient="DE89370400440532013000", note=f"for {mail}, password=Tr0ub4dor-77x")
    try:
        fails(recipient="DE89370400440532013000")
    except ValueError:
        pass
    return f"{found['paid']} {mail}"
"""
RAW = ("DE8937040044", "0532013000", "ada.lovelace@", "bob.builder@", "Tr0ub4dor")


def run(folder: Path, *words: str, expect: int | None = 0) -> str:
    env = {**os.environ, "ANTIPHON_HOME": str(folder / "state")}
    command = [sys.executable, "-m", "antiphon.cli", *words]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=env, check=False)
    assert expect is None or made.returncode == expect, made.stderr
    return made.stdout + made.stderr


def test_every_channel_of_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "other.py").write_text(AGENT.replace("DE89370400440532013000", "GB29NWBK60161331926819"))
    run(tmp_path, "run", "agent.py:main", "--input", '"mail ada.lovelace@example.com"', "--json")
    channels = {
        "runs": run(tmp_path, "runs", "--json"),
        "show": run(tmp_path, "show", "--latest", "--json"),
        "event": run(tmp_path, "show", "--latest", "--event", "1"),
        "page": run(tmp_path, "show", "--latest", "--html", "run.html") + (tmp_path / "run.html").read_text(),
        "replay": run(tmp_path, "replay", "--latest", "--strict", "--json"),
        "changed": run(
            tmp_path, "replay", "--latest", "--strict", "--entry", "other.py:main", "--html", "r.html", expect=1
        )
        + (tmp_path / "r.html").read_text(),
        "export": run(tmp_path, "export", "--latest", "-o", "g.antiphon") + (tmp_path / "g.antiphon").read_text(),
        "diff": run(tmp_path, "diff", "latest", "g.antiphon", "--json", expect=None),
        "doctor": run(tmp_path, "doctor", expect=None),
    }
    for name, text in channels.items():
        assert not [raw for raw in (*RAW, "60161331926819") if raw in text], name
    data = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert not [raw for raw in RAW if raw.encode() in data]
    event = json.loads(channels["event"])
    mask = event["payload"]["arguments"]["recipient"]
    assert mask.startswith("[iban:")
    assert mask in channels["changed"], "the same value has the same mask everywhere"
    revealed = run(tmp_path, "show", "--latest", "--event", "1", "--reveal")
    assert "DE89370400440532013000" in revealed
    assert '"reveal"' in run(tmp_path, "show", "audit-default", "--event", "0", expect=None)


def test_logs_metrics_and_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path))
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logging.getLogger("antiphon").addHandler(handler)
    level = logging.getLogger("antiphon").level
    logging.getLogger("antiphon").setLevel(logging.DEBUG)
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    app = antiphon.Antiphon(store=SQLiteStore(tmp_path / "a.db"))
    app.gateway.listen(OtelListener(provider, redactor=Redactor(salt="any"), metrics=False))

    @app.gateway.tool(idempotent=True)
    def fails(recipient: str) -> str:
        raise ValueError(f"no account {recipient} of ada.lovelace@example.com, password=Tr0ub4dor-77x")

    try:
        with app.run("r", session="ada.lovelace@example.com"), pytest.raises(ValueError, match="no account"):
            fails(recipient="DE89370400440532013000")
    finally:
        logging.getLogger("antiphon").removeHandler(handler)
        logging.getLogger("antiphon").setLevel(level)
    told: dict[str, Any] = {
        "logs": written.getvalue(),
        "spans": "".join(span.to_json() for span in spans.get_finished_spans()),
        "metrics": app.gateway.metrics(),
    }
    assert "tool_call_end" in told["logs"]
    assert "[iban:" in told["logs"]
    for name, text in told.items():
        assert not [raw for raw in RAW if raw in text], name
