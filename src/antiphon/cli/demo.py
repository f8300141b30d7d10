"""``antiphon demo``."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.cli import _ui as ui
from antiphon.cli._base import command, flag

if TYPE_CHECKING:
    from antiphon.ops.gateways import Gateway

_AGENT = "antiphon._demo:main"
_QUESTION = '"My order 1042 never arrived"'


class _Stage:
    """Runs commands in the demo's folder, showing what a person would type."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "ANTIPHON_HOME": str(folder / "state"),
            "DEMO_FOLDER": str(folder),
            "ANTIPHON_TELEMETRY_LOGS": "false",
        }
        self.failures: list[str] = []

    def title(self, text: str) -> None:
        print(ui.bold(text))

    def type(self, *words: str, expect: int | None = 0, show: bool = True, **extra: str) -> str:
        """Run ``antiphon WORDS``; an unexpected exit code is remembered."""
        shown = " ".join([*(f"{name}={value}" for name, value in extra.items()), "antiphon", shlex.join(words)])
        print(ui.dim(f"$ {shown}"))
        done = subprocess.run(
            [sys.executable, "-m", "antiphon.cli", *words],
            cwd=self.folder,
            env={**self.environment, **extra},
            capture_output=True,
            text=True,
            check=False,
        )
        if show:
            print("".join(f"  {line}\n" for line in done.stdout.splitlines()[:40]), end="")
        if expect is not None and done.returncode != expect:
            self.failures.append(f"{shown} ended with {done.returncode}: {done.stderr.strip()[-400:]}")
        return done.stdout

    def lines(self, name: str) -> int:
        """How many effects a file counts."""
        path = self.folder / name
        return len(path.read_text().splitlines()) if path.exists() else 0

    @property
    def sent(self) -> int:
        """How many e-mails really left."""
        return self.lines("outbox.txt")

    @property
    def refunds(self) -> int:
        return self.lines("refunds.txt")

    def check(self, what: str, holds: bool) -> None:
        """Say whether the world is as promised."""
        print(f"  {ui.green('✓') if holds else ui.red('✗')} {what}\n")
        if not holds:
            self.failures.append(what)


@command(flag("--keep", "keep the demo's folder"))
def demo(arguments: argparse.Namespace) -> int:
    """One minute, offline, no key: a write that happens once even though its process is killed, and its replay.

    example:
      antiphon demo --keep   # keeps the folder, to inspect it with antiphon show
    """
    folder = Path(tempfile.mkdtemp(prefix="antiphon-demo-"))
    stage = _Stage(folder)
    try:
        _play(stage)
    finally:
        if arguments.keep:
            print(f"kept: cd {folder} && ANTIPHON_HOME=state antiphon show")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    for failure in stage.failures:
        print(ui.red(f"unexpected: {failure}"), file=sys.stderr)
    return 1 if stage.failures else 0


def _play(stage: _Stage) -> None:
    import orjson

    stage.title(
        "1. An agent refunds an order and writes an e-mail; the process is killed right after the e-mail was sent."
    )
    stage.type("run", _AGENT, "--input", _QUESTION, expect=-9, DEMO_CRASH="1")
    stage.type("show")
    stage.check("one e-mail was sent, and the run shows where it stopped", stage.sent == 1)

    stage.title("2. The run is resumed. Finished calls are answered from records; the e-mail's outcome is unknown.")
    listed = stage.type("runs", "--json", show=False)
    run_id = str(orjson.loads(listed)["runs"][0]["id"])
    stage.type("run", _AGENT, "--input", _QUESTION, "--resume", run_id)
    stage.type("show", run_id)
    stage.check("still one e-mail and one refund: nothing was sent twice", stage.sent == 1 and stage.refunds == 1)
    print("  An operator checks the outbox and settles it:")
    stage.type("claims", "list", "--state", "unknown")
    unknown = orjson.loads(stage.type("claims", "list", "--state", "unknown", "--json", show=False))["claims"]
    stage.type("claims", "resolve", unknown[0]["fingerprint"], "--happened", "--value", '"sent"')
    print()

    stage.title("3. The same call delivered twice, and a dependency that is down.")
    for line in (*_redelivery(), *_breaker()):
        print(f"  {line}")
    print()

    stage.title("4. A fresh run, replayed strictly: the current code on recorded answers, no network, no side effect.")
    stage.type("run", _AGENT, "--input", _QUESTION)
    before = stage.sent
    stage.type("replay", "--latest", "--strict")
    stage.check("the replay passed and sent nothing", stage.sent == before)

    stage.title("5. One argument is changed. The replay names it.")
    stage.type("replay", "--latest", "--strict", expect=1, DEMO_TYPO="1")
    stage.check("no refund was made by the replay", stage.refunds == 2)


# -- the part that needs no run --------------------------------------------------------------------------------------


def _gateway() -> Gateway:
    from antiphon.ops.gateways import Gateway
    from antiphon.stores import MemoryStore

    return Gateway(store=MemoryStore(), config={"telemetry": {"logs": False}})


def _envelope(request_id: str, tool: str, params: dict[str, Any]) -> dict[str, Any]:
    return {
        "contractVersion": "1.1",
        "requestId": request_id,
        "toolName": tool,
        "toolNamespace": "demo",
        "target": {"sessionKey": "s1", "actorId": "ada"},
        "payload": {"version": "1.0", "params": params},
        "transport": {"dedupeMode": "enforced", "retryBudget": {"maxAttempts": 1, "maxElapsedMs": 1000}},
        "control": {},
        "trace": {},
    }


def _redelivery() -> Iterator[str]:
    """One envelope, delivered three times."""
    gateway = _gateway()
    effects: list[str] = []

    @gateway.tool(namespace="demo", idempotent=False)
    def book(room: str) -> str:
        effects.append(room)
        return f"booked {room}"

    answers = [gateway.execute(_envelope("r-1", "book", {"room": "7"})) for _ in range(3)]
    cached = sum(answer.from_cache for answer in answers)
    yield f"book(room=7) delivered 3 times: {len(effects)} booking, {cached} answers from the record"


def _breaker() -> Iterator[str]:
    """A dependency that is down: five failures, then nobody waits for it any more."""
    gateway = _gateway()
    touched = []

    @gateway.tool(namespace="demo", idempotent=True)
    def quote(symbol: str) -> float:
        touched.append(symbol)
        raise ConnectionRefusedError("the quote service is down")

    results = [gateway.execute(_envelope(f"q-{n}", "quote", {"symbol": f"S{n}"})) for n in range(8)]
    result = results[-1]
    yield f"quote() called 8 times: the service was tried {len(touched)} times, then: {result.status}"
    assert result.error is not None
    yield f"  {result.error.message}"
