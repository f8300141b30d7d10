"""OpenTelemetry traces with GenAI spans (OTLP as JSON) as runs: one run for each trace.

Spans follow the semantic conventions of generative AI: ``chat`` and its kin are model calls, ``execute_tool`` is a tool
call. Requests and answers are present only if the instrumentation captured content; a run without them can only be
viewed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import orjson

from antiphon._recording.artifact import LAST_MS
from antiphon._recording.foreign import (
    Completeness,
    EventBuilder,
    ImportedRun,
    answer_of,
    assistant,
    usable_id,
    usage_of,
)
from antiphon.contract.events import RunManifest
from antiphon.errors import ArtifactError

FORMAT = "otel"
_MODEL = frozenset({"chat", "generate_content", "text_completion"})
_TOOL = "execute_tool"
_AGENT = frozenset({"invoke_agent", "create_agent", "invoke_workflow"})
_DETAILS = "gen_ai.client.inference.operation.details"
_OPTIONS = ("temperature", "top_p", "top_k", "max_tokens", "seed", "frequency_penalty", "presence_penalty")
_ERROR = (2, "STATUS_CODE_ERROR")
_DEEPEST = 64
_Span = dict[str, Any]


def is_otlp(document: Any) -> bool:
    """Whether a document has the shape of an OTLP export of traces."""
    return isinstance(document, dict) and "resourceSpans" in document


def runs_of(documents: list[dict[str, Any]], *, tenant: str, workspace: str) -> Iterator[ImportedRun]:
    """The runs of all traces that contain a GenAI span, in the order in which they began."""
    traces: dict[str, list[_Span]] = {}
    for number, document in enumerate(documents):
        for span in _spans(document, f"line {number + 1}: " if len(documents) > 1 else ""):
            traces.setdefault(span["trace"], []).append(span)
    found = {trace: spans for trace, spans in traces.items() if any("gen_ai" in span for span in spans)}
    if not found:
        raise ArtifactError(
            "There is no GenAI span in the file.", hint="Spans of agents have the attribute gen_ai.operation.name."
        )
    for trace, spans in sorted(found.items(), key=lambda one: min(span["start"] for span in one[1])):
        yield _Writer(trace, spans, tenant, workspace).to_run()


# -- reading OTLP -----------------------------------------------------------------------------------------------------


def _spans(document: dict[str, Any], where: str) -> Iterator[_Span]:
    for resource in _list(document, "resourceSpans", where):
        service = _attributes(_object(resource, "resource", where), where).get("service.name")
        for scope in _list(resource, "scopeSpans", where):
            for raw in _list(scope, "spans", where):
                yield _span(raw, service, where)


def _span(raw: dict[str, Any], service: Any, where: str) -> _Span:
    trace = raw.get("traceId")
    if not isinstance(trace, str) or not trace:
        raise ArtifactError(f"{where}a span has no traceId.")
    attributes = _attributes(raw, where)
    for event in _list(raw, "events", where):
        if event.get("name") == _DETAILS:
            attributes = {**_attributes(event, where), **attributes}
    status = _object(raw, "status", where)
    operation = attributes.get("gen_ai.operation.name")
    return {
        "trace": trace,
        "id": str(raw.get("spanId") or ""),
        "parent": str(raw.get("parentSpanId") or ""),
        "name": str(raw.get("name") or ""),
        "service": service,
        "start": _ms(raw.get("startTimeUnixNano")),
        "end": _ms(raw.get("endTimeUnixNano")),
        "error": str(status.get("message") or attributes.get("error.type") or "error")
        if status.get("code") in _ERROR
        else None,
        "attributes": attributes,
        **({"gen_ai": str(operation)} if operation is not None else {}),
    }


def _object(value: dict[str, Any], name: str, where: str) -> dict[str, Any]:
    found = value.get(name)
    if found is not None and not isinstance(found, dict):
        raise ArtifactError(f"{where}{name} is not an object.")
    return found or {}


def _list(value: dict[str, Any], name: str, where: str) -> list[dict[str, Any]]:
    found = value.get(name)
    if found is None:
        return []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise ArtifactError(f"{where}{name} is not a list of objects.")
    return found


def _ms(nanoseconds: Any) -> int:
    """OTLP writes 64-bit numbers as strings."""
    try:
        return min(max(0, int(nanoseconds) // 1_000_000), LAST_MS)
    except (TypeError, ValueError, OverflowError):
        return 0


def _attributes(value: dict[str, Any], where: str) -> dict[str, Any]:
    return {str(one.get("key")): _value(one.get("value")) for one in _list(value, "attributes", where)}


def _value(wire: Any, depth: int = 0) -> Any:
    """The plain value of an ``AnyValue``."""
    if not isinstance(wire, dict) or not wire or depth > _DEEPEST:
        return None
    name, value = next(iter(wire.items()))
    if name == "intValue":
        try:
            number = int(value)
        except (TypeError, ValueError):
            return None
        return number if -(2**63) <= number < 2**63 else None
    if name == "arrayValue":
        values = value.get("values") if isinstance(value, dict) else None
        return [_value(one, depth + 1) for one in values] if isinstance(values, list) else []
    if name == "kvlistValue":
        values = value.get("values") if isinstance(value, dict) else None
        pairs = [one for one in values if isinstance(one, dict)] if isinstance(values, list) else []
        return {str(one.get("key")): _value(one.get("value"), depth + 1) for one in pairs}
    if name == "bytesValue":
        try:
            return base64.b64decode(str(value), validate=True).decode("utf-8", "replace")
        except (binascii.Error, ValueError):
            return None
    return value


def _json(value: Any) -> Any:
    """Structured content: unchanged, or parsed from the JSON text that most exporters make of it."""
    if not isinstance(value, str):
        return value
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        return value


def _objects(value: Any) -> list[dict[str, Any]]:
    """The objects in structured content that is a list; none in anything else."""
    given = _json(value)
    return [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []


# -- writing events ---------------------------------------------------------------------------------------------------


class _Writer:
    """Converts one trace to events."""

    def __init__(self, trace: str, spans: list[_Span], tenant: str, workspace: str) -> None:
        self._trace = trace
        self._spans = sorted(spans, key=lambda span: (span["start"], -span["end"]))
        self._completeness = Completeness()
        self._input: Any = None
        self._output: Any = None
        inside = {span["id"] for span in spans}
        roots = [span for span in self._spans if span["parent"] not in inside]
        agents = [span for span in self._spans if span.get("gen_ai") in _AGENT]
        self._head = (agents or roots or self._spans)[0]
        named = self._head["attributes"].get("gen_ai.agent.name") or self._head["name"] or self._head["service"]
        models = [span for span in self._spans if span.get("gen_ai") in _MODEL]
        failed = next((span["error"] for span in roots if span["error"]), None)
        self._error = failed
        start = min((span["start"] for span in spans if span["start"]), default=0)
        self._definitions = _tools(self._spans)
        self.manifest = RunManifest(
            id=usable_id(trace, FORMAT),
            name=str(named or FORMAT)[:256],
            status="failed" if failed else "completed",
            started_at_ms=start,
            finished_at_ms=max([start, *(span["end"] for span in spans)]),
            tenant=tenant,
            workspace=workspace,
            llm_config=_config(models[0]) if models else {},
            tool_schemas=self._definitions,
            tags={"imported": FORMAT},
        )
        self._lines = EventBuilder(self.manifest.id, start)

    def to_run(self) -> ImportedRun:
        """The run, with its completeness in the event ``import``."""
        lines, completeness = self._lines, self._completeness
        started: dict[str, Any] = {"name": self.manifest.name}
        lines.add("run.started", started)
        header: dict[str, Any] = {"format": FORMAT, "trace": self._trace}
        lines.add("import", header)
        ends: list[tuple[int, int, Callable[[], None]]] = []
        others = 0
        for number, span in enumerate(self._spans):
            self._ended(ends, before=span["start"])
            operation = span.get("gen_ai")
            if operation in _MODEL:
                ends.append((span["end"], number, self._model(span)))
            elif operation == _TOOL:
                ends.append((span["end"], number, self._tool(span)))
            elif operation is not None and operation not in _AGENT:
                others += 1
                completeness.gap(f"{span['name']}: {operation} has no place in a run and is not imported")
        self._ended(ends)
        completeness.count("tool definitions", self._definitions, "the tools are not defined (gen_ai.tool.definitions)")
        attributes = self._head["attributes"]
        whole = _messages(attributes.get("gen_ai.input.messages"))
        task = _first_of_user(whole) if self._head.get("gen_ai") in _AGENT else None
        answer = _texts(attributes.get("gen_ai.output.messages"))
        started["input"] = task if task is not None else self._input
        completeness.count("task", started["input"] is not None, "no captured message says what the task was")
        output = answer or self._output
        last: dict[str, Any] = {"status": self.manifest.status, "output": output}
        if self._error:
            last["error"] = {"class": "", "code": "error", "message": self._error}
        header |= {"spans": len(self._spans), "otherSpans": others, "completeness": completeness.to_wire()}
        lines.add("run.finished", last, at_ms=self.manifest.finished_at_ms)
        digest = hashlib.sha256(orjson.dumps(self._spans, option=orjson.OPT_SORT_KEYS, default=str)).hexdigest()
        return ImportedRun(self.manifest, lines.events, digest)

    def _ended(self, ends: list[tuple[int, int, Callable[[], None]]], before: int | None = None) -> None:
        """Write the ends of calls that ended before the next one began."""
        ends.sort(key=lambda one: one[:2])
        while ends and (before is None or ends[0][0] <= before):
            _, _, finish = ends.pop(0)
            finish()

    def _model(self, span: _Span) -> Callable[[], None]:
        """Write the start of a model call; returns what writes its end."""
        completeness, attributes, name = self._completeness, span["attributes"], span["name"] or "a model call"
        asked, model = attributes.get("gen_ai.input.messages"), attributes.get("gen_ai.request.model")
        messages = _messages(asked)
        system = _system(attributes.get("gen_ai.system_instructions"))
        self._input = self._input if self._input is not None else _first_of_user(messages)
        completeness.count("timestamps", span["start"])
        completeness.count("model name", model, f"{name}: the model is not named")
        completeness.count("model requests", messages, f"{name}: the request was not captured (gen_ai.input.messages)")
        completeness.count("system prompt", system or any(one["role"] == "system" for one in messages))
        options = {option: attributes[key] for option in _OPTIONS if (key := f"gen_ai.request.{option}") in attributes}
        completeness.count("sampling parameters", "temperature" in options)
        provider = attributes.get("gen_ai.provider.name") or attributes.get("gen_ai.system")
        request = {
            "model": str(model or attributes.get("gen_ai.response.model") or "unknown"),
            **({"provider": str(provider)} if provider else {}),
            "messages": [*system, *messages],
            **({"tools": list(self._definitions.values())} if self._definitions else {}),
            **options,
        }
        place = self._lines.start(
            "llm", "llm", request, at_ms=span["start"], provider="openai-chat", meta={"importedId": span["id"]}
        )

        def finish() -> None:
            answers = _messages(attributes.get("gen_ai.output.messages"))
            for kind in [kind for side in _MESSAGES for kind in _unread(attributes.get(side))]:
                completeness.count(
                    "media", False, f"{name}: a part of type {kind} is kept beside the call, not in a message"
                )
            extra = _extra_attributes(attributes)
            if len(answers) > 1:
                completeness.gap(
                    f"{name}: {len(answers)} answers, of which the first is told and all are kept beside the call"
                )
                extra[_MESSAGES[1]] = attributes[_MESSAGES[1]]
            present = bool(answers) or span["error"] is not None
            completeness.count(
                "model answers", present, f"{name}: the answer was not captured (gen_ai.output.messages)"
            )
            given, taken = (attributes.get(f"gen_ai.usage.{side}_tokens") for side in ("input", "output"))
            usage = usage_of(given, taken)
            completeness.count("token usage", None not in usage.values(), f"{name}: no token usage")
            reasons = attributes.get("gen_ai.response.finish_reasons")
            stop = str(reasons[0]) if isinstance(reasons, list) and reasons else None
            value = None
            if answers:
                value = answer_of(answers[0], attributes.get("gen_ai.response.model"), stop)
                text = answers[0].get("content")
                self._output = text if isinstance(text, str) and text else self._output
            meta = {"usage": usage, "durationMs": max(0, span["end"] - span["start"])}
            self._lines.finish(place, value, error=span["error"], at_ms=span["end"], meta=meta, extra=extra)

        return finish

    def _tool(self, span: _Span) -> Callable[[], None]:
        """The same for the call of a tool."""
        completeness, attributes = self._completeness, span["attributes"]
        name = str(attributes.get("gen_ai.tool.name") or span["name"].removeprefix(f"{_TOOL} ") or "tool")
        arguments = _json(attributes.get("gen_ai.tool.call.arguments"))
        completeness.count("timestamps", span["start"])
        completeness.count(
            "tool arguments", arguments is not None, f"{name}: arguments not captured (gen_ai.tool.call.arguments)"
        )
        meta = {"importedId": str(attributes.get("gen_ai.tool.call.id") or span["id"])}
        place = self._lines.start("tool", name, arguments, at_ms=span["start"], meta=meta)

        def finish() -> None:
            present = "gen_ai.tool.call.result" in attributes or span["error"] is not None
            completeness.count("tool results", present, f"{name}: no result was captured (gen_ai.tool.call.result)")
            if not present:
                return  # whether and how it ended is known, but not its result
            value = _json(attributes.get("gen_ai.tool.call.result"))
            meta = {"durationMs": max(0, span["end"] - span["start"])}
            self._lines.finish(
                place, value, error=span["error"], at_ms=span["end"], meta=meta, extra=_extra_attributes(attributes)
            )

        return finish


_READ = frozenset(
    "gen_ai.input.messages gen_ai.output.messages gen_ai.system_instructions gen_ai.tool.definitions gen_ai.tool.name"
    " gen_ai.tool.call.arguments gen_ai.tool.call.result gen_ai.tool.call.id gen_ai.request.model"
    " gen_ai.usage.input_tokens gen_ai.usage.output_tokens gen_ai.operation.name".split()
)


_MESSAGES = ("gen_ai.input.messages", "gen_ai.output.messages")
_PARTS = frozenset({"text", "reasoning", "tool_call", "tool_call_response"})


def _extra_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    """What the events do not hold; the original messages if a part of them is not read."""
    left = {name for name in _MESSAGES if _unread(attributes.get(name))}
    return {name: value for name, value in attributes.items() if name not in _READ or name in left}


def _config(span: _Span) -> dict[str, Any]:
    attributes = span["attributes"]
    found = {
        "model_name": attributes.get("gen_ai.request.model"),
        "provider": attributes.get("gen_ai.provider.name") or attributes.get("gen_ai.system"),
        **{name: attributes.get(f"gen_ai.request.{name}") for name in ("temperature", "seed")},
    }
    return {name: value for name, value in found.items() if value is not None}


def _tools(spans: list[_Span]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for span in spans:
        for one in _objects(span["attributes"].get("gen_ai.tool.definitions")):
            inner = one.get("function")
            name = (inner if isinstance(inner, dict) else one).get("name")
            if isinstance(name, str):
                found.setdefault(name, one if isinstance(inner, dict) else {"type": "function", "function": one})
    return found


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    parts = message.get("parts")
    if isinstance(parts, list):
        return [one for one in parts if isinstance(one, dict)]
    content = message.get("content")
    return [{"type": "text", "content": content}] if isinstance(content, str) else []


def _messages(value: Any) -> list[dict[str, Any]]:
    """Messages of the conventions (role and parts) in the vocabulary of the chat API."""
    found: list[dict[str, Any]] = []
    for one in _objects(value):
        parts = _parts(one)
        role = str(one.get("role") or "user")
        text = "\n".join(str(p.get("content") or "") for p in parts if p.get("type") == "text")
        calls = [
            (str(p.get("id") or ""), str(p.get("name") or ""), p.get("arguments") or {})
            for p in parts
            if p.get("type") == "tool_call"
        ]
        replies = [p for p in parts if p.get("type") == "tool_call_response"]
        for reply in replies:
            content = reply.get("response", reply.get("result"))
            shown = content if isinstance(content, str) else orjson.dumps(content).decode()
            found.append({"role": "tool", "tool_call_id": str(reply.get("id") or ""), "content": shown})
        if role == "assistant":
            thought = "\n".join(str(p.get("content") or "") for p in parts if p.get("type") == "reasoning")
            found.append(assistant(text, calls, thought))
        elif text or not replies:  # text next to a tool reply is a user message
            found.append({"role": "user" if replies else role, "content": text})
    return found


def _unread(value: Any) -> list[str]:
    """The types of parts that have no place in messages built from *value*: images, files and others."""
    kinds = [str(part.get("type")) for one in _objects(value) for part in _parts(one)]
    return [kind for kind in kinds if kind not in _PARTS]


def _system(value: Any) -> list[dict[str, Any]]:
    given = _json(value)
    if isinstance(given, str):
        return [{"role": "system", "content": given}] if given else []
    text = "\n".join(str(one.get("content") or "") for one in _objects(given))
    return [{"role": "system", "content": text}] if text else []


def _first_of_user(messages: list[dict[str, Any]]) -> Any:
    return next((one["content"] for one in messages if one["role"] == "user"), None)


def _texts(value: Any) -> str | None:
    text = "\n".join(one["content"] for one in _messages(value) if isinstance(one.get("content"), str))
    return text or None
