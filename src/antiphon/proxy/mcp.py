"""Tool calls of MCP clients: each is a guarded call with a key, so a call that is resent runs once.

The key is the identity that the client gives the call. A call without identity gets a new key or, by the rule of
:mod:`antiphon.decide.lost`, the key of an equal call whose answer was lost. All other messages are forwarded unchanged.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import functools
import hashlib
import json
import logging
import re
import time
from codecs import BOM_UTF8
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from typing import Any

import orjson

from antiphon._asgi import Disconnected
from antiphon._gateway.ids import uuid7
from antiphon._replay.recording import Recording
from antiphon._scope import RunScope, current_scope, running_site, without_run
from antiphon.adapters import _mcp
from antiphon.adapters._calls import CallIdentity, GuardedTools, ToolAnswer
from antiphon.contract.approval import DENIED, REQUIRED, WITHDRAWN
from antiphon.contract.spec import DidNotHappen, ToolSpec
from antiphon.decide.lost import LostAnswers
from antiphon.errors import AntiphonError, StoreError
from antiphon.ops.app import Antiphon
from antiphon.proxy.clients import Refused, Reply, Request, abort_on_disconnect, wait_for_disconnect
from antiphon.proxy.options import ToolRule, ToolRules, first_of
from antiphon.proxy.runs import AnswerOrigin, answer_origin
from antiphon.proxy.upstreams import Headers, end_to_end_headers
from antiphon.redact._names import classify

log: logging.Logger = logging.getLogger("antiphon.proxy")

CALL_ID = "dev.antiphon/callId"
"""The field of ``_meta`` that identifies a call."""
OUTCOME = "dev.antiphon/outcome"
"""The field of ``_meta`` that says why there is no tool result."""
HEADER_MISMATCH = -32020
PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS = -32700, -32600, -32602
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_SENTINEL = re.compile(r"=\?base64\?(.*)\?=")
_ACCOUNT = re.compile(r"\b(?:tenant|account|org|organization|workspace|project|customer|team|user(?!-agent))\b")
_FIELDS = frozenset({"jsonrpc", "id", "method", "params"})
_PARAMS = frozenset({"name", "arguments", "_meta"})
"""Fields of a message and of its parameters that decide how it is guarded."""
_DIGITS = re.compile(rb"\d{19}")
_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"')
_INTEGER = re.compile(rb"(?<![\w.+-])-?\d{19,}(?![\w.])")
CANCELLED_S = 1.0
"""How long a server may take to answer a call that its client has cancelled; then the outcome is unknown."""
_MAX_TOOLS = 10_000
_MAX_UNAPPROVED = 10_000
_UNAPPROVED = frozenset({REQUIRED, DENIED, WITHDRAWN})
_MAX_QUEUED = 256
"""Events queued for a client before backpressure stops the server."""
_LONGEST_KEY = 1024

_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 60.0
Send = Callable[[str | None], Awaitable[Any]]
"""Sends the call; given an event id, resumes its stream after that event."""


class McpGuard:
    """The guarded calls of all clients of a proxy."""

    def __init__(self, app: Antiphon, *, rules: ToolRules, timeout_s: float, identity: Sequence[str] = ()) -> None:
        """*identity* are fields of ``_meta`` that identify a call, besides our own."""
        self._clock = app.clock
        self.tools: GuardedTools = GuardedTools({}, app)
        self._rules = rules
        self._kept: dict[tuple[float, bool], LostAnswers] = {}
        """Lost answers, by how long they are kept and whether they include answers handed over."""
        self._names: tuple[str, ...] = (CALL_ID, *identity)
        self._timeout_s = timeout_s
        self._specs: dict[tuple[str, str], ToolSpec] = {}
        self._running: set[asyncio.Task[Any]] = set()
        self._sent: dict[tuple[object, ...], _ToolExchange] = {}
        """Calls in sessions, by what a client names to cancel them."""
        self._undecided: dict[str, asyncio.Event] = {}
        """Calls without identity whose clients wait; set once the fate of the answer is known."""
        self._unapproved: OrderedDict[str, str] = OrderedDict()
        """Keys of calls without identity that need approval; equal calls reuse the key until one of them is made."""
        self._over: dict[object, Any] = {}
        """For debug logging: the answer last handed over on each connection."""

    async def stop(self, seconds: float) -> None:
        """Wait for calls whose clients have disconnected."""
        if self._running:
            await asyncio.wait(tuple(self._running), timeout=seconds)

    def check(self, request: Request) -> _mcp.Request | None:
        """The request in a client's message, if it may be passed on; ``None`` for a response, or no message."""
        for kept in self._kept.values():
            kept.confirmed(request.connection)
        if self._over and request.connection in self._over:
            log.debug("the answer to %s is confirmed", self._over.pop(request.connection))
        if not request.body:
            return None
        if request.named.get("content-encoding", "identity") != "identity":
            text = "A message to an MCP server is passed on only if it can be read; this one is compressed."
            raise Refused(415, "unreadable_message", text)
        if _is_form(request.named.get("content-type", ""), request.body):
            return None
        asked = checked(request.body)
        if asked is None:
            return None
        if request.method != "POST":
            raise Refused(405, "method_not_allowed", "Send messages to an MCP server with POST.")
        check_headers(request, asked)
        if asked.method == _mcp.CANCELLED:
            sent = self._sent.get(_in_session(request, asked.params.get("requestId")))
            if sent is not None:
                sent.cancel()
        return asked

    def _lost(self, rule: ToolRule) -> LostAnswers:
        place = (rule.window_s, rule.guard_handed_over)
        found = self._kept.get(place)
        if found is None:  # 0 keeps no answers
            found = self._kept[place] = LostAnswers(rule.window_s or -1.0, handed_over=rule.guard_handed_over)
        return found

    def unapproved_key(self, equal: str) -> str | None:
        """The key of an equal call that was not made because its approval is pending or was denied."""
        return self._unapproved.get(equal)

    def note_outcome(
        self, equal: str, key: str, given: ToolAnswer | None, failure: BaseException | None = None
    ) -> bool:
        """Note the outcome of a call without identity; return whether it certainly was not made."""
        if given is not None and given.code in _UNAPPROVED:
            self._unapproved[equal] = key
            while len(self._unapproved) > _MAX_UNAPPROVED:
                self._unapproved.popitem(last=False)
            return True
        unmade = isinstance(failure, DidNotHappen)  # its approval can be used again
        if not unmade and self._unapproved.get(equal) == key:
            del self._unapproved[equal]
        return unmade

    def name_of(self, header: str | None, asked: _mcp.Request) -> str | None:
        """The identity that the client gives the call."""
        return identity_of(header, asked, self._names)

    def spec(self, upstream: str, tool: str) -> ToolSpec:
        """The spec for a tool of a server: not idempotent unless the operator says that it only reads."""
        place = (upstream, tool)
        found = self._specs.get(place)
        if found is None:
            if len(self._specs) >= _MAX_TOOLS:
                raise Refused(429, "too_many_tools", f"The proxy guards {_MAX_TOOLS} tools at most.")
            rule = self._rules.of(upstream, tool)
            reads = rule.read
            found = self._specs[place] = ToolSpec(
                name=tool,
                namespace=f"mcp.{upstream}",
                idempotent=reads,
                effect="read" if reads else None,
                approve=rule.approve,  # type: ignore[arg-type]
                poll=True,
                retry={"max_attempts": 1},  # type: ignore[arg-type]
                timeout=self._timeout_s,
            )
        return found

    async def make(
        self,
        spec: ToolSpec,
        asked: _mcp.Request,
        key: str,
        body: Callable[[dict[str, Any]], Awaitable[Any]],
        scope: RunScope | None,
        origin: AnswerOrigin,
    ) -> ToolAnswer:
        """Make the guarded call in the run of *scope*, or in none."""
        answer_origin.set(origin)
        if scope is not None:
            scope.adopt()
        with without_run() if scope is None else nullcontext():
            return await self.tools.call_async(
                spec, asked.params.get("arguments") or {}, CallIdentity(None, None, key=key), body
            )

    async def call(
        self, request: Request, asked: _mcp.Request, send: Send, scope: RunScope | None, receive: Any, answer: Reply
    ) -> None:
        """Make the call or return the answer of the call it repeats; the rules say whether a disconnect cancels it."""
        upstream, tool = request.upstream.name, asked.params["name"]
        rule, spec = self._rules.of(upstream, tool), self.spec(upstream, tool)
        exchange = _ToolExchange(request, asked, rule, spec, send, scope)
        place = scope_of(request, asked)
        named = self.name_of(request.named.get("idempotency-key"), asked)
        disconnect = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            if named is not None or (rule.read and rule.approve is None):
                own = uuid7() if named is None else hashlib.sha256(named.encode()).hexdigest()
                await self._deliver(exchange, self._start(exchange, f"{place}:{own}"), disconnect, answer)
            else:
                await self._without_identity(exchange, place, disconnect, answer)
        finally:
            disconnect.cancel()

    async def _without_identity(
        self, exchange: _ToolExchange, place: str, disconnect: asyncio.Future[None], answer: Reply
    ) -> None:
        """A call that may be a resend; it waits until the fate of an equal call's answer is known."""
        equal = f"{place}:{digest_of(exchange.asked.params.get('arguments') or {})}"
        async with abort_on_disconnect(disconnect):
            while (before := self._undecided.get(equal)) is not None:
                await before.wait()
        decided = self._undecided[equal] = asyncio.Event()
        lost, now = self._lost(exchange.rule), self._clock.monotonic
        try:
            key = self.unapproved_key(equal) or lost.begin(equal, now(), f"{place}:{uuid7()}")
            task = self._start(exchange, key)

            def settled(done: asyncio.Task[Any]) -> None:
                failure = asyncio.CancelledError() if done.cancelled() else done.exception()
                if self.note_outcome(equal, key, done.result() if failure is None else None, failure):
                    lost.failed(equal, key)
                else:
                    lost.settled(equal, key, now())

            task.add_done_callback(settled)
            try:
                await self._deliver(exchange, task, disconnect, answer)
            except Disconnected:
                if self.unapproved_key(equal) != key:
                    lost.lost(equal, key, now())
                raise
            if self.unapproved_key(equal) != key:
                lost.handed_over(equal, key, exchange.request.connection, now())
        finally:
            del self._undecided[equal]
            decided.set()

    def _start(self, exchange: _ToolExchange, key: str) -> asyncio.Task[ToolAnswer]:
        """Start the guarded call, which continues if its client disconnects."""
        request, asked = exchange.request, exchange.asked
        place = _in_session(request, asked.id)

        def ended(done: asyncio.Task[Any]) -> None:
            self._running.discard(done)
            if self._sent.get(place) is exchange:
                del self._sent[place]
            exchange.events.put_nowait(None)
            if not done.cancelled():
                done.exception()  # already reported to the client, if it is still there

        task = asyncio.ensure_future(
            self.make(exchange.spec, asked, key, exchange.run, exchange.scope, exchange.origin)
        )
        self._running.add(task)
        if "mcp-session-id" in request.named:  # without a session, clients may use the same ids
            self._sent[place] = exchange
        task.add_done_callback(ended)
        return task

    async def _deliver(
        self, exchange: _ToolExchange, task: asyncio.Task[ToolAnswer], disconnect: asyncio.Future[None], answer: Reply
    ) -> None:
        """Send the answer; raise :class:`Disconnected` if the client leaves before the last byte is written."""
        try:
            async with abort_on_disconnect(disconnect):
                last = await exchange.deliver(task, answer)
                await asyncio.sleep(0)  # lets a disconnect be noticed
            if disconnect.done():
                raise Disconnected
        except Disconnected:
            log.debug("the answer to %s is lost: its client has left", exchange.asked.id)
            exchange.detach()
            if exchange.rule.ends_with_client:
                task.cancel()
            raise
        if log.isEnabledFor(logging.DEBUG):
            log.debug("the answer to %s is handed over", exchange.asked.id)
            self._over[exchange.request.connection] = exchange.asked.id
        await last()


class _ToolExchange:
    """One call to the server and what comes back."""

    def __init__(
        self, request: Request, asked: _mcp.Request, rule: ToolRule, spec: ToolSpec, send: Send, scope: RunScope | None
    ) -> None:
        self.request, self.asked, self.rule, self.spec, self.scope = request, asked, rule, spec, scope
        self._send = send
        self.events: asyncio.Queue[bytes | None] = asyncio.Queue()
        """Server events as received; ``None`` after the last."""
        self._taken = asyncio.Event()
        self._detached = False
        self.head: tuple[int, Headers] | None = None
        """Status and headers of the server's response, if the call was sent."""
        self.answered = False
        """Whether the events included the answer."""
        self.body: bytes | None = None
        """The body, if it was not an event stream."""
        self.origin = AnswerOrigin()
        """Where the answer came from, if not from the server."""
        self._response: Any = None
        self._limit: asyncio.Timeout | None = None
        """While it is sent and read."""
        self._is_cancelled = False

    def cancel(self) -> None:
        """The client has cancelled the call: its outcome is unknown unless the server still answers."""
        self._is_cancelled = True
        asyncio.get_running_loop().call_later(CANCELLED_S, self._give_up)

    def _give_up(self) -> None:
        if self._limit is not None:
            self._limit.reschedule(asyncio.get_running_loop().time())

    def detach(self) -> None:
        """Stop queueing events: nobody reads them any more."""
        self._detached = True
        self._taken.set()

    async def _forward(self, event: bytes) -> None:
        """Queue an event for the client; a slow client slows down the server."""
        if self._detached:
            return
        self.events.put_nowait(event)
        while self.events.qsize() > _MAX_QUEUED and not self._detached:
            self._taken.clear()
            await self._taken.wait()

    async def run(self, params: dict[str, Any]) -> Any:
        """Send the call to the server; its answer is the outcome."""
        if self._is_cancelled:
            raise DidNotHappen("Its client has cancelled it.")
        self.notifications = Notifications()
        async with asyncio.timeout(self.request.wait_s) as self._limit:
            try:
                self._response = await self._send(None)
                return await self._read()
            finally:
                self._limit = None
                if self._response is not None:
                    await self._response.aclose()
                    await self.notifications.write()

    async def _read(self) -> Any:
        response = self._response
        headers = [
            (name, value) for name, value in end_to_end_headers(response.headers.raw) if name != b"content-encoding"
        ]
        if response.status_code < 400 and _mcp.is_event_stream(response):
            self.head = (response.status_code, headers)
            return await self._follow()
        self.head, self.body = (response.status_code, headers), await _whole(response)
        message = _mcp.message_in(self.body)
        if response.status_code != 200 or not _mcp.answers(message, self.asked):
            self.notifications.add_response(response, self.body)
        error = message.get("error") if isinstance(message, dict) else None
        is_tool_error = isinstance(error, dict) and (
            error.get("code") in _mcp.UNEXECUTED or _mcp.answers(message, self.asked)
        )
        if response.status_code < 400 or is_tool_error:  # by the tool, not by the transport, whatever the status
            return value_of(message)
        import httpx

        text = f"The server answered {response.status_code}."
        raise httpx.HTTPStatusError(text, request=httpx.Request("POST", "http://upstream"), response=response)

    async def _follow(self) -> Any:
        """Read the answer from an event stream; a stream that ends early is resumed if the server supports it."""
        last, pause = "", _PAUSE_S
        while True:
            async for event in _mcp.events(self._response.aiter_bytes()):
                if event == BOM_UTF8 and last:  # allowed at the beginning only
                    continue
                message = _mcp.message_of(event)
                await self._forward(event)
                if _mcp.answers(message, self.asked):
                    self.answered = True
                    return value_of(message)
                self.notifications.add(message)
                fields = _mcp.fields_of(event)
                last = fields.get(b"id", b"").decode("latin-1") or last
                if fields.get(b"retry", b"").isdigit() and len(fields[b"retry"]) < 10:
                    pause = min(max(int(fields[b"retry"]) / 1000, _PAUSE_S), _LONGEST_PAUSE_S)
            if not last:
                raise ConnectionResetError("The server ended the stream without an answer.")
            await self._response.aclose()
            await asyncio.sleep(pause)
            self._response = await self._send(last)
            if self._response.status_code != 200 or not _mcp.is_event_stream(self._response):
                raise ConnectionResetError("The server ended the stream without an answer, and does not go on with it.")

    async def deliver(self, task: asyncio.Task[ToolAnswer], answer: Reply) -> Callable[[], Awaitable[None]]:
        """Send the client everything but the last byte; the returned function sends that."""
        begun = False
        while (event := await self.events.get()) is not None:
            self._taken.set()
            if not begun:
                begun = True
                assert self.head is not None
                await answer.start(*self.head, {})
            await answer.chunk(event)
        failure = task.exception()
        if begun and self.answered:
            return answer.finish
        if self.head is not None and self.body is not None:  # this call itself reached the server
            status, headers = self.head
            await answer.start(status, headers, {})
            await answer.chunk(self.body)
            return answer.finish
        kept = None if self.origin.response is None else _mcp.response_in(self.origin.response, self.asked)
        if kept is not None:
            await answer.start(kept.status, [(b"content-type", kept.content_type.encode())], {})
            await answer.chunk(kept.chunks[0])
            return answer.finish
        message = given_again(task.result(), self.asked) if failure is None else unknown(failure, self.asked)
        message = {"jsonrpc": "2.0", "id": self.asked.id, **message}
        recorded = [(_mcp.notification_for(notice, self.asked), gap) for notice, gap in self.origin.notifications]
        notifications = [(notice, gap) for notice, gap in recorded if notice is not None]
        if not begun:
            kind = b"text/event-stream" if notifications else b"application/json"
            await answer.start(200, [(b"content-type", kind)], {})
        for notice, gap in notifications:
            if gap:
                await asyncio.sleep(gap / 1000)
            await answer.chunk(_mcp.event_of(_mcp.encoded(notice)))
        data = _mcp.encoded(message)
        await answer.chunk(_mcp.event_of(data) if begun or notifications else data)
        return answer.finish


def is_known(recording: Recording | None, server: str, asked: _mcp.Request) -> bool:
    """Whether the recording has this tool as a guarded call rather than as a plain message."""
    if recording is None:
        return True
    return f"mcp.{server}/{asked.params['name']}" in recording.by_name or asked.name not in recording.by_name


def value_of(message: Any) -> Any:
    """What is recorded of an answer: the result or the JSON-RPC error."""
    if not isinstance(message, dict) or ("result" not in message and "error" not in message):
        raise ConnectionResetError("The server gave no answer.")
    error = message.get("error")
    if error is None:
        result = message["result"]
        return {_mcp.ERROR: None, "result": result} if isinstance(result, dict) and _mcp.ERROR in result else result
    if isinstance(error, dict) and error.get("code") in _mcp.UNEXECUTED:
        raise DidNotHappen(str(error.get("message", "")))
    return {_mcp.ERROR: error}


def given_again(given: ToolAnswer, asked: _mcp.Request) -> dict[str, Any]:
    """A recorded answer as the answer to another request."""
    if not given.ok:
        return _failed(asked, given.code, given.message, given.question)
    if isinstance(given.value, dict) and _mcp.ERROR in given.value:
        error = given.value[_mcp.ERROR]
        return {"result": given.value["result"]} if error is None else {"error": error}
    return {"result": given.value}


def unknown(failure: BaseException, asked: _mcp.Request) -> dict[str, Any]:
    """The answer to a call that failed in transit; our own errors are raised."""
    if isinstance(failure, AntiphonError):
        raise failure
    notes = " ".join(getattr(failure, "__notes__", ()))
    code = "outcome_unknown" if "outcome_unknown" in notes else "error"
    text = f"{type(failure).__name__}: {failure}".removesuffix(": ")
    if code == "outcome_unknown":
        text = f"It is not known whether the tool ran: {text.rstrip('.')}. It is not called again for this call."
    return _failed(asked, code, text)


def _failed(asked: _mcp.Request, code: str, text: str, question: dict[str, Any] | None = None) -> dict[str, Any]:
    """A failed call as a tool result, worded for a model."""
    meta = {OUTCOME: code} if question is None else {OUTCOME: code, _mcp.APPROVAL: question}
    return {"result": asked.result(content=[{"type": "text", "text": text}], isError=True, _meta=meta)}


def identity_of(header: str | None, asked: _mcp.Request, names: Sequence[str] = (CALL_ID,)) -> str | None:
    """The identity that the client gives the call; never the JSON-RPC id, which identifies one delivery."""
    given: Any = header
    if given is None:
        given = first_of(asked.params.get("_meta"), names)
    if given is None:
        return None
    if not isinstance(given, str) or not 0 < len(given) <= _LONGEST_KEY:
        raise Refused(
            400, "idempotency_key_invalid", f"The key of a call must be a string of 1 to {_LONGEST_KEY} characters."
        )
    return given


def scope_of(request: Request, asked: _mcp.Request) -> str:
    """The scope of a key: client, account, run or session, server, tool and leg of an exchange."""
    named = request.named
    parts = [
        request.client,
        sorted((name, value) for name, value in named.items() if _identifies_account(name)),
        request.run if request.run is not None else named.get("mcp-session-id", ""),
        request.run is None,
        request.upstream.name,
        [request.path.decode("latin-1"), request.query.decode("latin-1")],
        asked.params["name"],
        _mcp.leg_of(asked.params.get("requestState"), asked.params.get("inputResponses")),
    ]
    return hashlib.sha256(orjson.dumps(parts)).hexdigest()


@functools.lru_cache(maxsize=1024)
def _identifies_account(header: str) -> bool:
    """Whether a header identifies or authenticates the calling account."""
    field = classify(header)
    return (field is not None and field.mode == "secret") or _ACCOUNT.search(header) is not None


def _in_session(request: Request, place: Any) -> tuple[object, ...]:
    """Identifies the call with the JSON-RPC id *place* among those of the request's session."""
    session = request.named.get("mcp-session-id", "")
    known = place if isinstance(place, (str, int, float)) else None
    return request.client, request.run, request.upstream.name, request.path, session, known


def _is_form(kind: str, body: bytes) -> bool:
    """Whether a body really is a form, so that a server that ignores the content type cannot take it for a message."""
    if kind.startswith("multipart/"):
        return body.lstrip().startswith(b"--")
    return kind.startswith("application/x-www-form-urlencoded") and b"{" not in body


def digest_of(value: Any) -> str:
    """A digest that is the same for equal calls."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def checked(body: bytes) -> _mcp.Request | None:
    """The request in a client's message; ``None`` for a response. Unreadable messages are refused: a server that can
    read them would make an unguarded call."""
    message = _mcp.parsed(body)
    if message is None:
        raise _malformed(PARSE_ERROR, "The message is not JSON.")
    if not isinstance(message, dict):
        raise _malformed(INVALID_REQUEST, "The message is not an object: batches are not part of this protocol.")
    if _DIGITS.search(body) and any(map(_is_rounded, _INTEGER.findall(_TEXT.sub(b'""', body)))):
        text = "The message has an integer of more than 64 bits, which would be rounded here. Send it as text."
        raise _malformed(INVALID_REQUEST, text)
    _check_names(body, message)
    if "method" not in message:
        return None
    asked, place = _mcp.request_in(message), message.get("id")
    if asked is None or isinstance(place, bool) or not isinstance(place, (str, int, float, type(None))):
        raise _malformed(
            INVALID_REQUEST, 'A message has "jsonrpc": "2.0", a method, and an id that is text or a number.'
        )
    if asked.method == "tools/call":
        name, arguments = asked.params.get("name"), asked.params.get("arguments")
        if place is None or not isinstance(name, str) or not isinstance(arguments, (dict, type(None))):
            text = "A tools/call has an id, the name of a tool, and an object of arguments."
            raise _malformed(INVALID_PARAMS, text, place)
    return asked


def _check_names(body: bytes, message: dict[str, Any]) -> None:
    """Refuse names that other parsers read differently: some take the first of two equal ones, some ignore case."""
    params = message.get("params")
    for known, given in ((_FIELDS, message), (_PARAMS, params if isinstance(params, dict) else {})):
        for name in given:
            if name not in known and name.lower() in known:
                raise _malformed(INVALID_REQUEST, f"The message has a field {name!r}; write {name.lower()!r}.")
    try:
        json.loads(body, object_pairs_hook=_check_unique)
    except (RecursionError, ValueError):
        text = "The message is nested too deeply, or has a number that is too long."
        raise _malformed(INVALID_REQUEST, text) from None


def _check_unique(pairs: list[tuple[str, Any]]) -> None:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for number, name in enumerate(names) if name in names[:number])
        raise _malformed(INVALID_REQUEST, f"The message has the field {twice!r} twice in one object.")


def _is_rounded(integer: bytes) -> bool:
    return len(integer) > 20 or not -(2**63) <= int(integer) < 2**64


def _malformed(code: int, text: str, place: Any = None) -> Refused:
    error = {"jsonrpc": "2.0", "id": place, "error": {"code": code, "message": text}}
    return Refused(400, "unreadable_message", text, message=error)


def check_headers(request: Request, asked: _mcp.Request) -> None:
    """Refuse a request whose headers contradict its body; in the newest revision they repeat it."""
    header_values = {
        name: _values(request.headers, name) for name in ("MCP-Protocol-Version", "Mcp-Method", "Mcp-Name")
    }
    revisions = header_values["MCP-Protocol-Version"] | ({asked.revision} if asked.revision else set())
    if max(revisions, default="") < _mcp.NEWEST:
        return
    field = _NAMED.get(asked.method)
    said = None if field is None else asked.params.get(field)
    wrong = ""
    if len(revisions) > 1:
        wrong = "MCP-Protocol-Version"
    elif not header_values["Mcp-Method"] <= {asked.method}:
        wrong = "Mcp-Method"
    elif said is not None and not set(map(_plain, header_values["Mcp-Name"])) <= {said}:
        wrong = "Mcp-Name"
    if wrong:
        text = f"The header {wrong} and the body differ."
        error = {"jsonrpc": "2.0", "id": asked.id, "error": {"code": HEADER_MISMATCH, "message": text}}
        raise Refused(400, "header_mismatch", text, message=error)


def _values(headers: Headers, name: str) -> set[str]:
    """All values of a header: a server may read another one of several than this proxy does."""
    wanted = name.lower().encode()
    return {value.decode("latin-1").strip() for field, value in headers if field.lower() == wanted}


def _plain(text: str) -> str | None:
    """The text of a header, decoded if it is base64; ``None`` if it cannot be decoded."""
    found = _SENTINEL.fullmatch(text)
    if found is None:
        return text
    try:
        data = base64.b64decode(found[1], validate=True)
        return data.decode() if base64.b64encode(data).decode() == found[1] else None
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None


async def _whole(response: Any) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _mcp.LARGEST:
            raise ConnectionResetError(f"The server sent a message of over {_mcp.LARGEST} bytes.")
    return bytes(body)


class Notifications:
    """What the server sent during a call besides its answer, recorded in its run."""

    def __init__(self) -> None:
        site, scope = running_site(), current_scope()
        self._chunks: Any = None if scope is None or site is None or not scope.records else scope.chunks(site)
        self._scope = scope
        self._last = time.monotonic()
        self._left = _mcp.MAX_NOTIFICATIONS

    def add(self, message: Any) -> None:
        """Add a server message, unless it is a request."""
        if self._chunks is not None and self._left and _mcp.is_notification(message):
            now = time.monotonic()
            self._chunks.add(message, (now - self._last) * 1000)
            self._last = now
            self._left -= 1

    def add_response(self, response: Any, body: bytes) -> None:
        """Add a response whose status and body the call's outcome does not tell."""
        if self._chunks is not None:
            kind = response.headers.get("content-type", "")
            self._chunks.add(_mcp.response_of(response.status_code, kind, body), 0.0)

    async def write(self) -> None:
        """Write them, before the end of the call."""
        if self._chunks is None or self._scope is None or self._scope.write_async is None:
            return
        rows = self._chunks.remaining()
        if rows:
            try:
                await self._scope.write_async(rows)
            except StoreError as error:
                log.error("%d notices of a call are missing from the run log: %s", len(rows), error)
