"""R12: kill switch, breaker enforcement, key derivation, shadow mode and staged tools, flipped without a restart."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from antiphon._gateway.context import CallContext
from antiphon._gateway.gateway import Gateway
from antiphon._gateway.plan import Dependencies
from antiphon._gateway.settings import Settings, ToolOverride
from antiphon.contract.spec import BreakerPolicy
from antiphon.errors import ConfigError
from antiphon.ports import BreakerRow
from antiphon.stores import MemoryStore
from tests.unit.gateway.kit import NEVER_TRIPS, AsyncRig, HttpError, ManualClock, Rig


class Reloading:
    """A configuration that changes when the test says so."""

    def __init__(self) -> None:
        self.next: Settings | Exception | None = None
        self.asked = 0

    def __call__(self) -> Settings | None:
        self.asked += 1
        found, self.next = self.next, None
        if isinstance(found, Exception):
            raise found
        return found


def gateway_with(reload: Reloading, **settings: Any) -> tuple[Gateway, ManualClock]:
    clock = ManualClock()
    parts = Dependencies(store=MemoryStore(clock=clock), clock=clock, settings=Settings(**settings), reload=reload)
    return Gateway(parts), clock


def test_off_means_a_plain_call() -> None:
    rig = Rig(enabled=False)
    script = rig.tool(HttpError(503), "sent")
    failed = rig.execute(call_id="c1")
    assert (failed.status, failed.attempts) == ("error", 1)
    assert rig.execute(call_id="c1").content == "sent"
    assert len(script) == 2
    assert rig.records() == []
    assert rig.ears.heard == []


def test_switching_off_between_two_attempts_stops_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    script = rig.tool(HttpError(503), "sent", idempotent=True)
    monkeypatch.setattr(rig.clock, "sleep", lambda seconds: rig.gateway.configure(Settings(enabled=False)))
    failed = rig.execute(call_id="c1")
    assert (failed.status, failed.attempts) == ("retriable_error", 1)
    assert len(script) == 1


def test_off_passes_arguments_and_exceptions_unchanged() -> None:
    rig = Rig(enabled=False)
    marker, error = object(), ValueError("mine")

    @rig.gateway.tool(idempotent=True)
    def echo(value: Any, *, fail: bool = False) -> Any:
        if fail:
            raise error
        return value

    assert echo(marker) is marker
    with pytest.raises(ValueError, match="mine") as caught:
        echo(marker, fail=True)
    assert caught.value is error
    assert not hasattr(error, "__notes__")


def test_off_still_gives_a_tool_the_context_it_asks_for() -> None:
    rig = Rig(enabled=False)

    @rig.gateway.tool(idempotent=True)
    def who(ctx: CallContext) -> str:
        return ctx.tool

    assert who() == "tools/who"  # type: ignore[call-arg]


async def test_off_keeps_a_keyed_synchronous_tool_off_the_event_loop() -> None:
    rig = AsyncRig(enabled=False)

    def where(order: str) -> int:
        return threading.get_ident()

    keyed: Any = rig.gateway.tool("keyed", idempotent=False, key="order")(where)
    plain: Any = rig.gateway.tool("plain", idempotent=False)(where)
    loop = threading.get_ident()
    assert await keyed("o1") != loop
    assert await plain.once("o1")("o1") != loop


@pytest.mark.parametrize("mode", [{"enabled": False}, {"shadow": True}], ids=["off", "shadow"])
def test_off_an_envelope_needs_no_key(mode: dict[str, Any]) -> None:
    rig = Rig(**mode)
    rig.tool("sent", key=lambda **_: 1 / 0)
    assert rig.execute(call_id="c1").content == "sent"


async def test_off_in_the_asynchronous_face() -> None:
    rig = AsyncRig(enabled=False)

    @rig.gateway.tool(idempotent=True)
    async def look(q: str) -> str:
        await asyncio.sleep(0)
        return q

    @rig.gateway.tool(idempotent=True)
    async def pieces(n: int) -> Any:
        for number in range(n):
            yield number

    script = rig.tool("sent")
    assert await look("x") == "x"
    assert [piece async for piece in pieces(2)] == [0, 1]
    assert (await rig.execute()).content == "sent"
    assert (await rig.execute(tool="pieces", params={"n": 2})).content == [0, 1]
    assert len(script) == 1
    assert rig.records() == []


@pytest.mark.parametrize("value", ["false", "0", "off", "no", "False", "disabled", "Disable", " off "])
def test_the_environment_gives_the_start_value(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_RELIABILITY_ENABLED", value)
    rig = Rig()
    script = rig.tool()
    rig.execute(call_id="c1")
    rig.execute(call_id="c1")
    assert len(script) == 2


def test_unset_means_enabled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_RELIABILITY_ENABLED", "")
    rig = Rig()
    script = rig.tool()
    rig.execute(call_id="c1")
    rig.execute(call_id="c1")
    assert len(script) == 1


def test_a_flip_needs_no_restart_in_either_direction() -> None:
    reload = Reloading()
    gateway, clock = gateway_with(reload)
    calls: list[int] = []

    @gateway.tool(idempotent=True, reuse="session")
    def look(q: int) -> int:
        calls.append(q)
        return q

    look(1), look(1)
    reload.next = Settings(enabled=False)
    look(1)
    assert calls == [1]  # looked at once a second at most
    clock.advance(1.0)
    look(1), look(1)
    assert calls == [1, 1, 1] or calls == [1, 1]
    before = len(calls)
    reload.next = Settings()
    clock.advance(1.0)
    look(1), look(1)
    assert len(calls) == before


def test_the_configuration_is_looked_at_once_a_second() -> None:
    reload = Reloading()
    gateway, clock = gateway_with(reload)

    @gateway.tool(idempotent=True)
    def look(q: int) -> int:
        return q

    for number in range(50):
        look(number)
    assert reload.asked == 1
    clock.advance(1.0)
    look(0)
    assert reload.asked == 2


def test_a_broken_configuration_leaves_the_old_one(caplog: pytest.LogCaptureFixture) -> None:
    reload = Reloading()
    gateway, _ = gateway_with(reload)

    @gateway.tool(idempotent=True)
    def look(q: int) -> int:
        return q

    reload.next = ConfigError("antiphon.toml, line 3: nonsense", path="antiphon.toml:3")
    assert look(1) == 1
    assert "line 3" in caplog.text


def test_an_operators_flip_beats_the_start_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_RELIABILITY_ENABLED", "true")
    rig = Rig()
    rig.gateway.configure(Settings(enabled=False))
    assert not rig.gateway._plans.settings.enabled
    rig.gateway.configure(Settings(enabled=False, open_mode=False))
    assert not rig.gateway._plans.settings.enabled
    rig.gateway.configure(Settings(enabled=True))
    assert rig.gateway._plans.settings.enabled


def test_open_mode_off_counts_but_never_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_RELIABILITY_OPEN_MODE", "off")
    rig = Rig()
    script = rig.tool(HttpError(503), idempotent=True)
    for number in range(8):
        assert rig.execute(attempts=1, params={"to": str(number)}).status == "retriable_error"
    assert len(script) == 8
    assert rig.breaker().state == "OPEN"


@pytest.mark.parametrize("by", ["operator", "configuration"])
def test_a_breaker_that_is_forced_open_blocks_also_with_open_mode_off(by: str) -> None:
    rig = Rig(open_mode=False)
    script = rig.tool(breaker={"forced_open": True} if by == "configuration" else {})
    if by == "operator":
        rig.gateway.adopt_breakers([BreakerRow("tool/tools/send", "FORCED_OPEN", 9**9, 0, "by hand", 1)])
    assert rig.execute(call_id="c1").code == "circuit_open"
    assert len(script) == 0


def test_derive_off_by_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_RELIABLE_DERIVE_IDEMPOTENCY", "off")
    rig = Rig()
    script = rig.tool(idempotent=True)
    rig.execute()
    rig.execute()
    assert len(script) == 2


def test_staged_tools() -> None:
    rig = Rig(tools={"tools/send": ToolOverride(enabled=False)})
    staged, guarded = rig.tool(), rig.tool(name="guarded")
    for name in ("send", "guarded"):
        rig.execute(tool=name, call_id="c1")
        rig.execute(tool=name, call_id="c1")
    assert (len(staged), len(guarded)) == (2, 1)


def test_a_forced_open_breaker_by_configuration_comes_and_goes() -> None:
    rig = Rig()
    script = rig.tool("sent")
    rig.execute(call_id="c1")
    rig.gateway.configure(Settings(tools={"send": ToolOverride(forced_open=True)}))
    refused = rig.execute(call_id="c2")
    assert (refused.status, refused.error.breaker_state) == ("circuit_open", "FORCED_OPEN")
    rig.gateway.configure(Settings())
    assert rig.execute(call_id="c2").content == "sent"
    assert len(script) == 2


def test_a_new_breaker_policy_keeps_what_an_operator_decided() -> None:
    rig = Rig()
    rig.tool("sent")
    rig.execute(call_id="c1")
    rig.breaker().force_open(rig.clock.seconds, "maintenance")
    rig.gateway.configure(Settings(breaker=BreakerPolicy(consecutive=9)))
    assert rig.breaker().state == "FORCED_OPEN"
    assert rig.breaker().policy.consecutive == 9


# -- shadow ------------------------------------------------------------------------------------------------------


def verdicts(rig: Rig) -> list[str]:
    return [fields["wouldHave"] for fields in rig.ears.of("tool_call_shadow")]


def test_shadow_changes_nothing_and_says_what_it_would_have_done() -> None:
    rig = Rig(shadow=True)
    script = rig.tool(idempotent=True)
    assert [rig.execute(call_id=name).content for name in ("c1", "c1", "c2")] == [1, 2, 3]
    assert verdicts(rig) == ["run", "reuse", "reuse"]
    assert len(script) == 3
    assert [record.key.startswith("shadow.") for record in rig.records()] == [True]


def test_shadow_does_not_retry_and_says_so() -> None:
    rig = Rig(shadow=True)
    script = rig.tool(HttpError(503), "fine", idempotent=True)
    failed = rig.execute(call_id="c1")
    assert (failed.status, failed.attempts) == ("error", 1)
    assert verdicts(rig) == ["run", "retry"]
    assert len(script) == 1
    assert rig.clock.slept == []


def test_shadow_does_not_block_unknown_outcomes() -> None:
    rig = Rig(shadow=True)
    script = rig.tool(TimeoutError(), "sent")
    rig.execute(call_id="c1")
    assert rig.execute(call_id="c2").content == "sent"
    assert verdicts(rig) == ["run", "unknown"]
    assert len(script) == 2


def test_shadow_counts_on_breakers_of_its_own() -> None:
    rig = Rig(shadow=True)
    script = rig.tool(HttpError(503), idempotent=True)
    for number in range(7):
        rig.execute(params={"to": str(number)})
    assert verdicts(rig)[-1] == "circuit_open"
    assert len(script) == 7
    assert rig.breaker().state == "CLOSED"


def test_shadow_does_not_fill_the_store_with_records_it_must_keep() -> None:
    rig = Rig(store=MemoryStore(max_keys=5), shadow=True)
    rig.tool()
    for number in range(20):
        assert rig.execute(params={"to": str(number)}).ok
    assert set(verdicts(rig)) == {"run"}


def test_shadow_gives_a_tool_its_context_and_passes_streams_on() -> None:
    rig = Rig(shadow=True)

    @rig.gateway.tool(idempotent=True)
    def who(ctx: CallContext) -> str:
        return ctx.tool

    @rig.gateway.tool(idempotent=True)
    def pieces(n: int) -> Any:
        yield from range(n)

    assert who() == "tools/who"  # type: ignore[call-arg]
    assert list(pieces(3)) == [0, 1, 2]
    assert rig.execute(tool="pieces", params={"n": 2}).content == [0, 1]


async def test_shadow_in_the_asynchronous_face() -> None:
    rig = AsyncRig(shadow=True)

    @rig.gateway.tool(idempotent=True)
    async def pieces(n: int) -> Any:
        for number in range(n):
            yield number

    script = rig.tool("sent")
    assert (await rig.execute()).content == "sent"
    assert [piece async for piece in pieces(3)] == [0, 1, 2]
    assert len(script) == 1


def test_safety_critical_calls_are_never_only_watched() -> None:
    rig = Rig(shadow=True)
    script = rig.tool()
    for _ in range(2):
        rig.execute(call_id="c1", hints={"safetyCritical": True})
    assert len(script) == 1


def test_shadow_of_a_single_tool() -> None:
    rig = Rig(tools={"send": ToolOverride(shadow=True)})
    watched, guarded = rig.tool(), rig.tool(name="guarded", breaker=NEVER_TRIPS)
    for name in ("send", "guarded"):
        rig.execute(tool=name, call_id="c1")
        rig.execute(tool=name, call_id="c1")
    assert (len(watched), len(guarded)) == (2, 1)


def test_off_credits_no_retry_budget() -> None:
    """However the call is made."""
    rig = Rig(enabled=False)
    rig.tool("sent")
    budget = rig.gateway._plans.budget(rig.gateway._plans.tools["send"])
    before = budget.tokens(rig.clock.monotonic())
    rig.execute(call_id="c1")
    rig.gateway.session("s1").turn().call("send", {})
    assert budget.tokens(rig.clock.monotonic()) == before
