"""D49 in the frameworks: their own approvals end in our claim, and count only for what they have shown.

Each case is one that users reported, first with the framework alone: pydantic-ai#5536 (an approval is a bare bool, so
whatever repeats the resume repeats the effect) and #6968 (the approver sees other arguments than those executed),
langgraph#8026 (a decision must not outlive a change of the call; a second resume must have no effect), and, because
agent-framework is not installed here, agent-framework#7458 with OpenAI Agents: the approved tool has run, the model
fails, the resume is sent again.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypedDict

import pytest
from agents import Agent, Model, ModelResponse, Runner, RunState, Usage, function_tool, set_tracing_disabled
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import FakeMessagesListChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt
from mcp import Client
from mcp.server import MCPServer
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import DeferredToolRequests, DeferredToolResults, ToolApproved
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelResponse as PydanticResponse
from pydantic_ai.messages import TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel

from antiphon import Antiphon
from antiphon.adapters import mcp as mcp_adapter
from antiphon.adapters.langchain import AntiphonMiddleware, tool_node
from antiphon.adapters.openai_agents import protect as protect_agents
from antiphon.adapters.pydantic_ai import protect as protect_pydantic
from antiphon.ops.replay import replay

set_tracing_disabled(True)
DECLARED = {"pay": {"idempotent": False, "approve": "always"}}


def _acts(app: Antiphon) -> list[tuple[str, str, str]]:
    from antiphon._drive import drive
    from antiphon.ops.approvals import Approvals

    return [(act["act"], act["by"], act["from"]) for act in drive(Approvals(app).audit())]


# -- LangGraph -------------------------------------------------------------------------------------------------------


class State(TypedDict):
    messages: Annotated[list[Any], add_messages]


class Graph:
    """One node of tools, interrupted until somebody has decided."""

    def __init__(self, *, guarded: bool, durable: bool = True) -> None:
        self.paid: list[int] = []

        @tool
        def pay(amount: int) -> str:
            """Pay somebody."""
            if not guarded and interrupt({"pay": amount}) is not True:
                return "denied"
            self.paid.append(amount)
            return f"paid {amount}"

        graph = StateGraph(State)
        graph.add_node("tools", tool_node([pay], specs=DECLARED) if guarded else ToolNode([pay]))
        graph.add_edge(START, "tools")
        graph.add_edge("tools", END)
        self.graph = graph.compile(checkpointer=InMemorySaver() if durable else None)
        self.config: Any = {"configurable": {"thread_id": "t"}}

    def ask(self, *amounts: int) -> list[Any]:
        calls = [{"name": "pay", "args": {"amount": one}, "id": f"call_{one}"} for one in amounts]
        return self._went({"messages": [AIMessage("", id="m1", tool_calls=calls)]})

    def resume(self, answer: Any) -> list[Any]:
        return self._went(Command(resume=answer))

    def _went(self, given: Any) -> list[Any]:
        """The questions that are open now; without any, what the tools said."""
        self.last = self.graph.invoke(given, self.config)
        return [one.value for one in self.last.get("__interrupt__", ())] or self.said()

    def said(self) -> list[str]:
        return [message.text for message in self.last["messages"] if message.type == "tool"]

    def edit(self, amount: int) -> None:
        """Somebody changes the call while it waits."""
        calls = [{"name": "pay", "args": {"amount": amount}, "id": f"call_{amount}"}]
        self.graph.update_state(self.config, {"messages": [AIMessage("", id="m1", tool_calls=calls)]}, as_node=START)


def _yes(question: Any, **more: Any) -> dict[str, Any]:
    return {"approvalId": question["approvalId"], "decision": "approve", **more}


def test_langgraph_approves_what_it_has_shown(app: Antiphon) -> None:
    graph = Graph(guarded=True)
    (question,) = graph.ask(10)
    assert (question["tool"], question["arguments"]) == ("tools/pay", '{"amount":10}')
    assert graph.paid == []
    assert graph.resume(_yes(question, by="grace", reason="checked")) == ["paid 10"]
    assert graph.paid == [10]
    assert _acts(app) == [("approve", "grace", "langgraph")]
    assert app.approvals("me").list(state="all") == []


def test_langgraph_says_no(app: Antiphon) -> None:
    graph = Graph(guarded=True)
    (question,) = graph.ask(10)
    (said,) = graph.resume({question["approvalId"]: "deny"})
    assert "A person denied this call" in said
    assert (graph.paid, _acts(app)) == ([], [("deny", "langgraph", "langgraph")])


def test_langgraph_a_decision_does_not_outlive_a_change_of_the_call(app: Antiphon) -> None:
    """langgraph#8026: what is resumed is matched by order alone, so the old yes is taken for the new call."""
    bare = Graph(guarded=False)
    bare.ask(10)
    bare.edit(9_999)
    assert bare.resume(True) == ["paid 9999"], "LangGraph alone pays what nobody saw"
    graph = Graph(guarded=True)
    (question,) = graph.ask(10)
    graph.edit(9_999)
    (again,) = graph.resume(_yes(question))
    assert again["arguments"] == '{"amount":9999}'
    assert graph.paid == []
    assert graph.resume(_yes(again)) == ["paid 9999"]


@pytest.mark.parametrize("blanket", [True, "yes", {"decision": "approve"}, {"type": "approve"}, {"*": "approve"}, []])
def test_langgraph_a_blanket_answer_approves_nothing(app: Antiphon, blanket: Any) -> None:
    graph = Graph(guarded=True)
    (question,) = graph.ask(10)
    (again,) = graph.resume(blanket)
    assert (again["approvalId"], graph.paid) == (question["approvalId"], [])
    assert graph.resume(_yes(question)) == ["paid 10"]


def test_langgraph_two_calls_of_one_node_are_not_mixed_up(app: Antiphon) -> None:
    """Their interrupts share a counter; the answers name what they are about."""
    graph = Graph(guarded=True)
    questions = graph.ask(10, 20)
    for _ in range(4):
        if graph.paid == [10, 20] or graph.said():
            break
        questions = graph.resume({one["id"]: "approve" for one in app.approvals("me").list()})
    assert sorted(graph.paid) == [10, 20]
    assert sorted(graph.said()) == ["paid 10", "paid 20"]
    assert questions


def test_langgraph_what_its_middleware_lets_pass_still_asks(app: Antiphon) -> None:
    """It leaves no trace of what it has shown: its yes is no approval of ours."""
    paid: list[int] = []

    def pay(amount: int) -> str:
        """Pay somebody."""
        paid.append(amount)
        return f"paid {amount}"

    call = AIMessage("", tool_calls=[{"name": "pay", "args": {"amount": 10}, "id": "call_1"}])
    agent: Any = create_agent(
        Scripted(responses=[call, AIMessage("done")]),
        tools=[pay],
        middleware=[HumanInTheLoopMiddleware(interrupt_on={"pay": True}), AntiphonMiddleware(DECLARED)],
        checkpointer=InMemorySaver(),
    )
    config = {"configurable": {"thread_id": "t"}}
    assert "action_requests" in agent.invoke({"messages": [("user", "pay")]}, config)["__interrupt__"][0].value
    asked = agent.invoke(Command(resume={"decisions": [{"type": "approve"}]}), config)["__interrupt__"][0].value
    assert (asked["arguments"], paid) == ('{"amount":10}', [])
    assert agent.invoke(Command(resume=_yes(asked)), config)["messages"][-1].text == "done"
    assert paid == [10]


class Scripted(FakeMessagesListChatModel):
    """A model whose answers are known."""

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


def test_langgraph_goes_on_when_somebody_decided_elsewhere(app: Antiphon) -> None:
    graph = Graph(guarded=True)
    (question,) = graph.ask(10)
    app.approvals("grace").decide(question["approvalId"], "approve")
    assert graph.resume("go on") == ["paid 10"]
    assert graph.paid == [10]


def test_langgraph_an_interrupted_run_replays_strictly(app: Antiphon) -> None:
    paid: list[list[int]] = []

    def agent() -> list[Any]:
        graph = Graph(guarded=True)
        paid.append(graph.paid)
        (question,) = graph.ask(10)
        return graph.resume(_yes(question))

    run = app.record(agent)
    assert run.output == ["paid 10"]
    report = replay(run, app=app, function=agent, mode="strict")
    assert report.divergences == [], report.divergences
    assert paid == [[10], []]


# -- Pydantic AI -----------------------------------------------------------------------------------------------------


class Rewrite(AbstractCapability[Any]):
    """pydantic-ai#6968: a hook that changes what is executed."""

    async def after_tool_validate(self, ctx: Any, *, call: Any, tool_def: Any, args: Any) -> Any:
        return {**args, "amount": args["amount"] * 5}


class Clerk:
    """An agent whose tool needs approval, and whose model can fail after the tool has run."""

    def __init__(self, *, guarded: bool, rewrites: bool = False) -> None:
        self.paid: list[int] = []
        self.fails = 0

        def model(messages: list[Any], info: Any) -> PydanticResponse:
            if any(isinstance(part, ToolReturnPart) for part in messages[-1].parts):
                if self.fails:
                    self.fails -= 1
                    raise ConnectionError("the model is gone")
                return PydanticResponse([TextPart("done")])
            return PydanticResponse([ToolCallPart("pay", {"amount": 10}, tool_call_id="call_1")])

        made: Any = PydanticAgent(
            FunctionModel(model),
            output_type=[str, DeferredToolRequests],
            capabilities=[Rewrite()] if rewrites else [],
        )

        @made.tool_plain(requires_approval=not guarded)  # type: ignore[untyped-decorator,unused-ignore]
        def pay(amount: int) -> str:
            """Pay somebody."""
            self.paid.append(amount)
            return f"paid {amount}"

        self.agent: Any = protect_pydantic(made, tools=DECLARED, session="ticket-7") if guarded else made

    def ask(self) -> Any:
        self.first = asyncio.run(self.agent.run("pay"))
        return self.first.output

    def resume(self, answer: Any = True, metadata: Any = None) -> Any:
        results = DeferredToolResults(approvals={"call_1": answer}, metadata={"call_1": metadata or {}})
        history = self.first.all_messages()
        return asyncio.run(self.agent.run(message_history=history, deferred_tool_results=results)).output


def test_pydantic_approves_what_it_has_shown(app: Antiphon) -> None:
    clerk = Clerk(guarded=True)
    asked = clerk.ask()
    question = asked.metadata["call_1"]
    assert (question["tool"], question["arguments"]) == ("tools/pay", '{"amount":10}')
    assert clerk.resume(metadata={"by": "grace", "approvalId": question["approvalId"]}) == "done"
    assert (clerk.paid, _acts(app)) == ([10], [("approve", "grace", "pydantic-ai")])


def test_pydantic_a_resume_that_is_repeated_pays_once(app: Antiphon) -> None:
    """pydantic-ai#5536, and agent-framework#7458: the tool has run, the model fails, the resume is sent again."""
    for guarded, paid in ((False, [10, 10]), (True, [10])):
        clerk = Clerk(guarded=guarded)
        clerk.ask()
        clerk.fails = 1
        with pytest.raises(ConnectionError):
            clerk.resume()
        assert clerk.resume() == "done"
        assert clerk.paid == paid, f"guarded: {guarded}"


def test_pydantic_the_approver_sees_what_is_executed(app: Antiphon) -> None:
    """pydantic-ai#6968."""
    bare = Clerk(guarded=False, rewrites=True)
    assert bare.ask().approvals[0].args_as_dict() == {"amount": 10}
    bare.resume()
    assert bare.paid == [50], "Pydantic AI alone shows 10 and pays 50"
    clerk = Clerk(guarded=True, rewrites=True)
    assert clerk.ask().metadata["call_1"]["arguments"] == '{"amount":50}'
    assert clerk.resume() == "done"
    assert clerk.paid == [50]


def test_pydantic_other_arguments_need_another_approval(app: Antiphon) -> None:
    bare, clerk = Clerk(guarded=False), Clerk(guarded=True)
    changed = ToolApproved(override_args={"amount": 9_999})
    bare.ask()
    bare.resume(changed)
    clerk.ask()
    answer = clerk.resume(changed)
    assert (bare.paid, clerk.paid) == ([9_999], [])
    assert answer.metadata["call_1"]["arguments"] == '{"amount":9999}'
    assert clerk.resume(changed) == "done"
    assert clerk.paid == [9_999]


def test_pydantic_an_approval_of_nothing_that_was_shown_approves_nothing(app: Antiphon) -> None:
    clerk = Clerk(guarded=True)
    clerk.ask()
    again = clerk.resume(metadata={"approvalId": "0" * 16})
    assert isinstance(again, DeferredToolRequests)
    assert clerk.paid == []


# -- OpenAI Agents ---------------------------------------------------------------------------------------------------


class Script(Model):
    """A model that calls the tool with each amount in turn, then is done; it can fail instead."""

    def __init__(self, *amounts: int) -> None:
        self.amounts = amounts
        self.fails = 0

    async def get_response(self, system_instructions: Any, input: Any, *args: Any, **options: Any) -> ModelResponse:  # noqa: A002
        done = 0 if isinstance(input, str) else sum(item.get("type") == "function_call_output" for item in input)
        if done and self.fails:
            self.fails -= 1
            raise ConnectionError("the model is gone")
        if done < len(self.amounts):
            said: Any = ResponseFunctionToolCall(
                arguments=f'{{"amount":{self.amounts[done]}}}',
                call_id=f"call_Qm3x7Tz9Kp2Lw8R{done}",
                name="pay",
                type="function_call",
            )
        else:
            text = ResponseOutputText(annotations=[], text="done", type="output_text")
            said = ResponseOutputMessage(id="m", content=[text], role="assistant", status="completed", type="message")
        return ModelResponse(output=[said], usage=Usage(requests=1), response_id=None)

    def stream_response(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError


class Desk:
    """An agent of the SDK, with or without the adapter; states travel as text, as between two processes."""

    def __init__(self, *amounts: int, guarded: bool, session: str | None = "ticket-7") -> None:
        self.paid: list[int] = []
        self.model = Script(*amounts)

        @function_tool(needs_approval=not guarded)
        def pay(amount: int) -> str:
            """Pay somebody."""
            self.paid.append(amount)
            return f"paid {amount}"

        made: Any = Agent(name="desk", model=self.model, tools=[pay])
        self.agent: Any = protect_agents(made, DECLARED, session=session) if guarded else made

    def ask(self) -> str:
        result = asyncio.run(Runner.run(self.agent, "pay"))
        assert result.interruptions
        return result.to_state().to_string()

    def resume(self, saved: str, **approve: Any) -> Any:
        async def main() -> Any:
            state: Any = await RunState.from_string(self.agent, saved)
            for item in state.get_interruptions():
                state.approve(item, **approve)
            return await Runner.run(self.agent, state)

        return asyncio.run(main())


@pytest.mark.parametrize("session", ["ticket-7", None])
def test_openai_agents_approve_what_they_have_shown(app: Antiphon, session: str | None) -> None:
    desk = Desk(10, guarded=True, session=session)
    saved = desk.ask()
    (waiting,) = app.approvals("me").list()
    assert (waiting["tool"], waiting["arguments"], desk.paid) == ("tools/pay", '{"amount":10}', [])
    assert desk.resume(saved).final_output == "done"
    assert (desk.paid, _acts(app)) == ([10], [("approve", "openai-agents", "openai-agents")])


def test_openai_agents_a_resume_that_is_repeated_pays_once(app: Antiphon) -> None:
    """agent-framework#7458: the tool has run, the model fails, the resume is sent again."""
    for guarded, paid in ((False, [10, 10]), (True, [10])):
        desk = Desk(10, guarded=guarded)
        saved = desk.ask()
        desk.model.fails = 1
        with pytest.raises(ConnectionError):
            desk.resume(saved)
        assert desk.resume(saved).final_output == "done"
        assert desk.paid == paid, f"guarded: {guarded}"


def test_openai_agents_always_approve_is_for_what_was_shown(app: Antiphon) -> None:
    """The second call was shown to nobody."""
    for guarded, paid in ((False, [10, 9_999]), (True, [10])):
        desk = Desk(10, 9_999, guarded=guarded)
        assert desk.resume(desk.ask(), always_approve=True).final_output == "done"
        assert desk.paid == paid, f"guarded: {guarded}"
    (waiting,) = app.approvals("me").list()
    assert waiting["arguments"] == '{"amount":9999}'


def test_openai_agents_go_on_when_somebody_decided_elsewhere(app: Antiphon) -> None:
    desk = Desk(10, guarded=True)
    saved = desk.ask()
    (waiting,) = app.approvals("me").list()
    app.approvals("grace").decide(waiting["id"], "deny", reason="paid already")
    assert desk.resume(saved).final_output == "done"
    assert desk.paid == []


@pytest.mark.parametrize("kind", ["openai", "pydantic"])
def test_a_deferred_run_replays_strictly(app: Antiphon, kind: str) -> None:
    paid: list[list[int]] = []

    def agent() -> str:
        if kind == "openai":
            desk = Desk(10, guarded=True)
            paid.append(desk.paid)
            return str(desk.resume(desk.ask()).final_output)
        clerk = Clerk(guarded=True)
        paid.append(clerk.paid)
        clerk.ask()
        return str(clerk.resume())

    run = app.record(agent)
    assert run.output == "done"
    report = replay(run, app=app, function=agent, mode="strict")
    assert report.divergences == [], report.divergences
    assert paid == [[10], []]


# -- MCP -------------------------------------------------------------------------------------------------------------


def test_mcp_names_the_approval_and_runs_once(app: Antiphon) -> None:
    """The protocol lets a server ask, not a client: the error names the approval, and the same call goes on."""
    paid: list[int] = []

    async def main() -> None:
        server = MCPServer("bank")

        @server.tool()
        def pay(amount: int) -> str:
            paid.append(amount)
            return f"paid {amount}"

        async with Client(server) as client:
            tools: Any = mcp_adapter.protect(client, server="bank", tools=DECLARED, session="ticket-7")
            asked = await tools.call_tool("pay", {"amount": 10}, call_id="call_1")
            question = asked.meta["antiphon/approval"]
            assert asked.is_error
            assert question["approvalId"] in asked.content[0].text
            assert (question["tool"], question["arguments"]) == ("mcp.bank/pay", '{"amount":10}')
            app.approvals("grace").decide(question["approvalId"], "approve")
            other = await tools.call_tool("pay", {"amount": 9_999}, call_id="call_2")
            assert other.is_error
            for _ in range(2):
                done = await tools.call_tool("pay", {"amount": 10}, call_id="call_1")
                assert (done.is_error, done.content[0].text) == (False, "paid 10")

    asyncio.run(main())
    assert paid == [10]
