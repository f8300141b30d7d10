"""The discovery document, and the self-test that backs its claims (L7, D24, D26)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import orjson

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

log: logging.Logger = logging.getLogger("antiphon.host")


def _data(name: str) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads((files("antiphon.host") / name).read_bytes())
    return found


async def _nowhere(
    url: str, body: bytes, headers: Mapping[str, str], seconds: float, *, address: str | None = None
) -> tuple[int, bytes]:
    raise OSError("the self-test reaches nothing")


async def self_test(recipe: str) -> list[str]:
    """What this installation cannot support; empty if a known key and a small replay come out right."""
    known = _data("self_test.json")
    wrong: list[str] = []
    if llm_cache_key(known["request"], recipe=recipe) != known["keys"][recipe]:  # type: ignore[arg-type]
        wrong.append(f"the key recipe {recipe} does not give its known vector")
    from antiphon.stores import MemoryStore

    telemetry = TelemetrySection(logs=False, prefix="antiphon_self_test")  # keep its calls out of the host's metrics
    config = Config(host=HostSection(llm_key_recipe=recipe), telemetry=telemetry)  # type: ignore[arg-type]
    host = Host(Antiphon(config, store=MemoryStore()), _nowhere)
    await host.start(resume=False)
    try:
        host.add_workflow(parse(known["workflow"]))
        async with asyncio.timeout(10):
            wrong += await _replays(host, known)
    except Exception as error:
        log.exception("the self-test failed")
        wrong.append(f"the self-test raised {type(error).__name__}")
    finally:
        await host.stop()
    return wrong


async def _replays(host: Host, known: dict[str, Any]) -> list[str]:
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
    host.mock.program(me.tenant, {"nodeId": "answer", "program": known["refusal"]})
    if not _diverged(await fork("self-test-1", "self-test-3"), "valid", "refusal"):
        wrong.append("a refusal in a replay is not reported")
    host.mock.program(me.tenant, {"nodeId": "answer", "program": known["refusal"]})
    await start_run(host, me, {"workflowId": "self-test"}, "self-test-4")
    await finish("self-test-4")
    host.mock.program(me.tenant, {"nodeId": "answer", "program": known["valid"]})
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
    found = _data("discovery.json")
    families, phases = found["capabilities"], found["x-host-antiphon-phases"]
    families["replay"]["retention"] = {"windowSeconds": retention_seconds(host)}
    families["envelopes"]["reliability"]["maxRetryAttempts"] = MAX_ATTEMPTS
    if host.webhooks is None:
        del families["webhooks"]
    if not (host.self_test_result.get("passed") and host.config.record.enabled):  # what version 4 needs
        del families["multiAgent"]
        phases["honoured"] = []
    phases["llmKeyRecipe"] = recipe_name(host.settings.llm_key_recipe)
    phases["selfTest"] = host.self_test_result.get("failed") or "passed"
    found["implementation"]["version"] = __version__
    found["limits"] |= {"schemaRounds": MAX_ATTEMPTS - 1, "maxRequestBodyBytes": host.settings.max_body_bytes}
    return {**found, "fixtures": sorted(host.workflows), **families}
