"""``Idempotency-Key`` for web applications: a resent request gets the first response.

    app.add_middleware(IdempotencyKey, principal=lambda scope: scope["user"].id)      # ASGI: FastAPI, Starlette
    app.wsgi_app = IdempotencyKeyWSGI(app.wsgi_app, principal=lambda environ: ...)    # WSGI: Flask, Django

Both follow draft-ietf-httpapi-idempotency-key-header: 400 without a key, 409 while the first request runs, 422 for
a different request with a used key. A response is stored and resent, even a 402 or 404. A status of 500 and above, or
an exception, leaves the outcome unknown: the request is not processed again until someone has settled it.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, MutableMapping
from contextlib import suppress
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar
from uuid import uuid4

from antiphon._asgi import Disconnected, Receive, TooLarge, read_body
from antiphon._gateway.gateway import AsyncGateway, BaseGateway, Gateway
from antiphon.adapters._pending import PendingCall, making, run, run_async
from antiphon.contract.result import ToolResultEnvelope
from antiphon.contract.spec import BreakerPolicy, DidNotHappen, RetryPolicy, ToolSpec
from antiphon.errors import InvalidInput, ResultNotKept
from antiphon.keys import key_text

if TYPE_CHECKING:
    import asyncio

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Any, Any], Awaitable[None]]
WSGIApplication = Callable[[dict[str, Any], Any], Iterable[bytes]]
A = TypeVar("A")
S = TypeVar("S")
G = TypeVar("G", bound=BaseGateway)

MAX_BODY = 1_048_576
_LONGEST_KEY = 255
_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_BARE = re.compile(r"[\x21\x23-\x7e]+")
_NEVER_OPENS = BreakerPolicy(consecutive=1_000_000_000, rate=1.0, min_calls=1_000_000_000)
_PROBLEMS = {
    "in_flight": (409, "The first request with this Idempotency-Key is still being processed. Send it again later.", 1),
    "idempotency_conflict": (422, "This Idempotency-Key was used for another request. Use a new key.", 0),
    "outcome_unknown": (
        409,
        "The first request with this Idempotency-Key ended without an answer, and it is not known whether it took "
        "effect. It is not processed again. Ask the operator.",
        0,
    ),
    "result_not_kept": (
        409,
        "The first request with this Idempotency-Key was processed. Its answer was too large to keep, or could not be "
        "kept, and cannot be given again. The request is not processed again.",
        0,
    ),
}
_NOT_PROCESSED = (503, "The request was not processed. Send it again later with the same Idempotency-Key.", 1)


class _Response(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


def _problem(status: int, code: str, detail: str, retry_after_s: int = 0) -> _Response:
    body = json.dumps({"title": HTTPStatus(status).phrase, "status": status, "code": code, "detail": detail}).encode()
    headers = [("Content-Type", "application/problem+json"), ("Content-Length", str(len(body)))]
    if retry_after_s:
        headers.append(("Retry-After", str(retry_after_s)))
    return _Response(status, headers, body)


class _Refused(Exception):
    """A request answered without the application."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.response = _problem(status, code, detail)


class _Request(PendingCall):
    """A request in progress."""

    noted = BaseException


class _Middleware(Generic[A, S, G]):
    """What both middlewares do with a request before and after the application."""

    _kind: type[G]

    def __init__(
        self,
        app: A,
        *,
        principal: Callable[[S], Any],
        gateway: G | None = None,
        methods: Collection[str] = ("POST", "PATCH"),
        required: bool = True,
        release: Collection[int] = (),
        max_body: int = MAX_BODY,
        ttl: float = 86_400,
        reconcile: Callable[..., Any] | None = None,
    ) -> None:
        name = self._kind.__name__
        self._gateway: G = getattr(import_module("antiphon"), name)() if gateway is None else gateway
        if not isinstance(self._gateway, self._kind):
            raise InvalidInput(f"The gateway of this middleware must be an antiphon.{name}.", path="$.gateway")
        if not callable(principal):
            raise InvalidInput(
                "principal must be a function that returns the authenticated sender of a request.",
                path="$.principal",
                hint="Without it, one user could read another's answers by sending the same key.",
            )
        if not callable(app):
            raise InvalidInput("app must be a web application.", path="$.app")
        if isinstance(methods, str):
            raise InvalidInput("methods must be a list of names, as in ('POST', 'PATCH').", path="$.methods")
        self._app, self._principal = app, principal
        self._methods = frozenset(method.upper() for method in methods)
        self._required = required
        self._release = frozenset(release)
        self._max_body = max_body
        spec = ToolSpec(
            name="request",
            namespace="http",
            idempotent=False,
            effect="write",
            retry=RetryPolicy(max_attempts=1),
            breaker=_NEVER_OPENS,
            key=_intent,
            key_ttl=ttl,
            reconcile=reconcile,
        )
        known = self._gateway.tools.get("http/request")
        if known is not None and known != spec:
            raise InvalidInput(
                "This gateway guards another application with another ttl or reconcile.",
                path="$.gateway",
                hint="Give each application a gateway of its own; they can share a store.",
            )
        self._gateway.register(run_async if isinstance(self._gateway, AsyncGateway) else run, spec)

    def _key(self, lines: list[str]) -> str | None:
        """The key in the header lines; ``None`` if there is none and none is required."""
        if not lines:
            if self._required:
                raise _Refused(400, "idempotency_key_missing", "This operation needs an Idempotency-Key header.")
            return None
        text = lines[0].strip()
        quoted = _QUOTED.fullmatch(text)
        key = re.sub(r"\\(.)", r"\1", quoted[1]) if quoted else text
        if len(lines) > 1 or not 0 < len(key) <= _LONGEST_KEY or not (quoted or _BARE.fullmatch(text)):
            what = f'one text of 1 to {_LONGEST_KEY} printable ASCII characters, as in Idempotency-Key: "8e03978e-40d5"'
            raise _Refused(400, "idempotency_key_invalid", f"The Idempotency-Key header must be {what}.")
        return key

    def _too_large(self) -> _Refused:
        return _Refused(413, "body_too_large", f"The body of this operation can have {self._max_body} bytes at most.")

    def _envelope(self, key: str, principal: object, arguments: dict[str, Any]) -> dict[str, Any]:
        """The call that represents the request."""
        if not isinstance(principal, str) or not principal:
            raise _Refused(401, "principal_missing", "The sender of this request is not known.")
        request_id = uuid4().hex
        return {
            "contractVersion": "1.1",
            "requestId": request_id,
            "toolName": "request",
            "toolNamespace": "http",
            "target": {"sessionKey": request_id, "actorId": principal},
            "payload": {"version": "1.0", "params": {"principal": principal, "key": key, **arguments}},
            "transport": {"dedupeMode": "bestEffort", "retryBudget": {"maxAttempts": 1, "maxElapsedMs": 0}},
            "control": {},
            "trace": {},
        }

    def _kept(self, response: _Response) -> dict[str, Any]:
        """The response as the recorded result of the call."""
        if response.status in self._release:
            raise _Released(response)
        if response.status >= 500:
            raise _Failed(response)
        headers = [list(pair) for pair in response.headers if pair[0].lower() != "content-length"]
        return {"status": response.status, "headers": headers, **_data(response.body)}

    def _answer(self, request: _Request, result: ToolResultEnvelope) -> _Response:
        """The response in the result; re-raises what the application raised."""
        if isinstance(request.error, _Answered):
            return request.error.response
        if request.error is not None:
            raise request.error
        kept = result.content
        if kept is None:
            code = result.code or ResultNotKept.code
            status, detail, later = _PROBLEMS.get(code, _NOT_PROCESSED)
            return _problem(status, code, detail, later)
        body = kept["text"].encode() if "text" in kept else base64.b64decode(kept["base64"])
        headers = [(name, value) for name, value in kept["headers"]]
        headers.append(("Content-Length", str(len(body))))
        if result.from_cache:
            headers.append(("Idempotency-Replayed", "true"))
        return _Response(kept["status"], headers, body)


class _Answered(Exception):
    """A response that is not a recorded result."""

    def __init__(self, response: _Response) -> None:
        super().__init__(f"the application answered {response.status}")
        self.response = response


class _Released(_Answered, DidNotHappen):
    """A response that means that nothing happened."""


class _Failed(_Answered):
    """A response that leaves the outcome unknown."""


def _intent(principal: str, key: str, **_: Any) -> tuple[str, str]:
    return principal, key


def _data(body: bytes) -> dict[str, str]:
    try:
        return {"text": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}


def _arguments(method: str, path: str, query: str, kind: str, body: bytes) -> dict[str, Any]:
    """What must match when a request is resent; JSON bodies may be formatted differently.

    A body that claims to be JSON, but is invalid or has no canonical form (NaN, a lone surrogate, too deeply nested),
    is compared verbatim.
    """
    arguments: dict[str, Any] = {"method": method, "path": path, "query": query}
    if kind.partition(";")[0].strip().lower().endswith(("/json", "+json")):
        with suppress(ValueError, RecursionError):
            document = json.loads(body)
            key_text([document])
            return {**arguments, "json": document}
    return {**arguments, **_data(body)}


# -- ASGI ----------------------------------------------------------------------------------------------------------


class IdempotencyKey(_Middleware[Application, Scope, AsyncGateway]):
    """ASGI middleware: a request resent with its ``Idempotency-Key`` gets the first response.

    *principal* returns the authenticated sender (text) of an ASGI scope; it may be a coroutine function. It is part
    of the key, so nobody can read the responses of others by guessing keys. *methods* are the ones that need a key;
    with ``required=False`` a request without one passes. A response whose status is in *release* means that nothing
    happened: it is not stored, and the key is free again. Responses are sent once complete and stored for *ttl*
    seconds. *reconcile* decides about a request that ended without a response, like that of a tool: it gets a dict
    with ``principal``, ``key``, ``method``, ``path``, ``query`` and the body (``json``, ``text`` or ``base64``).
    ``reconcile=lambda request: DidNotHappen()`` processes it again; use it if everything that the application does has
    its own key.

    >>> from antiphon import AsyncGateway
    >>> async def app(scope, receive, send): ...
    >>> guarded = IdempotencyKey(app, principal=lambda scope: scope["user"], gateway=AsyncGateway(store="memory:"))
    """

    _kind = AsyncGateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer from the record, or by the application."""
        if scope["type"] != "http" or scope["method"] not in self._methods:
            await self._app(scope, receive, send)
            return
        headers = [(bytes(name).lower(), bytes(value).decode("latin-1")) for name, value in scope["headers"]]
        try:
            key = self._key([value for name, value in headers if name == b"idempotency-key"])
            if key is None:
                await self._app(scope, receive, send)
                return
            principal = self._principal(scope)
            if isinstance(principal, Awaitable):
                principal = await principal
            body = await read_body(receive, self._max_body)
            kind = next((value for name, value in headers if name == b"content-type"), "")
            query = bytes(scope.get("query_string", b"")).decode("latin-1")
            path = scope.get("root_path", "") + scope["path"]
            envelope = self._envelope(key, principal, _arguments(scope["method"], path, query, kind, body))
        except _Refused as refused:
            await _send(refused.response, send)
            return
        except TooLarge:
            await _send(self._too_large().response, send)
            return
        except Disconnected:
            return
        running = _Running(self._app, scope, receive, body)
        request = _Request(lambda _: self._respond(running))
        try:
            with making(request):
                result = await self._gateway.execute(envelope)
            await _send(self._answer(request, result), send)
        except GeneratorExit:  # a coroutine being closed cannot await
            raise
        except BaseException as error:
            await running.end(error)
            raise
        await running.end()

    async def _respond(self, running: _Running) -> dict[str, Any]:
        return self._kept(await running.response())


class _Running:
    """Runs an ASGI application for one request in its own task, which may continue after the response is complete."""

    def __init__(self, app: Application, scope: Scope, receive: Receive, body: bytes) -> None:
        self._app, self._scope, self._receive = app, scope, receive
        self._body: bytes | None = body
        self._left = False
        self._started: list[Message] = []
        self._parts: list[bytes] = []
        self._task: asyncio.Future[None] | None = None

    async def response(self) -> _Response:
        """Start the application; return its response as soon as it is complete."""
        import asyncio  # not needed by synchronous programs

        self._complete, self._sent = asyncio.get_running_loop().create_future(), asyncio.Event()
        self._task = asyncio.ensure_future(self._app({**self._scope, "extensions": {}}, self._read, self._collect))
        while not (self._complete.done() or self._task.done()):
            try:
                await asyncio.wait((self._complete, self._task), return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:  # cancel the application, as if it were awaited here
                self._task.cancel()
        if not self._complete.done():
            await self._task
        if not (self._complete.done() and self._started):
            raise RuntimeError("The application sent no complete response.")
        headers = [
            (bytes(name).decode("latin-1"), bytes(value).decode("latin-1"))
            for name, value in self._started[0].get("headers", ())
        ]
        return _Response(self._started[0]["status"], headers, b"".join(self._parts))

    async def end(self, error: BaseException | None = None) -> None:
        """After the response was sent or failed with *error*, let the application finish and raise what it raises."""
        import asyncio

        if self._task is not None:
            self._sent.set()
            if isinstance(error, asyncio.CancelledError):
                self._task.cancel()
            await self._task

    async def _read(self) -> Message:
        if self._body is None:
            message = await self._receive()
            self._left = self._left or message["type"] == "http.disconnect"
            return message
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def _collect(self, message: Message) -> None:
        if self._complete.done():
            return
        if message["type"] == "http.response.start":
            self._started.append(message)
        elif message["type"] == "http.response.body":
            self._parts.append(message.get("body", b""))
            if not (message.get("more_body", False) or self._left):  # after a disconnect it may have stopped early
                self._complete.set_result(None)
                await self._sent.wait()


async def _send(response: _Response, send: Send) -> None:
    headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in response.headers]
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    await send({"type": "http.response.body", "body": response.body})


# -- WSGI ----------------------------------------------------------------------------------------------------------


class IdempotencyKeyWSGI(_Middleware[WSGIApplication, dict[str, Any], Gateway]):
    """WSGI middleware: :class:`IdempotencyKey` for Flask, Django and other synchronous applications.

    *principal* returns the authenticated sender (text) of a WSGI environ; the other options are the same.

    >>> from antiphon import Gateway
    >>> def app(environ, start_response): ...
    >>> guarded = IdempotencyKeyWSGI(app, principal=lambda environ: "ada", gateway=Gateway(store="memory:"))
    """

    _kind = Gateway

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Answer from the record, or by the application."""
        if environ["REQUEST_METHOD"] not in self._methods:
            return self._app(environ, start_response)
        try:
            line = environ.get("HTTP_IDEMPOTENCY_KEY")
            key = self._key([] if line is None else [line])
            if key is None:
                return self._app(environ, start_response)
            body = self._read(environ)
            path = environ.get("SCRIPT_NAME", "") + environ.get("PATH_INFO", "")
            query, kind = environ.get("QUERY_STRING", ""), environ.get("CONTENT_TYPE", "")
            arguments = _arguments(environ["REQUEST_METHOD"], path, query, kind, body)
            envelope = self._envelope(key, self._principal(environ), arguments)
        except _Refused as refused:
            return _start(refused.response, start_response)
        answer = _Body()
        request = _Request(lambda _: self._respond(environ, body, answer))
        try:
            with making(request):
                result = self._gateway.execute(envelope)
            answer.extend(_start(self._answer(request, result), start_response))
        except BaseException:
            answer.close()
            raise
        return answer

    def _read(self, environ: dict[str, Any]) -> bytes:
        if environ.get("wsgi.input_terminated"):
            size = -1
        else:
            size = int(environ.get("CONTENT_LENGTH") or 0)
        if size > self._max_body:
            raise self._too_large()
        body: bytes = environ["wsgi.input"].read(self._max_body + 1 if size < 0 else size)
        if len(body) > self._max_body:
            raise self._too_large()
        if len(body) < int(environ.get("CONTENT_LENGTH") or 0):
            detail = "The body of this request ended early. Nothing was processed. Send the whole request again."
            raise _Refused(400, "body_incomplete", detail)
        return body

    def _respond(self, environ: dict[str, Any], body: bytes, answer: _Body) -> dict[str, Any]:
        parts: list[bytes] = []
        started: list[tuple[str, list[tuple[str, str]]]] = []

        def start(status: str, headers: list[tuple[str, str]], exc_info: object = None) -> Callable[[bytes], object]:
            started.append((status, headers))
            return parts.append

        given = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        answer.made_of = self._app(given, start)
        parts.extend(answer.made_of)
        if not started:
            raise RuntimeError("The application sent no response.")
        status, headers = started[-1]
        return self._kept(_Response(int(status[:3]), headers, b"".join(parts)))


class _Body(list[bytes]):
    """A response body; when the server closes it, the application's iterable is closed too."""

    made_of: Iterable[bytes] = ()

    def close(self) -> None:
        close = getattr(self.made_of, "close", None)
        if close is not None:
            close()


def _start(response: _Response, start_response: Callable[..., Any]) -> list[bytes]:
    try:
        phrase = HTTPStatus(response.status).phrase
    except ValueError:
        phrase = "Unknown"
    start_response(f"{response.status} {phrase}", response.headers)
    return [response.body]
