"""A framework's tool may return any object: a redelivery, a resume and a replay give it as it was."""

from __future__ import annotations

import dataclasses
import enum
from datetime import date
from decimal import Decimal
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.structured_output import ToolStrategy
from langchain_core.documents import Document
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.types import Command, Send
from pydantic import BaseModel
from pydantic_ai.messages import BinaryContent, ToolReturn

import antiphon
from antiphon._gateway import codec
from antiphon.adapters._calls import CallIdentity, GuardedTools
from antiphon.adapters._langchain_calls import pack_result, unpack_result
from antiphon.adapters.langchain import protect
from tests.unit.replay.kit import memory_app


class Weather(BaseModel):
    city: str
    day: date


@dataclasses.dataclass
class Row:
    amount: Decimal
    inner: Weather


class Colour(enum.Enum):
    RED = "red"


WEATHER = Weather(city="Tokyo", day=date(2026, 1, 1))
RESULTS: dict[str, Any] = {
    "model": WEATHER,
    "models": [WEATHER, WEATHER],
    "dataclass": Row(Decimal("1.5"), WEATHER),
    "enum": Colour.RED,
    "tool return": ToolReturn("taken", content=["Here:", BinaryContent(b"\x89PNG", media_type="image/png")]),
    "documents": ("text", [Document("page", metadata={"source": "a"})]),
    "decimal": Decimal(1),
    "text": "text",
    "dict": {"a": [1, None]},
    "looks like ours": {"$object": ["x", {}]},
}


@pytest.mark.parametrize("kind", RESULTS)
def test_an_equal_call_gets_an_equal_result(kind: str) -> None:
    app, made = memory_app(), list[Any]()
    tools = GuardedTools({}, app)

    def body(_: dict[str, Any]) -> Any:
        made.append(RESULTS[kind])
        return made[-1]

    def ask() -> Any:
        return tools.call(tools.spec("look"), {"q": 1}, CallIdentity("s", "call_1"), body)

    first, again = ask(), ask()
    assert first.value is RESULTS[kind], "the framework's own object, the first time"
    assert (len(made), again.reused) == (1, True)
    assert (again.value, type(again.value)) == (first.value, type(first.value))
    assert repr(again.value) == repr(first.value)

    def agent() -> str:
        given = tools.call(tools.spec("look"), {"q": 2}, CallIdentity("s", "call_2"), body)
        return repr(given.value)

    run = app.record(agent)
    report = antiphon.replay(run, app=app, mode="strict", function=agent, keep=False)
    assert report.passed, report.text()
    assert len(made) == 2


def test_a_result_that_was_not_kept_is_told_as_an_error() -> None:
    app, made = memory_app(), list[Any]()
    tools = GuardedTools({}, app)

    def body(_: dict[str, Any]) -> complex:
        made.append(1)
        return 1j

    def ask() -> Any:
        return tools.call(tools.spec("look"), {"q": 1}, CallIdentity("s", "call_1"), body)

    assert (ask().value, made) == (1j, [1])
    again = ask()
    told = again.message
    assert (again.ok, again.code, again.reused, made) == (False, "result_not_kept", True, [1])
    assert "is not called again. The call succeeded; its result could not be stored" in told

    def agent() -> str:
        again = ask()
        return f"{again.code}: {again.message}"

    run = app.record(agent)
    assert run.output == f"result_not_kept: {told}"
    report = antiphon.replay(run, app=app, mode="strict", function=agent, keep=False)
    assert report.passed, report.text()


def test_a_tool_may_return_none() -> None:
    app = memory_app()
    tools = GuardedTools({}, app)
    given = [tools.call(tools.spec("look"), {}, CallIdentity("s", "call_1"), lambda _: None) for _ in range(2)]
    assert [(one.ok, one.value, one.reused) for one in given] == [(True, None, False), (True, None, True)]


@dataclasses.dataclass
class Contact:
    mail: str


class Scripted(FakeMessagesListChatModel):
    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self


def test_a_message_that_a_tool_of_langchain_returns_comes_back_whole() -> None:
    app, seen = memory_app(), list[Any]()
    more = {"additional_kwargs": {"cost": 2}, "artifact": {"rows": [Contact("a@example.org")]}}

    @tool
    def look(call_id: Annotated[str, InjectedToolCallId]) -> ToolMessage:
        """Look."""
        return ToolMessage("found", tool_call_id=call_id, **more)

    def agent() -> str:
        asks = AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "call_1"}])
        model = Scripted(responses=[asks, AIMessage("done")])
        made: Any = create_agent(model, tools=[look], middleware=[protect()])
        (said,) = [one for one in made.invoke({"messages": [("user", "hi")]})["messages"] if one.type == "tool"]
        seen.append({"additional_kwargs": said.additional_kwargs, "artifact": said.artifact})
        return repr(seen[-1])

    run = app.record(agent)
    report = antiphon.replay(run, app=app, mode="strict", function=agent, keep=False)
    assert report.passed, report.text()
    assert seen == [more, more]


@pytest.mark.parametrize("wanted", [Contact, Weather, Contact | Weather], ids=["dataclass", "model", "one of them"])
def test_a_structured_answer_of_langchain_comes_back_as_it_was(wanted: Any) -> None:
    app, seen = memory_app(), list[Any]()
    one = WEATHER.model_dump(mode="json") if wanted is Weather else {"mail": "ada@example.org"}
    call = {"name": "Weather" if wanted is Weather else "Contact", "args": one, "id": "call_1"}

    def agent() -> str:
        model = Scripted(responses=[AIMessage("", tool_calls=[call])])
        made: Any = create_agent(model, tools=[], response_format=ToolStrategy(wanted), middleware=[protect()])
        seen.append(made.invoke({"messages": [("user", "hi")]})["structured_response"])
        return repr(seen[-1])

    run = app.record(agent)
    report = antiphon.replay(run, app=app, mode="strict", function=agent, keep=False)
    assert report.passed, report.text()
    assert seen[0] == seen[1]
    assert type(seen[0]) is type(seen[1])


@pytest.mark.parametrize(
    "goto",
    [
        Send("billing", {"messages": [AIMessage("7", id="m1")], "limits": {"day": date(2026, 1, 1)}}),
        [Send("billing", [AIMessage("7", id="m1")], timeout=30), "desk"],
        ("desk", Send("billing", WEATHER)),
        ["desk"],
        "desk",
    ],
    ids=["one", "with a timeout", "tuple", "nodes", "node"],
)
def test_a_handoff_of_langgraph_comes_back_as_it_was(goto: Any) -> None:
    command: Command[Any] = Command(goto=goto, update={"order": "7"}, graph=Command.PARENT)
    kept = codec.plain(codec.encode(pack_result(command)))
    assert unpack_result(kept, {"id": "call_1", "name": "hand_over"}) == command
