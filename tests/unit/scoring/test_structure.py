"""Structural difference of two call sequences, and the gate on side effects (D13)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import InvalidInput
from antiphon.scoring import Call, _structure, align, effect_gate, structure

RUN: list[dict[str, Any]] = [
    {"kind": "llm", "name": "gpt-4", "arguments": {"messages": ["hi"]}, "tokens": 100, "cost": 0.01, "latencyMs": 900},
    {"name": "search", "arguments": {"q": "lamp", "n": 5}, "value": ["a", "b"], "latencyMs": 30},
    {"name": "search", "arguments": {"q": "sofa", "n": 5}, "value": ["c"]},
    {"name": "refund", "arguments": {"order": 12, "amount": 100}, "value": {"ok": True}, "sideEffect": True},
    {"name": "send_email", "arguments": {"to": "ann", "body": "Refund approved"}, "sideEffect": True},
]


def replayed(**changes: Any) -> list[dict[str, Any]]:
    run = copy.deepcopy(RUN)
    for place, fields in changes.items():
        run[int(place.removeprefix("call"))].update(fields)
    return run


def test_equal_runs_have_no_difference() -> None:
    compared = structure(RUN, RUN)
    assert compared.same
    assert compared.equal == 5
    assert effect_gate(compared) == []
    assert compared.side_effects_changed == 0


def test_every_kind_of_difference() -> None:
    run = replayed(call1={"arguments": {"q": "lamp", "n": 9}}, call2={"value": ["d"]})
    run = [run[0], run[2], run[1], {"name": "lookup", "arguments": {}}, run[3]]
    compared = structure(RUN, run)
    assert [call.name for call in compared.added] == ["lookup"]
    assert [call.name for call in compared.dropped] == ["send_email"]
    assert [str(diff) for diff in compared.changed[0].diffs] == ["arguments.n: 5 -> 9"]
    assert [str(diff) for diff in compared.results_changed[0].diffs] == ["value[0]: 'c' -> 'd'"]
    assert len(compared.reordered) == 1
    wire = compared.to_wire()
    assert wire["changed"][0]["fields"] == [{"path": "arguments.n", "recorded": 5, "current": 9}]
    assert wire["sideEffectsChanged"] == 1


def test_totals() -> None:
    compared = structure(RUN, replayed(call0={"tokens": 60, "cost": 0.004, "latencyMs": 400}))
    assert compared.tokens.to_wire() == {"recorded": 100, "replayed": 60, "difference": -40}
    assert compared.cost.difference == pytest.approx(-0.006)
    assert compared.latency_ms.difference == -500


def test_refusals_flip_both_ways() -> None:
    refused = replayed(call0={"outcome": "refusal", "refusal": "safety"})
    for old, new, kinds in ((RUN, refused, ("valid", "refusal")), (refused, RUN, ("refusal", "valid"))):
        (flip,) = structure(old, new).to_wire()["refusalFlips"]
        assert (flip["recordedKind"], flip["replayedKind"]) == kinds


@pytest.mark.parametrize(
    ("change", "kind", "tool"),
    [
        (lambda run: run.pop(3), "dropped", "refund"),
        (lambda run: run.append({"name": "pay", "arguments": {}, "sideEffect": True}), "added", "pay"),
        (lambda run: run.append(copy.deepcopy(run[4])), "added", "send_email"),
        (lambda run: run[3]["arguments"].update(amount=900), "changed", "refund"),
        (lambda run: run[4]["arguments"].update(body="Refund approved!"), "changed", "send_email"),
        (lambda run: run[4].update(outcome="blocked"), "changed", "send_email"),
    ],
)
def test_the_gate_fails_on_every_changed_side_effect(change: Callable[[Any], Any], kind: str, tool: str) -> None:
    run = copy.deepcopy(RUN)
    change(run)
    (violation,) = effect_gate(structure(RUN, run))
    assert (violation.kind, violation.tool) == (kind, tool)
    assert f"'{tool}'" in violation.message


def test_the_gate_lets_reads_change_and_can_look_at_order() -> None:
    assert effect_gate(structure(RUN, [*replayed(call1={"arguments": {"q": "bed"}}), {"name": "read"}])) == []
    swapped = [*RUN[:3], RUN[4], RUN[3]]
    assert effect_gate(structure(RUN, swapped)) == []
    assert [found.kind for found in effect_gate(structure(RUN, swapped), ordered=True)] == ["reordered"]


def test_every_changed_field_of_every_side_effect_is_seen() -> None:
    for place, call in enumerate(RUN):
        if not call.get("sideEffect"):
            continue
        for name in call["arguments"]:
            changed = replayed(**{f"call{place}": {"arguments": {**call["arguments"], name: "another"}}})
            assert len(effect_gate(structure(RUN, changed))) == 1, name


PLANTED: dict[str, Callable[..., Any]] = {
    "the gate looks at no added call": lambda compared: [v for v in effect_gate(compared) if v.kind != "added"],
    "the gate looks at no changed call": lambda compared: [v for v in effect_gate(compared) if v.kind != "changed"],
    "the gate is open": lambda _: [],
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_in_the_gate_is_found(bug: str) -> None:
    broken = PLANTED[bug]
    added = [*RUN, {"name": "pay", "arguments": {}, "sideEffect": True}]
    changed = replayed(call3={"arguments": {"order": 12, "amount": 900}})
    assert all(effect_gate(structure(RUN, run)) for run in (added, changed))
    assert not all(broken(structure(RUN, run)) for run in (added, changed))


def test_calls_are_paired_by_likeness_not_by_position() -> None:
    old = [{"name": "get", "arguments": {"id": n, "text": f"item {n}"}} for n in range(4)]
    new = [{"name": "get", "arguments": {"id": n, "text": f"item {n} new"}} for n in (2, 0)]
    compared = structure(old, new)
    assert [(change.recorded.arguments["id"], change.replayed.arguments["id"]) for change in compared.changed] == [
        (0, 0),
        (2, 2),
    ]
    assert [call.arguments["id"] for call in compared.dropped] == [1, 3]


def test_lanes_keep_their_own_order() -> None:
    a = [{"name": "a", "arguments": n, "lane": "1"} for n in range(3)]
    b = [{"name": "b", "arguments": n, "lane": "2"} for n in range(3)]
    assert structure([*a, *b], [b[0], a[0], b[1], a[1], b[2], a[2]]).same
    assert structure([*a, *b], [*a, b[1], b[0], b[2]]).reordered
    twins = [{"name": "t", "arguments": 1, "lane": lane} for lane in ("1", "2")]
    assert structure(twins, twins[::-1]).same


def test_crowds_are_paired_in_order_and_quickly() -> None:
    old = [{"name": "get", "arguments": {"id": n}} for n in range(3000)]
    new = [{"name": "get", "arguments": {"id": -n - 1}} for n in range(3000)]
    assert len(structure(old, new).changed) == 3000


def test_a_new_model_is_the_same_call_with_another_name() -> None:
    compared = structure(RUN[:1], replayed(call0={"name": "gpt-4o"})[:1])
    assert [str(diff) for diff in compared.changed[0].diffs] == ["name: 'gpt-4' -> 'gpt-4o'"]


def test_a_call_needs_a_name() -> None:
    with pytest.raises(InvalidInput, match="name"):
        structure([{"arguments": {}}], [])
    assert Call.of(Call(name="x")).to_wire() == {"kind": "tool", "name": "x", "arguments": None, "outcome": "ok"}


CALLS: st.SearchStrategy[list[dict[str, Any]]] = st.lists(
    st.builds(dict, name=st.sampled_from(["a", "b"]), arguments=st.integers(0, 3), sideEffect=st.booleans()), max_size=8
)


@given(CALLS, CALLS)
def test_every_call_has_exactly_one_place(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> None:
    pairs = align([Call.of(call) for call in old], [Call.of(call) for call in new])
    assert [pair.left for pair in pairs if pair.left is not None] == list(range(len(old)))
    assert sorted(pair.right for pair in pairs if pair.right is not None) == list(range(len(new)))
    compared = structure(old, new)
    both = sum(pair.left is not None and pair.right is not None for pair in pairs)
    assert both + len(compared.dropped) == len(old)
    assert both + len(compared.added) == len(new)
    assert compared.same == (
        [(call["name"], call["arguments"]) for call in old] == [(call["name"], call["arguments"]) for call in new]
    )


def test_arguments_that_are_not_json_are_compared_too() -> None:
    assert structure([{"name": "f", "arguments": {1, 2}}], [{"name": "f", "arguments": {1, 2}}]).same
    assert not structure([{"name": "f", "arguments": {1}}], [{"name": "f", "arguments": {2}}]).same
    assert _structure.structure([{"name": "f", "arguments": {"a": 1}}], [{"name": "f", "arguments": {"a": 1.0}}]).same
