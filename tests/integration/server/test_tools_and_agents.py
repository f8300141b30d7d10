"""Registered Python tools as nodes, agents as runs: through the gateway, in the log, replayed from it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.cli import main
from antiphon.ops.runs import timeline
from tests.integration.server import workflows
from tests.integration.server.harness import Client, application, in_process, observable

CODE = '''
import pathlib
import time
import antiphon
import antiphon.errors
from antiphon.stores import MemoryStore

DONE = pathlib.Path({marks!r})
gateway = antiphon.Gateway(store=MemoryStore())

@gateway.tool(idempotent=False, namespace="mail", effect="write")
def send(to: str, subject: str = "") -> dict:
    """Send a mail."""
    with DONE.open("a") as file:
        file.write(f"sent {{to}}\\n")
    return {{"sent": to, "subject": subject}}

@gateway.tool(idempotent=True, namespace="mail", effect="read")
def fail(kind: str) -> str:
    """Fail as asked."""
    raise ValueError(kind)

@antiphon.agent
def greeter(name: str) -> str:
    run = antiphon.current_run()
    answer = run.llm(
        {{"model": "m", "messages": [{{"role": "user", "content": name}}]}},
        lambda request: {{"choices": [{{"message": {{"content": run_once("model")}}, "finish_reason": "stop"}}]}},
    )
    send(name, subject=str(run.uuid4()))
    return answer["choices"][0]["message"]["content"] + " " + str(run.random())

@antiphon.agent(name="async-greeter")
async def later(name: str) -> dict:
    run = antiphon.current_run()
    return {{"hello": name, "at": run.now().isoformat()}}

@gateway.tool(idempotent=False, namespace="trip", effect="write")
def book(hotel: str) -> str:
    run_once("booked " + hotel)
    return hotel

@book.undo
def unbook(result: str) -> None:
    run_once("undone " + result)

def wait_for(mark: str) -> None:
    while mark not in DONE.read_text().split():
        time.sleep(0.01)

@antiphon.agent
def traveller(what: str) -> None:
    run = antiphon.current_run()
    try:
        with run.saga("trip"):
            book("ritz")
            wait_for("cancelled")
            if what == "model":
                run.llm({{"model": "m", "messages": []}}, lambda request: run_once("model"))
            else:
                book("savoy")
    except antiphon.errors.RunCancelled as error:
        run_once(str(error))
    finally:
        run_once("over")

@antiphon.agent
def broken() -> None:
    raise KeyError("nothing works")

def run_once(what: str) -> str:
    with DONE.open("a") as file:
        file.write(what + "\\n")
    return "hello"
'''


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    return tmp_path / "marks.txt"


@pytest.fixture
async def client(tmp_path: Path, marks: Path) -> AsyncIterator[Client]:
    code = tmp_path / "my_agents.py"
    code.write_text(CODE.format(marks=str(marks)))
    bound = {"to": {"type": "variable", "variableName": "to"}}
    mail = workflows.workflow(
        "mail",
        [
            workflows.node("send", "tool:mail/send", {"subject": "hi"}, bound),
            workflows.node("then", "core.identity", None, {"got": {"type": "node", "nodeId": "send"}}),
        ],
        [workflows.variable("to", "string", required=True)],
    )
    mail["nodes"][0]["outputs"] = {"sent": {"type": "variable", "variableName": "to"}}
    failing = workflows.workflow("failing", [workflows.node("f", "tool:mail/fail", {"kind": "bad"})])
    unknown = workflows.workflow("unknown-tool", [workflows.node("x", "tool:mail/nobody")])
    odd = workflows.workflow("odd-node", [workflows.node("x", "core.nobody")])
    folder = workflows.write(tmp_path / "flows", mail, failing, unknown, odd)
    (folder / "broken.json").write_text("{")
    agents = [f"{code}:{name}" for name in ("greeter", "later", "broken", "traveller")]
    async with in_process(application(tmp_path, folder, tools=[str(code)], agents=agents)) as found:
        yield found


def lines(marks: Path) -> list[str]:
    return marks.read_text().splitlines() if marks.exists() else []


async def test_a_tool_is_a_node(client: Client, marks: Path) -> None:
    run = await client.run("mail", {"to": "team-a"})
    assert run["status"] == "completed"
    assert run["outputs"] == {"then": {"got": {"sent": "team-a", "subject": "hi"}}}
    assert lines(marks) == ["sent team-a"]
    rows = await client.host.journal.events(run["runId"])
    calls = [row for row in rows if row.type == "call.finished"]
    assert [call.payload["outcome"] for call in calls] == ["ok"]
    listed = (await client.get("/v1/admin/claims", params={"tool": "mail/send"})).json()["claims"]
    assert [one["state"] for one in listed] == ["done"]
    fork = await client.fork(run["runId"])
    assert (await client.ended(fork))["outputs"] == run["outputs"]
    assert lines(marks) == ["sent team-a"]
    branch = await client.fork(run["runId"], "branch", 0)
    await client.ended(branch)
    assert lines(marks) == ["sent team-a"] * 2


async def test_a_failing_tool_fails_its_run(client: Client) -> None:
    run = await client.run("failing")
    assert (run["status"], run["error"]["code"]) == ("failed", "unclassified")
    fork = await client.fork(run["runId"])
    assert (await client.ended(fork))["error"] == run["error"]


async def test_the_nodes_of_a_run_are_shown(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ANTIPHON_STORE_URL", f"sqlite:///{tmp_path}/host.db")
    monkeypatch.setattr("antiphon.ops.app._default", {})
    sent, failed = await client.run("mail", {"to": "team-a"}), await client.run("failing")

    async def show(run: str, *words: str) -> str:
        capsys.readouterr()
        assert await asyncio.to_thread(main, ["show", run, *words]) == 0
        return capsys.readouterr().out

    tree = json.loads(await show(sent["runId"], "--json"))
    assert [(one["kind"], one["name"], one["what"], one["outcome"]) for one in tree["timeline"]] == [
        ("node", "send", "tool:mail/send", "ok"),
        ("node", "then", "core.identity", "ok"),
    ]
    assert [one["name"] for one in tree["timeline"][0]["children"]] == ["mail/send"], "calls stand below their node"
    assert tree["output"] == {"then": {"got": {"sent": "team-a", "subject": "hi"}}}
    text = await show(sent["runId"])
    assert re.search(r"├─ +\d+  send  tool:mail/send  ok .*\n│  └─ +\d+  mail/send  ok .*\n└─ +\d+  then", text)
    assert "2 nodes · 1 tool call ·" in text
    text = await show(failed["runId"])
    assert re.search(r"└─ +\d+  f  tool:mail/fail  error .*\n   unclassified: ", text)


async def test_what_a_node_tells_stands_beside_it(client: Client) -> None:
    await client.program("structured-call", {"content": "no", "stopReason": "safety", "refusalText": "not for you"})
    run = await client.run("conformance-phase4-replay-divergence")
    manifest = await client.host.journal.manifest(run["runId"])
    assert manifest is not None
    tree = await asyncio.to_thread(timeline, client.host.app, manifest)
    notes = [note["what"] for node in tree["timeline"] for note in node["notes"]]
    assert notes == ["envelope.refusal"]


async def test_workflows_that_cannot_run_here_are_not_offered(client: Client) -> None:
    offered = (await client.get("/.well-known/openwop")).json()["fixtures"]
    assert "mail" in offered
    assert "agent:greeter" in offered
    for name in ("unknown-tool", "odd-node", "broken"):
        assert name not in offered
        assert (await client.post("/v1/runs", json={"workflowId": name})).status_code == 404


async def test_an_agent_is_a_run_and_its_replay_calls_nothing(client: Client, marks: Path) -> None:
    run = await client.run("agent:greeter", {"name": "ada"})
    assert run["status"] == "completed", run
    said = run["outputs"]["agent"]["output"]
    assert said.startswith("hello 0.")
    assert lines(marks) == ["model", "sent ada"]
    rows = await client.host.journal.events(run["runId"])
    assert [row.type for row in rows].count("call.finished") == 2
    fork = await client.fork(run["runId"])
    again = await client.ended(fork)
    assert again["outputs"] == run["outputs"]
    assert observable(await client.events(fork)) == observable(await client.events(run["runId"]))
    assert lines(marks) == ["model", "sent ada"]


async def test_an_asynchronous_agent(client: Client) -> None:
    run = await client.run("agent:async-greeter", {"name": "bob"})
    assert run["outputs"]["agent"]["hello"] == "bob"
    fork = await client.fork(run["runId"])
    assert (await client.ended(fork))["outputs"] == run["outputs"]


async def test_agents_that_fail_or_are_called_wrongly(client: Client) -> None:
    run = await client.run("agent:broken")
    assert (run["status"], run["error"]["code"]) == ("failed", "agent_error")
    run = await client.run("agent:greeter", {"nom": "ada"})
    assert run["status"] == "failed"


async def test_many_agents_at_once_keep_their_own_logs(client: Client) -> None:
    runs = await asyncio.gather(*(client.run("agent:greeter", {"name": f"n{number}"}) for number in range(12)))
    assert {run["status"] for run in runs} == {"completed"}
    for number, run in enumerate(runs):
        rows = await client.host.journal.events(run["runId"])
        sent = [row.payload["arguments"]["to"] for row in rows if row.payload.get("name") == "send"]
        assert sent == [f"n{number}"]


@pytest.mark.parametrize("what", ["tool", "model"])
async def test_the_thread_of_a_run_that_was_cancelled_only_undoes(client: Client, marks: Path, what: str) -> None:
    run = await client.start("agent:traveller", {"what": what})
    await until(marks, "booked ritz")
    assert (await client.post(f"/v1/runs/{run}/cancel")).json()["status"] == "cancelled"
    with marks.open("a") as file:
        file.write("cancelled\n")
    await until(marks, "over")
    name = "trip/book" if what == "tool" else "llm"
    refusal = f"The run of this call was cancelled: {name} was not called."
    assert lines(marks) == ["booked ritz", "cancelled", "undone ritz", refusal, "over"]


async def until(marks: Path, mark: str) -> None:
    """Wait until the agent has left a mark."""
    async with asyncio.timeout(20):
        while mark not in lines(marks):
            await asyncio.sleep(0.01)
