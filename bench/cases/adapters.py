"""One model call through each framework: alone (its floor), and recorded by our adapter into a run in memory."""


def _open_run():
    """A run in memory, opened where every task and round of the case sees it."""
    from antiphon import Antiphon
    from antiphon.stores import MemoryStore

    return Antiphon(store=MemoryStore()).run("bench").__enter__()


def _pydantic_agent(capabilities):
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelResponse, TextPart
    from pydantic_ai.models.function import FunctionModel

    model = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("hello there")]))
    return Agent(model, instructions="Be brief.", capabilities=capabilities)


def pydantic_ai():
    agent = _pydantic_agent([])

    async def once():
        assert (await agent.run("hi")).output == "hello there"

    return once


def pydantic_ai_recorded():
    from antiphon.adapters.pydantic_ai import Reliable

    agent = _pydantic_agent([Reliable(session="s")])
    _open_run()

    async def once():
        assert (await agent.run("hi")).output == "hello there"

    return once


def _agents_agent():
    from agents import Agent, Model, ModelResponse, Usage, set_tracing_disabled
    from openai.types.responses import ResponseOutputMessage, ResponseOutputText

    set_tracing_disabled(True)

    class Fixed(Model):
        async def get_response(self, *args, **options):
            text = ResponseOutputText(type="output_text", text="hello there", annotations=[])
            said = ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[text])
            return ModelResponse(output=[said], usage=Usage(), response_id=None)

        def stream_response(self, *args, **options):
            raise NotImplementedError

    return Agent(name="desk", instructions="Be brief.", model=Fixed())


def openai_agents():
    from agents import Runner

    agent = _agents_agent()

    async def once():
        assert (await Runner.run(agent, "hi")).final_output == "hello there"

    return once


def openai_agents_recorded():
    from agents import Runner

    from antiphon.adapters.openai_agents import protect

    agent = protect(_agents_agent(), session="s")
    _open_run()

    async def once():
        assert (await Runner.run(agent, "hi")).final_output == "hello there"

    return once


def _langchain_agent(middleware):
    from langchain.agents import create_agent
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage
    from langchain_core.outputs import ChatGeneration, ChatResult

    class Fixed(BaseChatModel):
        model: str = "fixed"

        @property
        def _llm_type(self):
            return "fixed"

        def _generate(self, messages, stop=None, run_manager=None, **options):
            return ChatResult(generations=[ChatGeneration(message=AIMessage("hello there"))])

    return create_agent(Fixed(), system_prompt="Be brief.", middleware=middleware)


def langgraph():
    agent = _langchain_agent([])

    def once():
        assert agent.invoke({"messages": [("user", "hi")]})["messages"][-1].content == "hello there"

    return once


def langgraph_recorded():
    from antiphon.adapters.langchain import AntiphonMiddleware

    agent = _langchain_agent([AntiphonMiddleware()])
    _open_run()

    def once():
        assert agent.invoke({"messages": [("user", "hi")]})["messages"][-1].content == "hello there"

    return once


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


def langgraph_hooked():
    """The same agent with a middleware that does nothing: what the framework takes for its own hook."""
    from langchain.agents.middleware import AgentMiddleware

    class Nothing(AgentMiddleware):
        def wrap_model_call(self, request, handler):
            return handler(request)

        def wrap_tool_call(self, request, handler):
            return handler(request)

    agent = _langchain_agent([Nothing()])

    def once():
        assert agent.invoke({"messages": [("user", "hi")]})["messages"][-1].content == "hello there"

    return once


def pydantic_ai_hooked():
    """The same agent with a capability that does nothing."""
    from pydantic_ai.capabilities import AbstractCapability

    class Nothing(AbstractCapability):
        async def wrap_model_request(self, ctx, *, request_context, handler):
            return await handler(request_context)

        async def wrap_tool_execute(self, ctx, *, call, tool_def, args, handler):
            return await handler(args)

    agent = _pydantic_agent([Nothing()])

    async def once():
        assert (await agent.run("hi")).output == "hello there"

    return once
