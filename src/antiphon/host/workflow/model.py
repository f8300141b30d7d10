"""The JSON form of a workflow: nodes, edges, variables, settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from antiphon.canonical import canonical_digest
from antiphon.errors import InvalidInput
from antiphon.host.workflow.schema import is_a

Name = Annotated[str, Meta(min_length=1, max_length=128)]
TriggerRule = Literal["all_success", "any_success", "all"]
DEFAULT_LOOPBACKS = 100
"""How often a node may run per run if the workflow does not say."""


class Binding(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The source of a node input: a fixed value, a variable, or an output of another node."""

    type: Literal["static", "variable", "node"]
    value: Any = None
    variable_name: str | None = None
    node_id: str | None = None
    output: str | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """One step. ``outputs`` says which of its outputs become variables."""

    id: Name
    type_id: Name
    name: str = ""
    role: str | None = None
    config: dict[str, Any] = {}
    inputs: dict[str, Binding] = {}
    outputs: dict[str, Binding] = {}


class Edge(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A connection between two nodes; with ``any_success`` the target runs each time this source succeeds."""

    id: str
    source_node_id: str
    target_node_id: str
    trigger_rule: TriggerRule = "all_success"


class Variable(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A named value of the run, set by inputs."""

    name: Name
    type: Literal["string", "number", "boolean", "object", "array", "any"] = "any"
    required: bool = False
    default_value: Any = None


class Settings(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Limits for runs of this workflow."""

    timeout: Annotated[float, Meta(ge=0)] = 0
    """Milliseconds; 0 means none."""
    max_loopback_iterations: Annotated[int, Meta(ge=1)] | None = None


class Workflow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A validated workflow definition."""

    id: Name
    nodes: Annotated[list[Node], Meta(min_length=1)]
    edges: list[Edge] = []
    variables: list[Variable] = []
    settings: Settings = Settings()
    name: str = ""
    version: str = ""

    def node(self, node_id: str) -> Node:
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise InvalidInput(f"The workflow {self.id!r} has no node {node_id!r}: it was changed since this was recorded.")

    def entries(self) -> list[str]:
        """Nodes without incoming edges, in document order; the first node if there are none."""
        targets = {edge.target_node_id for edge in self.edges}
        return [node.id for node in self.nodes if node.id not in targets] or [self.nodes[0].id]

    def sinks(self) -> list[str]:
        """Nodes without outgoing edges."""
        sources = {edge.source_node_id for edge in self.edges}
        return [node.id for node in self.nodes if node.id not in sources]

    @property
    def digest(self) -> str:
        """A digest that differs between two versions of a definition."""
        return canonical_digest(msgspec.to_builtins(self))


def parse(document: Any) -> Workflow:
    """Parse a workflow from JSON; an error names the invalid place."""
    try:
        if isinstance(document, (bytes, str)):
            workflow = msgspec.json.decode(document, type=Workflow)
        else:
            workflow = msgspec.convert(document, Workflow)
    except (msgspec.ValidationError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"This is not a workflow: {error}.") from None
    known = _unique("nodes", (node.id for node in workflow.nodes))
    _unique("edges", (edge.id for edge in workflow.edges))
    variables = _unique("variables", (variable.name for variable in workflow.variables))
    for edge in workflow.edges:
        for end in (edge.source_node_id, edge.target_node_id):
            if end not in known:
                raise InvalidInput(f"Edge {edge.id!r} names the node {end!r}, which does not exist.", path="$.edges")
    for node in workflow.nodes:
        for binding in (*node.inputs.values(), *node.outputs.values()):
            if binding.type == "variable" and binding.variable_name not in variables:
                raise InvalidInput(
                    f"Node {node.id!r} names the variable {binding.variable_name!r}, which does not exist.",
                    path="$.nodes",
                )
            if binding.type == "node" and binding.node_id not in known:
                raise InvalidInput(f"Node {node.id!r} reads the node {binding.node_id!r}.", path="$.nodes")
    return workflow


def _unique(what: str, names: Iterable[str]) -> set[str]:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidInput(f"Duplicate {name!r} in {what}.", path=f"$.{what}")
        seen.add(name)
    return seen


def initial_variables(workflow: Workflow, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The variables of a new run; a missing or ill-typed input is an error that names it."""
    values: dict[str, Any] = {}
    for variable in workflow.variables:
        if variable.name in inputs:
            value = inputs[variable.name]
            if not is_a(value, variable.type):
                raise InvalidInput(
                    f"The input {variable.name!r} is a {variable.type}.", path=f"$.inputs.{variable.name}"
                )
            values[variable.name] = value
        elif variable.default_value is not None:
            values[variable.name] = variable.default_value
        elif variable.required:
            raise InvalidInput(
                f"The workflow needs the input {variable.name!r} ({variable.type}).", path=f"$.inputs.{variable.name}"
            )
    return values
