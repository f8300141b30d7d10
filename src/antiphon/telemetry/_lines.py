"""An event as one line of JSON, redacted field by field; texts that were checked once are cached (R14)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from antiphon.redact import Redactor

NAMES = (
    "event timeMs requestId toolName toolNamespace toolCallId sessionKey idempotencyKeyHash correlationId state status"
    " scope attempt elapsedMs fromCache breakerState errorCode errorMessage reason retriable unclassified delayMs"
    " requestTags baggage traceparent fromHook fromState toState failOpen settled wouldHave"
).split()
"""The fields of our own events. None of these names marks its value as a secret or depends on neighbouring fields."""

HARMLESS = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # UUID
    r"|[0-9]{0,63}[a-f][0-9a-f]{0,63}"  # digest; digits alone could be a card
    r"|[a-z](?!.*_[0-9]{3}-[0-9]{3}-)[a-z0-9_-]{0,18}"  # short name or id; digits alone could be a telephone number
    r"|(?:call|toolu|fc|run|msg)_(?!A[A-Z]|SK|GR|dapi|[A-Z]{2}[0-9]{2})[A-Za-z0-9]{1,64}"  # call id of a provider
    r"|[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}"  # traceparent
)
"""Ids that no built-in rule matches in any field of :data:`NAMES`. None needs escaping."""

_OPTIONS = orjson.OPT_NON_STR_KEYS
_MOST_REMEMBERED = 1024
_LONGEST_REMEMBERED = 256
_is_harmless = HARMLESS.fullmatch


class Lines:
    """Encodes events for one redactor.

    Each field of :data:`NAMES` is redacted as a separate document. With any other field the line is redacted as a
    whole: its name may mark its own value or a neighbour's as a secret.
    """

    __slots__ = ("_containers", "_covers", "_is_harmless", "_redact", "_templates", "_texts")

    def __init__(self, redactor: Redactor) -> None:
        self._redact = redactor.redact_bytes
        # A user's pattern may match an id of any shape.
        self._is_harmless: Callable[[str], object] = _is_harmless if redactor.in_parts else _never
        self._texts: dict[str, dict[str, str]] = {name: {} for name in NAMES}
        """Per field: checked texts -> how they are written."""
        self._containers: dict[bytes, orjson.Fragment] = {}
        """The same for values that are neither text nor numbers, by their JSON."""
        self._templates = _Templates(self._checked, on=redactor.in_parts)
        by_field = not any(self._redact(orjson.dumps({name: 4821}))[1] for name in NAMES)
        self._covers: Callable[[Mapping[str, Any]], bool] = frozenset(NAMES).issuperset if by_field else _covers_nothing
        """Whether all fields are ours; always false if a user's rule makes numbers in them secret."""

    def encode(self, event: str, time_ms: int, fields: Mapping[str, Any]) -> str:
        """The line for *event*, without empty fields."""
        if event == "tool_call_end":
            line = self._templates.fill(time_ms, fields)
            if line is not None:
                return line
        if not self._covers(fields):
            return self._whole(event, time_ms, fields)
        texts, is_harmless = self._texts, self._is_harmless
        unknown: dict[str, str] = {}
        document: dict[str, Any] = {"event": texts["event"].get(event), "timeMs": time_ms}
        if document["event"] is None:
            unknown["event"] = event
        for name, value in fields.items():
            kind = value.__class__
            if kind is str:
                if value:
                    clean = texts[name].get(value)
                    if clean is None and not is_harmless(value):
                        unknown[name] = value
                    document[name] = clean or value
            elif kind is float or kind is bool or (kind is int and value < _SECRET_FROM):
                document[name] = value
            elif value is not None and value != "":
                document[name] = self._container(name, value)
        if unknown:
            document.update(self._check(unknown))
        if event == "tool_call_end":
            self._templates.learn(fields, document)
        return orjson.dumps(document).decode()

    def _whole(self, event: str, time_ms: int, fields: Mapping[str, Any]) -> str:
        document: dict[Any, Any] = {"event": event, "timeMs": time_ms}
        document.update((name, value) for name, value in fields.items() if value is not None and value != "")
        return self._redact(orjson.dumps(document, default=str, option=_OPTIONS))[0].decode()

    def _checked(self, name: str, text: str) -> str:
        """How *text* is written in the field *name*."""
        return self._texts[name].get(text) or self._check({name: text})[name]

    def _check(self, unknown: dict[str, str]) -> dict[str, str]:
        """Redact texts in their fields, and cache the result."""
        redacted, changed = self._redact(orjson.dumps(unknown))
        checked: dict[str, str] = orjson.loads(redacted) if changed else unknown
        for name, text in unknown.items():
            if len(text) <= _LONGEST_REMEMBERED:
                known = self._texts[name]
                if len(known) >= _MOST_REMEMBERED:
                    known.clear()
                known[text] = checked[name]
        return checked

    def _container(self, name: str, value: Any) -> orjson.Fragment:
        """Tags, baggage and objects, whose inner names matter; and integers that may be secrets."""
        document = orjson.dumps({name: value}, default=str, option=_OPTIONS)
        clean = self._containers.get(document)
        if clean is None:
            redacted, changed = self._redact(document)
            if not changed:
                clean = orjson.Fragment(document[len(name) + 4 : -1])  # {"name":…}
            else:
                clean = orjson.Fragment(orjson.dumps(_loads(redacted, name)))
            if len(document) <= _LONGEST_REMEMBERED:
                if len(self._containers) >= _MOST_REMEMBERED:
                    self._containers.clear()
                self._containers[document] = clean
        return clean


def _loads(redacted: bytes, name: str) -> Any:
    try:
        return orjson.loads(redacted)[name]
    except (ValueError, LookupError):  # JSON that is nested too deeply is redacted as text
        return redacted.decode("utf-8", "replace")


_NEW = ("requestId", "toolCallId", "idempotencyKeyHash", "correlationId", "elapsedMs")
"""Differ on each call. The other fields of a call's line usually repeat an earlier line."""
_NO_TEMPLATE = frozenset({"event", "timeMs", "errorMessage", "traceparent", "requestTags", "baggage"})
"""With one of these, lines rarely repeat an earlier one."""
_LONGEST_TEMPLATE = 2048
_LARGE = 1e15
_SECRET_FROM = 10**13
"""Smaller integers cannot be payment cards."""
_CONSTANT = frozenset({str, int, bool, type(None)})
_new_values = itemgetter(*_NEW)


class _TemplateSet(NamedTuple):
    """The lines of calls whose events have the same field names."""

    names: tuple[str, ...]
    repeating: Callable[[Mapping[str, Any]], tuple[Any, ...]]
    """The values that repeat between calls."""
    templates: dict[tuple[Any, ...], tuple[str, ...]]
    """For each combination of them: the text before, between and after the values that differ."""


class _Templates:
    """Templates for lines of ``tool_call_end``: one lookup for all repeating values instead of one for each."""

    __slots__ = ("_checked", "_on", "_seen", "_template_sets")

    def __init__(self, checked: Callable[[str, str], str], *, on: bool) -> None:
        self._checked = checked
        self._on = on
        self._template_sets: dict[int, _TemplateSet] = {}
        self._seen: set[tuple[Any, ...]] = set()

    def fill(self, time_ms: int, fields: Mapping[str, Any]) -> str | None:
        """The line from a template; ``None`` if there is none, or if a new value has an unusual type."""
        template_set = self._template_sets.get(len(fields))
        if template_set is None:
            return None
        try:
            template = template_set.templates.get(template_set.repeating(fields))
            if template is None:
                return None
            request, call, key, correlation, elapsed = _new_values(fields)
        except (KeyError, TypeError):  # other names; an unhashable value
            return None
        if elapsed.__class__ is not float or not 0.0 <= elapsed < _LARGE:
            return None
        if request.__class__ is not str or not request or key.__class__ is not str or not key:
            return None
        a, b, c, d, e, f, g = template
        request = f'"{request}"' if _is_harmless(request) else self._quoted("requestId", request)
        key = f'"{key}"' if _is_harmless(key) else self._quoted("idempotencyKeyHash", key)
        if call is not None and call != "":
            if call.__class__ is not str:
                return None
            call = f'"{call}"' if _is_harmless(call) else self._quoted("toolCallId", call)
            c = f'{c},"toolCallId":{call}'
        if correlation is not None and correlation != "":
            if correlation.__class__ is not str:
                return None
            quoted = f'"{correlation}"' if _is_harmless(correlation) else self._quoted("correlationId", correlation)
            e = f'{e},"correlationId":{quoted}'
        return f'{a}{time_ms}{b},"requestId":{request}{c}{d},"idempotencyKeyHash":{key}{e}{f},"elapsedMs":{elapsed}{g}'

    def _quoted(self, name: str, text: str) -> str:
        return _json(self._checked(name, text))

    def learn(self, fields: Mapping[str, Any], document: Mapping[str, Any]) -> None:
        """Cache a template for the repeating values of *fields*, as they are written in *document*."""
        names = tuple(fields)
        template_set = self._template_sets.get(len(names)) or self._begin(names)
        if template_set is None or template_set.names != names:
            return
        values = template_set.repeating(fields)
        if not {value.__class__ for value in values} <= _CONSTANT:
            return
        if values not in self._seen:  # most combinations never occur again
            if len(self._seen) >= _MOST_REMEMBERED:
                self._seen.clear()
            self._seen.add(values)
            return
        template = [f'{{"event":{_json(document["event"])},"timeMs":', ""]
        for name in names:
            if name in _NEW:
                template.append("")
            elif name in document:
                template[-1] += f",{_json(name)}:{_json(document[name])}"
        template[-1] += "}"
        if sum(map(len, template)) <= _LONGEST_TEMPLATE:
            if len(template_set.templates) >= _MOST_REMEMBERED:
                template_set.templates.clear()
            template_set.templates[values] = tuple(template)

    def _begin(self, names: tuple[str, ...]) -> _TemplateSet | None:
        repeating = tuple(name for name in names if name not in _NEW)
        if not self._on or not _NO_TEMPLATE.isdisjoint(names) or len(repeating) < 2:
            return None
        if tuple(name for name in names if name in _NEW) != _NEW:
            return None
        template_set = self._template_sets[len(names)] = _TemplateSet(names, itemgetter(*repeating), {})
        return template_set


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _never(text: str) -> None:
    """No text is harmless."""


def _covers_nothing(fields: Mapping[str, Any]) -> bool:
    return False
