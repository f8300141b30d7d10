"""Runs in other formats: what their importers share when they convert them to our events (K1).

A format tells less than our own recordings, so each import counts what is there and names what is missing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from antiphon._recording.artifact import LAST_MS, USABLE_ID
from antiphon._recording.plain import digest_of
from antiphon.contract.events import Event, RunManifest

_MOST_GAPS = 100
PARTIAL = "partial"
"""In the payload of a model call whose request is not in the file: its messages are those since the previous call."""
WITHOUT_CODE = ("atif", "otel")
"""Formats that record what happened, but not which code ran."""
Place = dict[str, Any]


class ImportedRun(NamedTuple):
    """A run read from a file."""

    manifest: RunManifest
    events: list[Event]
    digest: str = ""
    """The digest that identifies the run's source on a repeated import; by default that of the events."""


class Completeness:
    """How much of what our own recordings hold a file tells: by field, overall, and the gaps in words."""

    def __init__(self) -> None:
        self._fields: dict[str, list[int]] = {}
        self._gaps: list[str] = []
        self._more = 0

    def count(self, field: str, present: object, gap: str = "") -> None:
        """Count one more occurrence where *field* belongs; *gap* says what its absence means."""
        found = self._fields.setdefault(field, [0, 0])
        found[0] += bool(present)
        found[1] += 1
        if gap and not present:
            self.gap(gap)

    def gap(self, text: str) -> None:
        """Note something that the file does not tell."""
        if len(self._gaps) < _MOST_GAPS:
            self._gaps.append(text)
        else:
            self._more += 1

    def to_wire(self) -> dict[str, Any]:
        """``fields`` (present, of), ``overall`` and ``gaps``."""
        fields = {name: {"present": present, "of": of} for name, (present, of) in self._fields.items()}
        return {"overall": overall(fields), "fields": fields, "gaps": self._gaps, "moreGaps": self._more}


def overall(fields: Mapping[str, Mapping[str, int]]) -> float:
    """The mean of the shares of all fields, equally weighted: a long run does not outvote a missing field."""
    shares = [one["present"] / one["of"] for one in fields.values() if one["of"]]
    return round(sum(shares) / len(shares), 4) if shares else 0.0


def merge_completeness(many: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The completeness of several runs: their counts summed; ``overall`` is computed from the sums."""
    fields: dict[str, dict[str, int]] = {}
    for one in many:
        for name, count in one["fields"].items():
            found = fields.setdefault(name, {"present": 0, "of": 0})
            found["present"] += count["present"]
            found["of"] += count["of"]
    return {"overall": overall(fields), "fields": fields}


class EventBuilder:
    """Writes the events of an imported run, numbered like our own."""

    def __init__(self, run: str, at_ms: int) -> None:
        self.run = run
        self.at_ms = at_ms
        """For events without a time of their own."""
        self.events: list[Event] = []
        self._index = 0
        self._seen: dict[tuple[str, str], int] = {}

    def place(self) -> Place:
        """The next position in the order of the run."""
        self._index += 1
        return {"lane": "0", "index": self._index - 1, "call": f"0@{self._index - 1}"}

    def add(self, kind: str, payload: dict[str, Any], *, at_ms: int | None = None, **fields: Any) -> None:
        """One more event."""
        at = self.at_ms if at_ms is None else at_ms
        self.events.append(Event(run=self.run, seq=len(self.events), type=kind, at_ms=at, payload=payload, **fields))

    def start(
        self,
        kind: str,
        name: str,
        content: Any,
        *,
        provider: str = "",
        partial: bool = False,
        extra: Mapping[str, Any] | None = None,
        at_ms: int | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Place:
        """The start of a call; *content* is its arguments, or the request to a model."""
        digest = digest_of(content)
        nth = self._seen.get((name, digest), 0)
        self._seen[(name, digest)] = nth + 1
        field = "request" if kind == "llm" else "arguments"
        place = self.place()
        started: dict[str, Any] = {"kind": kind, "name": name, field: content, "digest": digest, "nth": nth}
        if provider:
            started["provider"] = provider
        if partial:
            started[PARTIAL] = True
        if extra:
            started["imported"] = dict(extra)
        self.add("call.started", started, at_ms=at_ms, meta=dict(meta or {}), **place)
        return place

    def finish(
        self,
        place: Place,
        value: Any,
        *,
        error: str | None = None,
        extra: Mapping[str, Any] | None = None,
        at_ms: int | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> None:
        """The end of a call; *extra* is what else the file tells about it."""
        payload: dict[str, Any] = {"outcome": "ok", "value": value}
        if error is not None:
            payload = {"outcome": "error", "error": error_of(error), "value": value}
        if extra:
            payload["imported"] = dict(extra)
        self.add("call.finished", payload, at_ms=at_ms, meta=dict(meta or {}), **place)


def error_of(message: str) -> dict[str, str]:
    """An error of which only the message is known."""
    return {"class": "", "code": "error", "message": message}


def usable_id(given: str, kind: str) -> str:
    """*given* if it can be the id of a run, else an id derived from it."""
    return given if USABLE_ID.fullmatch(given) else hashed_id(given, kind)


def hashed_id(given: str, kind: str) -> str:
    """A run id derived from whatever identifies the run."""
    return f"{kind}-{hashlib.sha256(given.encode()).hexdigest()[:32]}"


def ms_of(text: Any) -> int:
    """Milliseconds of an ISO 8601 time; 0 for anything else."""
    try:
        moment = datetime.fromisoformat(str(text))
        return max(0, int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000))
    except (ValueError, OverflowError):
        return 0


def whole_ms(value: Any) -> int:
    """A duration or time in milliseconds; 0 for anything else."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= LAST_MS:
        return 0
    return int(value)


# -- model calls, in the vocabulary of the chat API that most clients use ----------------------------------------------


def assistant(text: Any, calls: Sequence[tuple[str, str, Any]], reasoning: str | None = None) -> dict[str, Any]:
    """What a model said: text, and calls as (id, name, arguments)."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": id_, "type": "function", "function": {"name": name, "arguments": _text(arguments)}}
            for id_, name, arguments in calls
        ]
    return message


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()


def answer_of(message: dict[str, Any], model: str | None, finish: str | None = None) -> dict[str, Any]:
    """The answer that holds this message."""
    stop = finish or ("tool_calls" if "tool_calls" in message else "stop")
    choice = {"index": 0, "message": message, "finish_reason": stop}
    return {"choices": [choice], **({"model": model} if model else {})}


def usage_of(input_tokens: Any, output_tokens: Any) -> dict[str, int | None]:
    """Tokens in and out, if they are numbers."""

    def count(value: Any) -> int | None:
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    return {"inputTokens": count(input_tokens), "outputTokens": count(output_tokens)}


def conversation(events: Sequence[Event]) -> list[dict[str, Any]]:
    """What a partial request stands for, given the events before its answer: all messages since the run began."""
    messages: list[dict[str, Any]] = []
    asked: set[str | None] = set()
    for event in events:
        payload = event.payload
        if event.type == "call.started" and payload.get("kind") == "llm" and PARTIAL in payload:
            asked.add(event.call)
            request = payload.get("request")
            given = request.get("messages") if isinstance(request, dict) else None
            messages += [one for one in given if isinstance(one, dict)] if isinstance(given, list) else []
        elif event.type == "call.finished" and event.call in asked:
            value = payload.get("value")
            choices = value.get("choices") if isinstance(value, dict) else None
            first = choices[0] if isinstance(choices, list) and choices else None
            if isinstance(first, dict) and isinstance(first.get("message"), dict):
                messages.append(first["message"])
    return messages
