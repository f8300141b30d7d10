"""Find secrets in files, and report where they are without revealing them (D21)."""

from __future__ import annotations

import contextlib
import hmac
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from antiphon.contract.events import MASKS, PSEUDONYMS
from antiphon.redact._detect import without_escapes
from antiphon.redact._pointers import masks_in, text_at
from antiphon.redact._redactor import Redactor
from antiphon.redact._rules import CONSTANT_KINDS, Rules, guessable
from antiphon.redact._tokens import PRIVATE_KEY, TOKENS

_SKIPPED_FOLDERS = frozenset({".git", ".hg", ".venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache"})
_JSON_LIMIT = 8 << 20
_BLOCK = 1 << 20
_OVERLAP = 4096
_SEAL_KEY = re.compile(rb"antiphon-seal-key-[0-9]+ +[A-Za-z0-9+/_-]{43}=")
_GIT_SECONDS = 10.0
_GIT_PLACES = frozenset({"GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"})
"""Set for a git hook's own repository; the file may be in another one."""
_SEALED = re.compile(
    rb"(?<![A-Za-z0-9+/=._-])s[12]\.[0-9a-f]{8}\.(?=[A-Za-z0-9+/=]{40})"
    rb"(?:[A-Za-z0-9+/]{4})++(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?(?![A-Za-z0-9+/=_-])"
)
"""A sealed text: form, key id, and the one base64 spelling of at least a nonce and a tag. Nobody can read it."""
_DATABASE = b"SQLite format 3\0"
_TEXT = re.compile(rb"[\x20-\x7e\t\r\n]{20,}")


class Finding(NamedTuple):
    """A secret in a file: where and of what kind, never what."""

    file: str
    where: str
    """``line 12``, a JSON pointer such as ``/events/3/payload/token``, both, or ``byte 4096`` in a binary file."""
    kind: str
    fingerprint: str
    """Equal for equal secrets; for guessable ones it depends only on the place."""


def scan_path(path: str | os.PathLike[str], rules: Rules | None = None) -> Iterator[Finding]:
    """Findings in a file, or in all files below a folder, sorted by name."""
    redactor = Redactor(rules or Rules(personal=False), salt="scan")
    root = Path(path)
    for file in files_below(root):
        for where, kind, secret in _scan_file(file, redactor):
            yield Finding(str(file), where, kind, _fingerprint(file, where, kind, secret))


def files_below(root: Path) -> Iterator[Path]:
    """The file itself, or all files below a folder that are scanned, sorted by name."""
    if not root.is_dir():
        yield root
        return
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            file = Path(folder, name)
            if file.is_file() and not file.is_symlink():
                yield file


def _scan_file(file: Path, redactor: Redactor) -> Iterable[tuple[str, str, str]]:
    with file.open("rb") as stream:
        head = stream.read(4096)
    if b"\0" in head:
        return _without_pseudonyms(_scan_stored(file), _pseudonyms(_stored_events(file)))
    small = file.stat().st_size <= _JSON_LIMIT
    document = file.read_bytes() if small else b""
    keys = [] if small and _SEAL_KEY.search(document) is None else _seal_keys(file)
    return itertools.chain(keys, _scan_text(file, _without_ours(document) if small else None, redactor))


def _scan_text(file: Path, document: bytes | None, redactor: Redactor) -> Iterable[tuple[str, str, str]]:
    """Findings in a text; *document* is its content unless it is large."""
    if document is not None and not redactor.may_hold(document):
        return ()
    value = None if document is None else _parsed(document)
    if value is None:
        return _scan_lines(file, redactor)
    known = _pseudonyms(_exported_events(value))
    for event in _exported_events(value):  # for these, the name of a kind is no secret
        if isinstance(event, dict) and isinstance(event.get("meta"), dict):
            event["meta"].pop(PSEUDONYMS, None)
    return _without_pseudonyms(redactor.leaves(value), known)


def _parsed(data: bytes) -> Any:
    """A JSON document, or one on a line; ``None`` for any other text."""
    if data.lstrip()[:1] in (b"{", b"["):
        with contextlib.suppress(orjson.JSONDecodeError):
            return orjson.loads(data)
    return None


def _seal_keys(file: Path) -> list[tuple[str, str, str]]:
    """The seal keys in a file, unless it is the right place for them: readable only by its owner, ignored by git."""
    with file.open("rb") as stream:
        lines = enumerate(map(_SEAL_KEY.findall, stream), 1)
        found = [(f"line {number}", "seal_key", key.decode("ascii")) for number, keys in lines for key in keys]
    in_place = found and not file.stat().st_mode & 0o077 and _ignored(file)
    return [] if in_place else found


def _ignored(file: Path) -> bool:
    """Whether git ignores a file and does not track it; outside a repository, whether it would ignore its folder."""
    import shutil
    import subprocess

    folder, git = file.resolve().parent, shutil.which("git")
    if git is not None:
        here = {name: value for name, value in os.environ.items() if name not in _GIT_PLACES}
        command = [git, "-C", str(folder), "check-ignore", "--quiet", "--", file.name]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, timeout=_GIT_SECONDS, check=False, env=here)
            if done.returncode in (0, 1):
                return done.returncode == 0
    ignore = folder / ".gitignore"
    return ignore.is_file() and b"*" in ignore.read_bytes().split()


def _without_ours(data: bytes) -> bytes:
    """Without sealed texts, and without seal keys, which are separate findings."""
    return _SEAL_KEY.sub(b" ", _SEALED.sub(b" ", data))


def _exported_events(document: Any) -> Iterable[Any]:
    """The events of one of our artifacts."""
    events = document.get("events") if isinstance(document, dict) and document.get("format") == "antiphon" else None
    return events if isinstance(events, list) else ()


def _rows(file: Path, *statements: str) -> Iterator[tuple[Any, ...]]:
    """The content of an SQLite database; nothing for any other file, or if it is damaged."""
    import sqlite3

    log = file.with_name(f"{file.name}-wal")
    try:
        with file.open("rb") as stream:
            if stream.read(len(_DATABASE)) != _DATABASE:
                return
        # If there is no log, nobody is writing; opened in any other way, SQLite would leave files next to the database.
        uri = f"{file.resolve().as_uri()}?{'mode=ro' if log.exists() else 'immutable=1'}"
        with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
            database.text_factory = lambda data: data.decode("utf-8", "replace")
            for statement in statements:
                yield from database.execute(statement)
    except (OSError, sqlite3.Error):
        return


def _stored_events(file: Path) -> Iterator[Any]:
    """The events of one of our databases; *file* is the database or the log next to it."""
    with contextlib.suppress(orjson.JSONDecodeError):  # some other database: it declares no pseudonyms
        for (body,) in _rows(file.with_name(file.name.removesuffix("-wal")), "SELECT body FROM events"):
            yield orjson.loads(body)


def _scan_stored(file: Path) -> Iterator[tuple[str, str, str]]:
    """A database or an archive: its bytes, plus what is in its tables."""
    log = file.with_name(f"{file.name}-wal")
    seen = {secret for _, _, secret in _scan_binary(log)} if log.exists() else set[str]()  # scanned separately
    for found in itertools.chain(_scan_binary(file), _scan_rows(file)):
        if found[0].startswith("byte") or found[2] not in seen:
            yield found
        seen.add(found[2])


def _scan_rows(file: Path) -> Iterator[tuple[str, str, str]]:
    """The values in the tables of a database: its pages store them without separators."""
    for (table,) in _rows(file, "SELECT name FROM sqlite_master WHERE type = 'table'"):
        quoted = '"' + table.replace('"', '""') + '"'
        for number, row in enumerate(_rows(file, f"SELECT * FROM {quoted}"), 1):  # noqa: S608 - quoted
            for value in row:
                text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
                if isinstance(text, str):
                    for _, kind, secret in _tokens(text):
                        yield f"table {table}, row {number}", kind, secret


def _tokens(text: str) -> Iterator[tuple[int, str, str]]:
    """Where tokens of an unmistakable format begin, their kind and text."""
    plain = without_escapes(text)
    for pattern in (TOKENS, PRIVATE_KEY):
        for match in pattern().finditer(plain):
            yield match.start(), match.lastgroup or "private_key", match[0]


def _pseudonyms(events: Iterable[Any]) -> set[str]:
    """What our events declare: these texts stand for values that the events do not hold."""
    found: set[str] = set()
    for event in (event for event in events if isinstance(event, dict)):
        payload, meta = event.get("payload"), event.get("meta")
        if isinstance(payload, dict) and isinstance(meta, dict):
            found.update(text_at(payload, mask) for mask in masks_in(meta.get(MASKS)))
            listed = meta.get(PSEUDONYMS)
            found.update(listed if isinstance(listed, dict) else ())
    return found - {""}


def _without_pseudonyms(findings: Iterable[tuple[str, str, str]], known: set[str]) -> Iterator[tuple[str, str, str]]:
    """Findings that are not part of a pseudonym, nor a pseudonym with a few characters around it."""
    for where, kind, secret in findings:
        if secret not in known and not any(
            secret in one or (2 * len(one) >= len(secret) and one in secret) for one in known
        ):
            yield where, kind, secret


def _scan_lines(file: Path, redactor: Redactor) -> Iterator[tuple[str, str, str]]:
    """Line by line; a line that is a JSON document is parsed as one. An armoured key is reported at its first line."""
    armour: list[str] = []
    armour_line = 0
    with file.open("rb") as stream:
        for number, raw in enumerate(map(_without_ours, stream), 1):
            text = raw.decode("utf-8", "replace")
            if armour:
                armour.append(text)
            elif "-----BEGIN" in text and "-----END" not in text:
                armour, armour_line = [text], number
            if armour:
                if "-----END" in text:
                    yield from _in_text("".join(armour), f"line {armour_line}", redactor)
                    armour = []
                continue
            if not redactor.may_hold(raw):
                continue
            value = _parsed(raw)
            if value is None:
                yield from _in_text(text, f"line {number}", redactor)
                continue
            for pointer, kind, secret in redactor.leaves(value):
                yield f"line {number} {pointer}", kind, secret
    if armour:
        yield from _in_text("".join(armour), f"line {armour_line}", redactor)


def _in_text(text: str, where: str, redactor: Redactor) -> Iterator[tuple[str, str, str]]:
    for span in redactor.spans(text):
        yield where, span.kind, text[span.start : span.end]


def _scan_binary(file: Path) -> Iterator[tuple[str, str, str]]:
    """A database or an archive: only tokens whose format is unmistakable."""
    seen: set[int] = set()
    with file.open("rb") as stream:
        base = 0
        kept = b""
        while block := stream.read(_BLOCK):
            data = kept + block
            for run in _TEXT.finditer(data):
                for start, kind, secret in _tokens(run[0].decode("ascii")):
                    place = base + run.start() + start
                    if place not in seen:
                        seen.add(place)
                        yield f"byte {place}", kind, secret
            kept = data[-_OVERLAP:]
            base += len(data) - len(kept)


def _fingerprint(file: Path, where: str, kind: str, secret: str) -> str:
    if kind in CONSTANT_KINDS or guessable(secret):
        secret = f"{file}\n{where}\n{kind}"
    return hmac.digest(b"antiphon scan", secret.encode("utf-8", "surrogatepass"), "sha256")[:8].hex()
