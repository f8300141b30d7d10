"""Calls with arguments of ordinary types are guarded, recorded and replayed; a serialiser writes the rest."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from antiphon.errors import InvalidInput
from antiphon.ops.app import using
from antiphon.ops.replay import replay
from tests.unit.gateway.kit import Rig
from tests.unit.replay.kit import memory_app

VALUES: list[Any] = [Decimal("1.10"), uuid.UUID(int=7), datetime(2026, 1, 2, tzinfo=UTC), Path("a"), b"\xff", {1, 2}]


class Frame:
    def __init__(self, text: str) -> None:
        self.text = text


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_typed_argument_is_recorded_and_replayed_strictly(value: Any) -> None:
    app = memory_app()
    seen: list[Any] = []

    @app.gateway.tool(idempotent=False, effect="write")
    def pay(amount: Any) -> str:
        seen.append(amount)
        return "paid"

    def agent() -> str:
        return str(pay(value))

    with using(app):
        run = app.record(agent)
        assert (run.output, seen) == ("paid", [value])
        found = replay(run.id, function=agent, app=app)
    assert found.divergences == []
    assert seen == [value]


def test_a_serialiser_writes_what_is_recorded_and_a_failing_one_stops_the_call() -> None:
    app = memory_app()

    @app.gateway.tool(idempotent=False, serialisers={"frame": lambda frame: frame.text})
    def load(frame: Any) -> str:
        return "loaded"

    with using(app):
        run = app.record(lambda: load(Frame("a,b")))
    [started] = [event for event in run.events() if event.type == "call.started"]
    assert started.payload["arguments"] == {"frame": "a,b"}
    with pytest.raises(InvalidInput, match="serialiser of parameter 'frame' failed"):
        load("no frame")


def test_a_switched_off_layer_takes_what_the_function_takes() -> None:
    rig = Rig(enabled=False)
    assert rig.gateway.tool("keep", idempotent=False)(lambda thing: "kept")(object()) == "kept"
