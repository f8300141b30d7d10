"""What people look at: the list of runs, a run as a tree, one event, what the model saw."""

from __future__ import annotations

from typing import Any

from antiphon._drive import drive
from antiphon._gateway.owner import certainly_dead
from antiphon._recording.spill import resolve
from antiphon.contract.events import Event, RunManifest
from antiphon.errors import InvalidInput, NotFound
from antiphon.ops.app import Antiphon
from antiphon.ops.runs import events_of, is_audit


def real_status(manifest: RunManifest) -> str:
    """The status; a run whose process is gone was interrupted, whatever it says."""
    if manifest.status == "running" and certainly_dead(manifest.tags.get("owner", "")):
        return "interrupted"
    return manifest.status


def list_runs(
    app: Antiphon, *, prefix: str = "", name: str = "", status: str = "", limit: int = 20, replays: bool = False
) -> list[dict[str, Any]]:
    """The newest runs as plain data."""
    asked = "" if status in ("interrupted", "running") else status
    found = drive(app.journal.runs(tenant=app.tenant, prefix=prefix, name=name, status=asked, limit=max(limit * 4, 50)))
    rows: list[dict[str, Any]] = []
    for manifest in found:
        if len(rows) >= limit:
            break
        hidden = is_audit(manifest) or (manifest.source_run is not None and not replays)
        if hidden or (status and real_status(manifest) != status):
            continue
        rows.append(summary(manifest))
    return rows


def summary(manifest: RunManifest) -> dict[str, Any]:
    """A run in one line."""
    end = manifest.finished_at_ms
    return {
        "id": manifest.id,
        "name": manifest.name,
        "status": real_status(manifest),
        "startedAtMs": manifest.started_at_ms,
        "finishedAtMs": end,
        "durationMs": None if end is None else end - manifest.started_at_ms,
        "entry": manifest.entry,
        "sourceRun": manifest.source_run,
        "events": manifest.events,
        "tenant": manifest.tenant,
    }


def one_event(app: Antiphon, run: str, seq: int) -> Event:
    """A single event, spilled parts brought back; nothing else of the run is read."""
    import msgspec

    found = drive(app.journal.events(run, start=seq, stop=seq + 1, limit=1)) if seq >= 0 else []
    if not found:
        raise NotFound(f"Run {run} has no event {seq}.")
    event = found[0]
    return msgspec.structs.replace(event, payload=drive(resolve(event.payload, app.blobs, app.tenant)))


def context_of(app: Antiphon, run: str, seq: int) -> dict[str, Any]:
    """Exactly what the model saw at event *seq* (the start of a model call)."""
    event = one_event(app, run, seq)
    if event.payload.get("kind") != "llm":
        raise InvalidInput(f"Event {seq} is {event.type}, not a model call.", hint="Find one: antiphon show RUN --json")
    request = event.payload.get("providerRequest") or event.payload.get("request")
    return {"run": run, "seq": seq, "provider": event.payload.get("provider"), "request": request}


def full_name(payload: dict[str, Any]) -> str:
    """``namespace/name`` of a tool, the name of anything else."""
    name, namespace = str(payload.get("name", "")), payload.get("namespace")
    return f"{namespace}/{name}" if namespace else name


class Node:
    """One line of the timeline."""

    __slots__ = ("children", "finished", "notes", "seq", "started")

    def __init__(self, started: Event) -> None:
        self.started = started
        self.finished: Event | None = None
        self.notes: list[Event] = []
        self.children: list[Node] = []

    def to_wire(self) -> dict[str, Any]:
        payload = self.started.payload
        done = self.finished
        wire: dict[str, Any] = {
            "seq": self.started.seq,
            "kind": payload.get("kind", self.started.type),
            "name": full_name(payload) if payload.get("kind") else self.started.type,
            "lane": self.started.lane,
            "startedAtMs": self.started.at_ms,
            "outcome": None if done is None else done.payload.get("outcome"),
            "meta": {} if done is None else done.meta,
            "notes": [{"what": note.payload.get("what"), **note.meta} for note in self.notes],
        }
        if payload.get("kind") == "llm":
            wire["model"] = (payload.get("request") or {}).get("model")
        if done is not None and done.payload.get("error"):
            wire["error"] = done.payload["error"]
        if self.children:
            wire["children"] = [child.to_wire() for child in self.children]
        return wire


def timeline(app: Antiphon, manifest: RunManifest) -> dict[str, Any]:
    """The run as a tree of calls, with what happened to each."""
    roots: list[Node] = []
    calls: dict[str, Node] = {}
    counted = {"calls": 0, "models": 0, "retries": 0, "reused": 0, "blocked": 0, "errors": 0}
    tokens = {"input": 0, "output": 0}
    cost = 0.0
    last: Event | None = None
    for event in events_of(app, manifest.id):
        last = event
        if event.type == "call.started":
            node = Node(event)
            calls[event.call or ""] = node
            parent = calls.get(event.parent or "")
            (parent.children if parent is not None else roots).append(node)
            counted["models" if event.payload.get("kind") == "llm" else "calls"] += 1
        elif event.type == "call.finished":
            found = calls.get(event.call or "")
            if found is not None:
                found.finished = event
                _count(event, counted, tokens)
                cost += _cost(app, found, event)
        elif event.type == "decision":
            found = calls.get(event.call or "")
            if event.payload.get("what") == "retry":
                counted["retries"] += 1
            if found is not None:
                found.notes.append(event)
            else:
                roots.append(Node(event))
        elif event.type in ("admin.act", "draw", "prompt", "interaction.started", "interaction.finished"):
            roots.append(Node(event))
    status = real_status(manifest)
    return {
        **summary(manifest),
        "status": status,
        "stoppedAt": None if status not in ("interrupted", "running") or last is None else last.seq,
        "timeline": [node.to_wire() for node in roots],
        "counts": counted,
        "tokens": tokens,
        "cost": round(cost, 6) if app.config.prices else None,
        "output": None if last is None else last.payload.get("output"),
        "error": None if last is None else last.payload.get("error"),
    }


def _count(event: Event, counted: dict[str, int], tokens: dict[str, int]) -> None:
    if event.meta.get("fromCache"):
        counted["reused"] += 1
    outcome = event.payload.get("outcome")
    if outcome == "denied" or event.meta.get("status") == "circuit_open":
        counted["blocked"] += 1
    elif outcome == "error":
        counted["errors"] += 1
    usage = event.meta.get("usage") or {}
    tokens["input"] += usage.get("inputTokens") or 0
    tokens["output"] += usage.get("outputTokens") or 0


def _cost(app: Antiphon, node: Node, event: Event) -> float:
    usage = event.meta.get("usage") or {}
    model = str((node.started.payload.get("request") or {}).get("model") or "")
    price = app.config.prices.get(model)
    if price is None:
        return 0.0
    spent = (usage.get("inputTokens") or 0) * price.input + (usage.get("outputTokens") or 0) * price.output
    return float(spent) / 1_000_000
