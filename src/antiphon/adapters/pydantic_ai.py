"""Pydantic AI: model requests recorded and replayed, tools run at most once per intent.

>>> from pydantic_ai import Agent                                               # doctest: +SKIP
>>> from antiphon.adapters.pydantic_ai import Reliable
>>> agent = Agent("openai:gpt-5", tools=[send_email], capabilities=[Reliable(session="ticket-7")])
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from antiphon.adapters._need import need

need("pydantic-ai")

from pydantic_ai import exceptions  # noqa: E402
from pydantic_ai.capabilities import AbstractCapability  # noqa: E402
from pydantic_ai.messages import ModelResponse  # noqa: E402

from antiphon.adapters import _pydantic_ai as plain  # noqa: E402
from antiphon.adapters._calls import Guard, Place, specs_of  # noqa: E402
from antiphon.adapters._model import Asking, ask_async  # noqa: E402
from antiphon.adapters._seam import recording_scope  # noqa: E402
from antiphon.contract.spec import ToolSpec  # noqa: E402
from antiphon.errors import Paused  # noqa: E402
from antiphon.ops.app import Antiphon  # noqa: E402

__all__ = ["Reliable"]

_DEFERRALS = {"CallDeferred": exceptions.CallDeferred, "ApprovalRequired": exceptions.ApprovalRequired}
_RETRY = "$modelRetry"
"""A tool that asks the model to try again has answered: its request is kept like a result."""


@dataclass
class Reliable(AbstractCapability[Any]):
    """Give it to ``Agent(capabilities=[…])``.

    *session* is an id that is the same after a restart; without one, Pydantic AI's ``conversation_id`` is taken, which
    message history carries. *declared* says what tools are, as specs or as ``{"send_email": {"idempotent": False}}``.
    """

    session: str | None = None
    declared: Iterable[ToolSpec] | Mapping[str, Mapping[str, Any]] | None = None
    app: Antiphon | None = None
    _guard: Guard = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._guard = Guard(specs_of(self.declared), self.app)

    async def wrap_model_request(self, ctx: Any, *, request_context: Any, handler: Any) -> ModelResponse:
        """Ask the model, or the replay."""
        scope = recording_scope()
        if scope is None:
            found: ModelResponse = await handler(request_context)
            return found
        model = request_context.model
        body = plain.request_body(
            model.model_name,
            request_context.messages,
            request_context.model_settings,
            request_context.model_request_parameters,
        )
        asking = Asking(body, plain.pack, plain.unpack, model.system or None, framework="pydantic-ai")
        said: ModelResponse = await ask_async(scope, asking, lambda: handler(request_context))
        return said

    async def wrap_tool_execute(self, ctx: Any, *, call: Any, tool_def: Any, args: Any, handler: Any) -> Any:
        """Make the call at most once."""

        async def body(params: dict[str, Any]) -> Any:
            try:
                return await handler(args)
            except exceptions.ModelRetry as retry:
                return {_RETRY: retry.message}
            except (exceptions.CallDeferred, exceptions.ApprovalRequired) as deferral:
                kept = {"kind": type(deferral).__name__, "metadata": deferral.metadata}
                raise Paused(json.dumps(kept, default=str)) from deferral

        spec = self._guard.spec(tool_def.name, tool_def.description or "")
        place = Place(self.session or ctx.conversation_id, call.tool_call_id)
        try:
            given = await self._guard.call_async(spec, call.args_as_dict(), place, body)
        except Paused as pause:
            raise _deferred(pause.message) from None
        if given.code == Paused.code:
            raise _deferred(given.message)
        if not given.ok:
            return given.message
        if isinstance(given.value, dict) and set(given.value) == {_RETRY}:
            raise exceptions.ModelRetry(given.value[_RETRY])
        return given.value


def _deferred(message: str) -> Exception:
    kept = json.loads(message)
    return _DEFERRALS[kept["kind"]](kept["metadata"])
