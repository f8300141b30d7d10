"""What keeps a call from its claim, and how it hears of changes, whether it is guarded, only watched or left alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from antiphon import Antiphon
from antiphon._gateway.admission import _FIRST_REFRESH_S, _REFRESH_S
from antiphon._gateway.settings import Settings
from antiphon.decide.loop import LoopPolicy
from antiphon.ports import BreakerRow
from antiphon.stores import MemoryStore
from tests.unit.gateway.heard import NO_REFRESH_MS, Face, Heard
from tests.unit.gateway.kit import START_MS, Rig


@pytest.fixture
def store() -> Iterator[Heard]:
    store = Heard()
    yield store
    store.repair()


KINDS = pytest.mark.parametrize("kind", ["sync", "async"])

# -- news -----------------------------------------------------------------------------------------------------------


@KINDS
def test_a_gateway_that_is_off_asks_the_store_for_nothing(kind: str, store: Heard) -> None:
    face = Face(kind, store, settings=Settings(enabled=False, refresh_ms=NO_REFRESH_MS))
    face.tool()
    for number in range(3):
        assert face.execute(refresh=True, call_id=f"c{number}").content == "sent"
    assert store.steps == []
    face.close()


@KINDS
@pytest.mark.parametrize("off", [{"enabled": False}, {"shadow": True}])
def test_one_that_is_off_or_watches_hears_of_changed_settings(kind: str, off: dict[str, Any], store: Heard) -> None:
    news: list[Settings] = []
    face = Face(
        kind, store, settings=Settings(**off, refresh_ms=NO_REFRESH_MS), reload=lambda: news.pop() if news else None
    )
    face.tool()
    assert face.execute(refresh=True, call_id="c1").content == "sent"
    assert face.gateway._plans.next_refresh > 0, "not with every call"
    news.append(Settings(refresh_ms=NO_REFRESH_MS))
    assert face.execute(refresh=True, call_id="c2").content == "sent"
    assert face.execute(call_id="c3").content == "sent"
    again = face.execute(call_id="c3")
    assert (again.content, again.from_cache) == ("sent", True)
    face.close()


@KINDS
def test_one_that_watches_exchanges_breakers_beside_its_calls(kind: str, store: Heard) -> None:
    face = Face(kind, store, settings=Settings(shadow=True, refresh_ms=NO_REFRESH_MS))
    face.tool()
    store.freeze("load_breakers", "begin")
    for number in range(3):
        assert face.execute(refresh=True, call_id=f"c{number}").content == "sent"
    store.steps.until("load_breakers")
    store.thaw()
    store.steps.until("begin", 3)
    face.close()


@KINDS
def test_one_that_watches_leaves_a_sick_store_alone(kind: str, store: Heard) -> None:
    face = Face(kind, store, settings=Settings(shadow=True, refresh_ms=NO_REFRESH_MS))
    face.tool()
    store.fail("renew", "begin", "load_breakers")
    face.leases.breaker.failed(store.broken["begin"])
    asked = (store.steps.count("load_breakers"), store.steps.count("begin"))
    assert face.execute(refresh=True, call_id="c1").content == "sent"
    assert face.gateway._plans.watcher.waiting == 0
    assert (store.steps.count("load_breakers"), store.steps.count("begin")) == asked
    face.close()


@KINDS
def test_how_long_a_call_waits_for_news(kind: str, store: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    face = Face(kind, store)
    face.tool()
    breaker = face.leases.breaker
    waited: list[float] = []
    name = "within" if kind == "sync" else "within_async"
    real = getattr(breaker, name)

    def within(step: Any, seconds: float, *more: Any) -> Any:
        waited.append(seconds)
        return real(step, seconds, *more)

    monkeypatch.setattr(breaker, name, within)
    assert face.execute(refresh=True, call_id="c1").ok
    assert face.execute(refresh=True, call_id="c2").ok
    assert waited == [_FIRST_REFRESH_S, _REFRESH_S]
    store.inner.open_sync().save_breaker(
        "default", BreakerRow("tool/tools/send", "FORCED_OPEN", 5, 0, "by an operator", START_MS)
    )
    assert face.execute(refresh=True, call_id="c3").code == "circuit_open"
    waited.clear()
    assert face.execute(refresh=True, call_id="c4").code == "circuit_open"
    assert waited[0] == pytest.approx(breaker.read_limit_s, abs=0.05)
    assert waited[0] < _REFRESH_S
    face.close()


# -- refusals -------------------------------------------------------------------------------------------------------


def test_a_deadline_that_is_now_has_passed() -> None:
    rig = Rig()
    script = rig.tool("sent")
    assert rig.execute(call_id="c1", deadline_at_ms=START_MS).status != "success"
    assert len(script) == 0
    assert rig.execute(call_id="c2", deadline_at_ms=START_MS + 1_000).content == "sent"


@pytest.mark.parametrize("mode", ["enforced", "disabled"])
def test_an_open_breaker_refuses_also_a_call_without_a_claim(mode: str) -> None:
    rig = Rig()
    script = rig.tool("sent")
    rig.breaker().force_open(rig.clock.monotonic(), "by an operator")
    assert rig.execute(call_id="c1", mode=mode).code == "circuit_open"
    assert len(script) == 0


def test_each_actor_of_each_session_has_a_loop_guard() -> None:
    rig = Rig(loop=LoopPolicy(max_calls=1))
    rig.tool("sent")
    for session, actor in (("s1", "a1"), ("s2", "a1"), ("s1", "a2")):
        assert rig.execute(session=session, actor=actor, call_id=f"{session}{actor}").content == "sent"
    for session, actor in (("s1", "a1"), ("s2", "a1"), ("s1", "a2")):
        refused = rig.execute(session=session, actor=actor, call_id="again", params={"to": "bob"})
        assert refused.status == "error"


def test_arguments_without_a_canonical_form() -> None:
    rig = Rig()

    def send(to: Any) -> str:
        return "sent"

    tool = rig.gateway.tool(idempotent=False)(send)
    with pytest.raises(Exception, match="to"):
        tool(object())
    (blocked,) = rig.ears.of("tool_call_blocked")
    assert (blocked["status"], blocked["errorCode"]) == ("error", "validation_error")


def test_a_run_in_a_session_has_a_loop_guard_of_its_own() -> None:
    app = Antiphon({"loop": {"max_calls": 1}, "telemetry": {"logs": False}}, store=MemoryStore())
    app.gateway.tool("send", idempotent=False)(lambda to: "sent")
    turn = app.gateway.session("s1").turn()
    assert turn.call("send", {"to": "ada"}, "c1").content == "sent"
    with app.run("inside"):
        assert turn.call("send", {"to": "bob"}, "c2").content == "sent"
    assert turn.call("send", {"to": "eve"}, "c3").status == "error"


# -- shadow mode -------------------------------------------------------------------------------------------------------


def test_a_call_inside_an_equal_one_would_be_refused() -> None:
    rig = Rig(shadow=True)
    made: list[int] = []

    def again(depth: int = 0) -> str:
        made.append(depth)
        if len(made) == 1:
            tool()
        return "done"

    tool = rig.gateway.tool("again", idempotent=True)(again)
    assert tool() == "done"
    assert made == [0, 0]
    assert [shadow["wouldHave"] for shadow in rig.ears.of("tool_call_shadow")].count("busy") == 1


def test_a_stream_is_settled_as_it_ended() -> None:
    rig = Rig(shadow=True)

    @rig.gateway.tool("read", idempotent=True)
    def chunks() -> Iterator[str]:
        yield "a"
        yield "b"

    assert list(chunks()) == ["a", "b"]
    assert [record.state for record in rig.records()] == ["done"]
    stream = chunks()
    next(stream)
    stream.close()  # type: ignore[attr-defined]


def test_arguments_without_a_canonical_form_would_be_refused() -> None:
    rig = Rig(shadow=True)
    tool = rig.gateway.tool("send", idempotent=False)(lambda to: "sent")
    assert tool(object()) == "sent"
    assert [shadow["wouldHave"] for shadow in rig.ears.of("tool_call_shadow")] == ["validation_error"]
    assert [name for name, _ in rig.ears.heard].count("tool_call_start") == 1


def would_have(rig: Rig) -> list[str]:
    return [shadow["wouldHave"] for shadow in rig.ears.of("tool_call_shadow")]


def test_each_call_is_told_and_counted_once() -> None:
    rig = Rig(shadow=True)
    rig.tool("sent")
    rig.execute(call_id="c1")
    rig.execute(call_id="c1")
    assert [name for name, _ in rig.ears.heard] == ["tool_call_start", "tool_call_shadow", "tool_call_end"] * 2
    assert would_have(rig) == ["run", "reuse"]
    assert rig.tally.counts["calls", "tools/send", "success", "session"] == 2


def test_a_failure_would_be_retried_or_leave_an_unknown_outcome() -> None:
    rig = Rig(shadow=True)
    rig.tool(ConnectionRefusedError(111, "refused"), idempotent=True)
    rig.execute(call_id="c1")
    assert would_have(rig) == ["run", "retry"]
    rig = Rig(shadow=True)
    rig.tool(TimeoutError("no answer"))
    assert rig.execute(call_id="c1").code == "ETIMEDOUT"
    error: Any = rig.records()[0].error
    assert (error.code, error.should_retriable) == ("outcome_unknown", False)


def test_a_stream_that_was_left_would_be_unknown() -> None:
    rig = Rig(shadow=True)

    @rig.gateway.tool("read", idempotent=False)
    def chunks() -> Iterator[str]:
        yield "a"
        yield "b"

    stream = chunks()
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    record: Any = rig.records()[0]
    assert (record.state, record.error.code) == ("failed", "outcome_unknown")
