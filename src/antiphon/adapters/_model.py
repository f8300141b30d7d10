"""Model calls seen at a framework's own seam: one request in OpenAI's chat dialect, one response kept as it came."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from antiphon._drive import drive
from antiphon._recording import model
from antiphon._recording.boundary import Boundary
from antiphon._scope import RunScope
from antiphon.adapters._failures import failure_payload, raised_by_model
from antiphon.adapters._seam import inside
from antiphon.errors import InvalidInput

NATIVE = "native"
"""Where a recorded response keeps the framework's own form."""


class Asking(NamedTuple):
    """One model call of a framework."""

    body: dict[str, Any]
    """The request, in *dialect*."""
    pack: Callable[[Any], dict[str, Any]]
    """The framework's response as it is recorded."""
    unpack: Callable[[dict[str, Any]], Any]
    """… and back."""
    vendor: str | None = None
    dialect: str = "openai-chat"
    framework: str = ""
    outcome: Callable[[dict[str, Any]], tuple[str, dict[str, Any]]] | None = None
    """``ok`` or ``refusal``, usage and stop reason of a packed response; read from *dialect* if not given."""


def ask(scope: RunScope, asking: Asking, send: Callable[[], Any]) -> Any:
    """One synchronous call: answered by the replay, or made and recorded."""
    return drive(_ask(scope, asking, send, asynchronous=False))


async def _ask(scope: RunScope, asking: Asking, send: Callable[[], Any], *, asynchronous: bool = True) -> Any:
    boundary = open_asking(scope, asking, asynchronous=asynchronous, send=send)
    answer = None
    if scope.invoker is not None or scope.llm_cache is not None:
        answer = await boundary.answer()
    if not boundary.start_now():
        await boundary.start()
    if answer is not None:
        error = None if answer.error is None else dict(answer.error)
        await boundary.finish(answer.outcome, value=answer.value, error=error, meta=dict(answer.meta))
        if answer.outcome == "error":
            raise raised_by_model(answer)
        return asking.unpack(answer.value)
    token = inside.set(True)
    try:
        try:
            response = send()
            if asynchronous:
                response = await response
        finally:
            inside.reset(token)
    except BaseException as error:
        await boundary.finish("error", error=failure_payload(error))
        raise
    value = asking.pack(response)
    outcome, meta = outcome_of(value, asking.dialect) if asking.outcome is None else asking.outcome(value)
    if not boundary.finish_now(outcome, value, meta):
        await boundary.finish(outcome, value=value, meta=meta)
    return response


ask_async = _ask
"""One asynchronous call."""


def _verifying(asking: Asking, send: Callable[[], Any], asynchronous: bool) -> Callable[[Any], Any]:
    """How a replay asks the model for the sake of a comparison."""

    async def packed(response: Any) -> dict[str, Any]:
        return asking.pack(await response)

    return lambda body: packed(send()) if asynchronous else asking.pack(send())


def open_asking(
    scope: RunScope, asking: Asking, *, asynchronous: bool, stream: bool = False, send: Callable[[], Any] | None = None
) -> Boundary:
    """The boundary of the call. A replay that wants another model cannot put it into a framework's object."""
    verify = None
    if scope.invoker is not None:
        if dict(model.rewritten(scope, asking.body)) != asking.body:
            raise InvalidInput(
                f"The model of a {asking.framework} agent is chosen in its code, not by a replay's options.",
                hint="Change it there and replay with --explore.",
            )
        verify = None if send is None else _verifying(asking, send, asynchronous)
    return model.open_llm(
        scope,
        asking.body,
        asking.dialect,
        asynchronous=asynchronous,
        stream=stream,
        send=verify,
        vendor=asking.vendor,
        made_here=True,
        transport=asking.framework,
    )


def outcome_of(value: dict[str, Any], dialect: str) -> tuple[str, dict[str, Any]]:
    """``ok`` or ``refusal``, usage and stop reason of a response that was packed here: its shape is known."""
    if dialect != "openai-chat":
        return model.outcome_of(value, dialect)
    choice = value["choices"][0]
    usage = value.get("usage") or {}
    counts = {"inputTokens": usage.get("prompt_tokens"), "outputTokens": usage.get("completion_tokens")}
    meta: dict[str, Any] = {"usage": counts, "stopReason": choice.get("finish_reason")}
    refusal = choice["message"].get("refusal")
    return ("refusal", {**meta, "refusalReason": refusal}) if refusal else ("ok", meta)


def chat_response(
    *,
    text: Any,
    calls: list[dict[str, Any]],
    native: Any,
    model_name: str | None = None,
    refusal: str | None = None,
    stop: str | None = None,
    usage: tuple[int | None, int | None] | None = None,
) -> dict[str, Any]:
    """A response in OpenAI's chat dialect, with the framework's own form beside it."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = calls
    if refusal:
        message["refusal"] = refusal
    response: dict[str, Any] = {"model": model_name, "choices": [{"index": 0, "message": message}], NATIVE: native}
    if stop:
        response["choices"][0]["finish_reason"] = stop
    if usage is not None:
        response["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return response
