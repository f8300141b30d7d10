"""Answers of models that are kept for equal requests of live runs, where somebody asked for it (D14, D23, L11)."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import antiphon
from antiphon.errors import StoreUnavailable
from antiphon.stores import MemoryStore
from tests.unit.replay.kit import memory_app, says

ASK = {"model": "m", "temperature": 0, "messages": [{"role": "user", "content": "capital of France?"}]}


class Model:
    def __init__(self, answer: Any = None) -> None:
        self.asked = 0
        self.answer = answer

    def __call__(self, body: dict[str, Any]) -> Any:
        self.asked += 1
        return self.answer if self.answer is not None else says(f"answer {self.asked}")


def ask(app: antiphon.Antiphon, model: Model, /, *, cache: bool | None = True, **more: Any) -> Any:
    with app.run("ask", llm_cache=cache) as run:
        return run.llm({**ASK, **more}, model)


def test_it_is_off_unless_asked_for() -> None:
    app, model = memory_app(), Model()
    ask(app, model, cache=None)
    ask(app, model, cache=None)
    assert model.asked == 2


def test_an_equal_request_is_answered_once_and_recorded_twice() -> None:
    app, model = memory_app(), Model()
    first = ask(app, model)
    with app.run("again", llm_cache=True) as run:
        assert run.llm(ASK, model) == first
    assert model.asked == 1
    finished = [event for event in run.events() if event.type == "call.finished"]
    assert finished[0].meta["fromCache"] is True


@pytest.mark.parametrize(
    "other",
    [{"seed": 7}, {"max_tokens": 5}, {"top_p": 0.5}, {"temperature": 1}, {"model": "m2"}, {"stop": ["x"]}],
    ids=str,
)
def test_key_and_variant_must_both_agree(other: dict[str, Any]) -> None:
    app, model = memory_app(), Model()
    ask(app, model)
    ask(app, model, **other)
    assert model.asked == 2


def test_refusals_errors_and_streams_are_never_kept() -> None:
    app = memory_app()
    refusal = Model(says("", refusal="no"))
    ask(app, refusal)
    ask(app, refusal)
    assert refusal.asked == 2

    def fails(body: Any) -> Any:
        calls.append(1)
        raise ConnectionError("down")

    calls: list[int] = []
    for _ in range(2):
        with pytest.raises(ConnectionError), app.run("ask", llm_cache=True) as run:
            run.llm({**ASK, "seed": 1}, fails)
    assert len(calls) == 2
    streams = Model()
    for _ in range(2):
        with app.run("ask", llm_cache=True) as run:
            list(run.llm({**ASK, "stream": True}, lambda body: iter([streams(body)])))
    assert streams.asked == 2


def test_tenants_and_workspaces_share_nothing() -> None:
    store, model = MemoryStore(), Model()
    for tenant, workspace in (("a", "x"), ("b", "x"), ("a", "y"), ("a", "x")):
        app = antiphon.Antiphon({"telemetry": {"logs": False}}, store=store, tenant=tenant, workspace=workspace)
        ask(app, model)
    assert model.asked == 3


def test_an_answer_that_would_be_redacted_is_not_kept() -> None:
    app, model = memory_app(), Model(says("your key is sk-proj-abcdefghijklmnopqrstuvwxyz0123456789ABCD"))
    ask(app, model)
    ask(app, model)
    assert model.asked == 2


def test_entries_are_records_that_expire_and_can_be_cleared() -> None:
    app, model = memory_app(), Model()
    ask(app, model)
    records = app.journal.list(tenant="default", tool="llm-cache/rfc0041")
    assert [record.state for record in records] == ["done"]
    assert records[0].ttl_ms == 14 * 86_400_000
    assert app.journal.clear(records[0].key)
    ask(app, model)
    assert model.asked == 2


def test_a_store_that_fails_means_that_the_model_is_asked(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    app, model = memory_app(), Model()

    def down(*args: Any, **kwargs: Any) -> Any:
        raise StoreUnavailable("down")

    monkeypatch.setattr(type(app.journal), "read", down)
    monkeypatch.setattr(type(app.journal), "begin", down)
    with caplog.at_level(logging.WARNING, logger="antiphon.recording"):
        assert ask(app, model)["choices"]
    assert model.asked == 1
    said = (record.message for record in caplog.records if record.name == "antiphon.recording")
    assert [message.split(":")[0] for message in said] == [
        "the model cache could not be read",
        "a model response could not be cached",
    ]


def test_a_replay_never_looks_into_it() -> None:
    app, model = memory_app(), Model()

    def main() -> Any:
        return antiphon.current_run().llm(ASK, model)

    run = app.record(main)
    model.answer = says("other")
    ask(app, model)
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert report.passed
    assert report["outputsB"] == [says("answer 1")]
