"""Replace secrets by placeholders in JSON-like data, in text and in serialised JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from copy import copy
from typing import Any

import orjson

from antiphon.errors import InvalidInput
from antiphon.redact._detect import TRIVIAL, Span, TextRules, fits
from antiphon.redact._names import KEEP, Field
from antiphon.redact._prefilter import ALL, AT, Prefilter
from antiphon.redact._rules import CONSTANT_KINDS, PLACEHOLDER, Rules, placeholder
from antiphon.redact._tokens import MIN_RUN, TOKENS, deferred

_SCHEME = deferred(r"(?i)(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey|AWS4-HMAC-SHA256)[ \t]+")
_SCHEMA_WORDS = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "properties"})
_MEDIA_WORDS = frozenset({"media_type", "mediaType", "mime_type", "mimeType", "format"})
_PAIR_NAMES = ("name", "key", "header", "Name", "Key")
_PAIR_NAME = deferred(
    r"(?i:(?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]{1,30}|(?:[a-z]+-)?api-?key|private-token)|[A-Z][A-Z0-9_]{2,40}"
)
_SHORTEST = 6
"""No rule of ours finds anything in less (``a@b.no``)."""
_NAME_WITH_AT = re.compile(rb'@[^"]*":')
_REMEMBERED, _REMEMBERED_BYTES = 512, 120
_GONE = object()
_SHORTEST_WORD = 14
"""A single word has to be this long to be a card; all other kinds are longer."""


class Redactor:
    """Rules and a salt. ``redact`` returns the very same object where there is nothing to redact.

    It is idempotent, and never touches the ids that runs, calls, providers and traces are held together with.
    """

    def __init__(self, rules: Rules | None = None, salt: str | bytes = "") -> None:
        rules = rules or Rules()
        self._text = TextRules(rules)
        self._names = self._text.names
        self._prefilter = Prefilter(rules)
        self._constant = CONSTANT_KINDS.union(rule.name for rule in rules.user if rule.constant)
        patterns = any(rule.pattern for rule in rules.user)  # they may find anything
        self._shortest, self._shortest_word = (1, 1) if patterns else (_SHORTEST, _SHORTEST_WORD)
        self._salt = _salt(salt)
        self._known: dict[bytes, bytes] = {}
        """Short texts with an ``@`` as they are written: people and places come up again and again in a run."""

    def with_salt(self, salt: str | bytes) -> Redactor:
        """The same rules under the salt of another run; compiled patterns are shared."""
        other = copy(self)
        other._salt = _salt(salt)
        other._known = {}
        return other

    @property
    def in_parts(self) -> bool:
        """Whether the entries of a list can be looked at one by one: a rule of a user may speak of what is around."""
        return not self._prefilter.has_users

    def placeholder(self, kind: str, secret: str) -> str:
        """What stands for *secret* in this run."""
        return f"[secret:{kind}]" if kind in self._constant else placeholder(kind, secret, self._salt)

    def may_hold(self, document: bytes) -> bool:
        """A quick look: ``False`` is certain, ``True`` means that the rules have to read it."""
        return self._prefilter.causes(document) != 0

    def spans(self, text: str) -> list[Span]:
        """Where secrets stand in *text*, in order."""
        causes = self._prefilter.causes(_quoted(text))
        return self._text.spans(text, causes) if causes else []

    def redact_text(self, text: str) -> str:
        """*text* with placeholders; JSON inside a text is read as JSON."""
        return self._string(text, ALL)

    def redact(self, value: Any, field: str = "") -> Any:
        """JSON-like *value* with placeholders; *field* is the name it stands under, if it has one."""
        if type(value) is str and not field:
            return self._string(value, ALL)
        try:
            if field:
                return self._under(value, self._names[field], ALL)
            causes = self._causes(value)
            return self._walk(value, causes) if causes else value
        except RecursionError:
            raise InvalidInput("The value is nested too deeply to be redacted.", hint="Flatten it.") from None

    def _causes(self, value: Any) -> int:
        """A look at the serialised form is quicker than a walk; what cannot be serialised is walked."""
        try:
            return self._prefilter.causes(orjson.dumps(value))
        except TypeError:
            return ALL

    def redact_bytes(self, document: bytes) -> tuple[bytes, bool]:
        """Serialised JSON (or text) with placeholders, and whether anything was replaced."""
        causes = self._prefilter.causes(document)
        if not causes:
            return document, False
        if causes == AT and document[:1] in b'{["' and b"\\" not in document:
            return self._addresses(document)
        try:
            value = _loads(document)
            redacted = self._walk(value, causes)
        except (ValueError, RecursionError):  # no JSON, or nested too deeply: it is still a text
            text = document.decode("utf-8", "surrogateescape")
            replaced = self._plain(text, causes, entropy=True)
            return (document, False) if replaced is text else (replaced.encode("utf-8", "surrogateescape"), True)
        return (document, False) if redacted is value else (_dumps(redacted), True)

    def redact_both(self, document: bytes, canonical: bytes) -> tuple[bytes, bytes] | None:
        """The same for a document without escapes and its canonical form; ``None`` if more than values is to change.

        What is replaced are texts as a whole, so one look does for both.
        """
        causes = self._prefilter.causes(document)
        if not causes:
            return document, canonical
        if causes != AT or b"\\" in document or _NAME_WITH_AT.search(document):
            return None
        return self._addresses(document)[0], self._addresses(canonical)[0]

    def _addresses(self, document: bytes) -> tuple[bytes, bool]:
        """JSON in which only strings with an ``@`` have to be looked at: they are, and nothing else is touched."""
        parts: list[bytes] = []
        done = 0
        at = document.find(b"@")
        while at >= 0:
            start, end = document.rfind(b'"', 0, at) + 1, document.find(b'"', at)
            if end < 0:  # a text, and no JSON
                end = len(document)
            text = document[start:end]
            clean = self._known.get(text) or self._address(text)
            if clean != text:
                parts += document[done:start], clean
                done = end
            at = document.find(b"@", end)
        return (b"".join((*parts, document[done:])), True) if parts else (document, False)

    def _address(self, text: bytes) -> bytes:
        clean = self._string(text.decode(), AT).encode()
        if len(text) <= _REMEMBERED_BYTES:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[text] = clean
        return clean

    def leaves(self, value: Any, pointer: str = "") -> Iterator[tuple[str, str, str]]:
        """Each secret of JSON-like *value* as (JSON pointer, kind, secret): for tools that report, never for logs."""
        probe = self.redact(value)
        if probe is not value:
            yield from self._differences(value, probe, pointer)

    def _differences(self, before: Any, after: Any, pointer: str) -> Iterator[tuple[str, str, str]]:
        if before is after:
            return
        if isinstance(before, dict):
            for (key, old), (new_key, new) in zip(before.items(), after.items(), strict=True):
                where = f"{pointer}/{new_key.replace('~', '~0').replace('/', '~1')}"
                if key != new_key:
                    yield from ((where, span.kind, key[span.start : span.end]) for span in self.spans(key))
                yield from self._differences(old, new, where)
        elif isinstance(before, (list, tuple)):
            for index, (old, new) in enumerate(zip(before, after, strict=True)):
                yield from self._differences(old, new, f"{pointer}/{index}")
        else:
            text = before if isinstance(before, str) else str(before)
            whole = PLACEHOLDER.fullmatch(after)
            spans = [] if whole else self._text.spans(text)
            if spans:
                yield from ((pointer, span.kind, text[span.start : span.end]) for span in spans)
            else:
                found = whole or PLACEHOLDER.search(after)
                yield pointer, found[1] if found else "secret", text

    # -- the walk: *causes* says what to look for, as the whole document showed it ----------------------------------

    def _walk(self, value: Any, causes: int) -> Any:
        kind = type(value)
        if kind is str:
            return self._string(value, causes)
        if kind is dict:
            return self._mapping(value, causes)
        if kind is list or kind is tuple:
            return self._sequence(value, causes)
        return value

    def _mapping(self, value: dict[Any, Any], causes: int) -> dict[Any, Any]:
        names = self._names
        named = _named_pair(value)
        pair = names[named] if named is not None else None
        logprobs = "logprob" in value
        media = not _MEDIA_WORDS.isdisjoint(value) or value.get("type") == "base64"
        changed: dict[int, tuple[Any, Any]] | None = None
        for position, (key, item) in enumerate(value.items()):
            new_key: Any = key
            if type(key) is str:
                field = names[key]
                if key == "value" and pair is not None and pair.mode != "keep":
                    field = pair
                elif (logprobs and key == "token") or (media and key == "data"):
                    field = KEEP
                if field is not None:
                    new = self._under(item, field, causes)
                elif type(item) is str:
                    new = self._string(item, causes)
                else:
                    new = self._walk(item, causes)
                if len(key) >= MIN_RUN or not key.isidentifier():
                    new_key = self._key(key, causes)
            else:
                new = self._walk(item, causes)
            if new is not item or new_key is not key:
                if changed is None:
                    changed = {}
                changed[position] = (new_key, new)
        if changed is None:
            return value
        return dict(changed.get(n) or pair_ for n, pair_ in enumerate(value.items()))

    def _sequence(self, value: Any, causes: int) -> Any:
        if len(value) == 2 and type(value[0]) is str and type(value[1]) is str and _PAIR_NAME().fullmatch(value[0]):
            # Headers and environments are often lists of (name, value).
            field = self._names[value[0]]
            if field is not None and field.mode == "secret":
                new = self._secret(value[1], field, causes)
                return value if new is value[1] else type(value)((value[0], new))
        return self._each(value, None, causes)

    def _each(self, value: Any, field: Field | None, causes: int) -> Any:
        items: list[Any] | None = None
        for index, item in enumerate(value):
            new = self._walk(item, causes) if field is None else self._under(item, field, causes)
            if new is not item:
                if items is None:
                    items = list(value)
                items[index] = new
        if items is None:
            return value
        return items if type(value) is list else tuple(items)

    def _under(self, value: Any, field: Field | None, causes: int) -> Any:
        """*value* below a name that says what it is."""
        kind = type(value)
        if field is None:
            return self._walk(value, causes)
        if kind is str:
            if field.mode == "keep":
                return self._string(value, causes, entropy=False)
            return self._secret(value, field, causes)
        if kind is int:
            return self._number(value, field)
        if kind is list or kind is tuple:
            return self._each(value, field, causes)
        if kind is dict:
            if field.mode != "secret" or not _SCHEMA_WORDS.isdisjoint(value):
                return self._mapping(value, causes)
            return self._below(value, field, causes)
        return value

    def _below(self, value: dict[Any, Any], field: Field, causes: int) -> dict[Any, Any]:
        """Everything under ``credentials`` or ``cookies`` is one, whatever it is called."""
        new: dict[Any, Any] = {}
        for key, item in value.items():
            own = self._names[key] if type(key) is str else None
            clean = None if own is None or own.mode == "keep" else self._under(item, own, causes)
            if own is None or own.mode != "secret":
                whole = type(clean) is str and PLACEHOLDER.fullmatch(clean) is not None
                clean = clean if whole else self._under(item, field, causes)
            new[self._key(key, causes)] = clean
        return value if all(new.get(key, _GONE) is item for key, item in value.items()) else new

    def _key(self, key: Any, causes: int) -> Any:
        """The name of a field, which may be a secret itself."""
        if type(key) is str and (len(key) >= MIN_RUN or not key.isidentifier()):
            return self._string(key, causes, entropy=False)
        return key

    def _secret(self, value: str, field: Field, causes: int) -> str:
        if field.mode != "secret":
            return self.placeholder(field.kind, value) if fits(field, value) else self._string(value, causes)
        scheme = _SCHEME().match(value)
        start = scheme.end() if scheme else 0
        secret = value[start:]
        if not secret.strip() or TRIVIAL().fullmatch(secret.strip()) or PLACEHOLDER.fullmatch(secret):
            return value
        token = TOKENS().fullmatch(secret)
        kind = (token.lastgroup or "") if token else field.kind
        return value[:start] + self.placeholder(kind, secret)

    def _number(self, value: int, field: Field) -> Any:
        """A number is a secret where only a number can be one; ``max_tokens: 5`` is none."""
        text = str(value)
        secret = field.kind == "password" or fits(field, text)
        return self.placeholder(field.kind, text) if secret else value

    def _string(self, text: str, causes: int, *, entropy: bool = True) -> str:
        size = len(text)
        if size < self._shortest or (size < self._shortest_word and text.isalnum()):
            return text
        if causes == AT and "@" not in text:
            return text
        causes = self._prefilter.causes(_quoted(text), causes)
        if not causes:
            return text
        if text[0] in '{["' and text[-1] in '}]"':
            try:
                inner = _loads(text.encode())
                redacted = self._walk(inner, causes)
            except (ValueError, RecursionError):
                return self._plain(text, causes, entropy=entropy)
            return text if redacted is inner else _dumps_like(redacted, text)
        return self._plain(text, causes, entropy=entropy)

    def _plain(self, text: str, causes: int, *, entropy: bool) -> str:
        spans = self._text.spans(text, causes, entropy=entropy)
        if not spans:
            return text
        parts: list[str] = []
        position = 0
        for span in spans:
            parts += text[position : span.start], self.placeholder(span.kind, text[span.start : span.end])
            position = span.end
        parts.append(text[position:])
        return "".join(parts)


def _salt(salt: str | bytes) -> bytes:
    return salt.encode() if isinstance(salt, str) else bytes(salt)


def _quoted(text: str) -> bytes:
    """A text as the prefilter expects it: with something before and after."""
    return b'"' + text.encode("utf-8", "surrogatepass") + b'"'


def _named_pair(value: dict[Any, Any]) -> str | None:
    """The name in ``{"name": "Authorization", "value": …}``."""
    if "value" in value and len(value) <= 6:
        for key in _PAIR_NAMES:
            name = value.get(key)
            if type(name) is str:
                return name
    return None


def _loads(document: bytes) -> Any:
    """Parse without loss: numbers that do not fit 64 bits are kept by the slower parser."""
    if _BIG_NUMBER.search(document):
        return json.loads(document)
    return orjson.loads(document)


_BIG_NUMBER = re.compile(rb"[0-9]{17}")


def _dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _dumps_like(value: Any, text: str) -> str:
    """Serialised with the spacing that *text* has."""
    if '": ' in text:
        return json.dumps(value, ensure_ascii=False)
    return _dumps(value).decode()
