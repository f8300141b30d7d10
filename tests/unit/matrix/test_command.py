"""The command ``antiphon matrix``: one JSON document a line, whatever agents print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import antiphon
from antiphon.cli import main
from antiphon.ops.entry import load_entry

AGENT = """
import antiphon


def ask(body):
    print("an agent prints")
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": body["model"]}}]}


def main(number):
    request = {"model": "old", "messages": [{"role": "user", "content": f"question {number}"}]}
    return antiphon.current_run().llm(request, ask)["choices"][0]["message"]["content"]
"""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """With three runs of the agent."""
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "side_effect").mkdir()
    (tmp_path / "side_effect" / "side_effects.yaml").write_text("tools: {}\ndone: true\n")
    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path}/runs.db"
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    app = antiphon.Antiphon({"replay": {"embedder": "lexical"}}, store=store)
    found = load_entry("agent.py:main")
    for number in range(3):
        app.record(found, number)
    capsys.readouterr()
    return store


WORDS = ["matrix", "--select", "name=main", "--model", "old", "--baseline", "--samples", "1", "--on", "here"]


def test_every_line_is_a_document_and_the_last_one_is_the_result(
    store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, "--store", store, "--llm", "agent.py:ask", "--json", "--html", "page.html"]) == 0
    shown = capsys.readouterr()
    first, *steps, last = map(json.loads, shown.out.splitlines())
    assert first["estimate"]["cells"] == 6
    assert all("progress" in step for step in steps)
    assert last["id"] == first["matrix"]
    assert [lane["cells"] for lane in last["variants"]] == [3, 3]
    assert last["verdicts"][0]["verdict"] == "undecided"
    assert "an agent prints" in shown.err
    assert "Every cell passed" in Path("page.html").read_text()
    assert main([*WORDS, "--store", store, "--llm", "agent.py:ask", "--estimate"]) == 0
    assert "at most 6 cells, 6 model calls" in capsys.readouterr().out
    assert main(["matrix", "--resume", first["matrix"][:23], "--store", store, "--on", "here"]) == 0
    assert main(["matrix", "--resume", "none", "--store", store]) == 4
    assert main(["matrix", "--model", "x", "--store", store]) == 2
    assert main(["matrix", "--resume", "", "--store", store]) == 4
    capsys.readouterr()


@pytest.mark.parametrize(
    "words",
    [
        *(["some-run"], ["--select", "name=x"], ["--model", "x"], ["--prompt", "x"], ["--llm", "a.py:x"]),
        *(["--entry", "a.py:x"], ["--temperature", "0"], ["--baseline"], ["--samples", "auto"], ["--metric", "pass"]),
        *(["--alpha", "0.05"], ["--margin", "0.05"], ["--min-ars", "0"], ["--fresh"], ["--no-sandbox"]),
    ],
)
def test_what_is_planned_cannot_be_given_to_a_matrix_that_is_resumed(
    store: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["matrix", "--resume", "x", *words, "--store", store]) == 2
    said = words[0] if words[0].startswith("--") else "RUN"
    assert f"keeps its plan: {said} cannot be given" in capsys.readouterr().err


def test_a_cluster_that_cannot_share_the_store_is_not_connected_to(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def connected(*_: object) -> None:
        raise AssertionError("connected")

    monkeypatch.setattr("distributed.Client.start", connected)
    assert main([*WORDS, "--store", store, "--on", "dask://127.0.0.1:1"]) == 2
    assert "Workers on other machines cannot share the store" in capsys.readouterr().err


@pytest.mark.parametrize("method", ["capacity", "submit", "completed"])
def test_an_executor_that_fails_is_no_verdict(
    store: str, method: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failed(*_: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(f"antiphon.ops.executors.InProcess.{method}", failed)
    assert main([*WORDS, "--store", store, "--llm", "agent.py:ask", "--json"]) == 2
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert last["error"] == "executor_failed"
    assert "its workers can no longer be used (OSError: no more processes)" in last["message"]
    assert last["hint"] == f"Resume with: antiphon matrix --resume {first['matrix']}"
    monkeypatch.undo()


def test_an_error_is_the_last_line(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS, "--store", store, "--llm", "agent.py:ask", "--json", "--budget", "1"]) == 2
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["matrix"]
    assert last["error"] == "validation_error"
    assert "A budget needs prices" in last["message"]


def test_an_interruption_is_the_last_line(
    store: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    words = [*WORDS, "--store", store, "--llm", "agent.py:ask"]
    monkeypatch.setattr("antiphon.ops.executors.InProcess.completed", interrupted)
    assert main([*words, "--json"]) == 130
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    hint = f"Resume with: antiphon matrix --resume {first['matrix']}"
    assert last == {"error": "interrupted", "message": "interrupted", "hint": hint}
    assert main(words) == 130
    assert "antiphon: interrupted\n          Resume with: antiphon matrix --resume " in capsys.readouterr().err
    monkeypatch.setattr("antiphon.cli.matrix._plan", interrupted)
    assert main([*words, "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["error"] == "interrupted"


@pytest.mark.parametrize("page", ["missing/page.html", "agent.py/page.html", "side_effect"])
def test_a_page_that_cannot_be_written_is_refused_before_the_start(
    store: str, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*WORDS, "--store", store, "--llm", "agent.py:ask", "--html", page]) == 2
    shown = capsys.readouterr()
    assert f"{page} cannot be written. Nothing was started." in shown.err
    assert "an agent prints" not in shown.out
    assert not Path("home/matrix").exists()


@pytest.mark.parametrize("as_json", [False, True])
def test_the_verdict_is_printed_although_the_page_cannot_be_written(
    store: str, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*WORDS, "--store", store, "--llm", "agent.py:ask", "--html", "/dev/full"]
    assert main([*words, "--json"] if as_json else words) == 2
    shown = capsys.readouterr()
    if as_json:
        result, last = map(json.loads, shown.out.splitlines()[-2:])
        assert result["verdicts"][0]["verdict"] == "undecided"
        matrix, message, hint = result["id"], last["message"], last["hint"]
    else:
        assert "old vs. baseline: undecided" in shown.out
        said, message, hint = shown.err.splitlines()
        matrix = said.split()[1].rstrip(":")
    assert "/dev/full: No space left on device. The result is kept in " in message
    assert f"antiphon matrix --resume {matrix} --html FILE" in hint
    assert main(["matrix", "--resume", matrix, "--store", store, "--on", "here", "--html", "page.html"]) == 0
    assert "Every cell passed" in Path("page.html").read_text()
    assert "an agent prints" not in capsys.readouterr().out


def test_a_prompt_that_is_not_utf_8_is_refused(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("brief.txt").write_bytes("Fasse dich kürzer.".encode("latin-1"))
    assert main(["matrix", "--select", "name=main", "--prompt", "brief.txt", "--store", store]) == 2
    assert "The prompt brief.txt is not UTF-8 text: byte 13 is invalid." in capsys.readouterr().err
