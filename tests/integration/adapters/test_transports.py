"""HTTP transports under the real SDKs: recorded, replayed without a provider, errors and streams as they were (D18)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import httpx2
import openai
import pytest

import antiphon
from antiphon import Antiphon
from antiphon.adapters import _retries
from antiphon.adapters.httpx import _proxies, async_transport, client_options, transport
from antiphon.errors import InvalidInput
from antiphon.ops.replay import replay
from tests.fake_provider import FakeProvider, Reply
from tests.integration.adapters.speakers import SPEAKERS, Speaker, chat_stream

_CHAT: Any = [{"role": "user", "content": "hello"}]


@pytest.fixture(params=SPEAKERS, ids=lambda speaker: speaker.name)
def speaker(request: pytest.FixtureRequest) -> Speaker:
    found: Speaker = request.param
    return found


def _finished(run: Any) -> list[dict[str, Any]]:
    return [event.payload for event in run.events() if event.type == "call.finished"]


def _strictly(app: Antiphon, run: Any, function: Any) -> Any:
    return replay(run, app=app, function=function, mode="strict")


def test_recorded_then_answered_with_the_provider_switched_off(speaker: Speaker, app: Antiphon) -> None:
    with FakeProvider([Reply("hello there, friend")]) as provider:
        run = app.record(lambda: speaker.ask(provider.url))
    assert run.output == "hello there, friend"
    assert [payload["outcome"] for payload in _finished(run)] == ["ok"]
    assert _strictly(app, run, lambda: speaker.ask(provider.url)).divergences == []
    assert provider.requests == 1


def test_an_error_keeps_its_status_and_is_recorded_once_however_often_it_was_asked_for(
    speaker: Speaker, app: Antiphon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_retries, "_FIRST_S", 0.01)
    asked = 1 if speaker.name.startswith("httpx") else 3  # as often as the SDK would

    def agent(url: str) -> str:
        try:
            return speaker.ask(url)
        except speaker.error as error:
            status = getattr(error, "status_code", None) or getattr(error, "code", None)
            return f"failed with {status or error.response.status_code}"  # type: ignore[attr-defined]

    with FakeProvider([Reply(status=429, headers=(("retry-after", "0"),))] * 3) as provider:
        run = app.record(lambda: agent(provider.url))
    assert run.output == "failed with 429"
    assert provider.requests == asked
    assert [payload["error"]["status"] for payload in _finished(run)] == [429]
    assert _strictly(app, run, lambda: agent(provider.url)).divergences == []
    assert provider.requests == asked


def test_a_refusal_is_a_refusal(speaker: Speaker, app: Antiphon) -> None:
    with FakeProvider([Reply(refusal="I cannot help with that.")]) as provider:
        run = app.record(lambda: speaker.ask(provider.url))
    assert [payload["outcome"] for payload in _finished(run)] == ["refusal"]
    assert _strictly(app, run, lambda: speaker.ask(provider.url)).divergences == []


def test_a_provider_that_cannot_be_reached_stays_unreachable(speaker: Speaker, app: Antiphon) -> None:
    with FakeProvider() as provider:
        pass

    def agent() -> str:
        try:
            return speaker.ask(provider.url)
        except Exception as error:
            return type(error).__name__

    run = app.record(agent)
    assert _finished(run)[0]["error"]["class"].endswith("ConnectError")
    assert _strictly(app, run, agent).divergences == []


STREAMING = [speaker for speaker in SPEAKERS if speaker.broken is not None]


@pytest.mark.parametrize("speaker", STREAMING, ids=lambda speaker: speaker.name)
def test_a_stream_that_was_cut_is_cut_again(speaker: Speaker, app: Antiphon) -> None:
    broken = speaker.broken or ()

    def agent(url: str) -> str:
        try:
            return speaker.ask(url)
        except broken:
            return "cut"

    with FakeProvider([Reply("one two three four", break_after=2)]) as provider:
        run = app.record(lambda: agent(provider.url))
    assert run.output == "cut"
    assert _strictly(app, run, lambda: agent(provider.url)).divergences == []


def test_pieces_are_given_again_exactly_as_they_came(app: Antiphon) -> None:
    def agent(url: str) -> list[str]:
        client = httpx2.Client(transport=transport(module="httpx2"))
        with client.stream("POST", f"{url}/v1/chat/completions", json={"messages": _CHAT, "stream": True}) as answer:
            return [piece.decode() for piece in answer.iter_raw()]

    with FakeProvider([Reply("grüße an alle")]) as provider:
        run = app.record(lambda: agent(provider.url))
    assert len(run.output) > 3
    assert _strictly(app, run, lambda: agent(provider.url)).divergences == []


def test_the_first_piece_is_not_kept_waiting(app: Antiphon) -> None:
    def agent(url: str) -> float:
        client = antiphon.wrap(openai.OpenAI(api_key="none", base_url=f"{url}/v1"))
        began = time.monotonic()
        stream = client.chat.completions.create(model="m", messages=_CHAT, stream=True)
        next(iter(stream))
        first = time.monotonic() - began
        for _ in stream:
            pass
        return first

    with FakeProvider([Reply("a b c d", pause=0.8)]) as provider, app.run("stream") as run:
        first = agent(provider.url)
    assert first < 0.8, "its first piece was there before the second was sent"
    gaps = [event.meta for event in run.events() if event.type == "call.chunk"]
    assert len(gaps) >= 5


def test_a_stream_that_is_left_early_is_recorded_as_such(app: Antiphon) -> None:
    def agent(url: str) -> str:
        client = antiphon.wrap(openai.OpenAI(api_key="none", base_url=f"{url}/v1"))
        with client.chat.completions.create(model="m", messages=_CHAT, stream=True) as stream:
            next(iter(stream))
        return "enough"

    with FakeProvider([Reply("a b c d e f", pause=0.01)]) as provider:
        run = app.record(lambda: agent(provider.url))
    assert _finished(run)[0]["error"]["code"] == "stream_broken_off"
    assert _strictly(app, run, lambda: agent(provider.url)).divergences == []


@pytest.mark.parametrize("body", [b'{"brand":"new"}', b"just words", b"\xff\xfe\x00"])
def test_a_shape_nobody_knows_is_recorded_raw_and_replays(body: bytes, app: Antiphon) -> None:
    def agent(url: str) -> str:
        with httpx.Client(transport=transport()) as client:
            answer = client.post(f"{url}/v1/chat/completions", json={"strange": True})
            return answer.content.hex()

    with FakeProvider([Reply(raw=body)]) as provider:
        run = app.record(lambda: agent(provider.url))
    assert run.output == body.hex()
    assert _strictly(app, run, lambda: agent(provider.url)).divergences == []


def test_retries_of_an_sdk_that_still_makes_them_are_told(app: Antiphon) -> None:
    with FakeProvider([Reply(status=500), Reply("at last")]) as provider, app.run("retrying") as run:
        http = httpx2.Client(transport=transport(module="httpx2"))
        client = openai.OpenAI(api_key="none", base_url=f"{provider.url}/v1", http_client=http, max_retries=1)
        client.chat.completions.create(model="m", messages=_CHAT)
    started = [event.meta for event in run.events() if event.type == "call.started"]
    assert [meta.get("sdkRetry") for meta in started] == [None, 1]


def test_parallel_calls_find_their_own_answers(app: Antiphon) -> None:
    async def agent(url: str) -> list[str]:
        client = antiphon.wrap(openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1"))

        async def ask(word: str) -> str:
            asked: Any = [{"role": "user", "content": word}]
            answer = await client.chat.completions.create(model="m", messages=asked)
            return answer.choices[0].message.content or ""

        return await asyncio.gather(*(ask(f"number {number}") for number in range(5)))

    with FakeProvider(lambda body: Reply(f"re: {body['messages'][0]['content']}")) as provider:
        run = app.record(lambda: asyncio.run(agent(provider.url)))
    assert run.output == [f"re: number {number}" for number in range(5)]
    assert _strictly(app, run, lambda: asyncio.run(agent(provider.url))).divergences == []


def test_what_an_sdk_tells_of_its_response_is_told_again(app: Antiphon) -> None:
    def agent(url: str) -> list[Any]:
        client = antiphon.wrap(openai.OpenAI(api_key="none", base_url=f"{url}/v1", max_retries=0))
        raw = client.chat.completions.with_raw_response.create(model="m", messages=_CHAT)
        assert raw.elapsed.total_seconds() >= 0
        streamed = client.chat.completions.create(model="m", messages=_CHAT, stream=True)
        try:
            client.chat.completions.create(model="m", messages=_CHAT)
        except openai.RateLimitError as error:
            found = [raw.request_id, streamed.response.headers["x-request-id"], error.request_id]
            for _ in streamed:
                pass
            return [*found, raw.headers["x-ratelimit-remaining-requests"], raw.headers.get("set-cookie")]
        raise AssertionError("the provider has no limit")

    told = [("x-request-id", "req_1"), ("x-ratelimit-remaining-requests", "9"), ("set-cookie", "a=b")]
    replies = [Reply("hi", headers=tuple(told))] * 2 + [Reply(status=429, headers=(("x-request-id", "req_2"),))]
    with FakeProvider(replies) as provider:
        run = app.record(lambda: agent(provider.url)[:4])
    assert run.output == ["req_1", "req_1", "req_2", "9"]
    assert _strictly(app, run, lambda: agent(provider.url)[:4]).divergences == []
    assert "set-cookie" not in str([event.meta for event in run.events()]), "no other header is recorded"


def test_tuned_models_and_endpoints_are_models(app: Antiphon) -> None:
    with FakeProvider([Reply("hi")] * 2) as provider, app.run("tuned") as run:
        client = httpx.Client(transport=transport())
        client.post(f"{provider.url}/v1beta/tunedModels/mine:generateContent", json={"contents": []})
        client.post(f"{provider.url}/v1/projects/p/endpoints/7:streamGenerateContent", json={"contents": []})
    started = [event.payload for event in run.events() if event.type == "call.started"]
    assert [payload["request"]["model"] for payload in started] == ["mine", "7"]


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that is not what its headers say, or that never comes; it knows whether it was closed."""

    def __init__(self, begins: asyncio.Event | None = None) -> None:
        self.begins, self.closed = begins, False

    def __iter__(self) -> Iterator[bytes]:
        yield b"not compressed"

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if self.begins is not None:
            self.begins.set()
            await asyncio.Event().wait()
        yield b"not compressed"

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


def _giving(body: Body, kind: str, *, asynchronous: bool, recorded: bool) -> Any:
    """A transport that answers with *body*, as the adapters wrap it."""
    headers = {"content-type": kind, "content-encoding": "gzip"}
    inner = httpx.MockTransport(lambda request: httpx.Response(200, headers=headers, stream=body))
    if recorded:
        return (async_transport if asynchronous else transport)(inner)
    return _retries.retrying(inner, 2, module="httpx", asynchronous=asynchronous)


@pytest.mark.parametrize("recorded", [False, True], ids=["retried", "recorded"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_a_response_that_cannot_be_decoded_is_closed(app: Antiphon, asynchronous: bool, recorded: bool) -> None:
    body = Body()
    way = _giving(body, "application/json", asynchronous=asynchronous, recorded=recorded)

    def ask() -> None:
        with httpx.Client(transport=way) as client:
            client.post("http://localhost/v1/chat/completions", json={"model": "m", "messages": _CHAT})

    async def ask_async() -> None:
        async with httpx.AsyncClient(transport=way) as client:
            await client.post("http://localhost/v1/chat/completions", json={"model": "m", "messages": _CHAT})

    with pytest.raises(httpx.DecodingError):
        app.record(ask_async if asynchronous else ask)
    assert body.closed


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("recorded", [False, True], ids=["retried", "recorded"])
async def test_a_caller_that_leaves_before_the_body_closes_the_response(
    app: Antiphon, kind: str, recorded: bool
) -> None:
    body = Body(asyncio.Event())
    way = _giving(body, kind, asynchronous=True, recorded=recorded)

    async def ask() -> None:
        async with httpx.AsyncClient(transport=way) as client:
            await client.post("http://localhost/v1/chat/completions", json={"model": "m", "messages": _CHAT})

    task = asyncio.ensure_future(app.record(ask))
    assert body.begins is not None
    await body.begins.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert body.closed


def test_outside_a_run_nothing_is_touched() -> None:
    with FakeProvider([Reply("hi")]) as provider:
        client = antiphon.wrap(openai.OpenAI(api_key="none", base_url=f"{provider.url}/v1"))
        assert client.chat.completions.create(model="m", messages=_CHAT).choices[0].message.content == "hi"


def test_other_traffic_is_left_alone(app: Antiphon) -> None:
    with FakeProvider([Reply(raw=b"{}")]) as provider, app.run("other") as run:
        httpx.Client(transport=transport()).post(f"{provider.url}/v1/embeddings", json={"input": "x"})
    assert [event.type for event in run.events()] == ["run.started", "run.finished"]


def test_a_client_that_cannot_be_wrapped_says_what_to_do() -> None:
    with pytest.raises(InvalidInput, match="antiphon exec"):
        antiphon.wrap(object())


def test_proxies_of_the_environment_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.local:3128")
    monkeypatch.setenv("no_proxy", "internal.example,localhost")
    routes = _proxies()
    assert routes["https://"] == "http://proxy.local:3128"
    assert routes["all://*internal.example"] is None
    assert routes["all://localhost"] is None


@pytest.mark.parametrize(
    ("host", "pattern"),
    [
        ("::1", "all://[::1]"),
        ("[::1]", "all://[::1]"),
        ("[::1]:8080", "all://[::1]:8080"),
        ("fd00::/8", "all://[fd00::]"),
        ("http://plain.example", "http://plain.example"),
        ("plain.example:80", "all://plain.example:80"),
        ("10.0.0.0/8", "all://*10.0.0.0/8"),
    ],
)
@pytest.mark.parametrize("client", [httpx.Client, httpx2.Client])
def test_an_entry_of_no_proxy_that_is_no_name(
    host: str, pattern: str, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "all_proxy", "HTTP_PROXY", "ALL_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.local:3128")
    monkeypatch.setenv("NO_PROXY", f"localhost,{host}")
    with client(**client_options(module=client.__module__.partition(".")[0])):
        assert _proxies() == {"https://": "http://proxy.local:3128", "all://localhost": None, pattern: None}


def test_a_verifying_replay_asks_the_provider_and_sees_a_refusal(speaker: Speaker, app: Antiphon) -> None:
    def agent(url: str) -> str:
        try:
            return speaker.ask(url)
        except Exception as error:
            return type(error).__name__

    with FakeProvider([Reply("hello"), Reply(refusal="No.")]) as provider:
        run = app.record(lambda: agent(provider.url))
        report = replay(run, app=app, function=lambda: agent(provider.url), mode="strict", verify=True)
        assert provider.requests == 2
    assert any(found["kind"] == "refusal" for found in report.divergences)


def test_a_replay_in_real_time_keeps_the_pauses(app: Antiphon) -> None:
    with FakeProvider([Reply("a b", pause=0.2)]) as provider:
        run = app.record(lambda: chat_stream(provider.url))
    began = time.monotonic()
    replay(run, app=app, function=lambda: chat_stream(provider.url), mode="strict", realtime=True)
    assert time.monotonic() - began > 0.6
