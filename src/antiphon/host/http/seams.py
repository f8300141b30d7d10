"""Test seams: only behind an explicit switch, and with a key like everything else (L8)."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from antiphon._gateway.ids import uuid7
from antiphon.canonical import parse_json
from antiphon.errors import InvalidInput
from antiphon.host.api_keys import Principal
from antiphon.host.host import Host
from antiphon.host.http.endpoint import Json, body_of, error
from antiphon.host.workflow.identity import logical_invocation_id
from antiphon.host.workflow.nodes import SIDE_EFFECT_TOOL
from antiphon.llm.key import llm_cache_key

_EXECUTORS = 64


async def cache_key(request: Request, host: Host, principal: Principal) -> Response:
    """``…/llm-cache-key``: the key of a request under the configured recipe; anything not in the recipe is noise."""
    await body_of(request, host)
    try:
        body = parse_json(getattr(request.state, "raw", b"{}"))
        if not isinstance(body, dict):
            raise InvalidInput("The body is a JSON object.")
        key = llm_cache_key(body, recipe=host.settings.llm_key_recipe)
    except InvalidInput as problem:
        return error(400, "invalid_argument", str(problem), {"path": problem.path})
    return Json({"cacheKey": key})


async def program(request: Request, host: Host, principal: Principal) -> Response:
    """``…/mock-ai/program``: what the mock provider answers next for a node; replaces what was programmed."""
    body = await body_of(request, host)
    node = body.get("nodeId")
    if not isinstance(node, str) or not node:
        raise InvalidInput("'nodeId' is a non-empty string.", path="$.nodeId")
    entries = host.mock.program(principal.tenant, node, body.get("program"))
    return Json({"nodeId": node, "entries": entries})


async def reset(request: Request, host: Host, principal: Principal) -> Response:
    """``…/mock-ai/reset``: forget all programs of the tenant."""
    await body_of(request, host)
    return Json({"forgotten": host.mock.reset(principal.tenant)})


async def concurrent_claim(request: Request, host: Host, principal: Principal) -> Response:
    """``…/idempotency/concurrent-claim``: many executors of one logical effect; one delivers it."""
    body = await body_of(request, host)
    executors = body.get("executors", 2)
    if isinstance(executors, bool) or not isinstance(executors, int) or not 1 <= executors <= _EXECUTORS:
        raise InvalidInput(f"'executors' is a number from 1 to {_EXECUTORS}.", path="$.executors")
    run = uuid7()
    key = logical_invocation_id(principal.tenant, run, "effect", 0, SIDE_EFFECT_TOOL)
    namespace, _, tool = SIDE_EFFECT_TOOL.partition("/")

    async def execute() -> tuple[str, bool]:
        minted = logical_invocation_id(principal.tenant, run, "effect", 0, SIDE_EFFECT_TOOL)
        envelope: dict[str, Any] = {
            "contractVersion": "1.1",
            "requestId": uuid7(),
            "toolName": tool,
            "toolNamespace": namespace,
            "target": {"sessionKey": f"run:{run}", "actorId": "host"},
            "payload": {"version": "1.0", "params": {"nodeId": "effect"}, "idempotencyKey": minted},
            "transport": {"dedupeMode": "enforced", "retryBudget": {"maxAttempts": 1, "maxElapsedMs": 10_000}},
            "control": {},
            "trace": {},
        }
        result = await host.tenant(principal.tenant).gateway.execute(envelope)
        return minted, result.status == "success" and not result.from_cache

    outcomes = await asyncio.gather(*(execute() for _ in range(executors)))
    return Json(
        {
            "logicalInvocationId": key,
            "mintedIds": [minted for minted, _ in outcomes],
            "attempted": executors,
            "delivered": sum(delivered for _, delivered in outcomes),
        }
    )
