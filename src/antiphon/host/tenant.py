"""A tenant of the host: its gateway, with the tools that the configuration names."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from antiphon.contract.spec import ToolSpec
from antiphon.errors import ConfigError
from antiphon.host.workflow.nodes import SIDE_EFFECT_TOOL
from antiphon.ops.app import Antiphon
from antiphon.ops.entry import load_module
from antiphon.ops.gateways import AsyncGateway


class Tenant:
    """One tenant's view: its gateway with all tools, its runs, its audit log."""

    def __init__(self, base: Antiphon, name: str, tools: Sequence[tuple[Any, ToolSpec]]) -> None:
        self.name = name
        self.app = Antiphon(base.loaded, store=base.store, tenant=name, clock=base.clock)
        self._tools = tools

    @functools.cached_property
    def gateway(self) -> AsyncGateway:
        """The gateway, made in the host's event loop."""
        gateway = self.app.async_gateway
        for function, spec in self._tools:
            gateway.register(function, spec)
        namespace, _, name = SIDE_EFFECT_TOOL.partition("/")
        gateway.register(performed_effect, ToolSpec(name=name, namespace=namespace, idempotent=False, effect="write"))
        return gateway


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
