"""The published JSON Schemas are current, and agree with the types they were made from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from antiphon.contract.envelope import ToolCallEnvelope
from antiphon.contract.events import Event, RunManifest
from antiphon.contract.record import DedupeRecord
from antiphon.contract.result import ToolResultEnvelope
from antiphon.contract.spec import ToolSpec
from antiphon.errors import ContractError
from scripts import make_schemas
from scripts.llm_contract import CanonicalMessage, CanonicalRequest

SCHEMAS = Path(__file__).parents[3] / "schemas"

ENVELOPE: dict[str, Any] = {
    "contractVersion": "1.1",
    "requestId": "r-1",
    "toolName": "send_email",
    "toolNamespace": "agents.tools.mail",
    "target": {"sessionKey": "s", "actorId": "a", "tenantId": "acme"},
    "payload": {
        "version": "1.0",
        "params": {"to": "ana@example.org", "n": 1.5, "deep": [None, {"x": True}]},
        "callHints": {"timeoutMs": 500},
    },
    "transport": {"dedupeMode": "enforced", "retryBudget": {"maxAttempts": 4, "maxElapsedMs": 30000}},
    "control": {"requestTags": ["a"]},
    "trace": {"baggage": {"k": "v"}},
    "toolCallId": "call_1",
}
RESULT: dict[str, Any] = {
    "requestId": "r-1",
    "status": "success",
    "fromCache": True,
    "toolName": "send_email",
    "durationMs": 1.5,
    "attempts": 1,
    "cache": {"matchedOn": "completed", "ageMs": 5, "keyFingerprint": "ab"},
    "output": {"content": {"ok": True}},
    "retriedBy": [{"attempt": 0, "delayMs": 20.0, "reasonCode": "503", "latencyMs": 3.0}],
}
SPEC: dict[str, Any] = {
    "name": "send_email",
    "idempotent": False,
    "effect": "write",
    "exact": ["body"],
    "retry": {"maxAttempts": 2},
    "reuse": 30.0,
}
RECORD: dict[str, Any] = {
    "key": "k",
    "tool": "mail/send",
    "idempotencyKey": "i",
    "state": "done",
    "createdAtMs": 1,
    "updatedAtMs": 2,
    "expiresAtMs": 3,
    "ttlMs": 4,
    "request": {"sessionKey": "s", "actorId": "a", "requestId": "r", "paramsDigest": "d", "identity": "x"},
    "version": 1,
    "fence": 1,
    "payload": {"any": [1, None]},
    "execution": {
        "attemptCount": 1,
        "attempts": [{"startedAtMs": 1, "finishedAtMs": 2, "status": "success", "retriable": False}],
    },
}
EVENT: dict[str, Any] = {"run": "r", "seq": 0, "type": "run.started", "atMs": 1, "payload": {"name": "demo"}}
MANIFEST: dict[str, Any] = {
    "id": "r",
    "name": "demo",
    "status": "completed",
    "startedAtMs": 1,
    "code": {"commit": "abc"},
}
MESSAGE: dict[str, Any] = {
    "role": "assistant",
    "content": [{"type": "text", "text": "hi"}, {"type": "toolCall", "name": "f", "arguments": {"a": None}}],
}
REQUEST: dict[str, Any] = {
    "model": "m",
    "provider": "p",
    "messages": [MESSAGE],
    "tools": [{"name": "f", "parameters": {}}],
}

DOCUMENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "tool-call-envelope": (ToolCallEnvelope, ENVELOPE),
    "tool-result-envelope": (ToolResultEnvelope, RESULT),
    "tool-spec": (ToolSpec, SPEC),
    "dedupe-record": (DedupeRecord, RECORD),
    "event": (Event, EVENT),
    "run-manifest": (RunManifest, MANIFEST),
    "llm-canonical-message": (CanonicalMessage, MESSAGE),
    "llm-canonical-request": (CanonicalRequest, REQUEST),
}
each = pytest.mark.parametrize("name", DOCUMENTS)


def validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@each
def test_the_file_is_current(name: str) -> None:
    assert (SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8") == make_schemas.rendered(name)


def test_there_are_no_other_files() -> None:
    assert {path.name for path in SCHEMAS.glob("*")} == {f"{name}.schema.json" for name in DOCUMENTS}
    assert make_schemas.SCHEMAS.keys() == DOCUMENTS.keys()
    assert make_schemas.main(["--check"]) == 0


def test_a_stale_file_is_found_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(make_schemas, "FOLDER", tmp_path)
    assert make_schemas.main(["--check"]) == 1
    assert not list(tmp_path.iterdir())
    assert make_schemas.main([]) == 0
    (tmp_path / "event.schema.json").write_text("{}")
    assert make_schemas.main(["--check"]) == 1
    assert make_schemas.main([]) == 0
    assert make_schemas.main(["--check"]) == 0


@each
def test_a_good_document_passes_the_schema_and_the_type(name: str) -> None:
    kind, document = DOCUMENTS[name]
    validator(name).validate(document)
    value = kind.from_wire(document)
    wire = json.loads(json.dumps(value.to_wire()))
    validator(name).validate(wire)
    assert kind.from_wire(wire) == value


@each
def test_the_round_trip_is_byte_stable(name: str) -> None:
    kind, document = DOCUMENTS[name]
    first = json.dumps(kind.from_wire(document).to_wire())
    assert json.dumps(kind.from_wire(json.loads(first)).to_wire()) == first
    assert json.dumps(kind.from_wire(first.encode()).to_wire()) == first


def damaged(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The document with one field too many, at the top and in each object the type knows."""
    yield "$", {**document, "surprise": 1}
    for field, value in document.items():
        if isinstance(value, dict) and field not in ("payload",):
            yield f"$.{field}", {**document, field: {**value, "surprise": 1}}


@each
def test_an_unknown_field_is_refused_with_its_path(name: str) -> None:
    kind, document = DOCUMENTS[name]
    for path, bad in damaged(document):
        with pytest.raises(ContractError) as caught:
            kind.from_wire(bad)
        assert caught.value.path == f"{path}.surprise"
        assert not validator(name).is_valid(bad)


@each
def test_a_missing_field_is_refused_by_both(name: str) -> None:
    kind, document = DOCUMENTS[name]
    schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text(encoding="utf-8"))
    required = schema["$defs"][schema["$ref"].rpartition("/")[2]]["required"]
    assert required
    for field in required:
        bad = {key: value for key, value in document.items() if key != field}
        with pytest.raises(ContractError) as caught:
            kind.from_wire(bad)
        assert caught.value.path == f"$.{field}"
        assert not validator(name).is_valid(bad)


def test_code_of_a_spec_is_not_part_of_its_document() -> None:
    spec = ToolSpec(name="t", idempotent=False, reconcile=lambda call: call)
    assert "reconcile" not in spec.to_wire()
    assert "reconcile" not in json.dumps(make_schemas.schema_of("tool-spec"))


@pytest.mark.parametrize(
    ("block", "path"),
    [
        ({"type": "text"}, "$.content[0].text"),
        ({"type": "nope"}, "$.content[0].type"),
        ({"type": "text", "text": "a", "colour": 1}, "$.content[0].colour"),
        ({"type": "image", "digest": "md5:1"}, "$.content[0].digest"),
    ],
)
def test_a_wrong_block_is_refused_with_its_path(block: dict[str, Any], path: str) -> None:
    bad = {"role": "user", "content": [block]}
    with pytest.raises(ContractError) as caught:
        CanonicalMessage.from_wire(bad)
    assert caught.value.path == path
    assert not validator("llm-canonical-message").is_valid(bad)


def test_a_key_that_is_no_text_is_refused_with_the_place_of_its_object() -> None:
    bad = {**ENVELOPE, "payload": {**ENVELOPE["payload"], "params": {1: 2}}}
    with pytest.raises(ContractError, match=r"got `int` \(at \$\.payload\.params\)\.$") as caught:
        ToolCallEnvelope.from_wire(bad)
    assert caught.value.path == "$.payload.params"
