"""``chat_model`` around a model that cannot stream is asked for a stream all the same."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import FakeListChatModel, FakeMessagesListChatModel
from langchain_core.messages import AIMessage

from antiphon import Antiphon
from antiphon.adapters.langchain import chat_model
from antiphon.ops.replay import replay
from tests.integration.adapters.subjects_langchain import ProviderChat, tools_of
from tests.integration.adapters.world import World


def test_a_model_that_does_not_stream_gives_its_message_at_once(world: World, app: Antiphon) -> None:
    def agent() -> list[Any]:
        model = chat_model(ProviderChat(url=world.provider.url)).bind_tools(tools_of(world))
        pieces: Any = list(model.stream("charge A"))
        return [pieces[0].text, [call["name"] for call in pieces[0].tool_calls]]

    run = app.record(agent)
    world.provider.switch_off()
    assert run.output == ["", ["charge"]]
    assert replay(run, app=app, function=agent, mode="strict").divergences == []


def test_nor_does_it_asynchronously(world: World, app: Antiphon) -> None:
    async def main() -> list[str]:
        return [piece.text async for piece in chat_model(ProviderChat(url=world.provider.url)).astream("hi")]

    run = app.record(lambda: asyncio.run(main()))
    world.provider.switch_off()
    assert "".join(run.output) == "hello there, friend"
    assert replay(run, app=app, function=lambda: asyncio.run(main()), mode="strict").divergences == []


@pytest.mark.parametrize("before", [False, True], ids=["recorded now", "recorded under the name of the script"])
def test_a_model_of_a_script_is_the_same_wherever_the_script_lies(
    app: Antiphon, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """A script is loaded under a name that is made from its path, and is ``__main__`` when it is started."""
    names = iter(["antiphon_script_1", "antiphon_script_2", "__main__"])

    def main() -> str:
        kind = type("Mine", (FakeListChatModel,), {"__module__": next(names)})
        return str(chat_model(kind(responses=["hello"])).invoke("hi").text)

    if before:
        monkeypatch.setattr("antiphon.adapters._langchain_calls.is_script_module", lambda module: False)
    run = app.record(main)
    monkeypatch.undo()
    requests = [event.payload["request"]["provider"] for event in run.events() if event.type == "call.started"]
    assert requests == ["antiphon_script_1" if before else "core"]
    for _ in range(2):
        report = replay(run, app=app, mode="strict", function=main)
        assert report.passed, report.text()


@pytest.mark.parametrize("content", ["", []])
def test_an_answer_without_content_is_replayed(content: Any, app: Antiphon) -> None:
    """Claude ends a turn without any content when a tool has said it all."""

    def agent() -> Any:
        return chat_model(FakeMessagesListChatModel(responses=[AIMessage(content)])).invoke("hi").content

    run = app.record(agent)
    assert replay(run, app=app, function=agent, mode="strict").divergences == []
