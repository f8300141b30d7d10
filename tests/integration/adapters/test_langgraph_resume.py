"""An interrupt makes LangGraph run the whole tool node again: siblings that had finished run twice. Not with us."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt

from antiphon import Antiphon
from antiphon.adapters.langchain import tool_node
from antiphon.ops.replay import replay


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


class Desk:
    """A write, and a question to a person, asked for in one message of the model."""

    def __init__(self) -> None:
        self.charged: list[str] = []

        @tool
        def charge(order: str) -> str:
            """Charge an order."""
            self.charged.append(order)
            return f"charged {order}"

        @tool
        def approve(what: str) -> str:
            """Ask a person."""
            answer = interrupt({"question": what})
            return f"{what}: {answer}"

        self.tools = [charge, approve]

    def work(self, make: Callable[[list[Any]], ToolNode]) -> list[str]:
        """Interrupted once, then resumed."""
        calls = [
            {"name": "charge", "args": {"order": "7"}, "id": "call_1"},
            {"name": "approve", "args": {"what": "refund"}, "id": "call_2"},
        ]
        graph = StateGraph(State)
        graph.add_node("tools", make(self.tools))
        graph.add_edge(START, "tools")
        graph.add_edge("tools", END)
        compiled = graph.compile(checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        first = compiled.invoke({"messages": [AIMessage("", id="m1", tool_calls=calls)]}, config)
        assert first["__interrupt__"][0].value == {"question": "refund"}
        last = compiled.invoke(Command(resume="yes"), config)
        return [message.text for message in last["messages"][1:]]


def test_finished_tools_do_not_run_again_after_an_interrupt(app: Antiphon) -> None:
    plain, guarded = Desk(), Desk()
    expected = ["charged 7", "refund: yes"]
    assert plain.work(ToolNode) == expected
    assert plain.charged == ["7", "7"], "LangGraph alone charges twice"
    assert guarded.work(tool_node) == expected
    assert guarded.charged == ["7"]


def test_an_interrupted_run_replays_strictly(app: Antiphon) -> None:
    desk = Desk()
    run = app.record(lambda: desk.work(tool_node))
    report = replay(run, app=app, function=lambda: desk.work(tool_node), mode="strict")
    assert report.divergences == []
    assert desk.charged == ["7"]


@dataclass
class Review:
    order: str
    amount: Decimal


def test_an_interrupt_shows_the_objects_that_the_tool_gave(app: Antiphon) -> None:
    review = Review("A-1", Decimal("1.10"))

    @tool
    def approve(what: str) -> str:
        """Ask a person."""
        return f"{what}: {interrupt((review, {7: what}))}"

    def work() -> list[Any]:
        graph = StateGraph(State)
        graph.add_node("tools", tool_node([approve]))
        graph.add_edge(START, "tools")
        graph.add_edge("tools", END)
        compiled = graph.compile(checkpointer=InMemorySaver())
        call = {"name": "approve", "args": {"what": "refund"}, "id": "call_1"}
        asked = compiled.invoke(
            {"messages": [AIMessage("", id="m1", tool_calls=[call])]}, {"configurable": {"thread_id": "t"}}
        )
        shown.append(asked["__interrupt__"][0].value)
        return list(shown[-1])

    shown: list[Any] = []
    run = app.record(work)
    report = replay(run, app=app, function=work, mode="strict")
    assert shown == [(review, {7: "refund"})] * 2, "live, and in the replay"
    assert report.divergences == []


def _handed_over(goto: Any, *, apart: bool = False) -> tuple[list[str], Callable[..., list[str]]]:
    """Work whose tool hands over to a node while a sibling asks a person, and the handovers that the tool made."""
    made: list[str] = []

    @tool
    def hand_over(order: str, call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Hand an order over."""
        made.append(order)
        if apart:
            seen: Command[Any] = Command(update={"messages": [HumanMessage("seen", id="m3")]})
            return [ToolMessage("handed over", tool_call_id=call_id), Command(goto=goto), seen]
        return Command(goto=goto, update={"messages": [ToolMessage("handed over", tool_call_id=call_id)]})

    @tool
    def approve(what: str) -> str:
        """Ask a person."""
        return f"{what}: {interrupt(what)}"

    def work(make: Callable[[list[Any]], ToolNode] = tool_node) -> list[str]:
        calls = [
            {"name": "hand_over", "args": {"order": "7"}, "id": "call_1"},
            {"name": "approve", "args": {"what": "refund"}, "id": "call_2"},
        ]
        graph: Any = StateGraph(State)
        graph.add_node("tools", make([hand_over, approve]))
        graph.add_node("billing", lambda state: {"messages": [("ai", f"billed {state['messages'][-1].text}")]})
        graph.add_edge(START, "tools")
        compiled = graph.compile(checkpointer=InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        assert compiled.invoke({"messages": [AIMessage("", id="m1", tool_calls=calls)]}, config)["__interrupt__"]
        last = compiled.invoke(Command(resume="yes"), config)
        return [message.text for message in last["messages"][1:]]

    return made, work


ORDER = {"messages": [HumanMessage("order 7", id="m2")]}


@pytest.mark.parametrize(
    "goto",
    [Send("billing", ORDER), [Send("billing", ORDER)], ["billing", Send("billing", ORDER)], "billing"],
    ids=["one", "list", "and a node", "a node"],
)
@pytest.mark.parametrize("apart", [False, True], ids=["one command", "several"])
def test_a_handoff_survives_an_interrupt(goto: Any, apart: bool, app: Antiphon) -> None:
    expected = _handed_over(goto, apart=apart)[1](ToolNode)
    made, work = _handed_over(goto, apart=apart)
    assert any(text.startswith("billed ") for text in expected)
    run = app.record(work)
    assert (run.output, made) == (expected, ["7"])
    report = replay(run, app=app, function=work, mode="strict")
    assert report.passed, report.text()
    assert made == ["7"]
