"""A session of a LangChain agent as one run and one artifact (K2)."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool

from antiphon._recording.manifest import entry_of
from antiphon._recording.run import Run, active_run
from antiphon._scope import current_scope
from antiphon.adapters._langchain_calls import (
    CODEC,
    RecordedChatModel,
    ToolCalls,
    as_chunk,
    config_of,
    guarded_call,
    through,
)
from antiphon.adapters._model import ask, ask_async, recording_scope, stream, stream_async
from antiphon.ops import storage
from antiphon.ops.app import Antiphon, current, using
from antiphon.ops.artifacts import export_run

F = TypeVar("F", bound=Callable[..., Any])


CONFIGURED: Any = object()
"""Write artifacts to the configured folder or bucket."""


def trace_agent(
    *, name: str | None = None, artifacts: str | Path | None = CONFIGURED, app: Antiphon | None = None
) -> Callable[[F], F]:
    """Record each call of a function, usually ``main()``, as one run and write its artifact at the end.

    The artifact goes to the configured storage (``[artifacts]``) or to the folder *artifacts*; ``None`` writes none.
    If a run is already open (``antiphon run``, a replay), the function is just called.
    """

    def decorate(function: F) -> F:
        title = name or function.__name__

        def opened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AbstractContextManager[Run]:
            given = {"args": list(args), **({"kwargs": kwargs} if kwargs else {})} if args or kwargs else None
            about = {"input": given, "entry": entry_of(function), "function": function}
            return _exported(app or current(), title, artifacts, **about)

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
    """A run of *app* whose artifact is written when it ends, even if it fails."""
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
    """Call ``agent.invoke(input)`` as one interaction of the open run, or else as its own run.

    The agent's model and tool calls are recorded, guarded and replayed, with or without the middleware. Pass *llm* so
    that the determinism score knows model, provider, temperature and seed.
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
"""Set while :func:`trace_agent_invoke` runs an agent, so that its chat models and tools are seen everywhere."""


def _is_traced(model: Any) -> bool:
    """Whether to record a chat model's call; another wrapper may already do it."""
    is_ours = _traced.get() is not None and not isinstance(model, RecordedChatModel)
    return is_ours and recording_scope() is not None


@functools.cache
def _hook() -> None:
    """Patch LangChain's chat models and tools to check for tracing; otherwise they behave as before."""
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

        if not _is_traced(self):
            found: ChatResult = generate(self, messages, stop, run_manager, **options)
            return found
        return result_of(through(ask, self, messages, stop, options, call))

    @functools.wraps(agenerate)
    async def agenerated(
        self: Any, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        async def call(model: Any, messages: Any) -> Any:
            return (await agenerate(model, list(messages), stop, run_manager, **options)).generations[0].message

        if not _is_traced(self):
            found: ChatResult = await agenerate(self, messages, stop, run_manager, **options)
            return found
        return result_of(await through(ask_async, self, messages, stop, options, call))

    kind._generate_with_cache, kind._agenerate_with_cache = generated, agenerated


def _hook_streams(kind: Any) -> None:
    stream_, astream_ = kind.stream, kind.astream

    @functools.wraps(stream_)
    def streamed(self: Any, input: Any, config: Any = None, *, stop: Any = None, **options: Any) -> Iterator[Any]:  # noqa: A002
        def call(model: Any, messages: Any) -> Iterator[Any]:
            return map(as_chunk, stream_(model, messages, config, stop=stop, **options))

        if not _is_traced(self):
            yield from stream_(self, input, config, stop=stop, **options)
            return
        messages = self._convert_input(input).to_messages()
        yield from through(stream, self, messages, stop, options, call, CODEC)

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
                yield as_chunk(chunk)

        if not _is_traced(self):
            async for chunk in astream_(self, input, config, stop=stop, **options):
                yield chunk
            return
        messages = self._convert_input(input).to_messages()
        async for chunk in through(stream_async, self, messages, stop, options, call, CODEC):
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
    """The guard for a tool call; none outside a traced agent or inside a call that is already guarded."""
    calls = _traced.get()
    if calls is None or current_scope() is None:
        return None
    known = options.get("tool_call_id")
    return None if known is not None and known == guarded_call.get() else calls


def _name(agent: Any) -> str:
    name = getattr(agent, "name", None)
    return name if isinstance(name, str) and name else "agent"


def _shown(value: Any) -> Any:
    """An input without the random message ids."""
    if isinstance(value, BaseMessage):
        return convert_to_openai_messages(value)
    if isinstance(value, Mapping):
        return {str(name): _shown(item) for name, item in value.items()}
    return [_shown(item) for item in value] if isinstance(value, (list, tuple)) else value


def _said(result: Any) -> Any:
    """The agent's answer: its output or last message."""
    if not isinstance(result, Mapping):
        return _shown(result)
    if "output" in result:
        return _shown(result["output"])
    messages = result.get("messages")
    if messages:
        last = messages[-1]
        return last.text if isinstance(last, BaseMessage) else _shown(last)
    return _shown(result)
