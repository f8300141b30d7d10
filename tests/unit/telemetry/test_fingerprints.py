"""D36: what names a claim outside its store is keyed, so that nobody can try out arguments against it."""

from __future__ import annotations

import contextlib
import hmac
import io
import logging
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import antiphon
from antiphon._drive import drive
from antiphon._gateway import ids
from antiphon._gateway.ids import Fingerprints
from antiphon._seal import KEY_BYTES, FingerprintKeys, change_keys
from antiphon.contract.spec import ToolSpec
from antiphon.keys import KeyMaker
from antiphon.ops.admin import Admin
from antiphon.ops.runs import one_event, timeline
from antiphon.ports import Store
from antiphon.redact import Redactor
from antiphon.stores import MemoryStore, SQLiteStore
from antiphon.telemetry.logs import json_logs
from antiphon.telemetry.otel import OtelListener
from tests.unit.gateway.kit import envelope

PIN = "4821"
SPEC = ToolSpec(name="unlock", idempotent=True, effect="write")


class Seen:
    """A call with a short secret and its duplicate, and all that the outside sees of them."""

    def __init__(self, store: Store, *, recorded: bool = True) -> None:
        self.app = antiphon.Antiphon({"telemetry": {"logs": True}}, store=store)
        exporter, provider, lines = InMemorySpanExporter(), TracerProvider(), io.StringIO()
        provider.add_span_processor(SimpleSpanProcessor(exporter))
        logger = logging.getLogger("antiphon")
        before, level = list(logger.handlers), logger.level
        json_logs("INFO", lines)
        try:
            self.app.gateway.listen(OtelListener(provider, redactor=Redactor()))
            self.app.gateway.register(lambda pin: "open", SPEC)
            with self.app.run("door") if recorded else contextlib.nullcontext() as run:
                _, self.result = self.call(), self.call()
        finally:
            logger.handlers[:] = before
            logger.setLevel(level)
        self.run = "" if run is None else run.id
        logged = [orjson.loads(line) for line in lines.getvalue().splitlines()]
        self.logged = {line["idempotencyKeyHash"] for line in logged if "idempotencyKeyHash" in line}
        self.spans = {
            str(span.attributes["idempotency.key"]) for span in exporter.get_finished_spans() if span.attributes
        }

    def call(self) -> dict[str, Any]:
        return dict(self.app.gateway.execute(envelope("unlock", {"pin": PIN}, call_id="c1")).to_wire())

    def keys(self) -> set[str]:
        """The store keys of all that the argument may be."""
        maker = KeyMaker(SPEC, session="s1", actor="a1")
        return {maker.keys({"pin": f"{number:04}"}).store_key for number in range(10_000)}


@pytest.fixture(params=["memory", "sqlite"])
def seen(request: pytest.FixtureRequest, tmp_path: Path) -> Seen:
    return Seen(MemoryStore() if request.param == "memory" else SQLiteStore(tmp_path / "claims.db"))


def test_ten_thousand_guesses_find_nothing(seen: Seen) -> None:
    guesses = seen.keys()
    (claim,) = seen.app.journal.list(tenant=seen.app.tenant)
    assert claim.key in guesses  # the guess itself is right
    shown = seen.logged | seen.spans | {seen.result["cache"]["keyFingerprint"]}
    shown |= {orjson.dumps(one_event(seen.app, seen.run, seq).to_wire()).decode() for seq in range(3)}
    shown.add(orjson.dumps(timeline(seen.app, seen.app.journal.manifest(seen.run))).decode())  # type: ignore[arg-type]
    text = " ".join(shown)
    assert [guess for guess in guesses if guess[:16] in text] == []


def test_log_line_span_result_and_claim_have_one_fingerprint(seen: Seen) -> None:
    (claim,) = drive(Admin(seen.app).claims())
    name = seen.result["cache"]["keyFingerprint"]
    assert len(name) == 16
    assert seen.logged == seen.spans == {name} == {claim["fingerprint"]}
    assert drive(Admin(seen.app).claim(name))["key"] == claim["key"]


def test_processes_of_one_store_make_the_same_fingerprint_and_other_stores_another(tmp_path: Path) -> None:
    first = Seen(SQLiteStore(tmp_path / "claims.db"))
    again = Seen(SQLiteStore(tmp_path / "claims.db"))
    other = Seen(SQLiteStore(tmp_path / "other.db"))
    assert first.logged == again.logged != other.logged


def test_a_key_file_that_cannot_be_used_fails_no_call(tmp_path: Path) -> None:
    (tmp_path / "claims.db.seal-key").write_text("damaged")
    seen = Seen(SQLiteStore(tmp_path / "claims.db"), recorded=False)
    assert seen.result["status"] == "success"
    (claim,) = drive(Admin(seen.app).claims())
    assert seen.logged.isdisjoint({claim["fingerprint"], claim["key"][:16]})
    assert drive(Admin(seen.app).claim(claim["fingerprint"]))["key"] == claim["key"]


def test_a_fingerprint_is_an_hmac_and_older_keys_still_name_a_claim() -> None:
    old, new = b"o" * 32, b"n" * 32
    prints = Fingerprints(lambda: (new, old))
    assert prints.of("key") == hmac.digest(new, b"key", "sha256").hex()[:16]
    assert prints.name("key", Fingerprints(lambda: (old,)).of("key"))
    assert not prints.name("other", prints.of("key"))


def test_a_fingerprint_is_of_its_own_key_whatever_was_asked_before() -> None:
    prints = Fingerprints(lambda: (b"k" * 32,))
    for key in ("a", "a", "b", "a", "b", "b", ""):
        assert prints.of(key) == Fingerprints(lambda: (b"k" * 32,)).of(key)


def _prints(file: Path) -> Fingerprints:
    return Fingerprints(FingerprintKeys(None, file))


def _rotate(file: Path) -> None:
    change_keys(file, lambda keys: [os.urandom(KEY_BYTES), *keys])


def test_a_rotation_counts_at_once_for_approvals_and_links(tmp_path: Path) -> None:
    file = tmp_path / "seal.key"
    running = _prints(file)
    before = running.bindings("call")
    signature = running.sign("link")
    _rotate(file)
    started_later = _prints(file)
    assert running.bindings("call") == started_later.bindings("call") != before
    assert running.bindings("call")[1:] == before
    assert running.signed("link", started_later.sign("link") or "")
    assert started_later.signed("link", signature or "")
    assert running.name("key", started_later.of("key"))


def test_fingerprints_of_calls_follow_a_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, now = tmp_path / "seal.key", [0.0]
    monkeypatch.setattr(ids, "_monotonic", lambda: now[0])
    running = _prints(file)
    before = running.of("key")
    _rotate(file)
    assert running.of("key") == before  # one look in two milliseconds
    now[0] += 0.002
    assert running.of("key") == _prints(file).of("key") != before


def test_a_key_file_that_went_leaves_the_known_keys(tmp_path: Path) -> None:
    file = tmp_path / "seal.key"
    running = _prints(file)
    before = running.bindings("call")
    file.write_text("damaged")
    assert running.bindings("call") == before
    file.unlink()
    assert running.bindings("call") == before
    assert not file.exists()
