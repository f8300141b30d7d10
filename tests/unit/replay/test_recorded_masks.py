"""Which recorded call a masked one is, where the originals are not at hand (D36)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import antiphon
from antiphon.ops.reports import Report
from tests.unit.replay.kit import memory_app, says


class Desk:
    """A look-up that answers with its number."""

    def __init__(self) -> None:
        self.app = memory_app()
        self.looked = 0

        @self.app.gateway.tool(idempotent=True, effect="read", reuse="never")
        def look(who: str) -> dict[str, Any]:
            self.looked += 1
            return {"number": self.looked, "mail": f"{who.partition('@')[0]}@example.net"}

        self.look = look

    def record(self, code: Callable[[], Any]) -> Any:
        run = self.app.record(code)
        self.looked = 0
        return run

    def replay(self, run: Any, code: Callable[[], Any]) -> Report:
        report = antiphon.replay(run, app=self.app, mode="strict", function=code, keep=False, masked=True)
        assert self.looked == 0
        return report

    @staticmethod
    def left_out(report: Report) -> list[tuple[str, str]]:
        return [(one["path"], one["kind"]) for one in report["masked"]["notCompared"]]


def test_masked_calls_of_one_name_are_answered_in_their_order() -> None:
    desk = Desk()

    def code() -> Any:
        return [desk.look(who=f"{name}@example.org")["number"] for name in ("ada", "grace", "joan")]

    report = desk.replay(desk.record(code), code)
    assert report.passed, report.text()
    assert report["outputsB"] == [[1, 2, 3]]
    assert desk.left_out(report) == [("arguments.who", "email")] * 3


def test_a_call_that_is_left_out_does_not_hide_a_masked_one_behind_it() -> None:
    desk = Desk()

    def second() -> Any:
        return desk.look(who="ada@example.org")["number"]

    def both() -> Any:
        desk.look(who="nobody")
        return second()

    report = desk.replay(desk.record(both), second)
    assert not report.passed
    assert report["outputsB"] == [2]
    assert desk.left_out(report) == [("arguments.who", "email")]


def test_a_value_that_is_computed_is_not_compared_however_often_it_is_used() -> None:
    desk = Desk()

    def code(name: str = "ada") -> Any:
        return [desk.look(who=f"{name}@example.org")["number"] for _ in range(2)]

    report = desk.replay(desk.record(code), lambda: code("grace"))
    assert report.passed, report.text()
    assert len(desk.left_out(report)) == 2


def test_a_value_that_the_code_was_given_is_not_replaced_by_another() -> None:
    desk = Desk()

    def code(other: str = "") -> Any:
        mail = desk.look(who="eve")["mail"]
        return desk.look(who=other or mail)["number"]

    run = desk.record(code)
    assert desk.replay(run, code).passed
    report = desk.replay(run, lambda: code("mallory@example.org"))
    assert not report.passed
    assert desk.left_out(report) == []


def test_a_masked_request_to_a_model_is_found_again() -> None:
    desk = Desk()

    def code() -> Any:
        body = {"model": "m", "messages": [{"role": "user", "content": "write to ada@example.org"}]}
        return antiphon.current_run().llm(body, lambda _: says("done"))["choices"][0]["message"]["content"]

    run = desk.record(code)
    report = desk.replay(run, code)
    assert report.passed, report.text()
    assert report["outputsB"] == ["done"]
    assert {kind for _, kind in desk.left_out(report)} == {"email"}


def test_masked_arguments_of_another_lane_are_another_call() -> None:
    desk = Desk()
    outer = desk.app.gateway.tool(name="outer", idempotent=True, effect="read")(
        lambda: desk.look(who="ada@example.org")["number"]
    )

    def code() -> Any:
        return [outer(), desk.look(who="grace@example.org")["number"]]

    report = desk.replay(desk.record(code), code)
    assert report.passed, report.text()
    assert report["outputsB"] == [[1, 2]]
