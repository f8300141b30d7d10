"""An interrupt at any line after the tool returned: its effect is never made a second time, and no lease stays held."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import antiphon._gateway
from antiphon._gateway import codec, settlement
from antiphon._gateway.context import held
from antiphon._gateway.gateway import Gateway
from antiphon._gateway.plan import Dependencies
from antiphon.ops.app import Antiphon
from antiphon.stores import MemoryStore, SQLiteStore
from tests.interrupts import no_collection
from tests.unit.gateway.kit import Ears, Rig, envelope

FOLDER = str(Path(antiphon._gateway.__file__).parent)
WARM = 10
STORES = ("memory", "sqlite")


class Interrupter:
    """Raises ``KeyboardInterrupt`` at the *nth* line of the gateway that is reached once *armed* says so."""

    def __init__(self, nth: int, armed: Callable[[], bool]) -> None:
        self.left = nth
        self.armed = armed

    def __enter__(self) -> None:
        self.rest = ExitStack()
        self.rest.enter_context(no_collection())
        self.rest.callback(sys.settrace, sys.gettrace())
        sys.settrace(self.trace)

    def __exit__(self, *exc: object) -> None:
        self.rest.close()

    def trace(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(FOLDER):
            return None
        if event == "line" and self.left and self.armed() and not _no_call_before(frame):
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
        return self.trace


def _no_call_before(frame: FrameType) -> bool:
    """Real interrupts come with calls and jumps back, so not at lines that follow none: the first ones of a block."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
    return line.startswith(("call.value = call.plan.function(", "with ", "try:"))


def gateway_on(store: str, folder: Path) -> Gateway:
    return Gateway(Dependencies(store=MemoryStore() if store == "memory" else SQLiteStore(folder / "claims.db")))


@pytest.mark.parametrize("store", STORES)
def test_a_call_with_an_identity_is_not_made_again(store: str, tmp_path: Path) -> None:
    gateway = gateway_on(store, tmp_path)
    sent: list[int] = []

    @gateway.tool("send", idempotent=False)
    def send(to: int) -> str:
        sent.append(to)
        return "sent"

    for nth in count(1):
        wire = envelope(params={"to": nth}, call_id=f"c{nth}")
        interrupter = Interrupter(nth, lambda nth=nth: nth in sent)  # type: ignore[misc]
        try:
            with interrupter:
                gateway.execute(wire)
        except KeyboardInterrupt:
            assert not gateway._plans.leases._held
            assert held.get() is None
            again = gateway.execute(wire)
            assert again.from_cache or again.code == "outcome_unknown", again
        assert sent.count(nth) == 1
        if interrupter.left:
            break
    assert nth > 20


@pytest.mark.parametrize("store", STORES)
def test_a_plain_call_is_settled(store: str, tmp_path: Path) -> None:
    gateway = gateway_on(store, tmp_path)
    sent: list[int] = []

    @gateway.tool(idempotent=False)
    def send(to: int) -> str:
        sent.append(to)
        return "sent"

    for warm in range(WARM):
        send(-warm)
    for nth in count(1):
        interrupter = Interrupter(nth, lambda nth=nth: nth in sent)  # type: ignore[misc]
        try:
            with interrupter:
                send(nth)
        except KeyboardInterrupt:
            assert not gateway._plans.leases._held
            assert held.get() is None
        if interrupter.left:
            break
    assert nth > 5
    states = {record.state for record in gateway._runtime.journal.list(tenant="default", limit=1000)}
    assert states == {"done"}


def test_two_interrupts_after_the_tool_returned_do_not_make_the_call_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one comes before there is a settlement: what is left to the process's thread is the result."""
    rig = Rig()
    script = rig.tool("sent")
    interrupts: list[BaseException] = [KeyboardInterrupt(), KeyboardInterrupt()]
    real = codec.encode

    def encode(value: Any, decode: Any) -> bytes:
        if interrupts:
            raise interrupts.pop()
        return real(value, decode)

    monkeypatch.setattr(settlement, "encode", encode)
    with pytest.raises(KeyboardInterrupt):
        rig.execute(call_id="c1")
    rig.leases.look()
    again = rig.execute(call_id="c1")
    assert again.from_cache
    assert again.content == "sent"
    assert len(script) == 1


def test_an_interrupt_in_an_after_hook_keeps_the_result() -> None:
    rig = Rig()
    script = rig.tool("sent")
    interrupts: list[BaseException] = [KeyboardInterrupt()]

    @rig.gateway.after
    def interrupted(call: Any, outcome: Any) -> None:
        if interrupts:
            raise interrupts.pop()

    with pytest.raises(KeyboardInterrupt):
        rig.execute(call_id="c1")
    again = rig.execute(call_id="c1")
    assert again.from_cache
    assert again.content == "sent"
    assert len(script) == 1


def test_an_interrupt_in_an_after_hook_keeps_a_stream() -> None:
    rig = Rig()
    interrupts: list[BaseException] = [KeyboardInterrupt()]

    @rig.gateway.tool("send", idempotent=False)
    def send(to: str) -> Iterator[int]:
        yield from (1, 2)

    @rig.gateway.after
    def interrupted(call: Any, outcome: Any) -> None:
        if interrupts:
            raise interrupts.pop()

    with pytest.raises(KeyboardInterrupt):
        rig.execute(call_id="c1")
    assert not rig.gateway._plans.leases._held
    again = rig.execute(call_id="c1")
    assert again.from_cache
    assert again.content == [1, 2]


class Stubborn:
    """A result whose class raises something of its own when it is written."""

    def model_dump(self, mode: str = "python") -> Any:
        raise KeyError("not loaded")


@pytest.mark.parametrize("store", STORES)
def test_a_result_whose_class_raises_is_not_kept_and_the_call_is_done(store: str, tmp_path: Path) -> None:
    gateway = gateway_on(store, tmp_path)
    made: list[Stubborn] = []

    @gateway.tool("send", idempotent=False)
    def send(to: int) -> Stubborn:
        made.append(Stubborn())
        return made[-1]

    for number in range(WARM):
        assert send(number) is made[-1]
    first, again = (gateway.execute(envelope(params={"to": -1}, call_id="c1")) for _ in range(2))
    assert first.content is made[-1]
    assert first.to_wire()["output"]["metadata"]["payload"] == "not kept (Stubborn: 'not loaded')"
    assert again.from_cache
    assert len(made) == WARM + 1
    assert {record.state for record in gateway._runtime.journal.list(tenant="default", limit=100)} == {"done"}


def test_an_interrupted_call_without_a_claim_writes_no_record() -> None:
    rig = Rig()
    rig.tool("sent")

    @rig.gateway.after
    def interrupted(call: Any, outcome: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rig.execute(call_id="c1", mode="disabled")
    assert rig.records() == []
    assert not rig.ears.of("tool_call_fenced")


@pytest.mark.parametrize("logged", [False, True], ids=["silent", "logged"])
@pytest.mark.parametrize("recorded", [False, True], ids=["alone", "recorded"])
@pytest.mark.parametrize("store", STORES)
def test_an_interrupt_at_any_line_leaves_no_claim_in_flight(
    store: str, recorded: bool, logged: bool, tmp_path: Path
) -> None:
    """D54: what was not sent is released, what was sent is settled; never a wait for a lease."""
    place = MemoryStore() if store == "memory" else SQLiteStore(tmp_path / "claims.db", "NORMAL")
    app = Antiphon({"telemetry": {"logs": False}}, store=place)
    gateway = app.gateway
    if logged:
        gateway.listen(Ears())
    entered: list[int] = []

    @gateway.tool("send", idempotent=False)
    def send(to: int) -> str:
        entered.append(to)
        return "sent"

    def states() -> dict[int, str]:
        found = place.open_sync().list(tenant="default", limit=10_000)
        return {int(record.request.tool_call_id or 0): _state(record) for record in found}

    def sweep_lines() -> int:
        for nth in count(1):
            wire = envelope(params={"to": nth}, call_id=str(nth))
            interrupter = Interrupter(nth, lambda: True)
            try:
                with interrupter:
                    gateway.execute(wire)
            except KeyboardInterrupt:
                assert held.get() is None
                assert not gateway._plans.leases._held
            gateway._plans.leases.look()  # what a second interrupt would have left to it
            if interrupter.left:
                return nth
        raise AssertionError

    for warm in range(WARM):
        gateway.execute(envelope(params={"to": -warm}, call_id=str(10_000 + warm)))
    if recorded:
        with app.run("interrupted"):
            last = sweep_lines()
    else:
        last = sweep_lines()
    assert last > 60
    after = states()
    assert "inflight" not in after.values()
    never_entered = [n for n in range(1, last) if n not in entered]
    assert never_entered
    for n in never_entered:
        assert after.get(n, "released") == "released", (n, after.get(n))
    for n in range(1, last):
        assert entered.count(n) <= 1
        again = gateway.execute(envelope(params={"to": n}, call_id=str(n)))
        assert again.ok or again.code == "outcome_unknown", (n, again)
        assert entered.count(n) == 1 or again.code == "outcome_unknown"


def _state(record: Any) -> str:
    if record.state == "cancelled" and not record.dispatched:
        return "released"
    return "unknown" if record.state == "failed" and record.error.code == "outcome_unknown" else str(record.state)
