"""The admin endpoint and its audit log (R13)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import antiphon
from antiphon.contract.spec import DidNotHappen, Happened
from antiphon.errors import StoreUnavailable
from tests.integration.server.harness import Client
from tests.unit.gateway.kit import envelope

EFFECT = "conformance/side-effect"
WHERE = ["/debug/tool-reliability", "/v1/admin/tool-reliability"]


async def act(client: Client, where: str, **body: Any) -> dict[str, Any]:
    answer = await client.post(where, json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("where", WHERE)
async def test_force_open_and_reset_show_before_and_after(client: Client, where: str) -> None:
    found = await act(client, where, action="force_open", tool=EFFECT, reason="maintenance")
    assert found["before"]["breakers"] == []
    assert [(one["key"], one["state"]) for one in found["after"]["breakers"]] == [(f"tool/{EFFECT}", "FORCED_OPEN")]
    blocked = await client.run("conformance-replay-side-effect", {"delayMs": 1})
    assert (blocked["status"], blocked["error"]["code"]) == ("failed", "circuit_open")
    found = await act(client, where, action="reset", tool=EFFECT)
    assert [one["state"] for one in found["before"]["breakers"]] == ["FORCED_OPEN"]
    assert [one["state"] for one in found["after"]["breakers"]] == ["CLOSED"]
    assert (await client.run("conformance-replay-side-effect", {"delayMs": 1}))["status"] == "completed"
    acts = (await client.get("/v1/admin/audit")).json()["acts"]
    assert [(one["act"], one["by"]) for one in acts] == [("reset", "environment"), ("force_open", "environment")]
    assert acts[1]["reason"] == "maintenance"


async def test_claims_are_listed_cleared_and_flushed(client: Client) -> None:
    for _ in range(3):
        await client.run("conformance-replay-side-effect", {"delayMs": 1})
    listed = (await client.get("/v1/admin/claims", params={"tool": EFFECT})).json()["claims"]
    assert [one["state"] for one in listed] == ["done"] * 3
    assert "effectId" not in str(listed)
    found = await act(client, WHERE[1], action="clear", key=listed[0]["fingerprint"], reason="test")
    assert found["result"]["cleared"] is True
    assert (found["before"]["claims"][EFFECT], found["after"]["claims"][EFFECT]) == ({"done": 3}, {"done": 2})
    found = await act(client, WHERE[1], action="flush", tool=EFFECT)
    assert found["result"] == {"flushed": 2}
    assert EFFECT not in found["after"]["claims"]


async def test_an_unknown_outcome_is_resolved(client: Client) -> None:
    from antiphon.ports import Claimed, ClaimTemplate, Settlement, StaticClaimRequest

    template = ClaimTemplate(tool="tools/pay", session="s", actor="a", ttl_ms=60_000, lease_ms=60_000, owner="o")
    request = StaticClaimRequest("f" * 64, "i", template, "k", ("d", "d"), "r", token="t")
    claimed = await client.host.journal.begin(request)
    assert isinstance(claimed, Claimed)
    lost = Settlement("failed", 60_000, error=("outcome_unknown", "lost", True, False), attempt_count=1)
    await client.host.journal.settle("f" * 64, claimed.version, lost)
    listed = (await client.get("/v1/admin/claims", params={"state": "unknown"})).json()["claims"]
    assert [one["key"] for one in listed] == ["f" * 64]
    tried = await act(client, WHERE[0], action="resolve", key="f" * 16, verdict="happened", dryRun=True)
    assert tried["result"] == {"key": "f" * 64, "resolved": "happened", "before": "unknown", "dryRun": True}
    several = [{"key": "f" * 64, "version": listed[0]["version"]}, {"key": "f" * 64, "version": 1}, {"key": "none"}]
    tried = await act(client, WHERE[0], action="resolve", claims=several, verdict="did-not-happen", dryRun=True)
    assert (tried["result"]["resolved"], [one["key"][0] for one in tried["result"]["refused"]]) == (1, ["f", "n"])
    assert (await client.get("/v1/admin/audit")).json()["acts"] == []
    found = await act(client, WHERE[0], action="resolve", key="f" * 16, verdict="happened", value={"id": 7})
    assert found["result"] == {"key": "f" * 64, "resolved": "happened"}
    read = await client.host.journal.read("f" * 64)
    assert read is not None
    assert read.current.state == "done"
    corrected = await act(client, WHERE[0], action="resolve", key="f" * 16, verdict="did-not-happen")
    assert corrected["result"] == {"key": "f" * 64, "resolved": "did-not-happen"}
    read = await client.host.journal.read("f" * 64)
    assert read is not None
    assert (read.current.state, read.current.dispatched) == ("cancelled", False)


async def test_reconcile_settles_the_calls_that_are_named(client: Client) -> None:
    """Of the two calls of one claim whose outcome is unknown the first happened, and the second did not."""
    tells: list[bool] = []
    fails: list[Exception] = []

    def reconcile(params: dict[str, Any], context: Any) -> Any:
        if not tells:
            return None
        return Happened("receipt") if context.call_id == "c-1" else DidNotHappen()

    gateway = antiphon.Gateway(client.host.tenant("default").store, {"telemetry": {"logs": False}})

    @gateway.tool("charge", idempotent=False, effect="write", ttl={"done_ms": 200}, reconcile=reconcile)
    def charge(order: str) -> str:
        raise fails.pop()

    for name in ("c-1", "c-2"):
        fails = [ValueError("lost")]
        turn = gateway.session("s").turn()
        result = await asyncio.to_thread(turn.call, "charge", {"order": "o-1"}, call_id=name)
        assert result.code == "outcome_unknown"
        await asyncio.sleep(0.25)
    tells.append(True)
    listed = (await client.get("/v1/admin/claims", params={"state": "unknown"})).json()["claims"]
    assert [one["callId"] for one in listed] == ["c-2", "c-1"]
    first = {"key": listed[1]["key"], "version": listed[1]["version"]}
    found = await act(client, WHERE[1], action="reconcile", claims=[first, {**first, "version": 1}])
    assert [(one["verdict"], one["version"]) for one in found["result"]["claims"]] == [("happened", first["version"])]
    assert (found["result"]["resolved"], len(found["result"]["refused"])) == (1, 1)
    listed = (await client.get("/v1/effects", params={"state": "unknown", "limit": 1})).json()
    assert [(one["callId"], one["settledBy"]) for one in listed["effects"]] == [("c-2", None)]
    assert listed["next"] is None
    gateway.close()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"action": "explode"}, 400),
        ({"action": "force_open"}, 400),
        ({"action": "force_open", "tool": 7}, 400),
        ({"action": "force_open", "tool": "x", "forMs": -1}, 400),
        ({"action": "force_open", "tool": "x", "forMs": "1"}, 400),
        ({"action": "force_open", "tool": "conformance/side-efect"}, 404),
        ({"action": "reset", "tool": "nope"}, 404),
        ({"action": "reset", "context": "nope"}, 404),
        ({"action": "flush"}, 400),
        ({"action": "clear"}, 400),
        ({"action": "clear", "key": "nope"}, 404),
        ({"action": "resolve", "key": "nope", "verdict": "happened"}, 404),
        ({"action": "resolve", "key": "nope", "verdict": "maybe"}, 400),
        ({"action": "resolve", "claims": [{"key": "nope"}], "verdict": "maybe"}, 400),
        ({"action": "reconcile"}, 400),
        ({"action": "flush", "tool": "tools/pay", "dryRun": True}, 400),
    ],
)
async def test_bad_acts_are_refused_and_leave_no_trace(client: Client, body: dict[str, Any], status: int) -> None:
    answer = await client.post(WHERE[0], json=body)
    assert answer.status_code == status
    assert (await client.get("/v1/admin/audit")).json() == {"acts": []}


async def test_a_forced_state_can_end_by_itself(client: Client) -> None:
    found = await act(client, WHERE[0], action="force_open", context="smtp", forMs=60_000)
    assert found["result"]["key"] == "dependency/smtp"
    assert found["result"]["untilMs"] > 0
    found = await act(client, WHERE[0], action="force_open", context="global")
    assert found["result"]["key"] == "global"


async def test_status_changes_nothing_and_secrets_in_reasons_are_redacted(client: Client) -> None:
    found = await act(client, WHERE[0], action="status")
    assert found["result"] is None
    assert found["before"] == found["after"]
    secret = "sk-live-51HqLyjWDarjtT1zdp7dcABCDEFGH"
    await act(client, WHERE[0], action="force_open", tool=EFFECT, reason=f"token {secret} leaked")
    assert secret not in (await client.get("/v1/admin/audit")).text


async def test_a_person_decides_over_http(client: Client) -> None:
    ran: list[int] = []
    gateway = client.host.tenant("default").async_gateway

    async def pay(amount: int) -> str:
        ran.append(amount)
        return "paid"

    gateway.tool("pay", namespace="approvals", idempotent=False, approve="always")(pay)
    wire = envelope("pay", {"amount": 10}, namespace="approvals", call_id="call-1", actor="environment")
    asked = (await gateway.execute(wire)).to_wire()["error"]["approvalId"]
    listed = (await client.get("/v1/approvals", params={"tool": "approvals/pay"})).json()["approvals"]
    assert [(one["id"], one["arguments"], one["asker"]) for one in listed] == [(asked, '{"amount":10}', "environment")]
    where = f"/v1/approvals/{asked}"
    own = await client.post(where, json={"decision": "approve"})
    assert (own.status_code, own.json()["error"]) == (403, "self_approval")
    token, key = await client.host.keys.create(role="admin", tenant="default")
    headers = {"Authorization": f"Bearer {token}"}
    other, _ = await client.host.keys.create(role="admin", tenant="stranger")
    assert (await client.get(where, headers={"Authorization": f"Bearer {other}"})).status_code == 404
    made = await client.post(where, json={"decision": "approve", "reason": "checked"}, headers=headers)
    assert (made.status_code, made.json()["state"], made.json()["decidedBy"]) == (200, "approved", key.id)
    assert made.headers["cache-control"] == "no-store"
    again = await client.post(where, json={"decision": "approve"}, headers=headers)
    assert (again.status_code, again.json()["error"]) == (409, "approval_decided")
    assert (await gateway.execute(wire)).content == "paid"
    assert ran == [10]
    assert (await client.get(where)).status_code == 404
    (act, *_) = (await client.get("/v1/admin/audit")).json()["acts"]
    assert (act["act"], act["by"], act["approval"]) == ("approve", key.id, asked)


async def test_a_signed_link_is_made_opened_and_decides_once(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    gateway = client.host.tenant("default").async_gateway

    async def pay(amount: int, note: str) -> str:
        return "paid"

    gateway.tool("pay", namespace="links", idempotent=False, approve="always")(pay)
    hidden = {"amount": 10, "note": "<script>alert(1)</script>"}
    wire = envelope("pay", hidden, namespace="links", call_id="call-1", actor="agent")
    asked = (await gateway.execute(wire)).to_wire()["error"]["approvalId"]
    where = f"/v1/approvals/{asked}/links"
    assert (await client.post(where, json={"to": "ada"})).json()["details"]["path"] == "$.url"
    own = await client.post(where, json={"to": " Agent", "url": "https://desk.example.com/approve"})
    assert (own.status_code, own.json()["error"]) == (403, "self_approval")
    made = await client.post(where, json={"to": "ada@example.com", "url": "https://desk.example.com/approve"})
    assert (made.status_code, made.json()["to"]) == (201, "ada@example.com")
    token = made.json()["url"].removeprefix("https://desk.example.com/approve?token=")

    for _ in range(2):  # a scanner, then the person
        shown = await client.get("/approve", params={"token": token}, headers={"Authorization": ""})
        assert (shown.status_code, shown.headers["cache-control"]) == (200, "no-store")
        assert shown.headers.get_list("referrer-policy") == ["no-referrer"]
        assert "form-action 'self'" in shown.headers["content-security-policy"]
        assert "&lt;script&gt;" in shown.text
        assert "<script>" not in shown.text
        assert "links/pay" in shown.text
    form = {"token": token, "decision": "approve", "reason": "checked"}
    decided = await client.post("/approve", data=form, headers={"Authorization": ""})
    assert (decided.status_code, "This call is approved" in decided.text) == (200, True)
    assert (await client.post("/approve", data=form)).status_code == 409
    assert (await gateway.execute(wire)).content == "paid"
    assert (await client.get("/approve", params={"token": token})).status_code == 404
    acts = (await client.get("/v1/admin/audit")).json()["acts"]
    said = [(act["act"], act["by"], act["from"].partition(" from ")[0], act.get("to")) for act in acts[:2]]
    who = "ada@example.com"  # whoever decides is named, mail address or not
    assert said == [("approve", who, "signed link", None), ("link", "environment", "HTTP", who)]
    assert token not in caplog.text


@pytest.fixture
def failing(client: Client, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """The store fails when the audit log is written, or from the second decision on."""
    journal, settled = client.host.journal, list[str]()
    append, settle = journal.append, journal.settle

    async def not_audited(run: str, rows: Any) -> Any:
        if run.startswith("audit-"):
            raise StoreUnavailable("disk full at /secret/place")
        return await append(run, rows)

    async def not_settled(key: str, version: int, settlement: Any) -> Any:
        if settled:
            raise StoreUnavailable("connection lost to /secret/place")
        settled.append(key)
        return await settle(key, version, settlement)

    def fail(when: str) -> None:
        wrong = not_audited if when == "append" else not_settled
        monkeypatch.setattr(journal, when, wrong)

    return fail


async def ask_for_approvals(client: Client, namespace: str, number: int) -> list[str]:
    gateway = client.host.tenant("default").async_gateway

    async def pay(amount: int) -> str:
        return "paid"

    gateway.tool("pay", namespace=namespace, idempotent=False, approve="always")(pay)
    calls = [
        envelope("pay", {"amount": one}, namespace=namespace, call_id=f"call-{one}", actor="agent")
        for one in range(number)
    ]
    return [(await gateway.execute(wire)).to_wire()["error"]["approvalId"] for wire in calls]


async def test_what_was_done_is_told_also_if_the_audit_log_cannot_be_written(
    client: Client, failing: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = await ask_for_approvals(client, "unaudited", 3)
    url = "https://desk.example.com/approve"
    link = (await client.post(f"/v1/approvals/{third}/links", json={"to": "ada", "url": url})).json()["url"]
    await client.run("conformance-replay-side-effect", {"delayMs": 1})
    failing("append")
    made = await client.post(f"/v1/approvals/{first}", json={"decision": "approve"})
    found = (made.status_code, made.json()["state"], made.json()["decidedBy"], made.json()["notAudited"])
    assert found == (200, "approved", "environment", "store_unavailable")
    assert f'"approval":"{first}"' in caplog.text, "the log of the host says what the audit log does not"
    both = (await client.post("/v1/approvals", json={"decision": "deny", "approvals": [first, second]})).json()
    assert [(one["id"], one["state"], one["notAudited"]) for one in both["approvals"]] == [
        (second, "denied", "store_unavailable")
    ]
    assert [one["id"] for one in both["refused"]] == [first]
    form = {"token": link.removeprefix(f"{url}?token="), "decision": "approve"}
    page = await client.post("/approve", data=form, headers={"Authorization": ""})
    assert page.status_code == 200
    assert "This call is approved" in page.text
    assert "could not be written; the decision stands" in page.text
    flushed = await act(client, WHERE[1], action="flush", tool=EFFECT)
    assert flushed["result"] == {"flushed": 1, "notAudited": "store_unavailable"}
    forced = await act(client, WHERE[1], action="force_open", tool=EFFECT)
    assert (forced["result"]["state"], forced["result"]["notAudited"]) == ("FORCED_OPEN", "store_unavailable")


async def test_a_store_that_fails_in_a_decision_does_not_hide_the_others(
    client: Client, failing: Callable[[str], None]
) -> None:
    asked = await ask_for_approvals(client, "halfway", 3)
    failing("settle")
    answer = await client.post("/v1/approvals", json={"decision": "approve", "approvals": asked})
    assert [one["id"] for one in answer.json()["approvals"]] == asked[:1]
    assert [one["id"] for one in answer.json()["refused"]] == asked[1:]
    assert "may or may not have been done" in answer.json()["refused"][0]["message"]
    alone = await client.post(f"/v1/approvals/{asked[1]}", json={"decision": "approve"})
    assert (alone.status_code, alone.json()["error"]) == (503, "store_unavailable")
    for said in (answer.text, alone.text):
        assert "nothing was changed" not in said.lower()
        assert "/secret/place" not in said
