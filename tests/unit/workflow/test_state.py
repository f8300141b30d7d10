"""The state of a run is a function of its events: any prefix, folded, goes on to the same end."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidInput
from antiphon.host.workflow.model import Workflow, initial_variables, parse
from antiphon.host.workflow.source import Comparison, Source
from antiphon.host.workflow.state import State, WorkflowEvent, fold

NAMES = ["a", "b", "c", "d", "e"]


def flow(edges: list[tuple[str, str, str]], names: list[str] | None = None, **more: Any) -> Workflow:
    nodes = [{"id": name, "typeId": "core.noop"} for name in names or NAMES]
    found = [
        {"id": f"{number}", "sourceNodeId": one, "targetNodeId": other, "triggerRule": rule}
        for number, (one, other, rule) in enumerate(edges)
    ]
    return parse({"id": "flow", "nodes": nodes, "edges": found, **more})


def play(workflow: Workflow, told: list[WorkflowEvent] | None = None, limit: int = 500) -> list[WorkflowEvent]:
    """Run every node to completion, from wherever the events end."""
    events = list(told or [WorkflowEvent("run.started", {"workflowId": workflow.id, "inputs": {}})])
    state = fold(workflow, events)

    def tell(kind: str, **payload: Any) -> None:
        events.append(WorkflowEvent(kind, payload))
        state.apply(events[-1])

    while not state.is_done and len(events) < limit:
        if state.limited:
            tell("workflow.loopback-limit", nodeId=state.limited[0])
            continue
        node = state.next_node
        assert node is not None
        if state.open is None:
            tell("node.started", nodeId=node)
        tell("node.completed", nodeId=node, outputs={"n": state.ended.get(node, 0)})
    tell("run.completed", outputs=state.result())
    return events


RULES = st.sampled_from(["all_success", "any_success", "all"])
EDGES = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), RULES), max_size=8)


@given(EDGES, st.integers(1, 3), st.data())
def test_every_prefix_goes_on_to_the_same_end(
    edges: list[tuple[str, str, str]], loops: int, data: st.DataObject
) -> None:
    workflow = flow(edges, settings={"maxLoopbackIterations": loops})
    whole = play(workflow)
    assert len(whole) < 500
    cut = data.draw(st.integers(1, len(whole) - 1))
    assert play(workflow, whole[:cut]) == whole


@given(EDGES, st.integers(1, 3))
def test_no_node_runs_more_often_than_allowed(edges: list[tuple[str, str, str]], loops: int) -> None:
    state = fold(
        flow(edges, settings={"maxLoopbackIterations": loops}),
        play(flow(edges, settings={"maxLoopbackIterations": loops})),
    )
    assert all(count <= loops for count in state.ended.values())


def test_a_join_waits_for_all_and_any_does_not() -> None:
    order = [
        told.payload["nodeId"]
        for told in play(flow([("a", "c", "all_success"), ("b", "c", "all_success")], ["a", "b", "c"]))
        if told.type == "node.started"
    ]
    assert order == ["a", "b", "c"]
    edges = [("a", "c", "any_success"), ("b", "c", "any_success")]
    order = [told.payload["nodeId"] for told in play(flow(edges, ["a", "b", "c"])) if told.type == "node.started"]
    assert order == ["a", "b", "c", "c"]


def test_the_loop_of_the_fixture() -> None:
    edges = [("start", "effect", "any_success"), ("effect", "wait", "all_success"), ("wait", "effect", "any_success")]
    events = play(flow(edges, ["start", "effect", "wait"], settings={"maxLoopbackIterations": 2}))
    assert [told.payload["nodeId"] for told in events if told.type == "node.started"] == [
        "start",
        "effect",
        "wait",
        "effect",
        "wait",
    ]
    assert [told.type for told in events][-2:] == ["workflow.loopback-limit", "run.completed"]


def test_outputs_become_variables_and_inputs_are_bound() -> None:
    workflow = parse(
        {
            "id": "f",
            "variables": [{"name": "x", "type": "number", "defaultValue": 1}],
            "nodes": [
                {"id": "a", "typeId": "core.noop", "outputs": {"n": {"type": "variable", "variableName": "x"}}},
                {
                    "id": "b",
                    "typeId": "core.identity",
                    "inputs": {
                        "x": {"type": "variable", "variableName": "x"},
                        "y": {"type": "static", "value": [1]},
                        "z": {"type": "node", "nodeId": "a", "output": "n"},
                        "all": {"type": "node", "nodeId": "a"},
                    },
                },
            ],
            "edges": [{"id": "1", "sourceNodeId": "a", "targetNodeId": "b"}],
        }
    )
    state = State(workflow)
    for told in (
        WorkflowEvent("run.started", {"inputs": {}}),
        WorkflowEvent("node.started", {"nodeId": "a"}),
        WorkflowEvent("node.completed", {"nodeId": "a", "outputs": {"n": 7}}),
    ):
        state.apply(told)
    assert state.variables == {"x": 7}
    assert state.bind("b") == {"x": 7, "y": [1], "z": 7, "all": {"n": 7}}


@pytest.mark.parametrize(
    "document",
    [
        b"{",
        {},
        {"id": "x", "nodes": []},
        {"id": "", "nodes": [{"id": "a", "typeId": "t"}]},
        {"id": "x", "nodes": [{"id": "a", "typeId": "t"}, {"id": "a", "typeId": "t"}]},
        {
            "id": "x",
            "nodes": [{"id": "a", "typeId": "t"}],
            "edges": [{"id": "1", "sourceNodeId": "a", "targetNodeId": "b"}],
        },
        {"id": "x", "nodes": [{"id": "a", "typeId": "t", "inputs": {"i": {"type": "variable", "variableName": "v"}}}]},
        {"id": "x", "nodes": [{"id": "a", "typeId": "t", "inputs": {"i": {"type": "node", "nodeId": "v"}}}]},
        {"id": "x", "nodes": [{"id": "a", "typeId": "t"}], "settings": {"timeout": -1}},
        {"id": "x", "nodes": [{"id": "a", "typeId": "t"}], "settings": {"maxLoopbackIterations": 0}},
    ],
)
def test_what_is_not_a_workflow_is_refused(document: Any) -> None:
    with pytest.raises(InvalidInput):
        parse(document)


def test_inputs_are_checked() -> None:
    workflow = parse(
        {
            "id": "x",
            "nodes": [{"id": "a", "typeId": "t"}],
            "variables": [
                {"name": "n", "type": "number", "required": True},
                {"name": "s", "type": "string", "defaultValue": "d"},
                {"name": "o", "type": "object"},
            ],
        }
    )
    assert initial_variables(workflow, {"n": 1, "unknown": 2}) == {"n": 1, "s": "d"}
    for bad in ({}, {"n": "1"}, {"n": True}, {"n": 1, "s": 2}, {"n": 1, "o": []}):
        with pytest.raises(InvalidInput):
            initial_variables(workflow, bad)


def _log(*kinds: tuple[str, str]) -> list[WorkflowEvent]:
    return [WorkflowEvent(kind, {"nodeId": node} if node else {}) for kind, node in kinds]


def test_a_comparison_names_the_first_difference_only() -> None:
    log = _log(("run.started", ""), ("node.started", "a"), ("node.completed", "a"), ("run.completed", ""))
    same = Comparison(Source("s", log))
    assert [same.see(told) for told in log] == [None] * 4
    extra = same.see(WorkflowEvent("node.started", {"nodeId": "b"}))
    assert extra is not None
    assert (extra["divergenceKind"], extra["atSequence"]) == ("extra", 4)
    assert same.see(WorkflowEvent("node.started", {"nodeId": "c"})) is None
    early = Comparison(Source("s", log))
    early.see(log[0])
    missing = early.see(log[3])
    assert missing is not None
    assert (missing["divergenceKind"], missing["originalEventId"]) == ("missing", "s.1")
    output = Comparison(Source("s", [WorkflowEvent("node.completed", {"nodeId": "a", "outputs": {"x": 1}})]))
    found = output.see(WorkflowEvent("node.completed", {"nodeId": "a", "outputs": {"x": 1.5}}))
    assert found is not None
    assert found["divergenceKind"] == "output"
    stopped = Comparison(Source("s", _log(("run.cancelled", ""))))
    assert stopped.see(WorkflowEvent("node.completed", {"nodeId": "a"})) is None


def test_outcomes_are_found_by_ordinal_with_what_was_emitted() -> None:
    log = [
        *_log(("node.started", "a"), ("envelope.retry.attempted", "a"), ("node.completed", "a")),
        *_log(("node.started", "b"), ("node.completed", "b"), ("node.started", "a"), ("envelope.refusal", "a")),
        WorkflowEvent("node.failed", {"nodeId": "a", "error": {"code": "x", "message": "y"}}),
        *_log(("node.started", "a")),
    ]
    source = Source("s", log)
    first, second = source.outcome("a", 0), source.outcome("a", 1)
    assert first is not None
    assert second is not None
    assert (first.kind, [told.type for told in first.emitted], first.sequence) == (
        "valid",
        ["envelope.retry.attempted"],
        2,
    )
    assert (second.kind, second.sequence) == ("refusal", 6)
    assert source.outcome("a", 2) is None
    assert source.outcome("z", 0) is None
