"""LangChain and LangGraph: model calls recorded and replayed, tool calls made at most once per intent.

>>> from langchain.agents import create_agent                                   # doctest: +SKIP
>>> from antiphon.adapters.langchain import AntiphonMiddleware
>>> agent = create_agent(model, tools=[send_email], middleware=[AntiphonMiddleware()])

A ``thread_id`` in the config makes the session of the calls: after an interrupt or a crash a resumed thread is given
the results of calls that finished, and they are not run again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from antiphon.adapters._need import need

need("langgraph")
need("langchain")

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse  # noqa: E402
from langchain_core.messages import AIMessage, ToolMessage  # noqa: E402
from langgraph.errors import GraphInterrupt  # noqa: E402
from langgraph.prebuilt import ToolNode  # noqa: E402
from langgraph.prebuilt.tool_node import ToolCallRequest  # noqa: E402

from antiphon.adapters import _langchain as plain  # noqa: E402
from antiphon.adapters._calls import Given, Guard, Place, specs_of  # noqa: E402
from antiphon.adapters._langchain_model import chat_model  # noqa: E402
from antiphon.adapters._langchain_trace import trace_agent, trace_agent_invoke  # noqa: E402
from antiphon.adapters._model import NATIVE, ask, ask_async  # noqa: E402
from antiphon.adapters._seam import recording_scope  # noqa: E402
from antiphon.contract.spec import ToolSpec  # noqa: E402
from antiphon.errors import Paused  # noqa: E402
from antiphon.ops.app import Antiphon  # noqa: E402

__all__ = ["AntiphonMiddleware", "ToolCalls", "chat_model", "tool_node", "trace_agent", "trace_agent_invoke"]

Tools = Iterable[ToolSpec] | Mapping[str, Mapping[str, Any]] | None


class ToolCalls:
    """Wraps tool calls: what ``ToolNode(wrap_tool_call=…, awrap_tool_call=…)`` takes."""

    def __init__(self, tools: Tools = None, *, app: Antiphon | None = None, session: str | None = None) -> None:
        self._guard = Guard(specs_of(tools), app)
        self._session = session

    def wrap(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """One synchronous tool call."""
        live = _Live()

        def body(params: dict[str, Any]) -> Any:
            try:
                return live.keep(handler(_with_arguments(request, params)))
            except GraphInterrupt as interrupt:
                raise plain.paused(interrupt) from interrupt

        try:
            given = self._guard.call(self._spec(request), request.tool_call["args"], self._place(request), body)
        except Paused as pause:
            raise plain.interrupt_again(pause.message) from None
        return live.result(given, request)

    async def awrap(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        """One asynchronous tool call."""
        live = _Live()

        async def body(params: dict[str, Any]) -> Any:
            try:
                return live.keep(await handler(_with_arguments(request, params)))
            except GraphInterrupt as interrupt:
                raise plain.paused(interrupt) from interrupt

        spec, place = self._spec(request), self._place(request)
        try:
            given = await self._guard.call_async(spec, request.tool_call["args"], place, body)
        except Paused as pause:
            raise plain.interrupt_again(pause.message) from None
        return live.result(given, request)

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
        return plain.pack_result(result)

    def result(self, given: Given, request: ToolCallRequest) -> Any:
        call = request.tool_call
        if given.ok:
            return self._kept[0] if self._kept else plain.unpack_result(given.value, call)
        if given.code == Paused.code:
            raise plain.interrupt_again(given.message)
        return ToolMessage(given.message, tool_call_id=call["id"], name=call["name"], status="error")


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

    def __init__(self, tools: Tools = None, *, app: Antiphon | None = None, session: str | None = None) -> None:
        super().__init__()
        self._calls = ToolCalls(tools, app=app, session=session)

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """Ask the model, or the replay."""
        scope = recording_scope()
        if scope is None:
            return handler(request)
        return ask(scope, _asking(request), lambda: handler(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]
    ) -> Any:
        """The same for ``ainvoke``."""
        scope = recording_scope()
        if scope is None:
            return await handler(request)
        return await ask_async(scope, _asking(request), lambda: handler(request))

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """Make the call at most once."""
        return self._calls.wrap(request, handler)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        """The same for ``ainvoke``."""
        return await self._calls.awrap(request, handler)


def _asking(request: ModelRequest[Any]) -> Any:
    system = [] if request.system_message is None else [request.system_message]
    settings = dict(request.model_settings)
    if request.tool_choice is not None:
        settings["tool_choice"] = request.tool_choice
    body = plain.request_body(request.model, [*system, *request.messages], request.tools, settings)
    schema = getattr(request.response_format, "schema", request.response_format)

    def pack(response: Any) -> dict[str, Any]:
        if isinstance(response, AIMessage):
            return plain.pack_messages([response])
        return plain.pack_messages(response.result, response.structured_response)

    def unpack(value: dict[str, Any]) -> Any:
        structured = value[NATIVE].get("structured")
        validate = getattr(schema, "model_validate", None)
        if structured is not None and callable(validate):
            structured = validate(structured)
        return ModelResponse(result=plain.unpack_messages(value), structured_response=structured)

    return plain.asking(body, request.model, pack, unpack)
