"""Large runs: one event is read alone, export and import stream, large payloads are spilled and stored once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import orjson
import pytest

from antiphon import Antiphon, Gateway
from antiphon._scope import Site
from antiphon.cli import main
from antiphon.ops.runs import delete_old_runs, find_run, one_event
from tests.integration.recording.kit import QUIET, application, stored

T = TypeVar("T")

TEXT = "lorem ipsum dolor sit amet " * 370
"""Ten kilobytes."""


def record(app: Antiphon, name: str, megabytes: int) -> str:
    """A run of that size: as many calls with large arguments as it takes."""
    run = app.run(name)
    with run:
        encode = run._recorder.encode
        rows = []
        for n in range(megabytes * 100):
            site = Site("0", n, 0, f"0@{n}", None)
            asked = {
                "kind": "tool",
                "name": "work",
                "arguments": {"n": n, "text": TEXT[:-8]},
                "digest": f"{n}",
                "nth": 0,
            }
            rows.append(encode("call.started", site, asked, {}))
            rows.append(encode("call.finished", site, {"outcome": "ok", "value": n}, {"durationMs": 1}))
            if len(rows) >= 500:
                app.journal.append(run.id, rows)
                rows = []
        app.journal.append(run.id, rows)
    return run.id


class Cost(NamedTuple):
    seconds: float
    """Of the processor: what a clock says depends on who else is busy here (``make bench`` measures that)."""
    megabytes: float
    output: str


MEASURE = """
import json, os, subprocess, sys
process = subprocess.Popen([sys.executable, "-m", "antiphon.cli", *sys.argv[1:]])
_, status, usage = os.wait4(process.pid, 0)
seconds = usage.ru_utime + usage.ru_stime
print(json.dumps([os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss / 1024]), file=sys.stderr)
"""
"""A small process between: a child's peak of memory is at least its parent's."""


def command(*words: str) -> Cost:
    """Run the command line in a process of its own; its time and its memory at most."""
    done = subprocess.run([sys.executable, "-c", MEASURE, *words], capture_output=True, text=True, check=True)
    code, seconds, megabytes = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done
    return Cost(seconds, megabytes, done.stdout)


class Large(NamedTuple):
    folder: Path
    run: str
    small: str


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Large]:
    folder = tmp_path_factory.mktemp("large")
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        monkeypatch.setenv("ANTIPHON_HOME", str(folder / "state"))
        app = application()
        yield Large(folder, record(app, "large", 50), record(app, "small", 5))


def test_the_run_is_as_large_as_it_says(large: Large) -> None:
    assert (large.folder / "state" / "antiphon.db").stat().st_size > 50_000_000


def test_one_event_of_a_large_run_is_read_alone(large: Large) -> None:
    costs = [command("show", large.run, "--event", "9001", "--json") for _ in range(5)]
    event = orjson.loads(costs[0].output)
    assert (event["seq"], event["payload"]["arguments"]["n"]) == (9001, 4500)
    assert min(cost.seconds for cost in costs) < 1.5, "the bench has the real number; this only catches a scan"
    assert max(cost.megabytes for cost in costs) < 100


def test_export_and_import_stream(large: Large) -> None:
    little = command("export", large.small, "-o", "small.antiphon")
    much = command("export", large.run, "-o", "large.antiphon")
    assert Path("large.antiphon").stat().st_size > 100_000_000, "each call stands in tool_calls and in events"
    assert much.megabytes < little.megabytes + 20
    there = os.environ["ANTIPHON_HOME"]
    os.environ["ANTIPHON_HOME"] = str(large.folder / "other")
    try:
        little = command("import", "small.antiphon")
        much = command("import", "large.antiphon", "--json")
        assert much.megabytes < little.megabytes + 20
        other = application()
        assert len(stored(other, orjson.loads(much.output)["imported"][0]["run"])) == 10_002
    finally:
        os.environ["ANTIPHON_HOME"] = there


def test_the_timeline_of_a_large_run_does_not_hold_its_payloads(large: Large) -> None:
    cost = command("show", large.run)
    assert "5000 tool calls" in cost.output
    assert cost.megabytes < 150


def blobs(home: Path) -> list[Path]:
    return [path for path in (home / "blobs").glob("t=*/*/*") if path.is_file()]


def test_large_payloads_are_spilled_and_equal_ones_stored_once(home: Path) -> None:
    app = application()

    @app.gateway.tool(idempotent=False)
    def work(n: int, text: str) -> str:
        return text

    text = "lorem ipsum dolor " * 10_000
    with app.run("large") as run:
        for n in range(5):
            assert work(n, text) == text
        work(6, "small")
    found = blobs(home)
    assert len(found) == 6, "five different arguments, one result"
    assert (home / "antiphon.db").stat().st_size < 5 * len(text)
    events = stored(app, run.id)
    spilled = [event.seq for event in events if "blobs" in event.meta]
    assert spilled == list(range(1, 11))
    assert one_event(app, run.id, 1).payload["arguments"] == {"n": 0, "text": text}
    assert one_event(app, run.id, 2).payload["value"] == text


def test_blobs_that_nobody_refers_to_any_more_are_collected(home: Path) -> None:
    app = application()

    @app.gateway.tool(idempotent=False)
    def work(n: int, text: str) -> int:
        return n

    for name in ("old", "new"):
        with app.run(name):
            work(1, f"of {name} alone " * 10_000)
            work(2, "of both " * 10_000)
    assert len(blobs(home)) == 3
    old = find_run(app, None)
    assert old.name == "new"
    result = delete_old_runs(app, keep=1, force=True)
    assert [run["name"] for run in result["runs"]] == ["old"]
    assert (result["blobs"], len(blobs(home))) == (1, 2)
    assert one_event(app, old.id, 3).payload["arguments"]["text"].startswith("of both")


@pytest.mark.parametrize("when", ["looking for payloads, runs", "setting aside, payloads"])
def test_gc_keeps_a_payload_that_a_run_relies_on_meanwhile(home: Path, when: str) -> None:
    """The run finds the payload of a deleted one, begins after gc has listed the runs, and ends before it deletes."""
    app, text = application(), "the same handbook " * 10_000
    later: list[str] = []

    def record() -> str:
        with app.run("agent") as run:
            run.prompt("handbook", text)
        return run.id

    def between(items: Iterable[T], total: int | None, label: str, /) -> Iterator[T]:
        if label == when and not later:
            later.append(record())
        yield from items

    record()
    (payload,) = blobs(home)
    result = delete_old_runs(app, keep=0, force=True, progress=between)
    assert (len(later), len(result["runs"]), result["blobs"]) == (1, 1, 0)
    assert one_event(app, later[0], 1).payload["text"] == text
    assert blobs(home) == [payload]
    assert delete_old_runs(app, keep=0, force=True)["blobs"] == 1
    assert blobs(home) == []


def test_gc_puts_payloads_back_while_a_run_is_open(home: Path) -> None:
    app, text = application(), "the same handbook " * 10_000
    with app.run("old") as old:
        old.prompt("handbook", text)
    run = app.run("new")

    def between(items: Iterable[T], total: int | None, label: str, /) -> Iterator[T]:
        if label == "setting aside, payloads":
            run.__enter__()
            run.prompt("handbook", text)
        yield from items

    there = blobs(home)
    assert delete_old_runs(app, keep=0, force=True, progress=between)["blobs"] == 0
    assert blobs(home) == there
    run.__exit__(None, None, None)
    assert one_event(app, run.id, 1).payload["text"] == text


@pytest.mark.parametrize("needed", [True, False], ids=["needed", "not needed"])
def test_gc_that_was_killed_loses_nothing(home: Path, needed: bool) -> None:
    """What it had set aside can be read, and the next one puts it back or deletes it."""
    app, text = application(), "the same handbook " * 10_000
    runs: list[str] = []

    def record() -> None:
        with app.run("agent") as run:
            run.prompt("handbook", text)
        runs.append(run.id)

    def killed(items: Iterable[T], total: int | None, label: str, /) -> Iterator[T]:
        if label == "setting aside, payloads" and needed:
            record()
        yield from items
        if label == "setting aside, payloads":
            raise KeyboardInterrupt

    record()
    with pytest.raises(KeyboardInterrupt):
        delete_old_runs(app, keep=0, force=True, progress=killed)
    if needed:
        assert one_event(app, runs[1], 1).payload["text"] == text
    assert delete_old_runs(app)["blobs"] == (not needed)
    assert len(blobs(home)) == needed
    if needed:
        assert one_event(app, runs[1], 1).payload["text"] == text


def test_gc_keeps_results_of_calls_that_equal_ones_have_followed(home: Path) -> None:
    app, made = application(), list[int]()

    @app.gateway.tool(idempotent=False)
    def report(q: str) -> str:
        made.append(len(made))
        return f"{q} {len(made)} " * 100_000

    turn = app.gateway.session("s").turn()
    first, second = (turn.call("report", {"q": "a"}, call_id=name).content for name in ("c-1", "c-2"))
    assert delete_old_runs(app)["blobs"] == 0
    again = [turn.call("report", {"q": "a"}, call_id=name).content for name in ("c-1", "c-2")]
    assert again == [first, second]
    assert made == [0, 1]


def shop(made: list[str]) -> Gateway:
    """Keeps its claims in a store of its own, and large results in the state folder of the project."""
    gateway = Gateway(store="sqlite:///shop.db", config=QUIET)

    @gateway.tool(idempotent=False)
    def report(q: str) -> str:
        made.append(q)
        return f"{q} " * 300_000

    return gateway


def test_gc_deletes_no_payload_of_another_store(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made: list[str] = []
    gateway = shop(made)
    before = gateway.session("s").turn().call("report", {"q": "a"}, call_id="a").content
    gateway.close()
    app = application()

    @app.gateway.tool(idempotent=False)
    def work(text: str) -> int:
        return len(text)

    with app.run("equal"):
        work("of this store alone " * 10_000)
        work("a " * 300_000)
    there = blobs(home)
    result = delete_old_runs(app, keep=0, force=True)
    assert (len(result["runs"]), result["blobs"], result["blobsSharedWith"]) == (1, 0, ["sqlite:../shop.db"])
    assert blobs(home) == there
    assert main(["gc", "--store", "other.db"]) == 4, "a store that is not there"
    Path("other.db").touch()
    assert main(["gc", "--store", "other.db"]) == 0
    told = capsys.readouterr().out
    assert "other stores keep theirs there: sqlite:" in told
    assert "antiphon.db" in told
    assert "../shop.db" in told
    assert "delete the files that name it" in told
    assert blobs(home) == there
    gateway = shop(made)
    assert gateway.session("s").turn().call("report", {"q": "a"}, call_id="a").content == before
    gateway.close()
    assert made == ["a"]
    for note in [file for file in (home / "blobs/stores").iterdir() if "shop" in file.read_text()]:
        note.unlink()
    assert delete_old_runs(app, keep=0, force=True)["blobs"] == 2, "the other store is gone now, as the operator says"


def test_gc_keeps_payloads_from_before_stores_left_notes(home: Path) -> None:
    """They may be of any store that an earlier release used."""
    app = application()
    assert app.blobs is not None
    app.blobs.put("default", b"old")
    (old,) = blobs(home)
    note = min((home / "blobs/stores").iterdir())
    os.utime(old, ns=(0, note.stat().st_mtime_ns - 10**9))
    application().blobs.put("default", b"new")  # type: ignore[union-attr]
    assert delete_old_runs(app)["blobs"] == 1
    assert blobs(home) == [old]
