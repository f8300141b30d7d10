"""Events of a run as short lines, for lists of thousands: what happened, how it ended, and why a call was not sent.

Also a run as one file that opens without a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from antiphon import _saga
from antiphon._replay.recording import full_name
from antiphon.contract.events import Event, RunManifest
from antiphon.ops.app import Antiphon
from antiphon.ops.artifacts import whole_events
from antiphon.ops.costs import answered_by, model_of, tokens_of
from antiphon.ops.runs import summary
from antiphon.redact._pointers import viewed
from antiphon.scoring import html

LONGEST = 200
"""Characters of a name or text in a line; the event itself has the rest."""
FILE_BYTES = 32_000_000
"""Bytes of events in a file; beyond that, it leaves the largest events out and says so."""


def run_file(app: Antiphon, manifest: RunManifest) -> str:
    """The page of a run as one file, with the HTTP API's answers embedded; masked values stay masked."""
    shown: list[dict[str, Any]] = []
    written: dict[int, bytes] = {}
    ends: dict[str, dict[str, Any]] = {}
    for event in map(viewed, whole_events(app, manifest.id)):
        shown.append(line(event))
        written[event.seq] = orjson.dumps(event.to_wire(), default=str)
        if event.type == "call.finished":
            ends[event.call or ""] = shown[-1]
        elif event.type == _saga.FINISHED:
            for write in _writes(event.payload):
                if (end := ends.get(str(write.get("call")))) is not None:
                    end["text"] = _text(write.get("state"))
    events, left = {}, FILE_BYTES
    for seq, data in sorted(written.items(), key=lambda one: len(one[1])):
        left -= len(data)
        if left >= 0:
            events[seq] = orjson.Fragment(data)
    path = f"/v1/recordings/{manifest.id}"
    found = {"events": shown, "next": shown[-1]["seq"] + 1 if shown else 0, "isComplete": True}
    run = {**summary(manifest), "events": len(shown)}
    return html.file(manifest.name, {"run": manifest.id, "answers": {path: run, f"{path}/events": found}}, events)


def line(event: Event) -> dict[str, Any]:
    """One event without its payload; masked values stay masked."""
    payload, meta = event.payload, event.meta
    found: dict[str, Any] = {"seq": event.seq, "type": event.type, "atMs": event.at_ms, "lane": event.lane}
    if event.call is not None:
        found["call"] = event.call
    if event.parent is not None:
        found["parent"] = event.parent
    if event.type == "call.started":
        kind = _text(payload.get("kind"))
        name = model_of(payload) if kind == "llm" else full_name(payload)
        found |= {"kind": kind, "name": _text(name or kind)}
    elif event.type == "call.finished":
        found |= _finished(payload, meta)
    elif event.type == "decision":
        found |= {"kind": "decision", "name": _text(payload.get("what")), "text": _detail(payload, meta)}
    elif event.type in (_saga.UNDOING, _saga.FINISHED):
        found |= {"name": _text(payload.get("name")), "text": _undone(payload)}
    else:
        name = next((payload[key] for key in ("what", "nodeId", "name") if payload.get(key)), "")
        found["name"] = _text(name)
        if isinstance(payload.get("error"), Mapping):
            found["text"] = _text(payload["error"].get("message"))
    return found


def _finished(payload: Mapping[str, Any], meta: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"outcome": _text(payload.get("outcome")), "status": _text(meta.get("status"))}
    for name in ("durationMs", "attempts"):
        if isinstance(meta.get(name), (int, float)):
            found[name] = meta[name]
    if meta.get("usage") is not None:
        given, taken = tokens_of(meta["usage"])
        found |= {"inputTokens": given, "outputTokens": taken}
    error = payload.get("error")
    if isinstance(error, Mapping):
        found["text"] = _text(f"{error.get('code') or error.get('class') or 'error'}: {error.get('message', '')}")
    reason = why_not_sent(payload, meta)
    if reason:
        found["notSent"] = reason
    return found


def why_not_sent(payload: Mapping[str, Any], meta: Mapping[str, Any]) -> str:
    """Why a call that ended like this was not sent, in words; empty if it was sent."""
    if answered_by(meta) == "blocked":
        return "A replay sends nothing: the recording has no such call, so it was blocked."
    if meta.get("fromCache"):
        return "An equal call was made before; its result was reused, and nothing was sent."
    if meta.get("attempts") != 0:
        return ""
    error = payload.get("error")
    said = _text(error.get("message")) if isinstance(error, Mapping) else ""
    return said or "The call ended before its first attempt, so nothing was sent."


def _undone(payload: Mapping[str, Any]) -> str:
    """The state of a saga, or why it is being undone."""
    if "state" not in payload:
        return _text(f"undoing: {payload.get('why', '')}")
    writes = _writes(payload)
    undone = sum(write.get("state") == "undone" for write in writes)
    people = [f"{w.get('tool')} {w.get('call')}" for w in writes if w.get("state") == "needs a person"]
    parts = [str(payload["state"]), *([f"{undone} undone"] if undone else [])]
    return _text(", ".join([*parts, *([f"needs a person: {', '.join(people)}"] if people else [])]))


def _writes(payload: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    writes = payload.get("writes")
    return [write for write in writes if isinstance(write, Mapping)] if isinstance(writes, list) else []


def _detail(payload: Mapping[str, Any], meta: Mapping[str, Any]) -> str:
    detail = payload.get("detail")
    parts = [f"{name} {value}" for name, value in detail.items()] if isinstance(detail, Mapping) else []
    parts += [f"{name} {meta[name]}" for name in ("delayMs", "matchedOn", "ageMs") if name in meta]
    return _text(", ".join(parts))


def _text(value: Any) -> str:
    text = "" if value is None else str(value)
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
