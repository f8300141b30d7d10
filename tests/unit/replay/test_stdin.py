"""Recorded standard input: a chat loop is replayed with what its user typed."""

from __future__ import annotations

import builtins
import io
import sys

import pytest

import antiphon
from tests.unit.replay.kit import memory_app


def chat() -> list[str]:
    said = [input("name? ")]
    said += [line.strip() for line in iter(sys.stdin.readline, "stop\n")]
    said.append(sys.stdin.read())
    try:
        input()
    except EOFError:
        said.append("end")
    return said


TYPED = "Ada\nmy mail is ada@example.com\nstop\nthe rest\nof it\n"


def test_what_was_typed_is_recorded_and_given_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app = memory_app()
    monkeypatch.setattr(sys, "stdin", io.StringIO(TYPED))
    run = app.record(chat)
    assert run.output == ["Ada", "my mail is ada@example.com", "the rest\nof it\n", "end"]
    assert sys.stdin.__class__ is io.StringIO
    assert builtins.input.__module__ == "builtins"
    assert capsys.readouterr().out == "name? "

    monkeypatch.setattr(sys, "stdin", io.StringIO("somebody else\n"))
    report = antiphon.replay(run, app=app, mode="strict", function=chat, keep=False)
    assert report.passed, report.text()
    assert capsys.readouterr().out == "name? "
    assert sys.stdin.read() == "somebody else\n"


def test_it_is_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    app = memory_app()
    monkeypatch.setattr(sys, "stdin", io.StringIO(TYPED))
    run = app.record(chat)
    draws = [event.payload for event in run.events() if event.type == "draw"]
    assert [draw["what"] for draw in draws] == ["stdin"] * 5
    assert "ada@example.com" not in str([event.payload for event in run.events()])


def test_reading_more_than_the_recording_has_is_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    app = memory_app()
    more = False

    def main() -> str:
        if more:
            return input()
        return "x"

    run = app.record(main)
    more = True
    monkeypatch.setattr(sys, "stdin", io.StringIO("x\n"))
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert not report.passed
    assert "draw stdin" in report.text()


def test_standard_input_is_a_context_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    app = memory_app()

    def code() -> list[str]:
        with sys.stdin as lines:
            said = [line.strip() for line in lines]
        assert sys.stdin.closed
        return said

    monkeypatch.setattr(sys, "stdin", io.StringIO("one\ntwo\n"))
    run = app.record(code)
    assert run.output == ["one", "two"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("other\n"))
    report = antiphon.replay(run, app=app, mode="strict", function=code, keep=False)
    assert report.passed, report.text()
