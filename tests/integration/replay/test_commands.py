"""``antiphon replay``, ``diff`` and ``test`` as commands: what they print, which exit code they give (K8, D29)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any, NamedTuple

import pytest

AGENT = """
import json, os, sys, time
from pathlib import Path
import antiphon

app = antiphon.Antiphon()


@app.gateway.tool(idempotent=True, effect="read")
def search_web(location: str, units: str) -> str:
    Path("searched.txt").open("a").write(location + "\\n")
    return f"sunny in {location}"


@app.gateway.tool(idempotent=False, effect="write")
def send_email(to: str, text: str) -> str:
    Path("sent.txt").open("a").write(f"{to}: {text}\\n")
    return "sent"


def model(body):
    place = "San Francisco" if body["model"] == "gpt-4o" else "San Francisco, CA"
    results = [m for m in body["messages"] if m["role"] == "tool"]
    steps = [
        ("search_web", {"location": place, "units": "metric"}),
        ("send_email", {"to": "ann", "text": os.environ.get("TEXT", "sunny")}),
    ]
    if os.environ.get("SOCKET"):
        import socket
        socket.create_connection(("127.0.0.1", 9), 1)
    message = {"role": "assistant", "content": "It is sunny; Ann knows."}
    if len(results) < len(steps):
        name, arguments = steps[len(results)]
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"c{len(results)}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
    usage = {"prompt_tokens": 9, "completion_tokens": 2}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}


TOOLS = {"search_web": search_web, "send_email": send_email}


def main(question):
    if os.environ.get("LEAVE") == question:
        os._exit(3)
    if os.environ.get("WAIT") == question:
        os.write(2, b"waiting\\n")  # in one piece, also beside another process
        time.sleep(60)
    if os.environ.get("SOCKET"):
        import socket
        socket.create_connection(("127.0.0.1", 9), 1)
    messages = [{"role": "user", "content": question}]
    while True:
        request = {"model": os.environ.get("MODEL", "gpt-4"), "temperature": 0, "seed": 42, "messages": messages}
        message = antiphon.current_run().llm(request, model)["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"]
        for call in message["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            if call["function"]["name"] == "send_email" and os.environ.get("TEXT"):
                arguments["text"] = os.environ["TEXT"]
            result = TOOLS[call["function"]["name"]](**arguments)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
"""


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "agents").mkdir()
        (path / "agents" / "weather.py").write_text(AGENT)
        assert self.antiphon("run", "agents/weather.py:main", "--input", '"weather?"').code == 0

    def antiphon(self, *words: str, **environment: str) -> Done:
        return self._done(self._start(words, environment))

    def interrupted(self, *words: str, **environment: str) -> Done:
        """A command that gets Ctrl-C, as a terminal sends it, once the agent says that it waits."""
        process = self._start(words, environment)
        assert process.stderr is not None
        assert process.stderr.readline() == "waiting\n"
        os.killpg(process.pid, signal.SIGINT)
        return self._done(process)

    def _start(self, words: tuple[str, ...], environment: dict[str, str]) -> subprocess.Popen[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ANTIPHON_")}
        return subprocess.Popen(
            [sys.executable, "-m", "antiphon.cli", *words],
            cwd=self.path,
            env={
                **kept,
                "ANTIPHON_HOME": str(self.path / "home"),
                "ANTIPHON_REPLAY_EMBEDDER": "lexical",
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    @staticmethod
    def _done(process: subprocess.Popen[str]) -> Done:
        with process:
            try:
                out, err = process.communicate(timeout=100)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        assert "Traceback" not in err, err
        return Done(process.returncode, out, err)

    def lines(self, name: str) -> int:
        path = self.path / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    def review(self) -> None:
        path = self.path / "agents" / "side_effect" / "side_effects.yaml"
        path.write_text(path.read_text().replace("done: false", "done: true"))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


A_REPLAY = """\
Replay Type: A
Determinism Score: 1.00 (threshold: 0.80)

No changes detected.
Executing A Replay (Using cached outputs)...

[Antiphon] Replay Execution:
  - Cache Hits: 2
  - New Tool Calls: 0
  - Unused Tool Calls: 0

ARS (Agent Regression Score): 1.000
  - Output Similarity: 1.000
  - Tool Accuracy: 1.000
"""


def test_a_replay_in_the_documents_layout(folder: Folder) -> None:
    done = folder.antiphon("replay", "--latest")
    assert done.code == 0
    assert done.out.startswith(A_REPLAY)
    assert "side_effects.yaml" in done.err
    assert folder.lines("sent.txt") == 1
    assert folder.lines("searched.txt") == 1


def test_the_json_report(folder: Folder) -> None:
    report = folder.antiphon("replay", "--strict", "--json").json
    assert report["replayType"] == "A"
    assert report["determinismScore"] == 1.0
    assert report["changes"] == {}
    assert (report["cacheHits"], report["modelHits"]) == (2, 3)
    assert (report["newToolCalls"], report["unusedToolCalls"], report["blocked"], report["divergences"]) == (
        0,
        0,
        [],
        [],
    )
    assert {name: report["ars"][name] for name in ("score", "outputSimilarity", "toolAccuracy")} == {
        "score": 1.0,
        "outputSimilarity": 1.0,
        "toolAccuracy": 1.0,
    }
    assert report["verdict"] == "pass"
    assert report["saved"]["tokens"] == 33


def test_a_changed_argument_is_named_with_the_command_that_shows_it(folder: Folder) -> None:
    done = folder.antiphon("replay", "--latest", "--strict", "--json", TEXT="rainy")
    assert done.code == 1
    found = done.json["divergences"][0]
    assert found["fields"] == [{"path": "$.text", "recorded": "sunny", "current": "rainy"}]
    shown = folder.antiphon(*found["show"].split()[1:])
    assert shown.code == 0
    assert "sunny" in shown.out
    assert folder.lines("sent.txt") == 1


def test_code_that_goes_past_antiphon_meets_the_fence(folder: Folder) -> None:
    done = folder.antiphon("replay", "--latest", "--strict", "--json", SOCKET="1")
    assert done.code == 1
    assert "127.0.0.1" in done.json["blocked"][0]["what"]


def test_b_replay_waits_for_the_review_then_runs_no_side_effect(folder: Folder) -> None:
    done = folder.antiphon("replay", "--latest", "--explore", "--model", "gpt-4o")
    assert done.code == 3
    assert "REPLAY BLOCKED: Side Effect Configuration Required" in done.err
    assert "Config file: " in done.err
    assert "  send_email: false  [SIDE EFFECT]" in done.err
    folder.review()
    done = folder.antiphon("replay", "--latest", "--model", "gpt-4o")
    assert done.code == 0, done.out + done.err
    assert (
        "Replay Type: B\nDeterminism Score: 0.75 (threshold: 0.80)\n\nChanges Detected:\n  - llm_config:\n" in done.out
    )
    assert "      model_name: {'artifact': 'gpt-4', 'current': 'gpt-4o'}\n" in done.out
    assert "Executing B Replay (Re-executing agent with cached tool calls)..." in done.out
    assert "Semantic Hit: search_web" in done.out
    assert (folder.lines("sent.txt"), folder.lines("searched.txt")) == (1, 1)


def test_a_model_that_changed_in_the_code_is_detected_in_any_layout(folder: Folder) -> None:
    folder.antiphon("replay", "--latest", "--explore")
    folder.review()
    report = folder.antiphon("replay", "--latest", "--json", MODEL="gpt-4o").json
    assert report["replayType"] == "B"
    assert "model_name" in report["reason"]


def test_exit_codes(folder: Folder, tmp_path: Path) -> None:
    assert folder.antiphon("replay", "nothing-like-it").code == 4
    assert "The latest: " in folder.antiphon("replay", "nothing-like-it").err
    assert folder.antiphon("replay", "missing.antiphon").code == 4
    assert folder.antiphon("replay", "--strict", "--explore").code == 2
    assert folder.antiphon("replay", "--fault", "llm=sleepy").code == 2
    assert folder.antiphon("replay", "--edit", "nonsense").code == 2
    assert folder.antiphon("replay", "--latest", "--entry", "agents/weather.py:nothing").code == 5
    assert folder.antiphon("replay", "--latest", "--entry", "agents/gone.py:main").code == 5
    (tmp_path / "bad.antiphon").write_text("{")
    assert folder.antiphon("replay", "bad.antiphon").code == 6
    (tmp_path / "new.antiphon").write_text('{"format": "antiphon", "schema_version": "9.0.0"}')
    assert folder.antiphon("replay", "new.antiphon").code == 6
    folder.antiphon("replay", "--latest", "--explore")
    folder.review()
    missing = folder.antiphon("replay", "--latest", "--model", "gpt-4o", ANTIPHON_REPLAY_EMBEDDER="minilm")
    assert missing.code == 5
    assert folder.antiphon("diff", "latest", "nothing-like-it").code == 4
    assert folder.antiphon("test", "no-such-folder").code == 4


@pytest.mark.parametrize("rule", [("--fault", "nope=timeout"), ("--static", "nope=1"), ("--live", "nope")])
def test_a_rule_for_a_tool_that_is_not_there_is_a_usage_error(folder: Folder, rule: tuple[str, str]) -> None:
    done = folder.antiphon("replay", "--latest", *rule)
    assert (done.code, done.out) == (2, "")
    assert "The recording has no call of 'nope'" in done.err
    assert "Its tools: tools/search_web, tools/send_email; its model calls: llm." in done.err
    assert not (folder.path / "agents" / "side_effect").exists(), "nothing was begun"
    strict = folder.antiphon("replay", "--latest", "--strict", "--fault", "search_web=timeout")
    assert (strict.code, strict.out) == (2, "")
    assert "does not support boundary rules" in strict.err


def test_a_fault_by_the_name_that_show_prints(folder: Folder) -> None:
    folder.antiphon("replay", "--latest", "--explore")
    folder.review()
    for name in ("tools/search_web", "search_web"):
        done = folder.antiphon("replay", "--latest", "--fault", f"{name}=timeout", "--json")
        assert done.code == 1, done.err
        assert done.json["error"]["message"] == "injected timeout"
        assert not any("never met" in reason for reason in done.json["verdictReasons"])


def test_an_ambiguous_beginning_lists_the_candidates(folder: Folder) -> None:
    folder.antiphon("run", "agents/weather.py:main", "--input", '"again?"')
    runs = [run["id"] for run in folder.antiphon("runs", "--json").json["runs"]]
    done = folder.antiphon("replay", runs[0][:4])
    assert done.code == 4
    assert all(run in done.err for run in runs)


def test_an_artifact_that_was_edited_diverges(folder: Folder, tmp_path: Path) -> None:
    assert folder.antiphon("export", "latest", "-o", "run.antiphon").code == 0
    assert folder.antiphon("replay", "run.antiphon", "--strict").code == 0
    text = (tmp_path / "run.antiphon").read_text()
    (tmp_path / "run.antiphon").write_text(text.replace('"prompt_tokens":9', '"prompt_tokens":8', 1))
    for more in ((), ("--no-execute",)):
        done = folder.antiphon("replay", "run.antiphon", "--strict", "--json", *more)
        assert done.code == 1
        assert {found["kind"] for found in done.json["divergences"]} == {"altered"}


def test_diff(folder: Folder, tmp_path: Path) -> None:
    folder.antiphon("run", "agents/weather.py:main", "--input", '"weather?"')
    newer, older = (run["id"] for run in folder.antiphon("runs", "--json").json["runs"])
    same = folder.antiphon("diff", older, newer)
    assert same.code == 0
    assert "equal: 5 calls" in same.out
    folder.antiphon("run", "agents/weather.py:main", "--input", '"weather?"', TEXT="rainy")
    done = folder.antiphon("diff", older, "latest", "--html", "diff.html")
    assert done.code == 1
    assert "~ changed  tools/send_email" in done.out
    assert "arguments.text: 'sunny' → 'rainy'" in done.out
    assert "1 side effect changed" in done.out
    assert "<!doctype html>" in (tmp_path / "diff.html").read_text()
    assert folder.antiphon("diff", older, "latest", "--json").json["equal"] is False


def test_golden_runs_with_reports(folder: Folder, tmp_path: Path) -> None:
    for name in ("one", "two", "three"):
        folder.antiphon("export", "latest", "-o", f"golden/{name}.antiphon")
        (tmp_path / "golden").mkdir(exist_ok=True)
        assert folder.antiphon("export", "latest", "-o", f"golden/{name}.antiphon").code == 0
    done = folder.antiphon("test", "golden", "--jobs", "2", "--junit", "out.xml", "--markdown", "out.md")
    assert done.code == 0, done.out + done.err
    assert "3 of 3 golden runs pass" in done.out
    assert ET.parse(tmp_path / "out.xml").getroot().attrib["failures"] == "0"
    (tmp_path / "golden" / "two.antiphon").write_text("{")
    done = folder.antiphon("test", "golden", "--junit", "out.xml", "--markdown", "out.md", "--json")
    assert done.code == 6
    assert done.json["passed"] == 2
    done = folder.antiphon("test", "golden", "--junit", "out.xml", "--markdown", "out.md", TEXT="rainy <&>")
    assert done.code == 1
    root = ET.parse(tmp_path / "out.xml").getroot()
    assert (root.attrib["failures"], root.attrib["errors"]) == ("2", "1")
    assert "rainy &lt;&amp;&gt;" in (tmp_path / "out.md").read_text()
    assert folder.lines("sent.txt") == 1


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_golden_run_that_ends_its_process_fails_alone(folder: Folder, tmp_path: Path, jobs: str) -> None:
    (tmp_path / "golden").mkdir()
    for name in "abcdef":
        question = "leave?" if name in "be" else "weather?"
        if name in "abc":
            assert folder.antiphon("run", "agents/weather.py:main", "--input", json.dumps(question)).code == 0
            assert folder.antiphon("export", "latest", "-o", f"golden/{name}.antiphon").code == 0
        else:
            copied = (tmp_path / "golden" / f"{chr(ord(name) - 3)}.antiphon").read_bytes()
            (tmp_path / "golden" / f"{name}.antiphon").write_bytes(copied)
    done = folder.antiphon("test", "golden", "--jobs", jobs, "--json", LEAVE="leave?")
    assert done.code == 1, done.out + done.err
    statuses = {Path(one["path"]).stem: one["status"] for one in done.json["results"]}
    assert statuses == {name: "error" if name in "be" else "pass" for name in "abcdef"}
    left = [one["reasons"] for one in done.json["results"] if one["status"] == "error"]
    assert left == [["the replayed code ended the process (3)"]] * 2


def test_artifacts_are_tested_without_a_state_folder(folder: Folder, tmp_path: Path) -> None:
    (tmp_path / "golden").mkdir()
    assert folder.antiphon("export", "latest", "-o", "golden/a.antiphon").code == 0
    (tmp_path / "file").touch()
    for home in (tmp_path / "none", tmp_path / "file" / "none"):
        for words in (("test", "golden"), ("replay", "golden/a.antiphon", "--strict"), ("scan", ".")):
            done = folder.antiphon(*words, ANTIPHON_HOME=str(home))
            assert done.code == 0, (words, home, done)
    assert not (tmp_path / "none").exists()
    done = folder.antiphon("run", "agents/weather.py:main", "--input", '"hm"', ANTIPHON_HOME=str(home))
    assert (done.code, "cannot be used" in done.err) == (2, True)


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_ctrl_c_gives_no_verdict(folder: Folder, tmp_path: Path, form: tuple[str, ...]) -> None:
    (tmp_path / "golden").mkdir()
    for name in "ab":
        assert folder.antiphon("export", "latest", "-o", f"golden/{name}.antiphon").code == 0
    for words in (("test", "golden"), ("test", "golden", "--jobs", "2"), ("replay", "golden/a.antiphon")):
        done = folder.interrupted(*words, *form, WAIT="weather?")
        assert done.code == 130, done
        if form:
            assert done.json == {"error": "interrupted", "message": "interrupted", "hint": ""}
        else:
            assert (done.out, done.err.splitlines()[-1]) == ("", "antiphon: interrupted")
        assert done.err.count("interrupted") == (0 if form else 1)
    assert not (tmp_path / "home" / "golden").exists()
    assert folder.antiphon("test", "golden").code == 0


def test_ctrl_c_in_a_run_says_how_to_resume_it(folder: Folder) -> None:
    done = folder.interrupted("run", "agents/weather.py:main", "--input", '"hm"', "--json", WAIT="hm")
    found = done.json
    run = folder.antiphon("runs", "--json").json["runs"][0]
    assert (done.code, found["error"], run["status"]) == (130, "interrupted", "interrupted")
    assert found["message"] == f"Run {run['id']} was interrupted."
    assert found["hint"] == f"Resume it: antiphon run agents/weather.py:main --resume {run['id']}"
    again = folder.interrupted("run", "agents/weather.py:main", "--resume", run["id"], WAIT="hm")
    assert (again.code, again.err) == (130, f"antiphon: {found['message']}\n{'':10}{found['hint']}\n")
    assert folder.antiphon("run", "agents/weather.py:main", "--resume", run["id"]).code == 0


def test_kurral_documents_replay(folder: Folder) -> None:
    sample = Path(__file__).parents[3] / "bench" / "payloads" / "sample.kurral"
    done = folder.antiphon("replay", str(sample), "--json")
    assert done.code == 0
    assert (done.json["replayType"], done.json["cacheHits"], done.json["executed"]) == ("A", 2, False)
    assert folder.antiphon("replay", str(sample), "--explore").code == 5
