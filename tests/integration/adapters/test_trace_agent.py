"""``@trace_agent()`` and ``trace_agent_invoke()``: a session is one run and one artifact (K2)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon import Antiphon
from antiphon.adapters.langchain import trace_agent, trace_agent_invoke
from antiphon.ops.replay import replay
from tests.integration.adapters.subjects_langchain import ProviderChat, middleware_agent
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
