"""The artifact: a run as one readable JSON document (K1).

The head has what a person or ``jq`` looks for. ``tool_calls`` and ``events`` hold one entry per line, so that writer
and reader can stream: memory does not grow with the run. ``integrity`` holds the number of events and the hash of their
bytes; a document that was edited by hand can still be imported, and is marked as altered.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn

import orjson

from antiphon._recording.plain import dump
from antiphon.contract.events import EVENT_VERSION, Event, RunManifest
from antiphon.errors import ArtifactError, ContractError
from antiphon.llm.request import config_of

_LARGEST = 2**64 - 1
_LONGEST_INT = 20


class BadJson(ValueError):
    """Reports what is wrong with the document."""


def strict_loads(data: bytes) -> Any:
    """The value of *data*; raises :class:`BadJson`. Data in our own layout takes a fast path."""
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise BadJson(str(error)) from None
    try:
        if orjson.dumps(value) != data:
            json.loads(data, object_pairs_hook=_unique, parse_int=_fitting, parse_constant=_refused)
    except (TypeError, RecursionError):
        raise BadJson("it is nested too deeply") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> None:
    names = set()
    for name, _ in pairs:
        if name in names:
            raise BadJson(f"the key {name[:60]!r} appears twice")
        names.add(name)


def _fitting(digits: str) -> int:
    if len(digits) > _LONGEST_INT or abs(number := int(digits)) > _LARGEST:
        raise BadJson("a number cannot be represented exactly")
    return number


def _refused(word: str) -> NoReturn:
    raise BadJson(f"{word} is not valid JSON")


_MOST_ERRORS = 1_000


def iso(ms: int | None) -> str | None:
    """A time as written in an artifact."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def digest(value: Any) -> str:
    """The digest of JSON data, independent of key order."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


class Facts:
    """Inputs, outputs, model, tools, tokens and errors of a run; holds no more than the head needs."""

    def __init__(self, manifest: RunManifest) -> None:
        self.inputs: list[Any] = []
        self.outputs: list[dict[str, Any]] = []
        self.prompt: dict[str, Any] | None = None
        self.templates: set[str] = set()
        self.usage = {"input_tokens": 0, "output_tokens": 0}
        self.errors: list[dict[str, Any]] = []
        self.llm_config: dict[str, Any] = dict(manifest.llm_config)
        self.tools: dict[str, Any] = dict(manifest.tool_schemas)
        self.error: Any = None
        self.interactions = False

    def see(self, event: Event) -> None:
        """Process the next event."""
        payload = event.payload
        match event.type:
            case "run.started" if "input" in payload and not self.inputs:
                self.inputs.append({"input": payload["input"]})
            case "interaction.started":
                if not self.interactions:  # interactions are the inputs, then; the run's own input is not another one
                    self.inputs.clear()
                    self.interactions = True
                self.inputs.append({"input": payload.get("input")})
            case "interaction.finished":
                self.outputs.append({"input": self._asked(), "output": payload.get("output")})
            case "prompt":
                self.prompt = self.prompt or payload
                self.templates.add(digest([payload.get("name"), payload.get("template")]))
            case "run.finished":
                self.error = payload.get("error")
                if not self.interactions and "output" in payload:
                    given = self.inputs[0]["input"] if self.inputs else None
                    self.outputs = [{"input": given, "output": payload["output"]}]
            case "call.started" if payload.get("kind") == "llm":
                self._request(payload.get("request"))
            case "call.finished":
                self._finished(event)

    def _asked(self) -> Any:
        place = len(self.outputs)
        return self.inputs[place]["input"] if place < len(self.inputs) else None

    def _finished(self, event: Event) -> None:
        usage = event.meta.get("usage")
        if isinstance(usage, dict):
            self.usage["input_tokens"] += _count(usage.get("inputTokens"))
            self.usage["output_tokens"] += _count(usage.get("outputTokens"))
        if event.payload.get("outcome") == "error" and len(self.errors) < _MOST_ERRORS:
            error = event.payload.get("error")
            self.errors.append({"event": event.seq, **(error if isinstance(error, dict) else {})})

    def _request(self, request: Any) -> None:
        if not isinstance(request, dict):
            return
        if "model_name" not in self.llm_config:
            self.llm_config |= config_of(request, request.get("provider"))
        tools = request.get("tools")
        for tool in tools if isinstance(tools, list) else []:
            if isinstance(tool, dict) and "name" in tool:
                self.tools[str(tool["name"])] = tool

    def resolved_prompt(self) -> dict[str, Any] | None:
        """The first prompt: template, variables and text, with their digests."""
        return None if self.prompt is None else resolved(self.prompt)

    def graph_version(self, manifest: RunManifest) -> dict[str, str]:
        """Digests that change with tools or prompts, but not with inputs."""
        return {
            "graph_hash": manifest.graph_digest or digest([sorted(self.tools), sorted(self.templates)]),
            "tool_schemas_hash": digest(self.tools),
        }


def resolved(prompt: dict[str, Any]) -> dict[str, Any]:
    """A prompt in the terms of the document."""
    template, text = str(prompt.get("template") or ""), str(prompt.get("text") or "")
    variables = prompt.get("variables") or {}
    return {
        "template": template,
        "template_hash": hashlib.sha256(template.encode()).hexdigest(),
        "variables": variables,
        "variables_hash": digest(variables),
        "final_text": text,
        "final_text_hash": hashlib.sha256(text.encode()).hexdigest(),
    }


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


SCHEMA_VERSION = "1.0.0"
MAX_LINE = 256 * 1024 * 1024
MAX_DOCUMENT = 512 * 1024 * 1024
_EVENTS_MARK = b'  "events": ['
_CALLS_MARK = b'  "tool_calls": ['
_END_OF_LIST = b"  ]"
_SEAL_MARK = b'  "integrity": '
_LONGEST_NAME = 1_000
LAST_MS = 253_402_300_799_999
"""The end of the year 9999: no clock is later."""
USABLE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+~-]{0,199}")
Events = Callable[[], Iterable[Event]]


def _head(manifest: RunManifest, facts: Facts) -> dict[str, Any]:
    end = manifest.finished_at_ms
    return {
        "schema_version": SCHEMA_VERSION,
        "format": "antiphon",
        "run_id": manifest.id,
        "id": manifest.id,
        "name": manifest.name,
        "status": manifest.status,
        "tenant_id": manifest.tenant,
        "created_at": iso(manifest.started_at_ms),
        "duration_ms": None if end is None else end - manifest.started_at_ms,
        "inputs": {"interactions": facts.inputs},
        "outputs": {"interactions": facts.outputs},
        "error": facts.error,
        "errors": facts.errors,
        "llm_config": facts.llm_config,
        "token_usage": {**facts.usage, "total_tokens": sum(facts.usage.values())},
        "resolved_prompt": facts.resolved_prompt(),
        "graph_version": facts.graph_version(manifest),
        "manifest": manifest.to_wire(),
    }


def write_artifact(out: IO[bytes], manifest: RunManifest, events: Events) -> int:
    """Write the document; *events* is called three times, so that nothing is held in memory. Returns their number."""
    facts = Facts(manifest)
    for event in events():
        facts.see(event)
    out.write(b"{\n")
    for name, value in _head(manifest, facts).items():
        out.write(b"  " + orjson.dumps(name) + b": " + orjson.dumps(value) + b",\n")
    out.write(_CALLS_MARK + b"\n")
    _lines(out, (dump(_tool_call(*call)) for call in tool_calls(events())))
    out.write(_END_OF_LIST + b",\n" + _EVENTS_MARK + b"\n")
    seal = Seal(manifest)
    _lines(out, (seal.line(event) for event in events()))
    out.write(_END_OF_LIST + b",\n" + _SEAL_MARK + orjson.dumps(seal.to_wire()) + b"\n}\n")
    return seal.count


class Seal:
    """The number of events, and the hashes of their lines and of the manifest."""

    def __init__(self, manifest: RunManifest, wire: Any = None) -> None:
        """*wire* is the manifest as it is in a document: earlier releases had fewer fields."""
        self.count = 0
        self._manifest = digest(manifest.to_wire() if wire is None else wire)
        self._hash = hashlib.sha256()

    def line(self, event: Event) -> bytes:
        """The line of the next event; what is nested too deeply for it is cut."""
        line = dump(wire_of(event))
        self.take(line)
        return line

    def take(self, line: bytes) -> None:
        self._hash.update(line)
        self.count += 1

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def to_wire(self) -> dict[str, Any]:
        return {"events": self.count, "sha256": self.digest, "manifest": self._manifest}


def wire_of(event: Event) -> dict[str, Any]:
    """The event as the document holds it."""
    wire = event.to_wire()
    wire.pop("run")
    return wire


def _lines(out: IO[bytes], entries: Iterable[bytes]) -> None:
    before = b"    "
    for entry in entries:
        out.write(before + entry)
        before = b",\n    "
    out.write(b"\n" if before != b"    " else b"")


def tool_calls(events: Iterable[Event]) -> Iterator[tuple[Event, list[Any], Event | None]]:
    """Start, chunks and end of each tool call, in the order they finished; calls without an outcome come last."""
    waiting: dict[str, tuple[Event, list[Any]]] = {}
    for event in events:
        call = event.call or ""
        if event.type == "call.started" and event.payload.get("kind") != "llm":
            waiting[call] = event, []
        elif event.type == "call.chunk" and call in waiting:
            waiting[call][1].append(event.payload.get("data"))
        elif event.type == "call.finished" and call in waiting:
            yield *waiting.pop(call), event
    for started, chunks in waiting.values():
        yield started, chunks, None


def _tool_call(started: Event, chunks: list[Any], finished: Event | None) -> dict[str, Any]:
    payload = {} if finished is None else finished.payload
    outcome = str(payload.get("outcome", "unknown"))
    return {
        "id": started.call,
        "tool_name": started.payload.get("name"),
        "namespace": started.payload.get("namespace"),
        "start_time": iso(started.at_ms),
        "end_time": None if finished is None else iso(finished.at_ms),
        "latency_ms": None if finished is None else finished.meta.get("durationMs", finished.at_ms - started.at_ms),
        "input": started.payload.get("arguments"),
        "input_hash": started.payload.get("digest"),
        "output": chunks or payload.get("value"),
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
    digest: str
    """The digest of its events as they are."""
    length: int
    """How many events there are."""
    foreign: bool = False
    """Whether it comes from another format."""


def read_artifact(path: Path) -> Document:
    """Check the whole document before any of it is used; the file is read line by line if its layout allows it."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = _read_head(file, path)
        if head is not None:
            return _in_lines(path, head)
        if size > MAX_DOCUMENT:
            raise ArtifactError(f"{path} is too large ({size} bytes) for a document that is not written line by line.")
        return _whole(path)
    except FileNotFoundError:
        raise ArtifactError(f"There is no file {path}.", code="not_found") from None
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror or error}.") from None


def _in_lines(path: Path, head: dict[str, Any]) -> Document:
    manifest = _manifest(head, path)
    seal, given = Seal(manifest, head.get("manifest")), None
    for line in _event_lines(path):
        if isinstance(line, bytes):
            check_event(line, manifest.id, seal.count, str(path))
            seal.take(line)
        else:
            given = line
            break
    else:
        raise ArtifactError(f"{path} is cut off after event {seal.count - 1}: the end of the document is missing.")

    def events() -> Iterator[Event]:
        for number, line in enumerate(_event_lines(path)):
            if not isinstance(line, bytes):
                return
            yield check_event(line, manifest.id, number, str(path))

    return Document(manifest, events, given != seal.to_wire(), seal.digest, seal.count)


def _read_head(file: IO[bytes], path: Path) -> dict[str, Any] | None:
    """The keys before ``tool_calls``; ``None`` if the file is not laid out in lines."""
    head: dict[str, Any] = {}
    if file.readline(16).strip() != b"{":
        return None
    while line := file.readline(MAX_LINE):
        if line.startswith((_CALLS_MARK, _EVENTS_MARK)):
            return head
        try:
            entry = orjson.loads(b"{" + line.strip().removesuffix(b",") + b"}")
        except orjson.JSONDecodeError:
            return None
        if not entry.keys().isdisjoint(head):
            raise ArtifactError(f"{path}: the key {next(iter(entry))[:60]!r} appears twice.")
        head |= entry
    return None


def _event_lines(path: Path) -> Iterator[bytes | dict[str, Any] | None]:
    """The bytes of each event, then the document's integrity data; the latter is missing if the document is cut off."""
    with path.open("rb") as file:
        while line := file.readline(MAX_LINE):
            if line.startswith(_EVENTS_MARK):
                break
        while line := file.readline(MAX_LINE):
            if line.startswith(_END_OF_LIST):
                yield from _read_end(line, file, path)
                return
            yield line.strip().removesuffix(b",")


def _read_end(line: bytes, file: IO[bytes], path: Path) -> Iterator[dict[str, Any] | None]:
    seal: Any = None
    end = file.readline(MAX_LINE)
    if line.rstrip() == _END_OF_LIST + b"," and end.startswith(_SEAL_MARK):
        try:
            seal = strict_loads(end.removeprefix(_SEAL_MARK).strip())
        except BadJson as error:
            raise ArtifactError(f"{path}: its integrity value is damaged: {error}.") from None
        end = file.readline(MAX_LINE)
    if end.strip() == b"}":
        if file.read(1024).strip():
            raise ArtifactError(f"{path}: unexpected data after the end of the document.")
        yield seal if isinstance(seal, dict) else None


def _manifest(head: dict[str, Any], path: Path) -> RunManifest:
    version = str(head.get("schema_version", ""))
    if head.get("format") != "antiphon":
        raise ArtifactError(
            f"{path} is not an Antiphon artifact.",
            hint="Known formats: .antiphon, .kurral, OTLP and ATIF. Make one: antiphon export RUN -o FILE.antiphon",
        )
    if not version.startswith("1."):
        raise ArtifactError(
            f"{path} has schema version {version[:40] or '?'}; this release reads 1.x.", hint="Upgrade Antiphon."
        )
    try:
        orjson.dumps(head)
        manifest = RunManifest.from_wire(head.get("manifest"))
    except TypeError:
        raise ArtifactError(f"{path}: it is nested too deeply.") from None
    except ContractError as error:
        raise ArtifactError(f"{path}: the manifest is damaged: {error.message}") from None
    if max(manifest.started_at_ms, manifest.finished_at_ms or 0) > LAST_MS or len(manifest.name) > _LONGEST_NAME:
        raise ArtifactError(f"{path}: the manifest has an invalid name or timestamp.")
    if not USABLE_ID.fullmatch(manifest.id):
        raise ArtifactError(f"{path}: its run id is not valid.", hint="Ids have letters, digits and . _ : @ + ~ -")
    if manifest.v > EVENT_VERSION:
        raise ArtifactError(f"{path} was written by a newer release.", hint="Upgrade Antiphon.")
    return manifest


def check_event(line: bytes, run: str, number: int, where: str) -> Event:
    """The event of a line; any problem with it is an :class:`~antiphon.errors.ArtifactError`."""
    try:
        wire = strict_loads(line)
        if not isinstance(wire, dict):
            raise ArtifactError(f"{where}: event {number} is not an object.")
        event = Event.from_wire({"run": run, **wire})
    except (BadJson, ContractError) as error:
        raise ArtifactError(f"{where}: event {number} is damaged: {error}") from None
    if event.seq != number:
        raise ArtifactError(f"{where}: event {number} is missing (found {event.seq}).")
    if event.v > EVENT_VERSION:
        raise ArtifactError(f"{where}: event {number} was written by a newer release.", hint="Upgrade Antiphon.")
    if not 0 <= event.index < 2**53 or event.at_ms > LAST_MS:
        raise ArtifactError(f"{where}: event {number} has an invalid index or timestamp.")
    return event


def _whole(path: Path) -> Document:
    """A document in any layout, for example after a pass through ``jq``."""
    try:
        document = strict_loads(path.read_bytes())
    except BadJson as error:
        raise ArtifactError(f"{path} is not an artifact: {error}.") from None
    if not isinstance(document, dict):
        raise ArtifactError(f"{path} is not an artifact.")
    manifest = _manifest(document, path)
    entries = document.get("events")
    if not isinstance(entries, list):
        raise ArtifactError(f"{path} has no events.")
    seal = Seal(manifest, document.get("manifest"))
    events = []
    for number, entry in enumerate(entries):
        line = orjson.dumps(entry)
        events.append(check_event(line, manifest.id, number, str(path)))
        seal.take(line)
    return Document(manifest, lambda: events, document.get("integrity") != seal.to_wire(), seal.digest, seal.count)
