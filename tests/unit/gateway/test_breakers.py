"""R9, D8 in the gateway: which breaker a call must pass, what it learns, and what survives."""

from __future__ import annotations

from contextvars import copy_context
from typing import Any

import pytest

from antiphon._gateway.breakers import Breakers
from antiphon._gateway.gateway import Gateway
from antiphon._gateway.settings import Settings, ToolOverride
from antiphon.contract.spec import BreakerPolicy, RetryPolicy
from antiphon.decide.breaker import Breaker
from antiphon.ports import BreakerRow
from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import HttpError, ManualClock, Rig
from tests.unit.gateway.test_outage import Faulty


def fail(rig: Rig, times: int, **changes: Any) -> list[Any]:
    return [rig.execute(attempts=1, params={"to": f"f{n}"}, **changes) for n in range(times)]


def test_an_open_breaker_touches_neither_tool_nor_store_with_a_write() -> None:
    store = Faulty()
    rig = Rig(store=store)
    script = rig.tool(HttpError(503), idempotent=True)
    fail(rig, 5)
    before, store.asked = len(script), []
    refused = rig.execute(params={"to": "new"})
    assert (refused.status, refused.code, refused.attempts) == ("circuit_open", "circuit_open", 0)
    assert refused.error.breaker_state == "OPEN"
    assert "Try again in" in refused.error.message
    assert len(script) == before
    assert store.asked == ["read"]


def test_a_name_may_contain_the_separator() -> None:
    clock = ManualClock()
    breakers = Breakers(clock, quorum=1)
    breakers.adopt([])
    key, until = "dependency/billing#eu", clock.now_ms() + 30_000
    [(forced, transition)] = breakers.adopt([BreakerRow(key, "FORCED_OPEN", 9, 0, "maintenance", 0, "operator")])
    assert (forced, transition.to_state) == (key, "FORCED_OPEN")

    tripped = Breakers(clock, quorum=1)
    tripped.adopt([])
    own = tripped.row(key, Breaker())
    assert tripped.adopt([own._replace(state="OPEN", until_ms=until)]) == [], "its own trip is no news"
    [(name, _)] = tripped.adopt([BreakerRow(f"{key}#node-1", "OPEN", 1, until, "5 failures", 0, "node-1")])
    assert name == key


def test_a_done_record_still_answers_while_the_breaker_is_open() -> None:
    store = Faulty()
    rig = Rig(store=store)
    rig.tool("sent")
    rig.execute(call_id="c1")
    rig.breaker().force_open(rig.clock.seconds, "maintenance")
    store.asked = []
    assert rig.execute(call_id="c1").content == "sent"
    assert rig.execute(call_id="c2").status == "circuit_open"
    assert store.asked == ["read", "read"]


def test_a_call_of_unknown_outcome_is_not_told_that_it_was_not_made() -> None:
    rig = Rig()
    rig.tool(TimeoutError("late"), idempotent=False)
    rig.execute(call_id="c1")
    rig.breaker().force_open(rig.clock.seconds, "maintenance")
    again = rig.execute(call_id="c1")
    assert (again.code, again.error.retriable) == ("outcome_unknown", False)


def test_a_call_in_flight_is_told_so_while_the_breaker_is_open() -> None:
    rig = Rig()
    again: list[Any] = []

    @rig.gateway.tool("send", idempotent=False)
    def send(to: str) -> str:
        rig.breaker().force_open(rig.clock.seconds, "maintenance")
        again.append(copy_context().run(rig.execute, call_id="c1"))
        return "sent"

    assert rig.execute(call_id="c1").content == "sent"
    assert [(one.code, one.status) for one in again] == [("in_flight", "retriable_error")]


def test_the_attempt_that_opens_the_breaker_gives_its_own_error() -> None:
    rig = Rig()
    rig.tool(HttpError(503), idempotent=True)
    results = fail(rig, 5)
    assert [r.status for r in results] == ["retriable_error"] * 5
    assert results[3].error.breaker_state != "OPEN"
    assert (results[4].code, results[4].error.breaker_state) == ("http_503", "OPEN")


def test_no_retry_once_the_breaker_is_open() -> None:
    rig = Rig()
    script = rig.tool(HttpError(503), idempotent=True)
    fail(rig, 3)
    result = rig.execute()  # four attempts allowed, two are left until it opens
    assert (result.status, result.attempts, result.error.breaker_state) == ("retriable_error", 2, "OPEN")
    assert len(script) == 5


@pytest.mark.parametrize("answer", [HttpError(400), HttpError(404), HttpError(422), ValueError("bad")])
def test_answers_about_the_request_never_open_it(answer: Exception) -> None:
    rig = Rig()
    rig.tool(answer, idempotent=True)
    fail(rig, 12)
    assert rig.breaker().state == "CLOSED"


def test_refused_calls_do_not_extend_it() -> None:
    rig = Rig()
    rig.tool(HttpError(503), idempotent=True)
    fail(rig, 5)
    rig.clock.advance(29)
    fail(rig, 20)
    rig.clock.advance(1.5)
    assert rig.execute(params={"to": "probe"}).attempts >= 1


def test_a_429_pauses_the_dependency_until_retry_after() -> None:
    rig = Rig()
    script = rig.tool(HttpError(429, Retry_After="60"), "fine", idempotent=True)
    throttled = rig.execute(params={"to": "1"})
    assert (throttled.status, throttled.attempts) == ("retriable_error", 1)  # longer than the cap: stop
    paused = rig.execute(params={"to": "2"})
    assert (paused.status, paused.attempts) == ("circuit_open", 0)
    assert paused.error.message == (
        "tools/send is paused: it asked to wait (Retry-After). The call was not made. Try again in 30.0 s."
    )
    rig.clock.advance(30)  # the cap
    assert rig.execute(params={"to": "2"}).content == "fine"
    assert len(script) == 2


def test_a_probe_that_is_asked_to_wait_keeps_the_breaker_open_up_to_the_cap() -> None:
    rig = Rig()
    answers = [HttpError(503)] * 5 + [HttpError(429, Retry_After="99999999"), "fine"]
    rig.tool(*answers, idempotent=True, effect="write", retry=RetryPolicy(retry_after_cap_ms=40_000))
    fail(rig, 5)
    rig.clock.advance(15)
    rig.execute(params={"to": "probe"})
    rig.clock.advance(39.9)
    assert rig.execute(params={"to": "next"}).status == "circuit_open"
    rig.clock.advance(0.1)
    assert rig.execute(params={"to": "next"}).content == "fine"


def test_operators_see_a_pause_and_a_reset_ends_it() -> None:
    store = Durable()
    rig = Rig(store=store)
    script = rig.tool(HttpError(429, Retry_After="20"), "fine", idempotent=False, retry=RetryPolicy(max_attempts=1))
    rig.execute(params={"to": "1"})
    [row] = rows(store).values()
    assert (row.key.partition("#")[0], row.state) == ("tool/tools/send", "CLOSED")
    assert (row.reason, row.until_ms - rig.clock.now_ms()) == ("throttled: the dependency asked to wait", 20_000)
    assert Breakers(rig.clock, quorum=1).adopt([row._replace(key="tool/tools/send#other", tripped_by="other")]) == [], (
        "it binds nobody else"
    )
    act = BreakerRow("tool/tools/send", "CLOSED", row.epoch + 1, 0, "reset: it is back", rig.clock.now_ms())
    store.open_sync().save_breaker("default", act)
    assert rig.execute(params={"to": "2"}).status == "circuit_open"
    rig.clock.advance(1.1)
    assert rig.execute(params={"to": "2"}).content == "fine"
    assert len(script) == 2


@pytest.mark.parametrize(("effect", "failures", "cooldown"), [(None, 5, 30), ("read", 8, 20), ("write", 5, 15)])
def test_presets_follow_the_effect(effect: Any, failures: int, cooldown: float) -> None:
    rig = Rig()
    rig.tool(HttpError(503), idempotent=True, effect=effect)
    for number in range(failures):
        assert rig.breaker().state == "CLOSED"
        rig.execute(attempts=1, params={"to": str(number)})
    assert rig.breaker().state == "OPEN"
    rig.clock.advance(cooldown - 0.1)
    assert rig.execute(params={"to": "x"}).status == "circuit_open"
    rig.clock.advance(0.2)
    assert rig.execute(params={"to": "x"}).status != "circuit_open"


# -- which breaker ---------------------------------------------------------------------------------------------------


def test_hints_choose_the_breaker_that_counts() -> None:
    rig = Rig()
    rig.tool(HttpError(503), name="a", idempotent=True, dependency="mail")
    rig.tool("fine", name="b", idempotent=True, dependency="mail")
    rig.tool("fine", name="c", idempotent=True)
    for number in range(5):
        rig.execute(tool="a", attempts=1, hint="dependency", params={"to": str(number)})
    # the breaker of the dependency is open for every tool that uses it, whatever breaker the call asks for
    assert rig.execute(tool="b").status == "circuit_open"
    assert rig.execute(tool="c").ok


def test_the_global_breaker_encloses_all() -> None:
    rig = Rig()
    rig.tool("fine")
    rig.gateway._plans.breakers.get("global").force_open(rig.clock.seconds, "stop everything")
    assert rig.execute().error.breaker_state == "FORCED_OPEN"


def test_a_dependency_hint_without_a_dependency_is_the_tools_own() -> None:
    rig = Rig()
    rig.tool(HttpError(503), idempotent=True)
    fail(rig, 5, hint="dependency")
    assert rig.breaker().state == "OPEN"


# -- what survives, what is shared --------------------------------------------------------------------------------


class Durable(MemoryStore):
    """A memory store that says it is durable, to look at what is written."""

    def open_sync(self) -> Any:
        journal = super().open_sync()

        class Journal:
            durable = True

            def __getattr__(self, name: str) -> Any:
                return getattr(journal, name)

        return Journal()


def rows(store: Any) -> dict[str, BreakerRow]:
    return {row.key: row for row in store.open_sync().load_breakers("default")}


def test_a_trip_survives_a_restart() -> None:
    store = Durable()
    rig = Rig(store=store)
    rig.tool(HttpError(503), idempotent=True)
    fail(rig, 5)
    [row] = rows(store).values()
    assert (row.key.partition("#")[0], row.state) == ("tool/tools/send", "OPEN")
    restarted = Breakers(rig.clock, quorum=2)
    other = BreakerRow(row.key.partition("#")[0] + "#other", *row[1:6], "other")
    assert [key for key, _ in restarted.adopt([other])] == ["tool/tools/send"]
    assert restarted.get("tool/tools/send").state == "OPEN"


def test_a_forced_state_binds_every_process_until_reset() -> None:
    store = Durable()
    first, second = Rig(store=store), Rig(store=store)
    scripts = first.tool("fine"), second.tool("fine")
    breaker = first.breaker()
    breaker.force_open(first.clock.seconds, "maintenance")
    store.open_sync().save_breaker("default", first.gateway._plans.breakers.row("tool/tools/send", breaker))
    refused = second.execute()
    assert refused.error.breaker_state == "FORCED_OPEN"
    assert "maintenance" in refused.error.message
    breaker.reset(first.clock.seconds, "over")
    store.open_sync().save_breaker("default", first.gateway._plans.breakers.row("tool/tools/send", breaker))
    second.clock.advance(1.1)
    assert second.execute().ok
    assert (len(scripts[0]), len(scripts[1])) == (0, 1)


def _trip(owner: str, until_ms: int) -> BreakerRow:
    return BreakerRow(f"tool/tools/send#{owner}", "OPEN", 1, until_ms, "5 consecutive failures", 0, owner)


def test_one_bad_node_does_not_fence_off_a_dependency_for_all() -> None:
    clock = ManualClock()
    breakers = Breakers(clock, quorum=2)
    breakers.adopt([])
    later = clock.now_ms() + 30_000
    assert breakers.adopt([_trip("node-1", later)]) == []
    [(key, transition)] = breakers.adopt([_trip("node-1", later), _trip("node-2", later)])
    assert (key, transition.to_state) == ("tool/tools/send", "OPEN")


def test_a_trip_that_has_cooled_down_opens_nothing() -> None:
    clock = ManualClock()
    breakers = Breakers(clock, quorum=1)
    assert breakers.adopt([_trip("node-1", clock.now_ms() - 1)]) == []


def _skewed(clock: ManualClock, skew_ms: int, lasts_ms: int, key: str = "global") -> BreakerRow:
    """A row that was written just now, on a machine whose clock is wrong."""
    wall, state = clock.now_ms() + skew_ms, "OPEN" if "#" in key else "FORCED_OPEN"
    return BreakerRow(key, state, 1, wall + lasts_ms, "because", wall, key.partition("#")[2])


def _opened(breakers: Breakers, clock: ManualClock, key: str = "global") -> int:
    state = breakers.get(key).export(clock.monotonic())
    return 0 if state.state == "CLOSED" else state.remaining_ms


@pytest.mark.parametrize("skew_ms", [-3_600_000, -120_000, 0, 120_000, 3_600_000])
@pytest.mark.parametrize("pushed", [True, False])
def test_an_act_lasts_as_long_as_its_operator_said_whatever_his_clock_says(skew_ms: int, pushed: bool) -> None:
    clock = ManualClock()
    breakers = Breakers(clock, quorum=2)
    breakers.adopt([])
    clock.advance(600 if pushed else 1)  # gateways that are told look seldom
    row = _skewed(clock, skew_ms, 60_000)
    breakers.adopt([row], pushed=pushed)
    assert 59_000 <= _opened(breakers, clock) <= 60_000
    clock.advance(30)
    breakers.adopt([row], pushed=pushed)
    assert 29_000 <= _opened(breakers, clock) <= 30_000


def test_an_act_that_was_over_before_a_gateway_looked_again_does_nothing() -> None:
    clock = ManualClock()
    breakers = Breakers(clock, quorum=2)
    breakers.adopt([])
    row = _skewed(clock, 0, 60_000)
    clock.advance(600)
    assert breakers.adopt([row]) == []


@pytest.mark.parametrize("key", ["global", "global#node-1"])
def test_a_row_from_a_clock_that_is_fast_lasts_no_longer_than_it_says(key: str) -> None:
    clock = ManualClock()
    starting = Breakers(clock, quorum=2)
    starting.adopt([_skewed(clock, 3_600_000, 1_000, key)])
    assert _opened(starting, clock) == 1_000


@pytest.mark.parametrize("skew_ms", [-120_000, 3_600_000])
def test_trips_of_wrong_clocks_count_while_they_last(skew_ms: int) -> None:
    clock = ManualClock()
    breakers = Breakers(clock, quorum=2)
    breakers.adopt([])
    clock.advance(0.5)
    first = _skewed(clock, skew_ms, 30_000, "global#node-1")
    breakers.adopt([first])
    clock.advance(0.5)
    assert breakers.adopt([first, _skewed(clock, 0, 30_000, "global#node-2")]) != []
    late = Breakers(clock, quorum=2)
    late.adopt([])
    late.adopt([first])
    clock.advance(60)
    assert late.adopt([first, _skewed(clock, 0, 30_000, "global#node-2")]) == []


def test_transitions_are_told() -> None:
    rig = Rig()
    rig.tool(*[HttpError(503)] * 5, "fine", idempotent=True)
    fail(rig, 5)
    rig.clock.advance(31)
    for number in range(2):
        assert rig.execute(params={"to": f"p{number}"}).ok
    moves = [(f["fromState"], f["toState"]) for f in rig.ears.of("tool_call_circuit_state")]
    assert moves == [("CLOSED", "OPEN"), ("OPEN", "HALF_OPEN"), ("HALF_OPEN", "CLOSED")]
    assert rig.tally.counts["breaker", "tool/tools/send", "CLOSED", "OPEN"] == 1


def test_a_configured_forced_open_tool_never_runs() -> None:
    rig = Rig()
    script = rig.tool("fine", breaker=BreakerPolicy(forced_open=True))
    assert rig.execute().error.breaker_state == "FORCED_OPEN"
    assert len(script) == 0


def test_gateways_do_not_share_breakers() -> None:
    first, second = Rig(), Rig()
    first.tool(HttpError(503), idempotent=True)
    second.tool("fine", idempotent=True)
    fail(first, 5)
    assert isinstance(first.gateway, Gateway)
    assert second.execute().ok


def test_a_breaker_that_was_replaced_while_a_call_ran_is_not_told_of() -> None:
    rig = Rig(tools={"send": ToolOverride(breaker=BreakerPolicy(consecutive=1))})

    def reconfigured(**_: Any) -> None:
        rig.gateway.configure(Settings(tools={"send": ToolOverride(breaker=BreakerPolicy(consecutive=2))}))
        raise HttpError(503)

    rig.tool(reconfigured)
    rig.execute()
    assert rig.ears.of("tool_call_circuit_state") == []
    assert [row.key.partition("#")[0] for row in rig.store.open_sync().load_breakers("default")] == ["tool/tools/send"]
