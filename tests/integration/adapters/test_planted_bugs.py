"""Bugs planted into the adapters, to prove that the tests of their guarantees can fail."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import msgspec
import openai
import pytest

import antiphon
from antiphon import Antiphon
from antiphon.adapters import _calls, _model, _wire
from antiphon.adapters.langchain import tool_node
from antiphon.ops.replay import replay
from tests.fake_provider import FakeProvider, Reply
from tests.integration.adapters.speakers import chat
from tests.integration.adapters.test_langgraph_resume import Desk

_CHAT: Any = [{"role": "user", "content": "hello"}]


def test_without_the_call_identity_a_resume_charges_twice(app: Antiphon, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = _calls._envelope

    def forgetful(*args: Any) -> Any:
        made = honest(*args)
        return msgspec.structs.replace(made, tool_call_id=made.request_id)

    monkeypatch.setattr(_calls, "_envelope", forgetful)
    desk = Desk()
    desk.work(tool_node)
    assert desk.charged == ["7", "7"]


def _two_seams(app: Antiphon, url: str) -> int:
    """A call seen by a framework's seam and by the transport underneath: how many events it leaves."""
    client = antiphon.wrap(openai.OpenAI(api_key="none", base_url=f"{url}/v1"))
    body: dict[str, Any] = {"model": "m", "messages": _CHAT}
    with app.run("seams") as run:
        asking = _model.ModelCallSpec(body, lambda said: said.model_dump(mode="json"), lambda value: value)
        _model.ask(lambda: asking, lambda: client.chat.completions.create(model="m", messages=_CHAT))
    return sum(event.type == "call.started" for event in run.events())


def test_the_outermost_seam_records_alone(app: Antiphon, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeProvider([Reply("hi")] * 2) as provider:
        assert _two_seams(app, provider.url) == 1
        monkeypatch.setattr(_model, "recorded_here", nullcontext)
        assert _two_seams(app, provider.url) == 2


def test_an_error_that_replays_as_an_answer_is_a_divergence(app: Antiphon, monkeypatch: pytest.MonkeyPatch) -> None:
    def agent(url: str) -> str:
        try:
            return chat(url)
        except openai.APIStatusError as error:
            return str(error.status_code)

    with FakeProvider([Reply(status=429)]) as provider:
        run = app.record(lambda: agent(provider.url))
    honest = _wire.replayed
    answer = b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "fine"}}]}'
    monkeypatch.setattr(_wire, "replayed", lambda *args: honest(*args)._replace(status=200, chunks=[answer]))
    assert replay(run, app=app, function=lambda: agent(provider.url), mode="strict").divergences != []
