"""What the gateway decided about a call of a run is in its log: approvals, reused answers, and whose id a call has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import antiphon
from antiphon import Antiphon
from antiphon._drive import drive
from antiphon._gateway.store_breaker import StoreBreaker
from antiphon.ops.approvals import Approvals
from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import Ears, Hold, Rig, envelope, eventually, in_thread
from tests.unit.gateway.test_outage import Faulty
from tests.unit.gateway.test_repairs import rig_on


def decisions(app: Antiphon, *wires: dict[str, Any]) -> tuple[list[Any], list[tuple[Any, dict[str, Any]]]]:
    """The answers of calls in a run, and what was decided about them."""
    with app.run("decisions") as run:
        answers = [app.gateway.execute(wire) for wire in wires]
    made = [event for event in run.events() if event.type == "decision"]
    return answers, [
        (event.payload, {name: value for name, value in event.meta.items() if name != "sum"}) for event in made
    ]


def quiet_app() -> Antiphon:
    return Antiphon({"telemetry": {"logs": False}}, store=MemoryStore())


def test_an_approval_is_in_the_log_of_the_run_that_spends_it() -> None:
    app = quiet_app()
    app.gateway.tool("pay", idempotent=False, approve="always")(lambda amount: "paid")
    wire = envelope("pay", {"amount": 10}, call_id="c1")
    approval = app.gateway.execute(wire).error.approval_id  # type: ignore[union-attr]
    drive(Approvals(app, actor="grace", where="test").decide(str(approval), "approve"))
    (answer,), made = decisions(app, wire)
    assert answer.content == "paid"
    detail = {"what": "approval", "detail": {"decision": "approved", "policy": "always"}}
    assert made == [(detail, {"approvalId": approval, "by": "grace"})]


@pytest.mark.parametrize("fails", [False, True])
def test_a_reused_answer_is_in_the_log(fails: bool) -> None:
    app = quiet_app()

    def look(at: str) -> str:
        if fails:
            raise ValueError("no")
        return "seen"

    app.gateway.tool("look", idempotent=True)(look)
    wire = envelope("look", {"at": "x"}, call_id="c1")
    answers, made = decisions(app, wire, wire)
    assert [answer.from_cache for answer in answers] == [False, True]
    ((payload, meta),) = made
    assert payload == {"what": "reused", "detail": {"state": "failed" if fails else "done"}}
    assert meta["matchedOn"] == "completed"
    assert 0 <= meta["ageMs"] < 60_000


# -- the id of a call is good for one set of arguments ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("declared", "given", "said"),
    [
        ({}, {}, "c1"),
        ({"on_conflict": "independent"}, {}, None),
        ({}, {"key": "order-1"}, "key"),
        ({"on_conflict": "independent"}, {"key": "order-1"}, None),
    ],
)
def test_an_id_that_comes_with_other_arguments(
    declared: dict[str, Any], given: dict[str, Any], said: str | None
) -> None:
    rig = Rig()
    script = rig.tool("first", "second", **declared)
    assert rig.execute(call_id="c1", **given).content == "first"
    second = rig.execute(call_id="c1", params={"to": "bob"}, **given)
    if said is None:
        assert second.content == "second"
        assert len(script) == 2
    else:
        assert second.code == "idempotency_conflict"
        assert said in second.error.message
        assert len(script) == 1
        assert rig.tally.counts["hits", "tools/send", "conflict"] == 1


def test_two_calls_without_an_id_do_not_conflict() -> None:
    rig = Rig()
    script = rig.tool("first", "second")
    assert rig.execute().content == "first"
    assert rig.execute(params={"to": "bob"}).content == "second"
    assert len(script) == 2


# -- approvers --------------------------------------------------------------------------------------------------------


def test_an_approver_that_says_neither_leaves_it_to_people(caplog: pytest.LogCaptureFixture) -> None:
    gateway = antiphon.Gateway(MemoryStore())
    said: list[Any] = []

    def unsure(asked: Mapping[str, Any]) -> Any:
        said.append(asked["arguments"])
        return "perhaps" if len(said) == 1 else None

    pay = gateway.tool("pay", idempotent=False, approve="always", approver=unsure)(lambda amount: "paid")
    with pytest.raises(antiphon.errors.ApprovalRequired):
        pay(10)
    assert "the approver of tools/pay must return True, False or None, not str" in caplog.text
    caplog.clear()
    with pytest.raises(antiphon.errors.ApprovalRequired):
        pay(11)
    assert "must return" not in caplog.text
    assert said == [{"amount": 10}, {"amount": 11}]


def test_an_approver_without_a_name_is_called_one() -> None:
    store = MemoryStore()

    class Careful:
        def __call__(self, asked: Mapping[str, Any]) -> bool:
            return True

    gateway = antiphon.Gateway(store)
    pay = gateway.tool("pay", idempotent=False, approve="always", approver=Careful())(lambda amount: "paid")
    assert pay(10) == "paid"
    (act,) = drive(Approvals(Antiphon(store=store), actor="grace", where="test").audit())
    assert (act["act"], act["by"], act["from"]) == ("approve", "approver", "approver")


async def test_what_an_approver_of_an_event_loop_decides_is_in_the_audit_log() -> None:
    store = MemoryStore()
    gateway = antiphon.AsyncGateway(store)

    @gateway.tool("pay", idempotent=False, approve="always", approver=lambda asked: True)
    async def pay(amount: int) -> str:
        return "paid"

    assert await pay(10) == "paid"
    (act,) = await Approvals(Antiphon(store=store), actor="grace", where="test").audit()
    assert (act["act"], act["from"], act["tool"]) == ("approve", "approver", "tools/pay")


def test_a_call_whose_end_is_missing_in_the_log_is_reported() -> None:
    store, ears = Faulty(), Ears()
    app = Antiphon({"telemetry": {"logs": False}}, store=store, listeners=(ears,))

    def send(to: str) -> str:
        store.fail("append")
        return "sent"

    app.gateway.tool("send", idempotent=False)(send)
    with app.run("log"):
        answer: Any = app.gateway.execute(envelope(call_id="c1", mode="disabled"))
        store.broken.clear()
    assert (answer.content, answer.output.metadata) == ("sent", {"notRecorded": "store_unavailable"})
    (outage,) = ears.of("tool_store_outage")
    assert (outage["failOpen"], outage["errorCode"]) == (False, "store_unavailable")


# -- the call that is under way ---------------------------------------------------------------------------------------


def test_an_answer_shared_while_it_was_made_counts_as_such() -> None:
    rig, store = rig_on()
    hold = Hold()
    rig.tool(hold.then("done"), idempotent=True, reuse="session")
    first = in_thread(lambda: rig.execute(call_id="c1"))
    hold.until_reached()
    second = in_thread(lambda: rig.execute(call_id="c2"))
    eventually(lambda: "wait" in store.asked, "nobody waits")
    hold.go.set()
    assert first.result().content == second.result().content == "done"
    assert {labels[2] for labels in rig.tally.counts if labels[0] == "hits"} == {"inflight"}


def test_a_breaker_of_the_store_that_is_off_never_opens() -> None:
    rig = Rig()
    breaker: StoreBreaker = rig.gateway._plans.store_breaker
    breaker.failed(antiphon.errors.StoreUnavailable("It is gone."))
    assert (breaker.is_open, breaker.failures) == (False, 1)
