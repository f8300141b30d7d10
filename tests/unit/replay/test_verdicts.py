"""What a verdict says is so: opposites fail, interactions count, nothing is claimed that was not measured."""

from __future__ import annotations

import importlib
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.errors import ReplayMiss
from antiphon.ops.reports import score_runs
from antiphon.ops.runs import load_recording
from tests.unit.replay.kit import memory_app, says


@pytest.fixture(autouse=True)
def reviewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "side_effects.yaml"
    path.write_text("tools: {}\ndone: true\n")
    monkeypatch.setattr("antiphon.ops.side_effects.file_of", lambda entry: path)


def test_a_replay_with_fewer_interactions_does_not_score_like_the_recording() -> None:
    app, turns = memory_app(), ["one", "two"]

    def main() -> None:
        run = antiphon.current_run()
        for word in turns:
            with run.interaction(word) as interaction:
                interaction.output = f"said {word}"

    run = app.record(main)
    assert antiphon.replay(run, app=app, mode="strict", function=main).ars["outputSimilarity"] == 1.0
    turns.pop()
    report = antiphon.replay(run, app=app, mode="strict", function=main)
    assert (report.verdict, report.ars["outputSimilarity"]) == ("fail", 0.5)
    assert report["answers"] == {"equal": 1, "missing": 1}


def test_what_did_not_run_is_not_scored() -> None:
    app = memory_app()
    run = app.record(lambda: "done")
    report = antiphon.replay(run, app=app, execute=False)
    assert "No code ran" in report.text()
    assert "No code ran" in report.html()
    for claim in ("No changes detected", "1.00", "ARS"):
        assert claim not in report.text()
    assert report["determinismScore"] is None
    assert (report.ars, report.verdict, report["saved"]) == ({}, "pass", {})


def test_another_temperature_says_why_a_strict_replay_fails() -> None:
    app, temperature = memory_app(), [0.0]

    def main() -> Any:
        request = {
            "model": "m",
            "temperature": temperature[0],
            "seed": 1,
            "messages": [{"role": "user", "content": "hi"}],
        }
        return antiphon.current_run().llm(request, lambda body: says("hello"))["choices"][0]["message"]["content"]

    run = app.record(main)
    temperature[0] = 0.5
    report = antiphon.replay(run, app=app, function=main)
    assert report.verdict == "fail"
    why = "; ".join(report["verdictReasons"])
    assert "temperature from 0.0 to 0.5" in why or "temperature from 0 to 0.5" in why
    assert "--explore" in why


def test_the_report_names_the_embedder_and_what_was_compared_by_characters() -> None:
    app, said = memory_app(), ["The refund is on its way."]
    run = app.record(lambda: said[0])
    said[0] = "Your refund is on the way."
    report = antiphon.replay(run, app=app, mode="explore", function=lambda: said[0])
    assert report["embedder"] == "lexical"
    assert "Answers Compared: 1 by meaning (lexical)" in report.text()
    assert "1 by meaning (lexical)" in report.html()

    class Blind:
        name = "blind"

        def __call__(self, texts: Any) -> Any:
            return [[1.0]] * len(texts)

        def unknown(self, text: str) -> tuple[list[str], int]:
            return list(text), len(text)

    run = app.record(lambda: "好的")
    report = antiphon.replay(run, app=app, mode="explore", function=lambda: "好的呀", embedder=Blind())
    assert report["answers"] == {"characters": 1}
    assert "1 by characters (blind" in report.text()
    assert "1 by characters (blind" in report.html()


@pytest.mark.parametrize(
    ("recorded", "replayed"), [("Refund: ✅", "Refund: ❌"), ("退款已批准", "退款未批准"), ("It is on.", "It is off.")]
)
def test_opposites_fail_in_explore_and_in_a_comparison_of_two_runs(recorded: str, replayed: str) -> None:
    app = memory_app()

    def same(texts: Any) -> Any:
        return [[1.0]] * len(texts)

    run = app.record(lambda: recorded)
    report = antiphon.replay(run, app=app, mode="explore", function=lambda: replayed, embedder=same)
    assert (report.verdict, report.ars["score"]) == ("fail", 1.0)
    assert report["contradictions"]
    other = app.record(lambda: replayed)
    left, right = (load_recording(app, found.manifest) for found in (run, other))
    data = score_runs(app, left, right, embedder=same, min_ars=0.0)
    assert data["verdict"] == "fail"


def test_one_early_divergence_does_not_list_every_later_lane() -> None:
    app, first = memory_app(), ["a"]

    @app.gateway.tool(idempotent=True, effect="read")
    def look(what: str) -> str:
        return what

    def main() -> str:
        with suppress(ReplayMiss):
            look(first[0])
            for word in ("b", "c", "d"):
                thread = threading.Thread(target=antiphon.wrap_context(look), args=(word,))
                thread.start()
                thread.join()
        return "done"

    run = app.record(main)
    first[0] = "x"
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert [found["kind"] for found in report.divergences] == ["miss"], report.text()
    assert len(report["consequences"]) == 3
    assert "so 3 recorded lanes did not happen" in report.text()


def test_a_dropped_lane_without_an_earlier_divergence_is_still_named() -> None:
    app, words = memory_app(), ["b", "c"]

    @app.gateway.tool(idempotent=True, effect="read")
    def look(what: str) -> str:
        return what

    def main() -> None:
        for word in words:
            thread = threading.Thread(target=antiphon.wrap_context(look), args=(word,))
            thread.start()
            thread.join()

    run = app.record(main)
    words.pop()
    report = antiphon.replay(run, app=app, mode="strict", function=main, keep=False)
    assert [found["kind"] for found in report.divergences] == ["missing"]


def test_a_changed_helper_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "helper_of_verdicts.py").write_text("def polite(text):\n    return text\n")
    (tmp_path / "late_of_verdicts.py").write_text("WORD = 'x'\n")
    (tmp_path / "agent_of_verdicts.py").write_text(
        "import helper_of_verdicts\n\n\ndef main():\n    import late_of_verdicts\n"
        "    return helper_of_verdicts.polite('done')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("agent_of_verdicts", "helper_of_verdicts", "late_of_verdicts")
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    agent = importlib.import_module(names[0])
    app = memory_app()
    app.record(agent.main)
    run = app.record(agent.main)
    assert antiphon.replay(run, app=app, function=agent.main)["changes"] == {}
    (tmp_path / "helper_of_verdicts.py").write_text("def polite(text):\n    return text  # changed\n")
    report = antiphon.replay(run, app=app, function=agent.main)
    assert list(report["changes"]["code"]) == ["helper_of_verdicts.py"]
    assert report.passed
    (tmp_path / "late_of_verdicts.py").write_text("WORD = 'other'\n")
    report = antiphon.replay(run, app=app, mode="explore", function=agent.main)
    assert sorted(report["changes"]["code"]) == ["helper_of_verdicts.py", "late_of_verdicts.py"]
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_explore_reports_the_model_that_was_really_called() -> None:
    app, model = memory_app(), ["gpt-4"]

    def main() -> Any:
        request = {"model": model[0], "messages": [{"role": "user", "content": "hi"}]}
        return antiphon.current_run().llm(request, lambda body: says("hello"))["choices"][0]["message"]["content"]

    run = app.record(main)
    model[0] = "gpt-4o"
    report = antiphon.replay(run, app=app, mode="explore", function=main)
    assert report["changes"]["llm_config"]["model_name"] == {"artifact": "gpt-4", "current": "gpt-4o"}
    assert "No changes detected" not in report.text()


def test_money_is_not_shown_without_prices_and_words_are_in_number() -> None:
    app = memory_app()
    run = app.record(lambda: "done")
    report = antiphon.replay(run, app=app, mode="strict", function=lambda: "done")
    assert "money not spent" not in report.html()
    assert "none needed" not in report.html()
    assert "A is strict" in report.text()
    assert "ARS" in report.html()


def test_a_contradiction_shows_no_piece_of_a_secret() -> None:
    """A number of a card is four numbers to whoever compares answers, and a part of a token is a number, too."""
    old = "Card 4111 1111 1111 1111 was charged 20 dollars, key sk-proj-Zx81kLmNoPqRsTuVwXyZ0123456789abcdEFGH, 1,000."
    new = "Card 5500 0055 5555 5559 was charged 30 dollars, key sk-proj-Qw91kLmNoPqRsTuVwXyZ0123456789abcdEFGH, 2,000."
    app, said = memory_app(), [old]
    run = app.record(lambda: said[0])
    said[0] = new
    report = antiphon.replay(run, app=app, mode="strict", function=lambda: said[0])
    (found,) = report["contradictions"]
    assert (found["recorded"], found["replayed"]) == ("***, 20, ***, 1,000", "***, 30, ***, 2,000")
    told = f"{report.text()} {report.html()} {report.to_wire()}".lower()
    assert not [piece for piece in ("4111", "0055", "zx81", "qw91") if piece in told]
    assert "'***, 20, ***, 1,000' became" in report.text()
