"""D54: a call on SQLite, interrupted at each of its moments in turn: nobody hangs, nothing is done twice, and the
same call can be made again."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from antiphon import Gateway
from antiphon.stores import SQLiteStore
from tests.interrupts import Interrupt
from tests.unit.gateway.kit import envelope

PATIENCE_S = 60.0


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("part", ["antiphon/stores/", "antiphon/_gateway/", "/threading.py"])
def test_a_call_interrupted_at_each_moment(part: str, tmp_path: Path) -> None:
    entered: Counter[str] = Counter()
    gateway = Gateway(store=SQLiteStore(tmp_path / "claims.db", "NORMAL"))

    @gateway.tool("send", idempotent=False, effect="write")
    def send(order: str) -> str:
        entered[order] += 1
        return f"sent {order}"

    def call(order: str) -> Any:
        return gateway.execute(envelope(params={"order": order}, call_id=order))

    assert call("warm").ok
    at, interrupted = 0, True
    while interrupted:
        at += 1
        order = f"o{at}"
        interrupted = Interrupt(at, part).run(lambda order=order: call(order))  # type: ignore[misc]
        before = entered[order]
        answers: list[Any] = []
        again = threading.Thread(target=lambda: answers.append(call(order)), daemon=True)  # noqa: B023
        again.start()
        again.join(PATIENCE_S)
        assert answers, f"the next call waits for ever after an interrupt at moment {at} of {part}"
        (answer,) = answers
        assert answer.ok or (answer.code, before) == ("outcome_unknown", 1), (at, answer)
        assert entered[order] <= 1, at
    gateway.close()
