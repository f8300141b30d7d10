"""The console in Chromium: how soon pages are there, how much work a frame of scrolling is, how large it is.

Wall time from the start of the navigation (or the click) to the first frame with rows in it, host included.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from bench import Context, Row

RUNS, EVENTS, UNKNOWN = 100_000, 10_000, 1_000
PAINTED = """
window.painted = which => new Promise(done => {
  const look = () => document.querySelector(which)
    ? requestAnimationFrame(() => done(performance.now())) : setTimeout(look, 1);
  look();
});
"""
"""The time when something is there and the frame with it is drawn."""


def run(ctx: Context) -> list[Row]:
    from playwright.sync_api import sync_playwright

    from antiphon.ops.lines import run_file
    from tests import browser
    from tests.integration.console import kit

    times = 2 if ctx.quick else 7
    setup = f"SQLite, {RUNS:,} runs, one with {EVENTS:,} events, {UNKNOWN:,} unknown outcomes"
    with tempfile.TemporaryDirectory() as made, _environment(kit.KEY, Path(made)), sync_playwright() as playwright:
        folder = Path(made)
        app = kit.application(folder)
        kit.long_run(app, "long-run", EVENTS)
        for number in range(UNKNOWN):
            kit.unknown(app, number)
        inbox_ms = _inbox(playwright, app, folder, times)
        _many_runs(folder / "console.db", app, kit)
        manifest = app.journal.manifest("long-run")
        assert manifest is not None
        (folder / "run.html").write_text(run_file(app, manifest), encoding="utf-8")
        chromium = playwright.chromium.launch(executable_path=browser.ensure(folder), args=[*browser.FLAGS])
        with kit.served(app) as address:
            page = chromium.new_page(viewport={"width": 1280, "height": 800})
            page.add_init_script(PAINTED)
            page.goto(f"{address}/console#key={kit.KEY}")
            page.wait_for_selector("tbody tr")
            run_ms = [_opened(page, f"{address}/console#/runs/long-run", ".line") for _ in range(times)]
            work, longest, frames = _scrolled(chromium, page, folder / "trace.json", 60 if ctx.quick else 240)
            beside_ms = [_opened(page, f"{address}/console#/inbox", ".rows li") for _ in range(times)]
            runs_ms = [_opened(page, f"{address}/console#/runs", "tbody tr") for _ in range(times)]
            older_ms = [_older(page) for _ in range(times)]
            middle_ms = [_middle(page, kit.KEY) for _ in range(times)]
            page.close()
        page = chromium.new_page(viewport={"width": 1280, "height": 800})
        page.add_init_script(PAINTED)
        file_ms = [_opened(page, (folder / "run.html").as_uri(), ".line") for _ in range(times)]
        size = (folder / "run.html").stat().st_size
        chromium.close()
    rows = [
        ("run, first paint of its events", run_ms, 1_000.0),
        ("inbox, first paint", inbox_ms, 300.0),
        ("runs, first paint", runs_ms, 300.0),
        ("runs, the next page", older_ms, 300.0),
        ("runs, a page from the middle of the store", middle_ms, 300.0),
        ("run as one file, first paint", file_ms, 2_000.0),
    ]
    found = [
        Row(name=name, value=statistics.median(values), unit="ms", at_most=most, setup=setup, note="wall time")
        for name, values, most in rows
    ]
    note = f"CPU time of the main thread, from the trace of {frames} frames, each 120 px further"
    found += [
        Row(name="scrolling, work per frame, p95", value=work, unit="ms", at_most=8.0, setup=setup, note=note),
        Row(name="scrolling, the longest task", value=longest, unit="ms", at_most=50.0, setup=setup, note=note),
        Row(name="assets in the wheel", value=_assets() / 1_000, unit="KB", at_most=200.0),
        Row(name=f"inbox beside {RUNS:,} runs", value=statistics.median(beside_ms), unit="ms", setup=setup),
        Row(name="size of the file of a run", value=size / 1_000_000, unit="MB", setup=setup),
    ]
    return found


@contextmanager
def _environment(key: str, folder: Path) -> Iterator[None]:
    import os

    set_to = {"ANTIPHON_API_KEY": key, "ANTIPHON_HOME": str(folder / "state")}
    before = {name: os.environ.get(name) for name in set_to}
    os.environ.update(set_to)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _inbox(playwright: Any, app: Any, folder: Path, times: int) -> list[float]:
    """The inbox of a store with few runs."""
    from tests import browser
    from tests.integration.console import kit

    chromium = playwright.chromium.launch(executable_path=browser.ensure(folder), args=[*browser.FLAGS])
    with kit.served(app) as address:
        page = chromium.new_page(viewport={"width": 1280, "height": 800})
        page.add_init_script(PAINTED)
        page.goto(f"{address}/console#key={kit.KEY}")
        page.wait_for_selector("tbody tr")
        found = [_opened(page, f"{address}/console#/inbox", ".rows li") for _ in range(times)]
    chromium.close()
    return found


def _many_runs(path: Path, app: Any, kit: Any) -> None:
    """Rows of finished runs, older than all others, written in bulk: copies of one that the store wrote."""
    kit.open_run(app, "run-000000", "agent", "completed", kit.BEGAN - 1_000_000_000)
    with sqlite3.connect(path) as database:
        names = [row[1] for row in database.execute("PRAGMA table_info(runs)") if row[1] != "number"]
        columns = ", ".join(names)
        written = database.execute(f"SELECT {columns} FROM runs WHERE id = 'run-000000'").fetchone()
        row = dict(zip(names, written, strict=True))
        began = row["started_at_ms"]

        def copies() -> Iterator[list[Any]]:
            for number in range(1, RUNS):
                at_ms = began + number * 1_000
                changed = {"id": f"run-{number:06}", "started_at_ms": at_ms}
                text = row["manifest"].replace(b"run-000000", changed["id"].encode())
                changed["manifest"] = text.replace(str(began).encode(), str(at_ms).encode())
                yield [changed.get(name, row[name]) for name in names]

        marks = ", ".join("?" * len(names))
        database.executemany(f"INSERT INTO runs ({columns}) VALUES ({marks})", copies())
    database.close()


def _opened(page: Any, address: str, which: str) -> float:
    page.goto("about:blank")
    page.goto(address)
    return float(page.evaluate("which => painted(which)", which))


def _older(page: Any) -> float:
    """From the click to the frame in which the rows are others."""
    return float(
        page.evaluate(
            """() => new Promise(done => {
              const first = document.querySelector("tbody code").textContent, began = performance.now();
              [...document.querySelectorAll("button")].find(one => one.textContent === "Older").click();
              const look = () => document.querySelector("tbody code").textContent !== first
                ? requestAnimationFrame(() => done(performance.now() - began)) : setTimeout(look, 1);
              look();
            })"""
        )
    )


def _middle(page: Any, key: str) -> float:
    """The answer for a page that begins in the middle."""
    return float(
        page.evaluate(
            """async ([key, run]) => {
              const began = performance.now();
              const headers = {Authorization: `Bearer ${key}`};
              const answer = await fetch(`/v1/recordings?limit=50&before=${run}`, {headers});
              if ((await answer.json()).runs.length !== 50) throw new Error("not a page");
              return performance.now() - began;
            }""",
            [key, f"run-{RUNS // 2:06}"],
        )
    )


def _scrolled(chromium: Any, page: Any, trace: Path, steps: int) -> tuple[float, float, int]:
    """p95 of the main thread's work per frame while the list is scrolled, its longest task, and how many frames."""
    from playwright.sync_api import expect

    expect(page.locator("#count")).to_have_text(str(EVENTS), timeout=60_000)
    categories = ["toplevel", "devtools.timeline"]
    chromium.start_tracing(page=page, path=str(trace), categories=categories)
    page.evaluate(
        """steps => new Promise(done => {
          const box = document.querySelector(".long");
          const move = at => { box.scrollTop = at * 120; turn(at + 1); };
          const turn = at => at < steps ? requestAnimationFrame(() => move(at)) : done();
          turn(0);
        })""",
        steps,
    )
    chromium.stop_tracing()
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    main = {
        (one["pid"], one["tid"])
        for one in events
        if one["name"] == "thread_name" and one["args"]["name"] == "CrRendererMain"
    }
    tasks = [
        one for one in events if one["name"] == "ThreadControllerImpl::RunTask" and (one["pid"], one["tid"]) in main
    ]
    process = max(main, key=lambda thread: sum((one["pid"], one["tid"]) == thread for one in tasks))
    of_page = [one for one in tasks if (one["pid"], one["tid"]) == process]
    frames = sorted(
        one["ts"] for one in events if one["name"] == "FireAnimationFrame" and (one["pid"], one["tid"]) == process
    )
    begins = [
        ts for before, ts in zip([0, *frames[:-1]], frames, strict=True) if ts - before > 4_000
    ]  # one begin for each frame
    spent = [0.0] * len(begins)
    longest = 0.0
    place = 0
    for one in sorted(of_page, key=lambda task: task["ts"]):
        taken = one.get("tdur", one.get("dur", 0)) / 1_000
        longest = max(longest, taken)
        while place + 1 < len(begins) and begins[place + 1] <= one["ts"] + one.get("dur", 0):
            place += 1
        if begins and one["ts"] + one.get("dur", 0) >= begins[0]:
            spent[place] += taken
    return statistics.quantiles(spent, n=20)[-1], longest, len(spent)


def _assets() -> int:
    """Bytes of the package of the console, as a wheel has it: without the sources of the script."""
    root = Path(str(files("antiphon.console")))
    left_out = ("source", "__pycache__")
    return sum(
        path.stat().st_size
        for path in root.rglob("*")
        if path.is_file() and not any(part in left_out for part in path.parts)
    )
