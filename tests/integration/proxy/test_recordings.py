"""Which recorded call answers a request, and what is recorded of requests that are cut off from their run."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from antiphon import Antiphon
from tests.fake_provider import FakeProvider, Reply
from tests.integration.proxy import web
from tests.integration.proxy.desk import Desk, served_desk
from tests.integration.proxy.harness import Served, serving
from tests.integration.proxy.test_mcp import _post, _until

_ASKED = [{"role": "user", "content": "count"}]
_CHAT = ("openai/v1/chat/completions", {"model": "fake-1", "messages": _ASKED})
_CONTENTS = {"contents": [{"role": "user", "parts": [{"text": "count"}]}]}


@pytest.fixture
def desk() -> Iterator[Desk]:
    with served_desk() as found:
        yield found


def _ask(served: Served, path: str, body: dict[str, Any], run: str = "forms") -> httpx.Response:
    return web.post(f"{served.url}/run/{run}/{path}", json=body)


def _chat(served: Served, **more: Any) -> httpx.Response:
    return _ask(served, _CHAT[0], {**_CHAT[1], **more})


@pytest.mark.parametrize("status", [200, 429])
@pytest.mark.parametrize(
    ("plain", "stream"),
    [
        (_CHAT, (_CHAT[0], {**_CHAT[1], "stream": True})),
        (
            ("gemini/v1beta/models/fake-1:generateContent", _CONTENTS),
            ("gemini/v1beta/models/fake-1:streamGenerateContent?alt=sse", _CONTENTS),
        ),
    ],
    ids=["openai", "gemini"],
)
def test_a_stream_answers_a_stream_and_a_whole_answer_a_plain_request(
    app: Antiphon, plain: Any, stream: Any, status: int
) -> None:
    """Also where the first answer of each is an error, and the request was sent again."""
    replies = [Reply("one two")] if status == 200 else [Reply("wait", status=429), Reply("one two")]
    with FakeProvider(replies * 2) as provider, serving(app, models=provider.url) as served:
        streamed = [_ask(served, *stream) for _ in replies]
        whole = [_ask(served, *plain) for _ in replies]
    assert streamed[-1].headers["content-type"] == "text/event-stream"
    with serving(app, "replay") as served:
        for recorded, asked in ((whole, plain), (streamed, stream)):
            again = [_ask(served, *asked) for _ in replies]
            assert [answer.content for answer in again] == [answer.content for answer in recorded]
            assert [answer.headers["content-type"] for answer in again] == [
                answer.headers["content-type"] for answer in recorded
            ]
        report = web.delete(f"{served.url}/run/forms").json()
    assert (report["equal"], report["notAsked"]) == (True, 0)


@pytest.mark.parametrize("streams", [False, True])
def test_an_answer_of_the_other_form_is_a_miss_that_names_it(app: Antiphon, streams: bool) -> None:
    with FakeProvider(lambda _: Reply("one two")) as provider:
        with serving(app, models=provider.url) as served:
            recorded = _chat(served, stream=streams)
        with serving(app, "replay") as served:
            missed = _chat(served, stream=not streams)
            assert (missed.status_code, missed.json()["error"]["code"]) == (422, "replay_miss")
            [field] = missed.json()["error"]["divergence"]["fields"]
            assert field["path"] == "$.stream"
            client = openai.OpenAI(base_url=f"{served.at('forms')}/v1", api_key="none", max_retries=0)
            asked: Any = {**_CHAT[1], "stream": not streams}
            with pytest.raises(openai.APIStatusError):
                client.chat.completions.create(**asked)
            assert _chat(served, stream=streams).content == recorded.content
            report = web.delete(f"{served.url}/run/forms").json()
            assert (report["equal"], report["missed"], report["answered"]) == (False, 2, 1)
        with serving(app, "record-new", models=provider.url) as served:
            assert _chat(served, stream=not streams).headers["antiphon-source"] == "live"
            assert _chat(served, stream=streams).headers["antiphon-source"] == "recording"


def test_a_recorded_call_of_the_same_variant_comes_first(app: Antiphon) -> None:
    choices: list[dict[str, Any]] = [{}, {"max_tokens": 5}, {"response_format": {"type": "json_object"}}]

    def reply(body: dict[str, Any]) -> Reply:
        return Reply(f"asked with {sorted(body)}")

    with FakeProvider(reply) as provider, serving(app, models=provider.url) as served:
        recorded = [_chat(served, **more).content for more in choices]
    with serving(app, "replay") as served:
        again = [_chat(served, **more).content for more in reversed(choices)]
        assert again == recorded[::-1]
        assert web.delete(f"{served.url}/run/forms").json()["equal"] is True
        other = [_chat(served, max_tokens=number).content for number in (5, 6, 7)]
        assert other == [recorded[1], recorded[0], recorded[2]]  # what is left, in its order


_ANSWERED = b'{"jsonrpc": "2.0", "id": 1, "error": {"code": %d, "message": "no", "data": [1.50]}}'
_REFUSALS = {
    "page": (403, "text/html", b"<p>not you</p>"),
    "empty": (500, "", b""),
    "bytes": (502, "application/octet-stream", b"caf\xe9\x00"),
    "plain json": (401, "application/json", b'{ "error": "invalid_token" }'),
    "error of the tool": (422, "application/json", _ANSWERED % -32010),
    "not executed": (400, "application/json", _ANSWERED % -32021),
    "no id": (404, "application/json", b'{"jsonrpc": "2.0", "id": null, "error": {"code": -32001, "message": "no"}}'),
    "no answer": (200, "text/plain", b"welcome"),
    "accepted": (202, "", b""),
}
"""Responses to a call that are no answer with status 200."""


@contextlib.contextmanager
def _refusing(status: int, kind: str, body: bytes) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(status)
            if kind:
                self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
@pytest.mark.parametrize("case", [name for name in _REFUSALS if name not in ("no answer", "accepted")])
def test_a_refused_mcp_request_replays_with_status_and_body(app: Antiphon, case: str, method: str) -> None:
    _replays_as_recorded(app, case, method)


@pytest.mark.parametrize("case", ["no answer", "accepted"])
def test_a_tool_call_that_gets_no_answer_replays_with_status_and_body(app: Antiphon, case: str) -> None:
    _replays_as_recorded(app, case, "tools/call")


def _replays_as_recorded(app: Antiphon, case: str, method: str) -> None:
    def ask(served: Served, number: int = 1) -> tuple[int, str, bytes]:
        asked = {"jsonrpc": "2.0", "id": number, "method": method, "params": {"name": "charge"}}
        answer = web.post(f"{served.at('refused', 'desk')}/mcp", json=asked)
        return answer.status_code, answer.headers.get("content-type", ""), answer.content

    expected = _REFUSALS[case]
    with _refusing(*expected) as url, serving(app, mcp=url) as served:
        assert ask(served) == expected
    for mode in ("replay", "record-new"):
        with serving(app, mode, mcp="http://127.0.0.1:9") as served:
            assert ask(served) == expected
    with serving(app, "replay", mcp="http://127.0.0.1:9") as served:
        status, _, body = ask(served, 2)
    assert status == expected[0]
    if b'"id": 1' in expected[2]:  # the answer to another delivery
        assert json.loads(body) == {**json.loads(expected[2]), "id": 2}
    else:
        assert body == expected[2]


def test_record_new_asks_again_for_what_has_no_outcome(app: Antiphon, desk: Desk, tmp_path: Path) -> None:
    held = threading.Event()

    def reply(_: Any) -> Reply:
        held.wait(30)
        return Reply("late")

    crashed = f"sqlite:///{tmp_path / 'crashed.db'}"
    with FakeProvider(reply) as provider, ThreadPoolExecutor() as pool:
        with serving(app, models=provider.url, mcp=desk.url) as served:
            waiting: list[Future[Any]] = [pool.submit(_chat, served), pool.submit(_post, served, "A1", tool="slow")]
            _until(lambda: provider.requests == 1 and desk.charged["A1"] == 1)
            with (
                contextlib.closing(sqlite3.connect(tmp_path / "proxy.db")) as now,
                contextlib.closing(sqlite3.connect(tmp_path / "crashed.db")) as kept,
            ):
                now.backup(kept)  # what a process that dies here leaves behind
            held.set()
            desk.hold.set()
            for one in waiting:
                one.result()
        with serving(Antiphon(store=crashed), "record-new", models=provider.url, mcp=desk.url) as served:
            answer = _chat(served)
            assert (answer.status_code, answer.headers["antiphon-source"]) == (200, "live")
            charged = _post(served, "A1", tool="slow")
            assert charged["result"]["content"][0]["text"] == "slowly charged A1"
            for run in ("forms", "once"):
                report = web.delete(f"{served.url}/run/{run}").json()
                assert (report["answered"], report["recorded"]) == (0, 1)
    assert (provider.requests, desk.charged["A1"]) == (2, 2)


def test_record_new_masks_what_the_earlier_run_masked(app: Antiphon) -> None:
    def written() -> str:
        return str([event.payload for run in app.journal.runs(tenant=app.tenant) for event in app.events(run.id)])

    with FakeProvider(lambda _: Reply("no news")) as provider:
        with serving(app, models=provider.url) as served:
            _chat(served, metadata={"password": "wintergreen-47"})
        assert "wintergreen-47" not in written()
        with serving(app, "record-new", models=provider.url) as served:
            asked = [{"role": "user", "content": "Is wintergreen-47 still right?"}]
            assert _chat(served, messages=asked).headers["antiphon-source"] == "live"
    assert provider.bodies[-1]["messages"] == asked
    assert "still right?" in written()
    assert "wintergreen-47" not in written()


def test_a_stream_that_outlasts_its_run_is_recorded_to_its_end(app: Antiphon) -> None:
    body = {**_CHAT[1], "stream": True}
    with FakeProvider([Reply("one two three", pause=0.1)]) as provider, serving(app, models=provider.url) as served:
        url = f"{served.at('forms')}/v1/chat/completions"
        with web.stream("POST", url, json=body) as response:
            pieces = response.iter_raw()
            read = next(pieces)
            report = web.delete(f"{served.url}/run/forms").json()
            read += b"".join(pieces)
    assert (report["requests"], report["recorded"]) == (1, 1)
    [manifest] = app.journal.runs(tenant=app.tenant)
    ends = [event.payload["outcome"] for event in app.journal.events(manifest.id) if event.type == "call.finished"]
    assert ends == ["ok"]
    with serving(app, "replay") as served:
        assert _chat(served, stream=True).content == read
