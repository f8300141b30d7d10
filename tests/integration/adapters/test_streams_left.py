"""Streams that are not read to their end: dropped, left early, given up. Each has an outcome and replays as it was."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import httpx
import openai
import pytest

import antiphon
from antiphon import Antiphon
from antiphon.adapters.httpx import transport
from antiphon.ops.replay import replay
from antiphon.ports import STREAM_ABANDONED
from tests.fake_provider import FakeProvider, Reply

_CHAT: Any = [{"role": "user", "content": "hello"}]


def _asked(url: str) -> Any:
    client = antiphon.wrap(openai.OpenAI(api_key="none", base_url=f"{url}/v1"))
    return client.chat.completions.create(model="m", messages=_CHAT, stream=True)


async def _asked_async(url: str) -> Any:
    client = antiphon.wrap(openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1"))
    return await client.chat.completions.create(model="m", messages=_CHAT, stream=True)


def _outcomes(run: Any) -> list[tuple[str, str | None]]:
    finished = [event.payload for event in run.events() if event.type == "call.finished"]
    return [(payload["outcome"], (payload.get("error") or {}).get("code")) for payload in finished]


def _passes(app: Antiphon, run: Any, agent: Any) -> bool:
    return replay(run, app=app, function=agent, mode="strict").passed


def test_a_stream_that_outlives_its_run_is_ended_with_it(app: Antiphon) -> None:
    kept: list[Any] = []

    def agent(url: str) -> str:
        kept.append(_asked(url))
        return next(iter(kept[-1])).choices[0].delta.role or ""

    with FakeProvider([Reply("a b c d", pause=0.01)]) as provider:
        run = app.record(agent, provider.url)
        assert _outcomes(run) == [("error", "stream_broken_off")]
        events = len(run.events())
        assert len(list(kept[0])) == 5, "who has it may read on"
    assert len(run.events()) == events, "the run does not change any more"
    assert _passes(app, run, agent)


@pytest.mark.parametrize("kept", [True, False])
def test_so_is_an_asynchronous_one_that_nobody_closed(kept: bool, app: Antiphon) -> None:
    held: list[Any] = []

    async def agent(url: str) -> str:
        stream = await _asked_async(url)
        if kept:
            held.append(stream)
        first = await anext(aiter(stream))
        return first.choices[0].delta.role or ""

    async def main(url: str) -> Any:
        return await app.record(agent, url)

    with FakeProvider([Reply("a b c d", pause=0.01)]) as provider:
        run = asyncio.run(main(provider.url))
    assert _outcomes(run) == [("error", "stream_broken_off")]
    assert _passes(app, run, agent)


def test_a_reader_that_reads_on_where_the_recorded_one_left_is_told(app: Antiphon) -> None:
    many = 2

    def agent(url: str) -> str:
        with _asked(url) as stream:
            chunks = iter(stream)
            return "".join(next(chunks).choices[0].delta.content or "" for _ in range(many))

    with FakeProvider([Reply("a b c d", pause=0.01)]) as provider:
        run = app.record(agent, provider.url)
    assert _passes(app, run, agent)
    many = 4
    report = replay(run, app=app, function=agent, mode="strict")
    assert not report.passed
    assert "left this stream after chunk 2" in str(report.divergences)


def test_a_reader_that_was_cancelled_is_cancelled_again(app: Antiphon) -> None:
    async def agent(url: str) -> str:
        said, stream = "", await _asked_async(url)  # a busy machine may take as long to make a client
        try:
            async with asyncio.timeout(0.5):
                async for chunk in stream:
                    said += chunk.choices[0].delta.content or ""
        except TimeoutError:
            return f"{said}and no more"
        return said

    with FakeProvider([Reply("a b", pause=0.9)]) as provider:
        run = app.record(agent, provider.url)
    assert run.output == "and no more"
    assert _outcomes(run) == [("error", "CancelledError")]
    assert _passes(app, run, agent)


def test_a_reader_that_does_not_wait_for_the_last_words_has_its_answer(app: Antiphon) -> None:
    def agent(url: str) -> str:
        client = antiphon.wrap(anthropic.Anthropic(api_key="none", base_url=url))
        said = ""
        with client.messages.create(model="m", messages=_CHAT, max_tokens=9, stream=True) as stream:
            for event in stream:
                if event.type == "content_block_delta":
                    said += getattr(event.delta, "text", "")
                if event.type == "message_delta":
                    break
        return said

    with FakeProvider([Reply("a b c d", pause=0.01)]) as provider:
        run = app.record(agent, provider.url)
    assert run.output == "a b c d"
    assert _outcomes(run) == [("ok", None)]
    assert _passes(app, run, agent)


@pytest.mark.parametrize(("end", "outcome"), [(b"data: [DONE]\n\n", ("ok", None)), (b"", ("error", STREAM_ABANDONED))])
def test_a_stream_whose_reader_left_after_its_end_mark_has_no_need_of_a_reason(
    end: bytes, outcome: tuple[str, str | None], app: Antiphon
) -> None:
    said = b'data: {"choices": [{"index": 0, "delta": {"content": "hello [DONE]"}}]}\n\n'

    class Upstream(httpx.BaseTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            kind = {"content-type": "text/event-stream"}
            return httpx.Response(200, headers=kind, content=iter([said, end, b": bye\n\n"]))

    def agent() -> int:
        client = httpx.Client(transport=transport(Upstream()))
        asked = {"model": "m", "messages": _CHAT, "stream": True}
        with client.stream("POST", "http://localhost/v1/chat/completions", json=asked) as response:
            chunks = response.iter_raw()
            return len(next(chunks) + next(chunks))

    run = app.record(agent)
    assert _outcomes(run) == [outcome]
    assert _passes(app, run, agent)
