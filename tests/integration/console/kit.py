"""A host with the console in a thread of this process, and stores with something to look at."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import uvicorn
from playwright.sync_api import Page

from antiphon._drive import drive
from antiphon.contract.events import RunManifest
from antiphon.host.http.app import create
from antiphon.ops.admin import Admin
from antiphon.ops.app import Antiphon
from antiphon.ports import ClaimTemplate, Row, Settlement, StaticClaimRequest

KEY = "test-key-with-all-rights"
BEGAN = 1_790_000_000_000
EXACT = 2**53 + 1
"""An integer that a number of JavaScript cannot hold."""
EVIL = "<img src=x onerror=alert(1)>\u202egnp.\u0007<script>alert(2)</script>"


def application(folder: Path) -> Antiphon:
    return Antiphon(
        {
            "store": {"url": f"sqlite:///{folder}/console.db?synchronous=NORMAL"},
            "prices": {"m-1": {"input": 2.0, "output": 4.0}},
        }
    )


@contextlib.contextmanager
def served(app: Antiphon, *, executes: bool = False) -> Iterator[str]:
    """The address of a host of *app*."""
    config = uvicorn.Config(
        create(app=app, executes=executes), host="127.0.0.1", port=0, log_level="error", lifespan="on", ws="none"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the host did not start"
        time.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)


def row(run: str, kind: str, at_ms: int, payload: dict[str, Any], call: str | None = None, **meta: Any) -> Row:
    body = {"lane": "0", "index": 0, "call": call, "payload": payload, "meta": meta, "v": 2}
    return Row(run, kind, at_ms, orjson.dumps(body))


def open_run(app: Antiphon, run: str, name: str, status: Any = "running", at_ms: int = BEGAN, events: int = 0) -> str:
    ended = at_ms + 1_000 if status != "running" else None
    app.journal.open_run(
        RunManifest(
            id=run,
            name=name,
            status=status,
            started_at_ms=at_ms,
            finished_at_ms=ended,
            tenant=app.tenant,
            workspace=app.workspace,
            events=events,
        )
    )
    return run


def call(run: str, number: int, kind: str, name: str, at_ms: int, payload: Any = None, **meta: Any) -> list[Row]:
    """The two events of a call."""
    asked = {"request": {"model": name, "messages": payload}} if kind == "llm" else {"arguments": payload}
    started = {"kind": kind, "name": name, "digest": f"d{number}", "nth": 0, **asked}
    outcome = meta.pop("outcome", "ok")
    return [
        row(run, "call.started", at_ms, started, f"c{number}"),
        row(run, "call.finished", at_ms + 5, {"outcome": outcome, "value": {"said": number}}, f"c{number}", **meta),
    ]


def long_run(app: Antiphon, run: str, events: int) -> str:
    """A finished run of so many events: model calls, tool calls, retries, reused results."""
    rows = [row(run, "run.started", BEGAN, {"name": "long"})]
    number = 0
    while len(rows) < events - 1:
        number += 1
        at_ms = BEGAN + number * 20
        model = number % 3 == 0
        again = {"fromCache": True} if number % 7 == 0 and not model else {}
        rows += call(
            run, number, "llm" if model else "tool", "m-1" if model else "search", at_ms, {"n": number}, **again
        )
        if number % 5 == 0:
            rows.append(row(run, "decision", at_ms + 2, {"what": "retry", "detail": {"attempt": 1}}, f"c{number}"))
    rows = [*rows[: events - 1], row(run, "run.finished", BEGAN + number * 20 + 20, {"status": "completed"})]
    open_run(app, run, "long", "completed", events=len(rows))
    for start in range(0, len(rows), 1_000):
        app.journal.append(run, rows[start : start + 1_000])
    return run


def hostile_run(app: Antiphon, run: str) -> str:
    """Names and payloads that try to be something else than text."""
    open_run(app, run, EVIL, "completed", BEGAN + 5_000, events=4)
    given = {"exact": EXACT, EVIL: EVIL, "large": "x" * 1_000_000, "rtl": "\u202eabc"}
    rows = call(run, 1, "tool", EVIL, BEGAN + 5_000, given)
    app.journal.append(run, [row(run, "run.started", BEGAN + 5_000, {"name": EVIL}), *rows])
    return run


def unknown(app: Antiphon, number: int, tool: str = "tools/pay") -> str:
    """A claim of a write whose outcome nobody knows; its key."""
    key = f"{number:064x}"
    template = ClaimTemplate(tool=tool, session="s", actor="a", ttl_ms=86_400_000, lease_ms=60_000, owner="o")
    request = StaticClaimRequest(key, f"i{number}", template, f"k{number}", ("d", "d"), "r", token="t")
    claimed: Any = app.journal.begin(request)
    lost = Settlement(
        "failed", 86_400_000, error=("outcome_unknown", "the answer was lost", True, False), attempt_count=1
    )
    app.journal.settle(key, claimed.version, lost)
    return key


def open_breaker(app: Antiphon, name: str = "dependency/payments") -> None:
    drive(Admin(app).force_open(name, "the provider is down"))


def squeezed(page: Page) -> list[str]:
    """Marks (pass, fail, side effect …) that are not wider than high; there has to be one."""
    found: list[tuple[str, bool]] = page.locator(".mark").evaluate_all(
        "marks => marks.map(mark => [mark.textContent, mark.offsetWidth > mark.offsetHeight])"
    )
    assert found
    return [text for text, fits in found if not fits]
