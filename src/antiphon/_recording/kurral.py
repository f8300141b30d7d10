"""``.kurral`` documents as runs, and runs as ``.kurral`` documents (K1).

The imported document is stored whole in the run, so that exporting it again gives an equal document.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import orjson

from antiphon._recording.artifact import LAST_MS, Facts, resolved, tool_calls
from antiphon._recording.foreign import EventBuilder, error_of, hashed_id, ms_of, usable_id, whole_ms
from antiphon.contract.events import Event, RunManifest
from antiphon.errors import ArtifactError

_REQUIRED = ("inputs", "outputs", "tool_calls", "llm_config")


def is_kurral(document: Any) -> bool:
    """Whether a document has the shape of a ``.kurral`` artifact."""
    return isinstance(document, dict) and "kurral_id" in document and all(name in document for name in _REQUIRED)


def _interactions(document: dict[str, Any], side: str) -> list[dict[str, Any]]:
    found = _object(document, side).get("interactions")
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def manifest_of(document: dict[str, Any], *, tenant: str, workspace: str) -> RunManifest:
    """The head of the imported run."""
    if not is_kurral(document):
        raise ArtifactError(
            "The document is not a .kurral artifact.", hint="It needs kurral_id, inputs, outputs, tool_calls."
        )
    version = str(document.get("schema_version", "1.0.0"))
    if not version.startswith("1."):
        raise ArtifactError(f"The .kurral schema {version[:40]} is not known.", hint="This release reads 1.x.")
    if not isinstance(document["tool_calls"], list):
        raise ArtifactError("The tool calls of the .kurral document are not a list.")
    config = _object(document, "llm_config")
    flat = {name: value for name, value in config.items() if name != "parameters"}
    flat |= {name: value for name, value in _object(config, "parameters").items() if value is not None}
    started = ms_of(document.get("created_at"))
    given = str(document["kurral_id"])
    return RunManifest(
        id=usable_id(given, "kurral") if document["kurral_id"] else hashed_id(given, "kurral"),
        name=str(document.get("run_id") or "kurral")[:256],
        status="failed" if document.get("error") else "completed",
        started_at_ms=started,
        finished_at_ms=min(started + whole_ms(document.get("duration_ms")), LAST_MS),
        tenant=tenant,
        workspace=workspace,
        llm_config=flat,
        graph_digest=str(_object(document, "graph_version").get("graph_hash") or ""),
        tags={"imported": "kurral"},
    )


def _object(document: dict[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    if value is not None and not isinstance(value, dict):
        raise ArtifactError(f"{name} of the .kurral document is not an object.")
    return value or {}


def events_of(document: dict[str, Any], manifest: RunManifest) -> list[Event]:
    """The events that an equal run of ours would have, as far as the document tells."""
    lines = EventBuilder(manifest.id, manifest.started_at_ms)
    asked = _interactions(document, "inputs")
    answered = _interactions(document, "outputs")
    lines.add("run.started", {"name": manifest.name, "input": asked[0].get("input") if asked else None})
    lines.add("import", {"format": "kurral", "document": document})
    prompt = _object(document, "resolved_prompt")
    if prompt:
        shown = {"name": "resolved", "template": prompt.get("template"), "variables": prompt.get("variables") or {}}
        lines.add("prompt", {**shown, "text": prompt.get("final_text")}, **lines.place())
    for call in document["tool_calls"]:
        if not isinstance(call, dict):
            raise ArtifactError("A tool call of the .kurral document is not an object.")
        _add_call(call, lines)
    for number, entry in enumerate(answered):
        given = asked[number].get("input") if number < len(asked) else entry.get("input")
        lines.add("interaction.started", {"input": given}, **lines.place())
        lines.add("interaction.finished", {"output": entry.get("output")}, **lines.place())
    last: dict[str, Any] = {"status": manifest.status, "output": answered[-1].get("output") if answered else None}
    if document.get("error"):
        last["error"] = error_of(str(document["error"]))
    lines.add("run.finished", last, at_ms=manifest.finished_at_ms or manifest.started_at_ms)
    return lines.events


def _add_call(call: dict[str, Any], lines: EventBuilder) -> None:
    name, began = str(call.get("tool_name") or "tool"), ms_of(call.get("start_time"))
    place = lines.start("tool", name, call.get("input"), at_ms=began, meta={"importedId": call.get("id")})
    failed = call.get("error_flag") or call.get("status") not in (None, "ok")
    lines.finish(
        place,
        call.get("output"),
        error=str(call.get("error_text") or call.get("error") or "") if failed else None,
        at_ms=ms_of(call.get("end_time")) or began,
        meta={"durationMs": whole_ms(call.get("latency_ms"))},
    )


def to_kurral(manifest: RunManifest, events: Iterable[Event]) -> dict[str, Any]:
    """The run as a ``.kurral`` document: the one it was imported from, or a new one made from its events."""
    facts = Facts(manifest)
    imported: list[dict[str, Any]] = []

    def seen() -> Iterator[Event]:
        for event in events:
            if event.type == "import" and event.payload.get("format") == "kurral":
                imported.append(event.payload["document"])
                return
            facts.see(event)
            yield event

    calls = [_kurral_call(started, chunks, end) for started, chunks, end in tool_calls(seen()) if end is not None]
    if imported:
        return dict(imported[0])
    if not facts.interactions:
        facts.inputs = facts.inputs or [{"input": None}]
        facts.outputs = facts.outputs or [{**facts.inputs[0], "output": None}]
    return _document(manifest, facts, calls)


def _iso(ms: int | None) -> str:
    return datetime.fromtimestamp((ms or 0) / 1000, UTC).replace(tzinfo=None).isoformat()


def _document(manifest: RunManifest, facts: Facts, calls: list[dict[str, Any]]) -> dict[str, Any]:
    config = dict(facts.llm_config)
    scored = {name: config.pop(name) for name in ("temperature", "seed") if name in config}
    prompt = resolved(facts.prompt or {})
    end = manifest.finished_at_ms
    return {
        "kurral_id": manifest.id,
        "run_id": manifest.name,
        "tenant_id": manifest.tenant,
        "semantic_buckets": [],
        "environment": "production",
        "schema_version": "1.0.0",
        "created_at": _iso(manifest.started_at_ms),
        "deterministic": False,
        "inputs": {"interactions": facts.inputs},
        "outputs": {"interactions": facts.outputs},
        "llm_config": {
            "model_name": config.get("model_name") or "unknown",
            "provider": config.get("provider") or "unknown",
            "parameters": {"temperature": scored.get("temperature", 0.0), **scored},
        },
        "resolved_prompt": {**prompt, "variables_hash": hashlib.sha256(orjson.dumps(prompt["variables"])).hexdigest()},
        "graph_version": facts.graph_version(manifest),
        "tool_calls": calls,
        "time_env": {
            "timestamp": _iso(manifest.started_at_ms),
            "timezone": "UTC",
            "wall_clock_time": _iso(manifest.started_at_ms),
        },
        "duration_ms": 0 if end is None else end - manifest.started_at_ms,
        "token_usage": {
            "prompt_tokens": facts.usage["input_tokens"],
            "completion_tokens": facts.usage["output_tokens"],
            "total_tokens": sum(facts.usage.values()),
        },
        "error": (facts.error or {}).get("message"),
    }


def _kurral_call(started: Event, chunks: list[Any], finished: Event) -> dict[str, Any]:
    arguments, payload = started.payload.get("arguments"), finished.payload
    failed = payload.get("outcome") == "error"
    output = (payload.get("error") or {}) if failed else chunks or payload.get("value")
    return {
        "id": str(started.call),
        "tool_name": started.payload.get("name"),
        "start_time": _iso(started.at_ms),
        "end_time": _iso(finished.at_ms),
        "latency_ms": int(finished.meta.get("durationMs") or 0),
        "timestamp": _iso(started.at_ms),
        "input": arguments if isinstance(arguments, dict) else {"input": arguments},
        "input_hash": started.payload.get("digest"),
        "output": output if isinstance(output, dict) else {"output": output},
        "output_hash": hashlib.sha256(orjson.dumps(output)).hexdigest(),
        "type": "tool",
        "effect_type": "other",
        "status": "error" if failed else "ok",
        "error_flag": failed,
        "cache_key": f"sha256:{started.payload.get('digest')}",
        "stubbed_in_replay": False,
        "metadata": {},
    }
