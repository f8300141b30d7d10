"""The upstreams that the proxy may reach: an allow-list set by the operator."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import SplitResult, unquote_to_bytes, urlsplit

from antiphon.errors import InvalidInput

MODELS = {
    "openai": "https://api.openai.com",
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
}
"""Upstreams that need no configuration."""
NAME = re.compile(r"[A-Za-z0-9._~-]{1,128}")
RESERVED = frozenset({"run", "runs", "healthz"})
_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"content-length",
        b"expect",  # the body has already been read
        b"host",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
"""Headers that apply to one connection and are not forwarded."""
_DECODABLE = frozenset({b"gzip", b"deflate", b"identity"})
"""Content encodings that the proxy can always decode; it can only record what it can decode."""
OURS = b"antiphon-"
Headers = list[tuple[bytes, bytes]]


class Upstream(NamedTuple):
    """One server behind the proxy."""

    name: str
    url: str
    """Without a trailing slash."""
    mcp: bool = False

    def at(self, path: bytes, query: bytes) -> str:
        """The URL of *path*, which cannot escape the upstream's base URL."""
        for part in re.split(rb"[/\\]", unquote_to_bytes(path)):
            if part in (b".", b".."):
                raise InvalidInput("A path must not contain '.' or '..' segments.", path="path")
        address = self.url + path.decode("latin-1")
        return f"{address}?{query.decode('latin-1')}" if query else address


def address_of(url: str) -> SplitResult | None:
    """The parts of an http or https address; ``None`` if requests cannot be sent there."""
    with contextlib.suppress(ValueError):  # of a port that is out of range, or brackets that do not match
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    return None


def upstreams(models: Iterable[str], servers: Iterable[str]) -> dict[str, Upstream]:
    """The allow-list: the well-known providers plus those given as ``name=URL``."""
    found = {name: Upstream(name, url) for name, url in MODELS.items()}
    given: set[str] = set()
    for option, texts in (("--upstream", models), ("--mcp", servers)):
        for text in texts:
            name, _, url = text.partition("=")
            parts = address_of(url)
            if not NAME.fullmatch(name) or name in RESERVED or set(name) <= {"."}:
                raise InvalidInput(f"{option} {text!r} has no usable name.", hint=f"Write: {option} name=https://…")
            if parts is None or parts.query or parts.fragment:
                hint = f"Write: {option} {name}=https://server.example/path, without a query."
                raise InvalidInput(f"{option} {name} is not an http or https address.", hint=hint)
            if parts.username is not None or parts.password is not None:
                raise InvalidInput(
                    f"{option} {name} has a password in its address.", hint="Clients send credentials in headers."
                )
            if name in given:
                raise InvalidInput(f"{name} is given twice.", hint="Each upstream needs a name of its own.")
            given.add(name)
            found[name] = Upstream(name, url.rstrip("/"), option == "--mcp")
    return found


def end_to_end_headers(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that are forwarded to the other side."""
    kept = [(name.lower(), value) for name, value in headers]
    named = {
        part.strip().lower() for name, value in kept if name == b"connection" for part in value.split(b",") if part
    }
    return [
        (name, value)
        for name, value in kept
        if name not in _HOP_BY_HOP and name not in named and not name.startswith(OURS)
    ]


def with_readable_encodings(headers: Headers) -> Headers:
    """The request headers, with ``Accept-Encoding`` reduced to encodings that the proxy can decode."""
    kept = [(name, value) for name, value in headers if name != b"accept-encoding"]
    if len(kept) == len(headers):
        return headers
    asked = [part for name, value in headers if name == b"accept-encoding" for part in value.split(b",")]
    known = [part.strip() for part in asked if part.partition(b";")[0].strip().lower() in _DECODABLE]
    return [*kept, (b"accept-encoding", b", ".join(known) or b"identity")]


def headers_by_name(headers: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str]:
    """Headers by lower-case name, as text; the first of several with the same name."""
    found: dict[str, str] = {}
    for name, value in headers:
        found.setdefault(name.decode("latin-1").lower(), value.decode("latin-1").strip())
    return found
