"""A fork compares what its nodes ask for, ends after its last event, and says what it could not verify."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon.host.workflow.model import parse
from tests.integration.server import workflows
from tests.integration.server.harness import Client, application, in_process, observable
from tests.integration.server.test_providers import Provider

CODE = """
import pathlib
import antiphon

MARKS = pathlib.Path({marks!r})
gateway = antiphon.Gateway(store="memory:")

@gateway.tool(idempotent=False, namespace="bank", effect="write")
def pay(to: str, amount: int = 0) -> dict:
    with MARKS.open("a") as file:
        file.write("paid\\n")
    return {{"paid": amount, "to": to}}

@antiphon.agent
def clerk(name: str) -> str:
    run = antiphon.current_run()
    said = pathlib.Path(__file__).with_name("model.txt")
    answer = run.llm(
        {{"model": "m", "messages": [{{"role": "user", "content": name}}]}},
        lambda request: ask(said),
    )
    if not pathlib.Path(__file__).with_name("lazy").exists():
        pay(to=name, amount=AMOUNT)
    return str(answer["choices"][0]["message"]["content"])

AMOUNT = 5

def ask(said):
    text = said.read_text() if said.exists() else "yes"
    if text == "500":
        raise ConnectionError("provider_http_500")
    message = {{"content": None, "refusal": "no"}} if text == "refuse" else {{"content": text}}
    return {{"choices": [{{"message": message, "finish_reason": "stop"}}]}}
"""


def _mail(amount: int = 5, prompt: str = "Write a mail.", **model: Any) -> dict[str, Any]:
    messages = {"messages": {"type": "static", "value": [{"role": "user", "content": prompt}]}}
    bound = {"to": {"type": "variable", "variableName": "to"}}
    ask = workflows.node("ask", "core.llm.chat", {"provider": "mock", "model": "mock-mini", **model}, messages)
    pay = workflows.node("pay", "tool:bank/pay", {"amount": amount}, bound)
    same = workflows.node("same", "core.identity", None, {"got": {"type": "node", "nodeId": "pay"}})
    return workflows.workflow("mail", [ask, pay, same], [workflows.variable("to", "string", required=True)])


Make = Callable[..., Any]


@pytest.fixture
def make(tmp_path: Path, folder: Path) -> Make:
    """A host with a tool, an agent and the workflow ``mail``."""
    code = tmp_path / "clerks.py"
    code.write_text(CODE.format(marks=str(tmp_path / "marks.txt")))
    workflows.write(folder, _mail())

    def application_(**host: Any) -> Any:
        return in_process(application(tmp_path, folder, tools=[str(code)], agents=[f"{code}:clerk"], **host))

    return application_


def _diverged(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [event["payload"] for event in events if event["type"] == "replay.diverged"]


@pytest.mark.parametrize(
    ("changed", "node"),
    [
        ({"amount": 500}, "pay"),
        ({"prompt": "Write a threat."}, "ask"),
        ({"temperature": 1}, "ask"),
        ({"topP": 0.5}, "ask"),
        ({"tools": [{"name": "look", "parameters": {}}]}, "ask"),
        ({"model": "mock-maxi"}, "ask"),
    ],
    ids=["amount", "prompt", "temperature", "top-p", "tools", "model"],
)
async def test_a_changed_request_is_named(make: Make, tmp_path: Path, changed: dict[str, Any], node: str) -> None:
    async with make() as client:
        source = (await client.run("mail", {"to": "ada"}))["runId"]
        same = await client.fork(source)
        assert (await client.ended(same))["status"] == "completed"
        assert _diverged(await client.events(same)) == []
        client.host.add_workflow(parse(_mail(**changed)))
        forks = []
        for place, start in enumerate((0, None, 2, 4)):
            fork = await client.fork(source, start=start)
            forks.append(fork)
            assert (await client.ended(fork))["status"] == "completed"
            events = await client.events(fork)
            told = _diverged(events)
            if start == 4 and node == "ask":
                assert told == [], "that node is not executed again"
                continue
            assert [(one["nodeId"], one["divergenceKind"], one["differs"]) for one in told] == [
                (node, "output", "request")
            ], place
            started = next(e for e in await client.events(source) if e["sequence"] == told[0]["atSequence"])
            assert (started["type"], started["nodeId"]) == ("node.started", node)
            assert events[-1]["type"] == "run.completed"
        again = await client.fork(forks[0])  # what the fork did is what a fork of it is compared with
        await client.ended(again)
        assert _diverged(await client.events(again)) == []
    assert (tmp_path / "marks.txt").read_text().count("paid") == 1


async def test_equal_requests_with_redacted_values_are_equal(make: Make) -> None:
    async with make() as client:
        source = (await client.run("mail", {"to": "ada.lovelace@example.org"}))["runId"]
        fork = await client.fork(source)
        assert (await client.ended(fork))["status"] == "completed"
        assert observable(await client.events(fork)) == observable(await client.events(source))
        rows = await client.host.journal.events(source)
        assert "ada.lovelace" not in str(rows)


async def test_the_last_event_is_last_and_told_once(client: Client) -> None:
    source = (await client.run("conformance-identity", {"payload": {"a": 1}}))["runId"]
    nodes = [workflows.node("identity", "core.identity", None, {"payload": {"type": "static", "value": {"a": 2}}})]
    variables = [workflows.variable("payload", "object", required=True)]
    client.host.add_workflow(parse(workflows.workflow("conformance-identity", nodes, variables)))
    fork = await client.fork(source)
    snapshot = await client.ended(fork)
    events = await client.events(fork)
    types = [event["type"] for event in events]
    assert types[-1] == "run.completed"
    assert types.count("replay.diverged") == 1
    assert snapshot["status"] == "completed"
    stream = (await client.get(f"/v1/runs/{fork}/events")).text
    assert stream.rstrip().rpartition("event: ")[2].startswith("run.completed")
    late = await client.fork(source, start=3)  # only the outputs of the run differ
    assert (await client.ended(late))["status"] == "completed"
    assert [event["type"] for event in await client.events(late)][-1] == "run.completed"


async def test_a_terminal_divergence_comes_before_the_end(client: Client) -> None:
    source = (await client.run("conformance-multi-node"))["runId"]
    longer = [workflows.node(name, "core.noop") for name in "abcd"]
    client.host.add_workflow(parse(workflows.workflow("conformance-multi-node", longer)))
    fork = await client.fork(source)
    assert (await client.ended(fork))["status"] == "completed"
    types = [event["type"] for event in await client.events(fork)]
    assert types[-1] == "run.completed"
    shorter = [workflows.node(name, "core.noop") for name in "ab"]
    client.host.add_workflow(parse(workflows.workflow("conformance-multi-node", shorter)))
    fork = await client.fork(source)
    assert (await client.ended(fork))["status"] == "completed"
    events = await client.events(fork)
    assert [event["type"] for event in events][-2:] == ["replay.diverged", "run.completed"]
    assert events[-2]["payload"]["divergenceKind"] == "missing"


@pytest.mark.parametrize("depth", [150, 300, 900])
async def test_deep_values_are_equal_to_themselves(client: Client, depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    body = b'{"workflowId": "conformance-identity", "inputs": {"payload": ' + b'{"a":' * depth + b"1" + b"}" * depth
    answer = await client.post("/v1/runs", content=body + b"}}", headers={"Content-Type": "application/json"})
    if answer.status_code != 201:
        assert answer.status_code == 400
        return
    source = answer.json()["runId"]
    assert (await client.ended(source))["status"] == "completed"
    fork = await client.fork(source)
    assert (await client.ended(fork))["status"] == "completed"
    assert _diverged(await client.events(fork)) == []


# -- agents ----------------------------------------------------------------------------------------------------------


async def test_what_an_agent_no_longer_does_is_named(make: Make, tmp_path: Path) -> None:
    async with make() as client:
        source = (await client.run("agent:clerk", {"name": "ada"}))["runId"]
        fork = await client.fork(source)
        assert (await client.ended(fork))["status"] == "completed"
        assert _diverged(await client.events(fork)) == []
        (tmp_path / "lazy").touch()
        fork = await client.fork(source)
        assert (await client.ended(fork))["status"] == "completed"
        told = _diverged(await client.events(fork))
        assert [(one["divergenceKind"], one["differs"], one["missingCalls"]) for one in told] == [
            ("missing", "calls", 1)
        ]
        assert (await client.events(fork))[-1]["type"] == "run.completed"


async def test_verifying_covers_the_models_of_agents(make: Make, tmp_path: Path) -> None:
    async with make(replay_verify=True) as client:
        source = (await client.run("agent:clerk", {"name": "ada"}))["runId"]
        fork = await client.fork(source)
        assert (await client.ended(fork))["status"] == "completed"
        assert observable(await client.events(fork)) == observable(await client.events(source))
        (tmp_path / "model.txt").write_text("refuse")
        fork = await client.fork(source)
        snapshot = await client.ended(fork)
        assert (snapshot["status"], snapshot["error"]["code"]) == ("failed", "replay_diverged_at_refusal")
        events = await client.events(fork)
        told = [event["payload"] for event in events if event["type"] == "replay.divergedAtRefusal"]
        assert [(one["nodeId"], one["originalEnvelopeKind"], one["replayEnvelopeKind"]) for one in told] == [
            ("agent", "valid", "refusal")
        ]
        (tmp_path / "model.txt").write_text("500")
        fork = await client.fork(source)
        assert (await client.ended(fork))["status"] == "completed"
        said = [event["payload"] for event in await client.events(fork) if event["type"] == "log.appended"]
        assert [one["code"] for one in said] == ["replay_not_verified"]
    assert (tmp_path / "marks.txt").read_text().count("paid") == 1


# -- models ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def provider() -> Iterator[Provider]:
    found = Provider()
    yield found
    found.server.shutdown()
    found.server.server_close()


def _chatty(provider: Provider, tmp_path: Path, *flows: Any, **host: Any) -> Any:
    providers = {
        "chatty": {"dialect": "openai-chat", "base_url": f"{provider.url}/v1"},
        "claudy": {"dialect": "anthropic", "base_url": provider.url},
    }
    folder = workflows.write(tmp_path / "flows", *flows)
    return in_process(application(tmp_path, folder, providers=providers, **host))


ANSWER = {"choices": [{"message": {"content": '{"valid": true}'}, "finish_reason": "stop"}]}


@pytest.mark.parametrize("answer", [(500, {}), (200, b"not json"), (200, {"odd": 1})], ids=["500", "no JSON", "odd"])
async def test_a_verification_that_was_not_made_says_so(provider: Provider, tmp_path: Path, answer: Any) -> None:
    flow = workflows.workflow("chat", [workflows.model("ask", provider="chatty", maxAttempts=1)])
    async with _chatty(provider, tmp_path, flow, replay_verify=True) as client:
        provider.answers[:] = [(200, ANSWER)]
        source = (await client.run("chat"))["runId"]
        provider.answers[:] = [answer]
        fork = await client.fork(source)
        assert (await client.ended(fork))["status"] == "completed"
        events = await client.events(fork)
        said = [event["payload"] for event in events if event["type"] == "log.appended"]
        assert [(one["nodeId"], one["code"]) for one in said] == [("ask", "replay_not_verified")]
        assert _diverged(events) == []
        provider.answers[:] = [(200, ANSWER)]
        again = await client.fork(fork)  # a remark is nothing that a fork of the fork has to repeat
        assert (await client.ended(again))["status"] == "completed"
        assert observable(await client.events(again)) == observable(await client.events(source))


TOOL = {"name": "look_up", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("dialect", ["chatty", "claudy"])
async def test_the_tools_of_a_model_node_are_sent(provider: Provider, tmp_path: Path, dialect: str) -> None:
    ask = workflows.node("ask", "core.llm.chat", {"provider": dialect, "model": "m", "tools": [TOOL], "prompt": "Hi"})
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    openai = {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    claude = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c1", "name": "look_up", "input": {}}],
        "stop_reason": "tool_use",
    }
    async with _chatty(provider, tmp_path, workflows.workflow("tools", [ask])) as client:
        provider.answers[:] = [(200, openai if dialect == "chatty" else claude)]
        run = await client.run("tools")
        assert run["status"] == "completed", run
        assert run["outputs"]["ask"]["toolCalls"][0]["name"] == "look_up"
    sent = provider.asked[0][2]["tools"]
    if dialect == "chatty":
        assert sent == [{"type": "function", "function": TOOL}]
    else:
        assert sent == [{"name": "look_up", "description": "Looks.", "input_schema": TOOL["parameters"]}]


async def test_each_attempt_has_an_idempotency_key_of_its_own(provider: Provider, tmp_path: Path) -> None:
    flow = workflows.workflow("chat", [workflows.model("ask", provider="chatty")])
    wrong = {"choices": [{"message": {"content": "no json"}, "finish_reason": "stop"}]}
    async with _chatty(provider, tmp_path, flow) as client:
        provider.answers[:] = [(200, wrong), (200, wrong), (200, ANSWER)]
        assert (await client.run("chat"))["status"] == "completed"
    keys = [headers["idempotency-key"] for _, headers, _ in provider.asked]
    assert len(keys) == len(set(keys)) == 3
    assert json.dumps(keys)
