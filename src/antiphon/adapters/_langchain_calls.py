"""Calls of LangChain: tools behind the gateway, chat models recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    BaseMessageChunk,
)
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableBinding
from langchain_core.tools import BaseTool
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt.tool_node import ToolCallRequest

from antiphon.adapters._calls import Given, GuardedTools, Place, Through, specs_of
from antiphon.adapters._langchain_data import interrupt_again, pack_result, paused, plain_asking, told, unpack_result
from antiphon.adapters._model import (
    Asking,
    Codec,
    ask,
    ask_async,
    recording_scope,
    stream,
    stream_async,
)
from antiphon.contract.spec import ToolSpec
from antiphon.errors import Paused

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
        return told(given.message, call, status="error")


guarded_call: ContextVar[str | None] = ContextVar("antiphon_guarded_tool_call", default=None)
"""The call that is in the tool now; what sees it further inside leaves it alone."""


@contextmanager
def _guarded_here(call: str | None) -> Iterator[None]:
    token = guarded_call.set(call)
    try:
        yield
    finally:
        guarded_call.reset(token)


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
            return map(as_chunk, model.stream(messages, stop=stop, **options))

        def send() -> Iterator[Any]:
            return call(self.inner, messages)

        scope = recording_scope()
        asked = plain_asking(self.inner, messages, stop, options, call)
        chunks = send() if scope is None else stream(scope, asked, send, CODEC)
        for chunk in chunks:
            yield ChatGenerationChunk(message=chunk)

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        async def call(model: Any, messages: Sequence[BaseMessage]) -> AsyncIterator[Any]:
            async for chunk in model.astream(messages, stop=stop, **options):
                yield as_chunk(chunk)

        def send() -> AsyncIterator[Any]:
            return call(self.inner, messages)

        scope = recording_scope()
        asked = plain_asking(self.inner, messages, stop, options, call)
        chunks = send() if scope is None else stream_async(scope, asked, send, CODEC)
        async for chunk in chunks:
            yield ChatGenerationChunk(message=chunk)


def as_chunk(chunk: Any) -> Any:
    """A model that does not stream gives its whole message at once."""
    if isinstance(chunk, BaseMessageChunk):
        return chunk
    return AIMessageChunk(**{**chunk.model_dump(exclude={"type"}), "chunk_position": "last"})


def _whole(chunks: Sequence[Any]) -> Any:
    total: Any = None
    for chunk in chunks:
        total = chunk if total is None else total + chunk
    return AIMessage("") if total is None else total


CODEC = Codec(
    lambda chunk: chunk.model_dump(mode="json"),
    lambda data: AIMessageChunk.model_validate(data),
    _whole,
    lambda said: [as_chunk(said).model_dump(mode="json")],
)


def chat_model(inner: BaseChatModel) -> RecordedChatModel:
    """The chat model with its calls recorded, streams included; it is used like the one inside."""
    return inner if isinstance(inner, RecordedChatModel) else RecordedChatModel(inner=inner)
