"""The RFC's three conformance scenarios, with the behaviour upstream left open, over real HTTP (L8, L9, RFC 0041)."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from antiphon.canonical import canonical_json
from tests.integration.server import workflows
from tests.integration.server.harness import KEY, Client, Served, observable, serving

VECTORS = Path(__file__).parents[1] / "vectors" / "openwop-semantic-request-v2.json"
SEAM = "/v1/host/sample/test"
RFC0041: dict[str, Any] = {
    "model": "gpt-x",
    "provider": "openai",
    "messages": [{"role": "user", "content": "Grüße, 世界"}],
    "tools": [{"name": "b", "parameters": {}}, {"name": "a", "parameters": {"type": "object"}}],
    "temperature": 0.25,
    "responseSchema": {"type": "object"},
}
NOISE = {"requestId": "r-1", "traceparent": "00-ab", "tenantId": "t", "stream": True, "user": "u", "timeout": 3}
VALID = {"content": '{"valid":true}', "stopReason": "end_turn"}
REFUSAL = {"content": "no", "stopReason": "safety", "refusalText": "refused for a reason"}


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return workflows.write(tmp_path_factory.mktemp("flows"))


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, flows: Path) -> Iterator[Served]:
    """A host with today's public recipe."""
    environment = {"ANTIPHON_HOST_LLM_KEY_RECIPE": "semantic-request-v2"}
    with serving(tmp_path_factory.mktemp("one"), flows, **environment) as served:
        yield served


@pytest.fixture(scope="module")
def other_host(tmp_path_factory: pytest.TempPathFactory, flows: Path) -> Iterator[Served]:
    """A second one, with nothing in common but the recipe."""
    environment = {"ANTIPHON_HOST_LLM_KEY_RECIPE": "semantic-request-v2", "ANTIPHON_TENANT": "elsewhere"}
    with serving(tmp_path_factory.mktemp("two"), flows, **environment) as served:
        yield served


@pytest.fixture(scope="module")
def rfc_host(tmp_path_factory: pytest.TempPathFactory, flows: Path) -> Iterator[Served]:
    """A host with the seed document's recipe."""
    with serving(tmp_path_factory.mktemp("rfc"), flows) as served:
        yield served


async def key_of(served: Served, request: dict[str, Any]) -> str:
    async with served.client() as client:
        answer = await client.post(f"{SEAM}/llm-cache-key", json=request)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["cacheKey"])


# -- replay-llm-cache-key, replay-llm-cache-key-portable ---------------------------------------------------------------


async def test_replay_llm_cache_key_portable_golden_vectors(host: Served, other_host: Served) -> None:
    """Both hosts give the published digest of every vector."""
    vectors = json.loads(VECTORS.read_text())["vectors"]
    assert len(vectors) == 13
    for vector in vectors:
        for served in (host, other_host):
            assert await key_of(served, vector["input"]) == vector["digest"], vector["id"]


async def test_replay_llm_cache_key_equals_an_offline_computation(host: Served, rfc_host: Served) -> None:
    tools = sorted(RFC0041["tools"], key=lambda tool: tool["name"])
    offline = hashlib.sha256(canonical_json({**RFC0041, "tools": tools})).hexdigest()
    assert await key_of(rfc_host, RFC0041) == offline
    inner = {"messages": RFC0041["messages"], "temperature": 0.25, "tools": tools}
    semantic = {"recipe": "openwop-semantic-request-v2", "provider": "openai", "model": "gpt-x", "request": inner}
    assert await key_of(host, RFC0041) == hashlib.sha256(canonical_json(semantic)).hexdigest()


async def test_replay_llm_cache_key_is_64_hexadecimal_digits(host: Served, rfc_host: Served) -> None:
    for served in (host, rfc_host):
        assert re.fullmatch("[0-9a-f]{64}", await key_of(served, RFC0041))


async def test_replay_llm_cache_key_noise_does_not_matter(host: Served, rfc_host: Served) -> None:
    for served in (host, rfc_host):
        assert await key_of(served, {**RFC0041, **NOISE}) == await key_of(served, RFC0041)


async def test_replay_llm_cache_key_every_field_matters(rfc_host: Served) -> None:
    changes: dict[str, Any] = {
        "model": "gpt-y",
        "provider": "azure",
        "messages": [{"role": "user", "content": "Gru\u0308ße, 世界"}],
        "tools": [],
        "temperature": 0.5,
        "responseSchema": None,
    }
    keys = {await key_of(rfc_host, RFC0041)}
    for name, value in changes.items():
        keys.add(await key_of(rfc_host, {**RFC0041, name: value}))
    assert len(keys) == 1 + len(changes)


async def test_replay_llm_cache_key_two_hosts_agree(host: Served, other_host: Served) -> None:
    for request in (RFC0041, {**RFC0041, "temperature": 1e-7}, {**RFC0041, "stop": []}, {**RFC0041, "seed": 7}):
        assert await key_of(host, request) == await key_of(other_host, request)


async def test_replay_llm_cache_key_refuses_what_has_no_key(host: Served) -> None:
    bad = [
        b"{}",
        b'{"provider":"p","model":"m"}',
        b'{"provider":"p","model":"m","messages":"hi"}',
        b'{"provider":"p","model":7,"messages":[]}',
        b'{"provider":"p","provider":"q","model":"m","messages":[]}',
        b'{"provider":"p","model":"m","messages":[{"role":"user","content":9007199254740993}]}',
    ]
    async with host.client() as client:
        for body in bad:
            answer = await client.post(
                f"{SEAM}/llm-cache-key", content=body, headers={"Content-Type": "application/json"}
            )
            assert (answer.status_code, answer.json()["error"]) == (400, "invalid_argument"), body


async def test_replay_llm_cache_key_recipe_is_advertised_as_it_is(host: Served, rfc_host: Served) -> None:
    for served, exact in ((host, "openwop-semantic-request-v2"), (rfc_host, "rfc0041")):
        async with served.client() as client:
            document = (await client.get("/.well-known/openwop")).json()
        claim = document["multiAgent"]["executionModel"]["replayDeterminism"]
        assert claim["llmCacheKeyRecipe"] == "spec-rfc-0041"
        assert document["x-host-antiphon-phases"]["llmKeyRecipe"] == exact


async def test_replay_llm_cache_key_of_a_run_is_the_seams(host: Served) -> None:
    """The key a run recorded is the one anybody computes from its request."""
    async with host.client() as client:
        run = await client.run("conformance-phase4-replay-divergence")
        assert run["status"] == "completed"
    import sqlite3

    request = {
        "provider": "mock",
        "model": "mock-mini",
        "messages": workflows.MESSAGES,
        "responseFormat": {"type": "json_schema", "schema": workflows.SCHEMA},
    }
    expected = await key_of(host, request)
    database = sqlite3.connect(host.folder / "host.db")
    rows = [json.loads(body) for (body,) in database.execute("select body from events where type = 'call.started'")]
    assert expected in [row["payload"].get("key") for row in rows]


# -- replay-divergence-at-refusal --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second", "kinds"),
    [(VALID, REFUSAL, ("valid", "refusal")), (REFUSAL, VALID, ("refusal", "valid"))],
    ids=["valid-then-refusal", "refusal-then-valid"],
)
async def test_replay_divergence_at_refusal(
    host: Served, first: dict[str, Any], second: dict[str, Any], kinds: tuple[str, str]
) -> None:
    async with host.client() as client:
        await client.program("structured-call", first)
        source = await client.run("conformance-phase4-replay-divergence")
        assert source["status"] == ("completed" if kinds[0] == "valid" else "failed")
        await client.program("structured-call", second)
        answer = await client.post(f"/v1/runs/{source['runId']}:fork", json={"fromSeq": 0, "mode": "replay"})
        assert answer.status_code == 201
        replay = await client.ended(answer.json()["runId"])
        events = await client.events(replay["runId"])
        await client.post(f"{SEAM}/mock-ai/reset", json={})
    assert (replay["status"], replay["error"]["code"]) == ("failed", "replay_diverged_at_refusal")
    found = [event for event in events if event["type"] == "replay.divergedAtRefusal"]
    assert len(found) == 1
    payload = found[0]["payload"]
    jsonschema.validate(
        payload,
        {
            "type": "object",
            "required": ["sourceRunId", "atSequence", "originalEnvelopeKind", "replayEnvelopeKind"],
            "properties": {
                "sourceRunId": {"const": source["runId"]},
                "atSequence": {"type": "integer", "minimum": 0},
                "originalEventId": {"type": "string"},
                "nodeId": {"const": "structured-call"},
                "originalEnvelopeKind": {"const": kinds[0]},
                "replayEnvelopeKind": {"const": kinds[1]},
                "refusalReason": {"type": "string"},
            },
            "additionalProperties": False,
        },
    )
    failed = [event for event in events if event["type"] == "node.failed"]
    assert [event["payload"]["error"]["code"] for event in failed] == ["replay_diverged_at_refusal"]
    assert not [event for event in events if event["type"] == "node.completed"]
    assert replay["error"]["details"]["atSequence"] == payload["atSequence"]


async def test_replay_divergence_at_refusal_advertisement(host: Served) -> None:
    async with host.client(follow_redirects=False) as client:
        document = (await client.get("/.well-known/openwop")).json()
    model = document["multiAgent"]["executionModel"]
    assert model["version"] >= 4
    assert model["replayDeterminism"]["refusalDivergenceEmission"] is True


# -- replay-observable-sequence-determinism ----------------------------------------------------------------------------


async def test_replay_observable_sequence_determinism_of_a_nondeterministic_tool(host: Served) -> None:
    async with host.client() as client:
        source = await client.run("conformance-phase4-nondet-tool")
        control = await client.run("conformance-phase4-nondet-tool")
        original = await client.events(source["runId"])
        assert observable(original) != observable(await client.events(control["runId"])), "the control must differ"
        for start in range(len(original)):
            fork = await client.fork(source["runId"], start=start)
            replay = await client.ended(fork)
            assert observable(await client.events(fork)) == observable(original)
            for name in ("status", "variables", "channels"):
                assert replay[name] == source[name]


async def test_replay_observable_sequence_determinism_bytes(host: Served) -> None:
    """Byte-equal, ids and times aside: the raw JSON is the same once those are blanked out."""
    async with host.client() as client:
        source = await client.run("conformance-phase4-nondet-tool")
        fork = await client.fork(source["runId"])
        await client.ended(fork)
        texts = []
        for run in (source["runId"], fork):
            headers = {"Accept": "application/json"}
            text = (await client.get(f"/v1/runs/{run}/events", headers=headers)).text.replace(run, "RUN")
            texts.append(re.sub(r'"timestamp":"[^"]+"', '"timestamp":""', text))
    assert texts[0] == texts[1]


async def test_replay_declared_sources_of_nondeterminism(host: Served) -> None:
    async with host.client() as client:
        source = await client.run("conformance-nondeterminism")
        drawn = source["outputs"]["draw"]
        assert set(drawn) == {"clock", "random", "id"}
        assert all(isinstance(value, str) and value for value in drawn.values())
        assert (await client.run("conformance-nondeterminism"))["outputs"]["draw"] != drawn
        assert (await client.ended(await client.fork(source["runId"])))["outputs"]["draw"] == drawn


# -- the rest of the replay contract -----------------------------------------------------------------------------------


async def test_replay_side_effect_suppression(host: Served) -> None:
    async with host.client() as client:
        source = await client.start("conformance-replay-side-effect", {"delayMs": 400})
        assert (await client.post(f"/v1/runs/{source}/cancel", json={})).status_code == 200
        await client.ended(source)
        assert not [
            e for e in await client.events(source) if (e["type"], e.get("nodeId")) == ("node.completed", "effect")
        ]
        replay = await client.ended(await client.fork(source))
        effect = [event for event in await client.events(replay["runId"]) if event.get("nodeId") == "effect"]
    assert not [event for event in effect if event["type"] == "node.completed"]
    assert [e["payload"]["error"]["code"] for e in effect if e["type"] == "node.failed"] == ["replay_source_missing"]


async def test_replay_outcome_by_execution_ordinal(host: Served) -> None:
    async with host.client() as client:
        source = await client.run("conformance-replay-ordinal-loop", {"delayMs": 10})
        outcomes = [
            event["payload"]["outputs"]["effectId"]
            for event in await client.events(source["runId"])
            if event["type"] == "node.completed" and event["nodeId"] == "effect"
        ]
        assert len(set(outcomes)) == 2
        fork = await client.fork(source["runId"])
        await client.ended(fork)
        again = [
            event["payload"]["outputs"]["effectId"]
            for event in await client.events(fork)
            if event["type"] == "node.completed" and event["nodeId"] == "effect"
        ]
    assert again == outcomes


async def test_layer_one_and_layer_two_idempotency(host: Served) -> None:
    body = {"workflowId": "conformance-idempotent", "inputs": {"nonce": "n-1"}}
    headers = {"Idempotency-Key": "scenario-key-0123456789abcdef"}
    async with host.client() as client:
        import asyncio

        answers = await asyncio.gather(*(client.post("/v1/runs", json=body, headers=headers) for _ in range(16)))
        assert len({answer.json()["runId"] for answer in answers}) == 1
        again = await client.post("/v1/runs", json=body, headers=headers)
        assert again.headers["openwop-Idempotent-Replay"] == "true"
        other = await client.post("/v1/runs", json={**body, "inputs": {"nonce": "n-2"}}, headers=headers)
        assert (other.status_code, other.json()["error"]) == (409, "idempotency_key_mismatch")
        claims = (await client.post(f"{SEAM}/idempotency/concurrent-claim", json={"executors": 12})).json()
    assert (claims["attempted"], claims["delivered"]) == (12, 1)
    assert claims["mintedIds"] == [claims["logicalInvocationId"]] * 12


async def test_events_over_a_real_stream(host: Served) -> None:
    async with host.client() as client:
        run = await client.start("conformance-delay", {"delayMs": 300})
        seen: list[str] = []
        async with client.stream("GET", f"/v1/runs/{run}/events") as stream:
            async for line in stream.aiter_lines():
                if line.startswith("event: "):
                    seen.append(line.removeprefix("event: "))
        assert seen == ["run.started", "node.started", "node.completed", "run.completed"]


async def test_seams_and_runs_need_the_key(host: Served) -> None:
    async with Client(base_url=host.url) as client:
        assert (await client.post(f"{SEAM}/llm-cache-key", json=RFC0041)).status_code == 401
        assert (await client.post("/v1/runs", json={"workflowId": "conformance-noop"})).status_code == 401
        headers = {"Authorization": f"Bearer {KEY}"}
        assert (await client.get("/v1/runs/nobody", headers=headers)).status_code == 404
