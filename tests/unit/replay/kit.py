"""Recordings to replay: applications in memory, a scripted model, a recording that was tampered with."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

import antiphon
from antiphon._recording.run import Run
from antiphon.contract.events import Event
from antiphon.ports import Row
from antiphon.stores import MemoryStore

OK = {"model": "m-1", "temperature": 0, "messages": [{"role": "user", "content": "hi"}]}


def memory_app() -> antiphon.Antiphon:
    return antiphon.Antiphon({"replay": {"embedder": "lexical"}, "telemetry": {"logs": False}}, store=MemoryStore())


def says(text: str, **message: Any) -> dict[str, Any]:
    """A chat completion."""
    return {
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 7, "completion_tokens": 3},
    }


def asks(name: str, **arguments: Any) -> dict[str, Any]:
    """A chat completion that wants a tool."""
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    answer = says("")
    answer["choices"][0]["message"] |= {"content": None, "tool_calls": [call]}
    return answer


def copied(app: antiphon.Antiphon, run: Run, change: Callable[[list[Event]], list[Event]]) -> antiphon.Antiphon:
    """Another store with the same run, after *change* had its way with the events."""
    other = antiphon.Antiphon(app.loaded, store=MemoryStore())
    manifest = app.journal.manifest(run.id)
    assert manifest is not None
    other.journal.open_run(manifest)
    rows = [_row(event, run.id) for event in change(run.events())]
    other.journal.append(run.id, rows)
    return other


def _row(event: Event, run: str) -> Row:
    place = {"lane": event.lane, "index": event.index, "call": event.call, "parent": event.parent}
    body = {**place, "payload": event.payload, "meta": event.meta, "v": event.v}
    return Row(run, event.type, event.at_ms, json.dumps(body).encode())


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every leaf of a JSON value with its path."""
    if isinstance(value, dict) and value:
        for name, inner in value.items():
            yield from leaves(inner, (*path, name))
    elif isinstance(value, list) and value:
        for place, inner in enumerate(value):
            yield from leaves(inner, (*path, place))
    else:
        yield path, value


def other_value(value: Any) -> Any:
    """A value of the same kind that is not equal."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, (int, float)):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    return ["x"] if isinstance(value, list) else {"x": 1} if isinstance(value, dict) else "x"


def with_leaf(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A copy of *value* with another leaf."""
    if not path:
        return new
    name, *rest = path
    if isinstance(value, dict):
        return {**value, name: with_leaf(value[name], tuple(rest), new)}
    return [*value[:name], with_leaf(value[name], tuple(rest), new), *value[name + 1 :]]


def mutations(event: Event, *, sealed: bool) -> Iterator[tuple[str, Event]]:
    """The event with one field changed, for each of its fields; unsealed, the check sum is taken away as well."""
    meta = event.meta if sealed else {name: value for name, value in event.meta.items() if name != "sum"}
    event = msgspec.structs.replace(event, meta=meta)
    for path, value in leaves(event.payload):
        changed = with_leaf(event.payload, path, other_value(value))
        yield ".".join(map(str, path)), msgspec.structs.replace(event, payload=changed)
    for name in ("lane", "call", "index", "parent"):
        yield name, msgspec.structs.replace(event, **{name: other_value(getattr(event, name))})
    if sealed:
        for path, value in leaves(meta):
            changed = with_leaf(meta, path, other_value(value))
            yield f"meta.{'.'.join(map(str, path))}", msgspec.structs.replace(event, meta=changed)
