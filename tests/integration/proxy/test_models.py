"""Model calls through the proxy: the official SDKs record, replay with the provider off, and are told what changed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import httpx
import openai
import pytest
from google import genai
from google.genai import types

import antiphon
from antiphon import Antiphon
from antiphon.ops.replay import replay
from tests.fake_provider import FakeProvider, Reply
from tests.integration.proxy import web
from tests.integration.proxy.harness import serving

_SECRET = "sk-test-" + "Zx9" * 12  # put together here, so that no scanner takes it for a real one


class Sdk(NamedTuple):
    """How one SDK asks: once, and as a stream."""

    name: str
    ask: Callable[[str, str], str]
    stream: Callable[[str, str], list[str]]
    error: type[Exception]


def _openai(base: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{base}/openai/v1", api_key=_SECRET, max_retries=0)


def _chat(base: str, text: str) -> str:
    asked: Any = [{"role": "user", "content": text}]
    return str(_openai(base).chat.completions.create(model="fake-1", messages=asked).choices[0].message.content)


def _chat_stream(base: str, text: str) -> list[str]:
    asked: Any = [{"role": "user", "content": text}]
    with _openai(base).chat.completions.create(model="fake-1", messages=asked, stream=True) as stream:
        return [event.model_dump_json() for event in stream]


def _responses(base: str, text: str) -> str:
    return _openai(base).responses.create(model="fake-1", input=text).output_text


def _responses_stream(base: str, text: str) -> list[str]:
    with _openai(base).responses.create(model="fake-1", input=text, stream=True) as stream:
        return [event.model_dump_json() for event in stream]


def _anthropic(base: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=f"{base}/anthropic", api_key=_SECRET, max_retries=0)


def _messages(base: str, text: str) -> str:
    asked: Any = [{"role": "user", "content": text}]
    found: Any = _anthropic(base).messages.create(model="fake-1", max_tokens=99, messages=asked)
    return str(found.content[0].text)


def _messages_stream(base: str, text: str) -> list[str]:
    asked: Any = [{"role": "user", "content": text}]
    with _anthropic(base).messages.create(model="fake-1", max_tokens=99, messages=asked, stream=True) as stream:
        return [event.model_dump_json() for event in stream]


def _gemini(base: str) -> genai.Client:
    return genai.Client(api_key=_SECRET, http_options=types.HttpOptions(base_url=f"{base}/gemini"))


def _content(base: str, text: str) -> str:
    client = _gemini(base)  # it closes its connections when nobody holds it
    return str(client.models.generate_content(model="fake-1", contents=text).text)


def _content_stream(base: str, text: str) -> list[str]:
    client = _gemini(base)
    found = client.models.generate_content_stream(model="fake-1", contents=text)
    return [chunk.model_dump_json(exclude={"sdk_http_response"}) for chunk in found]


SDKS = (
    Sdk("openai-chat", _chat, _chat_stream, openai.APIStatusError),
    Sdk("openai-responses", _responses, _responses_stream, openai.APIStatusError),
    Sdk("anthropic", _messages, _messages_stream, anthropic.APIStatusError),
    Sdk("gemini", _content, _content_stream, genai.errors.APIError),
)


@pytest.fixture(params=SDKS, ids=lambda sdk: sdk.name)
def sdk(request: pytest.FixtureRequest) -> Sdk:
    found: Sdk = request.param
    return found


def test_recorded_then_replayed_with_the_provider_off_and_a_change_is_named(
    sdk: Sdk, app: Antiphon, tmp_path: Path
) -> None:
    with FakeProvider([Reply("hello there, friend"), Reply("one two three")]) as provider:
        with serving(app, models=provider.url) as served:
            base = f"{served.url}/run/orders"
            assert sdk.ask(base, "hello") == "hello there, friend"
            streamed = sdk.stream(base, "count")
            assert web.get(base).json()["recorded"] == 2
        assert _SECRET in json.dumps(provider.sent_headers)  # passed on …
        assert "antiphon" not in json.dumps([list(headers) for headers in provider.sent_headers])
    for file in tmp_path.rglob("*"):  # … and stored nowhere
        assert not file.is_file() or _SECRET.encode() not in file.read_bytes(), file
    with serving(app, "replay", models=provider.url) as served:
        base = f"{served.url}/run/orders"
        assert sdk.stream(base, "count") == streamed
        assert sdk.ask(base, "hello") == "hello there, friend"  # in any order
        with pytest.raises(sdk.error) as refused:
            sdk.ask(base, "hallo")
        assert "hallo" in str(refused.value)
        assert "hello" in str(refused.value)
        report = web.delete(base).json()
    assert (report["answered"], report["missed"], report["notAsked"], report["equal"]) == (2, 1, 0, False)
    assert provider.requests == 2


def test_bytes_and_events_of_a_stream_are_those_of_the_provider(app: Antiphon) -> None:
    body = {"model": "fake-1", "messages": [{"role": "user", "content": "count"}], "stream": True}

    def read(url: str) -> bytes:
        return web.post(f"{url}/v1/chat/completions", json=body).content

    with FakeProvider(lambda _: Reply("one two three — naïve")) as provider:
        direct = read(provider.url)
        with serving(app, models=provider.url) as served:
            assert read(served.at("stream")) == direct
    with serving(app, "replay") as served:
        assert read(served.at("stream")) == direct


def test_a_broken_stream_is_broken_for_the_client_and_in_the_replay(app: Antiphon) -> None:
    body = {"model": "fake-1", "messages": [{"role": "user", "content": "count"}], "stream": True}

    def read(url: str) -> list[bytes]:
        chunks: list[bytes] = []
        sent = web.stream("POST", f"{url}/v1/chat/completions", json=body)
        with pytest.raises(httpx.RemoteProtocolError), sent as response:
            chunks.extend(response.iter_raw())
        return chunks

    script = [Reply("one two three", break_after=2)]
    with FakeProvider(script) as provider, serving(app, models=provider.url) as served:
        broken = b"".join(read(served.at("broken")))
    [manifest] = app.journal.runs(tenant=app.tenant)
    [end] = [event for event in app.journal.events(manifest.id) if event.type == "call.finished"]
    assert end.payload["outcome"] == "error"
    with serving(app, "replay") as served:
        assert b"".join(read(served.at("broken"))) == broken


def test_a_run_of_the_proxy_replays_in_the_library_and_the_other_way_round(app: Antiphon) -> None:
    asked: Any = [{"role": "user", "content": "hello"}]

    def agent(url: str) -> str:
        client = antiphon.wrap(openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))
        return str(client.chat.completions.create(model="fake-1", messages=asked).choices[0].message.content)

    with FakeProvider(lambda _: Reply("hi")) as provider:
        with serving(app, models=provider.url) as served:
            _chat(f"{served.url}/run/there", "hello")
        run = app.record(lambda: agent(provider.url))
    [manifest] = app.journal.runs(tenant=app.tenant, name="there")
    report = replay(manifest.id, app=app, function=lambda: agent(provider.url), mode="strict")
    assert [found["kind"] for found in report.divergences if found["kind"] != "output"] == []
    with serving(app, "replay") as served:
        assert _chat(f"{served.url}/run/{run.id}", "hello") == "hi"


def test_record_new_answers_what_is_known_and_records_the_rest(app: Antiphon) -> None:
    body = {"model": "fake-1", "messages": [{"role": "user", "content": "count"}], "stream": True}

    def stream(url: str) -> httpx.Response:
        return web.post(f"{url}/v1/chat/completions", json=body)

    with FakeProvider(lambda _: Reply("one two")) as provider:
        with serving(app, models=provider.url) as served:
            first = stream(served.at("grow"))
            assert first.headers["antiphon-source"] == "live"
        with serving(app, "record-new", models=provider.url) as served:
            again = stream(served.at("grow"))
            assert (again.content, again.headers["antiphon-source"]) == (first.content, "recording")
            assert _chat(f"{served.url}/run/grow", "something new") == "one two"
            report = web.get(f"{served.url}/run/grow").json()
            assert (report["answered"], report["recorded"], report["new"]) == (1, 1, ["llm llm"])
    assert provider.requests == 2
    with serving(app, "replay") as served:
        assert stream(served.at("grow")).content == first.content
        assert _chat(f"{served.url}/run/grow", "something new") == "one two"


def test_a_header_names_the_run_and_other_paths_pass_unrecorded(app: Antiphon) -> None:
    with FakeProvider(lambda _: Reply("x")) as provider, serving(app, models=provider.url) as served:
        answer = web.post(f"{served.url}/openai/v1/embeddings", json={}, headers={"antiphon-run": "other"})
        assert (answer.headers["antiphon-recorded"], "antiphon-run" in answer.headers) == ("no", False)
        named = web.post(
            f"{served.url}/openai/v1/chat/completions",
            json={"model": "fake-1", "messages": []},
            headers={"antiphon-run": "other"},
        )
        assert named.headers["antiphon-run"] == served.proxy.runs.get("local", "other").run.id  # type: ignore[union-attr]
    with serving(app, "replay") as served:
        assert web.post(f"{served.at('other')}/v1/embeddings", json={}).status_code == 422
        assert web.post(f"{served.url}/openai/v1/chat/completions", json={}).status_code == 400  # no name
        assert web.post(f"{served.at('unknown')}/v1/chat/completions", json={}).status_code == 404


class Canned(NamedTuple):
    """A response of a server that is written in another language than ours."""

    status: int
    kind: str
    body: bytes


CANNED = {
    "created": Canned(201, "application/json", b'{"id":"1"}'),
    "moved": Canned(307, "text/html", b"<a>here</a>"),
    "go": Canned(200, "application/json", rb'{"choices":[{"message":{"content":"a \u003cb\u003e \u0026 c\u2028"}}]}'),
    "php": Canned(200, "application/json", rb'{"url":"https:\/\/example.org\/caf\u00e9"}'),
    "dotnet": Canned(200, "application/json; charset=utf-8", rb'{"text":"caf\u00E9 \u003Cb\u003E"}'),
    "array": Canned(200, "application/json", b'[\n  {\n    "a": 1\n  }\n]\n'),
    "error": Canned(429, "application/json", b'{\n  "error": {\n    "message": "too many"\n  }\n}\n'),
    "page": Canned(200, "text/html; charset=utf-8", b"<p>maintenance</p>"),
    "lines": Canned(200, "application/x-ndjson", b'{"a": 1}\n{"b": 2}\n'),
    "half": Canned(200, "application/json", rb'{"choices":[{"message":{"content":"half \ud83d"}}]}'),
    "deep": Canned(200, "application/json", b'{"choices": [], "deep": ' + b"[" * 300 + b"]" * 300 + b"}"),
    "deep error": Canned(429, "application/json", b"[" * 260 + b"]" * 260),
    "deep event": Canned(200, "text/event-stream", b"data: " + b"[" * 900 + b"]" * 900 + b"\n\ndata: [DONE]\n\n"),
    "mark": Canned(200, "text/event-stream", b'\xef\xbb\xbfdata: {"choices":[]}\n\ndata: [DONE]\n\n'),
}


@contextmanager
def _upstream(answers: dict[str, Canned]) -> Iterator[tuple[str, list[Any]]]:
    """A server that answers with what the request names; and the headers of the requests it got."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            asked.append(self.headers)
            self.rfile.read(int(self.headers["content-length"]))
            canned = answers[self.headers["x-case"]]
            self.send_response(canned.status)
            self.send_header("content-type", canned.kind)
            if canned.status == 307:
                self.send_header("location", "/elsewhere")
            self.send_header("content-length", str(len(canned.body)))
            self.end_headers()
            self.wfile.write(canned.body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_status_kind_and_bytes_of_any_server_are_replayed(app: Antiphon, stream: bool) -> None:
    def ask(url: str, case: str) -> Any:
        body = {"model": "fake-1", "messages": [{"role": "user", "content": case}], "stream": stream}
        answer = web.post(f"{url}/v1/chat/completions", json=body, headers={"x-case": case})
        return answer.status_code, answer.headers["content-type"], answer.headers.get("location"), answer.content

    with _upstream(CANNED) as (url, _):
        direct = {case: ask(url, case) for case in CANNED}
        with serving(app, models=url) as served:
            assert {case: ask(served.at("any"), case) for case in CANNED} == direct
    with serving(app, "replay") as served:
        assert {case: ask(served.at("any"), case) for case in CANNED} == direct


@pytest.mark.parametrize(
    ("asked", "passed"),
    [
        ("br", "identity"),
        ("gzip, br;q=0.9, zstd", "gzip"),
        ("GZip;q=0.5, deflate", "GZip;q=0.5, deflate"),
        ("*", "identity"),
    ],
)
def test_an_upstream_is_asked_for_what_the_proxy_can_read(app: Antiphon, asked: str, passed: str) -> None:
    with _upstream(CANNED) as (url, seen), serving(app, models=url) as served:
        headers = {"x-case": "created", "accept-encoding": asked}
        web.post(f"{served.at('coded')}/v1/chat/completions", json={"model": "m", "messages": []}, headers=headers)
    assert [headers["accept-encoding"] for headers in seen] == [passed]


@pytest.mark.parametrize("body", [b"[1]", b"no JSON", b"\xff\xfe", b"", b'"text"'], ids=repr)
def test_a_model_call_that_cannot_be_read_is_said_not_to_be_recorded(app: Antiphon, body: bytes) -> None:
    with _upstream(CANNED) as (url, _), serving(app, models=url) as served:
        headers = {"x-case": "created"}
        answer = web.post(f"{served.at('odd')}/v1/chat/completions", content=body, headers=headers)
    assert (answer.status_code, answer.headers["antiphon-recorded"]) == (201, "no")
    assert "antiphon-run" not in answer.headers
