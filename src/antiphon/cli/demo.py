"""``antiphon demo``."""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from antiphon.cli._base import bold, dim, green, red

DESCRIPTION = "One minute, offline, no key: a write that happens once although its process is killed, and its replay."
EXAMPLE = "example:\n  antiphon demo --keep   # leaves the folder, to look around with antiphon show"

_AGENT = "antiphon._demo.support_agent:main"
_QUESTION = '"My order 1042 never arrived"'


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("--keep", action="store_true", help="keep the demo's folder")


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

    def type(self, *words: str, expect: int | None = 0, show: bool = True, **extra: str) -> str:
        """Run ``antiphon WORDS``; an unexpected exit code is remembered."""
        shown = " ".join([*(f"{name}={value}" for name, value in extra.items()), "antiphon", shlex.join(words)])
        print(dim(f"$ {shown}"))
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

    def sent(self) -> int:
        """How many e-mails really left."""
        outbox = self.folder / "outbox.txt"
        return len(outbox.read_text().splitlines()) if outbox.exists() else 0

    def check(self, what: str, holds: bool) -> None:
        """Say whether the world is as promised."""
        print(f"  {green('✓') if holds else red('✗')} {what}\n")
        if not holds:
            self.failures.append(what)


def run(arguments: argparse.Namespace) -> int:
    """Play the demo; 1 if anything is not as promised."""
    folder = Path(tempfile.mkdtemp(prefix="antiphon-demo-"))
    stage = _Stage(folder)
    try:
        _play(stage)
    finally:
        if arguments.keep:
            print(f"kept: cd {folder} && ANTIPHON_HOME=state antiphon show")
        else:
            import shutil

            shutil.rmtree(folder, ignore_errors=True)
    for failure in stage.failures:
        print(red(f"not as promised: {failure}"), file=sys.stderr)
    return 1 if stage.failures else 0


def _play(stage: _Stage) -> None:
    from antiphon.cli.demo_guard import breaker, redelivery

    print(bold("1. An agent refunds an order and writes an e-mail; the process is killed right after the e-mail left."))
    stage.type("run", _AGENT, "--input", _QUESTION, expect=-9, DEMO_CRASH="1")
    stage.type("show")
    stage.check("one e-mail left, and the run says where it stopped", stage.sent() == 1)

    print(bold("2. The run goes on. Finished calls are answered from their records; the e-mail's outcome is unknown."))
    listed = stage.type("runs", "--json", show=False)
    import orjson

    run_id = str(orjson.loads(listed)["runs"][0]["id"])
    stage.type("run", _AGENT, "--input", _QUESTION, "--resume", run_id)
    stage.type("show", run_id)
    stage.check("still one e-mail and one refund: nothing was sent twice", stage.sent() == 1 and _refunds(stage) == 1)
    print("  A person looks into the outbox and settles it:")
    stage.type("claims", "list", "--state", "unknown")
    unknown = orjson.loads(stage.type("claims", "list", "--state", "unknown", "--json", show=False))["claims"]
    stage.type("claims", "resolve", unknown[0]["fingerprint"], "--happened", "--value", '"sent"')
    print()

    print(bold("3. The same call delivered twice, and a dependency that is down."))
    for line in (*redelivery(), *breaker()):
        print(f"  {line}")
    print()

    print(bold("4. A fresh run, replayed strictly: the current code on recorded answers, no network, no side effect."))
    stage.type("run", _AGENT, "--input", _QUESTION)
    before = stage.sent()
    stage.type("replay", "--latest", "--strict")
    stage.check("the replay passed and sent nothing", stage.sent() == before)

    print(bold("5. Somebody changes one argument. The replay names it."))
    stage.type("replay", "--latest", "--strict", expect=1, DEMO_TYPO="1")
    stage.check("no refund was made by the replay", _refunds(stage) == 2)


def _refunds(stage: _Stage) -> int:
    path = stage.folder / "refunds.txt"
    return len(path.read_text().splitlines()) if path.exists() else 0
