"""LangChain calls: guarded tools, recorded chat models, and the conversion of messages and results to plain data."""

from __future__ import annotations

import functools
import json
import logging
import operator
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
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
from langchain_core.messages.utils import convert_to_messages, convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableBinding, RunnableConfig
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.errors import GraphInterrupt
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, Interrupt, Send, interrupt

from antiphon._gateway import codec
from antiphon._gateway.plan import Verdict
from antiphon._scope import current_scope
from antiphon.adapters._calls import (
    ApprovalContext,
    CallIdentity,
    GatewayLike,
    GuardedTools,
    ToolAnswer,
    Tools,
    pause_text,
    paused_for,
    specs_of,
)
from antiphon.adapters._model import (
    NATIVE,
    Codec,
    ModelCallSpec,
    ask,
    ask_async,
    chat_response,
    stream,
    stream_async,
)
from antiphon.adapters._pending import Body
from antiphon.contract.spec import ToolSpec
from antiphon.errors import Paused, is_script_module

log: logging.Logger = logging.getLogger("antiphon.adapters")

_NAME = "langgraph"
_KEPT = 1000
_SETTINGS = (
    *("temperature", "seed", "top_p", "max_tokens", "max_completion_tokens", "stop", "tool_choice", "top_k"),
    *("frequency_penalty", "presence_penalty", "logit_bias", "stop_sequences", "reasoning", "reasoning_effort"),
    *("verbosity", "thinking", "effort", "model_kwargs", "extra_body"),
)


# -- model calls -------------------------------------------------------------------------------------------------


def vendor_of(model: Any) -> str:
    """The vendor of a chat model, from its package name: ``langchain_openai`` gives ``openai``.

    For a class defined in a script, its base class counts: a script gets a new module name each time it is loaded. A
    replay uses the recorded vendor.
    """
    kinds = type(model).__mro__
    kind = next(kind for kind in kinds if not is_script_module(kind.__module__))
    if kind is not kinds[0]:
        scope = current_scope()
        recorded: str | None = getattr(None if scope is None else scope.invoker, "script_vendor", None)
        if recorded is not None:
            return recorded
    return kind.__module__.partition(".")[0].removeprefix("langchain_") or kind.__name__


def name_of(model: Any) -> str:
    """The model's name, from whichever attribute its package uses."""
    fields = vars(model)
    for attribute in _MODEL_NAMES:
        value = fields.get(attribute)
        if isinstance(value, str) and value:
            return value
    return type(model).__name__


def config_of(model: Any) -> dict[str, Any]:
    """The settings of a chat model that the determinism score uses (K3)."""
    config: dict[str, Any] = {"model_name": name_of(model), "provider": vendor_of(model)}
    for name in ("temperature", "seed"):
        value = vars(model).get(name)
        if isinstance(value, (int, float)):
            config[name] = value
    return config


def request_body(
    model: Any, messages: Sequence[BaseMessage], tools: Sequence[Any] = (), settings: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The request in OpenAI's chat dialect, whatever the vendor, without message ids, which are random."""
    spoken = []
    for message in messages:
        role, content = _ROLES.get(type(message)), message.content
        if role is not None and type(content) is str and not message.name:
            spoken.append({"role": role, "content": content})
        else:
            spoken.append(_spoken(message))
    body: dict[str, Any] = {"model": name_of(model), "messages": spoken}
    fields = vars(model)  # settings are fields; getattr for a missing one is slow
    for name in _SETTINGS:
        value = fields.get(name)
        if isinstance(value, (bool, int, float, str, list)) or (isinstance(value, dict) and value):
            body[name] = value
    if tools:
        body["tools"] = [tool_body(tool) for tool in tools]
    if settings:
        body.update({name: value for name, value in settings.items() if value is not None})
    return body


_TOOLS_KEPT = 256
_tools: dict[int, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {}
"""By ``id()`` of the tool: the tool, its description, and that description in OpenAI's dialect."""


def tool_body(tool: Any) -> dict[str, Any]:
    """A tool in OpenAI's dialect, cached until the tool changes, because building the schema is slow."""
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
    """A message in OpenAI's dialect, with a fast path for plain text answers."""
    if type(message) is AIMessage and isinstance(message.content, str):
        if not (message.tool_calls or message.invalid_tool_calls or message.name):
            return {"role": "assistant", "content": message.content}
    spoken: Any = convert_to_openai_messages(message)
    return dict(spoken)


def _dumped(message: BaseMessage) -> dict[str, Any]:
    """A message as data, without empty fields other than its content."""
    if type(message) is AIMessage and not message.additional_kwargs:  # which may hold objects of a provider's package
        data = {**vars(message), **(message.model_extra or {})}
    else:
        data = message.model_dump()
    kept = {name: value for name, value in data.items() if name == "content" or value or value not in _NOTHING}
    return {"type": message.type, "data": kept}


_NOTHING: tuple[Any, ...] = (None, [], {})


def asking(body: dict[str, Any], model: Any, pack: Any, unpack: Any, change: Any) -> ModelCallSpec:
    """A model call of LangChain."""
    fields = vars(model)
    url = next((fields[name] for name in _URLS if isinstance(fields.get(name), str)), None)
    return ModelCallSpec(
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
) -> ModelCallSpec:
    """A model call outside the middleware; *call* asks a model."""

    def change(wanted: dict[str, Any]) -> Callable[[], Any]:
        asked = list(messages)
        if "messages" in wanted:
            asked = [message for message in asked if not isinstance(message, SystemMessage)]
            asked.insert(0, SystemMessage(wanted["messages"][0]["content"]))
        return lambda: call(with_settings(model, wanted), asked)

    body = request_body(model, messages, options.get("tools") or (), {**options, "stop": stop})
    return asking(body, model, lambda said: pack_messages([said]), lambda value: unpack_messages(value)[0], change)


_URLS = ("openai_api_base", "anthropic_api_url", "base_url", "azure_endpoint", "endpoint_url")
_MODEL_NAMES = ("model_name", "model", "model_id", "deployment_name")


@functools.cache
def _settable(kind: type) -> tuple[str, ...]:
    """The settings of a chat model that a replay can change, which are its fields."""
    fields = getattr(kind, "model_fields", {})
    named = ["model"] if any(name in fields for name in _MODEL_NAMES) else []
    return (*named, *(name for name in ("temperature", "seed") if name in fields), "prompt")


def with_settings(model: Any, wanted: Mapping[str, Any]) -> Any:
    """A copy of a chat model with another name, temperature or seed."""
    update = {name: wanted[name] for name in ("temperature", "seed") if name in wanted}
    if "model" in wanted:
        named = next(name for name in _MODEL_NAMES if isinstance(vars(model).get(name), str))
        update[named] = wanted["model"]
    return model.model_copy(update=update) if update else model


def pack_messages(messages: Sequence[BaseMessage], structured: Any = None) -> dict[str, Any]:
    """A model's answer in OpenAI's dialect for readers of the recording, and unchanged for the replay."""
    said = next((message for message in messages if isinstance(message, AIMessage)), None) or AIMessage("")
    native: dict[str, Any] = {"messages": [_dumped(message) for message in messages]}
    if structured is not None:
        native["structured"] = structured
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
    """The refusal that a provider reports as its stop reason."""
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
    """Pack the result of a tool call: a message, a command that changes the graph's state, or a list of these."""
    if isinstance(result, ToolMessage):
        packed = {"content": result.content, "status": result.status, "name": result.name}
        more = {"additional_kwargs": result.additional_kwargs or None, "artifact": result.artifact}
        packed |= {name: value for name, value in more.items() if value is not None and _keepable(value)}
        return {"message": packed}
    if isinstance(result, Command):
        goto, update = _pack_goto(result.goto), _pack_state(result.update)
        return {"command": {"graph": result.graph, "update": update, "goto": goto if goto else None}}
    if type(result) is list and result and all(isinstance(item, (ToolMessage, Command)) for item in result):
        return {"$results": [pack_result(item) for item in result]}
    return {"value": result}


def message_of(words: str, call: Mapping[str, Any], **options: Any) -> Any:
    """A message in place of a result: a tool message for the model, or plain text for code that called the tool."""
    if call["id"] is None:
        return words
    return ToolMessage(words, tool_call_id=call["id"], name=call["name"], **options)


def unpack_result(packed: Any, call: Mapping[str, Any]) -> Any:
    """Unpack a result as the answer to *call*; plain text in its place (a blocked call) becomes a tool message."""
    if not isinstance(packed, Mapping) or not packed.keys() & {"message", "command", "$results", "value"}:
        return message_of(packed if isinstance(packed, str) else json.dumps(packed), call)
    if "message" in packed:
        fields = dict(packed["message"])
        return ToolMessage(tool_call_id=call["id"], **{**fields, "name": fields.get("name") or call["name"]})
    if "command" in packed:
        fields = dict(packed["command"])
        goto, update = _unpack_goto(fields["goto"] or ()), _unpack_state(fields["update"])
        return Command(graph=fields["graph"], update=update, goto=goto)
    if "$results" in packed:
        return [unpack_result(item, call) for item in packed["$results"]]
    return packed.get("value")


def _keepable(value: Any) -> bool:
    try:
        codec.encode(value)
    except codec.NotSerialisable:
        return False
    return True


def _pack_goto(goto: Any) -> Any:
    if isinstance(goto, Send):
        timeout = getattr(goto, "timeout", None)  # which early releases of LangGraph do not have
        limits = {} if timeout is None else {"timeout": timeout}
        return {"$send": {"node": goto.node, "arg": _pack_state(goto.arg), **limits}}
    return type(goto)(map(_pack_goto, goto)) if type(goto) in (list, tuple) else goto


def _unpack_goto(goto: Any) -> Any:
    if isinstance(goto, dict):
        fields = goto["$send"]
        return Send(**{**fields, "arg": _unpack_state(fields["arg"])})
    return type(goto)(map(_unpack_goto, goto)) if isinstance(goto, (list, tuple)) else goto


def _pack_state(state: Any) -> Any:
    return {name: _pack_value(value) for name, value in state.items()} if isinstance(state, dict) else state


def _unpack_state(state: Any) -> Any:
    return {name: _unpack_value(value) for name, value in state.items()} if isinstance(state, dict) else state


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
    """Wrap an interrupt for the gateway; its message has what a replay needs to raise it again."""
    found = interrupt.args[0] if interrupt.args else ()
    return Paused(pause_text([{"value": item.value, "id": item.id} for item in found]))


def interrupt_again(message: str) -> GraphInterrupt:
    """Restore a recorded interrupt."""
    return GraphInterrupt(tuple(Interrupt(**item) for item in paused_for(message or "[]")))


_ANSWER = {"decision": "approve or deny", "by": "who decides", "reason": "told to the model when denied"}
"""The fields that resume a waiting graph, besides the approval id."""


def _verdicts(answer: Any) -> Iterator[tuple[str, Verdict]]:
    """The decisions in a resume value: one, a list of them, or ``{approval id: "approve"}``."""
    if isinstance(answer, (list, tuple)):
        for one in answer:
            yield from _verdicts(one)
    elif isinstance(answer, Mapping) and "approvalId" in answer:
        decision = answer.get("decision")
        if decision in ("approve", "deny"):
            approval, by = str(answer["approvalId"]), str(answer.get("by") or _NAME)
            yield approval, Verdict(decision == "approve", by, _NAME, approval, str(answer.get("reason") or ""))
    elif isinstance(answer, Mapping):
        for approval, decision in answer.items():
            yield from _verdicts({"approvalId": approval, "decision": decision})


Asked = tuple[Mapping[str, Any], ToolSpec, Mapping[str, Any], CallIdentity, Body]
"""A tool call: its id and name, spec, arguments, place, and body."""


class ToolCalls:
    """Wraps tool calls: what ``ToolNode(wrap_tool_call=…, awrap_tool_call=…)`` takes."""

    def __init__(self, tools: Tools = None, *, app: GatewayLike | None = None, session: str | None = None) -> None:
        self._guard = GuardedTools(specs_of(tools), app)
        self._session = session
        self._said: dict[str, Verdict] = {}
        """Decisions on calls that have not been reached yet."""
        self._asking = threading.Lock()

    def wrap(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        """One synchronous tool call."""
        return self._call(*self._asked(request, handler))

    async def awrap(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]) -> Any:
        """One asynchronous tool call."""
        return await self._acall(*self._asked(request, handler))

    def run(self, tool: BaseTool, given: Any, options: Mapping[str, Any], body: Callable[[Any], Any]) -> Any:
        """One call of ``BaseTool.run``."""
        return self._call(*self._traced(tool, given, options, body))

    async def arun(self, tool: BaseTool, given: Any, options: Mapping[str, Any], body: Callable[[Any], Any]) -> Any:
        """One call of ``BaseTool.arun``."""
        return await self._acall(*self._traced(tool, given, options, body))

    def _call(
        self, call: Mapping[str, Any], spec: ToolSpec, arguments: Mapping[str, Any], place: CallIdentity, body: Body
    ) -> Any:
        live = _Live()

        def made(params: dict[str, Any]) -> Any:
            with _guarded_here(call["id"]):
                return live.keep(body(params))

        with _interrupting():
            given = self._guard.call(spec, arguments, place, made)
            while given.question is not None and (verdict := self._decided(given.question)) is not None:
                given = self._guard.call(spec, arguments, place, made, ApprovalContext(verdict))
            return live.result(given, call)

    async def _acall(
        self, call: Mapping[str, Any], spec: ToolSpec, arguments: Mapping[str, Any], place: CallIdentity, body: Body
    ) -> Any:
        live = _Live()

        async def made(params: dict[str, Any]) -> Any:
            with _guarded_here(call["id"]):
                return live.keep(await body(params))

        with _interrupting():
            given = await self._guard.call_async(spec, arguments, place, made)
            while given.question is not None and (verdict := self._decided(given.question)) is not None:
                given = await self._guard.call_async(spec, arguments, place, made, ApprovalContext(verdict))
            return live.result(given, call)

    def _decided(self, question: dict[str, Any]) -> Verdict | None:
        """Interrupt the graph with *question* and return the decision; ``None`` outside of a graph.

        LangGraph matches resume values by order only, and by then the call may be a different one. So only an answer
        that names the approval counts; answers for parallel calls are kept for them.
        """
        approval = question["approvalId"]
        with self._asking:  # a node's calls run in threads, and LangGraph counts interrupts without a lock
            while (verdict := self._said.pop(approval, None)) is None:
                try:
                    answer = interrupt({**question, "answer": {"approvalId": approval, **_ANSWER}})
                except (RuntimeError, KeyError):  # the tool was called outside of a graph
                    return None
                said = dict(_verdicts(answer))
                if not said:
                    log.warning("a graph was resumed with an answer that names no approval; %s still waits", approval)
                if len(self._said) > _KEPT:  # forgotten decisions are asked for again
                    self._said.clear()
                self._said |= said
        return verdict

    def _asked(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Asked:
        """A call of a ``ToolNode``."""

        def made(params: dict[str, Any]) -> Any:
            return handler(request.override(tool_call={**call, "args": params}))

        call, tool = request.tool_call, request.tool
        spec = self._guard.spec(call["name"], "" if tool is None else tool.description)
        session = self._thread(getattr(request.runtime, "config", None))
        return call, spec, call["args"], CallIdentity(session, call["id"], _message_id(request)), made

    def _traced(self, tool: BaseTool, given: Any, options: Mapping[str, Any], body: Callable[[Any], Any]) -> Asked:
        """A direct call of a tool."""

        def made(params: dict[str, Any]) -> Any:
            return body({**given, **params} if isinstance(given, dict) else given)

        call = {"id": options.get("tool_call_id"), "name": tool.name}
        spec = self._guard.spec(tool.name, tool.description)
        return call, spec, _arguments(tool, given), CallIdentity(self._thread(options.get("config")), call["id"]), made

    def _thread(self, config: Mapping[str, Any] | None) -> str | None:
        """The given session, or else the graph's thread."""
        thread = ((config or {}).get("configurable") or {}).get("thread_id")
        return self._session or (None if thread is None else str(thread))


class _Live:
    """Keeps the original result of a call made in this process; others are rebuilt from the record."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def keep(self, result: Any) -> Any:
        self._kept = [result]
        return pack_result(result)

    def result(self, given: ToolAnswer, call: Mapping[str, Any]) -> Any:
        if given.ok:
            return self._kept[0] if self._kept else unpack_result(given.value, call)
        if given.code == Paused.code:
            raise interrupt_again(given.message)
        return message_of(given.message, call, status="error")


guarded_call: ContextVar[str | None] = ContextVar("antiphon_guarded_tool_call", default=None)
"""The call that a tool is executing, so that inner wrappers leave it alone."""


@contextmanager
def _guarded_here(call: str | None) -> Iterator[None]:
    token = guarded_call.set(call)
    try:
        yield
    except GraphInterrupt as interrupt:
        raise paused(interrupt) from interrupt
    finally:
        guarded_call.reset(token)


@contextmanager
def _interrupting() -> Iterator[None]:
    """Turn a tool's pause back into an interrupt of the graph: its own if it was raised here."""
    try:
        yield
    except Paused as pause:
        own = pause.__cause__
        raise own if isinstance(own, GraphInterrupt) else interrupt_again(pause.message) from None


def _arguments(tool: BaseTool, given: Any) -> dict[str, Any]:
    """The arguments from the model, without those that the graph injects (state, store, runtime)."""
    if not isinstance(given, dict):
        return {"input": given}
    schema: Any = tool.tool_call_schema
    known = schema.get("properties", {}) if isinstance(schema, dict) else schema.model_fields
    return {name: value for name, value in given.items() if name in known}


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


_UNHEARD: RunnableConfig = {"callbacks": []}
"""No callbacks for the inner model: the outer one already runs them, so they would fire twice."""


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

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        def call(model: Any, messages: Sequence[BaseMessage]) -> Any:
            return model.invoke(messages, _UNHEARD, stop=stop, **options)

        said = through(ask, self.inner, messages, stop, options, call)
        return ChatResult(generations=[ChatGeneration(message=said)])

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        def call(model: Any, messages: Sequence[BaseMessage]) -> Any:
            return model.ainvoke(messages, _UNHEARD, stop=stop, **options)

        said = await through(ask_async, self.inner, messages, stop, options, call)
        return ChatResult(generations=[ChatGeneration(message=said)])

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        def call(model: Any, messages: Sequence[BaseMessage]) -> Iterator[Any]:
            return map(as_chunk, model.stream(messages, _UNHEARD, stop=stop, **options))

        for chunk in through(stream, self.inner, messages, stop, options, call, CODEC):
            yield ChatGenerationChunk(message=chunk)

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        async def call(model: Any, messages: Sequence[BaseMessage]) -> AsyncIterator[Any]:
            async for chunk in model.astream(messages, _UNHEARD, stop=stop, **options):
                yield as_chunk(chunk)

        async for chunk in through(stream_async, self.inner, messages, stop, options, call, CODEC):
            yield ChatGenerationChunk(message=chunk)


def through(
    record: Callable[..., Any],
    model: Any,
    messages: Sequence[BaseMessage],
    stop: list[str] | None,
    options: dict[str, Any],
    call: Callable[[Any, Sequence[BaseMessage]], Any],
    *codec: Codec,
) -> Any:
    """Make *call* of *model* and record it with *record*."""
    return record(lambda: plain_asking(model, messages, stop, options, call), lambda: call(model, messages), *codec)


def as_chunk(chunk: Any) -> Any:
    """A message as a chunk, because a model that does not stream returns it whole."""
    if isinstance(chunk, BaseMessageChunk):
        return chunk
    return AIMessageChunk(**{**chunk.model_dump(exclude={"type"}), "chunk_position": "last"})


def _whole(chunks: Sequence[Any]) -> Any:
    return functools.reduce(operator.add, chunks) if chunks else AIMessage("")


CODEC = Codec(
    lambda chunk: chunk.model_dump(mode="json"),
    lambda data: AIMessageChunk.model_validate(data),
    _whole,
    lambda said: [as_chunk(said).model_dump(mode="json")],
)


def chat_model(inner: BaseChatModel) -> RecordedChatModel:
    """The chat model with its calls recorded, including streams; use it like the original."""
    return inner if isinstance(inner, RecordedChatModel) else RecordedChatModel(inner=inner)
