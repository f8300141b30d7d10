"""``antiphon runs undo``: what a killed process left, or a person has settled, is undone when somebody asks."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest

import antiphon as package
from antiphon._drive import drive
from antiphon.ops.admin import Admin
from antiphon.ops.app import current
from antiphon.ops.entry import load_module
from tests.integration.cli.conftest import Command, Done

TRIP = """
import antiphon

gateway = antiphon.Gateway()
log = []
fails = {}


def did(*what):
    log.append(what)
    if " ".join(what) in fails:
        raise fails.pop(" ".join(what))


@gateway.tool(idempotent=False)
def book(hotel: str) -> dict:
    did("book", hotel)
    return {"id": f"b-{hotel}"}


@book.undo
def unbook(result: dict, *, hotel: str) -> None:
    print("a line of the tool")
    did("unbook", result["id"])


@gateway.tool(idempotent=False)
def mail(to: str) -> None:
    did("mail", to)


def trip(error, hotels=("a", "b"), mailed=()):
    with antiphon.run("trip") as run, run.saga("journey"):
        for hotel in hotels:
            book(hotel)
        for one in mailed:
            mail(one)
        raise error
"""


class Trip:
    """A script whose saga was left, and what it did."""

    def __init__(self, antiphon: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        Path("trip.py").write_text(TRIP)
        self._antiphon, self._monkeypatch = antiphon, monkeypatch
        self.module = load_module("trip.py")

    def leaves(self, error: BaseException, **options: Any) -> str:
        """The id of a run whose saga an exception has left."""
        with pytest.raises(type(error)):
            self.module.trip(error, **options)
        (run,) = self._antiphon("runs", "--json").json["runs"]
        return str(run["id"])

    def is_forgotten(self) -> None:
        """As in another process: nothing is declared until the entry is loaded."""
        for name in [name for name, module in sys.modules.items() if module is self.module]:
            self._monkeypatch.delitem(sys.modules, name)
        self.module = None
        self._monkeypatch.setattr("antiphon.ops.gateways._alive", WeakSet())

    def undone(self) -> list[str]:
        return [what[1] for what in self.module.log if what[0] == "unbook"]

    def undo(self, *words: str) -> Done:
        return self._antiphon("runs", "undo", *words)


@pytest.fixture
def trip(antiphon: Command, monkeypatch: pytest.MonkeyPatch) -> Trip:
    return Trip(antiphon, monkeypatch)


def test_a_dry_run_says_what_would_be_undone_and_undoes_nothing(trip: Trip, antiphon: Command) -> None:
    run = trip.leaves(KeyboardInterrupt(), mailed=["ada"])
    before = antiphon("show", run, "--json").json
    done = trip.undo(run, "--dry-run")
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        "saga journey  interrupted",
        "  needs a person   tools/mail 0@2",
        "    no undo is declared for it",
        "  would be undone  tools/book 0@1",
        "  would be undone  tools/book 0@0",
    ]
    told = trip.undo(run, "--dry-run", "--json").json
    assert told["dryRun"] is True
    assert [write["state"] for write in told["sagas"][0]["writes"]] == ["needs a person", *["would be undone"] * 2]
    assert trip.undone() == []
    assert antiphon("show", run, "--json").json == before


def test_a_dry_run_knows_what_waits_for_a_person(trip: Trip) -> None:
    trip.module.fails["book b"] = KeyboardInterrupt()
    run = trip.leaves(KeyboardInterrupt())
    planned, done = (trip.undo(run, *words, "--json").json["sagas"][0]["writes"] for words in (["--dry-run"], []))
    assert [write["state"] for write in planned] == [write["state"] for write in done] == ["needs a person"] * 2
    assert "antiphon claims resolve" in planned[0]["why"]
    assert planned[1]["why"] == done[1]["why"] == "it is undone only after tools/book 0@1"


def test_it_undoes_once_and_says_so(trip: Trip, antiphon: Command) -> None:
    run = trip.leaves(KeyboardInterrupt())
    assert f"antiphon runs undo {run}" in antiphon("show", run).out
    done = trip.undo(run[:12])
    assert done.code == 0, done.err
    assert "saga journey  undone\n  undone  tools/book 0@1\n  undone  tools/book 0@0\n" in done.out
    assert trip.undone() == ["b-b", "b-a"]
    again = trip.undo("latest")
    assert (again.code, again.out) == (0, f"Run {run} has no saga to undo.\n")
    assert trip.undone() == ["b-b", "b-a"]
    shown = antiphon("show", run)
    assert "saga journey  undone  2 undone" in shown.out
    assert [line.split("  ")[-1] for line in shown.out.splitlines() if "tools/" in line] == [
        "undone",
        "undone",
        "undoes 4",
        "undoes 2",
    ]
    assert "antiphon runs undo" not in shown.out


def test_json_is_one_document_whatever_the_tools_print(trip: Trip) -> None:
    run = trip.leaves(KeyboardInterrupt())
    done = trip.undo(run, "--json")
    assert done.json["run"] == run
    (saga,) = done.json["sagas"]
    assert (saga["name"], saga["state"]) == ("journey", "undone")
    assert [write["state"] for write in saga["writes"]] == ["undone", "undone"]
    assert "a line of the tool" in done.err


def test_what_needs_a_person_is_listed_and_the_exit_code_says_so(trip: Trip, antiphon: Command) -> None:
    run = trip.leaves(KeyboardInterrupt(), hotels=["a", "b", "c"], mailed=["ada"])
    trip.module.fails["unbook b-b"] = TimeoutError("no answer")
    done = trip.undo(run)
    assert done.code == 1
    assert trip.undone() == ["b-c", "b-b"]
    lines = done.out.splitlines()
    assert lines[lines.index("saga journey  stuck") :][:3] == [
        "saga journey  stuck",
        "  needs a person  tools/mail 0@3",
        "    no undo is declared for it",
    ]
    assert "  undone          tools/book 0@2" in lines
    assert "    it is undone only after tools/book 0@1" in lines
    shown = antiphon("show", run).out
    assert shown.count("needs a person: ") == 3
    (claim,) = antiphon("claims", "list", "--state", "unknown", "--json").json["claims"]
    assert claim["tool"] == "tools/book.undo"
    advice = re.search(r"An operator can settle it: antiphon claims resolve (\w+)", trip.undo(run).out)
    assert advice is not None, "all of it can be read"
    assert advice[0] in antiphon("show", run).out
    wrong = antiphon("claims", "resolve", claim["key"], "--did-not-happen", "--value", '"sent"')
    assert (wrong.code, "--value is the result of a call that happened" in wrong.err) == (2, True)
    assert antiphon("claims", "resolve", advice[1], "--happened", "--no-value").code == 0
    done = trip.undo(run, "--json")
    assert done.code == 1  # the mail
    states = [(write["call"], write["state"]) for write in done.json["sagas"][0]["writes"]]
    assert states == [("0@3", "needs a person"), ("0@1", "undone"), ("0@0", "undone"), ("0@2", "undone")]
    assert trip.undone() == ["b-c", "b-b", "b-a"]


def test_what_a_person_has_dealt_with_is_left_out_and_blocks_nothing(trip: Trip, antiphon: Command) -> None:
    run = trip.leaves(KeyboardInterrupt(), hotels=["a", "b"], mailed=["ada"])
    trip.module.fails["unbook b-b"] = ValueError("the hotel is closed for good")
    assert trip.undo(run).code == 1
    wrong = trip.undo(run, "--done", "0@7")
    assert (wrong.code, trip.undone()) == (2, ["b-b"])
    assert "Left to undo: 0@2 (tools/mail), 0@1 (tools/book), 0@0 (tools/book)." in wrong.err
    assert trip.undo(run, "--done", "0@2", "--dry-run").code == 0
    done = trip.undo(run, "--done", "0@2", "--reason", "wrote again")  # the other one still blocks
    assert (done.code, trip.undone()) == (1, ["b-b"])
    done = trip.undo(run, "--done", "0@1", "--reason", "called them", "--json")
    assert (done.code, trip.undone()) == (0, ["b-b", "b-a"])
    states = [(write["call"], write["state"]) for write in done.json["sagas"][0]["writes"]]
    assert states == [("0@0", "undone"), ("0@2", "done by hand"), ("0@1", "done by hand")]
    assert trip.undo(run).out == f"Run {run} has no saga to undo.\n"
    assert antiphon("show", run).out.count("done by hand") == 2


def test_the_reason_is_in_the_event_and_each_undo_in_the_audit_log(trip: Trip, antiphon: Command) -> None:
    run = trip.leaves(KeyboardInterrupt(), hotels=["a", "b"])
    trip.module.fails["unbook b-b"] = ValueError("no answer")
    assert trip.undo(run, "--dry-run", "--reason", "only looking").code == 0
    assert trip.undo(run, "--reason", "the customer asked").code == 1
    assert trip.undo(run).code == 1
    app = current()
    undoing = [event.payload for event in app.events(run) if event.type == "saga.undoing"]
    assert [(one["why"], one.get("reason")) for one in undoing] == [
        ("asked", "the customer asked"),
        ("asked", None),
    ]
    lines = [(one["act"], one["run"], one.get("reason"), one["by"]) for one in drive(Admin(app).audit())]
    assert lines == [("undo", run, None, "cli"), ("undo", run, "the customer asked", "cli")]


def test_without_the_tools_nothing_is_undone_and_nothing_is_written(trip: Trip, antiphon: Command) -> None:
    run = trip.leaves(KeyboardInterrupt())
    trip.is_forgotten()
    before = antiphon("show", run, "--json").json
    done = trip.undo(run)
    assert done.code == 5
    assert "--entry FILE" in done.err
    assert trip.undo(run, "--json").json["error"] == "entry_missing"
    assert trip.undo(run, "--entry", "nowhere.py").code == 5
    assert antiphon("show", run, "--json").json == before
    done = trip.undo(run, "--entry", "trip.py")
    assert done.code == 0, done.err
    assert done.out.count("a line of the tool") == 2


def test_mistakes_are_told(trip: Trip) -> None:
    run = trip.leaves(KeyboardInterrupt())
    none = trip.undo()
    assert (none.code, none.out) == (2, "")
    assert "Name the run to undo" in none.err
    assert trip.undo("0000").code == 4
    assert trip.undo(run, "--store", "nowhere.db").code == 4
    assert trip.undone() == []


def test_a_run_that_goes_on_is_left_alone(trip: Trip) -> None:
    module = trip.module
    with package.run("trip") as run, run.saga("journey"):
        module.book("a")
        done = trip.undo(run.id)
        assert (done.code, trip.undone()) == (2, [])
        assert "is still running, with the saga 'journey'. Nothing was undone." in done.err
        assert "--force" in done.err
        forced = trip.undo(run.id, "--force")
        assert (forced.code, trip.undone()) == (0, ["b-a"])


@pytest.mark.parametrize(("answer", "code", "undone"), [("n\n", 2, []), ("", 2, []), ("y\n", 0, ["b-b", "b-a"])])
def test_at_a_terminal_it_shows_the_plan_and_asks(
    trip: Trip, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, undone: list[str]
) -> None:
    run = trip.leaves(KeyboardInterrupt())
    person = io.StringIO(answer)
    monkeypatch.setattr(person, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stdin", person)
    done = trip.undo(run)
    assert (done.code, trip.undone()) == (code, undone)
    assert "would be undone  tools/book 0@1" in done.err
    assert "Undo 2 calls of run" in done.err
    if code:
        assert "Nothing was changed." in done.err


def test_yes_does_not_ask(trip: Trip, monkeypatch: pytest.MonkeyPatch) -> None:
    run = trip.leaves(KeyboardInterrupt())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys.stdin, "readline", lambda: pytest.fail("it asks"), raising=False)
    assert trip.undo(run, "--yes").code == 0
    assert trip.undone() == ["b-b", "b-a"]


GATE = """
import antiphon

gateway = antiphon.Gateway()


@gateway.tool(idempotent=True)
def log_in(password: str) -> str:
    return "welcome"


@gateway.tool(idempotent=False)
def post(note: str) -> str:
    return f"posted: {note}"


@post.undo
def delete(result: str, *, note: str) -> str:
    return f"deleted {result}"


def gate():
    with antiphon.run("gate") as run:
        log_in("swordfish")
        with run.saga("notes"):
            post("it opens with swordfish")
            raise KeyboardInterrupt
"""


def test_an_undo_repeats_no_value_that_the_run_had_masked(antiphon: Command, tmp_path: Path) -> None:
    Path("gate.py").write_text(GATE)
    with pytest.raises(KeyboardInterrupt):
        load_module("gate.py").gate()
    (run,) = antiphon("runs", "--json").json["runs"]
    done = antiphon("runs", "undo", run["id"])
    assert done.code == 0, done.err
    calls = [event for event in current().events(run["id"]) if event.type == "call.finished"]
    assert str(calls[-1].payload["value"]).startswith("deleted posted: it opens with ")
    kept = [file for file in tmp_path.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")]
    assert len(kept) > 2
    assert not [file for file in kept if b"swordfish" in file.read_bytes()]
