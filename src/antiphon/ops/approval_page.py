"""The page behind a signed link. Opening it shows the call and a form; only the form, sent with the token, decides.

Mail scanners, previews and prefetching browsers follow links. However often they do, nothing is decided and nothing is
spent. The page is plain ASGI, for the host and for any web framework.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import html
import logging
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from datetime import UTC, datetime
from importlib.resources import files
from string import Template
from typing import Any
from urllib.parse import parse_qs

from antiphon._asgi import Disconnected, Receive, TooLarge, read_body
from antiphon._drive import drive
from antiphon.config.wiring import fingerprints_of
from antiphon.errors import AntiphonError, InvalidInput, NotFound, Refused, StoreError
from antiphon.ops.admin import NOT_AUDITED
from antiphon.ops.app import Antiphon
from antiphon.ops.approvals import AlreadyDecided, Approvals, Link

log: logging.Logger = logging.getLogger("antiphon.host")

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Desk = Callable[[Scope, Link], Approvals]
"""Finds the approvals of a link, for the person it was made for."""

_LARGEST, _SLOWEST_S = 16_384, 30.0
_LONGEST_REASON = 500
_FILES = files("antiphon.ops")
_STYLE = (_FILES / "approval_page.css").read_text(encoding="utf-8")
_PAGE, _FORM = (Template((_FILES / f"approval_{name}.html").read_text(encoding="utf-8")) for name in ("page", "form"))
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = (
    (b"content-type", b"text/html; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-robots-tag", b"noindex, nofollow"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (
        b"content-security-policy",
        f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
        "".encode(),
    ),
)


class ApprovalPage:
    """The page as an ASGI application: mount it where ``[approvals] url`` says.

    >>> from antiphon.stores import MemoryStore
    >>> page = ApprovalPage(Antiphon(store=MemoryStore()))  # Route("/approve", page)
    """

    def __init__(self, app: Antiphon, desk: Desk | None = None) -> None:
        """*desk* finds the approvals of a link, on an asynchronous journal (default: those of *app*)."""
        self._app = app
        self._fingerprints = fingerprints_of(app.config, app.store)
        self._desk = desk or self._own_desk
        self._do: Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]] = _here if desk is not None else _on_a_thread

    def _own_desk(self, scope: Scope, link: Link) -> Approvals:
        if link.tenant != self._app.tenant:
            raise NotFound("This link is not valid.", code="link_invalid")
        return Approvals(self._app, actor=link.to, where=where(scope))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method = scope["method"]
        try:
            status, body = await self._answer(scope, receive, method)
        except Exception as problem:
            status, body = _failure_page(problem)
        headers = [*HEADERS, (b"content-length", str(len(body)).encode())]
        if status == 405:
            headers.append((b"allow", b"GET, HEAD, POST"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    async def _answer(self, scope: Scope, receive: Receive, method: str) -> tuple[int, bytes]:
        if method in ("GET", "HEAD"):
            token = _field(parse_qs(scope.get("query_string", b"").decode("utf-8", "replace")), "token")
            link = Link.read(token, self._fingerprints)
            return 200, _page(await self._do(self._desk(scope, link).approval_of_link(link)), link, token)
        if method != "POST":
            return 405, _document("Not here", _paragraph("Open the link, or send its form."))
        try:
            async with asyncio.timeout(_SLOWEST_S):
                body = await read_body(receive, _LARGEST)
        except Disconnected:
            raise InvalidInput("The form is incomplete. Nothing was changed.") from None
        except TooLarge:
            raise InvalidInput("The form is too large. Nothing was changed.") from None
        form = _form(scope, body)
        token = _field(form, "token")
        link = Link.read(token, self._fingerprints)
        reason = _field(form, "reason")[:_LONGEST_REASON]
        work = self._desk(scope, link).decide_with(link, _field(form, "decision"), reason=reason)
        return 200, _page(await self._do(work), link, token)


async def _here(work: Coroutine[Any, Any, Any]) -> Any:
    return await work


async def _on_a_thread(work: Coroutine[Any, Any, Any]) -> Any:
    """The synchronous journal must not block the event loop."""
    return await asyncio.to_thread(drive, work)


def where(scope: Scope) -> str:
    """What the audit log calls a decision made by link."""
    client = scope.get("client")
    return f"signed link from {client[0] if client else 'an unknown address'}"


def _form(scope: Scope, body: bytes) -> dict[str, list[str]]:
    kind = next((value for name, value in scope["headers"] if name == b"content-type"), b"")
    if kind.partition(b";")[0].strip().lower() != b"application/x-www-form-urlencoded":
        raise InvalidInput("Submit the form on the page. Nothing was changed.")
    return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)


def _field(fields: dict[str, list[str]], name: str) -> str:
    """The value of a field; empty if it is missing or given twice."""
    values = fields.get(name, [])
    return values[0] if len(values) == 1 else ""


def _failure_page(problem: Exception) -> tuple[int, bytes]:
    """A failure in words; an unexpected one does not reveal its cause."""
    if isinstance(problem, StoreError):
        log.warning("the store failed: %s", problem)
        said = "The store failed. Open the link again: the page says whether anybody has decided."
        return 503, _document("Try again", _paragraph(said))
    if isinstance(problem, TimeoutError):
        return 408, _document("Try again", _paragraph("The form took too long to arrive. Nothing was changed."))
    for kind, status in ((AlreadyDecided, 409), (NotFound, 404), (Refused, 403), (InvalidInput, 400)):
        if isinstance(problem, kind):
            return status, _document("Nothing was changed", _paragraph(str(problem)))
    if isinstance(problem, AntiphonError):
        return int(getattr(problem, "status", 422)), _document("Nothing was changed", _paragraph(str(problem)))
    log.error("a signed link could not be answered", exc_info=problem)
    return 500, _document("Something failed", _paragraph("See the log of the host."))


def _page(shown: dict[str, Any], link: Link, token: str) -> bytes:
    """The call, and the form unless somebody has decided."""
    state = str(shown["state"])
    facts = [
        ("Tool", shown["tool"]),
        ("What it does", shown.get("description")),
        ("Asked by", shown.get("asker")),
        ("Session", shown.get("session")),
        ("Rule", shown.get("policy")),
        ("Decided by", shown.get("decidedBy")),
        ("Reason", shown.get("reason")),
        ("Audit log", "could not be written; the decision stands" if NOT_AUDITED in shown else None),
        ("Valid until", _time(min(link.expires_at_ms, shown.get("expiresAtMs", link.expires_at_ms)))),
    ]
    listed = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(value))}</dd>" for name, value in facts if value
    )
    call = f"<dl>{listed}</dl><p>Arguments:</p><pre>{html.escape(str(shown.get('arguments', '')))}</pre>"
    if state != "waiting":
        return _document(f"This call is {state}", call)
    return _document("Approve this call?", call, _questions(link, token))


def _questions(link: Link, token: str) -> str:
    names = {"approve": "Approve", "deny": "Deny"}
    buttons = "".join(f'<button name="decision" value="{one}">{names[one]}</button>' for one in link.may)
    return _FORM.substitute(
        token=html.escape(token), longest=_LONGEST_REASON, person=html.escape(link.to), buttons=buttons
    )


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _paragraph(text: str) -> str:
    return f"<p>{html.escape(text)}</p>"


def _document(title: str, *parts: str) -> bytes:
    return _PAGE.substitute(title=html.escape(title), style=_STYLE, content="".join(parts)).encode()
