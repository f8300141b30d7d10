"""Replace secrets in JSON-like data, in text and in serialised JSON: by pseudonyms in a run, by masks elsewhere."""

from __future__ import annotations

import itertools
import json
import operator
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from typing import Any, NamedTuple

import orjson

from antiphon.errors import InvalidInput
from antiphon.redact._detect import TRIVIAL, Span, TextRules, detected, fits
from antiphon.redact._names import KEEP, Field
from antiphon.redact._prefilter import ALL, AT, KNOWN, NUMBERS, USER, WORDS, Prefilter
from antiphon.redact._rules import MASK, Rules
from antiphon.redact._splice import Masked, MaskedInt, Piece, pairs, splice
from antiphon.redact._standins import (
    Hit,
    Placeholders,
    Pseudonyms,
    RunMasks,
    StandIns,
    VisibleMasks,
    is_credential,
    mask_of,
)
from antiphon.redact._tokens import MIN_RUN, TOKENS, lazy_pattern

_SCHEME = lazy_pattern(r"(?i)(?:Bearer|Basic|Token|Digest|Negotiate|ApiKey|AWS4-HMAC-SHA256)[ \t]+")
_SCHEMA_WORDS = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const", "properties"})
_MEDIA_WORDS = frozenset({"media_type", "mediaType", "mime_type", "mimeType", "format"})
_SAYS_MORE = frozenset({"value", "Value", "type"})
"""Names that say what a value is only together with another name or with their value."""
_PAIR_NAMES = ("name", "key", "header", "Name", "Key")
_PAIR_NAME = lazy_pattern(
    r"(?i:(?:proxy-)?authorization|(?:set-)?cookie|x-[a-z-]{1,30}|(?:[a-z]+-)?api-?key|private-token)|[A-Z][A-Z0-9_]{2,40}"
)
_OPTION = lazy_pattern(r"--?[A-Za-z]")
_NOT_WRITTEN = lazy_pattern(r"[\"'`\\\r\n]")
_FIELD_NAME = lazy_pattern(r"[A-Za-z][A-Za-z_.-]{1,39}")
_COMMA = '","'
_BESIDE = WORDS | NUMBERS | USER
"""Causes of the rules that recognise a value by its context."""
_PLAIN_WORD = lazy_pattern(r"[A-Za-z]{0,14}|.*\s.*")
_LISTED = frozenset({"$items", "$collection"})
_MAPPINGS = ("OrderedDict", "defaultdict")
_MEMBER = frozenset({"$enum"})
_BYTES = frozenset({"$bytes"})
_OF_CLASS = frozenset({"$enum", "$object", "$text"})
"""Tags of values that begin with the name of their class."""
_READ = frozenset({dict, list, tuple, int})
"""Types of values, besides text, in which something may be found."""
_SHORTEST = 6
"""None of our rules matches anything shorter (``a@b.no``)."""
_SHORTEST_KNOWN = 4
_SHORTEST_CREDENTIAL = 8
_FOLDERS = frozenset({"PWD", "OLDPWD"})
"""Variables of every shell whose names look like passwords."""
_REMEMBERED, _REMEMBERED_CHARS = 512, 1024
_GONE = object()
_SHORTEST_WORD = 14
"""A single word must be this long to be a card; all other kinds are longer."""
_CARDS_FROM, _CARDS_BELOW = 10 ** (_SHORTEST_WORD - 1), 10**16
"""Cards have 14 to 16 digits."""
_BELOW_KNOWN, _KNOWN_FROM = -(10 ** (_SHORTEST_KNOWN - 2)), 10 ** (_SHORTEST_KNOWN - 1)
"""Integers between the two are shorter than any known value."""


_Shape = tuple[tuple[Any, ...], int, int]
"""The names of an object, the causes, and how many values were known when they were checked."""


class Mask(NamedTuple):
    """Where a stand-in is in JSON data: in the text, number or (``key``) field name at *pointer*."""

    pointer: str
    start: int
    length: int
    kind: str
    key: bool = False

    def to_wire(self) -> list[Any]:
        """The JSON form."""
        return [*self[:4], True] if self.key else list(self[:4])


class Credential(NamedTuple):
    """The value of an environment variable that is named like a credential."""

    needle: bytes
    """As written in JSON."""
    value: str
    kind: str


def in_json(text: str) -> bytes:
    """*text* as written between the quotes of a JSON string."""
    return orjson.dumps(text.encode("utf-8", "replace").decode())[1:-1]


class Redactor:
    """Rules, and the stand-ins for what they find. ``redact`` returns the same object if there is nothing to redact.

    With masks (the default) it is idempotent. It never touches the ids that link runs, calls, providers and traces.
    """

    def __init__(
        self, rules: Rules | None = None, salt: str | bytes = "", *, environment: Mapping[str, str] | None = None
    ) -> None:
        """*salt* is the key of the masks: keep it secret. Credentials in *environment* are secrets, too."""
        rules = rules or Rules()
        self._text = TextRules(rules)
        self._names = self._text.names
        self._prefilter = Prefilter(rules)
        self._patterns = {rule.name: rule.compile() for rule in rules.user if rule.pattern}
        self._cards = rules.personal
        # users' patterns may match anything
        self._shortest, self._shortest_word = (1, 1) if self._patterns else (_SHORTEST, _SHORTEST_WORD)
        self.users: frozenset[str] = frozenset(rule.name for rule in rules.user)
        """Kinds from users' rules."""
        self.stand_ins: StandIns = VisibleMasks(_bytes(salt))
        self._environment = environment
        self._known: Pseudonyms | None = None
        self.credentials: list[Credential] = []
        """From the environment: they become known values once one is seen."""
        self._know_environment(_bytes(salt))
        self._seen: dict[tuple[str, int, bool], str] = {}
        """Short texts as redacted: people and places recur in a run."""
        self._shapes: set[_Shape] = set()
        """Objects whose names are neither secret nor say anything about their values."""
        self._learnt = 0
        """How many values were known when the caches were filled."""

    def with_stand_ins(self, stand_ins: StandIns) -> Redactor:
        """The same rules with other stand-ins; compiled patterns are shared."""
        other = copy(self)
        other.stand_ins = stand_ins
        other._known = stand_ins if isinstance(stand_ins, Pseudonyms) else None
        other._know_environment(b"")
        other._seen, other._shapes = {}, set()
        return other

    def _know_environment(self, key: bytes) -> None:
        """Collect the credentials that are currently in the environment."""
        self.credentials = [] if self._environment is None else self._credentials_in(self._environment)
        if self.credentials and self._known is None:
            self._known = Pseudonyms(key, self.fits)

    def _credentials_in(self, environment: Mapping[str, str]) -> list[Credential]:
        found = []
        for name, value in environment.items():
            kind = self.kind_of(name) if len(value) >= _SHORTEST_CREDENTIAL and name not in _FOLDERS else None
            if kind is not None and not value.isdigit():
                found.append(Credential(in_json(value), value, kind))
        return found

    def _notice(self, document: bytes) -> None:
        """Learn the credentials in *document*. Parts of one are only looked for after it was seen whole."""
        for needle, value, kind in self.credentials:
            if needle in document and self._known is not None:
                self._known.of(kind, value)

    def knows(self, document: bytes) -> bool:
        """Whether *document* may contain a known secret or a part of one."""
        if self.credentials:
            self._notice(document)
        known = self._known
        return known is not None and bool(known) and known.occurs(document.decode("utf-8", "replace"))

    def with_salt(self, salt: str | bytes) -> Redactor:
        """The same rules with masks under another key."""
        return self.with_stand_ins(VisibleMasks(_bytes(salt)))

    def for_run(self, key: bytes) -> Redactor:
        """The same rules with pseudonyms under the key of a run."""
        return self.with_stand_ins(Pseudonyms(key, self.fits))

    def shown(self) -> Redactor:
        """The redactor of a run with readable masks in place of its pseudonyms."""
        other = self.with_stand_ins(RunMasks(self.pseudonyms))
        other._known = self._known
        return other

    def for_old_run(self, salt: str) -> Redactor:
        """The same rules with the placeholders of release 0.1.0, for its recordings."""
        return self.with_stand_ins(Placeholders(salt))

    @property
    def in_parts(self) -> bool:
        """Whether list entries can be checked one by one: users' rules may depend on context."""
        return not self._prefilter.has_users

    @property
    def pseudonyms(self) -> Pseudonyms:
        """The pseudonyms of the run; only with :meth:`for_run`."""
        assert self._known is not None
        return self._known

    def fits(self, kind: str, text: str) -> bool:
        """Whether the detector of *kind* matches *text*."""
        pattern = self._patterns.get(kind)
        return pattern.fullmatch(text) is not None if pattern is not None else detected(kind, text)

    def kind_of(self, name: str) -> str | None:
        """The kind of secret that a name implies; ``None`` if none."""
        field = self._names[name]
        return field.kind if field is not None and field.mode == "secret" else None

    def classifies(self, name: str) -> bool:
        """Whether a name says what kind of value it has."""
        return self._names[name] is not None

    def stand_in(self, kind: str, value: str) -> str:
        """The stand-in for *value*."""
        return self.stand_ins.of(kind, value)

    def may_hold(self, document: bytes) -> bool:
        """A quick check: ``False`` is certain, ``True`` means that the rules have to read it."""
        return self._look(document) != 0

    def _look(self, document: bytes) -> int:
        if self.knows(document):
            return ALL  # texts are checked without the known values, which look like secrets
        return self._prefilter.causes(document)

    def pieces(self, text: str) -> list[Piece]:
        """The replacements for secrets in *text*, in order."""
        causes = self._look(_quoted(text))
        return self._pieces(text, causes, entropy=True) if causes else []

    def spans(self, text: str) -> list[Span]:
        """Where secrets are in *text*, in order."""
        return [Span(piece.start, piece.end, piece.kind) for piece in self.pieces(text)]

    def redact_text(self, text: str) -> str:
        """*text* without secrets; JSON inside a text is parsed as JSON."""
        if self.credentials:
            self._notice(_quoted(text))
        return str(self._string(text, ALL))

    def redact(self, value: Any, field: str = "") -> Any:
        """JSON-like *value* without secrets; *field* is its name, if it has one."""
        if type(value) is str and not field:
            return self.redact_text(value)
        try:
            if field:
                return _as_plain(value, self._under(value, self._names[field], ALL))
            causes = self._causes(value)
            return _as_plain(value, self._walked(value, causes)) if causes else value
        except RecursionError:
            raise InvalidInput("The value is nested too deeply to be redacted.", hint="Flatten it.") from None

    def marked(self, value: Any) -> Any:
        """The same for data on its way into a stream: texts still know where their stand-ins are."""
        causes = self._causes(value)
        return self._walk(value, causes) if causes else value

    def _causes(self, value: Any) -> int:
        """Checking the serialised form is faster than a walk; what cannot be serialised is walked."""
        try:
            return self._look(orjson.dumps(value))
        except TypeError:
            return ALL

    def redact_bytes(self, document: bytes) -> tuple[bytes, bool]:
        """Serialised JSON (or text) without secrets, and whether anything was replaced."""
        found = self._in_bytes(document)
        return (document, False) if found is None else (found[0], True)

    def mask(self, document: bytes) -> tuple[bytes, list[Mask]] | None:
        """Serialised JSON without secrets, and where their stand-ins are; ``None`` if there is nothing to replace."""
        found = self._in_bytes(document)
        if found is None:
            return None
        clean, before, after = found
        if before is after:  # plain text
            return clean, []
        return clean, [
            Mask(pointer, piece.at, len(piece.new), piece.kind, is_key)
            for pointer, is_key, _, leaf in pairs(before, after, changed=True)
            for piece in _pieces_of(leaf)
        ]

    def _in_bytes(self, document: bytes) -> tuple[bytes, Any, Any] | None:
        """The document without secrets, its parsed content before and after; ``None`` if nothing changes."""
        causes = self._look(document)
        if not causes:
            return None
        try:
            value = _loads(document)
            redacted = self._walked(value, causes)
        except (ValueError, RecursionError):  # not JSON, or nested too deeply: treat it as text
            text = document.decode("utf-8", "surrogateescape")
            replaced = self._plain(text, causes, entropy=True)
            return None if replaced is text else (replaced.encode("utf-8", "surrogateescape"), None, None)
        if redacted is value:
            return None
        return written(document, value, redacted), value, redacted

    def _walked(self, value: Any, causes: int) -> Any:
        """*value* without secrets; one that is found near the end is also looked for at the beginning."""
        known = self._known
        learnt = len(known.values) if known is not None else 0
        redacted = self._walk(value, causes)
        if known is not None and len(known.values) != learnt:
            redacted = self._walk(value, causes | KNOWN)
        return redacted

    def leaves(self, value: Any, pointer: str = "") -> Iterator[tuple[str, str, str]]:
        """Each secret of JSON-like *value* as (JSON pointer, kind, secret): for tools that report, never for logs."""
        causes = self._causes(value)
        probe = self._walk(value, causes) if causes else value
        for where, _, _, leaf in pairs(value, probe, pointer, changed=True):
            for piece in _pieces_of(leaf):
                yield where, piece.kind, piece.secret

    # -- the walk: *causes* says what to look for, as the whole document showed it ----------------------------------

    def _walk(self, value: Any, causes: int) -> Any:
        kind = type(value)
        if kind is str:
            return self._string(value, causes)
        if kind is dict:
            return self._mapping(value, causes)
        if kind is list or kind is tuple:
            return self._sequence(value, causes)
        if kind is int and (value >= _CARDS_FROM or causes & KNOWN):
            return self._integer(value, causes)
        return value

    def _mapping(self, value: dict[Any, Any], causes: int) -> dict[Any, Any]:
        self._forget_if_learnt()
        if len(value) == 1 and not _LISTED.isdisjoint(value) and self._names[next(iter(value))] is None:
            return self._listed(value, causes)
        shape = (tuple(value), causes, self._learnt)
        if shape in self._shapes:
            return self._values(value, causes)
        names, known, string = self._names, causes & KNOWN, self._string
        named = _named_pair(value)
        pair = names[named] if named is not None else None
        logprobs = "logprob" in value
        media = not _MEDIA_WORDS.isdisjoint(value) or value.get("type") == "base64"
        as_named = pair is None and not logprobs and not media
        plain = as_named and not _SAYS_MORE & value.keys()
        changed: dict[Any, Any] = {}
        renamed: dict[Any, Any] = {}
        for key, item in value.items():
            if type(key) is str:
                field = names[key]
                if as_named:
                    pass
                elif key in ("value", "Value") and pair is not None and pair.mode != "keep":
                    field = pair
                elif (logprobs and key == "token") or (media and key == "data"):
                    field = KEEP
                if field is not None:
                    plain = False
                    new = self._under(item, field, causes)
                elif type(item) is str:
                    new = string(item, causes)
                else:
                    new = self._walk(item, causes)
                new_key = string(key, causes, False) if known else self._key(key, causes)
                if new_key is not key:
                    renamed[key] = new_key
            else:
                plain = False
                new = self._walk(item, causes)
            if new is not item:
                changed[key] = new
        if not renamed:
            if plain:
                self._remember(shape)
            return {**value, **changed} if changed else value
        return _named([(key, renamed.get(key, key), changed.get(key, item)) for key, item in value.items()])

    def _listed(self, value: dict[Any, Any], causes: int) -> dict[Any, Any]:
        """A mapping that is written as a list of its names and values."""
        [(tag, inner)] = value.items()
        if tag == "$items":
            new = self._fields(inner, causes)
        elif type(inner) is list and len(inner) == 3 and inner[0] in _MAPPINGS:
            kind, items, more = inner
            new = [kind, self._fields(items, causes), self._walk(more, causes)]
            new = inner if new[1] is items and new[2] is more else new
        else:
            new = self._walk(inner, causes)
        return value if new is inner else {tag: new}

    def _fields(self, value: Any, causes: int) -> Any:
        if type(value) is not list:
            return self._walk(value, causes)
        new = [self._field(item, causes) for item in value]
        return value if all(map(operator.is_, new, value)) else new

    def _field(self, value: Any, causes: int) -> Any:
        """A name, of any type, and its value."""
        if type(value) is dict and len(value) == 1 and "$tuple" in value:
            new = self._field(value["$tuple"], causes)
            return value if new is value["$tuple"] else {"$tuple": new}
        if type(value) is not list or len(value) != 2:
            return self._walk(value, causes)
        name, item = value
        new = [self._walk(name, causes), self._under(item, self._said_by(name), causes)]
        return value if new[0] is name and new[1] is item else new

    def _said_by(self, name: Any) -> Field | None:
        """What a name says about its value: a text, or any text in a member of an enum, a tuple or an object."""
        if type(name) is str:
            return self._names[name]
        fields = [field for text in _texts(name) if (field := self._names[text]) is not None and field.mode != "keep"]
        return next((field for field in fields if field.mode == "secret"), fields[0] if fields else None)

    def _values(self, value: dict[Any, Any], causes: int) -> dict[Any, Any]:
        """The same for an object whose names are known to need no check."""
        changed: dict[Any, Any] = {}
        string, walk = self._string, self._walk
        for key, item in value.items():
            kind = type(item)
            if kind is str:
                new = string(item, causes)
            elif kind in _READ:
                new = walk(item, causes)
            else:
                continue
            if new is not item:
                changed[key] = new
        return {**value, **changed} if changed else value

    def _remember(self, shape: _Shape) -> None:
        if sum(map(len, shape[0])) <= _REMEMBERED_CHARS:
            if len(self._shapes) >= _REMEMBERED:
                self._shapes.clear()
            self._shapes.add(shape)

    def _forget_if_learnt(self) -> None:
        """Newly found values must also be looked for in everything that was cached."""
        known = self._known
        if known is not None and len(known.values) != self._learnt:
            self._seen.clear()
            self._shapes.clear()
            self._learnt = len(known.values)

    def _sequence(self, value: Any, causes: int) -> Any:
        if len(value) == 2 and type(value[0]) is str and type(value[1]) is str and self._is_pair(*value):
            # Headers, environments and forms are often lists of (name, value).
            field = self._names[value[0]]
            if field is not None and field.mode == "secret":
                new = self._secret(value[1], field, causes)
                return value if new is value[1] else type(value)((value[0], new))
        if type(value) is list and len(value) == 2 and type(value[0]) is dict and value[0].keys() == _MEMBER:
            if type(value[1]) is str and not _PLAIN_WORD().fullmatch(value[1]):
                return self._field(value, causes)
        if (
            type(value) is list
            and len(value) == 2
            and all(type(part) is dict and part.keys() == _BYTES for part in value)
        ):
            name, text = (part["$bytes"] for part in value)  # a header as ASGI and HTTP clients keep it
            if type(name) is str and type(text) is str and self._is_pair(name, text):
                return self._field(value, causes)
        return self._each(value, None, causes, self._revealed(value, causes) if causes & _BESIDE else None)

    def _revealed(self, value: Any, causes: int) -> dict[int, Span] | None:
        """Secrets in a command's arguments, by index, that only the preceding option or command reveals: what the rules
        find in the list as written, but not in the argument alone.
        """
        for item in value:
            if type(item) is str and item[:1] == "-":
                break
        else:
            return None
        texts = [_NOT_WRITTEN().sub("\0", item) if type(item) is str else "" for item in value]
        written = f'"{_COMMA.join(texts)}"'
        causes = self._prefilter.causes(written.encode("utf-8", "surrogatepass"), causes)
        spans = deque(self._text.spans(written, causes, entropy=False) if causes else ())
        revealed: dict[int, Span] = {}
        start, after_option = 1, False
        for index, text in enumerate(texts):
            is_option = _OPTION().match(text) is not None
            while spans and spans[0].start < start + len(text):
                begin, end, kind = spans.popleft()
                found = Span(begin - start, end - start, kind)
                if begin < start + is_option or index in revealed or not (after_option or is_option):
                    continue
                if found not in self._text.spans(text, causes, entropy=False):
                    revealed[index] = found
            start += len(text) + len(_COMMA)
            after_option = is_option
        return revealed

    @staticmethod
    def _is_pair(name: str, value: str) -> bool:
        """Whether two texts may be a name and its value, and not just two words."""
        if _PAIR_NAME().fullmatch(name):
            return True
        return _FIELD_NAME().fullmatch(name) is not None and not _PLAIN_WORD().fullmatch(value)

    def _each(self, value: Any, field: Field | None, causes: int, revealed: dict[int, Span] | None = None) -> Any:
        items: list[Any] | None = None
        for index, item in enumerate(value):
            if revealed and index in revealed:
                start, _, kind = revealed[index]
                new: Any = self._masked(item, start, kind, self._pieces(item[:start], causes, entropy=False))
            else:
                new = self._walk(item, causes) if field is None else self._under(item, field, causes)
            if new is not item:
                if items is None:
                    items = list(value)
                items[index] = new
        if items is None:
            return value
        return items if type(value) is list else tuple(items)

    def _under(self, value: Any, field: Field | None, causes: int) -> Any:
        """*value* under a name that says what it is."""
        kind = type(value)
        if field is None:
            return self._walk(value, causes)
        if kind is str:
            if field.mode == "keep":
                return self._string(value, causes, False)
            return self._secret(value, field, causes)
        if kind is int:
            return self._number(value, field, causes)
        if kind is list or kind is tuple:
            return self._each(value, field, causes)
        if kind is dict:
            if field.mode != "secret" or not _SCHEMA_WORDS.isdisjoint(value):
                return self._mapping(value, causes)
            return self._below(value, field, causes)
        return value

    def _below(self, value: dict[Any, Any], field: Field, causes: int) -> dict[Any, Any]:
        """Everything under ``credentials`` or ``cookies`` is one, whatever its name."""
        found: list[tuple[Any, Any, Any]] = []
        for key, item in value.items():
            own = self._names[key] if type(key) is str else None
            clean = None if own is None or own.mode == "keep" else self._under(item, own, causes)
            if own is None or own.mode != "secret":
                clean = clean if isinstance(clean, Masked) and clean.is_whole else self._under(item, field, causes)
            found.append((key, self._key(key, causes), clean))
        new = _named(found)
        return value if all(new.get(key, _GONE) is item for key, item in value.items()) else new

    def _key(self, key: Any, causes: int) -> Any:
        """The name of a field, which may itself be a secret."""
        if type(key) is str and (len(key) >= MIN_RUN or causes & KNOWN or not key.isidentifier()):
            return self._string(key, causes, False)
        return key

    def _secret(self, value: str, field: Field, causes: int) -> str:
        if field.mode != "secret":
            return self._masked(value, 0, field.kind) if fits(field, value) else self._string(value, causes)
        scheme = _SCHEME().match(value)
        start = scheme.end() if scheme else 0
        secret = value[start:]
        if not secret.strip() or TRIVIAL().fullmatch(secret.strip()) or MASK.fullmatch(secret):
            return value
        token = TOKENS().fullmatch(secret)
        return self._masked(value, start, (token.lastgroup or "") if token else field.kind)

    def _masked(self, text: str, start: int, kind: str, before: Iterable[Piece] = ()) -> str:
        """*text* whose part from *start* on is a secret."""
        secret = text[start:]
        return Masked.of(text, [*before, Piece(start, len(text), self.stand_in(kind, secret), kind, secret)])

    def _number(self, value: int, field: Field, causes: int) -> Any:
        """A number is a secret if only a number can be one there, or a user says so; ``max_tokens: 5`` is not."""
        if field.mode != "keep" and (field.numbers or field.kind == "password" or fits(field, str(value))):
            return self._other_number(str(value), field.kind)
        return self._integer(value, causes)

    def _other_number(self, text: str, kind: str) -> Any:
        new = self.stand_in(kind, text)
        pieces = [Piece(0, len(text), new, kind, text)]
        return MaskedInt.of(text, pieces) if self.stand_ins.same_length else Masked.of(text, pieces)

    def _integer(self, value: int, causes: int) -> Any:
        """A number that is a known value of the run, or a card as it would be found in text."""
        if _BELOW_KNOWN < value < _KNOWN_FROM:
            return value
        known = self._known
        if known is not None and causes & KNOWN:
            text = str(value)
            found = known.values.get(text)
            if found:
                return self._other_number(text, known.kinds[found])
        if _CARDS_FROM <= value < _CARDS_BELOW and self._cards and detected("card", text := str(value)):
            return self._other_number(text, "card")
        return value

    def _string(self, text: str, causes: int, entropy: bool = True) -> str:
        size, known, seen = len(text), self._known, self._seen
        if size < _SHORTEST_KNOWN and causes & KNOWN:
            return text
        if known is not None and len(known.values) != self._learnt:
            self._forget_if_learnt()
        found = seen.get((text, causes, entropy))
        if found is not None:
            return found if type(found) is Masked else text
        if not causes & KNOWN:
            if size < self._shortest or (size < self._shortest_word and text.isalnum()):
                return text
            if causes == AT and "@" not in text:
                return text
        if size > _REMEMBERED_CHARS:
            return self._read(text, causes, entropy=entropy)
        if len(seen) >= _REMEMBERED:
            seen.clear()
        found = self._read(text, causes, entropy=entropy)
        seen[text, causes, entropy] = found
        return found if isinstance(found, Masked) else text

    def _read(self, text: str, causes: int, *, entropy: bool) -> str:
        hits = self._known.find(text) if causes & KNOWN and self._known else []
        found = self._prefilter.causes(_quoted(_without(text, hits) if hits else text), causes)
        if not found:  # nothing but known values
            return Masked.of(text, [self._piece(text, hit) for hit in hits]) if hits else text
        if hits:
            found |= KNOWN
        if text[0] in '{["' and text[-1] in '}]"':
            try:
                inner = _loads(text.encode())
                redacted = self._walk(inner, found)
            except (ValueError, RecursionError):
                return self._plain(text, found, entropy=entropy)
            spliced = text if redacted is inner else splice(text, inner, redacted)
            if spliced is not None:
                return spliced
        return self._plain(text, found, entropy=entropy)

    def _plain(self, text: str, causes: int, *, entropy: bool) -> str:
        pieces = self._pieces(text, causes, entropy=entropy)
        return Masked.of(text, pieces) if pieces else text

    def _pieces(self, text: str, causes: int, *, entropy: bool) -> list[Piece]:
        """Known values first, then what the detectors find next to them, then parts of known values."""
        hits = self._known.find(text) if causes & KNOWN and self._known else []
        spans = self._text.spans(text, causes, entropy=entropy)
        values = [hit for hit in hits if hit.whole and not any(_swallows(span, hit, self.users) for span in spans)]
        if any(span.start < hit.end and hit.start < span.end for hit in values for span in spans):
            spans = self._text.spans(text, causes, entropy=entropy, closed=[(hit.start, hit.end) for hit in values])
        found = [self._piece(text, hit) for hit in values]
        for start, end, kind in spans:
            secret = text[start:end]
            found.append(Piece(start, end, self.stand_in(kind, secret), kind, secret))
        for hit in hits:
            if not any(piece.start < hit.end and hit.start < piece.end for piece in found):
                found.append(self._piece(text, hit))
        found.sort()
        return found

    def _piece(self, text: str, hit: Hit) -> Piece:
        new = hit.new if self.stand_ins.same_length else mask_of(hit.kind, hit.new)
        return Piece(hit.start, hit.end, new, hit.kind, text[hit.start : hit.end])


def _without(text: str, hits: list[Hit]) -> str:
    """*text* with blanks for known values that are separate words: what is left decides what to look for."""
    parts: list[str] = []
    position = 0
    for start, end, _, _, whole in hits:
        if whole and not (text[start - 1 : start].isalnum() or text[end : end + 1].isalnum()):
            parts += text[position:start], " " * (end - start)
            position = end
    return "".join((*parts, text[position:]))


def _swallows(span: Span, hit: Hit, users: frozenset[str]) -> bool:
    """Whether a known value is part of a credential, which is replaced as a whole."""
    inside = span.start <= hit.start and hit.end <= span.end and span.end - span.start > hit.end - hit.start
    return inside and (is_credential(span.kind, users) or span.kind not in _COMPOSED)


_COMPOSED = frozenset({"email", "phone", "card", "iban"})
"""Kinds that a rule may find around a known value, for example with a prefix."""


def _named(fields: list[tuple[Any, Any, Any]]) -> dict[Any, Any]:
    """The object with these (old name, new name, value); names whose masks are equal are told apart by a number."""
    made: dict[Any, Any] = {}
    kept = {old for old, name, _ in fields if name is old}
    for old, name, item in fields:
        if name is not old and (name in made or name in kept):
            *others, last = name.pieces
            numbered = (Masked.of(old, [*others, last._replace(new=f"{last.new}#{n}")]) for n in itertools.count(2))
            name = next(one for one in numbered if one not in made and one not in kept)
        made[name] = item
    return made


def _pieces_of(leaf: Any) -> list[Piece]:
    return leaf.pieces if isinstance(leaf, (Masked, MaskedInt)) else []


def _as_plain(before: Any, after: Any) -> Any:
    """*after* without our own classes; unchanged values are not copied."""
    if before is after:
        return after
    if isinstance(after, (Masked, MaskedInt)):
        return after.plain
    if isinstance(after, dict):
        pairs = zip(before.values(), after.items(), strict=True)
        return {(name.plain if isinstance(name, Masked) else name): _as_plain(old, new) for old, (name, new) in pairs}
    if isinstance(after, (list, tuple)):
        return type(after)(_as_plain(old, new) for old, new in zip(before, after, strict=True))
    return after


def _bytes(salt: str | bytes) -> bytes:
    return salt.encode() if isinstance(salt, str) else bytes(salt)


def _quoted(text: str) -> bytes:
    """A text as the prefilter expects it: with a character before and after."""
    return b'"' + text.encode("utf-8", "surrogatepass") + b'"'


def _named_pair(value: dict[Any, Any]) -> str | None:
    """The name in ``{"name": "Authorization", "value": …}``."""
    if ("value" in value or "Value" in value) and len(value) <= 6:
        for key in _PAIR_NAMES:
            name = value.get(key)
            if type(name) is str:
                return name
    return None


def _texts(value: Any) -> Iterator[str]:
    """The texts in a tagged value, without the names of its classes and fields."""
    if type(value) is str:
        yield value
    elif type(value) is list:
        for item in value:
            yield from _texts(item)
    elif type(value) is dict:
        for tag, inner in value.items():
            yield from _texts(inner[1:] if tag in _OF_CLASS and type(inner) is list else inner)


def _loads(document: bytes) -> Any:
    """Parse without loss: the slower parser keeps numbers that exceed 64 bits."""
    folded = document.translate(_DIGITS)
    if folded.find(_MANY) >= 0:
        for match in _BIG_NUMBER.finditer(folded):
            start = match.start()
            if start == 0 or document[start - 1] in b":,[- \t\r\n":  # else it is inside a text, as account numbers are
                return json.loads(document)
    return orjson.loads(document)


def written(document: bytes, value: Any, redacted: Any) -> bytes:
    """In place: everything but the stand-ins is kept as written, including white space, numbers and escapes."""
    if _dumps(value) == document:
        return _dumps(redacted)
    spliced = splice(document.decode("utf-8", "surrogatepass"), value, redacted)
    return _dumps(redacted) if spliced is None else spliced.encode("utf-8", "surrogatepass")


_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_MANY = b"0" * 17
_BIG_NUMBER = re.compile(rb"0{17,}")


def _dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
