"""What the host says of itself, and the test it passes before it says so (L7, D24, D26)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from antiphon._version import __version__
from antiphon.config.model import Config, HostSection, TelemetrySection
from antiphon.host.api_keys import Principal
from antiphon.host.events import document
from antiphon.host.host import Host, HostRun
from antiphon.host.llm import MAX_ATTEMPTS
from antiphon.host.runs import fork_run, recipe_name, retention_seconds, start_run
from antiphon.host.workflow.model import parse
from antiphon.llm.key import llm_cache_key
from antiphon.ops.app import Antiphon

log = logging.getLogger("antiphon.host")

PROTOCOL_VERSION = "1.1"
EXPERIMENTAL_UNTIL = "2027-12-31"
_REQUEST = {"provider": "anthropic", "model": "claude-x", "messages": [{"role": "user", "content": "hello"}]}
_VECTORS: Mapping[str, str] = {
    "semantic-request-v2": "c92498949e9cc0e38bb2887e88e55b6936932e219b8344f0a7059b1de960073d",
    "rfc0041": "0f17ffb17227e02b40af8d5dd423e270535889d24e84d436b70375e725e05174",
}
_MODEL_NODE = {
    "id": "answer",
    "typeId": "core.ai.structuredOutput",
    "config": {
        "provider": "mock",
        "model": "mock-mini",
        "outputSchema": {"type": "object", "required": ["valid"], "properties": {"valid": {"type": "boolean"}}},
    },
    "inputs": {"messages": {"type": "static", "value": [{"role": "user", "content": "hello"}]}},
}
_WORKFLOW = {
    "id": "self-test",
    "nodes": [
        {"id": "draw", "typeId": "core.noop", "config": {"nondeterministic": True}},
        {"id": "effect", "typeId": "core.conformance.side-effect"},
        _MODEL_NODE,
    ],
    "edges": [
        {"id": "1", "sourceNodeId": "draw", "targetNodeId": "effect"},
        {"id": "2", "sourceNodeId": "effect", "targetNodeId": "answer"},
    ],
}
_REFUSAL = [{"content": "no", "stopReason": "safety", "refusalText": "no"}]
_VALID = [{"content": '{"valid":true}'}]


async def _nowhere(url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> tuple[int, bytes]:
    raise OSError("the self-test reaches nothing")


async def self_test(recipe: str) -> list[str]:
    """What this installation cannot honour; empty if a known key and a small replay come out right."""
    wrong: list[str] = []
    if llm_cache_key(_REQUEST, recipe=recipe) != _VECTORS[recipe]:  # type: ignore[arg-type]
        wrong.append(f"the key recipe {recipe} does not give its known vector")
    from antiphon.stores import MemoryStore

    config = Config(host=HostSection(llm_key_recipe=recipe), telemetry=TelemetrySection(logs=False))  # type: ignore[arg-type]
    host = Host(Antiphon(config, store=MemoryStore()), _nowhere)
    await host.start(resume=False)
    try:
        host.add_workflow(parse(_WORKFLOW))
        async with asyncio.timeout(10):
            wrong += await _replays(host)
    except Exception as error:
        log.exception("the self-test failed")
        wrong.append(f"the self-test raised {type(error).__name__}")
    finally:
        await host.stop()
    return wrong


async def _replays(host: Host) -> list[str]:
    me = Principal("self-test", host.app.tenant, "admin")
    wrong: list[str] = []

    async def finish(run: str) -> list[dict[str, Any]]:
        local = host.running.get(run)
        if local is not None and local.task is not None:
            await local.task
        events = await HostRun.reader(host, run, host.app.tenant).more()
        return [document(run, event) for event in events]

    def observable(events: list[dict[str, Any]]) -> list[Any]:
        return [(event["sequence"], event["type"], event["payload"]) for event in events]

    async def fork(source: str, name: str) -> list[dict[str, Any]]:
        await fork_run(host, me, source, {"mode": "replay"}, name)
        return await finish(name)

    await start_run(host, me, {"workflowId": "self-test"}, "self-test-1")
    original = await finish("self-test-1")
    if observable(original) != observable(await fork("self-test-1", "self-test-2")):
        wrong.append("a replay does not reproduce its source")
    host.mock.program(me.tenant, "answer", _REFUSAL)
    if not _diverged(await fork("self-test-1", "self-test-3"), "valid", "refusal"):
        wrong.append("a refusal in a replay is not reported")
    host.mock.program(me.tenant, "answer", _REFUSAL)
    await start_run(host, me, {"workflowId": "self-test"}, "self-test-4")
    await finish("self-test-4")
    host.mock.program(me.tenant, "answer", _VALID)
    if not _diverged(await fork("self-test-4", "self-test-5"), "refusal", "valid"):
        wrong.append("an answer in the replay of a refusal is not reported")
    return wrong


def _diverged(events: list[dict[str, Any]], before: str, now: str) -> bool:
    found = [event["payload"] for event in events if event["type"] == "replay.divergedAtRefusal"]
    kinds = [(one["originalEnvelopeKind"], one["replayEnvelopeKind"]) for one in found]
    code = events[-1]["payload"].get("error", {}).get("code")
    return kinds == [(before, now)] and code == "replay_diverged_at_refusal"


def discovery(host: Host) -> dict[str, Any]:
    """The document at ``/.well-known/openwop``."""
    families: dict[str, Any] = {
        "replay": {
            "supported": True,
            "fork": True,
            "modes": ["replay", "branch"],
            "sideEffectSuppression": "recorded-outcome",
            "retention": {"windowSeconds": retention_seconds(host)},
        },
        "envelopes": {
            "reliability": {
                "supported": True,
                "events": ["envelope.retry.attempted", "envelope.retry.exhausted", "envelope.refusal"],
                "maxRetryAttempts": MAX_ATTEMPTS,
            }
        },
        "idempotency": {"supported": True, "layers": [1, 2], "retentionSeconds": 86_400},
    }
    if host.webhooks is not None:
        families["webhooks"] = {"supported": True}
    honoured = claims_version_4(host)
    if honoured:
        families["multiAgent"] = {
            "executionModel": {
                "supported": True,
                "version": 4,
                "tier": "experimental",
                "experimentalUntil": EXPERIMENTAL_UNTIL,
                "replayDeterminism": {
                    "supported": True,
                    "llmCacheKeyRecipe": "spec-rfc-0041",
                    "refusalDivergenceEmission": True,
                },
            }
        }
    phases = {
        "honoured": ["phase 4: replay determinism (cache key, refusal divergence, observable sequence)"]
        if honoured
        else [],
        "notHonoured": [
            "phase 1: handoff state machine",
            "phase 2: confidence escalation and memory snapshots",
            "phase 3: cross-host causation",
        ],
        "llmKeyRecipe": recipe_name(host.settings.llm_key_recipe),
        "selfTest": host.claims.get("failed") or "passed",
    }
    return {
        "protocolVersion": PROTOCOL_VERSION,
        "implementation": {"name": "antiphon", "version": __version__},
        "supportedEnvelopes": ["structured-output"],
        "schemaVersions": {"run-event": 1, "run-snapshot": 1, "workflow": 1},
        "limits": {
            "clarificationRounds": 0,
            "schemaRounds": MAX_ATTEMPTS - 1,
            "envelopesPerTurn": 1,
            "maxRequestBodyBytes": host.settings.max_body_bytes,
            "idempotencyAckTimeoutSec": 15,
        },
        "fixtures": sorted(host.workflows),
        "openapi": "/v1/openapi.json",
        **families,
        "capabilities": families,
        "x-host-antiphon-phases": phases,
    }


def claims_version_4(host: Host) -> bool:
    """Whether configuration and self-test allow the claim; without them the host says less."""
    return bool(host.claims.get("passed")) and host.config.record.enabled
