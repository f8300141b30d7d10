"""Every input of a plan: a change of it binds the very next call of a function that was decorated and used before."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pytest

from antiphon._gateway.hooks import HookCall
from antiphon._gateway.settings import Settings, ToolOverride
from antiphon.contract.spec import BreakerPolicy, RetryPolicy
from antiphon.decide.loop import LoopPolicy
from antiphon.errors import CircuitOpen, ResultNotKept, ToolDeniedError
from antiphon.ports import BreakerRow
from antiphon.redact import Redactor, Rules
from antiphon.stores import MemoryStore, SQLiteStore
from antiphon.telemetry.logs import JsonLogListener
from tests.unit.gateway import kit
from tests.unit.gateway.kit import START_MS, AsyncRig, Ears, HttpError, Rig, Script

WARM = 3


class Face:
    """A gateway of one face with a decorated function that has been called before."""

    def __init__(self, rig: Rig, *, idempotent: bool = False, **spec: Any) -> None:
        self.rig = rig
        self.gateway: Any = rig.gateway
        self.script = Script()
        self.function = self.decorate(self.script, idempotent=idempotent, **spec)

    def decorate(self, script: Callable[..., Any], *, idempotent: bool = False, **spec: Any) -> Any:
        def send(to: str) -> Any:
            return script(to=to)

        async def send_async(to: str) -> Any:
            return script(to=to)

        function = send_async if isinstance(self.rig, AsyncRig) else send
        return self.gateway.tool("send", idempotent=idempotent, **spec)(function)

    async def call(self, to: str = "ada") -> Any:
        found = self.function(to)
        return await found if isawaitable(found) else found

    async def execute(self, **changes: Any) -> Any:
        found = self.rig.execute(**changes)
        return await found if isawaitable(found) else found

    async def warmed(self) -> Face:
        for n in range(WARM):
            await self.call(f"warm {n}")
        return self

    def configure(self, **settings: Any) -> None:
        self.gateway.configure(Settings(**settings))

    def tool_setting(self, **override: Any) -> None:
        self.configure(tools={"send": ToolOverride(**override)})

    @property
    def records(self) -> int:
        return len(self.rig.records(limit=1000))


@pytest.fixture(params=["threads", "loop"])
def make(request: pytest.FixtureRequest) -> Callable[..., Face]:
    """Makes a face: ``make(store, idempotent=..., ...)``."""
    kind = Rig if request.param == "threads" else AsyncRig

    def make(store: Any = None, *, idempotent: bool = False, spec: Any = None, **settings: Any) -> Face:
        return Face(kind(store, **settings), idempotent=idempotent, **(spec or {}))

    return make


Make = Callable[..., Face]


# -- settings ------------------------------------------------------------------------------------------------------


async def test_retry_policy(make: Make) -> None:
    face = await make(idempotent=True).warmed()
    face.script.steps = [HttpError(503)]
    face.tool_setting(retry=RetryPolicy(max_attempts=2, base_ms=1))
    with pytest.raises(Exception, match="503"):
        await face.call()
    assert len(face.script) == WARM + 2


async def test_breaker_policy(make: Make) -> None:
    face = await make().warmed()
    face.tool_setting(breaker=BreakerPolicy(forced_open=True))
    with pytest.raises(CircuitOpen):
        await face.call()
    face.tool_setting()
    await face.call()
    assert len(face.script) == WARM + 1


async def test_reuse(make: Make) -> None:
    face = await make(idempotent=True).warmed()
    assert await face.call() != await face.call()
    face.tool_setting(reuse="session")
    assert await face.call() == await face.call() == len(face.script)


async def test_kill_switch(make: Make) -> None:
    face = await make().warmed()
    face.configure(enabled=False)
    await face.call()
    assert (len(face.script), face.records) == (WARM + 1, WARM)
    face.configure(enabled=True)
    await face.call()
    assert (len(face.script), face.records) == (WARM + 2, WARM + 1)


async def test_kill_switch_of_one_tool(make: Make) -> None:
    face = await make().warmed()
    for off in ("send", "tools/send"):
        face.configure(tools={off: ToolOverride(enabled=False)})
        await face.call()
        assert face.records == WARM
    face.configure()
    await face.call()
    assert face.records == WARM + 1


async def test_loop_guard_of_new_sessions(make: Make) -> None:
    face = await make(idempotent=True).warmed()
    face.configure(loop=LoopPolicy(max_calls=1))
    session = face.gateway.session("new")
    codes = []
    for to in ("ada", "eve"):
        answer = session.turn().call("send", {"to": to})
        codes.append((await answer if isawaitable(answer) else answer).code)
    assert codes == ["", "run_ended"]


async def test_result_limit(make: Make) -> None:
    face = await make(idempotent=True, spec={"reuse": "session"}).warmed()
    face.configure(result_limit=1)
    face.script.steps = ["too long"]
    await face.call()
    with pytest.raises(ResultNotKept):
        await face.call()


async def test_payload_limit(make: Make) -> None:
    face = await make().warmed()
    face.configure(payload_limit=1)
    assert face.gateway._plans.results.payload_limit == 1
    assert face.gateway._plans.plan(face.gateway.find("tools", "send")).largest == 1


async def test_abandoned_threads(make: Make) -> None:
    face = await make(idempotent=True).warmed()
    face.rig.tool("sent", name="slow", idempotent=True, timeout=60, retry=RetryPolicy(max_attempts=1))
    face.configure(abandoned_threads=0)
    assert (await face.execute(tool="slow")).code == "too_many_abandoned_threads"


async def test_breaker_quorum(make: Make) -> None:
    face = await make().warmed()
    face.gateway.adopt_breakers([])
    now = face.rig.clock.now_ms()
    trip = BreakerRow("tool/tools/send#node-1", "OPEN", 1, now + 30_000, "5 failures", now, "node-1")
    face.gateway.adopt_breakers([trip])
    await face.call()
    face.configure(breaker_quorum=1)
    face.gateway.adopt_breakers([trip])
    with pytest.raises(CircuitOpen):
        await face.call()


@pytest.mark.parametrize("limits", [Settings(lease_cap_ms=10_000), Settings(stream_idle_ms=10_000)])
def test_limits_of_leases(limits: Settings) -> None:
    rig = Rig(lease_cap_ms=3_600_000, stream_idle_ms=3_600_000)

    def read() -> Iterator[str]:
        yield "a"
        yield "b"

    pieces = rig.gateway.tool("read", idempotent=False)(read)()
    next(pieces)
    [call] = rig.leases._held
    rig.gateway.configure(limits)
    rig.clock.advance(119)
    rig.leases.look()
    assert not rig.leases.holds(call)


@pytest.mark.parametrize("shadow", [{"shadow": True}, {"tools": {"send": ToolOverride(shadow=True)}}])
async def test_shadow(make: Make, shadow: dict[str, Any]) -> None:
    face = await make().warmed()
    face.configure(**shadow)
    await face.call()
    assert [fields["wouldHave"] for fields in face.rig.ears.of("tool_call_shadow")] == ["run"]
    face.configure()
    await face.call()
    assert len(face.rig.ears.of("tool_call_shadow")) == 1


async def test_open_mode(make: Make) -> None:
    face = await make().warmed()
    breaker, now = face.rig.breaker(), face.rig.clock.monotonic()
    breaker._open(now, "it fails")
    with pytest.raises(CircuitOpen):
        await face.call()
    face.configure(open_mode=False)
    await face.call()
    face.configure(open_mode=True)
    with pytest.raises(CircuitOpen):
        await face.call()
    assert len(face.script) == WARM + 1


async def test_derive_keys(make: Make) -> None:
    face = await make().warmed()
    face.configure(derive_keys=False)
    await face.call()
    assert face.records == WARM
    face.configure()
    await face.call()
    assert face.records == WARM + 1


async def test_a_changed_file(make: Make) -> None:
    """Looked at once per ``refresh_ms``."""
    face = await make().warmed()
    face.gateway._plans._reload = iter([Settings(enabled=False), Settings()]).__next__
    face.rig.clock.advance(1.1)
    await face.call()
    assert face.records == WARM
    await face.call()
    assert face.records == WARM
    face.rig.clock.advance(1.1)
    await face.call()
    assert face.records == WARM + 1


# -- hooks, listeners, log levels ----------------------------------------------------------------------------------


async def test_before_hook(make: Make) -> None:
    face = await make().warmed()

    def deny(call: HookCall) -> None:
        raise ToolDeniedError("not today")

    face.gateway.before(deny)
    with pytest.raises(ToolDeniedError, match="not today"):
        await face.call()
    assert len(face.script) == WARM


@pytest.mark.parametrize("enabled", [True, False])
async def test_after_hook(make: Make, enabled: bool) -> None:
    face = await make(enabled=enabled).warmed()
    seen: list[Any] = []
    face.gateway.after(lambda call, outcome: seen.append(outcome.value))
    await face.call()
    assert seen == [WARM + 1]


async def test_listener(make: Make) -> None:
    face = await make().warmed()
    ears = Ears()
    face.gateway.listen(ears)
    await face.call()
    assert [event for event, _ in ears.heard] == ["tool_call_start", "tool_call_end"]


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger("antiphon.test.live")
    logger.propagate = False
    yield logger
    logger.handlers.clear()
    logger.setLevel(logging.NOTSET)


class Lines(logging.Handler):
    """Remembers what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def logging_face(make: Make, logger: logging.Logger) -> Face:
    face = make()
    face.gateway.listen(JsonLogListener(Redactor(Rules(), salt="00" * 16), logger=logger.name))
    return face


async def test_log_level(make: Make, logger: logging.Logger) -> None:
    logger.addHandler(lines := Lines())
    logger.setLevel(logging.CRITICAL)
    face = await logging_face(make, logger).warmed()
    assert lines.lines == []
    logger.setLevel(logging.INFO)
    face.rig.clock.advance(1.1)
    await face.call()
    assert [line for line in lines.lines if "tool_call_end" in line]


async def test_log_level_of_refused_calls(make: Make, logger: logging.Logger) -> None:
    """They are warnings: their listeners may change although those of other calls do not."""
    logger.addHandler(lines := Lines())
    logger.setLevel(logging.CRITICAL)
    face = await logging_face(make, logger).warmed()
    face.rig.breaker().force_open(face.rig.clock.monotonic(), "by hand")
    logger.setLevel(logging.WARNING)
    face.rig.clock.advance(1.1)
    with pytest.raises(CircuitOpen):
        await face.call()
    assert [line for line in lines.lines if "tool_call_blocked" in line]


async def test_log_handler(make: Make, logger: logging.Logger) -> None:
    logger.setLevel(logging.INFO)
    face = await logging_face(make, logger).warmed()
    logger.addHandler(lines := Lines())
    face.rig.clock.advance(1.1)
    await face.call()
    assert [line for line in lines.lines if "tool_call_end" in line]


# -- breakers ------------------------------------------------------------------------------------------------------


def row(state: str, epoch: int, reason: str) -> BreakerRow:
    return BreakerRow("tool/tools/send", state, epoch, 0, reason, START_MS)


async def test_breakers_that_another_process_forces_open_and_resets(make: Make, tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "claims.db")
    face = await make(store).warmed()
    journal = store.open_sync()
    journal.save_breaker("default", row("FORCED_OPEN", 5, "maintenance"))
    face.rig.clock.advance(1.1)
    with pytest.raises(CircuitOpen, match="maintenance"):
        await face.call()
    journal.save_breaker("default", row("CLOSED", 6, "reset: done"))
    face.rig.clock.advance(1.1)
    await face.call()
    assert len(face.script) == WARM + 1


async def test_breakers_of_others_that_are_taken_over_at_once(make: Make) -> None:
    face = await make().warmed()
    face.gateway.adopt_breakers([row("FORCED_OPEN", 5, "maintenance")])
    with pytest.raises(CircuitOpen):
        await face.call()
    face.gateway.adopt_breakers([row("FORCED_OPEN", 5, "maintenance"), row("CLOSED", 6, "reset: done")])
    await face.call()


async def test_a_breaker_of_the_dependency_that_comes_into_being(make: Make) -> None:
    face = await make(spec={"dependency": "mail"}).warmed()
    face.gateway.adopt_breakers([row("FORCED_OPEN", 5, "maintenance")._replace(key="dependency/mail")])
    with pytest.raises(CircuitOpen):
        await face.call()


# -- tools and processes -------------------------------------------------------------------------------------------


async def test_a_tool_that_is_registered_again(make: Make) -> None:
    """Calls by name reach the new one; the old function still calls its own, and is still told of changes."""
    face = await make().warmed()
    again = Script("new")
    face.decorate(again)
    assert (await face.execute(params={"to": "ada"})).content == "new"
    assert await face.call() == WARM + 1
    face.configure(enabled=False)
    before = face.records
    assert await face.call("bob") == WARM + 2
    assert face.records == before
    face.tool_setting(breaker=BreakerPolicy(forced_open=True))
    with pytest.raises(CircuitOpen):
        await face.call("eve")


def test_fork() -> None:
    """Claims name the process that makes them."""
    rig = Rig(MemoryStore())
    face = Face(rig)
    face.function("parent")

    def owners() -> str:
        face.function("child")
        return "\n".join([str(os.getpid()), *(record.owner.rpartition("/")[2] for record in rig.records())])

    child, in_child, in_parent = kit.in_child(owners).split("\n")
    assert in_parent == rig.records()[0].owner.rpartition("/")[2]
    assert in_child != in_parent
    assert f".{child}." in in_child or in_child.startswith("host-")
