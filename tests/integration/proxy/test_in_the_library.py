"""Runs that the proxy recorded replay in the library, however their calls overlapped, and the other way round."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest
from mcp import Client, MCPError
from mcp_types import INTERNAL_ERROR

import antiphon
from antiphon import Antiphon
from antiphon.adapters.mcp import connect, protect
from antiphon.ops.replay import replay
from antiphon.ops.reports import Report
from tests.fake_provider import FakeProvider, Reply
from tests.integration.proxy import web
from tests.integration.proxy.desk import Desk, served_desk
from tests.integration.proxy.harness import serving
from tests.integration.proxy.test_recordings import _refusing

_NOWHERE = "http://127.0.0.1:9"
MODES = ("auto", "legacy")


@pytest.fixture
def desk() -> Iterator[Desk]:
    with served_desk() as found:
        yield found


def _strictly(app: Antiphon, name: str, function: Callable[[], Any]) -> Report:
    [recorded] = [found for found in app.journal.runs(tenant=app.tenant, name=name) if found.source_run is None]
    return replay(recorded.id, app=app, function=function, mode="strict")


def _messages(report: Report) -> list[str]:
    return [str(found["message"]) for found in report.divergences]


async def _answers(url: str, questions: list[str], **more: Any) -> list[str]:
    """Ask everything at once."""
    async with antiphon.wrap(openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)) as client:

        async def ask(text: str) -> str:
            asked: Any = [{"role": "user", "content": text}]
            answer = await client.chat.completions.create(model="fake-1", messages=asked, **more)
            return str(answer.choices[0].message.content)

        return list(await asyncio.gather(*map(ask, questions)))


class _Crowd(FakeProvider):
    """Answers nobody until all have asked; equal questions get different answers."""

    def __init__(self, parties: int) -> None:
        super().__init__(lambda body: Reply(f"{body['messages'][0]['content']}, request {self.requests}"))
        self._met = threading.Barrier(parties)

    def _next(self, body: dict[str, Any]) -> Reply:
        self._met.wait(30)
        return super()._next(body)


def test_overlapping_model_calls_replay_in_the_library(app: Antiphon) -> None:
    questions = ["one", "two", "three", "same", "same"]
    with _Crowd(5) as provider, serving(app, models=provider.url) as served:
        recorded = asyncio.run(_answers(served.at("crowd"), questions))
    assert len(set(recorded)) == 5
    for order in (questions, questions[::-1]):
        report = _strictly(app, "crowd", lambda order=order: asyncio.run(_answers(_NOWHERE, order)))  # type: ignore[misc]
        assert report.passed, _messages(report)
        assert report["modelHits"] == 5


def test_equal_overlapping_calls_get_their_answers_in_recorded_order(app: Antiphon) -> None:
    with _Crowd(2) as provider, serving(app, models=provider.url) as served:
        asyncio.run(_answers(served.at("twins"), ["same", "same"]))
    [manifest] = app.journal.runs(tenant=app.tenant, name="twins")
    events = list(app.journal.events(manifest.id))
    calls = [event.call for event in events if event.type == "call.started"]
    ends = {event.call: event.payload["value"] for event in events if event.type == "call.finished"}
    recorded = [ends[call]["choices"][0]["message"]["content"] for call in calls]
    heard: list[str] = []
    report = _strictly(app, "twins", lambda: heard.extend(asyncio.run(_answers(_NOWHERE, ["same", "same"]))))
    assert report.passed, _messages(report)
    assert heard == recorded


def test_a_changed_a_missing_and_a_further_call_are_named(app: Antiphon) -> None:
    questions = ["one", "two", "three"]
    with _Crowd(3) as provider, serving(app, models=provider.url) as served:
        asyncio.run(_answers(served.at("crowd"), questions))

    def told(*asked: str) -> list[str]:
        report = _strictly(app, "crowd", lambda: asyncio.run(_answers(_NOWHERE, list(asked))))
        assert not report.passed
        return _messages(report)

    changed = told("one", "three", "twelve")
    assert "'two' -> 'twelve'" in changed[0]
    assert changed[0].startswith("the recording has no answer for this model request (nearest recorded: event ")
    assert not any("did not happen" in one for one in changed)
    [missing] = told("three", "one")
    assert missing.startswith("call.started llm did not happen (event ")
    further = told(*questions, "two")
    assert "recorded once, and asked once more than that" in further[0]


async def _session(target: Any, mode: Any, orders: list[str], guarded: bool) -> list[str]:
    """Charge all orders at once, and read a resource between."""
    async with Client(target, mode=mode) as plain:
        client: Any = protect(plain, server="desk") if guarded else plain
        await client.list_tools()

        async def charge(order: str) -> str:
            return str((await client.call_tool("charge", {"order": order})).content[0].text)

        rules, *charged = await asyncio.gather(client.read_resource("desk://rules"), *map(charge, orders))
    return [rules.contents[0].text, *sorted(charged)]


@pytest.mark.parametrize("mode", MODES)
def test_an_mcp_session_replays_in_the_library(app: Antiphon, desk: Desk, mode: str) -> None:
    orders = ["A1", "A2", "A3"]
    with serving(app, mcp=desk.url) as served:
        url = f"{served.at('shop', 'desk')}/mcp"
        recorded = asyncio.run(_session(url, mode, orders, guarded=False))
    heard: list[str] = []

    def again(orders: list[str]) -> Report:
        heard.clear()
        program = _session(connect(f"{_NOWHERE}/mcp"), mode, orders, guarded=True)
        return _strictly(app, "shop", lambda: heard.extend(asyncio.run(program)))

    report = again(orders[::-1])
    assert report.passed, _messages(report)
    assert (heard, sum(desk.charged.values())) == (recorded, 3)
    assert any("'A3' -> 'B3'" in one for one in _messages(again(["A1", "A2", "B3"])))
    assert any("charge did not happen" in one for one in _messages(again(["A2", "A3"])))


async def _calls(target: Any, mode: Any, guarded: bool) -> list[Any]:
    """Calls without listing the tools: the client does that by itself, to check a result."""
    async with Client(target, mode=mode) as plain:
        client: Any = protect(plain, server="desk") if guarded else plain
        made = [("steps", {"count": 2}), ("charge", {"order": "A1"}), ("charge", {}), ("unknown", {})]
        return [(await client.call_tool(name, arguments)).model_dump(exclude={"meta"}) for name, arguments in made]


@pytest.mark.parametrize("mode", MODES)
def test_calls_whose_tools_the_client_lists_by_itself_replay_in_the_library(
    app: Antiphon, desk: Desk, mode: str
) -> None:
    with serving(app, mcp=desk.url) as served:
        recorded = asyncio.run(_calls(f"{served.at('shop', 'desk')}/mcp", mode, guarded=False))
    heard: list[Any] = []
    program = _calls(connect(f"{_NOWHERE}/mcp"), mode, guarded=True)
    report = _strictly(app, "shop", lambda: heard.extend(asyncio.run(program)))
    assert report.passed, _messages(report)
    assert (heard, report["unusedToolCalls"]) == (recorded, 0)


@pytest.mark.parametrize(("status", "is_answer"), [(200, True), (422, True), (422, False), (500, False)])
def test_a_refused_tool_call_is_an_error_of_the_protocol_in_the_library(
    app: Antiphon, status: int, is_answer: bool
) -> None:
    error = b'{"jsonrpc": "2.0", "id": 1, "error": {"code": -32010, "message": "no order"}}'
    kind, said = ("application/json", error) if is_answer else ("text/html", b"<p>no</p>")
    with _refusing(status, kind, said) as url, serving(app, mcp=url) as served:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "charge", "arguments": {}}}
        assert web.post(f"{served.at('shop', 'desk')}/mcp", json=asked).status_code == status

    async def call() -> None:
        client = protect(SimpleNamespace(), server="desk")
        with pytest.raises(MCPError) as raised:
            await client.call_tool("charge", {})
        assert raised.value.error.code == (-32010 if is_answer else INTERNAL_ERROR)

    report = _strictly(app, "shop", lambda: asyncio.run(call()))
    assert report.passed, (_messages(report), report.data.get("error"))


def test_a_run_of_the_library_replays_in_the_proxy(app: Antiphon) -> None:
    with _Crowd(3) as provider:
        run = app.record(lambda: asyncio.run(_answers(provider.url, ["one", "two", "three"])))
    with serving(app, "replay") as served:
        heard = asyncio.run(_answers(served.at(run.id), ["three", "two", "one"]))
        report = web.delete(f"{served.url}/run/{run.id}").json()
    assert sorted(heard) == sorted(run.output)
    assert report["equal"], report
