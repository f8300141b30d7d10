"""The artifact: a run as one readable JSON document (K1).

The head is what a person or ``jq`` looks for. ``tool_calls`` and ``events`` hold one entry per line, so that both
ends can stream: memory does not grow with the run. ``integrity`` says how many events there are and what their bytes
hash to; a document that was edited by hand still imports, and says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple

import msgspec
import orjson

from antiphon.contract.events import Event, RunManifest
from antiphon.errors import ArtifactError, ContractError

SCHEMA_VERSION = "1.0.0"
MAX_LINE = 256 * 1024 * 1024
MAX_DOCUMENT = 512 * 1024 * 1024
_EVENTS_MARK = b'  "events": ['
_CALLS_MARK = b'  "tool_calls": ['
Events = Callable[[], Iterable[Event]]


class _Facts:
    """What the head of the document needs, gathered in one pass."""

    def __init__(self, manifest: RunManifest) -> None:
        self.inputs: list[Any] = []
        self.outputs: list[dict[str, Any]] = []
        self.prompts: list[dict[str, Any]] = []
        self.usage = {"input_tokens": 0, "output_tokens": 0}
        self.errors: list[dict[str, Any]] = []
        self.llm_config: dict[str, Any] = dict(manifest.llm_config)
        self.tools: dict[str, Any] = dict(manifest.tool_schemas)
        self.error: Any = None

    def see(self, event: Event) -> None:
        payload = event.payload
        if event.type == "run.started" and "input" in payload and not self.inputs:
            self.inputs.append({"input": payload["input"]})
        elif event.type == "interaction.started":
            if self.inputs and not self.outputs and "started" not in self.__dict__:
                self.inputs.clear()
            self.__dict__["started"] = True
            self.inputs.append({"input": payload.get("input")})
        elif event.type == "interaction.finished":
            asked = self.inputs[len(self.outputs)]["input"] if len(self.inputs) > len(self.outputs) else None
            self.outputs.append({"input": asked, "output": payload.get("output")})
        elif event.type == "prompt":
            self.prompts.append(payload)
        elif event.type == "run.finished":
            self.error = payload.get("error")
            if not self.outputs and "output" in payload:
                asked = self.inputs[0]["input"] if self.inputs else None
                self.outputs.append({"input": asked, "output": payload["output"]})
        elif event.type == "call.started" and payload.get("kind") == "llm":
            self._request(payload.get("request"))
        elif event.type == "call.finished":
            usage = event.meta.get("usage") or {}
            self.usage["input_tokens"] += usage.get("inputTokens") or 0
            self.usage["output_tokens"] += usage.get("outputTokens") or 0
            if payload.get("outcome") == "error":
                self.errors.append({"event": event.seq, **(payload.get("error") or {})})

    def _request(self, request: Any) -> None:
        if not isinstance(request, dict):
            return
        if "model_name" not in self.llm_config:
            self.llm_config |= {"model_name": request.get("model"), "provider": request.get("provider")}
            self.llm_config |= {
                name: request[name] for name in ("temperature", "seed") if request.get(name) is not None
            }
        for tool in request.get("tools") or []:
            if isinstance(tool, dict) and "name" in tool:
                self.tools[str(tool["name"])] = tool


def _iso(ms: int | None) -> str | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def _digest(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _head(manifest: RunManifest, facts: _Facts) -> dict[str, Any]:
    end = manifest.finished_at_ms
    prompt = facts.prompts[0] if facts.prompts else None
    return {
        "schema_version": SCHEMA_VERSION,
        "format": "antiphon",
        "run_id": manifest.id,
        "id": manifest.id,
        "name": manifest.name,
        "status": manifest.status,
        "tenant_id": manifest.tenant,
        "created_at": _iso(manifest.started_at_ms),
        "duration_ms": None if end is None else end - manifest.started_at_ms,
        "inputs": {"interactions": facts.inputs},
        "outputs": {"interactions": facts.outputs},
        "error": facts.error,
        "errors": facts.errors,
        "llm_config": facts.llm_config,
        "token_usage": {**facts.usage, "total_tokens": sum(facts.usage.values())},
        "resolved_prompt": None
        if prompt is None
        else {
            "template": prompt.get("template"),
            "template_hash": _digest(prompt.get("template")),
            "variables": prompt.get("variables"),
            "final_text": prompt.get("text"),
        },
        "graph_version": {
            "graph_hash": manifest.graph_digest or _digest([sorted(facts.tools), _digest(facts.prompts)]),
            "tool_schemas_hash": _digest(facts.tools),
        },
        "manifest": manifest.to_wire(),
    }


def write_artifact(out: IO[bytes], manifest: RunManifest, events: Events) -> int:
    """Write the document; *events* is asked three times, so that nothing is held in memory. Returns the event count."""
    facts = _Facts(manifest)
    for event in events():
        facts.see(event)
    out.write(b"{\n")
    for name, value in _head(manifest, facts).items():
        out.write(b"  " + orjson.dumps(name) + b": " + orjson.dumps(value) + b",\n")
    out.write(_CALLS_MARK + b"\n")
    _lines(out, (orjson.dumps(call) for call in _tool_calls(events())))
    out.write(b"  ],\n" + _EVENTS_MARK + b"\n")
    total = hashlib.sha256()
    count = 0

    def encoded() -> Iterator[bytes]:
        nonlocal count
        for event in events():
            line = _event_line(event)
            total.update(line)
            count += 1
            yield line

    _lines(out, encoded())
    seal = {"events": count, "sha256": total.hexdigest()}
    out.write(b'  ],\n  "integrity": ' + orjson.dumps(seal) + b"\n}\n")
    return count


def _lines(out: IO[bytes], entries: Iterable[bytes]) -> None:
    before = b"    "
    for entry in entries:
        out.write(before + entry)
        before = b",\n    "
    out.write(b"\n" if before != b"    " else b"")


def _event_line(event: Event) -> bytes:
    wire = event.to_wire()
    wire.pop("run")
    return orjson.dumps(wire)


def _tool_calls(events: Iterable[Event]) -> Iterator[dict[str, Any]]:
    """Each tool call with its result, when it is finished; calls without an outcome come last."""
    waiting: dict[str, Event] = {}
    for event in events:
        if event.type == "call.started" and event.payload.get("kind") != "llm":
            waiting[event.call or ""] = event
        elif event.type == "call.finished" and event.call in waiting:
            yield _tool_call(waiting.pop(event.call), event)
    for event in waiting.values():
        yield _tool_call(event, None)


def _tool_call(started: Event, finished: Event | None) -> dict[str, Any]:
    payload = {} if finished is None else finished.payload
    outcome = str(payload.get("outcome", "unknown"))
    return {
        "id": started.call,
        "tool_name": started.payload.get("name"),
        "namespace": started.payload.get("namespace"),
        "start_time": _iso(started.at_ms),
        "end_time": None if finished is None else _iso(finished.at_ms),
        "latency_ms": None if finished is None else finished.meta.get("durationMs", finished.at_ms - started.at_ms),
        "input": started.payload.get("arguments"),
        "input_hash": started.payload.get("digest"),
        "output": payload.get("value"),
        "error": payload.get("error"),
        "status": outcome,
        "error_flag": outcome == "error",
        "event": started.seq,
    }


# -- reading -----------------------------------------------------------------------------------------------------


class Document(NamedTuple):
    """An artifact that has been checked: its manifest, and its events when they are asked for."""

    manifest: RunManifest
    events: Events
    altered: bool
    """Whether it was edited after it was written."""


def read_artifact(path: Path) -> Document:
    """Check the whole document before anything of it is used; the file is read line by line where it can be."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head, streamed = _read_head(file)
    except FileNotFoundError:
        raise ArtifactError(f"There is no file {path}.", code="not_found") from None
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}.") from None
    if not streamed:
        if size > MAX_DOCUMENT:
            raise ArtifactError(f"{path} is too large ({size} bytes) for a document that is not written line by line.")
        return _whole(path)
    manifest = _manifest(head, path)
    count, digest, seal = 0, hashlib.sha256(), None
    for line in _event_lines(path):
        if line.startswith(b"}"):
            seal = orjson.loads(line[1:]) if len(line) > 1 else None
            break
        _event(line, manifest.id, count, path)
        digest.update(line)
        count += 1
    else:
        raise ArtifactError(f"{path} is cut off after event {count - 1}: it does not end as an artifact does.")
    altered = isinstance(seal, dict) and (seal.get("events") != count or seal.get("sha256") != digest.hexdigest())

    def events() -> Iterator[Event]:
        for number, line in enumerate(_event_lines(path)):
            if line.startswith(b"}"):
                return
            yield _event(line, manifest.id, number, path)

    return Document(manifest, events, altered)


def _read_head(file: IO[bytes]) -> tuple[dict[str, Any], bool]:
    """The keys before ``tool_calls``; ``False`` if the file is not laid out in lines."""
    head: dict[str, Any] = {}
    if file.readline(16).strip() != b"{":
        return {}, False
    while line := file.readline(MAX_LINE):
        if line.startswith((_CALLS_MARK, _EVENTS_MARK)):
            return head, True
        try:
            head |= orjson.loads(b"{" + line.strip().rstrip(b",") + b"}")
        except (orjson.JSONDecodeError, TypeError):
            return {}, False
    return {}, False


def _event_lines(path: Path) -> Iterator[bytes]:
    """The bytes of each event, then ``}`` followed by the integrity value."""
    with path.open("rb") as file:
        inside = False
        while line := file.readline(MAX_LINE):
            if not inside:
                inside = line.startswith(_EVENTS_MARK)
                continue
            if line.startswith(b"  ]"):
                rest = file.readline(4096).strip()
                seal = (
                    rest.partition(b'"integrity":')[2].strip().removesuffix(b"}") + b"}"
                    if b"integrity" in rest
                    else b""
                )
                yield b"}" + seal
                return
            yield line.strip().removesuffix(b",")


def _manifest(head: dict[str, Any], path: Path) -> RunManifest:
    version = str(head.get("schema_version", ""))
    if head.get("format") != "antiphon":
        raise ArtifactError(f"{path} is not an Antiphon artifact.", hint="Known formats: .antiphon and .kurral")
    if not version.startswith("1."):
        raise ArtifactError(
            f"{path} has schema version {version or '?'}; this release reads 1.x.", hint="Upgrade Antiphon."
        )
    try:
        return RunManifest.from_wire(head.get("manifest"))
    except ContractError as error:
        raise ArtifactError(f"{path}: the manifest is damaged: {error.message}") from None


def _event(line: bytes, run: str, number: int, path: Path) -> Event:
    try:
        wire = orjson.loads(line)
        if not isinstance(wire, dict):
            raise ArtifactError(f"{path}: event {number} is not an object.")
        event = Event.from_wire({"run": run, **wire})
    except (orjson.JSONDecodeError, ContractError, RecursionError) as error:
        raise ArtifactError(f"{path}: event {number} is damaged: {error}") from None
    if event.seq != number:
        raise ArtifactError(f"{path}: event {number} is missing (found {event.seq}).")
    if event.v > 1:
        raise ArtifactError(f"{path}: event {number} was written by a newer release.", hint="Upgrade Antiphon.")
    return event


def _whole(path: Path) -> Document:
    """A document in any layout, for example one that went through ``jq``."""
    try:
        document = orjson.loads(path.read_bytes())
    except (orjson.JSONDecodeError, RecursionError) as error:
        raise ArtifactError(f"{path} is not JSON: {error}.") from None
    if not isinstance(document, dict):
        raise ArtifactError(f"{path} is not an artifact.")
    manifest = _manifest(document, path)
    entries = document.get("events")
    if not isinstance(entries, list):
        raise ArtifactError(f"{path} has no events.")
    lines = [orjson.dumps(entry) for entry in entries]
    events = [_event(line, manifest.id, number, path) for number, line in enumerate(lines)]
    seal = document.get("integrity")
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    altered = isinstance(seal, dict) and (seal.get("events") != len(lines) or seal.get("sha256") != digest)
    return Document(manifest, lambda: events, altered)


def renamed(manifest: RunManifest, run_id: str, **tags: str) -> RunManifest:
    """The manifest of an imported run."""
    return msgspec.structs.replace(manifest, id=run_id, tags={**manifest.tags, **tags})
