"""A one-line error for a framework that is missing or has an unsupported version (K9)."""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

from antiphon.errors import MissingExtra, missing_extra


class Requirement(NamedTuple):
    """The requirement of an adapter: distribution, module to import, extra that installs it, and versions."""

    package: str
    module: str
    extra: str
    purpose: str
    least: tuple[int, ...]
    below: tuple[int, ...] | None = None

    @property
    def range(self) -> str:
        """The supported versions as text."""
        top = "" if self.below is None else f", < {_text(self.below)}"
        return f"{self.package} >= {_text(self.least)}{top}"


REQUIREMENTS = {
    "httpx": Requirement("httpx", "httpx", "httpx", "The httpx transport", (0, 27)),
    "httpx2": Requirement("httpx2", "httpx2", "httpx2", "The httpx2 transport", (2, 0)),
    "openai": Requirement("openai", "openai", "openai", "The OpenAI adapter", (3,), (4,)),
    "anthropic": Requirement("anthropic", "anthropic", "anthropic", "The Anthropic adapter", (2,), (3,)),
    "google": Requirement("google-genai", "google.genai", "google", "The Google GenAI adapter", (3,), (4,)),
    "langchain": Requirement("langchain", "langchain.agents", "langchain", "The LangChain adapter", (1, 0), (2,)),
    "langgraph": Requirement("langgraph", "langgraph.prebuilt", "langchain", "The LangGraph adapter", (1, 0), (2,)),
    "openai-agents": Requirement(
        "openai-agents", "agents", "openai-agents", "The OpenAI Agents adapter", (0, 20), (1,)
    ),
    "pydantic-ai": Requirement(
        "pydantic-ai-slim", "pydantic_ai.capabilities", "pydantic-ai", "The Pydantic AI adapter", (2,), (3,)
    ),
    "mcp": Requirement("mcp", "mcp", "mcp", "The MCP adapter", (2,), (3,)),
}


@cache
def require(name: str) -> Any:
    """Import the framework's module; ``MissingExtra`` names the extra and the supported versions otherwise."""
    from importlib.metadata import PackageNotFoundError, version

    wanted = REQUIREMENTS[name]
    try:
        found = version(wanted.package)
        module = import_module(wanted.module)
    except (ImportError, PackageNotFoundError):
        raise missing_extra(wanted.package, wanted.extra, wanted.purpose, wanted.range) from None
    if not _within(found, wanted):
        hint = f"Install a supported version: pip install 'antiphon[{wanted.extra}]'"
        raise MissingExtra(f"{wanted.purpose} needs {wanted.range}; {found} is installed.", hint=hint)
    return module


def _within(found: str, wanted: Requirement) -> bool:
    numbers = _numbers(found)
    return numbers >= wanted.least and (wanted.below is None or numbers < wanted.below)


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def _text(numbers: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in numbers)
