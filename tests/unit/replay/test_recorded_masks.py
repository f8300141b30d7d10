"""Which recorded call a masked one is, where the originals are not at hand (D36)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import antiphon
from antiphon.ops.reports import Report
from tests.ticks import Ticks
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


class Forgetful(set[str]):
    """Forgets what is added: recordings before this release counted equal calls apart once a value was a secret."""

    def add(self, element: str, /) -> None: ...


@pytest.mark.parametrize("kind", ["tool", "model", "thread", "earlier release"])
@pytest.mark.parametrize("masked", [False, True])
def test_equal_calls_before_and_after_a_value_became_a_secret_get_their_own_answers(
    kind: str, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, word = Desk(), "blue-horse-7"
    login = desk.app.gateway.tool(name="login", idempotent=True, effect="read")(lambda password: "in")
    asked: list[int] = []

    @desk.app.gateway.tool(idempotent=True, effect="read", reuse="never")
    def search(text: str) -> int:
        asked.append(1)
        return len(asked)

    if kind == "earlier release":
        monkeypatch.setattr("antiphon._recording.recorder.set", Forgetful, raising=False)

    def answer(_: Any) -> Any:
        asked.append(1)
        return says(f"answer {len(asked)}")

    def ask() -> Any:
        if kind != "model":
            return search(text=f"who is {word} ?")
        body = {"model": "m", "messages": [{"role": "user", "content": f"who is {word} ?"}]}
        return antiphon.current_run().llm(body, answer)["choices"][0]["message"]["content"]

    def code() -> Any:
        found = [ask(), ask()]
        login(password=word)
        if kind != "thread":
            return [*found, ask(), ask()]

        def add() -> None:
            found.append(ask())

        threads = [threading.Thread(target=antiphon.wrap_context(add)) for _ in range(2)]
        for thread in threads:
            thread.start()
            thread.join()
        return found

    run = desk.record(code)
    live = run.output
    assert len(set(live)) == 4
    assert [word in str(event.payload) for event in run.events() if event.type == "call.started"][2:] == [False] * 3
    report = antiphon.replay(run, app=desk.app, mode="strict", function=code, keep=False, masked=masked)
    assert report.passed, report.text()
    assert report["outputsB"] == [live]


def test_a_field_that_is_left_alone_is_so_in_a_stream() -> None:
    app, signature = memory_app(), "EpwCCkYIChgCKkB7mJ4v" * 3

    def code() -> Any:
        ask: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "q"}]}
        event = f'data: {{"choices": [{{"delta": {{"thoughtSignature": "{signature}"}}}}]}}\n\n'
        run = antiphon.current_run()
        list(run.llm({**ask, "stream": True}, lambda body: iter([event[:40], event[40:]])))
        return len(run.llm(ask, lambda body: {**says("done"), "thoughtSignature": signature}))

    run = app.record(code)
    chunks = "".join(event.payload["data"] for event in run.events() if event.type == "call.chunk")
    assert signature in chunks
    assert all("masks" not in event.meta for event in run.events())


@pytest.mark.parametrize("number", [1, 40, 400])
def test_a_text_with_many_masks_is_compared_at_once(number: int, ticks: Ticks) -> None:
    desk, begun = Desk(), time.monotonic()

    def code(last: str = "And that is all there is to say about the customers.", domain: str = "example.org") -> str:
        mails = " ".join(f"customer{n}@{domain}" for n in range(number))
        antiphon.current_run().prompt("list", f"{mails} {last}")
        return "done"

    run = desk.record(code)
    report = desk.replay(run, lambda: code(domain="example.com"))
    assert report.passed, report.text()
    assert desk.left_out(report) == [("template", "email"), ("text", "email")]
    assert not desk.replay(run, lambda: code("But there is more than that to say about some of the customers.")).passed
    assert ticks.since(begun) < 60
