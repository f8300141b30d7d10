"""The end of a call: what the record says where it can be written, and who hears of it where it cannot."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.errors import InvalidInput, StoreVersionError
from tests.unit.gateway.kit import Rig
from tests.unit.gateway.test_outage import faulty_rig


def test_a_coroutine_that_nobody_awaits_did_not_run() -> None:
    rig = Rig()
    made: list[Any] = []

    async def later() -> str:
        return "never"

    def send(to: str) -> Any:
        made.append(later())
        return made[-1]

    tool = rig.gateway.tool("send", idempotent=False)(send)
    with pytest.raises(InvalidInput, match="returned a coroutine that was never awaited") as raised:
        tool("ada")
    assert "AsyncGateway" in raised.value.hint
    assert made[0].cr_frame is None, "closed"
    (end,) = rig.ears.of("tool_call_blocked")
    assert (end["status"], end["errorCode"]) == ("error", "not_awaited")


def test_a_result_that_cannot_be_kept_was_one_attempt() -> None:
    rig = Rig()
    rig.tool(object())
    result = rig.execute(call_id="c1")
    assert "not kept" in result.output.metadata["payload"]
    record: Any = rig.records()[0]
    assert (record.state, record.execution.attempt_count) == ("done", 1)


def test_one_that_was_tried_twice_was_two() -> None:
    rig = Rig()
    rig.tool(ConnectionRefusedError(111, "refused"), object(), idempotent=True)
    rig.execute(call_id="c1")
    record: Any = rig.records()[0]
    assert (record.state, record.execution.attempt_count) == ("done", 2)


def test_an_outcome_that_is_not_recorded_is_reported() -> None:
    rig, store = faulty_rig()
    rig.tool("sent")
    store.fail("settle")
    result = rig.execute(call_id="c1")
    assert result.output.metadata == {"notRecorded": "store_unavailable"}
    (outage,) = rig.ears.of("tool_store_outage")
    assert (outage["failOpen"], outage["errorCode"]) == (False, "store_unavailable")
    assert rig.tally.counts["hits", "tools/send", "store_outage_closed"] == 1
    assert rig.leases.unrecorded == 1


def test_what_a_newer_release_refuses_is_not_tried_again() -> None:
    rig, store = faulty_rig()
    rig.tool("sent")
    store.fail("settle", error=StoreVersionError("A newer release wrote it."))
    result = rig.execute(call_id="c1")
    assert result.output.metadata == {"notRecorded": "store_version"}
    assert rig.leases.unrecorded == 0


def test_a_record_that_cannot_be_looked_at_after_its_claim_was_lost() -> None:
    """Another took the claim, and the store fails before it says what became of it."""
    rig, store = faulty_rig()

    def lost(**_: Any) -> str:
        journal = store.inner.open_sync()
        journal.clear(journal.list(tenant="default")[0].key)
        store.fail("read", "forgotten", "begin")
        return "sent"

    rig.tool(lost)
    result = rig.execute(call_id="c1")
    assert (result.content, result.output.metadata) == ("sent", {"notRecorded": "store_unavailable"})
    assert rig.leases.unrecorded == 1
    store.broken.clear()
    rig.clock.advance(2.0)
    rig.leases.look()
    assert rig.leases.unrecorded == 0


@pytest.mark.parametrize("step", ["begin", "settle"])
def test_in_shadow_mode_a_store_that_fails_is_only_told(step: str) -> None:
    rig, store = faulty_rig(shadow=True)
    script = rig.tool("sent")
    store.fail(step)
    result = rig.execute(call_id="c1")
    assert result.content == "sent"
    assert result.output.metadata is None
    assert len(script) == 1
    assert "store_unavailable" in str([fields for name, fields in rig.ears.heard if "shadow" in name])
    assert rig.leases.unrecorded == 0


# -- turns ------------------------------------------------------------------------------------------------------------


def test_a_failed_call_may_be_made_again_in_its_turn() -> None:
    rig = Rig()
    script = rig.tool(ValueError("no"), "second", idempotent=True)
    turn = rig.gateway.session("s1").turn()
    assert turn.call("send", {}, "c1").status == "error"
    assert turn.call("send", {}, "c2").content == "second"
    assert turn.call("send", {}, "c3").code == "denied"
    assert turn.call("send", {}, "c3").code == "denied", "a denied call is not one that ran"
    assert turn.call("send", {}, "c2").content == "second", "a redelivery"
    assert len(script) == 2


def test_a_call_that_succeeded_in_the_end_is_not_made_again_in_its_turn() -> None:
    rig = Rig()
    script = rig.tool(ConnectionRefusedError(111, "refused"), "second", "third", idempotent=True)
    turn = rig.gateway.session("s1").turn()
    assert turn.call("send", {}, "c1").content == "second"
    assert turn.call("send", {}, "c2").code == "denied"
    assert len(script) == 2


def test_nor_is_one_that_hooks_were_told_of() -> None:
    rig = Rig()
    rig.gateway.after(lambda call, result: None)
    script = rig.tool("first", "second", idempotent=True)
    turn = rig.gateway.session("s1").turn()
    assert turn.call("send", {}, "c1").content == "first"
    assert turn.call("send", {}, "c2").code == "denied"
    assert len(script) == 1


def test_an_id_of_a_turn_is_good_for_one_set_of_arguments() -> None:
    rig = Rig()
    script = rig.tool("first", "second")
    turn = rig.gateway.session("s1").turn()
    assert turn.call("send", {"to": "ada"}, "c1").content == "first"
    assert turn.call("send", {"to": "bob"}, "c1").code == "idempotency_conflict"
    assert len(script) == 1
