"""``@trace_agent()`` and ``trace_agent_invoke()``: a session is one run and one artifact (K2)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from antiphon import Antiphon
from antiphon.adapters.langchain import trace_agent, trace_agent_invoke
from antiphon.ops.replay import replay
from antiphon.ops.runs import find_run, timeline
from antiphon.stores import MemoryStore
from tests.integration.adapters.subjects_langchain import ProviderChat, State, graph_agent, middleware_agent, tools_of
from tests.integration.adapters.world import World


def _ask(agent: Any, llm: Any, words: str) -> str:
    result = trace_agent_invoke(agent, {"messages": [{"role": "user", "content": words}]}, llm=llm)
    return str(result["messages"][-1].text)


def test_all_interactions_of_a_session_are_one_run_and_one_artifact(
    app: Antiphon, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    llm = ProviderChat(url=world.provider.url, temperature=0.2)

    @trace_agent()
    def main() -> list[str]:
        agent = middleware_agent(world)
        return [_ask(agent, llm, "hello"), _ask(agent, llm, "charge A please")]

    assert main() == ["hello there, friend", "all done"]
    (artifact,) = (tmp_path / "artifacts").glob("*.antiphon")
    document = json.loads(artifact.read_text())
    assert document["llm_config"] == {"model_name": "fake-1", "provider": "tests", "temperature": 0.2}
    assert len(document["inputs"]["interactions"]) == 2
    assert [call["tool_name"] for call in document["tool_calls"]] == ["charge"]
    world.provider.switch_off()
    report = replay(str(artifact), app=app, function=main, mode="strict")
    assert report.divergences == []
    assert world.provider.requests == 3
    assert world.done == ["A"]


def test_without_a_session_an_invocation_is_a_run_of_its_own(
    app: Antiphon, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    llm = ProviderChat(url=world.provider.url)
    assert _ask(middleware_agent(world), llm, "hello") == "hello there, friend"
    assert len(list((tmp_path / "artifacts").glob("*.antiphon"))) == 1


async def test_an_asynchronous_session_is_traced_too(
    app: Antiphon, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    @trace_agent(artifacts=None)
    async def main() -> str:
        asked: Any = {"messages": [{"role": "user", "content": "hello"}]}
        result = await middleware_agent(world).ainvoke(asked)
        return str(result["messages"][-1].text)

    assert await main() == "hello there, friend"
    assert not (tmp_path / "artifacts").exists()


def _bare_agent(world: World, *, streams: bool = False) -> Any:
    """An agent that nobody wrapped."""
    tools = tools_of(world)
    if not streams:
        return create_agent(ProviderChat(url=world.provider.url), tools=tools)
    model = ProviderChat(url=world.provider.url).bind_tools(tools)
    graph = StateGraph(State)

    def ask(state: State) -> dict[str, Any]:
        whole: Any = None
        for chunk in model.stream(state["messages"]):
            whole = chunk if whole is None else whole + chunk
        return {"messages": [whole]}

    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


@pytest.mark.parametrize("streams", [False, True], ids=["create_agent", "streaming graph"])
def test_trace_agent_invoke_alone_records_and_replays_model_and_tool_calls(
    app: Antiphon, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streams: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    llm = ProviderChat(url=world.provider.url)

    @trace_agent()
    def main() -> str:
        return _ask(_bare_agent(world, streams=streams), llm, "charge A please")

    assert main() == "all done"
    assert world.done == ["A"]
    (artifact,) = (tmp_path / "artifacts").glob("*.antiphon")
    document = json.loads(artifact.read_text())
    assert [call["tool_name"] for call in document["tool_calls"]] == ["charge"]
    manifest = find_run(app, None)
    assert timeline(app, manifest)["counts"]["models"] == 2
    world.provider.switch_off()
    report = replay(str(artifact), app=app, function=main, mode="strict")
    assert report.passed, report.text()
    assert (report["cacheHits"], report["modelHits"]) == (1, 2)
    assert world.done == ["A"]


def test_an_agent_that_is_not_traced_is_left_alone(app: Antiphon, world: World) -> None:
    llm = ProviderChat(url=world.provider.url)
    with app.run("traced") as run:
        _ask(_bare_agent(world), llm, "hello")
    with app.run("untraced") as other:
        _bare_agent(world).invoke({"messages": [{"role": "user", "content": "hello"}]})
    assert [event.type for event in run.events()].count("call.started") == 1
    assert [event.type for event in other.events()].count("call.started") == 0


def test_the_middleware_inside_a_traced_agent_records_each_call_once(app: Antiphon, world: World) -> None:
    llm = ProviderChat(url=world.provider.url)
    for make in (middleware_agent, graph_agent):
        with app.run("both") as run:
            _ask(make(world), llm, "charge A please")
        assert [event.type for event in run.events()].count("call.started") == 3


def test_a_traced_agent_keeps_its_artifact_in_the_configured_folder(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    app = Antiphon({"artifacts": {"folder": str(tmp_path / "kept")}}, store=MemoryStore())

    @trace_agent(app=app)
    def main() -> str:
        return _ask(_bare_agent(world), ProviderChat(url=world.provider.url), "hello")

    main()
    assert len(list((tmp_path / "kept").glob("*.antiphon"))) == 1
