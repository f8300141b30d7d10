"""Before- and after-hooks: once per attempt, once for a call that is answered without one (R10, TR-12)."""

from __future__ import annotations

import contextvars
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from antiphon._gateway.outcome import Outcome
from antiphon._late import traceback_of
from antiphon.errors import InvalidInput

log = logging.getLogger("antiphon.hooks")


class HookCall(NamedTuple):
    """What a hook receives."""

    tool: str
    namespace: str
    params: Mapping[str, Any]
    session: str
    actor: str
    request_id: str
    call_id: str | None
    attempt: int


class HookReply(NamedTuple):
    """What a before-hook may return; if it supplies the key, its name is ``fromHook`` in logs."""

    idempotency_key: str | None = None
    timeout_ms: int | None = None
    safety_critical: bool | None = None
    expected_retry_safe: bool | None = None
    name: str = "hook"


Before = Callable[[HookCall], HookReply | Awaitable[HookReply | None] | None]
After = Callable[[HookCall, Outcome], Awaitable[None] | None]


def _awaited(answer: Any) -> Any:
    """What a hook returned; a coroutine is run to its end, in an event loop of its own on another thread."""
    if not inspect.isawaitable(answer):
        return answer
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    async def whole() -> Any:
        return await answer

    with ThreadPoolExecutor(1, "antiphon-hook") as thread:
        return thread.submit(contextvars.copy_context().run, asyncio.run, whole()).result()


def _add(hooks: list[Any], hook: Any, rule: str, *given: Any) -> None:
    """Register a hook that can be called with what is *given*; one that cannot be inspected is accepted."""
    try:
        inspect.signature(hook).bind(*given)
    except TypeError:
        name = getattr(hook, "__qualname__", repr(hook))
        raise InvalidInput(f"{name} cannot be used as a hook.", hint=f"{rule}.") from None
    except ValueError:
        pass
    if hook not in hooks:
        hooks.append(hook)


class Hooks:
    """The registered hooks. Registering the same function twice has no further effect."""

    __slots__ = ("afters", "befores")

    def __init__(self) -> None:
        self.befores: list[Before] = []
        self.afters: list[After] = []

    @property
    def active(self) -> bool:
        return bool(self.befores or self.afters)

    def add_before(self, hook: Before) -> None:
        _add(self.befores, hook, "A before-hook takes one parameter: def hook(call: HookCall)", None)

    def add_after(self, hook: After) -> None:
        _add(self.afters, hook, "An after-hook takes two parameters: def hook(call: HookCall, outcome)", None, None)

    def before(self, call: HookCall) -> HookReply | None:
        """Run every before-hook; the first reply counts. One that raises stops the call."""
        reply: HookReply | None = None
        for hook in self.befores:
            answer = _awaited(hook(call))
            if answer is not None and not isinstance(answer, HookReply):
                raise TypeError(f"a before-hook returns HookReply or None, not {type(answer).__name__} ({hook!r})")
            if answer is not None and answer.idempotency_key is not None and not answer.idempotency_key:
                raise ValueError(
                    f"a before-hook gave an empty key: leave idempotency_key out or name the call ({hook!r})"
                )
            if reply is None and answer is not None:
                reply = answer
        return reply

    def after(self, call: HookCall, outcome: Outcome, secrets: Callable[[], Mapping[str, str]]) -> None:
        """Run every after-hook; the call has happened, so a failing hook is only logged, without the *secrets*."""
        for hook in self.afters:
            try:
                _awaited(hook(call, outcome))
            except Exception as error:
                name = getattr(hook, "__qualname__", type(hook).__name__)
                log.error("after-hook %s failed\n%s", name, traceback_of(error, secrets()))
