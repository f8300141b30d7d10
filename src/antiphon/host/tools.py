"""Tools that workflows can use: those of the files and modules the configuration names."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from typing import Any

from antiphon.contract.spec import ToolSpec
from antiphon.errors import ConfigError
from antiphon.ops.entry import load_module


def tools_of(places: Sequence[str]) -> list[tuple[Callable[..., Any], ToolSpec]]:
    """The functions decorated as tools in *places* (``file.py`` or a module), undecorated, with what they declare."""
    found: list[tuple[Callable[..., Any], ToolSpec]] = []
    for place in places:
        module = load_module(place)
        tools = [value.tool for value in vars(module).values() if hasattr(value, "tool") and callable(value)]
        named = [tool for tool in tools if isinstance(getattr(tool, "spec", None), ToolSpec)]
        if not named:
            raise ConfigError(f"[host] tools: {place} has no tool.", path="host.tools")
        found += [(tool.function, tool.spec) for tool in named]
    return found


def performed_effect(nodeId: str) -> dict[str, str]:  # noqa: N803 - the name on the wire
    """The reserved effect of the conformance fixtures: something that would be different if it were done again."""
    return {"nodeId": nodeId, "effectId": str(uuid.uuid4())}
