"""Pydantic AI: model requests recorded and replayed, tools run at most once per intent.

>>> from pydantic_ai import Agent                                               # doctest: +SKIP
>>> from antiphon.adapters.pydantic_ai import protect
>>> agent = protect(Agent("openai:gpt-5", tools=[send_email]), session="ticket-7")
"""

from __future__ import annotations

import copy
import dataclasses
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson

from antiphon.adapters._requirements import require

require("pydantic-ai")

from pydantic import TypeAdapter  # noqa: E402
from pydantic_ai import exceptions  # noqa: E402
from pydantic_ai.agent import AbstractAgent, WrapperAgent  # noqa: E402
from pydantic_ai.capabilities import AbstractCapability  # noqa: E402
from pydantic_ai.messages import (  # noqa: E402
    ModelMessage,
    ModelResponse,
    RetryPromptPart,
    SystemPromptPart,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.usage import RequestUsage  # noqa: E402

from antiphon._gateway.plan import Verdict  # noqa: E402
from antiphon._lineage import permitted  # noqa: E402
from antiphon._recording.plain import dump  # noqa: E402
from antiphon._scope import RunScope  # noqa: E402
from antiphon.adapters._calls import (  # noqa: E402
    NOBODY,
    ApprovalContext,
    CallIdentity,
    GatewayLike,
    GuardedTools,
    Tools,
    pause_text,
    paused_for,
    specs_of,
)
from antiphon.adapters._model import NATIVE, ModelCallSpec, ask_async, chat_response, recording_scope  # noqa: E402
from antiphon.errors import Paused  # noqa: E402

__all__ = ["Reliable", "protect"]

D = TypeVar("D")
R = TypeVar("R")

_NAME = "pydantic-ai"
_DEFERRALS = {"CallDeferred": exceptions.CallDeferred, "ApprovalRequired": exceptions.ApprovalRequired}
_RETRY, _FAILED, _SKIPPED = _SIGNALS = ("$modelRetry", "$toolFailed", "$skipped")
_ANSWERS = (
    exceptions.ModelRetry,
    exceptions.ToolRetryError,
    exceptions.ToolFailed,
    exceptions.ToolFailedError,
    exceptions.SkipToolExecution,
)
"""Exceptions with which a tool answers: they ask the model to retry or report a failure, and count as results."""


@dataclass
class Reliable(AbstractCapability[Any]):
    """A capability for ``Agent(capabilities=[…])``.

    *session* is an id that survives a restart; the default is Pydantic AI's ``conversation_id``, which the message
    history carries. *declared* declares tools, as specs or as ``{"send_email": {"idempotent": False}}``.
    """

    session: str | None = None
    declared: Tools = None
    app: GatewayLike | None = None
    _guard: GuardedTools = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._guard = GuardedTools(specs_of(self.declared), self.app)

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> ModelResponse:
        """Call the model, or answer from the replay."""
        scope = recording_scope()
        model = request_context.model

        def change(wanted: dict[str, Any]) -> Any:
            other = copy.copy(model)
            if "model" in wanted:
                other._model_name = wanted["model"]
            settings = {name: value for name, value in wanted.items() if name in ("temperature", "seed")}
            settings = {**(request_context.model_settings or {}), **settings}
            changed = dataclasses.replace(request_context, model=other, model_settings=settings)
            return lambda: handler(_permitted(scope, changed))

        def asking() -> ModelCallSpec:
            body = request_body(
                model.model_name,
                request_context.messages,
                request_context.model_settings,
                request_context.model_request_parameters,
            )
            return ModelCallSpec(
                body,
                pack,
                unpack,
                model.system or None,
                framework="pydantic-ai",
                settable=("model", "temperature", "seed") if hasattr(model, "_model_name") else ("temperature", "seed"),
                change=change,
                endpoint=model.base_url,
            )

        said: ModelResponse = await ask_async(asking, lambda: handler(_permitted(scope, request_context)))
        return said

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        """Make the call at most once."""
        signal: list[Exception] = []

        async def body(params: dict[str, Any]) -> Any:
            try:
                return await handler(args)
            except _ANSWERS as answer:
                signal.append(answer)
                return _kept(answer)
            except (exceptions.CallDeferred, exceptions.ApprovalRequired) as deferral:
                kept = {"kind": type(deferral).__name__, "metadata": deferral.metadata}
                raise Paused(pause_text(kept)) from deferral

        spec = self._guard.spec(tool_def.name, tool_def.description or "")
        params, approval = call.args_as_dict(), NOBODY
        if spec.approve is not None:  # bind the approval to the executed arguments, after any hooks
            params = dict(args) if isinstance(args, Mapping) else params
            approval = ApprovalContext(_verdict(ctx), _NAME)
        place = CallIdentity(self.session or ctx.conversation_id, call.tool_call_id, message=_message(ctx, call))
        try:
            given = await self._guard.call_async(spec, params, place, body, approval)
        except Paused as pause:
            own = pause.__cause__
            if own is not None and isinstance(own, tuple(_DEFERRALS.values())):
                raise own from None
            raise _deferred(pause.message) from None
        if given.code == Paused.code:
            raise _deferred(given.message)
        if given.question is not None:
            raise exceptions.ApprovalRequired(metadata=given.question)
        if not given.ok:
            return given.message
        if isinstance(given.value, dict) and given.value.keys() & _SIGNALS and len(given.value) == 1:
            raise signal[0] if signal else _again(given.value, call)
        return given.value

    async def on_model_request_error(self, ctx: Any, *, request_context: Any, error: Exception) -> ModelResponse:
        """Recover nothing; this hook must exist so that :meth:`wrap_model_request` sees why opening a stream failed."""
        raise error


def _verdict(ctx: Any) -> Verdict | None:
    """The decision on the call if the run was resumed with an approval; its metadata say who decided, and on what."""
    if ctx.tool_call_approved is not True:
        return None
    said = ctx.tool_call_metadata if isinstance(ctx.tool_call_metadata, Mapping) else {}
    return Verdict(True, str(said.get("by") or _NAME), _NAME, str(said.get("approvalId") or ""))


class ProtectedAgent(WrapperAgent[Any, Any]):
    """An agent whose runs all have the capability."""

    def __init__(self, wrapped: AbstractAgent[Any, Any], reliable: Reliable) -> None:
        super().__init__(wrapped)
        self._reliable = reliable

    def iter(self, *args: Any, capabilities: Sequence[Any] | None = None, **options: Any) -> Any:
        """Add the capability; every kind of run goes through this method."""
        return self.wrapped.iter(*args, capabilities=[*(capabilities or ()), self._reliable], **options)


def _message(ctx: Any, call: Any) -> str | None:
    """The model message that requested *call*, as its position in the history, which survives a restart."""
    said = [message for message in ctx.messages if isinstance(message, ModelResponse)]
    for number in range(len(said), 0, -1):
        if any(getattr(part, "tool_call_id", None) == call.tool_call_id for part in said[number - 1].parts):
            return str(number)
    return None


def _permitted(scope: RunScope | None, request: Any) -> Any:
    """The request with a model that a replay may call, because Pydantic AI opens streams in a separate task."""
    if scope is None or scope.invoker is None:
        return request
    model = copy.copy(request.model)
    request_stream = model.request_stream

    @asynccontextmanager
    async def opened(*args: Any, **options: Any) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            with permitted(True):
                response = await stack.enter_async_context(request_stream(*args, **options))
            yield response

    model.request_stream = opened
    return dataclasses.replace(request, model=model)


def protect(
    agent: AbstractAgent[D, R],
    *,
    gateway: GatewayLike | None = None,
    tools: Tools = None,
    session: str | None = None,
) -> AbstractAgent[D, R]:
    """The agent with its model requests recorded and its tools behind the gateway; use it like the original.

    *tools* declares tools, as specs or as ``{"send_email": {"idempotent": False}}``; an undeclared tool counts as not
    idempotent. *gateway* is an ``AsyncGateway`` or an ``Antiphon`` (default: the current one). *session* is an id that
    survives a restart (default: the ``conversation_id``).
    """
    return ProtectedAgent(agent, Reliable(session, tools, gateway))


def _kept(answer: Exception) -> dict[str, Any]:
    """The recorded form of an answer that is an exception."""
    match answer:
        case exceptions.ToolRetryError():
            return {_RETRY: answer.tool_retry.content}
        case exceptions.ModelRetry():
            return {_RETRY: answer.message}
        case exceptions.SkipToolExecution():
            return {_SKIPPED: answer.result}
        case exceptions.ToolFailedError():
            return {_FAILED: answer.tool_failed.content}
    return {_FAILED: str(answer)}


def _again(kept: dict[str, Any], call: Any) -> Exception:
    """… and back; validation errors have their own message part, and plain text becomes a retry again."""
    ((signal, content),) = kept.items()
    if signal == _SKIPPED:
        return exceptions.SkipToolExecution(content)
    if isinstance(content, str):
        return exceptions.ModelRetry(content) if signal == _RETRY else exceptions.ToolFailed(content)
    outcome: Any = "retried" if signal == _RETRY else "failed"
    part = ToolReturnPart(call.tool_name, content, call.tool_call_id, outcome=outcome)
    return exceptions.ToolRetryError(part) if signal == _RETRY else exceptions.ToolFailedError(part)


def _deferred(message: str) -> Exception:
    kept = paused_for(message)
    return _DEFERRALS[kept["kind"]](kept["metadata"])


# -- messages as plain data, and back -----------------------------------------------------------------------------


_RESPONSE: TypeAdapter[ModelResponse] = TypeAdapter(ModelResponse)
_CONTENT: TypeAdapter[Any] = TypeAdapter(Any)
_LEFT_OUT = re.compile(
    r".*timeout|max_retries|extra_headers|cache|(.*_)?(user|metadata|store|service_tier|prompt_cache.*)"
)
"""Settings that do not affect the answer, or that differ between equal runs."""


def request_body(
    model: str, messages: Sequence[ModelMessage], settings: Mapping[str, Any] | None, parameters: Any
) -> dict[str, Any]:
    """The request without timestamps and run ids, which differ between equal runs."""
    spoken: list[dict[str, Any]] = []
    instructions = None
    for message in messages:
        if isinstance(message, ModelResponse):
            spoken.append(_response(message))
        else:
            instructions = message.instructions or instructions
            for part in message.parts:
                if type(part) is UserPromptPart and type(part.content) is str:
                    spoken.append({"role": "user", "content": part.content})
                else:
                    spoken.append(_part(part))
    if instructions:
        spoken.insert(0, {"role": "system", "content": instructions})
    body: dict[str, Any] = {"model": model, "messages": spoken}
    tools = [*parameters.function_tools, *parameters.output_tools]
    if tools:
        body["tools"] = [_tool(tool) for tool in tools]
    if settings:
        for name, value in settings.items():
            if value is not None and not _LEFT_OUT.fullmatch(name):
                body[name] = orjson.loads(dump(value))
    if parameters.output_object is not None:
        found = parameters.output_object
        schema = {"name": found.name or "output", "schema": found.json_schema}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def _tool(tool: Any) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters_json_schema}
    return {"type": "function", "function": function}


def _part(part: Any) -> dict[str, Any]:
    if isinstance(part, SystemPromptPart):
        return {"role": "system", "content": part.content}
    if isinstance(part, UserPromptPart):
        return {"role": "user", "content": _content(part.content)}
    if isinstance(part, ToolReturnPart):
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response_str()}
    if isinstance(part, RetryPromptPart):
        if part.tool_name is None:
            return {"role": "user", "content": part.model_response()}
        return {"role": "tool", "tool_call_id": part.tool_call_id, "content": part.model_response()}
    return {"role": "user", "content": json.dumps(_data(part))}


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    parts = []
    for item in content:
        text = item if isinstance(item, str) else json.dumps(_data(item))
        parts.append({"type": "text", "text": text})
    return parts


def _data(value: Any) -> Any:
    data = _CONTENT.dump_python(value, mode="json", serialize_as_any=True, warnings=False)
    return {name: item for name, item in data.items() if name != "timestamp"} if isinstance(data, dict) else data


def _response(message: ModelResponse) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": _text(message) or None}
    calls = _calls(message)
    if calls:
        said["tool_calls"] = calls
    return said


def _text(message: ModelResponse) -> str:
    return "".join([part.content for part in message.parts if isinstance(part, TextPart)])


def _calls(message: ModelResponse) -> list[dict[str, Any]]:
    return [
        {
            "id": part.tool_call_id,
            "type": "function",
            "function": {"name": part.tool_name, "arguments": part.args_as_json_str()},
        }
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]


def pack(message: ModelResponse) -> dict[str, Any]:
    """The recorded form of a response."""
    details = message.provider_details or {}
    refused = message.finish_reason == "content_filter"
    return chat_response(
        text=_text(message),
        calls=_calls(message),
        native=_RESPONSE.serializer.to_python(message, mode="json"),
        model_name=message.model_name,
        refusal=str(details.get("refusal") or details.get("finish_reason") or "content_filter") if refused else None,
        stop=message.finish_reason,
        usage=(message.usage.input_tokens, message.usage.output_tokens),
    )


def unpack(value: Mapping[str, Any]) -> ModelResponse:
    """Rebuild a response, as part of the current run."""
    if NATIVE not in value:
        return _plain_response(value)
    found = _RESPONSE.validate_python(value[NATIVE])
    return dataclasses.replace(found, run_id=None, conversation_id=None)


def _plain_response(value: Mapping[str, Any]) -> ModelResponse:
    """Build a response from OpenAI's chat dialect, as returned by a function given to a replay."""
    message = value["choices"][0]["message"]
    parts: list[Any] = [TextPart(message["content"])] if message.get("content") else []
    for call in message.get("tool_calls") or ():
        asked = call["function"]
        parts.append(ToolCallPart(asked["name"], asked.get("arguments") or "{}", tool_call_id=call["id"]))
    usage = value.get("usage") or {}
    spent = RequestUsage(
        input_tokens=usage.get("prompt_tokens") or 0, output_tokens=usage.get("completion_tokens") or 0
    )
    return ModelResponse(parts=parts, usage=spent, model_name=value.get("model"))
