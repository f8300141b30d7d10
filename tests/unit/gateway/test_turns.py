"""T5, D27: turn control in the gateway, and the loop guard beside it (D25)."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.contract.result import ToolDenied
from antiphon.contract.spec import RetryPolicy
from antiphon.decide.loop import LoopPolicy
from antiphon.errors import LoopBlocked, ToolDeniedError
from tests.unit.gateway.kit import AsyncRig, Hold, Rig, in_thread


def test_the_four_steps_of_the_document() -> None:
    rig = Rig()
    once = RetryPolicy(max_attempts=1)
    script = rig.tool(TimeoutError(), "Paris", "68 million", name="web_search", idempotent=True, retry=once)
    turn = rig.gateway.session("s").turn()
    capital, population = {"to": "capital of France"}, {"to": "population of France"}
    first, second, third, fourth = (
        turn.call("web_search", capital, "1"),
        turn.call("web_search", capital, "2"),
        turn.call("web_search", capital, "3"),
        turn.call("web_search", population, "4"),
    )
    assert first.status == "timeout"
    assert second.content == "Paris"
    assert isinstance(third, ToolDenied)
    assert (third.call_id, third.tool_name, third.reason) == ("3", "web_search", "duplicate")
    assert fourth.content == "68 million"
    assert [call["to"] for call in script.calls] == [capital["to"], capital["to"], population["to"]]


def test_a_denial_is_a_value_with_everything_the_model_needs() -> None:
    rig = Rig()
    rig.tool("found", idempotent=True)
    turn = rig.gateway.session("s").turn()
    turn.call("send", {"to": "ada"}, "c1")
    denied = turn.call("send", {"to": "ada"}, "c2")
    assert denied.to_wire() == {
        "callId": "c2",
        "toolName": "send",
        "reason": "duplicate",
        "details": "send was already called with these arguments in this turn and succeeded (call c1). "
        "Use that result.",
    }


def test_a_denial_is_not_a_success_and_success_is_sticky() -> None:
    rig = Rig()
    script = rig.tool(idempotent=True)
    turn = rig.gateway.session("s").turn()
    turn.call("send", {}, "c1")
    for number in range(3):
        assert isinstance(turn.call("send", {}, f"d{number}"), ToolDenied)
    assert len(script) == 1


def test_the_same_call_id_gets_the_recorded_output() -> None:
    rig = Rig()
    script = rig.tool("found", idempotent=True)
    turn = rig.gateway.session("s").turn()
    turn.call("send", {}, "c1")
    again = turn.call("send", {}, "c1")
    assert (again.content, again.from_cache) == ("found", True)
    assert len(script) == 1


def test_tools_that_are_not_idempotent_are_never_skipped() -> None:
    rig = Rig()
    script = rig.tool()
    turn = rig.gateway.session("s").turn()
    assert [turn.call("send", {}, f"c{n}").content for n in range(3)] == [1, 2, 3]
    assert len(script) == 3


def test_a_later_turn_runs_again() -> None:
    rig = Rig()
    script = rig.tool(idempotent=True)
    session = rig.gateway.session("s")
    assert session.turn().call("send", {}, "c1").ok
    assert session.turn().call("send", {}, "c2").content == 2
    assert session.turn().call("send", {}, "c1").content == 1
    assert len(script) == 2


def test_an_unknown_tool_or_a_misfit_is_a_value_too() -> None:
    rig = Rig()
    rig.tool()
    turn = rig.gateway.session("s").turn()
    assert turn.call("sned", {}).code == "unknown_tool"
    assert turn.call("send", {"whom": "ada"}).code == "validation_error"


def test_envelopes_inside_a_turn_obey_it() -> None:
    rig = Rig()
    rig.tool(idempotent=True)
    with rig.gateway.session("s1", actor="a1").turn():
        rig.execute(call_id="c1")
        denied = rig.execute(call_id="c2")
    assert (denied.status, denied.code) == ("error", "denied")


def test_decorated_functions_inside_a_turn_obey_it() -> None:
    rig = Rig()
    calls: list[str] = []

    @rig.gateway.tool(idempotent=True)
    def look(q: str) -> str:
        calls.append(q)
        return q

    with rig.gateway.session("s") as session, session.turn():
        assert look("x") == "x"
        with pytest.raises(ToolDeniedError, match="already called"):
            look("x")
    assert look("x") == "x"
    assert calls == ["x", "x"]


def test_what_a_tool_calls_itself_is_none_of_the_turns_business() -> None:
    rig = Rig()
    calls: list[str] = []

    @rig.gateway.tool(idempotent=True)
    def look(q: str) -> str:
        calls.append(q)
        return q

    @rig.gateway.tool(idempotent=True)
    def compare(q: str) -> list[str]:
        return [look(q), look(q)]

    with rig.gateway.session("s") as session, session.turn():
        assert compare("x") == ["x", "x"]
    assert calls == ["x", "x"]


async def test_turns_of_the_asynchronous_face() -> None:
    rig = AsyncRig()
    rig.tool(idempotent=True)
    async with rig.gateway.session("s") as session, session.turn() as turn:
        assert (await turn.call("send", {}, "c1")).ok
        assert (await turn.call("send", {}, "c1")).from_cache
        assert isinstance(await turn.call("send", {}, "c2"), ToolDenied)


def test_parallel_equal_calls_in_a_turn_share_one_execution() -> None:
    rig = Rig()
    hold = Hold()
    script = rig.tool(hold.then("found"), idempotent=True)
    turn = rig.gateway.session("s").turn()
    first = in_thread(lambda: turn.call("send", {}, "c1"))
    hold.until_reached()
    second = in_thread(lambda: turn.call("send", {}, "c2"))
    hold.go.set()
    assert first.result().content == "found"
    shared: Any = second.result()
    assert isinstance(shared, ToolDenied) or shared.from_cache
    assert len(script) == 1


# -- loop guard ---------------------------------------------------------------------------------------------------


def loop_rig(**policy: Any) -> Rig:
    return Rig(loop=LoopPolicy(**policy))


def test_the_ladder_note_block_end() -> None:
    rig = loop_rig(note_after=2, block_after=3, end_after_blocks=2)
    script = rig.tool("nothing new")
    turn = rig.gateway.session("s").turn()
    results: list[Any] = [turn.call("send", {}, f"c{n}") for n in range(6)]
    assert [result.code for result in results] == ["", "", "", "loop_blocked", "run_ended", "run_ended"]
    assert "note" in results[2].to_wire()["output"]["metadata"]
    assert "change the arguments" in results[3].error.message
    assert len(script) == 3
    assert all(result.attempts == 0 for result in results[3:])


def test_a_redelivery_is_no_loop() -> None:
    rig = loop_rig(note_after=1, block_after=2)
    rig.tool("nothing new")
    turn = rig.gateway.session("s").turn()
    for _ in range(10):
        assert turn.call("send", {}, "c1").ok


def test_a_session_is_watched_across_its_turns() -> None:
    rig = loop_rig(block_after=3)
    rig.tool("nothing new")
    session = rig.gateway.session("s")
    codes = [session.turn().call("send", {}, f"c{n}").code for n in range(4)]
    assert codes == ["", "", "", "loop_blocked"]


def test_the_guard_can_be_switched_off() -> None:
    rig = loop_rig(enabled=False, block_after=1)
    script = rig.tool("nothing new")
    for number in range(5):
        assert rig.execute(call_id=f"c{number}").ok
    assert len(script) == 5


def test_caps_end_the_session() -> None:
    rig = loop_rig(max_calls=2)
    rig.tool()
    codes = [rig.execute(call_id=f"c{n}", params={"to": str(n)}).code for n in range(3)]
    assert codes == ["", "", "run_ended"]


def test_caps_hold_with_the_loop_guard_off() -> None:
    rig = loop_rig(enabled=False, block_after=1, max_calls=3)
    rig.tool("nothing new")
    assert [rig.execute(call_id=f"c{n}").code for n in range(4)] == ["", "", "", "run_ended"]

    @rig.gateway.tool(idempotent=False)
    def look(q: str) -> str:
        return q

    with rig.gateway.session("t") as session, session.turn():  # the quick way of decorated functions, too
        assert [look("x") for _ in range(3)] == ["x"] * 3
        with pytest.raises(LoopBlocked):
            look("x")


def test_plain_functions_are_not_watched() -> None:
    rig = loop_rig(block_after=1)

    @rig.gateway.tool(idempotent=True)
    def look(q: str) -> str:
        return q

    assert [look("x") for _ in range(5)] == ["x"] * 5


def test_a_blocked_function_call_raises() -> None:
    rig = loop_rig(block_after=1)

    @rig.gateway.tool(idempotent=False)
    def look(q: str) -> str:
        return q

    with rig.gateway.session("s") as session, session.turn():
        look("x")
        with pytest.raises(LoopBlocked):
            look("x")
