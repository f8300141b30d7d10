"""What a new user tries in the first hour: files instead of ids, pages, wrong names, narrow terminals, completion."""

from __future__ import annotations

import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace

import pytest

from antiphon.cli import COMMANDS
from antiphon.cli._base import find
from antiphon.cli._ui import progress
from tests.integration.cli.conftest import Command


def golden(antiphon: Command) -> str:
    """A recording in a file, with its run gone from the store."""
    run = str(antiphon("run", "agent.py:main", "--json").json["run"])
    assert antiphon("export", run, "-o", "run.antiphon").code == 0
    return run


# -- files ----------------------------------------------------------------------------------------------------------


def test_show_takes_a_file_and_leaves_the_store_alone(antiphon: Command) -> None:
    run = golden(antiphon)
    before = antiphon("runs", "--json").json
    shown = antiphon("show", "run.antiphon")
    assert shown.code == 0
    assert run in shown.out
    assert "tools/refund" in shown.out
    event = antiphon("show", "run.antiphon", "--event", "1").json
    assert (event["seq"], event["type"]) == (1, "call.started")
    assert "be kind" in antiphon("show", "run.antiphon", "--context", "1").out
    assert antiphon("show", "run.antiphon", "--json").json["name"] == "orders"
    assert antiphon("runs", "--json").json == before


def test_show_of_a_file_that_is_none(antiphon: Command) -> None:
    assert antiphon("show", "nothing.antiphon").code == 4
    Path("broken.antiphon").write_text("{")
    assert antiphon("show", "broken.antiphon").code == 6


def test_show_as_a_page(antiphon: Command) -> None:
    golden(antiphon)
    done = antiphon("show", "run.antiphon", "--html", "run.html")
    assert done.code == 0
    page = Path("run.html").read_text()
    assert "tools/refund" in page
    assert "refunded 7" in page
    assert "unsafe" not in page


def test_results_of_golden_runs_as_a_page(antiphon: Command) -> None:
    golden(antiphon)
    done = antiphon("test", "run.antiphon", "--html", "tests.html", "--no-sandbox")
    page = Path("tests.html").read_text()
    assert ("pass" in page) == (done.code == 0)
    assert "run.antiphon" in page
    assert "agent regression score" in page


# -- wrong names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("rums",), "antiphon runs"),
        (("runs", "--limt", "5"), "--limit"),
        (("runs", "--status", "runing"), "running"),
        (("replay", "--explor"), None),  # an unambiguous beginning is the option
        (("test", "--markdwon", "x", "golden"), "--markdown"),
        (("claims", "lst"), "list"),
        (("exec", "--json"), None),  # no option is near
    ],
)
def test_a_wrong_name_gets_a_suggestion(antiphon: Command, words: tuple[str, ...], meant: str | None) -> None:
    done = antiphon(*words)
    if meant is None:
        assert "Did you mean" not in done.err
    else:
        assert done.code == 2
        assert f"Did you mean {meant}" in done.err.replace("'", "")
        assert len(done.err.splitlines()) == 1


def test_a_misspelt_variable_is_named(home: Path) -> None:
    environment = {**os.environ, "ANTIPHON_RETRY_MAX_ATEMPTS": "7", "ANTIPHON_ZZZ": "1", "ANTIPHON_RETRY_BASE_MS": "9"}
    done = subprocess.run(
        [sys.executable, "-m", "antiphon.cli", "runs", "--json"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "ANTIPHON_RETRY_MAX_ATEMPTS is not a setting" in done.stderr
    assert "Did you mean ANTIPHON_RETRY_MAX_ATTEMPTS?" in done.stderr
    assert "ANTIPHON_ZZZ is not a setting" in done.stderr
    assert "BASE_MS" not in done.stderr


# -- terminals ------------------------------------------------------------------------------------------------------


def shown_on(columns: int, *words: str) -> bytes:
    """What a command prints on a terminal of that width."""
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "antiphon.cli", *words],
        stdout=follower,
        stderr=follower,
        stdin=subprocess.DEVNULL,
    )
    os.close(follower)
    out = b""
    while True:
        try:
            more = os.read(leader, 65536)
        except OSError:  # the other side is closed
            break
        if not more:
            break
        out += more
    os.close(leader)
    assert process.wait() == 0, out
    return out


def on_terminal(columns: int, *words: str) -> list[str]:
    """The lines that it prints, without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", shown_on(columns, *words).decode()).replace("\r", "").splitlines()


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_the_list_of_runs_fits_and_keeps_the_status(antiphon: Command, columns: int) -> None:
    antiphon("run", "agent.py:main")
    antiphon("run", "agent.py:fail", "--input", "1")
    lines = on_terminal(columns, "runs")
    assert all(len(line) <= columns for line in lines), lines
    assert lines[0].split()[:3] == ["RUN", "NAME", "STATUS"]
    assert [line.split()[2].rstrip(",") for line in lines[1:3]] == ["failed", "completed"]
    assert ("STARTED" in lines[0]) == (columns >= 80)


DESK = """
import antiphon

gateway = antiphon.Gateway()


@gateway.tool("charge_the_card_of_a_customer", idempotent=False, effect="write")
def charge(order: str) -> str:
    if order == "lost":
        raise ValueError("what?")
    return "charged"


@gateway.tool("wire_money_to_a_supplier", idempotent=False, approve="always")
def wire(text: str) -> str:
    return "sent"


def main():
    for tool, said in ((charge, "o-1"), (charge, "lost"), (wire, "a long reason " * 5)):
        try:
            tool(said)
        except Exception:
            pass
"""


LISTS = {
    "approvals list": ("STATE", {"waiting"}),
    "claims list": ("STATE", {"done", "unknown", "approval waiting"}),
    "claims resolve --reconcile --entry desk.py --dry-run": ("RECONCILE SAYS", {"unknown"}),
    "breakers list": ("STATE", {"FORCED_OPEN"}),
    "apikeys list": ("STATE", {"revoked", ""}),
}


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_every_list_fits_and_keeps_the_state(antiphon: Command, columns: int) -> None:
    Path("desk.py").write_text(DESK)
    assert antiphon("run", "desk.py:main").code == 0
    tool = "tools/charge_the_card_of_a_customer"
    assert antiphon("breakers", "force-open", tool, "--reason", "the bank of the customer is down").code == 0
    names = ["--tenant", "a-tenant-with-a-long-name", "--name", "the pipeline of the team"]
    key = antiphon("apikeys", "create", *names, "--json").json["id"]
    assert antiphon("apikeys", "revoke", key).code == 0
    assert antiphon("apikeys", "create", *names).code == 0
    for words, (head, states) in LISTS.items():
        lines = on_terminal(columns, *words.split())
        place = lines[0].index(head)
        notes = ("Decide: ", "1 with an unknown", "would be resolved")
        rows = [line for line in lines[1:] if not line.startswith(notes)]
        assert all(len(line) <= columns for line in [lines[0], *rows]), lines
        assert {line[place:].split("  ")[0].rstrip() for line in rows} == states, lines


def test_a_terminal_that_knows_no_codes_gets_none(antiphon: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    antiphon("run", "agent.py:main")
    assert b"\x1b" in shown_on(80, "show")
    monkeypatch.setenv("TERM", "dumb")
    assert b"\x1b" not in shown_on(80, "show")
    assert b"\x1b" not in shown_on(80, "export", "--latest", "-o", "run.antiphon")


def test_a_cut_list_says_so(antiphon: Command) -> None:
    for _ in range(3):
        antiphon("run", "agent.py:later", "--input", "1")
    some = antiphon("runs", "--limit", "2")
    assert "2 of 3 runs; --all lists them all" in some.out
    assert antiphon("runs", "--limit", "2", "--json").json["total"] == 3
    every = antiphon("runs", "--all")
    assert "--all" not in every.out
    assert len(every.out.splitlines()) == 4
    assert "--all" not in antiphon("runs", "--limit", "3").out


def test_the_rest_of_long_work_is_estimated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter(range(0, 10_000, 2))
    monkeypatch.setattr("antiphon.cli._ui.time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert list(progress(range(4), 4, "replaying")) == [0, 1, 2, 3]
    shown = capsys.readouterr().err
    assert "replaying: 1 of 4, 12.0 s left" in shown
    assert "replaying: 4 of 4, 0 ms left" in shown
    assert shown.endswith("\r\x1b[K")


# -- output ---------------------------------------------------------------------------------------------------------


def test_what_an_agent_prints_is_not_in_the_document(antiphon: Command, home: Path) -> None:
    Path("loud.py").write_text(
        "import os\ndef main():\n    print('hello')\n    os.system('echo from a child')\n    return 7\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "antiphon.cli", "run", "loud.py:main", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("{")
    assert '"output": 7' in done.stdout
    assert "hello" in done.stderr
    assert "from a child" in done.stderr
    assert "hello" in antiphon("run", "loud.py:main").out


def test_ids_of_providers_do_not_make_runs_differ(antiphon: Command) -> None:
    Path("ids.py").write_text(
        "import antiphon, uuid\n"
        "def model(request):\n"
        "    message = {'role': 'assistant', 'content': 'hi'}\n"
        "    return {'id': f'chatcmpl-{uuid.uuid4()}', 'created': uuid.uuid4().int % 10**9,\n"
        "            'choices': [{'index': 0, 'message': message, 'finish_reason': 'stop'}]}\n"
        "def main():\n"
        "    antiphon.current_run().llm({'model': 'm', 'messages': [{'role': 'user', 'content': 'q'}]}, model)\n"
        "    return 'done'\n"
    )
    one, two = (str(antiphon("run", "ids.py:main", "--json").json["run"]) for _ in range(2))
    same = antiphon("diff", one, two, "--html", "diff.html")
    page = Path("diff.html").read_text()
    assert (same.code, "equal: 1 call" in same.out, "First difference" in page) == (0, True, False), same.out
    assert '"badge":"pass"' in page
    every = antiphon("diff", one, two, "--all", "--html", "diff.html")
    page = Path("diff.html").read_text()
    assert (every.code, "$.value.id" in every.out or ".id" in every.out, "First difference" in page) == (1, True, True)
    assert '"badge":"fail"' in page


def test_the_words_of_a_result_are_explained(antiphon: Command) -> None:
    golden(antiphon)
    assert "agent regression score" in antiphon("test", "run.antiphon", "--no-sandbox").out


# -- completion -----------------------------------------------------------------------------------------------------


def complete(shell: str, line: str) -> list[str]:
    """What the real shell offers for a line."""
    antiphon = Path(sys.executable).parent
    path = {**os.environ, "PATH": f"{antiphon}:{os.environ['PATH']}"}
    words = line.split(" ")
    scripts = {
        "bash": f"source <(antiphon completion bash); COMP_WORDS=({line!s}); [ '{words[-1]}' ] || COMP_WORDS+=(''); "
        f'COMP_CWORD={len(words) - 1}; _antiphon; printf "%s\\n" "${{COMPREPLY[@]}}"',
        "fish": f"source (antiphon completion fish | psub); complete -C '{line}'",
    }
    done = subprocess.run([shell, "-c", scripts[shell]], env=path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


SHELLS = ["bash", *(["fish"] if shutil.which("fish") else [])]


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_commands_options_choices_and_runs(antiphon: Command, shell: str) -> None:
    run = antiphon("run", "agent.py:main", "--json").json["run"]
    assert complete(shell, "antiphon sho") == ["show"]
    assert complete(shell, "antiphon replay --expl") == ["--explore"]
    assert complete(shell, "antiphon runs --status i") == ["interrupted"]
    assert set(complete(shell, "antiphon sealkeys ")) == {"list", "rotate", "add", "use", "remove"}, "no files"
    assert complete(shell, "antiphon run ag") == ["agent.py"], "a file where one is wanted"
    assert complete(shell, f"antiphon show {run[:4]}") == [run]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_can_be_completed(antiphon: Command, name: str) -> None:
    offered = antiphon("completion", "words", "--", name, "--").out.split()
    shown = re.findall(
        r"^  (?:-\w(?: \w+)?, )?(--[\w-]+)", find(COMMANDS[name][0]).parser(name).format_help(), re.MULTILINE
    )
    assert set(shown) <= set(offered)


def test_each_script_asks_the_command_itself(antiphon: Command) -> None:
    for shell in ("bash", "zsh", "fish"):
        assert "antiphon completion words --" in antiphon("completion", shell).out
