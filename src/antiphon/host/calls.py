"""Guarded calls over HTTP: the envelope of the contract, for programs in any language."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from antiphon._scope import without_run
from antiphon.contract.result import ToolResultEnvelope
from antiphon.errors import InvalidInput
from antiphon.host.api_keys import Principal
from antiphon.host.host import Host, Rejected
from antiphon.host.workflow.nodes import SIDE_EFFECT_TOOL


def tools(host: Host, principal: Principal) -> dict[str, Any]:
    """What the registered tools declare."""
    known = host.tenant(principal.tenant).async_gateway.tools
    offered = [spec for name, spec in sorted(known.items()) if name != SIDE_EFFECT_TOOL or host.settings.test_seams]
    return {"tools": [spec.to_wire() for spec in offered]}


def with_key(envelope: dict[str, Any], key: str | None) -> dict[str, Any]:
    """The envelope with the key from the header, which must match its own."""
    payload = envelope.get("payload")
    if key is None or not isinstance(payload, dict):
        return envelope
    given = payload.get("idempotencyKey")
    if given is not None and given != key:
        text = "'Idempotency-Key' and 'payload.idempotencyKey' differ. Give one of them."
        raise InvalidInput(text, path="$.payload.idempotencyKey")
    return {**envelope, "payload": {**payload, "idempotencyKey": key}}


class Call:
    """One call that runs to completion, whether or not its client waits."""

    def __init__(self, host: Host, principal: Principal, envelope: dict[str, Any]) -> None:
        self._grace_over = host.grace_over
        self._gateway = host.tenant(principal.tenant).async_gateway
        if f"{envelope.get('toolNamespace')}/{envelope.get('toolName')}" == SIDE_EFFECT_TOOL:
            if not host.settings.test_seams:
                raise Rejected(404, "unknown_tool", f"Unknown tool {SIDE_EFFECT_TOOL}.")
        target = envelope.get("target")
        if isinstance(target, dict) and target.get("tenantId") not in (None, principal.tenant):
            text = "The tenant comes from the credential; leave 'tenantId' out."
            raise InvalidInput(text, path="$.target.tenantId")
        with without_run():
            call = self._gateway.envelope_call(envelope)
        if isinstance(call, ToolResultEnvelope):  # nothing was called or recorded
            error = call.error
            code, text = ("validation_error", "") if error is None else (error.code, error.message)
            raise Rejected(404 if code == "unknown_tool" else 400, code, text)
        self._call = call
        self._chunks: asyncio.Queue[tuple[str, Any] | None] = asyncio.Queue()
        with without_run():
            self._task = host.run_detached(principal.tenant, self._make())

    async def _make(self) -> dict[str, Any]:
        try:
            outcome = await self._gateway.run(self._call, lambda stream: _TeeStream(stream, self._chunks))
            return self._gateway.answer(self._call, outcome).to_wire()
        finally:
            self._chunks.put_nowait(None)

    async def result(self) -> dict[str, Any]:
        """The result envelope; waits no longer than shutdown allows."""
        await asyncio.wait((self._task, self._grace_over), return_when=asyncio.FIRST_COMPLETED)
        self._check_time()
        found: dict[str, Any] = self._task.result()
        return found

    def _check_time(self) -> None:
        if self._grace_over.done() and (not self._task.done() or self._task.cancelled()):
            text = (
                "The host is shutting down and no longer waits for this call, which may still take effect. "
                "Send it again with the same key in a few seconds: it is not made twice."
            )
            raise Rejected(503, "shutting_down", text)

    async def events(self, pause_s: float) -> AsyncIterator[tuple[str, Any]]:
        """Each ``chunk`` as it arrives, ``pause`` after *pause_s* without one, then ``result``."""
        number = 0
        while True:
            found: tuple[str, Any] | None = ("pause", None)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    found = await self._chunks.get()
            if found is None:
                break
            self._check_time()
            if found[0] == "chunk":
                yield "chunk", {"n": number, "data": found[1]}
                number += 1
            else:
                yield found
        yield "result", await self.result()


class _TeeStream:
    """A stream that is read to its end and copied to a listener."""

    def __init__(self, stream: Any, chunks: asyncio.Queue[tuple[str, Any] | None]) -> None:
        self._stream = stream
        self._chunks = chunks

    @property
    def state(self) -> Any:
        return self._stream.state

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for data in self._stream:
            self._chunks.put_nowait(("chunk", data))
            yield data
