"""What a user's type checker says: right code passes mypy and pyright in strict mode, wrong option names do not."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from antiphon.contract.spec import (
    BreakerOptions,
    BreakerPolicy,
    RetryOptions,
    RetryPolicy,
    ToolOptions,
    ToolSpec,
    TtlOptions,
    Ttls,
)
from antiphon.ops.app import Antiphon, RunOptions
from tests.docs.pages import ROOT, script

BIN = Path(sys.executable).parent

RIGHT = """
import antiphon
from antiphon.contract.spec import ToolSpec
from antiphon.stores import MemoryStore

gateway = antiphon.Gateway(store=MemoryStore())


@gateway.tool(idempotent=False, effect="write", timeout=3, retry={"max_attempts": 2}, exact=["to"])
def send(to: str, text: str = "") -> int:
    return len(to)


number: int = send("ada", text="hi")
plain = gateway.register(send, name="send_it", idempotent=True, effect="read", reuse="turn")
also: int = plain("ada")
other = gateway.register(send, ToolSpec(name="third", idempotent=True))


def agent(question: str) -> str:
    return question


async def later(question: str) -> str:
    return question


run = antiphon.record(agent, "hi")
identity: str = run.id
recorded = antiphon.record(later, "hi")
output: object = recorded.output
with gateway.session("s").turn() as turn:
    result = turn.call("send", {"to": "ada"}, call_id="c1")
    if result.error is not None:
        message: str = result.error.message
    content: object = result.content
    again: bool = result.from_cache
with antiphon.run("triage", tags={"team": "support"}) as opened:
    opened.finish("done")
"""

WRONG = [
    "@gateway.tool(idempotent=False, timout=3)\ndef send(to: str) -> int: return 1\n",
    '@gateway.tool(idempotent=False, efect="write")\ndef send(to: str) -> int: return 1\n',
    '@gateway.tool(idempotent=False, effect="wirte")\ndef send(to: str) -> int: return 1\n',
    '@gateway.tool(idempotent=False, retry={"max_atempts": 2})\ndef send(to: str) -> int: return 1\n',
    "@gateway.tool()\ndef send(to: str) -> int: return 1\n",
    "def send(to: str) -> int: return 1\ngateway.register(send, idempotent=True, exakt=())\n",
    "def agent(question: str) -> str: return question\nantiphon.record(agent, 7)\n",
    'antiphon.run("triage", tagz={})\n',
    "gateway.execute({}).error.message\n",
]
HEAD = "import antiphon\nfrom antiphon.stores import MemoryStore\ngateway = antiphon.Gateway(store=MemoryStore())\n"


def pyright(folder: Path) -> dict[str, list[str]]:
    """The errors of each file under *folder*."""
    (folder / "pyrightconfig.json").write_text('{"typeCheckingMode": "strict", "reportMissingModuleSource": false}')
    done = subprocess.run(
        [str(BIN / "pyright"), "--outputjson", "--pythonpath", sys.executable],
        cwd=folder,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, list[str]] = {}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            found.setdefault(Path(one["file"]).name, []).append(
                f"{one['range']['start']['line'] + 1}: {one['message']}"
            )
    return found


def mypy(folder: Path) -> dict[str, list[str]]:
    """The same from mypy."""
    files = sorted(path.name for path in folder.glob("*.py"))
    done = subprocess.run(
        [str(BIN / "mypy"), "--strict", "--no-incremental", "--config-file", os.devnull, "--no-error-summary", *files],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, message = line.partition(":")
        if "error:" in message and name in files:
            found.setdefault(name, []).append(message)
    return found


@pytest.mark.parametrize("check", [mypy, pyright])
def test_right_code_passes_and_wrong_code_does_not(
    check: typing.Callable[[Path], dict[str, list[str]]], tmp_path: Path
) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "readme.py").write_text(script(ROOT / "README.md"))
    for number, text in enumerate(WRONG):
        (tmp_path / f"wrong_{number}.py").write_text(HEAD + text)
    found = check(tmp_path)
    assert found.pop("right.py", []) == []
    assert found.pop("readme.py", []) == []
    assert sorted(found) == [f"wrong_{number}.py" for number in range(len(WRONG))]


def test_the_keywords_of_a_run_are_those_of_the_method() -> None:
    assert set(RunOptions.__annotations__) == set(inspect.signature(Antiphon.run).parameters) - {"self", "name", "like"}


@pytest.mark.parametrize(
    ("options", "spec", "apart"),
    [
        (ToolOptions, ToolSpec, {"name", "namespace", "idempotent"}),
        (RetryOptions, RetryPolicy, set()),
        (BreakerOptions, BreakerPolicy, set()),
        (TtlOptions, Ttls, set()),
    ],
)
def test_the_keywords_are_the_fields(options: typing.Any, spec: typing.Any, apart: set[str]) -> None:
    assert set(options.__annotations__) == set(spec.__struct_fields__) - apart
