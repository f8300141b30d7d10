"""The commands around recording, as people and scripts use them."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from antiphon import Antiphon
from antiphon.cli import COMMANDS
from tests.integration.cli.conftest import Command
from tests.unit.redact.corpus import Forge, tokens

OURS = ("run", "runs", "show", "export", "import", "scan", "gc")


def recorded(antiphon: Command, target: str = "agent.py:main") -> str:
    done = antiphon("run", target, *(["--input", "1"] if target.endswith("fail") else []), "--json")
    assert done.code in (0, 1), done.err
    return str(done.json["run"])


@pytest.mark.parametrize("name", OURS)
def test_help_has_an_example_that_works_by_its_words(antiphon: Command, name: str) -> None:
    done = antiphon(name, "--help")
    assert done.code == 0
    assert re.search(r"examples?:\n  antiphon " + name, done.out)
    assert "--json" in done.out
    assert COMMANDS[name][1]


@pytest.mark.parametrize("name", OURS)
def test_an_unknown_option_is_a_usage_error(antiphon: Command, name: str) -> None:
    assert antiphon(name, "--no-such-option").code == 2


# -- run ------------------------------------------------------------------------------------------------------------


def test_run_prints_the_output_and_where_to_look(antiphon: Command) -> None:
    done = antiphon("run", "agent.py:main")
    assert (done.code, done.out) == (0, "refunded 7\n")
    assert re.search(r"run [0-9a-f-]{36} completed · show it: antiphon show ", done.err)


def test_run_with_json(antiphon: Command) -> None:
    done = antiphon("run", "agent.py:later", "--input", '"hi"', "--json")
    told = done.json
    warning, *_ = told.pop("warnings")  # further ones are about SDKs that other tests have loaded
    assert warning.startswith("no model call and no tool call was recorded")
    assert told == {"run": told["run"], "name": "later", "status": "completed", "output": {"asked": "hi"}}
    done = antiphon("run", "agent.py:fail", "--input", '"hi"', "--json")
    assert (done.code, done.json["status"], done.json["output"]) == (1, "failed", None)
    assert (done.json["error"], done.json["message"]) == ("ValueError", "no such order")
    Path("own.py").write_text(
        'import antiphon\ndef main():\n    with antiphon.run("inner") as run:\n        return run.id\n'
    )
    told = antiphon("run", "own.py:main", "--json").json
    assert told["warnings"][0].startswith("the code opened a run of its own")
    assert f"antiphon replay {told['output']}" in told["warnings"][0]
    done = antiphon("run", "agent:both", "--input", '{"args": [1], "kwargs": {"two": 3}}', "--json")
    assert done.json["output"] == [1, 3]


def test_run_with_a_client_that_nobody_wrapped(antiphon: Command) -> None:
    Path("bare.py").write_text(
        "import openai\nclient = openai.OpenAI(api_key='none')\ndef main() -> str:\n    return 'no call'\n"
    )
    told = antiphon("run", "bare.py:main", "--json").json["warnings"]
    (about,) = [text for text in told if text.startswith("openai is loaded")]
    assert re.search(r"use antiphon\.wrap; \d+ of its clients exist without it", about)


def test_run_of_an_agent_that_fails(antiphon: Command) -> None:
    done = antiphon("run", "agent.py:fail", "--input", "1")
    assert done.code == 1
    assert "ValueError: no such order" in done.err
    assert antiphon("runs", "--status", "failed", "--json").json["runs"][0]["name"] == "fail"


@pytest.mark.parametrize("entry", ["leave", "leave_later", "leave_in_a_task"])
def test_run_of_an_agent_that_leaves_with_an_exit_code(
    antiphon: Command, entry: str, caplog: pytest.LogCaptureFixture
) -> None:
    gc.collect()  # what other tests left behind is told now
    caplog.clear()
    done = antiphon("run", f"agent.py:{entry}", "--input", "7")
    assert done.code == 7
    assert "failed with exit code 7" in done.err
    assert "Traceback" not in done.err
    run = antiphon("runs", "--json").json["runs"][0]
    assert (run["status"], run["exitCode"]) == ("failed", 7)
    assert "failed, exit 7" in antiphon("runs").out
    shown = antiphon("show", "--json").json
    assert shown["error"] == {
        "class": "builtins.SystemExit",
        "code": "exit_code",
        "message": "The program ended with exit code 7.",
    }
    assert "The program ended with exit code 7." in antiphon("show").out
    again = antiphon("replay", "latest", "--strict", "--json")
    assert (again.code, again.json["verdict"]) == (0, "pass"), again
    assert antiphon("run", f"agent.py:{entry}", "--input", "7", "--json").json["exitCode"] == 7
    gc.collect()
    if entry != "leave_in_a_task":  # no task's exception is left behind, but the agent's own
        assert not [told for told in caplog.records if told.name == "asyncio"]


def test_an_agent_that_is_cancelled_says_so_in_one_line(antiphon: Command) -> None:
    done = antiphon("run", "agent.py:cancel")
    assert (done.code, "CancelledError: no more" in done.err, "Traceback" in done.err) == (1, True, False), done
    assert antiphon("runs", "--json").json["runs"][0]["status"] == "interrupted"
    again = antiphon("replay", "latest", "--strict", "--json")
    assert (again.code, again.json["verdict"]) == (0, "pass"), again


@pytest.mark.parametrize("given", ["0", "null"])
def test_an_agent_that_leaves_without_a_complaint_has_completed(antiphon: Command, given: str) -> None:
    done = antiphon("run", "agent.py:leave", "--input", f'{{"args": [{given}]}}', "--json")
    assert (done.code, done.json["status"]) == (0, "completed")
    assert "exitCode" not in antiphon("runs", "--json").json["runs"][0]
    assert antiphon("replay", "latest", "--strict").code == 0


def test_an_agent_that_leaves_with_words_says_them_and_fails(antiphon: Command) -> None:
    done = antiphon("run", "agent.py:leave", "--input", '"no such order"')
    assert done.code == 1
    assert "no such order" in done.err
    assert antiphon("show", "--json").json["error"]["message"] == "The program ended with exit code 1: no such order"


@pytest.mark.parametrize("now", ["8", "0"])
def test_an_exit_code_that_changed_is_a_divergence(
    antiphon: Command, monkeypatch: pytest.MonkeyPatch, now: str
) -> None:
    antiphon("run", "agent.py:leave", "--input", "7")
    monkeypatch.setenv("LEAVE", now)
    again = antiphon("replay", "latest", "--strict")
    assert again.code == 1
    assert "'failed' -> 'completed'" in again.out if now == "0" else "exit code 8" in again.out


def test_a_file_that_leaves_when_it_is_imported_is_no_run(antiphon: Command) -> None:
    Path("script.py").write_text("import sys\n\ndef main():\n    return 1\n\nsys.exit(main())\n")
    done = antiphon("run", "script.py:main")
    assert done.code == 5
    assert "script.py cannot be imported: SystemExit: 1" in done.err


@pytest.mark.parametrize("target", ["own.py:main", "own:main"])
def test_a_wrong_setting_is_told_as_one_also_while_an_agent_is_imported(antiphon: Command, target: str) -> None:
    Path("own.py").write_text("import antiphon\napp = antiphon.Antiphon({'gateway': {'tenant': 1}})\n")
    done = antiphon("run", target)
    assert (done.code, "cannot be imported" in done.err) == (2, False), done
    Path("own.py").write_text("raise ValueError('A sentence.')\n")
    done = antiphon("run", target)
    assert (done.code, done.err.splitlines()[0].endswith("cannot be imported: ValueError: A sentence.")) == (5, True)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["agent.py:nothing"], 5, "has no 'nothing'"),
        (["missing.py:main"], 5, "There is no file missing.py"),
        (["no_such_module:main"], 5, "cannot be imported"),
        (["agent.py"], 2, "does not name an entry point"),
        (["agent.py:not_callable"], 2, "not callable"),
        (["agent.py:main", "--input", "hello"], 2, "--input is not JSON"),
        (["agent.py:main", "--resume", "none"], 4, "none"),
        (["agent.py:main", "--store", "mysql://x"], 2, "--store: the store URL 'mysql://x' has an unknown scheme"),
    ],
)
def test_run_says_what_is_wrong(antiphon: Command, words: list[str], code: int, says: str) -> None:
    done = antiphon("run", *words)
    assert (done.code, done.out) == (code, "")
    assert says in done.err
    told = antiphon("run", *words, "--json")
    assert told.code == code
    assert says in told.json["message"]


CAREFUL = """
import pathlib
import antiphon

app = antiphon.Antiphon()


@app.gateway.tool(idempotent=False, effect="write")
def send(to: str) -> str:
    with open("world.txt", "a") as world:
        world.write(to + "\\n")
    return "sent to " + to


def main(to, text="hi"):
    done = send(to)
    if not pathlib.Path("go.txt").exists():
        raise KeyboardInterrupt
    return done + " " + text
"""


def interrupted(antiphon: Command, given: str) -> str:
    """A run that has sent something, and was interrupted then."""
    Path("careful.py").write_text(CAREFUL)
    assert antiphon("run", "careful.py:main", "--input", given).code == 130
    Path("go.txt").touch()
    found = antiphon("runs", "--json").json["runs"][0]
    assert found["status"] == "interrupted"
    return str(found["id"])


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('"ada"', "sent to ada hi"),
        ('{"args": ["ada"], "kwargs": {"text": "hello"}}', "sent to ada hello"),
        ('"token sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"', "sent to token sk-ant-api03-"),
        (json.dumps("x" * 100_000), "sent to xxx"),
    ],
    ids=["text", "arguments", "secret", "large"],
)
def test_resume_uses_the_recorded_input(antiphon: Command, given: str, said: str) -> None:
    run = interrupted(antiphon, given)
    done = antiphon("run", "careful.py:main", "--resume", run)
    assert (done.code, done.out[: len(said)]) == (0, said), done.err
    assert antiphon("run", "careful.py:main", "--input", given, "--resume", run).code == 0
    assert len(Path("world.txt").read_text().splitlines()) == 1


@pytest.mark.parametrize("other", ['"eve"', "1", '{"args": ["ada"], "kwargs": {"text": "hello"}}', "[]"])
def test_resume_with_another_input_is_refused(antiphon: Command, other: str) -> None:
    run = interrupted(antiphon, '"ada"')
    done = antiphon("run", "careful.py:main", "--input", other, "--resume", run)
    assert (done.code, done.out) == (2, "")
    assert f"Run {run} was recorded with another input. Nothing was called." in done.err
    assert Path("world.txt").read_text() == "ada\n"
    assert antiphon("runs", "--json").json["runs"][0]["status"] == "interrupted"


def test_resume_asks_for_an_input_that_cannot_be_read_back(antiphon: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_REDACT_KEEP_SEALED", "false")
    secret = '"sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"'
    run = interrupted(antiphon, secret)
    done = antiphon("run", "careful.py:main", "--resume", run)
    assert (done.code, "cannot be read back" in done.err) == (2, True), done.err
    assert len(Path("world.txt").read_text().splitlines()) == 1
    done = antiphon(
        "run", "careful.py:main", "--input", secret, "--resume", run
    )  # its masked write would be made again
    assert (done.code, "cannot be resumed" in done.err) == (2, True), done.err
    assert len(Path("world.txt").read_text().splitlines()) == 1


# -- runs -----------------------------------------------------------------------------------------------------------


def test_runs_lists_the_newest_first(antiphon: Command) -> None:
    assert "No runs yet" in antiphon("runs").out
    assert antiphon("runs", "--json").json["runs"] == []
    first, second = recorded(antiphon), recorded(antiphon, "agent.py:fail")
    table = antiphon("runs").out.splitlines()
    assert table[0].split() == ["RUN", "NAME", "STATUS", "STARTED", "TOOK", "EVENTS", "REPLAY", "OF"]
    assert [line.split()[0] for line in table[1:]] == [second, first]
    assert antiphon("runs", "list").out.splitlines()[0] == table[0]
    assert [row["id"] for row in antiphon("runs", "list", second, "--json").json["runs"]] == [second]
    rows = antiphon("runs", "--json").json["runs"]
    assert [row["events"] for row in rows] == [2, 11]
    keys = {
        "id",
        "name",
        "status",
        "startedAtMs",
        "finishedAtMs",
        "durationMs",
        "entry",
        "sourceRun",
        "events",
        "tenant",
    }
    assert set(rows[0]) == keys
    assert [row["id"] for row in antiphon("runs", "--name", "orders", "--json").json["runs"]] == [first]
    assert [row["id"] for row in antiphon("runs", "--limit", "1", "--json").json["runs"]] == [second]
    assert [row["id"] for row in antiphon("runs", first[:18], "--json").json["runs"]] == [first]
    assert antiphon("runs", "--status", "nonsense").code == 2


def killed(antiphon: Command) -> str:
    words = [sys.executable, "-m", "antiphon.cli", "run", "agent.py:die", "--input", "1"]
    assert subprocess.run(words, check=False, capture_output=True).returncode == -9
    rows = antiphon("runs", "--status", "interrupted", "--json").json["runs"]
    assert len(rows) == 1
    assert rows[0]["events"] == 4
    return str(rows[0]["id"])


def test_an_interrupted_run_says_where_it_stopped(antiphon: Command) -> None:
    run = killed(antiphon)
    shown = antiphon("show", run).out
    assert "interrupted" in shown
    assert "the run stops after event 3: its process ended before the run finished" in shown
    assert antiphon("show", run, "--json").json["stoppedAt"] == 3
    assert antiphon("show", run, "--event", "4").code == 4
    assert antiphon("export", run, "-o", "cut.antiphon").code == 0
    assert json.loads(Path("cut.antiphon").read_bytes())["status"] == "interrupted"


# -- show -----------------------------------------------------------------------------------------------------------


def test_show_draws_the_run_as_a_tree(antiphon: Command) -> None:
    run = recorded(antiphon)
    lines = antiphon("show", run).out.splitlines()
    assert lines[0].split() == ["orders", run, "completed"]
    tree = "\n".join(lines)
    assert re.search(r"├─ +1 +model m-1 +ok .*1000\+500 tokens", tree)
    assert re.search(r"└─ +5 +tools/refund +ok", tree)
    assert re.search(r"   └─ +6 +tools/look +ok .*2 attempts", tree)
    assert "· retry" in tree
    assert "output  refunded 7" in tree
    assert "2 tool calls · 2 model calls · 1 retry · 2000 + 1000 tokens" in tree
    assert antiphon("show", "--latest").out == antiphon("show").out == antiphon("show", run[:30]).out


def test_show_json(antiphon: Command) -> None:
    tree = antiphon("show", recorded(antiphon), "--json").json
    counted = {"calls": 2, "models": 2, "nodes": 0, "retries": 1, "reused": 0, "blocked": 0, "errors": 0, "afterEnd": 0}
    assert tree["counts"] == counted
    assert [node["name"] for node in tree["timeline"]] == ["llm", "llm", "tools/refund"]
    assert [node["name"] for node in tree["timeline"][2]["children"]] == ["tools/look"]
    assert tree["cost"] is None


def test_show_knows_what_a_run_cost(antiphon: Command) -> None:
    Path("antiphon.toml").write_text('[prices."m-1"]\ninput = 2.0\noutput = 8.0\n')
    run = recorded(antiphon)
    assert antiphon("show", run, "--json").json["cost"] == pytest.approx(2 * (1000 * 2 + 500 * 8) / 1e6)
    assert "cost 0.0120" in antiphon("show", run).out


def test_show_one_event(antiphon: Command) -> None:
    run = recorded(antiphon)
    event = antiphon("show", run, "--event", "1").json
    assert (event["type"], event["payload"]["kind"]) == ("call.started", "llm")
    done = antiphon("show", run, "--event", "99")
    assert done.code == 4
    assert "has no event 99" in done.err
    assert "0 to 10" in done.err
    assert antiphon("show", run, "--event", "-1").code == 4


def test_show_what_the_model_saw(antiphon: Command) -> None:
    run = recorded(antiphon)
    seen = antiphon("show", run, "--context", "1", "--json").json
    assert seen["request"]["messages"][1] == {"role": "user", "content": "first: where is 7?"}
    assert "be kind" in antiphon("show", run, "--context", "1").out
    done = antiphon("show", run, "--context", "5")
    assert done.code == 2
    assert "not a model call" in done.err


def test_show_what_changed_between_two_events(antiphon: Command) -> None:
    run = recorded(antiphon)
    found = antiphon("show", run, "--diff", "1", "3", "--json").json["differences"]
    assert any("messages" in diff["path"] for diff in found)
    text = antiphon("show", run, "--diff", "1", "3").out
    assert "first" in text
    assert "second" in text
    assert antiphon("show", run, "--diff", "1", "1").out == "The two events are equal.\n"


def test_runs_are_found_by_the_beginning_of_their_ids(antiphon: Command) -> None:
    assert antiphon("show").code == 4
    first, second = recorded(antiphon), recorded(antiphon)
    common = first[: next(at for at, pair in enumerate(zip(first, second, strict=True)) if len(set(pair)) > 1)]
    done = antiphon("show", common)
    assert done.code == 4
    assert "matches several runs" in done.err
    assert first in done.err
    assert second in done.err
    assert antiphon("show", common, "--json").json["error"] == "ambiguous"
    assert antiphon("show", "nothing").code == 4
    assert antiphon("show", first, "--latest").code == 2


# -- export, import, scan -------------------------------------------------------------------------------------------


def test_export_and_import(antiphon: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = recorded(antiphon)
    done = antiphon("export", "--latest")
    path = Path(f"artifacts/{run}.antiphon")
    assert done.out == f"{path}  {path.stat().st_size} bytes\n"
    told = antiphon("export", run, "-o", "a.kurral", "--json").json
    assert told == {"run": run, "file": "a.kurral", "bytes": Path("a.kurral").stat().st_size, "needsKey": []}
    assert "kurral_id" in json.loads(Path("a.kurral").read_bytes())
    assert antiphon("export", run, "--latest").code == 2
    assert antiphon("export", "nothing").code == 4
    assert antiphon("export", run, "-o", "new/folder/a.antiphon").code == 0
    done = antiphon("export", run, "-o", "agent.py/a.antiphon")
    assert done.code == 2
    assert "cannot be" in done.err
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "other"))
    told = antiphon("import", str(path), "a.kurral", "--json").json
    assert [entry["file"] for entry in told["imported"]] == [str(path), "a.kurral"]
    assert told["imported"][0] == {"file": str(path), "run": run, "altered": False}
    assert len(antiphon("runs", "--json").json["runs"]) == 2


def test_import_says_when_a_file_was_edited(antiphon: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = recorded(antiphon)
    antiphon("export", run, "-o", "a.antiphon")
    Path("b.antiphon").write_bytes(Path("a.antiphon").read_bytes().replace(b"refunded 7", b"refunded 8"))
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "other"))
    assert "edited after it was written" in antiphon("import", "b.antiphon").out
    Path("c.antiphon").write_text("{")
    done = antiphon("import", "c.antiphon")
    assert done.code == 6
    assert antiphon("import", "c.antiphon", "--json").json["error"] == "artifact_error"


def test_scan(antiphon: Command) -> None:
    Path("clean.json").write_text('{"a": 1}')
    assert antiphon("scan", "clean.json").out == "no secrets found\n"
    key = "ghp_" + "a1B2" * 9
    Path("folder").mkdir()
    Path("folder/leaky.json").write_text(json.dumps({"token": key}))
    done = antiphon("scan", "folder", "clean.json")
    assert done.code == 1
    assert key not in done.out
    assert "1 secret found" in done.out
    found = antiphon("scan", "folder", "--json").json["findings"]
    assert [entry["kind"] for entry in found] == ["github"]
    assert antiphon("scan", "missing").code == 4


def test_scan_knows_what_stands_for_secrets_in_recordings(antiphon: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTIPHON_HOME", "state")
    key = tokens(Forge(5))[0].secret
    Path("echo.py").write_text("def main(text: str) -> str:\n    return text\n")
    assert antiphon("run", "echo.py:main", "--input", json.dumps(f"mail ada@example.com, key {key}")).code == 0
    assert antiphon("export", "--latest", "-o", "golden/a.antiphon").code == 0
    done = antiphon("scan", "golden", "state")
    assert (done.code, done.out) == (0, "no secrets found\n")
    artifact = json.loads(Path("golden/a.antiphon").read_bytes())
    artifact["events"][0]["meta"]["sealed"] += f" {key}"
    Path("golden/a.antiphon").write_text(json.dumps(artifact))
    assert [entry["where"] for entry in antiphon("scan", "golden", "--json").json["findings"]] == [
        "/events/0/meta/sealed"
    ]


def test_scan_reports_a_seal_key_that_git_does_not_ignore(
    antiphon: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", *words], cwd=project, check=True, capture_output=True)

    def found() -> list[str]:
        return [entry["file"] for entry in antiphon("scan", str(project), "--json").json["findings"]]

    project = tmp_path / "project"
    state, copied = project / "state", project / "keys" / "copy"
    monkeypatch.setenv("ANTIPHON_HOME", str(state))
    copied.parent.mkdir(parents=True)
    git("init", "--quiet")
    Path("echo.py").write_text("def main(text: str) -> str:\n    return text\n")
    assert antiphon("run", "echo.py:main", "--input", '"mail ada@example.com"').code == 0
    (live,) = state.glob("*.seal-key")
    monkeypatch.setenv("GIT_DIR", ".git")  # as for a hook
    assert found() == []
    shutil.copy2(live, copied)
    assert copied.stat().st_mode & 0o777 == 0o600
    assert found() == [str(copied)]
    (project / ".gitignore").write_text("/keys/\n")
    assert found() == []
    monkeypatch.delenv("GIT_DIR")
    git("add", "--force", str(live))
    assert found() == [str(live)]


# -- gc -------------------------------------------------------------------------------------------------------------


def test_gc_keeps_what_is_inside_the_window(antiphon: Command) -> None:
    runs = [recorded(antiphon) for _ in range(3)]
    done = antiphon("gc", "--keep", "1")
    assert "deleted 0 runs" in done.out
    assert "kept: 2 runs inside the retention window of 14 days" in done.out
    told = antiphon("gc", "--keep", "1", "--force", "--dry-run", "--json").json
    assert [row["id"] for row in told["runs"]] == [runs[1], runs[0]]
    assert len(antiphon("runs", "--json").json["runs"]) == 3
    assert "would delete 2 runs" in antiphon("gc", "--keep", "1", "--force", "--dry-run").out
    assert (
        "would delete 1 run, 0 blobs and 0 expired claims" in antiphon("gc", "--keep", "2", "--force", "--dry-run").out
    )
    assert "deleted 2 runs" in antiphon("gc", "--keep", "1", "--force").out
    assert [row["id"] for row in antiphon("runs", "--json").json["runs"]] == [runs[2]]


def test_gc_by_age_and_size(antiphon: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    old = recorded(antiphon)
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 30 * 86_400 * 10**9)
    new = recorded(antiphon)
    assert [row["id"] for row in antiphon("gc", "--dry-run", "--json").json["runs"]] == [old], "the window by default"
    assert antiphon("gc", "--older-than", "60", "--dry-run", "--json").json["runs"] == []
    assert [row["id"] for row in antiphon("gc", "--max-bytes", "5000", "--json").json["runs"]] == [old]
    assert [row["id"] for row in antiphon("runs", "--json").json["runs"]] == [new]


def test_gc_keeps_the_log_of_operators(antiphon: Command) -> None:
    recorded(antiphon)
    assert antiphon("breakers", "force-open", "tools/look", "--reason", "maintenance").code == 0
    told = antiphon("gc", "--keep", "0", "--force", "--json").json
    assert [row["name"] for row in told["runs"]] == ["orders"]


@pytest.mark.parametrize("act", ["force-open", "reset"])
def test_a_breaker_that_nobody_knows_is_not_written(antiphon: Command, act: str) -> None:
    recorded(antiphon)
    done = antiphon("breakers", act, "tools/lok")
    assert (done.code, done.out) == (4, "")
    assert "There is no breaker 'tools/lok'" in done.err
    assert "Known: tools/look" in done.err
    assert antiphon("breakers", act, "nope", "--json").json["error"] == "not_found"
    assert antiphon("breakers", "list", "--json").json["breakers"] == []
    assert antiphon("show", "audit-default").code == 4, "no act, no line about it"


def test_breakers_that_are_known_by_claims_settings_or_their_own_row(
    antiphon: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(antiphon)
    monkeypatch.setattr("antiphon.ops.gateways._alive", set())  # a process in which the agent was never loaded
    Path("antiphon.toml").write_text('[tools."mail/send"]\ntimeout = 3.0\n[tools.short]\ntimeout = 3.0\n')
    for name in ("look", "tool/tools/refund", "mail/send", "any/short", "dependency/stripe", "global"):
        assert antiphon("breakers", "force-open", name).code == 0, name
    assert antiphon("claims", "flush", "--tool", "tools/look").code == 0
    assert antiphon("breakers", "reset", "look").code == 0
    assert antiphon("breakers", "reset", "--context", "stripe").code == 0
    assert antiphon("breakers", "reset", "--context", "strpe").code == 4


# -- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    [
        ("runs", "--limit", "-5"),
        ("runs", "--limit", "0"),
        ("claims", "list", "--limit", "0"),
        ("gc", "--keep", "-1"),
        ("gc", "--older-than", "-1"),
        ("gc", "--older-than", "nan"),
        ("gc", "--max-bytes", "-1"),
        ("breakers", "force-open", "global", "--for", "1e400"),
        ("breakers", "force-open", "global", "--for", "nan"),
        ("replay", "--samples", "0"),
        ("replay", "--from", "-1"),
        ("replay", "--min-ars", "nan"),
        ("test", "golden", "--jobs", "0"),
        ("diff", "a", "b", "--min-ars", "2"),
    ],
)
def test_a_number_that_makes_no_sense_is_a_usage_error(antiphon: Command, words: tuple[str, ...]) -> None:
    done = antiphon(*words)
    assert (done.code, done.out) == (2, "")
    assert f"argument {words[-2]}" in done.err


def test_a_report_that_cannot_be_written_is_one_line(antiphon: Command) -> None:
    recorded(antiphon)
    done = antiphon("replay", "--latest", "--no-execute", "--html", "nowhere/report.html")
    assert done.code == 2
    assert done.err.startswith("antiphon: nowhere/report.html: No such file or directory.")


def test_a_state_folder_that_cannot_be_made_is_one_line(antiphon: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("taken").write_text("a file")
    monkeypatch.setenv("ANTIPHON_HOME", "taken")
    done = antiphon("runs")
    assert (done.code, done.out) == (2, "")
    said = f"The state folder {Path('taken').absolute()} cannot be used"
    assert said in done.err
    assert "ANTIPHON_HOME" in done.err
    done = antiphon("doctor")
    assert (done.code, said in done.out) == (1, True)


# -- on a terminal --------------------------------------------------------------------------------------------------


def test_long_work_shows_its_progress_on_a_terminal(antiphon: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("big.py").write_text(
        "import antiphon\n"
        "def main():\n"
        "    run = antiphon.current_run()\n"
        "    for n in range(200):\n"
        "        run.prompt('p', str(n))\n"
    )
    run = recorded(antiphon, "big.py:main")
    shown = on_a_terminal("export", run, "-o", "big.antiphon")
    assert b"exporting, events: 200 of 202" in shown
    monkeypatch.setenv("ANTIPHON_HOME", "other")
    shown = on_a_terminal("import", "big.antiphon")
    assert b"importing, events: 200 of 202" in shown
    assert b"\x1b[1m" in on_a_terminal("runs"), "the head of the table is bold"


def test_the_status_of_a_run_is_coloured_and_not_its_name(antiphon: Command) -> None:
    with contextlib.suppress(ValueError), Antiphon().run("failed-orders"):
        raise ValueError("no such order")
    shown = on_a_terminal("runs")
    assert b"failed-orders  \x1b[31mfailed\x1b[0m" in shown


def test_samples_a_scan_a_cleanup_and_a_backup_show_their_progress(antiphon: Command, tmp_path: Path) -> None:
    Path("lots").mkdir()
    for number in range(60):
        Path(f"lots/{number}.txt").write_text("nothing in here")
    assert b"scanning, files: 50 of 60" in on_a_terminal("scan", "lots")
    Path("plain.py").write_text("def main():\n    return 7\n")
    run, *_ = [recorded(antiphon, "plain.py:main") for _ in range(3)]
    Path("side_effect").mkdir()
    Path("side_effect/side_effects.yaml").write_text("tools: {}\ndone: true\n")
    shown = on_a_terminal("replay", run, "--explore", "--samples", "3", "--baseline")
    assert b"replaying, samples: 0 of 3" in shown
    assert b"replaying, samples: 3 of 3" in shown
    assert b"replaying the baseline, samples: 3 of 3" in shown
    shown = on_a_terminal("backup", str(tmp_path / "copy"))
    assert b"MB, databases: 1 of 1" in shown
    assert b"checking, files: " in on_a_terminal("restore", str(tmp_path / "copy"), "--verify")
    shown = on_a_terminal("gc", "--keep", "1", "--max-bytes", "100000", "--force")
    assert b"measuring, runs: " in shown
    assert b"deleting, runs: " in shown
    run = recorded(antiphon, "plain.py:main")
    for words in (["scan", "lots"], ["replay", run, "--explore", "--samples", "2"], ["gc", "--keep", "0", "--force"]):
        done = antiphon(*words, "--json")
        assert (done.code, done.err) == (0, ""), "a file gets no line of progress"
        assert isinstance(done.json, dict)


def on_a_terminal(*words: str) -> bytes:
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "antiphon.cli", *words], stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True
    )
    os.close(theirs)
    shown: list[Any] = []
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # the other side is closed
            break
        if not data:
            break
        shown.append(data)
    os.close(ours)
    assert process.wait() == 0, shown
    return b"".join(shown)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["runs"], 0),
        (["claims", "list"], 0),
        (["claims", "show", "nope"], 4),
        (["breakers", "list"], 0),
        (["show"], 4),
        (["show", "nope"], 4),
        (["export", "nope"], 4),
        (["replay", "nope"], 4),
        (["diff", "a", "b"], 4),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_that_finds_nothing_says_where_it_looked(antiphon: Command, words: list[str], code: int) -> None:
    done = antiphon(*words)
    assert done.code == code
    assert "/state/antiphon.db" in done.out + done.err


def test_store_names_another_one_by_file_folder_or_url(antiphon: Command, tmp_path: Path) -> None:
    from antiphon import Gateway

    other = tmp_path / "other" / "antiphon.db"
    other.parent.mkdir()
    with Gateway(store=f"sqlite:///{other}") as gateway:
        gateway.tool("pay", idempotent=False)(lambda: "paid")()
    for name in (str(other), str(other.parent), f"sqlite:///{other}"):
        found = antiphon("claims", "list", "--store", name, "--json").json["claims"]
        assert [claim["tool"] for claim in found] == ["tools/pay"]
    assert antiphon("claims", "list", "--json").json["claims"] == []
    missing = antiphon("claims", "list", "--store", str(tmp_path / "typo.db"))
    assert (missing.code, missing.out) == (4, "")
    assert "There is no store at" in missing.err
    assert not (tmp_path / "typo.db").exists()


ODD = """
import antiphon
gateway = antiphon.Gateway()

@gateway.tool(idempotent=False)
def send(to):
    return {1: to, "large": 2**70, None: "odd \\ud800"}

def main(to):
    return send(to)

def stream(to):
    yield send(to)

async def parts(to):
    yield send(to)

class Bot:
    def run(self, to):
        return str(send(to))

bot = Bot()
"""


def test_an_output_that_json_cannot_write_is_printed_and_no_failure(antiphon: Command) -> None:
    Path("odd.py").write_text(ODD)
    done = antiphon("run", "odd.py:main", "--input", '"ada"')
    assert done.code == 0, done.err
    assert done.json["1"] == "ada"
    done = antiphon("run", "odd.py:main", "--input", '"ada"', "--json")
    assert (done.code, done.json["status"], done.json["output"]["1"]) == (0, "completed", "ada")


@pytest.mark.parametrize("name", ["stream", "parts"])
def test_a_generator_is_refused_because_nobody_would_read_it(antiphon: Command, name: str) -> None:
    Path("odd.py").write_text(ODD)
    done = antiphon("run", f"odd.py:{name}", "--input", '"ada"')
    assert (done.code, done.out) == (2, "")
    assert "is a generator" in done.err


def test_a_method_of_an_object_is_found_again(antiphon: Command) -> None:
    Path("odd.py").write_text(ODD)
    assert antiphon("run", "odd.py:bot.run", "--input", '"ada"').code == 0
    done = antiphon("replay", "latest", "--strict", "--json")
    assert (done.code, done.json["executed"]) == (0, True), done.err


def test_a_run_that_is_running_is_not_resumed(antiphon: Command, home: Path) -> None:
    Path("slow.py").write_text(
        "import antiphon, sys\ndef main(to):\n    print('begun', flush=True)\n    sys.stdin.readline()\n    return to\n"
    )
    command = [sys.executable, "-m", "antiphon.cli", "run", "slow.py:main", "--input", '"ada"']
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"begun\n"
        done = antiphon("run", "slow.py:main", "--resume", "latest")
        assert (done.code, "is still running" in done.err) == (2, True), done.err
        running.communicate(b"\n", timeout=60)
