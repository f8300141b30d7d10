"""The adapters under one behaviour suite: how an agent is made, and how it is asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.integration.adapters import subjects_agents as agents
from tests.integration.adapters import subjects_langchain as langchain
from tests.integration.adapters import subjects_mcp as mcp
from tests.integration.adapters import subjects_pydantic as pydantic
from tests.integration.adapters.world import World


class Subject(NamedTuple):
    """One framework with its adapter."""

    name: str
    make: Callable[[World], Any]
    ask: Callable[[Any, str, str], str]
    """(agent, question, session) -> answer"""
    crash_and_resume: Callable[[World], None]
    """Order A is charged, the process is lost, and the framework goes on in its own way."""


SUBJECTS = (
    Subject(
        "langchain",
        langchain.middleware_agent,
        langchain.ask_sync,
        langchain.crash_and_resume(langchain.middleware_agent),
    ),
    Subject(
        "langchain-async",
        langchain.middleware_agent,
        langchain.ask_async,
        langchain.crash_and_resume_async(langchain.middleware_agent),
    ),
    Subject("langgraph", langchain.graph_agent, langchain.ask_sync, langchain.crash_and_resume(langchain.graph_agent)),
    Subject(
        "langgraph-async",
        langchain.graph_agent,
        langchain.ask_async,
        langchain.crash_and_resume_async(langchain.graph_agent),
    ),
    Subject("openai-agents", agents.make, agents.ask, agents.crash_and_resume),
    Subject("openai-agents-streamed", agents.make, agents.ask_streamed, agents.crash_and_resume),
    Subject("pydantic-ai", pydantic.make, pydantic.ask, pydantic.crash_and_resume),
    Subject("pydantic-ai-streamed", pydantic.make, pydantic.ask_streamed, pydantic.crash_and_resume),
    Subject("mcp", mcp.make, mcp.ask, mcp.crash_and_resume),
)
