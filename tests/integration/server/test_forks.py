"""Forks: half-open prefix, recorded outcomes, refusal divergence, structural divergence, branches, retention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.integration.server import workflows
from tests.integration.server.harness import Client, application, in_process, observable

REFUSAL = {"content": "no", "stopReason": "safety", "refusalText": "not for you"}
VALID = {"content": '{"valid": true}', "stopReason": "end_turn"}


@pytest.mark.parametrize(
    "workflow",
    [
        "conformance-noop",
        "conformance-multi-node",
        "conformance-failure",
        "conformance-nondeterminism",
        "conformance-phase4-nondet-tool",
        "conformance-phase4-replay-divergence",
        "conformance-replay-ordinal-loop",
    ],
)
async def test_a_fork_at_any_point_gives_the_same_log(client: Client, workflow: str) -> None:
    source = (await client.run(workflow))["runId"]
    expected = observable(await client.events(source))
    before = await client.ended(source)
    for start in range(len(expected)):
        fork = await client.fork(source, start=start)
        after = await client.ended(fork)
        assert observable(await client.events(fork)) == expected, f"from {start}"
        assert {name: after.get(name) for name in ("status", "variables", "channels", "error", "outputs")} == {
            name: before.get(name) for name in ("status", "variables", "channels", "error", "outputs")
        }


async def test_two_ordinary_runs_differ_where_a_fork_does_not(client: Client) -> None:
    one = await client.run("conformance-phase4-nondet-tool")
    other = await client.run("conformance-phase4-nondet-tool")
    first, second = await client.events(one["runId"]), await client.events(other["runId"])
    assert observable(first) != observable(second)


async def test_effects_are_not_performed_again(client: Client) -> None:
    source = (await client.run("conformance-replay-side-effect", {"delayMs": 1}))["runId"]
    fork = await client.fork(source)
    await client.ended(fork)
    kept = [event["payload"]["outputs"]["effectId"] for event in await client.events(source) if _effect(event)]
    again = [event["payload"]["outputs"]["effectId"] for event in await client.events(fork) if _effect(event)]
    assert kept == again
    branch = await client.fork(source, "branch", 0)
    await client.ended(branch)
    fresh = [event["payload"]["outputs"]["effectId"] for event in await client.events(branch) if _effect(event)]
    assert fresh != kept


def _effect(event: dict[str, Any]) -> bool:
    return bool(event["type"] == "node.completed" and event["nodeId"] == "effect")


async def test_the_nth_execution_gets_the_nth_outcome(client: Client) -> None:
    source = (await client.run("conformance-replay-ordinal-loop", {"delayMs": 5}))["runId"]
    recorded = [event["payload"]["outputs"]["effectId"] for event in await client.events(source) if _effect(event)]
    assert len(recorded) == len(set(recorded)) == 2
    for start in (0, 3, 5, 7):
        fork = await client.fork(source, start=start)
        assert (await client.ended(fork))["status"] == "completed"
        assert [e["payload"]["outputs"]["effectId"] for e in await client.events(fork) if _effect(e)] == recorded


async def test_planted_bug_first_outcome_for_all_is_caught(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.host.workflow.source import Recorded, Source

    source = (await client.run("conformance-replay-ordinal-loop", {"delayMs": 5}))["runId"]
    right = Source.outcome

    def first(self: Source, node: str, nth: int) -> Recorded | None:
        return right(self, node, 0)

    monkeypatch.setattr(Source, "outcome", first)
    fork = await client.fork(source)
    await client.ended(fork)
    assert observable(await client.events(fork)) != observable(await client.events(source))
    assert "replay.diverged" in [event["type"] for event in await client.events(fork)]


async def test_an_effect_the_source_never_had_fails_closed(client: Client) -> None:
    source = await client.start("conformance-replay-side-effect", {"delayMs": 150})
    await client.post(f"/v1/runs/{source}/cancel")
    assert (await client.ended(source))["status"] == "cancelled"
    fork = await client.fork(source)
    snapshot = await client.ended(fork)
    assert (snapshot["status"], snapshot["error"]["code"]) == ("failed", "replay_source_missing")
    effect = [event for event in await client.events(fork) if event.get("nodeId") == "effect"]
    assert [event["type"] for event in effect] == ["node.started", "node.failed"]
    assert effect[1]["payload"]["error"]["code"] == "replay_source_missing"


async def test_planted_bug_a_replay_that_performs_is_stopped_at_the_seam(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if a node were classified wrongly, the gateway of a replay fork dispatches nothing."""
    from antiphon.host.workflow import runner
    from antiphon.host.workflow.nodes import implementation

    source = (await client.run("conformance-replay-side-effect", {"delayMs": 1}))["runId"]
    monkeypatch.setattr(runner, "implementation", lambda node: ("pure", implementation(node)[1]))  # type: ignore[index]
    fork = await client.fork(source)
    snapshot = await client.ended(fork)
    assert (snapshot["status"], snapshot["error"]["code"]) == ("failed", "node_error")
    assert not [event for event in await client.events(fork) if _effect(event)]


async def test_the_event_at_the_fork_point_is_executed_again(client: Client) -> None:
    source = (await client.run("conformance-phase4-nondet-tool"))["runId"]
    nonce = (await client.events(source))[2]["payload"]["outputs"]["nonce"]
    kept = await client.fork(source, "branch", 3)
    await client.ended(kept)
    assert (await client.events(kept))[2]["payload"]["outputs"]["nonce"] == nonce
    again = await client.fork(source, "branch", 2)
    await client.ended(again)
    events = await client.events(again)
    assert [event["type"] for event in events[:4]] == ["run.started", "node.started", "node.started", "node.completed"]
    assert events[3]["payload"]["outputs"]["nonce"] != nonce, "a branch starts the node at its fork point anew"


@pytest.mark.parametrize(("first", "second"), [(VALID, REFUSAL), (REFUSAL, VALID)], ids=["to-refusal", "to-valid"])
async def test_refusal_divergence(client: Client, first: dict[str, Any], second: dict[str, Any]) -> None:
    await client.program("structured-call", first)
    source = await client.run("conformance-phase4-replay-divergence")
    kinds = ["valid", "refusal"] if first is VALID else ["refusal", "valid"]
    await client.program("structured-call", second)
    fork = await client.fork(source["runId"], start=0)
    snapshot = await client.ended(fork)
    assert (snapshot["status"], snapshot["error"]["code"]) == ("failed", "replay_diverged_at_refusal")
    events = await client.events(fork)
    found = [event["payload"] for event in events if event["type"] == "replay.divergedAtRefusal"]
    assert len(found) == 1
    assert found[0]["sourceRunId"] == source["runId"]
    assert found[0]["nodeId"] == "structured-call"
    assert [found[0]["originalEnvelopeKind"], found[0]["replayEnvelopeKind"]] == kinds
    original = (await client.events(source["runId"]))[found[0]["atSequence"]]
    assert original["eventId"] == found[0]["originalEventId"]
    assert original["type"] == ("node.completed" if first is VALID else "envelope.refusal")
    assert snapshot["error"]["details"] == {
        name: found[0][name] for name in ("atSequence", "nodeId", "originalEnvelopeKind", "replayEnvelopeKind")
    }
    assert [event["type"] for event in events][-3:] == ["replay.divergedAtRefusal", "node.failed", "run.failed"]
    assert "node.completed" not in [event["type"] for event in events]
    assert "not for you" not in snapshot["error"]["message"]


async def test_a_recorded_refusal_replays_as_that_refusal(client: Client) -> None:
    await client.program("structured-call", REFUSAL)
    source = await client.run("conformance-phase4-replay-divergence")
    assert source["error"]["code"] == "envelope_refusal"
    events = await client.events(source["runId"])
    refused = [event["payload"] for event in events if event["type"] == "envelope.refusal"]
    assert len(refused) == 1
    assert refused[0] == {
        "nodeId": "structured-call",
        "provider": "mock",
        "model": "mock-mini",
        "refusalText": "not for you",
    }
    assert "not for you" not in source["error"]["message"]
    fork = await client.fork(source["runId"])
    assert (await client.ended(fork))["error"]["code"] == "envelope_refusal"
    assert observable(await client.events(fork)) == observable(events)


async def test_a_staged_answer_of_the_same_kind_changes_nothing(client: Client) -> None:
    source = await client.run("conformance-phase4-replay-divergence")
    await client.program("structured-call", {"content": '{"valid": false}'})
    fork = await client.fork(source["runId"])
    assert (await client.ended(fork))["status"] == "completed"
    assert observable(await client.events(fork)) == observable(await client.events(source["runId"]))
    assert not client.host.mock.staged("default", "structured-call")


async def test_verify_mode_asks_the_model_in_every_fork(tmp_path: Path, folder: Path) -> None:
    async with in_process(application(tmp_path, folder, replay_verify=True)) as client:
        source = await client.run("conformance-phase4-replay-divergence")
        fork = await client.fork(source["runId"])
        assert (await client.ended(fork))["status"] == "completed"
        rows = await client.host.journal.events(fork)
        assert [row.type for row in rows].count("call.finished") == 1


async def test_a_changed_workflow_diverges_and_goes_on(client: Client) -> None:
    source = (await client.run("conformance-multi-node"))["runId"]
    changed = workflows.workflow(
        "conformance-multi-node",
        [workflows.node("a", "core.noop"), workflows.node("x", "core.noop"), workflows.node("c", "core.noop")],
    )
    from antiphon.host.workflow.model import parse

    client.host.add_workflow(parse(changed))
    fork = await client.fork(source)
    assert (await client.ended(fork))["status"] == "completed"
    events = await client.events(fork)
    diverged = [event for event in events if event["type"] == "replay.diverged"]
    assert len(diverged) == 1
    assert diverged[0]["payload"] == {
        "sourceRunId": source,
        "atSequence": 3,
        "originalEventId": f"{source}.3",
        "divergenceKind": "type-mismatch",
        "divergencePoint": "node.started",
        "nodeId": "x",
    }
    assert events[-1]["type"] == "run.completed"
    assert [event["sequence"] for event in events] == list(range(len(events)))


async def test_forks_of_forks_and_of_running_runs(client: Client) -> None:
    source = (await client.run("conformance-phase4-nondet-tool"))["runId"]
    child = await client.fork(source)
    await client.ended(child)
    grandchild = await client.fork(child, start=2)
    snapshot = await client.ended(grandchild)
    assert observable(await client.events(grandchild)) == observable(await client.events(source))
    assert (snapshot["sourceRunId"], snapshot["mode"], snapshot["fromSeq"]) == (child, "replay", 2)
    running = await client.start("conformance-cancellable", {"delayMs": 30_000})
    fork = await client.fork(running)
    assert (await client.ended(fork))["error"]["code"] == "replay_source_missing"
    await client.post(f"/v1/runs/{running}/cancel")


async def test_a_branch_takes_an_overlay(client: Client) -> None:
    source = (await client.run("conformance-identity", {"payload": {"a": 1}}))["runId"]
    branch = await client.fork(source, "branch", 0, inputs={"payload": {"b": 2}})
    assert (await client.ended(branch))["outputs"] == {"identity": {"payload": {"b": 2}}}
    body = {"mode": "branch", "fromSeq": 0, "runOptionsOverlay": {"inputs": {"payload": "no object"}}}
    assert (await client.post(f"/v1/runs/{source}:fork", json=body)).status_code == 400


async def test_a_branch_never_sends_pseudonyms(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = {"to": "ada.lovelace@example.org"}
    source = (await client.run("conformance-identity", {"payload": payload}))["runId"]
    assert "ada.lovelace" not in str(await client.events(source))
    own = await client.fork(source, "branch", 0)
    assert (await client.ended(own))["status"] == "completed", "it is given the originals"
    with monkeypatch.context() as without_key:
        without_key.setattr("antiphon._recording.seals.KeyRing.key_of", lambda self, manifest: None)
        answer = await client.post(f"/v1/runs/{source}:fork", json={"mode": "branch", "fromSeq": 0})
        assert (answer.status_code, answer.json()["error"]) == (422, "fork_point_redacted")
    branch = await client.fork(source, "branch", 0, inputs={"payload": payload})
    assert (await client.ended(branch))["status"] == "completed"
    replay = await client.fork(source)
    await client.ended(replay)
    assert observable(await client.events(replay)) == observable(await client.events(source))


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"mode": "other"}, 400),
        ({"mode": "branch"}, 400),
        ({"mode": "replay", "fromSeq": -1}, 400),
        ({"mode": "replay", "fromSeq": 1.5}, 400),
        ({"mode": "replay", "fromSeq": True}, 400),
        ({"mode": "replay", "fromSeq": "0"}, 400),
        ({"mode": "replay", "fromSeq": 4}, 422),
        ({"mode": "replay", "fromSeq": 10**12}, 400),
        ({"mode": "replay", "runOptionsOverlay": {"inputs": {}}}, 400),
        ({"mode": "replay", "runOptionsOverlay": []}, 400),
        ({"mode": "branch", "fromSeq": 0, "runOptionsOverlay": {"tenant": "other"}}, 400),
        ({"mode": "replay", "runOptionsOverlay": {}}, 201),
    ],
)
async def test_bad_forks_are_refused_and_create_nothing(client: Client, body: dict[str, Any], status: int) -> None:
    source = (await client.run("conformance-noop"))["runId"]
    answer = await client.post(f"/v1/runs/{source}:fork", json=body)
    assert answer.status_code == status, answer.text
    listed = (await client.get("/v1/runs")).json()["runs"]
    assert len(listed) == (2 if status == 201 else 1)


async def test_the_replay_window_ends(client: Client) -> None:
    source = (await client.run("conformance-noop"))["runId"]
    journal = client.host.journal
    manifest = await journal.manifest(source)
    assert manifest is not None
    old = msgspec.structs.replace(manifest, started_at_ms=manifest.started_at_ms - 15 * 86_400_000)
    await journal.update_run(old)
    answer = await client.post(f"/v1/runs/{source}:fork", json={"mode": "replay"})
    assert (answer.status_code, answer.json()["error"]) == (410, "replay_range_expired")
    assert set(answer.json()["details"]) == {"sourceRunId", "fromSeq", "boundary"}
    window = (await client.get("/.well-known/openwop")).json()["replay"]["retention"]["windowSeconds"]
    assert window == 14 * 86_400


async def test_envelopes_are_retried_and_exhausted(client: Client) -> None:
    node = "retry-attempted-structured-call"
    await client.program(node, {"content": "not json CANARY"}, VALID)
    run = await client.run("conformance-envelope-retry-attempted")
    events = await client.events(run["runId"])
    retries = [event["payload"] for event in events if event["type"] == "envelope.retry.attempted"]
    assert [(one["attempt"], one["reason"]) for one in retries] == [(2, "parse-error")]
    assert "CANARY" not in str(events)
    assert run["status"] == "completed"
    node = "retry-exhausted-structured-call"
    await client.program(node, *[{"content": '{"valid": "yes"}'}] * 3)
    run = await client.run("conformance-envelope-retry-exhausted")
    assert run["error"]["code"] == "envelope_payload_invalid"
    events = await client.events(run["runId"])
    done = [event["payload"] for event in events if event["type"] == "envelope.retry.exhausted"]
    assert [(one["totalAttempts"], one["finalReason"]) for one in done] == [(3, "schema-violation")]
    fork = await client.fork(run["runId"])
    await client.ended(fork)
    assert observable(await client.events(fork)) == observable(events)


@pytest.mark.parametrize(
    ("entry", "code"),
    [
        ({"content": "{", "stopReason": "max_tokens"}, "envelope_payload_invalid"),
        ({"errorCode": "rate_limited"}, "rate_limited"),
    ],
)
async def test_cut_off_answers_and_provider_errors(client: Client, entry: dict[str, Any], code: str) -> None:
    await client.program("structured-call", *[entry] * 3)
    run = await client.run("conformance-phase4-replay-divergence")
    assert run["error"]["code"] == code
    truncated = [event for event in await client.events(run["runId"]) if event["type"] == "envelope.truncated"]
    assert len(truncated) == (3 if "stopReason" in entry else 0)


PORTER = """
import antiphon

gateway = antiphon.Gateway(store="memory:")

@gateway.tool(idempotent=True, namespace="door", effect="read")
def unlock(password: str) -> str:
    return "open"

@antiphon.agent
def porter() -> str:
    unlock(password="swordfish")
    return "the gate opens with swordfish today"
"""


@pytest.mark.parametrize("mode", ["replay", "branch"])
async def test_a_value_that_only_a_call_shows_to_be_secret_is_masked_in_a_fork(tmp_path: Path, mode: str) -> None:
    code = tmp_path / "porter.py"
    code.write_text(PORTER)
    nodes = [workflows.node("porter", "agent:porter"), workflows.node("end", "core.noop")]
    folder = workflows.write(tmp_path / "flows", workflows.workflow("gate", nodes))
    async with in_process(application(tmp_path, folder, agents=[f"{code}:porter"])) as client:
        run = (await client.run("gate"))["runId"]
        events = observable(await client.events(run))
        assert "opens with [password:" in str(events)
        fork = await client.fork(run, mode, 3)
        await client.ended(fork)
        assert observable(await client.events(fork)) == events
    assert not [file for file in tmp_path.glob("host.db*") if b"swordfish" in file.read_bytes()]
