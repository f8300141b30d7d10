"""The node types of the host, and what a replay does with each of them (L5, L6).

A *pure* node runs again in a replay. Every other one stands for an observation of the world: live it is made, through
the gateway or the model boundary; in a replay fork it is the recorded one.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import Awaitable, Callable, Container, Mapping
from typing import Any, Literal, Protocol

import msgspec

from antiphon.errors import InvalidInput
from antiphon.host.workflow.model import Node, Workflow

Kind = Literal["pure", "observed", "model"]
Outputs = dict[str, Any]
MAX_DELAY_MS = 7 * 24 * 3_600_000
SIDE_EFFECT_TOOL = "conformance/side-effect"
ACTIVITY_RECIPE = "openwop:activity:v2"
_STRIDE = 1024
"""Logical calls one execution of a node may make."""


class NodeFailed(Exception):
    """A node ended badly: the code and what is told of it."""

    def __init__(self, code: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details: dict[str, Any] | None = dict(details) if details else None

    def to_payload(self) -> dict[str, Any]:
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.details:
            error["details"] = self.details
        return error


def logical_invocation_id(tenant: str, run: str, node: str, ordinal: int, provider_key: str) -> str:
    """What a provider is given as its idempotency key, and the claim is made under.

    >>> logical_invocation_id("t", "r", "n", 0, "mail")
    'W28HqboteHPCDc5SCJ80Wp5cT0x5Ikm1dAZ7q7hbLSc'
    """
    parts = (ACTIVITY_RECIPE, tenant, run, node, str(ordinal), provider_key)
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def ordinal(execution: int, call: int = 0) -> int:
    """The number of a logical effect: the *call*-th of the *execution*-th time the node runs (both from 0)."""
    return execution * _STRIDE + call


class Services(Protocol):
    """What nodes reach: given by the host, each call through the gateway or the model boundary."""

    async def call_tool(self, name: str, arguments: Mapping[str, Any], key: str) -> Any:
        """Call a registered tool under the idempotency key *key*."""

    async def run_agent(self, visit: Visit) -> Any: ...

    async def ask_model(self, visit: Visit) -> Outputs: ...

    def draw(self, what: str) -> Any:
        """A value of clock or chance, written down."""

    def asked(self, visit: Visit) -> str:
        """Digest of what a node asks the world for; of redacted values, so that it gives none of them away."""

    def secrets(self, visit: Visit) -> Mapping[str, str]:
        """What an exception must not quote of a node's inputs, and what stands for it."""


class Heard(msgspec.Struct, eq=False):
    """What a replay heard of the calls that an agent made."""

    refusal: tuple[str, str, str] | None = None
    """Kind of the recorded answer, kind of the new one, and what was said."""
    unverified: list[str] = []
    """Why models could not be asked again."""
    unasked: Callable[[range], int] = lambda rows: 0
    """How many of the recorded calls at these places of the log were not made."""


class Visit(msgspec.Struct, eq=False, kw_only=True):
    """One execution of one node."""

    node: Node
    inputs: Mapping[str, Any]
    tenant: str
    run: str
    execution: int
    """How often the node has ended before."""
    services: Services
    emit: Callable[[str, dict[str, Any]], Awaitable[None]]
    heard: Heard | None = None
    """Filled by an agent in a replay."""

    def key(self, provider: str, call: int = 0) -> str:
        """The identity of a logical effect of this execution."""
        return logical_invocation_id(self.tenant, self.run, self.node.id, ordinal(self.execution, call), provider)


def _object(value: Any, name: str = "value") -> Outputs:
    return value if isinstance(value, dict) else {name: value}


async def _noop(visit: Visit) -> Outputs:
    if visit.node.config.get("nondeterministic"):
        return {"nonce": visit.services.draw("uuid4")}
    return {}


async def _identity(visit: Visit) -> Outputs:
    return dict(visit.inputs)


async def _wait(visit: Visit) -> Outputs:
    delay = visit.inputs.get("delayMs", visit.node.config.get("delayMs", 0))
    if isinstance(delay, bool) or not isinstance(delay, (int, float)) or not 0 <= delay <= MAX_DELAY_MS:
        raise NodeFailed("invalid_input", f"delayMs is a number of milliseconds from 0 to {MAX_DELAY_MS}.")
    await asyncio.sleep(delay / 1000)
    return {}


async def _fail(visit: Visit) -> Outputs:
    config = visit.node.config
    raise NodeFailed(str(config.get("code", "conformance_failure")), "This node always fails.")


async def _side_effect(visit: Visit) -> Outputs:
    arguments = {"nodeId": visit.node.id}
    return _object(await visit.services.call_tool(SIDE_EFFECT_TOOL, arguments, visit.key(SIDE_EFFECT_TOOL)))


async def _nondeterminism(visit: Visit) -> Outputs:
    draw = visit.services.draw
    return {"clock": str(draw("now")), "random": str(draw("random")), "id": str(draw("uuid4"))}


async def _tool(visit: Visit) -> Outputs:
    name = visit.node.type_id.removeprefix("tool:")
    arguments = {**visit.node.config, **visit.inputs}
    return _object(await visit.services.call_tool(name, arguments, visit.key(name)), "result")


async def _agent(visit: Visit) -> Outputs:
    return _object(await visit.services.run_agent(visit), "output")


async def _model(visit: Visit) -> Outputs:
    return await visit.services.ask_model(visit)


_BUILT_IN: dict[str, tuple[Kind, Callable[[Visit], Awaitable[Outputs]]]] = {
    "core.noop": ("pure", _noop),
    "core.identity": ("pure", _identity),
    "core.delay": ("observed", _wait),
    "core.conformance.hold": ("pure", _wait),
    "core.conformance.fail": ("pure", _fail),
    "core.conformance.side-effect": ("observed", _side_effect),
    "core.conformance.nondeterminism": ("observed", _nondeterminism),
}
_PREFIXES: tuple[tuple[str, Kind, Callable[[Visit], Awaitable[Outputs]]], ...] = (
    ("tool:", "observed", _tool),
    ("agent:", "observed", _agent),
    ("core.ai.", "model", _model),
    ("core.llm.", "model", _model),
)


def implementation(node: Node) -> tuple[Kind, Callable[[Visit], Awaitable[Outputs]]] | None:
    """How a node runs and what a replay does with it. A declared side effect is never taken for a pure node."""
    found = _BUILT_IN.get(node.type_id)
    if found is None:
        found = next(((kind, run) for prefix, kind, run in _PREFIXES if node.type_id.startswith(prefix)), None)
    if found is None:
        return None
    kind, run = found
    declared = node.role == "side-effect" or node.config.get("role") == "side-effect"
    if kind == "pure" and (declared or node.config.get("nondeterministic")):
        return "observed", run
    return kind, run


def check_nodes(workflow: Workflow, tools: Container[str], agents: Container[str]) -> None:
    """Refuse a workflow with a node that this host cannot run."""
    for node in workflow.nodes:
        known = implementation(node) is not None
        if node.type_id.startswith("tool:"):
            known = node.type_id.removeprefix("tool:") in tools
        elif node.type_id.startswith("agent:"):
            known = node.type_id.removeprefix("agent:") in agents
        if not known:
            raise InvalidInput(f"Node {node.id!r} has the type {node.type_id!r}, which this host does not know.")
