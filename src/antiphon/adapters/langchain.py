"""LangChain and LangGraph: model calls recorded and replayed, tool calls made at most once per intent.

>>> from langchain.agents import create_agent                                   # doctest: +SKIP
>>> from antiphon.adapters.langchain import AntiphonMiddleware
>>> agent = create_agent(model, tools=[send_email], middleware=[AntiphonMiddleware()])

A ``thread_id`` in the config makes the session of the calls: after an interrupt or a crash a resumed thread is given
the results of calls that finished, and they are not run again.
"""

from __future__ import annotations

import functools
import inspect
import json
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar, overload

from antiphon.adapters._need import need

need("langgraph")
need("langchain")

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse  # noqa: E402
from langchain_core.language_models import BaseChatModel  # noqa: E402
from langchain_core.messages import (  # noqa: E402
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    BaseMessageChunk,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    message_to_dict,
    messages_from_dict,
)
from langchain_core.messages.utils import convert_to_messages, convert_to_openai_messages  # noqa: E402
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult  # noqa: E402
from langchain_core.runnables import Runnable, RunnableBinding  # noqa: E402
from langchain_core.tools import BaseTool  # noqa: E402
from langchain_core.utils.function_calling import convert_to_openai_tool  # noqa: E402
from langgraph.errors import GraphInterrupt  # noqa: E402
from langgraph.prebuilt import ToolNode  # noqa: E402
from langgraph.prebuilt.tool_node import ToolCallRequest  # noqa: E402
from langgraph.types import Command, Interrupt  # noqa: E402

from antiphon._gateway import codec  # noqa: E402
from antiphon._recording.manifest import entry_of  # noqa: E402
from antiphon._recording.run import Run, active_run  # noqa: E402
from antiphon._scope import RunScope, current_scope  # noqa: E402
from antiphon.adapters._calls import Given, GuardedTools, Place, Through, specs_of  # noqa: E402
from antiphon.adapters._model import (  # noqa: E402
    NATIVE,
    Asking,
    Codec,
    ask,
    ask_async,
    chat_response,
    recording_scope,
    stream,
    stream_async,
)
from antiphon.contract.spec import ToolSpec  # noqa: E402
from antiphon.errors import Paused  # noqa: E402
from antiphon.ops import storage  # noqa: E402
from antiphon.ops.app import Antiphon, current, using  # noqa: E402
from antiphon.ops.artifacts import export_run  # noqa: E402

__all__ = ["AntiphonMiddleware", "ToolCalls", "chat_model", "protect", "tool_node", "trace_agent", "trace_agent_invoke"]

Tools = Iterable[ToolSpec] | Mapping[str, Mapping[str, Any]] | None


class ToolCalls:
    """Wraps tool calls: what ``ToolNode(wrap_tool_call=…, awrap_tool_call=…)`` takes."""

    def __init__(self, tools: Tools = None, *, app: Through | None = None, session: str | None = None) -> None:
        self._guard = GuardedTools(specs_of(tools), app)
        self._session = session

    def wrap(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """One synchronous tool call."""
        live = _Live()

        def body(params: dict[str, Any]) -> Any:
            try:
                with _guarded_here(request.tool_call["id"]):
                    return live.keep(handler(_with_arguments(request, params)))
            except GraphInterrupt as interrupt:
                raise paused(interrupt) from interrupt

        try:
            given = self._guard.call(self._spec(request), request.tool_call["args"], self._place(request), body)
        except Paused as pause:
            raise interrupt_again(pause.message) from None
        return live.result(given, request.tool_call)

    async def awrap(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        """One asynchronous tool call."""
        live = _Live()

        async def body(params: dict[str, Any]) -> Any:
            try:
                with _guarded_here(request.tool_call["id"]):
                    return live.keep(await handler(_with_arguments(request, params)))
            except GraphInterrupt as interrupt:
                raise paused(interrupt) from interrupt

        spec, place = self._spec(request), self._place(request)
        try:
            given = await self._guard.call_async(spec, request.tool_call["args"], place, body)
        except Paused as pause:
            raise interrupt_again(pause.message) from None
        return live.result(given, request.tool_call)

    def run(self, tool: BaseTool, given: Any, options: Mapping[str, Any], body: Callable[[Any], Any]) -> Any:
        """One call of ``BaseTool.run``."""
        live, call = _Live(), {"id": options.get("tool_call_id"), "name": tool.name}

        def made(params: dict[str, Any]) -> Any:
            try:
                with _guarded_here(call["id"]):
                    return live.keep(body({**given, **params} if isinstance(given, dict) else given))
            except GraphInterrupt as interrupt:
                raise paused(interrupt) from interrupt

        spec, place = self._guard.spec(tool.name, tool.description), self._traced_place(options)
        try:
            found = self._guard.call(spec, _arguments(tool, given), place, made)
        except Paused as pause:
            raise interrupt_again(pause.message) from None
        return live.result(found, call)

    async def arun(self, tool: BaseTool, given: Any, options: Mapping[str, Any], body: Callable[[Any], Any]) -> Any:
        """One call of ``BaseTool.arun``."""
        live, call = _Live(), {"id": options.get("tool_call_id"), "name": tool.name}

        async def made(params: dict[str, Any]) -> Any:
            try:
                with _guarded_here(call["id"]):
                    return live.keep(await body({**given, **params} if isinstance(given, dict) else given))
            except GraphInterrupt as interrupt:
                raise paused(interrupt) from interrupt

        spec, place = self._guard.spec(tool.name, tool.description), self._traced_place(options)
        try:
            found = await self._guard.call_async(spec, _arguments(tool, given), place, made)
        except Paused as pause:
            raise interrupt_again(pause.message) from None
        return live.result(found, call)

    def _traced_place(self, options: Mapping[str, Any]) -> Place:
        thread = ((options.get("config") or {}).get("configurable") or {}).get("thread_id")
        return Place(self._session or (None if thread is None else str(thread)), options.get("tool_call_id"))

    def _spec(self, request: ToolCallRequest) -> ToolSpec:
        tool = request.tool
        return self._guard.spec(request.tool_call["name"], "" if tool is None else tool.description)

    def _place(self, request: ToolCallRequest) -> Place:
        config = getattr(request.runtime, "config", None) or {}
        thread = (config.get("configurable") or {}).get("thread_id")
        session = self._session or (None if thread is None else str(thread))
        return Place(session, request.tool_call["id"], _message_id(request))


class _Live:
    """The result as the tool gave it in this process; a reused or replayed one is made from the record."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def keep(self, result: Any) -> Any:
        self._kept = [result]
        return pack_result(result)

    def result(self, given: Given, call: Mapping[str, Any]) -> Any:
        if given.ok:
            return self._kept[0] if self._kept else unpack_result(given.value, call)
        if given.code == Paused.code:
            raise interrupt_again(given.message)
        return _told(given.message, call, status="error")


_guarded: ContextVar[str | None] = ContextVar("antiphon_guarded_tool_call", default=None)
"""The call that is in the tool now; what sees it further inside leaves it alone."""


@contextmanager
def _guarded_here(call: str | None) -> Iterator[None]:
    token = _guarded.set(call)
    try:
        yield
    finally:
        _guarded.reset(token)


def _told(words: str, call: Mapping[str, Any], **options: Any) -> Any:
    """A sentence in place of a result, for the model that asked; for code that called the tool itself, the words."""
    if call["id"] is None:
        return words
    return ToolMessage(words, tool_call_id=call["id"], name=call["name"], **options)


def _arguments(tool: BaseTool, given: Any) -> dict[str, Any]:
    """What the model gave a tool, without what the graph puts in (state, store, runtime)."""
    if not isinstance(given, dict):
        return {"input": given}
    schema: Any = tool.tool_call_schema
    known = schema.get("properties", {}) if isinstance(schema, dict) else schema.model_fields
    return {name: value for name, value in given.items() if name in known}


def _with_arguments(request: ToolCallRequest, params: dict[str, Any]) -> ToolCallRequest:
    return request.override(tool_call={**request.tool_call, "args": params})


def _message_id(request: ToolCallRequest) -> str | None:
    """The id of the model's message that asked for the call; it is the same after a resume."""
    state = request.state
    messages = state.get("messages") if isinstance(state, Mapping) else state
    if messages is not None and not isinstance(messages, Sequence):
        messages = getattr(state, "messages", None)
    for message in reversed(messages or ()):
        if isinstance(message, AIMessage) and any(call["id"] == request.tool_call["id"] for call in message.tool_calls):
            return message.id
    return None


def tool_node(tools: Sequence[Any], specs: Tools = None, *, app: Antiphon | None = None, **options: Any) -> ToolNode:
    """A ``ToolNode`` whose calls go through the gateway; *specs* declare the tools, *options* are ToolNode's own."""
    calls = ToolCalls(specs, app=app)
    return ToolNode(tools, wrap_tool_call=calls.wrap, awrap_tool_call=calls.awrap, **options)


class AntiphonMiddleware(AgentMiddleware[Any, Any, Any]):
    """For ``create_agent``: records and replays model calls, sends tool calls through the gateway.

    *tools* declares them, as specs or as ``{"send_email": {"idempotent": False}}``; a tool that is not declared counts
    as one that must not be repeated.
    """

    def __init__(self, tools: Tools = None, *, app: Through | None = None, session: str | None = None) -> None:
        super().__init__()
        self._calls = ToolCalls(tools, app=app, session=session)

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """Ask the model, or the replay."""
        scope = recording_scope()
        if scope is None:
            return handler(request)
        return ask(scope, _asking(request, handler), lambda: handler(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]
    ) -> Any:
        """The same for ``ainvoke``."""
        scope = recording_scope()
        if scope is None:
            return await handler(request)
        return await ask_async(scope, _asking(request, handler), lambda: handler(request))

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Make the call at most once."""
        return self._calls.wrap(request, handler)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """The same for ``ainvoke``."""
        return await self._calls.awrap(request, handler)


def _asking(request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
    system = [] if request.system_message is None else [request.system_message]
    settings = dict(request.model_settings)
    if request.tool_choice is not None:
        settings["tool_choice"] = request.tool_choice
    body = request_body(request.model, [*system, *request.messages], request.tools, settings)
    schema = getattr(request.response_format, "schema", request.response_format)

    def pack(response: Any) -> dict[str, Any]:
        if isinstance(response, AIMessage):
            return pack_messages([response])
        return pack_messages(response.result, response.structured_response)

    def unpack(value: dict[str, Any]) -> Any:
        structured = value.get(NATIVE, {}).get("structured")
        validate = getattr(schema, "model_validate", None)
        if structured is not None and callable(validate):
            structured = validate(structured)
        return ModelResponse(result=unpack_messages(value), structured_response=structured)

    def change(wanted: dict[str, Any]) -> Callable[[], Any]:
        changed = request.override(model=_set(request.model, wanted))
        if "messages" in wanted:
            changed = changed.override(system_message=SystemMessage(wanted["messages"][0]["content"]))
        return lambda: handler(changed)

    return asking(body, request.model, pack, unpack, change)


# -- a chat model, for code that uses no middleware ---------------------------------------------------------------


class RecordedChatModel(BaseChatModel):
    """Wraps another chat model. Use :func:`chat_model`."""

    inner: BaseChatModel

    @property
    def _llm_type(self) -> str:
        return f"antiphon-{self.inner._llm_type}"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Runnable[Any, AIMessage]:
        """Bind the tools as the inner model's own package writes them."""
        bound = self.inner.bind_tools(tools, **options)
        return self.bind(**bound.kwargs) if isinstance(bound, RunnableBinding) else self.bind(tools=list(tools))

    def _asking(
        self, method: str, messages: Sequence[BaseMessage], stop: list[str] | None, options: dict[str, Any]
    ) -> Asking:
        def call(model: Any, messages: Sequence[BaseMessage]) -> Any:
            return getattr(model, method)(messages, stop=stop, **options)

        return plain_asking(self.inner, messages, stop, options, call)

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        def send() -> Any:
            return self.inner.invoke(messages, stop=stop, **options)

        scope = recording_scope()
        said = send() if scope is None else ask(scope, self._asking("invoke", messages, stop, options), send)
        return ChatResult(generations=[ChatGeneration(message=said)])

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        async def send() -> Any:
            return await self.inner.ainvoke(messages, stop=stop, **options)

        scope = recording_scope()
        asked = self._asking("ainvoke", messages, stop, options)
        said = await send() if scope is None else await ask_async(scope, asked, send)
        return ChatResult(generations=[ChatGeneration(message=said)])

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        def call(model: Any, messages: Sequence[BaseMessage]) -> Iterator[Any]:
            return map(_chunk, model.stream(messages, stop=stop, **options))

        def send() -> Iterator[Any]:
            return call(self.inner, messages)

        scope = recording_scope()
        asked = plain_asking(self.inner, messages, stop, options, call)
        chunks = send() if scope is None else stream(scope, asked, send, _CODEC)
        for chunk in chunks:
            yield ChatGenerationChunk(message=chunk)

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        async def call(model: Any, messages: Sequence[BaseMessage]) -> AsyncIterator[Any]:
            async for chunk in model.astream(messages, stop=stop, **options):
                yield _chunk(chunk)

        def send() -> AsyncIterator[Any]:
            return call(self.inner, messages)

        scope = recording_scope()
        asked = plain_asking(self.inner, messages, stop, options, call)
        chunks = send() if scope is None else stream_async(scope, asked, send, _CODEC)
        async for chunk in chunks:
            yield ChatGenerationChunk(message=chunk)


def _chunk(chunk: Any) -> Any:
    """A model that does not stream gives its whole message at once."""
    if isinstance(chunk, BaseMessageChunk):
        return chunk
    return AIMessageChunk(**{**chunk.model_dump(exclude={"type"}), "chunk_position": "last"})


def _whole(chunks: Sequence[Any]) -> Any:
    total: Any = None
    for chunk in chunks:
        total = chunk if total is None else total + chunk
    return AIMessage("") if total is None else total


_CODEC = Codec(
    lambda chunk: chunk.model_dump(mode="json"),
    lambda data: AIMessageChunk.model_validate(data),
    _whole,
    lambda said: [_chunk(said).model_dump(mode="json")],
)


def chat_model(inner: BaseChatModel) -> RecordedChatModel:
    """The chat model with its calls recorded, streams included; it is used like the one inside."""
    return inner if isinstance(inner, RecordedChatModel) else RecordedChatModel(inner=inner)


@overload
def protect(
    obj: None = None, *, gateway: Through | None = None, tools: Tools = None, session: str | None = None
) -> AntiphonMiddleware: ...


@overload
def protect(
    obj: BaseChatModel, *, gateway: Through | None = None, tools: Tools = None, session: str | None = None
) -> RecordedChatModel: ...


@overload
def protect(
    obj: Sequence[Any], *, gateway: Through | None = None, tools: Tools = None, session: str | None = None
) -> ToolNode: ...


def protect(
    obj: BaseChatModel | Sequence[Any] | None = None,
    *,
    gateway: Through | None = None,
    tools: Tools = None,
    session: str | None = None,
) -> AntiphonMiddleware | RecordedChatModel | ToolNode:
    """What protects an agent: the middleware for ``create_agent``, or the parts of a graph of your own.

    Without an object, the middleware: model calls recorded, tool calls behind the gateway. A chat model comes back
    recorded; a list of tools comes back as a ``ToolNode`` whose calls go through the gateway. *tools* declares them, as
    specs or as ``{"send_email": {"idempotent": False}}``; one that is not declared counts as one that must not be
    repeated. *gateway* is a gateway or an ``Antiphon`` (default: the current one); *session* an id that is the same
    after a restart (default: the ``thread_id``).
    """
    if obj is None:
        return AntiphonMiddleware(tools, app=gateway, session=session)
    if isinstance(obj, BaseChatModel):
        return chat_model(obj)
    calls = ToolCalls(tools, app=gateway, session=session)
    return ToolNode(obj, wrap_tool_call=calls.wrap, awrap_tool_call=calls.awrap)


# -- a session of an agent as one run and one artifact (K2) -------------------------------------------------------


F = TypeVar("F", bound=Callable[..., Any])


CONFIGURED: Any = object()
"""Artifacts go where the configuration says: a folder, or a bucket."""


def trace_agent(
    *, name: str | None = None, artifacts: str | Path | None = CONFIGURED, app: Antiphon | None = None
) -> Callable[[F], F]:
    """Make a function, usually ``main()``, one recorded run; its artifact is kept when the function ends.

    It goes to the configured storage (``[artifacts]``), or to the folder *artifacts*; ``None`` keeps none.
    Inside a run that is open already (``antiphon run``, a replay) the function is only called.
    """

    def decorate(function: F) -> F:
        title = name or function.__name__

        @contextmanager
        def opened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Run]:
            chosen = app or current()
            given = {"args": list(args), **({"kwargs": kwargs} if kwargs else {})} if args or kwargs else None
            with _exported(chosen, title, artifacts, input=given, entry=entry_of(function), function=function) as run:
                yield run

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def traced_async(*args: Any, **kwargs: Any) -> Any:
                if current_scope() is not None:
                    return await function(*args, **kwargs)
                with opened(args, kwargs) as run:
                    async with run:
                        run.output = await function(*args, **kwargs)
                return run.output

            return traced_async  # type: ignore[return-value]

        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            if current_scope() is not None:
                return function(*args, **kwargs)
            with opened(args, kwargs) as run, run:
                run.output = function(*args, **kwargs)
            return run.output

        return traced  # type: ignore[return-value]

    return decorate


@contextmanager
def _exported(app: Antiphon, name: str, folder: str | Path | None, **options: Any) -> Iterator[Run]:
    """A run of *app*; its artifact is written when it is over, however it ends."""
    run = app.run(name, **options)
    try:
        with using(app):
            yield run
    finally:
        if folder is CONFIGURED:
            kept = storage.keep(app, run.manifest)
            if kept.trouble:
                warnings.warn(f"The artifact of run {run.id} has not been uploaded yet: {kept.trouble}", stacklevel=2)
        elif folder is not None:
            Path(folder).mkdir(parents=True, exist_ok=True)
            export_run(app, run.manifest, Path(folder) / f"{run.id}.antiphon")


def trace_agent_invoke(agent: Any, input: Any, llm: Any = None, config: Any = None, **options: Any) -> Any:  # noqa: A002
    """``agent.invoke(input)`` as one interaction of the open run; without one, as a run of its own.

    Model and tool calls of the agent are recorded, guarded and replayed, with or without the middleware. Give *llm*,
    so that model, provider, temperature and seed are known to the determinism score.
    """
    run = active_run.get()
    if run is not None:
        return _interact(run, agent, input, llm, config, options)
    with _exported(current(), _name(agent), CONFIGURED) as run, run:
        result = _interact(run, agent, input, llm, config, options)
        run.output = _said(result)
    return result


def _interact(run: Run, agent: Any, given: Any, llm: Any, config: Any, options: dict[str, Any]) -> Any:
    if llm is not None:
        run.describe(llm_config=config_of(llm))
    _hook()
    token = _traced.set(ToolCalls())
    try:
        with run.interaction(_shown(given)) as interaction:
            result = agent.invoke(given, config, **options)
            interaction.finish(_said(result))
    finally:
        _traced.reset(token)
    return result


_traced: ContextVar[ToolCalls | None] = ContextVar("antiphon_traced_agent", default=None)
"""Set while :func:`trace_agent_invoke` runs an agent: its chat models and tools are seen wherever they are used."""


def _model_scope(model: Any) -> RunScope | None:
    """The run that is to see a chat model's call, if no wrapper of ours sees it already."""
    return recording_scope() if _traced.get() is not None and not isinstance(model, RecordedChatModel) else None


@functools.cache
def _hook() -> None:
    """Let LangChain's chat models and tools ask whether they are traced; untraced, they do what they did."""
    _hook_answers(BaseChatModel)
    _hook_streams(BaseChatModel)
    _hook_tools(BaseTool)


def _hook_answers(kind: Any) -> None:
    generate, agenerate = kind._generate_with_cache, kind._agenerate_with_cache

    def result_of(said: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=said)])

    @functools.wraps(generate)
    def generated(self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        def call(model: Any, messages: Any) -> Any:
            return generate(model, list(messages), stop, run_manager, **options).generations[0].message

        scope = _model_scope(self)
        if scope is None:
            found: ChatResult = generate(self, messages, stop, run_manager, **options)
            return found
        asked = plain_asking(self, messages, stop, options, call)
        return result_of(ask(scope, asked, lambda: call(self, messages)))

    @functools.wraps(agenerate)
    async def agenerated(
        self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        async def call(model: Any, messages: Any) -> Any:
            return (await agenerate(model, list(messages), stop, run_manager, **options)).generations[0].message

        scope = _model_scope(self)
        if scope is None:
            found: ChatResult = await agenerate(self, messages, stop, run_manager, **options)
            return found
        asked = plain_asking(self, messages, stop, options, call)
        return result_of(await ask_async(scope, asked, lambda: call(self, messages)))

    kind._generate_with_cache, kind._agenerate_with_cache = generated, agenerated


def _hook_streams(kind: Any) -> None:
    stream_, astream_ = kind.stream, kind.astream

    @functools.wraps(stream_)
    def streamed(self: Any, input: Any, config: Any = None, *, stop: Any = None, **options: Any) -> Iterator[Any]:  # noqa: A002
        def call(model: Any, messages: Any) -> Iterator[Any]:
            return map(_chunk, stream_(model, messages, config, stop=stop, **options))

        scope = _model_scope(self)
        if scope is None:
            yield from stream_(self, input, config, stop=stop, **options)
            return
        messages = self._convert_input(input).to_messages()
        asked = plain_asking(self, messages, stop, options, call)
        yield from stream(scope, asked, lambda: call(self, messages), _CODEC)

    @functools.wraps(astream_)
    async def astreamed(
        self: Any,
        input: Any,  # noqa: A002
        config: Any = None,
        *,
        stop: Any = None,
        **options: Any,
    ) -> AsyncIterator[Any]:
        async def call(model: Any, messages: Any) -> AsyncIterator[Any]:
            async for chunk in astream_(model, messages, config, stop=stop, **options):
                yield _chunk(chunk)

        scope = _model_scope(self)
        if scope is None:
            async for chunk in astream_(self, input, config, stop=stop, **options):
                yield chunk
            return
        messages = self._convert_input(input).to_messages()
        asked = plain_asking(self, messages, stop, options, call)
        async for chunk in stream_async(scope, asked, lambda: call(self, messages), _CODEC):
            yield chunk

    kind.stream, kind.astream = streamed, astreamed


def _hook_tools(kind: Any) -> None:
    run_, arun_ = kind.run, kind.arun

    @functools.wraps(run_)
    def ran(self: Any, tool_input: Any, *args: Any, **options: Any) -> Any:
        def body(given: Any) -> Any:
            return run_(self, given, *args, **options)

        calls = _tool_calls(options)
        return body(tool_input) if calls is None else calls.run(self, tool_input, options, body)

    @functools.wraps(arun_)
    async def aran(self: Any, tool_input: Any, *args: Any, **options: Any) -> Any:
        async def body(given: Any) -> Any:
            return await arun_(self, given, *args, **options)

        calls = _tool_calls(options)
        return await (body(tool_input) if calls is None else calls.arun(self, tool_input, options, body))

    kind.run, kind.arun = ran, aran


def _tool_calls(options: Mapping[str, Any]) -> ToolCalls | None:
    """Who guards this call of a tool: nobody outside a traced agent, and in a call that is guarded already."""
    calls = _traced.get()
    if calls is None or current_scope() is None:
        return None
    known = options.get("tool_call_id")
    return None if known is not None and known == _guarded.get() else calls


def _name(agent: Any) -> str:
    name = getattr(agent, "name", None)
    return name if isinstance(name, str) and name else "agent"


def _shown(value: Any) -> Any:
    """An input without the random ids of its messages."""
    if isinstance(value, BaseMessage):
        return convert_to_openai_messages(value)
    if isinstance(value, Mapping):
        return {str(name): _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, (list, tuple)) else value


def _said(result: Any) -> Any:
    """What the agent answered: its output, or its last message."""
    if not isinstance(result, Mapping):
        return _shown(result)
    if "output" in result:
        return _shown(result["output"])
    messages = result.get("messages")
    if messages:
        last = messages[-1]
        return last.text if isinstance(last, BaseMessage) else _shown(last)
    return _shown(result)


# -- messages, tool results and interrupts as plain data, and back ------------------------------------------------


_SETTINGS = ("temperature", "seed", "top_p", "max_tokens", "max_completion_tokens", "stop", "tool_choice")


# -- model calls -------------------------------------------------------------------------------------------------


def vendor_of(model: Any) -> str:
    """Who serves a chat model, by the package it comes from: ``langchain_openai`` gives ``openai``."""
    kind = type(model)
    return kind.__module__.partition(".")[0].removeprefix("langchain_") or kind.__name__


def name_of(model: Any) -> str:
    """The model's name, under whichever attribute its package keeps it."""
    fields = vars(model)
    for attribute in _MODEL_NAMES:
        value = fields.get(attribute)
        if isinstance(value, str) and value:
            return value
    return type(model).__name__


def config_of(model: Any) -> dict[str, Any]:
    """What the determinism score reads off a chat model (K3)."""
    config: dict[str, Any] = {"model_name": name_of(model), "provider": vendor_of(model)}
    for name in ("temperature", "seed"):
        value = vars(model).get(name)
        if isinstance(value, (int, float)):
            config[name] = value
    return config


def request_body(
    model: Any, messages: Sequence[BaseMessage], tools: Sequence[Any] = (), settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The request in OpenAI's chat dialect, whoever serves the model. Message ids are left out: they are random."""
    spoken = []
    for message in messages:
        role, content = _ROLES.get(type(message)), message.content
        if role is not None and type(content) is str and not message.name:
            spoken.append({"role": role, "content": content})
        else:
            spoken.append(_spoken(message))
    body: dict[str, Any] = {"model": name_of(model), "messages": spoken}
    fields = vars(model)  # a chat model keeps its settings as fields; to ask for one it lacks is slow
    for name in _SETTINGS:
        value = fields.get(name)
        if value is not None and isinstance(value, (bool, int, float, str, list)):
            body[name] = value
    if tools:
        body["tools"] = [tool_body(tool) for tool in tools]
    if settings:
        body.update({name: value for name, value in settings.items() if value is not None})
    return body


_TOOLS_KEPT = 256
_tools: dict[int, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}
"""Tools by the identity of their objects, what they said of themselves, and that in OpenAI's dialect."""


def tool_body(tool: Any) -> dict[str, Any]:
    """A tool in OpenAI's dialect. To make its schema is slow, so it is made again only if the tool has changed."""
    schema = getattr(tool, "args_schema", None)
    if not isinstance(tool, BaseTool) or not isinstance(schema, type) or tool.metadata or getattr(tool, "extras", None):
        return convert_to_openai_tool(tool)
    said = (tool.name, tool.description, schema)
    known = _tools.get(id(tool))
    if known is None or known[0] is not tool or known[1] != said:
        if len(_tools) >= _TOOLS_KEPT:
            _tools.clear()
        known = _tools[id(tool)] = (tool, said, convert_to_openai_tool(tool))
    return known[2]


_ROLES = {HumanMessage: "user", SystemMessage: "system"}


def _spoken(message: BaseMessage) -> dict[str, Any]:
    """A message in OpenAI's dialect; an answer that is plain text takes the short way."""
    if type(message) is AIMessage and isinstance(message.content, str):
        if not (message.tool_calls or message.invalid_tool_calls or message.name):
            return {"role": "assistant", "content": message.content}
    spoken: Any = convert_to_openai_messages(message)
    return dict(spoken)


def _dumped(message: BaseMessage) -> dict[str, Any]:
    """A message as data, without the fields that say nothing."""
    if type(message) is AIMessage and not message.additional_kwargs:  # where objects of a provider's package may be
        data = {**vars(message), **(message.model_extra or {})}
    else:
        data = message.model_dump()
    kept = {name: value for name, value in data.items() if value or value not in _NOTHING}
    return {"type": message.type, "data": kept}


_NOTHING: tuple[Any, ...] = (None, [], {})


def asking(body: dict[str, Any], model: Any, pack: Any, unpack: Any, change: Any) -> Asking:
    """A model call of LangChain."""
    fields = vars(model)
    url = next((fields[name] for name in _URLS if isinstance(fields.get(name), str)), None)
    return Asking(
        body,
        pack,
        unpack,
        vendor_of(model),
        framework="langchain",
        settable=_settable(model.__class__),
        change=change,
        endpoint=url,
    )


def plain_asking(
    model: Any,
    messages: Sequence[BaseMessage],
    stop: list[str] | None,
    options: dict[str, Any],
    call: Callable[[Any, Sequence[BaseMessage]], Any],
) -> Asking:
    """A model call outside the middleware; *call* asks a model."""

    def change(wanted: dict[str, Any]) -> Callable[[], Any]:
        asked = list(messages)
        if "messages" in wanted:
            asked = [message for message in asked if not isinstance(message, SystemMessage)]
            asked.insert(0, SystemMessage(wanted["messages"][0]["content"]))
        return lambda: call(_set(model, wanted), asked)

    body = request_body(model, messages, options.get("tools") or (), {**options, "stop": stop})
    return asking(body, model, lambda said: pack_messages([said]), lambda value: unpack_messages(value)[0], change)


_URLS = ("openai_api_base", "anthropic_api_url", "base_url", "azure_endpoint", "endpoint_url")
_MODEL_NAMES = ("model_name", "model", "model_id", "deployment_name")


@functools.cache
def _settable(kind: type) -> tuple[str, ...]:
    """What a replay can change in a chat model: what its package keeps as a field."""
    fields = getattr(kind, "model_fields", {})
    named = ["model"] if any(name in fields for name in _MODEL_NAMES) else []
    return (*named, *(name for name in ("temperature", "seed") if name in fields), "prompt")


def _set(model: Any, wanted: Mapping[str, Any]) -> Any:
    """A copy of a chat model with another name, temperature or seed."""
    update = {name: wanted[name] for name in ("temperature", "seed") if name in wanted}
    if "model" in wanted:
        named = next(name for name in _MODEL_NAMES if isinstance(vars(model).get(name), str))
        update[named] = wanted["model"]
    return model.model_copy(update=update) if update else model


def pack_messages(messages: Sequence[BaseMessage], structured: Any = None) -> dict[str, Any]:
    """The answer of a model: in OpenAI's dialect for whoever reads the recording, and as it was for the replay."""
    said = None
    native: dict[str, Any] = {"messages": []}
    for message in messages:
        if said is None and isinstance(message, AIMessage):
            said = message
        native["messages"].append(_dumped(message))
    if structured is not None:
        native["structured"] = structured
    said = said or AIMessage("")
    spoken = _spoken(said)
    about = said.response_metadata
    usage = said.usage_metadata
    return chat_response(
        text=spoken.get("content"),
        calls=spoken.get("tool_calls") or [],
        native=native,
        model_name=about.get("model_name") or about.get("model"),
        refusal=said.additional_kwargs.get("refusal") or _refused(about),
        stop=about.get("finish_reason") or about.get("stop_reason"),
        usage=None if usage is None else (usage["input_tokens"], usage["output_tokens"]),
    )


def _refused(about: Mapping[str, Any]) -> str | None:
    """A refusal that a provider says by its stop reason."""
    reason = about.get("stop_reason") or about.get("finish_reason")
    return str(reason) if reason in ("refusal", "content_filter", "SAFETY", "guardrail_intervened") else None


def unpack_messages(value: Mapping[str, Any]) -> list[BaseMessage]:
    """The messages of a recorded answer, or of one in OpenAI's chat dialect that a function gave."""
    if NATIVE in value:
        return messages_from_dict(value[NATIVE]["messages"])
    choice = value["choices"][0]
    (said,) = convert_to_messages([{"role": "assistant", **choice["message"]}])
    if isinstance(said, AIMessage):
        usage = value.get("usage") or {}
        given, taken = usage.get("prompt_tokens") or 0, usage.get("completion_tokens") or 0
        said.usage_metadata = {"input_tokens": given, "output_tokens": taken, "total_tokens": given + taken}
        said.response_metadata = {"model_name": value.get("model"), "finish_reason": choice.get("finish_reason")}
    return [said]


# -- tool results ------------------------------------------------------------------------------------------------


def pack_result(result: Any) -> Any:
    """What a tool call gave: a message, or a command that changes the graph's state."""
    if isinstance(result, ToolMessage):
        packed = {"content": result.content, "status": result.status, "name": result.name}
        if result.artifact is not None and _keepable(result.artifact):
            packed["artifact"] = result.artifact
        return {"message": packed}
    if isinstance(result, Command):
        goto = result.goto
        update = result.update
        if isinstance(update, dict):
            update = {name: _pack_value(value) for name, value in update.items()}
        return {"command": {"graph": result.graph, "update": update, "goto": goto if goto else None}}
    return {"value": result}


def unpack_result(packed: Any, call: Mapping[str, Any]) -> Any:
    """The same again, as the answer to *call*; a sentence in its place (a blocked call) is told to the model."""
    if not isinstance(packed, Mapping) or not packed.keys() & {"message", "command", "value"}:
        return _told(packed if isinstance(packed, str) else json.dumps(packed), call)
    if "message" in packed:
        fields = dict(packed["message"])
        return ToolMessage(tool_call_id=call["id"], **{**fields, "name": fields.get("name") or call["name"]})
    if "command" in packed:
        fields = dict(packed["command"])
        update = fields["update"]
        if isinstance(update, dict):
            update = {name: _unpack_value(value) for name, value in update.items()}
        return Command(graph=fields["graph"], update=update, goto=fields["goto"] or ())
    return packed.get("value")


def _keepable(value: Any) -> bool:
    try:
        codec.encode(value)
    except codec.NotSerialisable:
        return False
    return True


def _pack_value(value: Any) -> Any:
    if isinstance(value, BaseMessage):
        return {"$message": message_to_dict(value)}
    return [_pack_value(item) for item in value] if isinstance(value, list) else value


def _unpack_value(value: Any) -> Any:
    if isinstance(value, dict) and set(value) == {"$message"}:
        return messages_from_dict([value["$message"]])[0]
    return [_unpack_value(item) for item in value] if isinstance(value, list) else value


# -- interrupts --------------------------------------------------------------------------------------------------


def paused(interrupt: GraphInterrupt) -> Paused:
    """An interrupt on its way through the gateway; its message is what a replay needs to raise it again."""
    found = interrupt.args[0] if interrupt.args else ()
    return Paused(json.dumps([{"value": item.value, "id": item.id} for item in found], default=str))


def interrupt_again(message: str) -> GraphInterrupt:
    """The recorded interrupt."""
    return GraphInterrupt(tuple(Interrupt(**item) for item in json.loads(message or "[]")))
