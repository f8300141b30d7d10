"""Fixtures of the command-line tests: a folder with an agent in it, and the commands run in this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from antiphon.cli import main
from tests.integration.recording.kit import home

__all__ = ["home"]

AGENT = """
import asyncio
import antiphon

app = antiphon.Antiphon()
tries = []


@app.gateway.tool(idempotent=True, effect="read")
def look(order: str) -> dict:
    tries.append(order)
    if len(tries) == 1:
        raise ConnectionResetError("gone")
    return {"order": order}


@app.gateway.tool(idempotent=False, effect="write")
def refund(order: str) -> str:
    return "refunded " + look(order)["order"]


def model(request):
    said = request["messages"][-1]["content"]
    return {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "re: " + said}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 500},
    }


@antiphon.agent(name="orders")
def main(question="where is 7?"):
    run = antiphon.current_run()
    for turn in ("first", "second"):
        messages = [{"role": "system", "content": "be kind"}, {"role": "user", "content": f"{turn}: {question}"}]
        run.llm({"model": "m-1", "messages": messages}, model)
    return refund("7")


async def later(question):
    await asyncio.sleep(0)
    return {"asked": question}


def both(one, two=2):
    return [one, two]


def fail(question):
    raise ValueError("no such order")


def die(question):
    import os, signal

    look("1")
    os.kill(os.getpid(), signal.SIGKILL)


def leave(code):
    import os

    look("1")
    raise SystemExit(int(os.environ["LEAVE"]) if "LEAVE" in os.environ else code)


async def leave_later(code):
    raise SystemExit(code)


async def leave_in_a_task(code):
    import asyncio

    await asyncio.create_task(leave_later(code))


async def cancel():
    import asyncio

    raise asyncio.CancelledError("no more")


not_callable = 7
"""


class Done(NamedTuple):
    """What a command left: exit code, output, complaints."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Done]


@pytest.fixture
def antiphon(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """``antiphon("runs", "--json")`` in a folder that has ``agent.py``."""
    Path("agent.py").write_text(AGENT)
    monkeypatch.delitem(sys.modules, "agent", raising=False)  # another test's, of another folder

    def run(*words: str) -> Done:
        monkeypatch.setattr("antiphon.ops.app._default", {})
        capsys.readouterr()
        try:
            code = main(list(words))
        except SystemExit as stop:  # argparse's way out
            code = int(stop.code or 0)
        out = capsys.readouterr()
        return Done(code, out.out, out.err)

    return run
