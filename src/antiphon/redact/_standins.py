"""What stands for a found value: a pseudonym of the same shape, or a readable mask.

Run logs and artifacts have pseudonyms, so that code can compute on them; masks (``[email:3f9a]``) are used everywhere
else. Both are keyed: without the key nobody can test guesses against them.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import re
import threading
import unicodedata
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol
from urllib.parse import quote

import orjson

from antiphon.redact._detect import luhn
from antiphon.redact._rules import CONSTANT_KINDS, placeholder

_ATTEMPTS, _TRIES = 512, 8
_LONGEST_PREFIX = 24
_PUNCTUATION = "!#$%*+-._~^"
_HEX = re.compile(r"[0-9a-f]{16,}|[0-9A-F]{16,}|(?<![A-Za-z0-9])[0-9a-fA-F]{8,}(?![A-Za-z0-9])")
_ARMOUR = re.compile(r"-----[^\r\n]*-----")

PERSONAL = frozenset({"email", "phone", "card", "iban", "ssn", "pin", "cvv", "otp", "passport"})
"""Personal data: compared exactly, and a known value is never absorbed into a wider match."""
_EXACT = PERSONAL | {"password", "url_password", "field"}
GUESS = "high_entropy"
"""The kind of a value that looks like a key but may be anything: a wallet address, a file id."""


def is_credential(kind: str, users: frozenset[str] = frozenset()) -> bool:
    """Whether values of *kind* belong to a machine and differ on another (all but personal data and passwords)."""
    return kind not in _EXACT and kind not in users


class StandIns(Protocol):
    """Determines what replaces a value."""

    same_length: bool

    def of(self, kind: str, value: str) -> str: ...


class VisibleMasks:
    """``[email:3f9a]``: the kind, and four digits that are equal for equal values under one key."""

    same_length = False

    def __init__(self, key: bytes) -> None:
        self._key = key

    def of(self, kind: str, value: str) -> str:
        return visible(kind, hmac.digest(self._key, value.encode("utf-8", "surrogatepass"), "sha256"))


def visible(kind: str, digest: bytes) -> str:
    """The text of a mask."""
    return f"[{kind}:{digest[:2].hex()}]"


class RunMasks:
    """Masks for a run's values, derived from their pseudonyms: a reader who has only the log derives the same ones."""

    same_length = False

    def __init__(self, pseudonyms: Pseudonyms) -> None:
        self.pseudonyms = pseudonyms

    def of(self, kind: str, value: str) -> str:
        return mask_of(kind, self.pseudonyms.of(kind, value))


def mask_of(kind: str, pseudonym: str) -> str:
    """The mask for a pseudonym."""
    return visible(kind, hashlib.sha256(pseudonym.encode("utf-8", "surrogatepass")).digest())


class Placeholders:
    """The placeholders of release 0.1.0: used only to compare with its recordings."""

    same_length = False

    def __init__(self, salt: str) -> None:
        self._salt = salt.encode()

    def of(self, kind: str, value: str) -> str:
        return f"[secret:{kind}]" if kind in CONSTANT_KINDS else placeholder(kind, value, self._salt)


class Known(NamedTuple):
    """A value of the run in one spelling, with its pseudonym in the same spelling."""

    value: str
    pseudonym: str
    kind: str
    whole: bool
    """Matches only as a whole and not next to letters or digits, because it is short."""


class Hit(NamedTuple):
    """``text[start:end]`` is a known value, or a part of one."""

    start: int
    end: int
    new: str
    kind: str
    whole: bool


_SHORTEST_KNOWN, _SHORTEST_PIECE = 4, 6
_WORTH_COMPILING = 16
"""Compiling a character of a pattern takes as long as searching this many characters without one."""
Fits = Callable[[str, str], bool]
"""(kind, text) -> whether the detector of that kind matches the text."""


def _any(kind: str, text: str) -> bool:
    return True


class Pseudonyms:
    """Pseudonyms of one run under its key; equal values have equal ones, different values different ones.

    >>> made = Pseudonyms(b"k" * 32)
    >>> made.of("password", "Tr0ub4dor&3") == made.of("password", "Tr0ub4dor&3") != "Tr0ub4dor&3"
    True
    """

    same_length = True

    def __init__(self, key: bytes, fits: Fits = _any) -> None:
        self._key = key
        self._fits = fits
        self._cores: dict[str, str] = {}
        """Letters and digits of a value, in lower case -> those of its pseudonym."""
        self._taken: set[str] = set()
        self.values: dict[str, str] = {}
        """Each value that was found -> its pseudonym."""
        self.kinds: dict[str, str] = {}
        """Pseudonym -> kind."""
        self._needles: dict[str, list[tuple[Known, bool]]] = {}
        """Prefixes of known values, or (``True``) suffixes."""
        self._lengths: dict[str, list[int]] = {}
        """The first characters of needles -> their lengths, the longest first."""
        self._size = 0
        """Characters of all needles."""
        self._searched = 0
        """Characters that were searched since there is no pattern."""
        self._pattern: re.Pattern[str] | None = None
        """All needles, once they are worth compiling."""
        self._lock = threading.RLock()

    def __bool__(self) -> bool:
        """Whether there is anything to look for."""
        return bool(self._needles)

    def of(self, kind: str, value: str) -> str:
        """The pseudonym for *value*."""
        found = self.values.get(value)
        if found is None:
            with self._lock:
                found = self.values.get(value) or self._made(kind, value)
                self.learn(value, found, kind)
        return found

    def learn(self, value: str, pseudonym: str, kind: str) -> None:
        """Look for *value* from now on; a pseudonym that comes back (as its own value) is found as well."""
        with self._lock:
            self.values[value] = pseudonym
            self.kinds[pseudonym] = kind
            core, shape = _core(value), _core(pseudonym)
            self._cores.setdefault(core, shape)
            self._taken.add(shape)
            if len(value) >= _SHORTEST_KNOWN:
                for spelled, other in _spellings(value, pseudonym):
                    self._look_for(Known(spelled, other, kind, len(spelled) < _SHORTEST_PIECE))

    def _look_for(self, known: Known) -> None:
        value, other = known.value, known.pseudonym
        if known.whole:
            self._add(value, known)
        else:
            changed = [at for at, (a, b) in enumerate(zip(value, other, strict=True)) if a != b]
            changed = changed or list(range(len(value)))
            start = max(_SHORTEST_PIECE, changed[0] + 1)
            end = min(len(value) - _SHORTEST_PIECE, changed[-1])
            self._add(value[:start], known)
            self._add(value[end:], known, is_end=True)

    def _add(self, needle: str, known: Known, *, is_end: bool = False) -> None:
        self._needles.setdefault(needle, []).append((known, is_end))
        first, size = needle[:_SHORTEST_KNOWN], len(needle)
        self._lengths[first] = sorted({size, *self._lengths.get(first, ())}, reverse=True)
        self._size += size
        self._pattern, self._searched = None, 0

    # -- finding known values ------------------------------------------------------------------------------------

    def occurs(self, text: str) -> bool:
        """Whether *text* may contain a known value or a part of one."""
        return self._first(text, 0) is not None

    def find(self, text: str) -> list[Hit]:
        """Known values and parts of them (prefixes or suffixes) in *text*, the longest of overlapping ones."""
        hits: list[Hit] = []
        position = 0
        while found := self._first(text, position):
            start, needle = found
            best: Hit | None = None
            for known, is_end in self._needles[needle]:
                hit = _extended(text, start, len(needle), known, is_end)
                if hit is not None and (best is None or hit.end - hit.start > best.end - best.start):
                    best = hit
            if best is None or (hits and best.start < hits[-1].end):
                position = start + 1
            else:
                hits.append(best)
                position = max(best.end, start + 1)
        return hits

    def _first(self, text: str, position: int) -> tuple[int, str] | None:
        """The first needle in *text* from *position* on, the longest of those that begin there."""
        pattern = self._pattern
        if pattern is None and self._searched + len(text) - position > self._size * _WORTH_COMPILING:
            pattern = self._compiled()
        if pattern is not None:
            match = pattern.search(text, position)
            return None if match is None else (match.start(), match[0])
        needles, lengths, start = self._needles, self._lengths, position
        for start in range(position, len(text) - _SHORTEST_KNOWN + 1):
            for size in lengths.get(text[start : start + _SHORTEST_KNOWN], ()):
                if text[start : start + size] in needles:
                    self._searched += start - position
                    return start, text[start : start + size]
        self._searched += start - position
        return None

    def _compiled(self) -> re.Pattern[str]:
        with self._lock:  # else a value that another thread adds meanwhile would not be searched for
            if self._pattern is None:
                ordered = sorted(self._needles, key=lambda needle: (needle[:3], -len(needle)))
                self._pattern = re.compile(_alternatives(ordered))
            return self._pattern

    # -- making pseudonyms ---------------------------------------------------------------------------------------

    def _made(self, kind: str, value: str) -> str:
        core = self._cores.get(_core(value))
        if core is not None and len(core) == sum(map(str.isalnum, value)):
            return _apply_shape(value, core)
        fits = self._fits if self._fits(kind, value) else _any
        prefix = self._kept_prefix(kind, value, fits)
        last = value
        for attempt in range(_ATTEMPTS):
            last = self._candidate(kind, value, prefix or 0, attempt)
            shape = _core(last) or last
            free = last != value and shape not in self._taken and shape not in self._cores
            if free and (prefix is None or fits(kind, last)):
                break
        return last

    def _kept_prefix(self, kind: str, value: str, fits: Fits) -> int | None:
        """A well-known prefix is kept, as much as the detector needs; ``None`` if no length is enough."""
        if kind in PERSONAL or kind == GUESS:  # any pseudonym will do, so nothing else of the value is shown
            return 0
        for prefix in range(min(len(value), _LONGEST_PREFIX)):
            if all(fits(kind, self._candidate(kind, value, prefix, attempt)) for attempt in range(_TRIES)):
                return prefix
        return None

    def _candidate(self, kind: str, value: str, prefix: int, attempt: int) -> str:
        canonical = _core(value) or value
        seed = hmac.digest(self._key, b"%d\n" % attempt + canonical.encode("utf-8", "surrogatepass"), "sha256")
        noise = hashlib.shake_256(seed).digest(2 * len(value))
        kept = _kept(kind, value, prefix)
        hexadecimal = {at for match in _HEX.finditer(value) for at in range(*match.span())}
        new = [
            char if at in kept else _other(char, noise[2 * at] << 8 | noise[2 * at + 1], at in hexadecimal)
            for at, char in enumerate(value)
        ]
        if value[:1] in "123456789" and value.isascii() and value.isdigit() and new[0] == "0":
            new[0] = str(1 + noise[0] % 9)
        if not any(map(str.isalnum, value)):
            signs = [_PUNCTUATION[noise[at] % len(_PUNCTUATION)] for at in range(len(value))]
            new = [sign if char in _PUNCTUATION else char for char, sign in zip(value, signs, strict=True)]
        if kind == "card":
            _set_check_digit(new)
        elif kind == "iban":
            _set_iban_digits(new)
        return "".join(new)


def _kept(kind: str, value: str, prefix: int) -> frozenset[int] | set[int]:
    """The positions that are kept."""
    kept = set(range(prefix))
    if kind == "email" and "@" in value:
        kept.update(range(value.rindex("@"), len(value)))
    elif kind == "card":
        kept.update([at for at, char in enumerate(value) if char.isdigit()][-4:])
    elif kind == "iban":
        kept.update((0, 1))
    elif kind == "private_key":
        for match in _ARMOUR.finditer(value):
            kept.update(range(*match.span()))
    return kept


def _other(char: str, noise: int, hexadecimal: bool) -> str:
    """Another character of the same class, case and length."""
    if "0" <= char <= "9":
        return str(noise % 10)
    if "a" <= char <= "z":
        return chr(97 + noise % (6 if hexadecimal and char < "g" else 26))
    if "A" <= char <= "Z":
        return chr(65 + noise % (6 if hexadecimal and char < "G" else 26))
    if char.isascii() or not char.isalnum():
        return char
    digit = unicodedata.decimal(char, None)
    if digit is not None:
        return chr(ord(char) - digit + noise % 10)
    lower = char.lower()
    if lower != char and len(lower) == 1:
        upper = _other(lower, noise, hexadecimal).upper()
        return upper if len(upper) == 1 and _size(upper) == _size(char) else char
    base = ord(char) & ~0x1F
    candidates = [chr(code) for code in range(base, base + 32) if _alike(chr(code), char)]
    return candidates[noise % len(candidates)] if candidates else char


def _alike(char: str, other: str) -> bool:
    if unicodedata.category(char) != unicodedata.category(other) or _size(char) != _size(other):
        return False
    upper = char.upper()
    return len(upper) == 1 and _size(upper) == _size(other.upper()) and (upper == char or upper.lower() == char)


def _size(char: str) -> int:
    return len(char.encode("utf-8", "surrogatepass"))


def _set_check_digit(new: list[str]) -> None:
    """Make the number valid by changing the digit before the last four."""
    places = [at for at, char in enumerate(new) if char.isdigit()]
    if len(places) < 6:
        return
    for digit in "0123456789":
        new[places[-5]] = digit
        if luhn("".join(new[at] for at in places)):
            return


def _set_iban_digits(new: list[str]) -> None:
    places = [at for at, char in enumerate(new) if char.isalnum()]
    if len(places) < 5:
        return
    code = "".join(new[at] for at in places)
    check = 98 - int("".join(str(int(char, 36)) for char in code[4:] + code[:2] + "00")) % 97
    new[places[2]], new[places[3]] = str(check // 10), str(check % 10)


def _core(value: str) -> str:
    """Letters and digits in lower case: the same for every spelling of a value."""
    return "".join(_lower(char) for char in value if char.isalnum())


def _lower(char: str) -> str:
    lower = char.lower()
    return lower if len(lower) == 1 else char


def _apply_shape(value: str, core: str) -> str:
    """*core* with the case and separators of *value*."""
    chars = iter(core)
    new = []
    for char in value:
        if not char.isalnum():
            new.append(char)
            continue
        other = next(chars)
        upper = other.upper() if _lower(char) != char else other
        new.append(upper if len(upper) == 1 else other)
    return "".join(new)


def _spellings(value: str, pseudonym: str) -> Iterator[tuple[str, str]]:
    """Both as spelled in text, JSON, URLs and HTML; lengths match within each spelling."""
    seen = {value}
    yield value, pseudonym
    for spell in (_in_json, _in_json_twice, _percent, html.escape):
        spelled, other = spell(value), spell(pseudonym)
        if spelled not in seen and len(spelled) == len(other):
            seen.add(spelled)
            yield spelled, other


def _in_json(text: str) -> str:
    try:
        return orjson.dumps(text)[1:-1].decode()
    except TypeError:  # half a surrogate pair
        return text


def _in_json_twice(text: str) -> str:
    return _in_json(_in_json(text))


def _percent(text: str) -> str:
    return quote(text, safe="", errors="surrogatepass")


def _extended(text: str, start: int, length: int, known: Known, is_end: bool) -> Hit | None:
    value, other, end = known.value, known.pseudonym, start + length
    if known.whole:
        around = text[start - 1 : start] + text[end : end + 1]
        return None if any(map(str.isalnum, around)) else Hit(start, end, other, known.kind, True)
    if is_end:
        room = min(len(value) - length, start)
        whole = text.endswith(value[:-length], 0, start)
        more = room if whole else next((n for n in range(room) if text[start - 1 - n] != value[-length - 1 - n]), room)
        start, length = start - more, length + more
        return Hit(start, end, other[len(value) - length :], known.kind, length == len(value))
    room = min(len(value) - length, len(text) - end)
    more = (
        room
        if text.startswith(value[length:], end)
        else next((n for n in range(room) if text[end + n] != value[length + n]), room)
    )
    return Hit(start, end + more, other[: length + more], known.kind, length + more == len(value))


def _alternatives(needles: list[str]) -> str:
    """One pattern for all, grouped by their first characters: it stays fast with thousands of them."""
    groups: dict[str, dict[str, list[str]]] = {}
    for needle in needles:
        groups.setdefault(needle[0], {}).setdefault(needle[1:3], []).append(needle[3:])
    return "|".join(
        re.escape(first)
        + "(?:"
        + "|".join(
            re.escape(second) + "(?:" + "|".join(re.escape(rest) for rest in rests) + ")"
            for second, rests in seconds.items()
        )
        + ")"
        for first, seconds in groups.items()
    )
