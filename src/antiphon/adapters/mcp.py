"""MCP clients: tool calls go through the gateway; a server's tool annotations are only suggestions.

>>> from mcp import Client                                                      # doctest: +SKIP
>>> from antiphon.adapters.mcp import protect
>>> async with Client(server) as client:
...     tools = protect(client, server="files")
...     await tools.list_tools()
...     result = await tools.call_tool("write_file", {"path": "a.txt", "text": "hi"}, call_id=call.id)
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from antiphon.adapters._requirements import require

require("mcp")

from mcp import MCPError  # noqa: E402
from mcp_types import INTERNAL_ERROR, REQUEST_TIMEOUT, CallToolResult, InputRequiredResult  # noqa: E402

from antiphon.adapters._calls import CallIdentity, GatewayLike, GuardedTools, Tools, specs_of  # noqa: E402
from antiphon.adapters._mcp import APPROVAL, ERROR, UNEXECUTED, guarded, leg_of, recorded_stdio  # noqa: E402
from antiphon.adapters._model import recorded_here  # noqa: E402
from antiphon.adapters.httpx import client_options  # noqa: E402
from antiphon.contract.spec import Effect, ToolSpec  # noqa: E402
from antiphon.errors import CallFailed  # noqa: E402

__all__ = ["GuardedClient", "NotExecuted", "connect", "guard", "protect", "suggested_spec"]

log: logging.Logger = logging.getLogger("antiphon.mcp")


class NotExecuted(MCPError):
    """The server refused a call before executing it (codes -32020 to -32022), so nothing happened."""


def suggested_spec(tool: Any, *, namespace: str, trusted: bool) -> tuple[ToolSpec, str]:
    """What a tool's annotations suggest, and who decided: ``default``, ``hint`` or ``trusted hint``.

    Hints from an untrusted server can only make us stricter: they never make a tool idempotent or harmless.
    """
    hints = getattr(tool, "annotations", None)
    about = {"name": tool.name, "namespace": namespace, "description": tool.description or "", "reuse": "turn"}
    if trusted and hints is not None and (hints.read_only_hint or hints.idempotent_hint):
        effect: Effect = "read" if hints.read_only_hint else "write"
        return ToolSpec(idempotent=True, effect=effect, **about), "trusted hint"
    if hints is None or hints.read_only_hint:
        return ToolSpec(idempotent=False, **about), "default"
    return ToolSpec(idempotent=False, effect="write", **about), "hint"


class GuardedClient:
    """A ``Client`` or ``ClientSession`` with guarded tool calls; everything else is delegated to the client."""

    def __init__(
        self,
        client: Any,
        server: str,
        tools: Tools = None,
        *,
        trusted: bool = False,
        session: str | None = None,
        app: GatewayLike | None = None,
    ) -> None:
        self._client = client
        self._namespace = f"mcp.{server}"
        declared = specs_of(tools)
        self._specs = {name: _certain(spec, self._namespace) for name, spec in declared.items()}
        self._declared = frozenset(declared)
        self._trusted = trusted
        self._session = session
        self._guard = GuardedTools({}, app)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def list_tools(self, **options: Any) -> Any:
        """List the server's tools and learn their annotations."""
        listed = await self._client.list_tools(**options)
        for tool in listed.tools:
            if tool.name in self._declared:
                log.info("%s/%s: the operator's declaration applies", self._namespace, tool.name)
                continue
            spec, source = suggested_spec(tool, namespace=self._namespace, trusted=self._trusted)
            self._specs[tool.name] = _certain(spec, self._namespace)
            log.info("%s/%s: idempotent=%s by %s", self._namespace, tool.name, spec.idempotent, source)
        return listed

    async def call_tool(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        read_timeout_seconds: float | None = None,
        progress_callback: Any = None,
        *,
        call_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Call a tool at most once per intent. *call_id* is the model's call id; it is not sent to the server.

        The result is a ``CallToolResult``, or an ``InputRequiredResult`` if that is allowed
        (``allow_input_required=True`` of a ``ClientSession``); the call that answers it is a separate leg.

        A call that times out is cancelled on the server (``notifications/cancelled``); its outcome is unknown, and the
        answer says so.
        """
        spec = self._specs.get(name)
        if spec is None:
            fresh = ToolSpec(name=name, idempotent=False, reuse="turn")
            spec = self._specs[name] = _certain(fresh, self._namespace)
        leg = leg_of(options.get("request_state"), options.get("input_responses"))
        if call_id is not None and leg is not None:
            call_id = f"{call_id}:{leg}"

        async def body(params: dict[str, Any]) -> Any:
            try:
                with recorded_here(), guarded(name, params):  # the gateway's event represents the underlying request
                    result = await self._client.call_tool(
                        name, params, read_timeout_seconds, progress_callback, **options
                    )
            except MCPError as error:
                if error.code in UNEXECUTED:
                    raise NotExecuted(error.code, error.message, error.data) from error
                raise
            return result.model_dump(mode="json", by_alias=True, exclude_none=True)

        try:
            given = await self._guard.call_async(
                spec, arguments or {}, CallIdentity(self._session, call_id, counted_in=""), body
            )
        except CallFailed as failure:
            raise _of_the_protocol(failure) from None
        if given.ok:
            result = _result_in(given.value)
            required = result.get("resultType") == "input_required"
            return (InputRequiredResult if required else CallToolResult).model_validate(result)
        said: dict[str, Any] = {"content": [{"type": "text", "text": given.message}], "isError": True}
        if given.question is not None:
            said["_meta"] = {APPROVAL: given.question}
        return CallToolResult.model_validate(said)


def _result_in(value: dict[str, Any]) -> dict[str, Any]:
    """The recorded result of a tool; raises the error with which its server answered a client of the proxy."""
    if ERROR not in value:
        return value
    error = value[ERROR]
    if error is None:
        result: dict[str, Any] = value["result"]
        return result
    raise MCPError(error.get("code", INTERNAL_ERROR), str(error.get("message", "")), error.get("data"))


def _of_the_protocol(failure: CallFailed) -> Exception:
    """Rebuild a recorded MCP error; if it was recorded without its code, only a timeout is recognised."""
    recorded = failure.data.get("recorded", {})
    kind = str(recorded.get("class", ""))
    if not kind.endswith((".MCPError", ".NotExecuted", "httpx.HTTPStatusError")):  # the last one is of the proxy
        return failure
    code = recorded.get("number", REQUEST_TIMEOUT if failure.message.endswith("timed out") else INTERNAL_ERROR)
    return (NotExecuted if kind.endswith(".NotExecuted") else MCPError)(code, failure.message)


def _certain(spec: ToolSpec, namespace: str) -> ToolSpec:
    """The spec in the server's namespace, with the errors that mean that the tool was not executed."""
    if spec.namespace != "tools":  # the operator declared another one
        namespace = spec.namespace
    return msgspec.structs.replace(spec, namespace=namespace, certain_errors=(*spec.certain_errors, NotExecuted))


def protect(
    client: Any,
    *,
    server: str,
    gateway: GatewayLike | None = None,
    tools: Tools = None,
    trusted: bool = False,
    session: str | None = None,
) -> GuardedClient:
    """The client with its tool calls sent through the gateway. *server* names it in records and in the run log.

    *tools* are declarations, which override the server's hints; *trusted* accepts its hints. *gateway* is an
    ``AsyncGateway`` or an ``Antiphon`` (default: the current one). *session* is an id that survives a restart.
    """
    return GuardedClient(client, server, tools, trusted=trusted, session=session, app=gateway)


def guard(client: Any, server: str, **options: Any) -> GuardedClient:
    """The name of :func:`protect` in 0.1.0."""
    return GuardedClient(client, server, **options)


def connect(server: Any, **options: Any) -> Any:
    """A replacement for *server* (a URL or ``StdioServerParameters``) in ``mcp.Client(...)``; a replay needs no server.

    Messages that no guard covers (the handshake, tool lists) are recorded and replayed.
    *options* are those of ``stdio_client`` or ``streamable_http_client``.
    """
    if not isinstance(server, str):
        from mcp.client.stdio import stdio_client

        return recorded_stdio(stdio_client)(server, **options)
    return _over_http(server, options)


@asynccontextmanager
async def _over_http(url: str, options: dict[str, Any]) -> AsyncIterator[Any]:
    from mcp.client.streamable_http import streamable_http_client

    httpx2 = require("httpx2")
    timeout = httpx2.Timeout(30, read=300)  # a server may keep a response stream open for a while
    client = httpx2.AsyncClient(timeout=timeout, **client_options(module=httpx2, asynchronous=True))
    async with client, streamable_http_client(url, **{"http_client": client, **options}) as streams:
        yield streams
