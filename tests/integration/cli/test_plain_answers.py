"""Small things people do with the commands of recording, and the plain answers they get."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli.conftest import Command


def test_a_list_that_nothing_fits_does_not_say_that_there_are_no_runs(antiphon: Command) -> None:
    assert "No runs yet" in antiphon("runs").out
    assert antiphon("run", "agent.py:main").code == 0
    for words in (("zzz",), ("--name", "nobody"), ("--status", "failed")):
        said = antiphon("runs", *words).out
        assert "No runs yet" not in said
        assert "No runs match" in said


@pytest.mark.parametrize(
    "words",
    [("--event", "1", "--context", "2"), ("--context", "2", "--diff", "1", "2"), ("--event", "1", "--diff", "1", "2")],
)
def test_show_is_asked_for_one_thing(antiphon: Command, words: tuple[str, ...]) -> None:
    antiphon("run", "agent.py:main")
    done = antiphon("show", *words)
    assert done.code == 2
    assert "not allowed with" in done.err


@pytest.mark.parametrize("form", ["antiphon", "kurral"])
def test_an_export_may_go_to_the_standard_output(antiphon: Command, form: str) -> None:
    antiphon("run", "agent.py:main")
    done = antiphon("export", "--latest", "-o", "-", "--format", form)
    assert done.code == 0
    assert json.loads(done.out)["run_id"]
    assert not Path("-").exists()
    assert " bytes" in done.err
    assert "not both" in antiphon("export", "--latest", "-o", "-", "--json").json["message"]


def test_an_export_into_a_pipe_leaves_it_a_pipe(antiphon: Command, tmp_path: Path) -> None:
    antiphon("run", "agent.py:main")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    done = antiphon("export", "--latest", "-o", str(pipe))
    reader.join(20)
    assert done.code == 0, done.err
    assert json.loads(read[0])["run_id"]
    assert pipe.is_fifo()


def test_an_export_into_a_pipe_is_kept_from_other_users(
    antiphon: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    antiphon("run", "agent.py:main")
    shared, pipe = tmp_path / "shared", tmp_path / "pipe"
    shared.mkdir()
    os.mkfifo(pipe)
    monkeypatch.setenv("TMPDIR", str(shared))
    monkeypatch.setattr("tempfile.tempdir", str(shared))
    modes: list[int] = []

    def read() -> None:
        deadline = time.monotonic() + 20
        while not modes and time.monotonic() < deadline:  # the export waits for its reader
            modes.extend(stat.S_IMODE(file.stat().st_mode) for file in shared.rglob("*"))
            time.sleep(0.01)
        pipe.read_bytes()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    done = antiphon("export", "--latest", "-o", str(pipe))
    reader.join(20)
    assert done.code == 0, done.err
    assert modes == [0o600]
    assert not list(shared.iterdir())


# -- odd places to write to ------------------------------------------------------------------------------------------

GREET = """
import antiphon


def main(who):
    with antiphon.current_run().interaction(who) as exchange:
        exchange.finish("grüße → " + who)
    return "grüße → " + who
"""


def cli(*words: str, shell: str = "", **environment: str) -> Any:
    command = f"{sys.executable} -m antiphon.cli {' '.join(words)} {shell}"
    quiet = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    return subprocess.run(
        ["/bin/sh", "-c", command],
        capture_output=True,
        check=False,
        timeout=60,
        env={**os.environ, **quiet, **environment},
    )


@pytest.fixture
def greeted(home: Path) -> Path:
    Path("greet.py").write_text(GREET)
    done = cli("run", "greet.py:main", "--input", "'\"Zoë\"'", PYTHONUTF8="1")
    assert done.returncode == 0, done.stderr
    return home


@pytest.mark.parametrize(
    "place",
    [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"PYTHONIOENCODING": "cp1252"}, {"LC_ALL": "C"}],
    ids=lambda place: "=".join(*place.items()),
)
def test_a_terminal_that_knows_few_letters_gets_what_it_can_show(greeted: Path, place: dict[str, str]) -> None:
    for words in (("show",), ("runs",), ("show", "--event", "1"), ("run", "greet.py:main", "--input", "'\"x\"'")):
        done = cli(*words, **place)
        assert done.returncode == 0, done.stderr
        assert b"Traceback" not in done.stderr
    told = json.loads(cli("show", "--json", **place).stdout)
    assert told["output"] == "grüße → x"


def test_our_signs_have_a_form_in_ascii(greeted: Path) -> None:
    for words in ("doctor", "show"):
        assert not cli(words, PYTHONIOENCODING="utf-8").stdout.isascii()
    checked = cli("doctor", PYTHONIOENCODING="ascii").stdout.decode("ascii")
    assert "ok store: " in checked, checked
    shown = cli("show", PYTHONIOENCODING="ascii").stdout.decode("ascii").splitlines()
    assert any(line.startswith("|- ") for line in shown), shown
    assert "output  gr??e -> Zo?" in shown, "a letter that has no other form is a question mark"


def test_a_key_for_replays_has_a_document(antiphon: Command) -> None:
    antiphon("run", "agent.py:main")
    key = antiphon("replay-key").out.strip()
    assert antiphon("replay-key", "--json").json == {"replayKey": key}


def test_an_output_that_is_closed_or_full_is_no_crash(greeted: Path) -> None:
    for words in (("show",), ("runs",), ("runs", "--json"), ("export", "-o", "-")):
        for shell in (">/dev/full", ">&-", "| head -c 1"):
            done = cli(*words, shell=shell, PYTHONUTF8="1")
            assert b"Traceback" not in done.stderr, (words, shell, done.stderr)
            assert b"Exception ignored" not in done.stderr
    full = cli("show", shell=">/dev/full", PYTHONUTF8="1")
    assert full.returncode == 1
    assert b"No space left on device" in full.stderr


def test_a_failure_that_nobody_reads_is_no_success(home: Path) -> None:
    Path("notes.txt").write_text(f"token {'ghp_' + 'a1B2' * 9}\n")
    unread, output = os.pipe()
    os.close(unread)
    command = [sys.executable, "-m", "antiphon.cli", "scan", "notes.txt"]
    done = subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(output)
    assert done.returncode in (1, 141), done.stderr
    assert b"Traceback" not in done.stderr


def test_a_terminal_without_a_width_is_not_cut_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from antiphon.cli import _ui

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((0, 0)))
    assert _ui.cut("a line of a table") == "a line of a table"
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((8, 0)))
    assert _ui.cut("a line of a table") == "a line …"


@pytest.mark.parametrize(
    ("words", "says", "hint"),
    [
        ("approvals list --limit 0 --json", "argument --limit: 0 is not a whole number from 1.", ""),
        ("matrix --json --select name=main --model m --jobs 0", "argument --jobs/-j: 0 is not a whole number", ""),
        ("runs --json --limt 5", "unrecognized arguments: --limt.", "Did you mean --limit? "),
        ("claims lst --json", "argument what: invalid choice: 'lst'", "Did you mean list? "),
        ("scan --json", "the following arguments are required: PATH.", ""),
        ("rnus --json", "there is no command 'rnus'.", "Did you mean 'antiphon runs'? "),
    ],
)
def test_wrong_usage_with_json_is_a_document(antiphon: Command, words: str, says: str, hint: str) -> None:
    done = antiphon(*words.split())
    assert done.code == 2
    assert done.err == ""
    assert len(done.out.splitlines()) == 1
    assert done.json["error"] == "validation_error"
    assert done.json["message"].startswith(says)
    assert done.json["hint"].startswith(f"{hint}See: antiphon ")


@pytest.mark.parametrize("words", ["runs --limit 0 -- --json", "exec --bogus -- python agent.py --json", "gc --bogus"])
def test_wrong_usage_without_json_is_one_line(antiphon: Command, words: str) -> None:
    done = antiphon(*words.split())
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
