"""The state of a workflow run, computed from its events alone: the start of resumed runs and forks (L5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from antiphon.host.workflow.model import DEFAULT_LOOPBACKS, Edge, Workflow, initial_variables

TERMINAL = {"run.completed": "completed", "run.failed": "failed", "run.cancelled": "cancelled"}


class WorkflowEvent(NamedTuple):
    """One event of the workflow protocol, without times and ids."""

    type: str
    payload: Mapping[str, Any]
    request_digest: str = ""
    """For a starting node, the digest of its external request; compared by a replay, never shown."""


class State:
    """Variables, pending nodes, and how often each node has ended."""

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.inputs: dict[str, Any] = {}
        self.variables: dict[str, Any] = {}
        self.outputs: dict[str, dict[str, Any]] = {}
        self.ended: dict[str, int] = {}
        """Terminal events per node; the execution ordinal is one more."""
        self.queue: list[str] = []
        self.open: str | None = None
        """The node that has started but not ended."""
        self.emitted: list[WorkflowEvent] = []
        """Events that the open node has emitted since it started."""
        self.status: str = "pending"
        self.error: dict[str, Any] | None = None
        self.failed_node: str | None = None
        self.sequence: int = 0
        """The number of the next event."""
        self.limited: list[str] = []
        """Nodes that reached their loopback limit, still to be reported."""
        self._tokens: dict[str, int] = {}
        self._limit = workflow.settings.max_loopback_iterations or DEFAULT_LOOPBACKS

    def apply(self, event: WorkflowEvent) -> None:
        """Apply one event."""
        kind, payload, _ = event
        self.sequence += 1
        if kind == "run.started":
            self.status = "running"
            self.inputs = dict(payload.get("inputs") or {})
            self.variables = initial_variables(self.workflow, self.inputs)
            self.queue = self.workflow.entries()
        elif kind == "node.started":
            self.open = str(payload["nodeId"])
            self.emitted = []
            if self.open in self.queue:
                self.queue.remove(self.open)
        elif kind == "node.completed":
            self._completed(str(payload["nodeId"]), dict(payload.get("outputs") or {}))
        elif kind == "node.failed":
            node = str(payload["nodeId"])
            self.ended[node] = self.ended.get(node, 0) + 1
            self.open = None
            self.failed_node = node
            self.error = dict(payload["error"])
        elif kind == "workflow.loopback-limit":
            self.limited = self.limited[1:]
        elif kind in TERMINAL:
            self.status = TERMINAL[kind]
            self.error = dict(payload["error"]) if "error" in payload else None
            self.queue, self.open = [], None
        elif self.open is not None:
            self.emitted.append(event)

    def _completed(self, node_id: str, outputs: dict[str, Any]) -> None:
        self.open = None
        self.ended[node_id] = self.ended.get(node_id, 0) + 1
        self.outputs[node_id] = outputs
        for name, binding in self.workflow.node(node_id).outputs.items():
            if binding.type == "variable" and binding.variable_name is not None and name in outputs:
                self.variables[binding.variable_name] = outputs[name]
        for edge in self.workflow.edges:
            if edge.source_node_id == node_id and self._fires(edge):
                self._enqueue(edge.target_node_id)

    def _fires(self, edge: Edge) -> bool:
        """Whether the target of *edge* may run now that its source has succeeded."""
        if edge.trigger_rule == "any_success":
            return True
        self._tokens[edge.id] = self._tokens.get(edge.id, 0) + 1
        needed = [
            other.id
            for other in self.workflow.edges
            if other.target_node_id == edge.target_node_id and other.trigger_rule != "any_success"
        ]
        if any(not self._tokens.get(other) for other in needed):
            return False
        for other in needed:
            self._tokens[other] -= 1
        return True

    def _enqueue(self, node_id: str) -> None:
        if self.ended.get(node_id, 0) + self.queue.count(node_id) >= self._limit:
            self.limited.append(node_id)
        else:
            self.queue.append(node_id)

    @property
    def next_node(self) -> str | None:
        """The next node to run; an interrupted one comes first."""
        if self.open is not None:
            return self.open
        return self.queue[0] if self.queue else None

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to run or report."""
        return self.next_node is None and not self.limited

    def bind(self, node_id: str) -> dict[str, Any]:
        """The inputs of a node; an agent without bindings gets those of the run."""
        node = self.workflow.node(node_id)
        if not node.inputs and node.type_id.startswith("agent:"):
            return dict(self.inputs)
        bound: dict[str, Any] = {}
        for name, binding in node.inputs.items():
            if binding.type == "static":
                bound[name] = binding.value
            elif binding.type == "variable":
                if binding.variable_name in self.variables:
                    bound[name] = self.variables[binding.variable_name]
            else:
                outputs = self.outputs.get(binding.node_id or "", {})
                bound[name] = outputs if binding.output is None else outputs.get(binding.output)
        return bound

    def result(self) -> dict[str, Any]:
        """The result of the run: the outputs of the nodes without outgoing edges."""
        last = self.workflow.sinks() or list(self.outputs)[-1:]
        return {node: self.outputs[node] for node in last if self.outputs.get(node)}


def fold(workflow: Workflow, events: Iterable[WorkflowEvent]) -> State:
    """The state after *events*."""
    state = State(workflow)
    for event in events:
        state.apply(event)
    return state
