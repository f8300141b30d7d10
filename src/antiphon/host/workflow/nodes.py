"""The node types of the host, and what a replay does with each of them (L5, L6).

A *pure* node runs again in a replay. Every other node is an external observation: a live run makes it through the
gateway or the model boundary; a replay fork takes it from the recording.
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
"""The maximum number of logical calls per execution of a node."""


class NodeFailed(Exception):
    """A node failed: the error code and its details."""

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
    """The id used as the provider's idempotency key and as the key of the claim.

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
    """The services that the host gives to nodes; each call goes through the gateway or the model boundary."""

    async def call_tool(self, name: str, arguments: Mapping[str, Any], key: str) -> Any:
        """Call a registered tool under the idempotency key *key*."""

    async def run_agent(self, visit: NodeExecution) -> Any: ...

    async def ask_model(self, visit: NodeExecution) -> Outputs: ...

    def draw(self, what: str) -> Any:
        """A recorded value of the clock or of a random source."""

    def request_digest(self, visit: NodeExecution) -> str:
        """The digest of a node's external request, computed from redacted values so that it reveals none of them."""

    def secrets(self, visit: NodeExecution) -> Mapping[str, str]:
        """The secrets in a node's inputs that exceptions must not quote, and their replacements."""


class AgentObservations(msgspec.Struct, eq=False):
    """What a replay observed of an agent's calls."""

    refusal: tuple[str, str, str] | None = None
    """Kind of the recorded answer, kind of the new one, and the refusal text."""
    unverified: list[str] = []
    """Reasons why models could not be asked again."""
    unasked: Callable[[range], int] = lambda rows: 0
    """The number of recorded calls in these log rows that were not made."""


class NodeExecution(msgspec.Struct, eq=False, kw_only=True):
    """One execution of one node."""

    node: Node
    inputs: Mapping[str, Any]
    tenant: str
    run: str
    execution: int
    """The number of earlier executions of the node."""
    services: Services
    emit: Callable[[str, dict[str, Any]], Awaitable[None]]
    observations: AgentObservations | None = None
    """Filled by an agent in a replay."""

    def key(self, provider: str, call: int = 0) -> str:
        """The identity of a logical effect of this execution."""
        return logical_invocation_id(self.tenant, self.run, self.node.id, ordinal(self.execution, call), provider)


def _object(value: Any, name: str = "value") -> Outputs:
    return value if isinstance(value, dict) else {name: value}


async def _noop(visit: NodeExecution) -> Outputs:
    if visit.node.config.get("nondeterministic"):
        return {"nonce": visit.services.draw("uuid4")}
    return {}


async def _identity(visit: NodeExecution) -> Outputs:
    return dict(visit.inputs)


async def _wait(visit: NodeExecution) -> Outputs:
    delay = visit.inputs.get("delayMs", visit.node.config.get("delayMs", 0))
    if isinstance(delay, bool) or not isinstance(delay, (int, float)) or not 0 <= delay <= MAX_DELAY_MS:
        raise NodeFailed("invalid_input", f"delayMs is a number of milliseconds from 0 to {MAX_DELAY_MS}.")
    await asyncio.sleep(delay / 1000)
    return {}


async def _fail(visit: NodeExecution) -> Outputs:
    config = visit.node.config
    raise NodeFailed(str(config.get("code", "conformance_failure")), "This node always fails.")


async def _side_effect(visit: NodeExecution) -> Outputs:
    arguments = {"nodeId": visit.node.id}
    return _object(await visit.services.call_tool(SIDE_EFFECT_TOOL, arguments, visit.key(SIDE_EFFECT_TOOL)))


async def _nondeterminism(visit: NodeExecution) -> Outputs:
    draw = visit.services.draw
    return {"clock": str(draw("now")), "random": str(draw("random")), "id": str(draw("uuid4"))}


async def _tool(visit: NodeExecution) -> Outputs:
    name = visit.node.type_id.removeprefix("tool:")
    arguments = {**visit.node.config, **visit.inputs}
    return _object(await visit.services.call_tool(name, arguments, visit.key(name)), "result")


async def _agent(visit: NodeExecution) -> Outputs:
    return _object(await visit.services.run_agent(visit), "output")


async def _model(visit: NodeExecution) -> Outputs:
    return await visit.services.ask_model(visit)


Function = Callable[[NodeExecution], Awaitable[Outputs]]

_BUILT_IN: dict[str, tuple[Kind, Function]] = {
    "core.noop": ("pure", _noop),
    "core.identity": ("pure", _identity),
    "core.delay": ("observed", _wait),
    "core.conformance.hold": ("pure", _wait),
    "core.conformance.fail": ("pure", _fail),
    "core.conformance.side-effect": ("observed", _side_effect),
    "core.conformance.nondeterminism": ("observed", _nondeterminism),
}
_PREFIXES: tuple[tuple[str, Kind, Function], ...] = (
    ("tool:", "observed", _tool),
    ("agent:", "observed", _agent),
    ("core.ai.", "model", _model),
    ("core.llm.", "model", _model),
)


def implementation(node: Node) -> tuple[Kind, Function] | None:
    """How a node runs and how a replay treats it; a declared side effect never counts as a pure node."""
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
