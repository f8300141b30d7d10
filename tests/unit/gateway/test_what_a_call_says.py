"""What a call says of itself: where its answer came from, which call runs here, whose lease it was."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon._gateway.context import CallContext, current_call
from tests.unit.gateway.kit import Rig


@pytest.mark.parametrize(("moved_s", "age_ms"), [(2.5, 2_500), (-1.0, 0)])
def test_an_answer_of_an_equal_call_is_labelled(moved_s: float, age_ms: int) -> None:
    rig = Rig()
    script = rig.tool("first", idempotent=True, reuse="session")
    rig.execute(call_id="c1")
    rig.clock.advance(moved_s)
    shared = rig.execute(call_id="c2")
    label = {"reused": True, "from": "an equal call", "matchedOn": "completed", "ageMs": age_ms}
    assert shared.output.metadata == label
    assert not rig.execute(call_id="c1").output.metadata
    assert len(script) == 1


def test_the_call_that_runs_here_is_the_inner_one_until_it_ends() -> None:
    rig = Rig()
    seen: list[Any] = []

    def note() -> None:
        call = current_call()
        seen.append(None if call is None else call.tool)

    @rig.gateway.tool(idempotent=True)
    def inner(ctx: CallContext) -> None:
        note()

    @rig.gateway.tool(idempotent=True)
    def plain() -> None:
        note()

    @rig.gateway.tool(idempotent=True)
    def outer(ctx: CallContext) -> None:
        note()
        inner()  # type: ignore[call-arg]  # given by the gateway
        note()
        plain()
        note()

    outer()  # type: ignore[call-arg]  # given by the gateway
    note()
    names = ("outer", "inner", "outer", "outer", "outer")
    assert seen == [*(f"tools/{name}" for name in names), None]
