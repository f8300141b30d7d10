"""OpenAI Agents SDK: model calls recorded and replayed, function tools run at most once per intent.

>>> from agents import Agent, Runner                                            # doctest: +SKIP
>>> from antiphon.adapters.openai_agents import protect
>>> agent = protect(Agent(name="desk", tools=[send_email]), session="ticket-7")
>>> result = await Runner.run(agent, "…")
"""

from __future__ import annotations

import copy
import dataclasses
import json
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from functools import cache
from inspect import signature
from typing import Any, TypeVar, get_args

import orjson

from antiphon.adapters._requirements import require

require("openai-agents")

from agents import (  # noqa: E402
    Agent,
    FunctionTool,
    Handoff,
    Model,
    ModelProvider,
    ModelResponse,
    ModelSettings,
    MultiProvider,
    Usage,
)
from agents.items import TResponseOutputItem, TResponseStreamEvent  # noqa: E402
from pydantic import TypeAdapter  # noqa: E402

from antiphon._gateway.ids import uuid7  # noqa: E402
from antiphon._gateway.plan import Verdict  # noqa: E402
from antiphon._recording.plain import dump  # noqa: E402
from antiphon._scope import current_scope  # noqa: E402
from antiphon.adapters._calls import NOBODY, ApprovalContext, CallIdentity, GatewayLike, GuardedTools, Tools, specs_of  # noqa: E402
from antiphon.adapters._model import Codec, ModelCallSpec, ask_async, stream_async  # noqa: E402
from antiphon.ops.app import Antiphon  # noqa: E402

__all__ = ["RecordedModel", "RecordedProvider", "guard_tool", "protect"]

_RUN = "_antiphon_run"
_NAME = "openai-agents"
A = TypeVar("A", bound=Agent[Any])

_SETTINGS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "max_tokens": "max_output_tokens",
    "frequency_penalty": "frequency_penalty",
    "presence_penalty": "presence_penalty",
    "tool_choice": "tool_choice",
    "parallel_tool_calls": "parallel_tool_calls",
    "truncation": "truncation",
    "reasoning": "reasoning",
    "verbosity": "verbosity",
    "response_include": "include",
    "top_logprobs": "top_logprobs",
    "extra_body": "extra_body",
    "extra_args": "extra_args",
    "store": "store",
}
"""SDK settings -> fields of the Responses API, without those that do not affect the answer."""


class RecordedModel(Model):
    """A model whose responses and streams are recorded and replayed."""

    def __init__(self, inner: Model) -> None:
        self._inner = inner

    def get_retry_advice(self, request: Any) -> Any:
        """The retry advice of the wrapped model."""
        return self._inner.get_retry_advice(request)

    async def close(self) -> None:
        """Close the wrapped model."""
        await self._inner.close()

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        """One response."""
        said: ModelResponse = await ask_async(
            lambda: self._asking("get_response", *args, **options),
            lambda: self._inner.get_response(*args, **options),
        )
        return said

    def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        """One response as a stream."""

        def asking() -> ModelCallSpec:
            asked = self._asking("stream_response", *args, **options)
            return asked._replace(pack=lambda whole: whole, outcome=None)

        return stream_async(asking, lambda: self._inner.stream_response(*args, **options), _CODEC)

    def _asking(self, method: str, *args: Any, **options: Any) -> ModelCallSpec:
        """One call of *method*."""
        inner = self._inner
        named = isinstance(getattr(inner, "model", None), str)
        url = getattr(getattr(inner, "_client", None), "base_url", None)

        def change(wanted: dict[str, Any]) -> Callable[[], Any]:
            given = signature(getattr(Model, method)).bind(inner, *args, **options)
            asked = copy.copy(inner)
            if "model" in wanted:
                asked.model = wanted["model"]  # type: ignore[attr-defined]
            if "temperature" in wanted:
                other = ModelSettings(temperature=wanted["temperature"])
                given.arguments["model_settings"] = given.arguments["model_settings"].resolve(other)
            if "instructions" in wanted:
                given.arguments["system_instructions"] = wanted["instructions"]
            return lambda: getattr(asked, method)(*given.args[1:], **given.kwargs)

        return self._body(*args, **options)._replace(
            settable=("model", "temperature", "prompt") if named else ("temperature", "prompt"),
            change=change,
            endpoint=None if url is None else str(url),
        )

    def _body(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002
        model_settings: Any,
        tools: Iterable[Any],
        output_schema: Any,
        handoffs: Iterable[Handoff[Any, Any]],
        tracing: Any = None,
        **options: Any,
    ) -> ModelCallSpec:
        name = getattr(self._inner, "model", None)
        offered = [_tool(tool) for tool in (*(tools or ()), *(handoffs or ()))]
        body: dict[str, Any] = {
            "model": name if isinstance(name, str) else type(self._inner).__name__,
            "input": _plain(input),
            "tools": offered,
        }
        if system_instructions:
            body["instructions"] = system_instructions
        for setting, sent_as in _SETTINGS.items():
            value = getattr(model_settings, setting, None)
            if value is not None:
                body[sent_as] = orjson.loads(dump(value))
        if output_schema is not None and not output_schema.is_plain_text():
            schema = {"type": "json_schema", "name": output_schema.name(), "schema": output_schema.json_schema()}
            body["text"] = {"format": schema}
        for field in ("previous_response_id", "conversation_id"):
            if options.get(field) is not None:
                body[field] = options[field]
        return ModelCallSpec(body, _pack, _unpack, None, "openai-responses", "openai-agents", _outcome)


class RecordedProvider(ModelProvider):
    """For ``RunConfig(model_provider=…)``: records every model it provides."""

    def __init__(self, inner: ModelProvider | None = None) -> None:
        self._inner = inner if inner is not None else MultiProvider()

    def get_model(self, model_name: str | None) -> Model:
        """The named model, recorded."""
        return RecordedModel(self._inner.get_model(model_name))

    async def aclose(self) -> None:
        """Close the wrapped provider."""
        await self._inner.aclose()


def protect(
    agent: A,
    tools: Tools = None,
    *,
    gateway: GatewayLike | None = None,
    session: str | None = None,
    app: Antiphon | None = None,
) -> A:
    """The agent with its model recorded and its function tools behind the gateway, as well as its handoff agents.

    *tools* declares tools, as specs or as ``{"send_email": {"idempotent": False}}``; an undeclared tool counts as not
    idempotent. *gateway* is an ``AsyncGateway`` or an ``Antiphon`` (default: the current one). *session* is an id that
    survives a restart, such as that of a ticket or conversation; without one, calls are distinguished by their run.
    *app* is the name of *gateway* in 0.1.0.
    """
    guard = GuardedTools(specs_of(tools), gateway or app)
    done: dict[int, Any] = {}

    def one(found: Any) -> Any:
        if isinstance(found, Handoff):
            return _into(found, one)
        if not isinstance(found, Agent):
            return found
        if id(found) not in done:
            own = [guard_tool(tool, guard, session) if isinstance(tool, FunctionTool) else tool for tool in found.tools]
            own_copy = done[id(found)] = found.clone(tools=own, model=_recorded(found.model))
            own_copy.handoffs = [one(handoff) for handoff in found.handoffs]
        return done[id(found)]

    protected: A = one(agent)
    return protected


def _into(handoff: Handoff[Any, Any], one: Callable[[Any], Any]) -> Handoff[Any, Any]:
    """The handoff with *one* applied to its agent."""
    invoke = handoff.on_invoke_handoff

    async def given(context: Any, arguments: str) -> Any:
        return one(await invoke(context, arguments))

    found = copy.copy(handoff)
    found.on_invoke_handoff = given
    target = getattr(found, "_agent_ref", None)  # a run state looks up its agents here
    if target is not None and target() is not None:
        found._agent_ref = weakref.ref(one(target()))
    return found


def _recorded(model: Any) -> Any:
    if isinstance(model, RecordedModel):
        return model
    return RecordedModel(model if isinstance(model, Model) else MultiProvider().get_model(model))


def guard_tool(tool: FunctionTool, guard: GuardedTools, session: str | None = None) -> FunctionTool:
    """The tool with its calls sent through the gateway."""
    invoke = tool.on_invoke_tool
    spec = guard.spec(tool.name, tool.description)

    async def guarded(context: Any, arguments: str) -> Any:
        params = _arguments(arguments)

        async def body(given: dict[str, Any]) -> Any:
            return await invoke(context, arguments if given == params else json.dumps(given))

        place = CallIdentity(session, context.tool_call_id, counted_in=_response(context))
        approval = NOBODY
        if spec.approve is not None and context.is_tool_approved(tool.name, context.tool_call_id) is True:
            approval = ApprovalContext(Verdict(True, _NAME, _NAME))
        given = await guard.call_async(spec, params, place, body, approval)
        return given.value if given.ok else given.message

    if spec.approve is None:
        return dataclasses.replace(tool, on_invoke_tool=guarded)
    needs = tool.needs_approval

    async def asks(context: Any, params: dict[str, Any], call_id: str) -> bool:
        """Request approval, so that the interruption shows a stored question bound to these arguments."""
        place = CallIdentity(session, call_id, counted_in=_response(context))
        given = await guard.call_async(spec, params, place, _nothing, ApprovalContext(shown_in=_NAME, only_asks=True))
        if given.question is not None or not callable(needs):
            return given.question is not None or needs is True
        return bool(await needs(context, params, call_id))

    return dataclasses.replace(tool, on_invoke_tool=guarded, needs_approval=asks)


async def _nothing(params: dict[str, Any]) -> Any:
    raise AssertionError("a call that only asks dispatches nothing")


def _response(context: Any) -> str | None:
    """What distinguishes the model's response from others in this run, if the model counts its requests."""
    usage, agent = context.usage, getattr(context, "agent", None)
    number = getattr(usage, "requests", 0)
    if not number:
        return None
    scope = current_scope()
    if scope is None and not hasattr(usage, _RUN):
        setattr(usage, _RUN, uuid7())
    where = getattr(usage, _RUN) if scope is None else scope.run_id
    return f"{where}:{getattr(agent, 'name', '')}:{number}"


def _arguments(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = text
    return found if isinstance(found, dict) else {"input": found}


def _tool(tool: Any) -> dict[str, Any]:
    if isinstance(tool, FunctionTool):
        name, description, parameters = tool.name, tool.description, tool.params_json_schema
    elif isinstance(tool, Handoff):
        name, description, parameters = tool.tool_name, tool.tool_description, tool.input_json_schema
    else:
        return {"type": str(getattr(tool, "name", type(tool).__name__))}
    function = {"type": "function", "name": name, "description": description, "parameters": parameters}
    return {**function, "strict": tool.strict_json_schema}


def _plain(value: Any) -> Any:
    """Input items as data."""
    if type(value) is dict or type(value) is str:
        return value
    if isinstance(value, list):
        return [item if type(item) is dict else _plain(item) for item in value]
    return _dumped(value) if hasattr(value, "model_dump") else value


@cache
def _kinds(union: Any) -> dict[str, Any]:
    """The classes of an SDK union by their ``type`` field."""
    found: dict[str, Any] = {}
    for kind in get_args(get_args(union)[0] if hasattr(union, "__metadata__") else union):
        field = getattr(kind, "model_fields", {}).get("type")
        for name in get_args(field.annotation) if field is not None else ():
            found[name] = kind
    return found


def _made(union: Any, data: Any) -> Any:
    """Build SDK objects from recorded data as leniently as the SDK does, because servers omit fields."""
    kind = _kinds(union).get(str(data.get("type"))) if isinstance(data, dict) else None
    return data if kind is None else kind.construct(**data)


def _dumped(value: Any) -> Any:
    serializer = getattr(value, "__pydantic_serializer__", None)  # what model_dump() ends up calling
    if serializer is None:
        return value.model_dump(mode="json", exclude_unset=True, warnings=False)
    return serializer.to_python(value, mode="json", exclude_unset=True, warnings=False)


def _pack(response: ModelResponse) -> dict[str, Any]:
    """Pack an SDK response, whose output and usage already have the Responses API format."""
    return {
        "id": response.response_id,
        "output": [_plain(item) for item in response.output],
        "usage": _usage().serializer.to_python(response.usage, warnings=False),
        "requestId": response.request_id,
    }


def _outcome(value: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """``ok`` or ``refusal``, and the usage, of a packed response."""
    usage = value["usage"]
    counts = {"inputTokens": usage["input_tokens"], "outputTokens": usage["output_tokens"]}
    meta: dict[str, Any] = {"usage": counts, "stopReason": None}
    for item in value["output"]:
        parts = item.get("content") if type(item) is dict else None
        for part in parts if type(parts) is list else ():
            if type(part) is dict and part.get("type") == "refusal":
                return "refusal", {**meta, "refusalReason": part.get("refusal") or "refusal"}
    return "ok", meta


def _unpack(value: dict[str, Any]) -> ModelResponse:
    return ModelResponse(
        output=[_made(TResponseOutputItem, item) for item in value["output"]],
        usage=_usage().validate_python({"requests": 1, **(value.get("usage") or {})}),
        response_id=value.get("id"),
        request_id=value.get("requestId"),
    )


@cache
def _usage() -> TypeAdapter[Usage]:
    return TypeAdapter(Usage)


def _whole(chunks: list[Any]) -> dict[str, Any]:
    last = next((chunk.response for chunk in reversed(chunks) if getattr(chunk, "response", None)), None)
    return {} if last is None else _dumped(last)


def _parts(response: ModelResponse) -> list[Any]:
    """A response as a single stream event that contains all of it."""
    return [{"type": "response.completed", "sequence_number": 0, "response": {**_pack(response), "object": "response"}}]


_CODEC = Codec(_dumped, lambda data: _made(TResponseStreamEvent, data), _whole, _parts)
"""How stream events are recorded and rebuilt."""
