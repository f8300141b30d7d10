"""A wrapped client is never less reliable than a bare one: its retries are made for it, below the recording."""

from __future__ import annotations

import asyncio
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import httpx2
import openai
import pytest

import antiphon
from antiphon import Antiphon
from antiphon.adapters import _retries
from antiphon.ops.app import using
from antiphon.stores import MemoryStore
from scripts.wrapped_retries import ASKED_S, FAULTS, FaultyProvider, measure
from tests.fake_provider import FakeProvider, Reply

MESSAGES: Any = [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("sdk", ["openai", "anthropic", "google"])
def test_a_call_whose_first_request_fails_succeeds_with_the_second(
    sdk: str, asynchronous: bool, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_retries, "_FIRST_S", 0.01)
    assert measure(sdk, fault, wrapped=True, asynchronous=asynchronous, calls=1) == (1, 2)


@pytest.mark.parametrize("fault", [FAULTS[0], FAULTS[3]])
def test_the_bare_sdk_does_no_better(fault: str) -> None:
    bare = measure("openai", fault, wrapped=False, calls=1)
    ours = measure("openai", fault, wrapped=True, calls=1)
    assert ours.succeeded >= bare.succeeded
    assert ours.succeeded > bare.succeeded or ours.requests <= bare.requests


@pytest.mark.parametrize("fault", [RuntimeError("Event loop is closed"), ConnectionResetError("reset")])
def test_errors_that_are_none_of_httpx_are_retried_and_replayed_as_they_were(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_retries, "_FIRST_S", 0.01)
    asked: list[Any] = []

    def refuse(request: Any) -> Any:
        asked.append(request)
        raise fault

    client = antiphon.wrap(openai.OpenAI(api_key="none", max_retries=1), inner=httpx2.MockTransport(refuse))

    def agent() -> str:
        try:
            client.chat.completions.create(model="m", messages=MESSAGES)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "answered"

    app = Antiphon(store=MemoryStore())
    run = app.record(agent)
    assert len(asked) == 2
    report = antiphon.replay(run, app=app, function=agent, mode="strict")
    assert report.passed, report.text()
    assert len(asked) == 2


def test_the_provider_is_given_the_time_it_asks_for_and_a_retried_call_is_one_recorded_call() -> None:
    app = Antiphon(store=MemoryStore())
    with FaultyProvider(FAULTS[1]) as provider, using(app):
        client = antiphon.wrap(openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none"))
        with app.run("asks") as run:
            began = time.monotonic()
            client.chat.completions.create(model="m", messages=MESSAGES)
            assert time.monotonic() - began >= ASKED_S
        assert provider.requests == 2
    events = app.journal.events(run.id)
    ends = [event for event in events if event.type == "call.finished"]
    assert [(event.payload["outcome"], event.meta["attempts"]) for event in ends] == [("ok", 2)]


def test_a_client_without_retries_has_none() -> None:
    with FaultyProvider("500") as provider:
        client = antiphon.wrap(openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none", max_retries=0))
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(model="m", messages=MESSAGES)
        assert provider.requests == 1


def test_a_tool_with_a_deadline_is_not_kept_past_it() -> None:
    gateway = antiphon.Gateway(store="memory:")
    with FakeProvider(lambda _: Reply(status=429, headers=(("Retry-After", "20"),))) as provider:
        client = antiphon.wrap(openai.OpenAI(base_url=f"{provider.url}/v1", api_key="none"))

        @gateway.tool(idempotent=True, effect="read", timeout=10, retry={"max_attempts": 1})
        def ask(ctx: antiphon.CallContext) -> str:
            try:
                client.chat.completions.create(model="m", messages=MESSAGES)
            except openai.RateLimitError:
                return "limited"
            return "answered"

        assert ask() == "limited"  # type: ignore[call-arg]
        assert provider.requests == 1


def test_a_cancelled_task_is_not_retried() -> None:
    async def main() -> int:
        with FaultyProvider(FAULTS[1]) as provider:
            client = antiphon.wrap(openai.AsyncOpenAI(base_url=f"{provider.url}/v1", api_key="none"))
            task = asyncio.create_task(client.chat.completions.create(model="m", messages=MESSAGES))
            while not provider.requests:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            return provider.requests

    assert asyncio.run(main()) == 1


def answer(status: int, **headers: str) -> Any:
    return SimpleNamespace(status_code=status, headers={n.replace("_", "-"): v for n, v in headers.items()})


@pytest.mark.parametrize(
    ("response", "retry", "pause"),
    [
        (None, 0, 0.5),
        (None, 1, 1.0),
        (None, 9, 8.0),
        (answer(400), 0, None),
        (answer(401), 0, None),
        (answer(408), 0, 0.5),
        (answer(409), 0, 0.5),
        (answer(429, retry_after="3"), 0, 3.0),
        (answer(429, retry_after_ms="250"), 0, 0.25),
        (answer(503, retry_after="0"), 0, 0.5),
        (answer(503, retry_after="121"), 0, None),
        (answer(500, x_should_retry="false"), 0, None),
        (answer(400, x_should_retry="true"), 1, 1.0),
    ],
)
def test_when_a_request_is_sent_again(response: Any, retry: int, pause: float | None) -> None:
    assert _retries.pause_s(response, retry, 0.0, 0) == pause


class _Json(BaseHTTPRequestHandler):
    """Answers every request with a JSON document, over a connection that stays open."""

    protocol_version = "HTTP/1.1"
    asked = 0

    def do_POST(self) -> None:
        type(self).asked += 1
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"id": "1", "object": "chat.completion", "model": "m", "choices": []}'
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_json_in_place_of_a_stream_is_given_at_once(asynchronous: bool) -> None:
    """A gateway that knows no streams, or answers with an error and status 200."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Json", (_Json,), {"asked": 0}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    options: Any = {"base_url": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "none", "timeout": 20}
    asks: Any = {"model": "m", "messages": MESSAGES, "stream": True}

    async def ask() -> list[Any]:
        client = antiphon.wrap(openai.AsyncOpenAI(**options))
        return [chunk async for chunk in await client.chat.completions.create(**asks)]

    def agent() -> str:
        if asynchronous:
            return str(asyncio.run(ask()))
        return str(list(antiphon.wrap(openai.OpenAI(**options)).chat.completions.create(**asks)))

    app = Antiphon(store=MemoryStore())
    try:
        with using(app):
            run = app.record(agent)
            assert antiphon.replay(run, app=app, mode="strict", function=agent, keep=False).passed
        assert server.RequestHandlerClass.asked == 1  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()
