"""Events that a gateway writes itself are the events that the recorder encodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from antiphon._recording.recorder import SPILL_BYTES, Recorder
from antiphon._scope import Site
from antiphon.blobs.local import LocalBlobs
from antiphon.ports import Clock
from antiphon.redact import Redactor, Rules
from antiphon.stores import SQLiteStore

SITE = Site("0", 3, 0, "0@3", None)
META = {"requestId": "r", "idempotent": False}


class StoppedClock(Clock):
    def now_ms(self) -> int:
        return 1_700_000_000_000


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    store, blobs = SQLiteStore(tmp_path / "j.db"), LocalBlobs(tmp_path / "blobs")
    return Recorder(
        "run",
        store=store,
        journal=store.open_sync(),
        clock=StoppedClock(),
        redactor=Redactor(Rules(), salt="00" * 16),
        blobs=lambda: blobs,
        tenant="default",
    )


def started(arguments: Any) -> dict[str, Any]:
    return {"kind": "tool", "name": "send", "namespace": "tools", "arguments": arguments, "digest": "d" * 64, "nth": 0}


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("call.started", started({"to": "ada", "n": 1.5})),
        ("call.started", started({"text": "x" * SPILL_BYTES})),
        ("call.started", started({"text": "x" * (SPILL_BYTES - 100)})),
        ("call.finished", {"outcome": "ok", "value": "ü" * SPILL_BYTES}),
    ],
    ids=["small", "large", "just small enough", "large result"],
)
def test_a_composed_event_is_the_encoded_one(recorder: Recorder, kind: str, payload: dict[str, Any]) -> None:
    composed = recorder.compose(kind, SITE, orjson.dumps(payload), orjson.dumps(META))
    assert composed == recorder.encode(kind, SITE, payload, META)


def test_large_parts_of_a_composed_event_are_spilled(recorder: Recorder) -> None:
    arguments = {"text": "x" * SPILL_BYTES}
    row = recorder.compose("call.started", SITE, orjson.dumps(started(arguments)), b"{}")
    written = orjson.loads(row.body)
    assert written["payload"] == started(None)
    blobs = recorder.blobs()
    assert blobs is not None
    assert orjson.loads(blobs.get("default", written["meta"]["blobs"]["arguments"])) == arguments
