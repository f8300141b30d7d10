"""``Idempotency-Key`` in front of web applications, ASGI and WSGI alike."""

from __future__ import annotations

import asyncio
import io
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import httpx
import pytest
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.testclient import TestClient
from flask import Flask
from flask import Response as FlaskResponse
from flask import request as flask_request

import antiphon
from antiphon.adapters.web import IdempotencyKey, IdempotencyKeyWSGI
from antiphon.errors import InvalidInput

BODY = {"order": "1042", "cents": 4990, "mail": "ada@example.com"}


class Shop:
    """What the application does with a charge."""

    def __init__(self) -> None:
        self.charged: list[Any] = []
        self.status = 201
        self.body = b'{"charge": "ch_1", "to": "ada@example.com"}'
        self.error: Exception | None = None
        self.meanwhile: Callable[[], None] = lambda: None

    def charge(self, order: Any) -> bytes:
        self.charged.append(order)
        self.meanwhile()
        if self.error is not None:
            raise self.error
        return self.body


class Client(Protocol):
    def __call__(self, body: Any = ..., key: str | None = ..., **more: Any) -> httpx.Response: ...


def _asgi(shop: Shop, store: str, **options: Any) -> Any:
    app = FastAPI()

    @app.post("/charges")
    @app.post("/refunds")
    @app.put("/charges")
    async def charges(request: Request) -> Response:
        data = await asyncio.to_thread(shop.charge, await request.body())
        headers = {"content-type": "application/json", "x-charge": "ch_1"}
        return Response(data, shop.status, headers)

    app.add_middleware(
        IdempotencyKey,
        gateway=antiphon.AsyncGateway(store=store, config=options.pop("config", None)),
        principal=lambda scope: dict(scope["headers"]).get(b"user", b"").decode(),
        **options,
    )
    return TestClient(app, raise_server_exceptions=False)


def _wsgi(shop: Shop, store: str, **options: Any) -> Any:
    app = Flask(__name__)

    @app.route("/charges", methods=["POST", "PUT"])
    @app.route("/refunds", methods=["POST"])
    def charges() -> FlaskResponse:
        data = shop.charge(flask_request.get_data())
        return FlaskResponse(data, shop.status, {"content-type": "application/json", "x-charge": "ch_1"})

    app.wsgi_app = IdempotencyKeyWSGI(  # type: ignore[method-assign]
        app.wsgi_app,
        gateway=antiphon.Gateway(store=store, config=options.pop("config", None)),
        principal=lambda environ: environ.get("HTTP_USER", ""),
        **options,
    )
    return httpx.Client(transport=httpx.WSGITransport(app, raise_app_exceptions=False), base_url="http://shop")


@pytest.fixture
def shop() -> Shop:
    return Shop()


Open = Callable[..., Client]


@pytest.fixture(params=["asgi", "wsgi"])
def open_client(request: pytest.FixtureRequest, shop: Shop, tmp_path: Path) -> Iterator[Open]:
    opened: list[httpx.Client] = []

    def make(**options: Any) -> Client:
        serve = _asgi if request.param == "asgi" else _wsgi
        client: httpx.Client = serve(shop, f"sqlite:///{tmp_path / 'web.db'}", **options)
        opened.append(client)

        def send(body: Any = BODY, key: str | None = '"k-1"', **more: Any) -> httpx.Response:
            headers = {"user": more.pop("user", "ada"), "content-type": more.pop("kind", "application/json")}
            if key is not None:
                headers["Idempotency-Key"] = key
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            method, path = more.pop("method", "POST"), more.pop("path", "/charges")
            return client.request(method, path, content=content, headers=headers)

        return send

    yield make
    for client in opened:
        client.close()


def _told(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    told = response.json()
    assert told["status"] == response.status_code
    assert told["detail"].endswith(".")
    return response.status_code, told["code"]


def test_a_request_sent_again_gets_the_first_answer(open_client: Open, shop: Shop) -> None:
    send = open_client()
    first, again = send(), send()
    shop.body = b"other"
    third = open_client()(dict(reversed(BODY.items())))  # another process, the same document
    for response in (first, again, third):
        assert (response.status_code, response.content) == (201, b'{"charge": "ch_1", "to": "ada@example.com"}')
        assert response.headers["x-charge"] == "ch_1"
    assert [response.headers.get("idempotency-replayed") for response in (first, again, third)] == [
        None,
        "true",
        "true",
    ]
    assert [json.loads(order) for order in shop.charged] == [BODY]


@pytest.mark.parametrize("key", ["", "   ", '""', '"unfinished', "two words", "k" * 256])
def test_a_bad_key_is_a_400(open_client: Open, shop: Shop, key: str) -> None:
    assert _told(open_client()(key=key)) == (400, "idempotency_key_invalid")
    assert shop.charged == []


def test_no_key_is_a_400_unless_keys_are_optional(open_client: Open, shop: Shop) -> None:
    assert _told(open_client()(key=None)) == (400, "idempotency_key_missing")
    assert shop.charged == []
    send = open_client(required=False)
    assert [send(key=None).status_code for _ in range(2)] == [201, 201]
    assert len(shop.charged) == 2


def test_a_quoted_key_is_the_bare_one(open_client: Open, shop: Shop) -> None:
    send = open_client()
    send(key='"k-1"')
    assert send(key="k-1").headers["idempotency-replayed"] == "true"
    assert send(key=r'"k\"1"').status_code == 201
    assert len(shop.charged) == 2


@pytest.mark.parametrize("other", [{"body": {**BODY, "cents": 1}}, {"path": "/refunds"}, {"body": b"{not json"}])
def test_another_request_under_a_used_key_is_a_422(open_client: Open, shop: Shop, other: dict[str, Any]) -> None:
    send = open_client()
    assert send().status_code == 201
    assert _told(send(**other)) == (422, "idempotency_conflict")
    assert len(shop.charged) == 1


def test_the_same_key_while_the_first_request_runs_is_a_409(open_client: Open, shop: Shop) -> None:
    send, running, go_on = open_client(), threading.Event(), threading.Event()
    other = open_client()

    def meanwhile() -> None:
        running.set()
        assert go_on.wait(60)

    shop.meanwhile = meanwhile
    with ThreadPoolExecutor() as pool:
        first = pool.submit(send)
        assert running.wait(60)
        try:
            busy = other()
        finally:
            go_on.set()
        assert first.result(60).status_code == 201
    assert _told(busy) == (409, "in_flight")
    assert busy.headers["retry-after"] == "1"
    assert other().headers["idempotency-replayed"] == "true"
    assert len(shop.charged) == 1


def test_principals_do_not_share_keys_and_nobody_is_a_401(open_client: Open, shop: Shop) -> None:
    send = open_client()
    send(user="ada")
    shop.body = b"for bob"
    assert send(user="bob").content == b"for bob"
    assert _told(send(user="")) == (401, "principal_missing")
    assert len(shop.charged) == 2


def test_an_application_that_raises_leaves_the_outcome_unknown(open_client: Open, shop: Shop) -> None:
    send = open_client()
    shop.error = RuntimeError("the connection broke after the charge")
    assert send().status_code == 500
    shop.error = None
    assert _told(send()) == (409, "outcome_unknown")
    assert len(shop.charged) == 1


def test_a_response_of_500_leaves_the_outcome_unknown(open_client: Open, shop: Shop) -> None:
    send = open_client()
    shop.status = 502
    first = send()
    assert (first.status_code, first.content) == (502, shop.body)
    shop.status = 201
    assert _told(send()) == (409, "outcome_unknown")
    assert len(shop.charged) == 1


@pytest.mark.parametrize("ended", [False, True], ids=["open", "ended by another middleware"])
def test_an_answer_that_broke_off_leaves_the_outcome_unknown(shop: Shop, tmp_path: Path, ended: bool) -> None:
    async def rows() -> AsyncIterator[bytes]:
        yield b"row 0\n"
        await left.wait()
        await asyncio.sleep(3_600)  # Starlette cancels it: nobody reads on

    async def app(scope: Any, receive: Any, send: Any) -> None:
        shop.charge(b"rows")
        await StreamingResponse(rows())(scope, receive, send)
        if ended:
            await send({"type": "http.response.body"})

    async def receive() -> Any:
        if not received:
            received.append(True)
            return {"type": "http.request", "body": b""}
        left.set()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def requests() -> None:
        guarded = IdempotencyKey(app, principal=lambda _: "ada", gateway=gateway)
        with pytest.raises(RuntimeError, match="no complete response"):
            await guarded(dict(scope), receive, send)
        received.clear()
        await guarded(dict(scope), receive, send)

    gateway = antiphon.AsyncGateway(store=f"sqlite:///{tmp_path / 'web.db'}")
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k-1")]}
    left, received, sent = asyncio.Event(), list[bool](), list[Any]()
    asyncio.run(requests())
    assert sent[0]["status"] == 409
    assert json.loads(sent[1]["body"])["code"] == "outcome_unknown"
    assert shop.charged == [b"rows"]


def _post(app: Any) -> list[Any]:
    """What an ASGI application sends for a request; what it raises afterwards comes last."""
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [(b"idempotency-key", b"k-1")]}
    seen: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        seen.append(message.get("body", message.get("status")))

    async def request() -> None:
        try:
            await app(scope, receive, send)
        except (Exception, asyncio.CancelledError) as error:
            seen.append(error)

    asyncio.run(request())
    return seen


def test_an_answer_stands_whatever_the_application_does_after_it(shop: Shop, tmp_path: Path) -> None:
    error = ValueError("the mail server is down")

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": shop.status})
        await send({"type": "http.response.body", "body": shop.charge(b"first")})
        seen.append(await asyncio.get_running_loop().run_in_executor(None, _post, again))  # a client sends it again
        raise error

    seen: list[Any] = []
    store = f"sqlite:///{tmp_path / 'web.db'}"
    guarded, again = (
        IdempotencyKey(app, principal=lambda _: "ada", gateway=antiphon.AsyncGateway(store=store)) for _ in range(2)
    )
    assert _post(guarded) == [201, shop.body, error]
    assert seen == [[201, shop.body]]
    assert shop.charged == [b"first"]


@pytest.mark.parametrize("answered", [False, True])
def test_who_cancels_a_request_cancels_the_application(shop: Shop, tmp_path: Path, answered: bool) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        shop.charge(b"first")
        if answered:
            await send({"type": "http.response.start", "status": shop.status})
            await send({"type": "http.response.body", "body": shop.body})
        running[0].cancel()
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            ended.append(asyncio.current_task())
            raise

    async def cancelled(scope: Any, receive: Any, send: Any) -> None:
        running[:] = [asyncio.ensure_future(guarded(scope, receive, send))]
        await running[0]

    running, ended = list[Any](), list[Any]()
    gateway = antiphon.AsyncGateway(store=f"sqlite:///{tmp_path / 'web.db'}")
    guarded = IdempotencyKey(app, principal=lambda _: "ada", gateway=gateway)
    assert isinstance(_post(cancelled)[-1], asyncio.CancelledError)
    assert len(ended) == 1
    assert _post(guarded)[0] == (201 if answered else 409)
    assert shop.charged == [b"first"]


def test_a_wsgi_answer_is_closed_by_the_server_and_stands(shop: Shop, tmp_path: Path) -> None:
    class Parts(list[bytes]):
        def close(self) -> None:
            raise ValueError("the mail server is down")

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("201 Created", [])
        return Parts([shop.charge(b"first")])

    gateway = antiphon.Gateway(store=f"sqlite:///{tmp_path / 'web.db'}")
    guarded = IdempotencyKeyWSGI(app, principal=lambda _: "ada", gateway=gateway)
    environ = {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "k-1", "wsgi.input": io.BytesIO()}
    told: list[str] = []
    answers: list[Any] = [guarded(dict(environ), lambda status, _: told.append(status)) for _ in range(2)]
    assert [b"".join(answer) for answer in answers] == [shop.body] * 2
    with pytest.raises(ValueError, match="mail server"):
        answers[0].close()
    answers[1].close()
    assert told == ["201 Created"] * 2
    assert shop.charged == [b"first"]


def test_a_wsgi_application_that_raises_is_closed(shop: Shop, tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        try:
            yield b""
            raise RuntimeError("the connection broke")
        finally:
            shop.charge(b"closed")

    gateway = antiphon.Gateway(store=f"sqlite:///{tmp_path / 'web.db'}")
    guarded = IdempotencyKeyWSGI(lambda *_: parts(), principal=lambda _: "ada", gateway=gateway)
    environ = {"REQUEST_METHOD": "POST", "HTTP_IDEMPOTENCY_KEY": "k-1", "wsgi.input": io.BytesIO()}
    with pytest.raises(RuntimeError, match="the connection broke"):
        guarded(environ, lambda *_: None)
    assert shop.charged == [b"closed"]


def test_an_error_response_is_an_answer(open_client: Open, shop: Shop) -> None:
    send = open_client()
    shop.status = 402
    assert send().status_code == 402
    shop.status = 201
    assert send().status_code == 402
    assert len(shop.charged) == 1


def test_a_response_that_says_nothing_happened_frees_the_key(open_client: Open, shop: Shop) -> None:
    send = open_client(release=(503,))
    shop.status = 503
    assert send().status_code == 503
    shop.status = 201
    assert send().status_code == 201
    assert len(shop.charged) == 2


def test_bytes_come_back_as_they_were(open_client: Open, shop: Shop) -> None:
    shop.body = bytes(range(256))
    send = open_client()
    assert send(b"\xff\x00", kind="application/octet-stream").content == shop.body
    again = send(b"\xff\x00", kind="application/octet-stream")
    assert again.content == shop.body
    assert again.headers["idempotency-replayed"] == "true"
    assert _told(send(b"\xff\x01", kind="application/octet-stream")) == (422, "idempotency_conflict")


@pytest.mark.parametrize(
    "body",
    [
        b'{"cents": NaN}',
        b'{"cents": 1e400}',
        rb'{"order": "\ud800"}',
        rb'{"\ud800": 1}',
        *(b"[" * depth + b"9" * 30 + b"]" * depth for depth in (197, 198, 199, 200, 201, 600, 2_000, 100_000)),
    ],
    ids=["nan", "infinite", "surrogate", "surrogate-name", *map(str, (197, 198, 199, 200, 201, 600, 2_000, 100_000))],
)
def test_json_without_a_canonical_form_is_compared_as_bytes(open_client: Open, shop: Shop, body: bytes) -> None:
    send = open_client()
    assert [send(body).status_code for _ in range(2)] == [201, 201]
    assert _told(send(body + b" x")) == (422, "idempotency_conflict")
    assert shop.charged == [body]


def test_an_answer_that_is_too_large_to_keep_is_given_once(open_client: Open, shop: Shop) -> None:
    send = open_client(config={"gateway": {"result_limit": 10_000, "payload_limit": 5_000}})
    shop.body = b"x" * 30_000
    assert send().content == shop.body
    assert _told(send()) == (409, "result_not_kept")
    assert len(shop.charged) == 1


def test_a_body_that_is_too_large_is_a_413(open_client: Open, shop: Shop) -> None:
    assert _told(open_client(max_body=10)()) == (413, "body_too_large")
    assert shop.charged == []


@pytest.mark.parametrize("terminated", [False, True])
def test_a_body_that_ends_early_is_a_400_and_the_whole_request_is_the_first(
    shop: Shop, tmp_path: Path, terminated: bool
) -> None:
    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        start_response("201 Created", [])
        return [shop.charge(environ["wsgi.input"].read())]

    gateway = antiphon.Gateway(store=f"sqlite:///{tmp_path / 'web.db'}")
    guarded = IdempotencyKeyWSGI(app, principal=lambda _: "ada", gateway=gateway)

    def send(sent: bytes) -> tuple[str, bytes]:
        environ = {
            "REQUEST_METHOD": "POST",
            "HTTP_IDEMPOTENCY_KEY": "k-1",
            "CONTENT_LENGTH": "18",
            "wsgi.input": io.BytesIO(sent),
            "wsgi.input_terminated": terminated,
        }
        told: list[str] = []
        body = b"".join(guarded(environ, lambda status, _: told.append(status)))
        return told[0], body

    status, body = send(b"order=7&cents=49")
    assert (status, json.loads(body)["code"]) == ("400 Bad Request", "body_incomplete")
    assert shop.charged == []
    assert send(b"order=7&cents=4990") == ("201 Created", shop.body)
    assert shop.charged == [b"order=7&cents=4990"]


def test_other_methods_pass(open_client: Open, shop: Shop) -> None:
    send = open_client()
    assert [send(method="PUT", key=key).status_code for key in (None, "k", "k")] == [201] * 3
    assert len(shop.charged) == 3


def test_wrong_options_are_refused_when_the_application_is_made() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    gateway = antiphon.Gateway(store="memory:")
    with pytest.raises(InvalidInput, match="AsyncGateway"):
        IdempotencyKey(app, principal=lambda _: "ada", gateway=gateway)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="principal must be a function"):
        IdempotencyKeyWSGI(lambda *_: [], principal="ada", gateway=gateway)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="list of names"):
        IdempotencyKeyWSGI(lambda *_: [], principal=lambda _: "ada", gateway=gateway, methods="POST")
    with pytest.raises(TypeError, match="principal"):
        IdempotencyKeyWSGI(lambda *_: [], gateway=gateway)  # type: ignore[call-arg]


def test_options_of_one_application_do_not_change_those_of_another() -> None:
    gateway = antiphon.Gateway(store="memory:")
    for _ in range(2):
        IdempotencyKeyWSGI(lambda *_: [], principal=lambda _: "ada", gateway=gateway)
    with pytest.raises(InvalidInput, match="gateway of its own"):
        IdempotencyKeyWSGI(lambda *_: [], principal=lambda _: "ada", gateway=gateway, ttl=5)
