"""``@trace_agent()`` and ``trace_agent_invoke()``: a session of a LangChain agent as one run and one artifact (K2)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage
from langchain_core.messages.utils import convert_to_openai_messages

from antiphon._recording.manifest import entry_of
from antiphon._recording.run import Run, active_run
from antiphon._scope import current_scope
from antiphon.adapters import _langchain as plain
from antiphon.ops.app import Antiphon, current, using
from antiphon.ops.artifacts import export_run

F = TypeVar("F", bound=Callable[..., Any])


def trace_agent(
    *, name: str | None = None, artifacts: str | Path | None = "artifacts", app: Antiphon | None = None
) -> Callable[[F], F]:
    """Make a function, usually ``main()``, one recorded run; its artifact is written when the function ends.

    Inside a run that is open already (``antiphon run``, a replay) the function is only called.
    """

    def decorate(function: F) -> F:
        title = name or function.__name__

        def opened(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Antiphon, Run]:
            chosen = app or current()
            given = {"args": list(args), **({"kwargs": kwargs} if kwargs else {})} if args or kwargs else None
            return chosen, chosen.run(title, input=given, entry=entry_of(function), function=function)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def traced_async(*args: Any, **kwargs: Any) -> Any:
                if current_scope() is not None:
                    return await function(*args, **kwargs)
                chosen, run = opened(args, kwargs)
                try:
                    with using(chosen):
                        async with run:
                            run.output = await function(*args, **kwargs)
                finally:
                    _export(chosen, run, artifacts)
                return run.output

            return traced_async  # type: ignore[return-value]

        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            if current_scope() is not None:
                return function(*args, **kwargs)
            chosen, run = opened(args, kwargs)
            try:
                with using(chosen), run:
                    run.output = function(*args, **kwargs)
            finally:
                _export(chosen, run, artifacts)
            return run.output

        return traced  # type: ignore[return-value]

    return decorate


def _export(app: Antiphon, run: Run, folder: str | Path | None) -> None:
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
        export_run(app, run.manifest, Path(folder) / f"{run.id}.antiphon")


def trace_agent_invoke(agent: Any, input: Any, llm: Any = None, config: Any = None, **options: Any) -> Any:  # noqa: A002
    """``agent.invoke(input)`` as one interaction of the open run; without one, as a run of its own.

    Give *llm*, so that model, provider, temperature and seed are known to the determinism score.
    """
    run = active_run.get()
    if run is not None:
        return _interact(run, agent, input, llm, config, options)
    app = current()
    run = app.run(_name(agent))
    try:
        with using(app), run:
            result = _interact(run, agent, input, llm, config, options)
            run.output = _said(result)
    finally:
        _export(app, run, "artifacts")
    return result


def _interact(run: Run, agent: Any, given: Any, llm: Any, config: Any, options: dict[str, Any]) -> Any:
    if llm is not None:
        run.describe(llm_config=plain.config_of(llm))
    with run.interaction(_shown(given)) as interaction:
        result = agent.invoke(given, config, **options)
        interaction.finish(_said(result))
    return result


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
