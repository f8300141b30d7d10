"""One model call through each framework: alone (its floor), and recorded by our adapter.

*messages* is the length of the history the call carries (questions, calls of a tool, their results, answers), *tools*
the number of function tools the agent has; *store* says where the run is recorded.
"""

import inspect
import statistics
import time

TEXT = "The invoice of the fourth quarter was paid on time, and the report about it went out the day after. "


def _open_run(store="memory"):
    """A run, opened where every task and round of the case sees it."""
    from antiphon import Antiphon
    from antiphon.stores import MemoryStore

    if store == "memory":
        return Antiphon(store=MemoryStore()).run("bench").__enter__()
    import tempfile

    from antiphon.stores import SQLiteStore

    folder = tempfile.mkdtemp(prefix="antiphon-bench-")
    return Antiphon(store=SQLiteStore(f"{folder}/runs.db", synchronous=store)).run("bench").__enter__()


def _functions(tools):
    """Plain functions with three described arguments each."""

    def made(number):
        def look(query: str, limit: int = 10, exact: bool = False) -> str:
            """Look something up and say what was found, at most *limit* lines of it."""
            return query

        look.__name__ = f"look_{number}"
        return look

    return [made(number) for number in range(tools)]


def in_turns(framework, floor="hooked", store="memory", **load):
    """A recorded call and one of the floor, in turns: what disturbs the machine disturbs both.

    The ratio is the median of the ratios of neighbours; the times (lower quartiles, in µs) are to look at.
    """
    recorded = globals()[f"{framework}_recorded"]
    ours = recorded(**load, **({} if store == "memory" else {"store": store}))
    theirs = globals()[f"{framework}_{floor}" if floor else framework](**load)
    clock = time.process_time

    def told(times):
        first, second = (sorted(found)[len(found) // 4] * 1e6 for found in zip(*times, strict=True))
        ratio = statistics.median(ours / theirs for ours, theirs in times)
        return {"ours": first, "theirs": second, "ratio": ratio}

    async def run_async(n):
        times = []
        for _ in range(n):
            start = clock()
            await ours()
            middle = clock()
            await theirs()
            times.append((middle - start, clock() - middle))
        return told(times)

    def run(n):
        times = []
        for _ in range(n):
            start = clock()
            ours()
            middle = clock()
            theirs()
            times.append((middle - start, clock() - middle))
        return told(times)

    return run_async if inspect.iscoroutinefunction(ours) else run


# -- Pydantic AI -------------------------------------------------------------------------------------------------


def _pydantic_case(capabilities, messages, tools):
    from pydantic_ai import Agent
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )
    from pydantic_ai.models.function import FunctionModel

    model = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("hello there")]))
    agent = Agent(model, instructions="Be brief.", capabilities=capabilities, tools=_functions(tools))
    history = []
    for number in range(messages // 4):
        called = {"tool_name": "look_0", "tool_call_id": f"c{number}"}
        history += [
            ModelRequest(parts=[UserPromptPart(TEXT)]),
            ModelResponse(parts=[ToolCallPart(args={"query": f"q{number}"}, **called)]),
            ModelRequest(parts=[ToolReturnPart(content=TEXT, **called)]),
            ModelResponse(parts=[TextPart(TEXT)]),
        ]

    async def once():
        assert (await agent.run("hi", message_history=history or None)).output == "hello there"

    return once


def pydantic_ai(messages=0, tools=0):
    return _pydantic_case([], messages, tools)


def pydantic_ai_recorded(messages=0, tools=0, store="memory"):
    from antiphon.adapters.pydantic_ai import Reliable

    once = _pydantic_case([Reliable(session="s")], messages, tools)
    _open_run(store)
    return once


def pydantic_ai_hooked(messages=0, tools=0):
    """The same agent with a capability that does nothing."""
    from pydantic_ai.capabilities import AbstractCapability

    class Nothing(AbstractCapability):
        async def wrap_model_request(self, ctx, *, request_context, handler):
            return await handler(request_context)

        async def wrap_tool_execute(self, ctx, *, call, tool_def, args, handler):
            return await handler(args)

    return _pydantic_case([Nothing()], messages, tools)


# -- OpenAI Agents -----------------------------------------------------------------------------------------------


def _agents_case(protect, messages, tools):
    from agents import Agent, Model, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    set_tracing_disabled(True)

    class Fixed(Model):
        async def get_response(self, *args, **options):
            text = ResponseOutputText(type="output_text", text="hello there", annotations=[])
            said = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
            return ModelResponse(output=[said], usage=Usage(), response_id=None)

        def stream_response(self, *args, **options):
            raise NotImplementedError

    agent = Agent(
        name="desk",
        instructions="Be brief.",
        model=Fixed(),
        tools=[function_tool(function) for function in _functions(tools)],
    )
    agent = protect(agent)
    asked = "hi" if not messages else []
    for number in range(messages // 4):
        arguments = f'{{"query": "q{number}"}}'
        answer = [{"type": "output_text", "text": TEXT, "annotations": []}]
        asked += [
            {"role": "user", "content": TEXT},
            {"type": "function_call", "call_id": f"c{number}", "name": "look_0", "arguments": arguments},
            {"type": "function_call_output", "call_id": f"c{number}", "output": TEXT},
            {"type": "message", "id": f"m{number}", "role": "assistant", "status": "completed", "content": answer},
        ]

    async def once():
        assert (await Runner.run(agent, asked)).final_output == "hello there"

    return once


def openai_agents(messages=0, tools=0):
    return _agents_case(lambda agent: agent, messages, tools)


def openai_agents_hooked(messages=0, tools=0):
    """The same agent with a model that hands on to its own."""
    from agents import Model

    class Nothing(Model):
        def __init__(self, inner):
            self._inner = inner

        async def get_response(self, *args, **options):
            return await self._inner.get_response(*args, **options)

        def stream_response(self, *args, **options):
            return self._inner.stream_response(*args, **options)

    return _agents_case(lambda agent: agent.clone(model=Nothing(agent.model)), messages, tools)


def openai_agents_recorded(messages=0, tools=0, store="memory"):
    from antiphon.adapters.openai_agents import protect

    once = _agents_case(lambda agent: protect(agent, session="s"), messages, tools)
    _open_run(store)
    return once


# -- LangGraph ---------------------------------------------------------------------------------------------------


def _langchain_case(middleware, messages, tools):
    from langchain.agents import create_agent
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    class Fixed(BaseChatModel):
        model: str = "fixed"

        @property
        def _llm_type(self):
            return "fixed"

        def bind_tools(self, tools, **options):
            return self

        def _generate(self, messages, stop=None, run_manager=None, **options):
            return ChatResult(generations=[ChatGeneration(message=AIMessage("hello there"))])

    agent = create_agent(Fixed(), _functions(tools), system_prompt="Be brief.", middleware=middleware)
    asked = [("user", "hi")] if not messages else []
    for number in range(messages // 4):
        call = {"name": "look_0", "args": {"query": f"q{number}"}, "id": f"c{number}"}
        asked += [
            HumanMessage(TEXT),
            AIMessage("", tool_calls=[call]),
            ToolMessage(TEXT, tool_call_id=f"c{number}", name="look_0"),
            AIMessage(TEXT),
        ]

    def once():
        assert agent.invoke({"messages": asked})["messages"][-1].content == "hello there"

    return once


def langgraph(messages=0, tools=0):
    return _langchain_case([], messages, tools)


def langgraph_recorded(messages=0, tools=0, store="memory"):
    from antiphon.adapters.langchain import AntiphonMiddleware

    once = _langchain_case([AntiphonMiddleware()], messages, tools)
    _open_run(store)
    return once


def langgraph_hooked(messages=0, tools=0):
    """The same agent with a middleware that does nothing: what the framework takes for its own hook."""
    from langchain.agents.middleware import AgentMiddleware

    class Nothing(AgentMiddleware):
        def wrap_model_call(self, request, handler):
            return handler(request)

        def wrap_tool_call(self, request, handler):
            return handler(request)

    return _langchain_case([Nothing()], messages, tools)


# -- OpenAI SDK --------------------------------------------------------------------------------------------------


def _openai_client(wrapped):
    import httpx2
    import openai

    import antiphon

    answer = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hello there"}}],
    }
    fixed = httpx2.MockTransport(lambda request: httpx2.Response(200, json=answer))
    if wrapped:
        return antiphon.wrap(openai.OpenAI(api_key="none"), inner=fixed)
    return openai.OpenAI(api_key="none", http_client=httpx2.Client(transport=fixed), max_retries=0)


def openai_sdk():
    client = _openai_client(False)

    def once():
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])

    return once


def openai_sdk_recorded():
    client = _openai_client(True)
    _open_run()

    def once():
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])

    return once
