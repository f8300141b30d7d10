"""LangChain and LangGraph: model calls recorded and replayed, tool calls made at most once per intent.

>>> from langchain.agents import create_agent                                   # doctest: +SKIP
>>> from antiphon.adapters.langchain import AntiphonMiddleware
>>> agent = create_agent(model, tools=[send_email], middleware=[AntiphonMiddleware()])

A ``thread_id`` in the config is the session of the calls: after an interrupt or a crash, a resumed thread gets the
results of finished calls without running them again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, overload

from antiphon.adapters._requirements import require

require("langgraph")
require("langchain")

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse  # noqa: E402
from langchain_core.language_models import BaseChatModel  # noqa: E402
from langchain_core.messages import AIMessage, SystemMessage  # noqa: E402
from langgraph.prebuilt import ToolNode  # noqa: E402
from langgraph.prebuilt.tool_node import ToolCallRequest  # noqa: E402

from antiphon._gateway import codec  # noqa: E402
from antiphon._gateway.recording import recordable  # noqa: E402
from antiphon.adapters._calls import GatewayLike, Tools  # noqa: E402
from antiphon.adapters._langchain_calls import (  # noqa: E402
    RecordedChatModel,
    ToolCalls,
    asking,
    chat_model,
    pack_messages,
    request_body,
    unpack_messages,
    with_settings,
)
from antiphon.adapters._langchain_trace import trace_agent, trace_agent_invoke  # noqa: E402
from antiphon.adapters._model import NATIVE, ask, ask_async  # noqa: E402
from antiphon.ops.app import Antiphon  # noqa: E402

__all__ = [
    "AntiphonMiddleware",
    "RecordedChatModel",
    "ToolCalls",
    "chat_model",
    "protect",
    "tool_node",
    "trace_agent",
    "trace_agent_invoke",
]


def tool_node(tools: Sequence[Any], specs: Tools = None, *, app: Antiphon | None = None, **options: Any) -> ToolNode:
    """A ``ToolNode`` whose calls go through the gateway; *specs* declare the tools, *options* are ToolNode's own."""
    calls = ToolCalls(specs, app=app)
    return ToolNode(tools, wrap_tool_call=calls.wrap, awrap_tool_call=calls.awrap, **options)


class AntiphonMiddleware(AgentMiddleware[Any, Any, Any]):
    """For ``create_agent``: records and replays model calls, sends tool calls through the gateway.

    *tools* declares tools, as specs or as ``{"send_email": {"idempotent": False}}``; an undeclared tool counts as not
    idempotent.
    """

    def __init__(self, tools: Tools = None, *, app: GatewayLike | None = None, session: str | None = None) -> None:
        super().__init__()
        self._calls = ToolCalls(tools, app=app, session=session)

    def wrap_model_call(self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Any]) -> Any:
        """Call the model, or answer from the replay."""
        return ask(lambda: _asking(request, handler), lambda: handler(request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[Any]]
    ) -> Any:
        """The same for ``ainvoke``."""
        return await ask_async(lambda: _asking(request, handler), lambda: handler(request))

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
    validate = getattr(schema, "model_validate", None)

    def pack(response: Any) -> dict[str, Any]:
        if isinstance(response, AIMessage):
            return pack_messages([response])
        structured = response.structured_response
        return pack_messages(response.result, structured if callable(validate) else recordable(structured))

    def unpack(value: dict[str, Any]) -> Any:
        structured = codec.revived(value.get(NATIVE, {}).get("structured"))
        if structured is not None and callable(validate):
            structured = validate(structured)
        return ModelResponse(result=unpack_messages(value), structured_response=structured)

    def change(wanted: dict[str, Any]) -> Callable[[], Any]:
        changed = request.override(model=with_settings(request.model, wanted))
        if "messages" in wanted:
            changed = changed.override(system_message=SystemMessage(wanted["messages"][0]["content"]))
        return lambda: handler(changed)

    return asking(body, request.model, pack, unpack, change)


@overload
def protect(
    obj: None = None, *, gateway: GatewayLike | None = None, tools: Tools = None, session: str | None = None
) -> AntiphonMiddleware: ...


@overload
def protect(
    obj: BaseChatModel, *, gateway: GatewayLike | None = None, tools: Tools = None, session: str | None = None
) -> RecordedChatModel: ...


@overload
def protect(
    obj: Sequence[Any], *, gateway: GatewayLike | None = None, tools: Tools = None, session: str | None = None
) -> ToolNode: ...


def protect(
    obj: BaseChatModel | Sequence[Any] | None = None,
    *,
    gateway: GatewayLike | None = None,
    tools: Tools = None,
    session: str | None = None,
) -> AntiphonMiddleware | RecordedChatModel | ToolNode:
    """What protects an agent: the middleware for ``create_agent``, or the parts of a graph of your own.

    Without an object, returns the middleware, which records model calls and sends tool calls through the gateway. For a
    chat model, returns a recorded one; for a list of tools, a ``ToolNode`` whose calls go through the gateway. *tools*
    declares tools, as specs or as ``{"send_email": {"idempotent": False}}``; an undeclared tool counts as not
    idempotent. *gateway* is a gateway or an ``Antiphon`` (default: the current one); *session* is an id that survives
    a restart (default: the ``thread_id``).
    """
    if obj is None:
        return AntiphonMiddleware(tools, app=gateway, session=session)
    if isinstance(obj, BaseChatModel):
        return chat_model(obj)
    calls = ToolCalls(tools, app=gateway, session=session)
    return ToolNode(obj, wrap_tool_call=calls.wrap, awrap_tool_call=calls.awrap)
