"""A matrix of runs and variants: cells are claims, the table has each once, and nothing is paid for twice."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.errors import InvalidInput, NotFound, ReplayBlocked
from antiphon.ops.cells import perform
from antiphon.ops.executors import Executor, InProcess
from antiphon.ops.matrix import Plan, Status, resumed, select
from antiphon.ops.matrix_result import matrices, one_matrix, ordered
from antiphon.ops.matrix_table import Table
from tests.unit.replay.kit import memory_app, says

PRICES = {"old": {"input": 1.0, "output": 10.0}, "new": {"input": 2.0, "output": 20.0}}


class Provider:
    """Counts what it is paid for; it is interrupted at the calls that it is told."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.wrong: set[str] = set()
        self.stop_at: set[int] = set()
        self.broken: set[str] = set()
        self.fail_at: set[int] = set()
        self.writes: Path | None = None
        self.usage = True
        self.down = False

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((body["model"], body["messages"][-1]["content"]))
        if self.writes is not None:
            self.writes.write_text("asked")
        if self.down or len(self.asked) in self.fail_at:
            raise ConnectionError("no route")
        if body["model"] in self.broken:
            raise ConnectionError("no such model")
        if len(self.asked) in self.stop_at:
            raise KeyboardInterrupt
        said = says("no" if body["model"] in self.wrong else "yes")
        return said if self.usage else {**said, "usage": None}


class Agent:
    """Asks its model twice."""

    def __init__(self) -> None:
        self.app = antiphon.Antiphon(
            {"replay": {"embedder": "lexical"}, "telemetry": {"logs": False}, "prices": PRICES},
            store=memory_app().store,
        )
        self.provider = Provider()
        self.careless = False
        self.tries = 1

    def main(self, question: str) -> str:
        run = antiphon.current_run()
        said = ""
        for turn in range(2):
            request = {"model": "old", "messages": [{"role": "user", "content": f"{question} {turn}"}]}
            for left in reversed(range(self.tries)):
                try:
                    said += run.llm(request, self.provider)["choices"][0]["message"]["content"]
                    break
                except Exception:
                    if not self.careless and not left:
                        raise
        return said

    def record(self, count: int) -> list[str]:
        runs = [str(self.app.record(self.main, f"question {number}").id) for number in range(count)]
        self.provider.asked.clear()
        return runs

    def plan(self, runs: Any, samples: Any = 1, variants: Any = ("new",), **more: Any) -> Any:
        given = {"baseline": True, "entry": self.main, "llm": self.provider, "app": self.app, **more}
        return antiphon.matrix(runs, list(variants), samples, **given)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANTIPHON_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    reviewed = tmp_path / "side_effect" / "side_effects.yaml"
    reviewed.parent.mkdir()
    reviewed.write_text("tools: {}\ndone: true\n")
    monkeypatch.setattr("antiphon.ops.side_effects.file_of", lambda entry: reviewed)
    return tmp_path


@pytest.fixture
def agent() -> Agent:
    return Agent()


def cells(rows: list[dict[str, Any]]) -> list[tuple[str, int, str]]:
    return sorted((row["variant"], row["sample"], row["run"]) for row in rows)


def test_every_run_is_replayed_with_every_variant(agent: Agent) -> None:
    runs = agent.record(3)
    seen: list[Status] = []
    result = agent.plan(runs, 2).run(progress=seen.append)
    rows = result.to_dicts()
    lanes = ("baseline", "new")
    assert cells(rows) == sorted((lane, sample, run) for lane in lanes for sample in (0, 1) for run in runs)
    assert {row["status"] for row in rows} == {"pass"}
    assert len(agent.provider.asked) == 3 * 2 * 2 * 2
    assert [status.done for status in seen] == list(range(1, 13))
    assert seen[-1].calls == 24
    assert result.verdicts()[0]["pairs"] == 6
    assert json.loads(result.path.read_text().splitlines()[0])["run"] in runs


def test_a_second_sample_is_asked_for_and_not_the_first_one_again(agent: Agent) -> None:
    runs = agent.record(1)
    agent.plan(runs, 3).run()
    assert len(agent.provider.asked) == 3 * 2 * 2


def test_equal_cells_are_paid_for_once_unless_they_are_asked_for_afresh(agent: Agent) -> None:
    runs = agent.record(2)
    agent.plan(runs).run()
    agent.provider.asked.clear()
    again = agent.plan(runs).run()
    assert agent.provider.asked == []
    assert all(row["reused"] for row in again.to_dicts())
    agent.plan(runs, fresh=True).run()
    assert len(agent.provider.asked) == 8


def test_variants_that_differ_by_name_only_have_samples_of_their_own(agent: Agent) -> None:
    runs = agent.record(3)
    agent.plan(runs, 2, ["new"], baseline=False).run()
    agent.provider.asked.clear()
    twins = [{"name": "first", "model": "new"}, {"name": "second", "model": "new"}]
    result = agent.plan(runs, 2, twins, baseline=False).run()
    assert [lane["cells"] for lane in result.lanes()] == [6, 6]
    assert result.verdicts()[0]["pairs"] == 6
    assert {row["variant"] for row in result.to_dicts() if row.get("reused")} == {"first"}
    assert len(agent.provider.asked) == 3 * 2 * 2, "the first one has the cells of the earlier matrix"
    assert len({row["replayRun"] for row in result.to_dicts()}) == 12


def test_a_variant_without_changes_beside_the_baseline_is_an_independent_sample(agent: Agent) -> None:
    result = agent.plan(agent.record(2), variants=[{"name": "again"}]).run()
    assert [lane["cells"] for lane in result.lanes()] == [2, 2]
    assert len(agent.provider.asked) == 2 * 2 * 2


def test_a_matrix_without_all_its_cells_is_an_error(agent: Agent) -> None:
    plan = agent.plan(agent.record(2))

    class Mixed(InProcess):
        def completed(self, timeout_s: float) -> list[dict[str, Any]]:
            return [{**row, "variant": "baseline"} for row in super().completed(timeout_s)]

    with pytest.raises(antiphon.errors.AntiphonError, match="ended before all cells") as raised:
        plan.run(Mixed(agent.app))
    assert raised.value.code == "matrix_unfinished"
    assert raised.value.hint == f"Resume with: antiphon matrix --resume {plan.id}"
    assert plan.run().is_complete


def test_a_matrix_is_complete_although_one_of_its_comparisons_was_decided_early(agent: Agent) -> None:
    runs = agent.record(12)
    agent.provider.wrong = {"new"}
    result = agent.plan(runs, "auto", ["new", "other"]).run()
    assert [one["verdict"] for one in result.verdicts()] == ["worse", "undecided"]
    wire = result.to_wire()
    assert wire["done"] < wire["total"]
    assert wire["isComplete"]


@pytest.mark.parametrize("changed", [{"min_ars": 0.9}, {"semantic_threshold": 0.9}, {"exact_only": True}])
def test_other_settings_make_other_cells(agent: Agent, changed: dict[str, Any]) -> None:
    runs = agent.record(1)
    plan = agent.plan(runs)
    first = plan.run()
    assert first.to_wire()["embedder"] == "lexical"
    assert "embedder: lexical" in first.text()
    agent.provider.asked.clear()
    other = antiphon.Antiphon({"replay": {"embedder": "lexical", **changed}}, store=agent.app.store)
    agent.plan(runs, app=other).run()
    assert len(agent.provider.asked) == 4
    with pytest.raises(InvalidInput, match=f"{next(iter(changed))}: changed since") as refused:
        Plan(other, plan.document).run()
    assert refused.value.code == "other_settings"


def test_a_sandbox_or_its_absence_makes_other_cells(agent: Agent) -> None:
    runs = agent.record(1)
    agent.plan(runs).run()
    agent.provider.asked.clear()
    agent.plan(runs, sandbox=False).run()
    assert len(agent.provider.asked) == 4


def test_another_review_of_side_effects_makes_other_cells(agent: Agent, home: Path) -> None:
    runs = agent.record(1)
    plan = agent.plan(runs)
    plan.run()
    agent.provider.asked.clear()
    (home / "side_effect" / "side_effects.yaml").write_text("tools: {send: true}\ndone: true\n")
    with pytest.raises(InvalidInput, match="side_effects: changed since"):
        plan.run()
    agent.plan(runs).run()
    assert len(agent.provider.asked) == 4


def test_a_worker_judges_by_the_settings_of_the_matrix_or_not_at_all(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = agent.plan(agent.record(1), min_ars=0.7)
    plan.run()
    agent.provider.asked.clear()
    plan.document.salt = "again"
    work = plan.work(plan.document.runs[0], plan.document.variants[0], 0)
    other = antiphon.Antiphon({"replay": {"embedder": "lexical", "exact_only": True}}, store=agent.app.store)
    assert perform([work], other)[0]["code"] == "other_settings"
    monkeypatch.setenv("ANTIPHON_MODELS", "/nowhere")
    without = {**work, "settings": {**work["settings"], "embedder": "minilm"}}
    assert perform([without], agent.app)[0]["code"] == "model_missing"
    assert agent.provider.asked == []


def test_the_estimate_is_what_is_spent(agent: Agent) -> None:
    runs = agent.record(2)
    plan = agent.plan(runs, 2)
    estimate = plan.estimate()
    spent = plan.run().lanes()
    assert (estimate.cells, estimate.calls) == (8, 16)
    assert (estimate.input_tokens, estimate.output_tokens) == (16 * 7, 16 * 3)
    assert estimate.cost == pytest.approx(sum(lane["cost"] for lane in spent)) != 0
    assert estimate.calls == sum(lane["calls"] for lane in spent)


def test_a_model_without_a_price_has_no_cost_and_no_budget(agent: Agent) -> None:
    plan = agent.plan(agent.record(1), variants=["unheard of"], budget=1.0)
    assert plan.estimate().cost is None
    assert plan.estimate().unpriced == ["unheard of"]
    with pytest.raises(InvalidInput, match="needs prices"):
        plan.run()
    assert agent.provider.asked == []


def test_the_budget_is_reserved_before_each_cell(agent: Agent) -> None:
    runs = agent.record(4)
    estimate = agent.plan(runs).estimate()
    assert estimate.cost is not None
    plan = agent.plan(runs, budget=estimate.cost / 2)
    result = plan.run()
    assert result.stopped == "budget"
    assert 0 < sum(lane["cost"] for lane in result.lanes()) <= estimate.cost / 2
    assert "--resume" in result.text()


def test_calls_have_a_budget_of_their_own(agent: Agent) -> None:
    result = agent.plan(agent.record(4), max_calls=7).run()
    assert result.stopped == "budget"
    assert len(agent.provider.asked) == 6


def test_what_bad_rows_have_spent_counts(agent: Agent) -> None:
    plan = agent.plan(agent.record(6), max_calls=9, baseline=False)
    agent.provider.fail_at = set(range(2, 100, 2))  # the first call of a cell is answered, the second one fails
    result = plan.run()
    rows = result.to_dicts()
    assert {row["status"] for row in rows} == {"error"}
    assert [row["calls"] for row in rows] == [2] * 4
    assert all(row["cost"] > 0 for row in rows)
    assert (result.stopped, len(agent.provider.asked)) == ("budget", 8)
    again = plan.run()
    assert (again.stopped, len(agent.provider.asked)) == ("budget", 8), (
        "what was spent before is known at the next start"
    )
    assert len(again.to_dicts()) == 4
    agent.provider.fail_at = set()
    plan.document.max_calls = 100
    seen: list[Status] = []
    last = plan.run(progress=seen.append)
    assert {row["status"] for row in last.to_dicts()} == {"pass"}
    assert seen[-1].calls == len(agent.provider.asked) == 8 + 4 + 2 * 2, "answers of the first attempt are given again"
    assert len(last.path.read_text().splitlines()) == 6


def test_a_call_of_a_worker_that_died_counts(agent: Agent) -> None:
    class Deadly(InProcess):
        def completed(self, timeout_s: float) -> list[dict[str, Any]]:
            rows = super().completed(timeout_s)
            kept = ("key", "run", "variant", "sample", "seconds")
            return [{**{name: row[name] for name in kept}, "status": "error", "reasons": [""]} for row in rows]

    result = agent.plan(agent.record(4), max_calls=5).run(Deadly(agent.app))
    assert [row["calls"] for row in result.to_dicts()] == [2, 2]


def test_cells_that_another_matrix_paid_for_are_not_counted(agent: Agent) -> None:
    runs = agent.record(6)
    agent.plan(ordered(agent.plan(runs).document, 0)[:4], baseline=False).run()
    agent.provider.asked.clear()
    plan = agent.plan(runs, baseline=False, max_calls=2)
    first = plan.run()
    assert (first.stopped, len(agent.provider.asked)) == ("budget", 2)
    assert {row["matrix"] == plan.id for row in first.to_dicts() if row.get("reused")} == {False}
    plan.document.max_calls = 4
    seen: list[Status] = []
    assert plan.run(progress=seen.append).stopped == ""
    assert seen[-1].calls == len(agent.provider.asked) == 4


def test_cells_that_were_done_when_the_driver_was_interrupted_are_counted(agent: Agent) -> None:
    class Interrupted(InProcess):
        def completed(self, timeout_s: float) -> list[dict[str, Any]]:
            super().completed(timeout_s)
            raise KeyboardInterrupt

    plan = agent.plan(agent.record(2), baseline=False)
    with pytest.raises(KeyboardInterrupt):
        plan.run(Interrupted(agent.app))
    seen: list[Status] = []
    plan.run(progress=seen.append)
    assert seen[-1].calls == len(agent.provider.asked) == 4


def test_a_call_that_was_under_way_when_its_cell_was_interrupted_counts(agent: Agent) -> None:
    """Nobody heard its answer, but it was asked for: it has no usage, and costs as much as the recorded ones."""
    plan = agent.plan(agent.record(3), baseline=False, max_calls=6)
    agent.provider.stop_at = {2}
    with pytest.raises(KeyboardInterrupt):
        plan.run()
    seen: list[Status] = []
    result = plan.run(progress=seen.append)
    told = [(row["calls"], row["withoutUsage"], row["inputTokens"]) for row in result.to_dicts()]
    assert told == [(3, 1, 14), (2, 0, 14)]
    assert (result.stopped, seen[-1].calls, len(agent.provider.asked)) == ("budget", 5, 5)


def test_the_limit_counts_all_cells_that_were_interrupted_before_the_first_is_done(agent: Agent) -> None:
    class Interrupted(InProcess):
        """Several cells are under way at once."""

        def completed(self, timeout_s: float) -> list[dict[str, Any]]:
            for work in list(self._waiting):
                with pytest.raises(KeyboardInterrupt):
                    perform([work], agent.app)
            raise KeyboardInterrupt

    plan = agent.plan(agent.record(2), baseline=False, max_calls=4)
    agent.provider.stop_at = {1, 2}
    with pytest.raises(KeyboardInterrupt):
        plan.run(Interrupted(agent.app))
    assert len(agent.provider.asked) == 2
    result = plan.run()
    assert [row["calls"] for row in result.to_dicts()] == [3]
    assert (result.stopped, len(agent.provider.asked)) == ("budget", 4)


def test_a_resumed_matrix_is_not_charged_for_cells_that_another_one_paid_for(agent: Agent) -> None:
    def interrupt(status: Status) -> None:
        raise KeyboardInterrupt

    runs = agent.record(4)
    agent.plan(runs, baseline=False).run()
    agent.provider.asked.clear()
    plan = agent.plan(runs, baseline=False, max_calls=4)
    with pytest.raises(KeyboardInterrupt):
        plan.run(progress=interrupt)
    seen: list[Status] = []
    assert plan.run(progress=seen.append).stopped == ""
    assert (seen[-1].calls, agent.provider.asked) == (0, [])


@pytest.mark.parametrize(("limit", "stopped"), [(3, "budget"), (4, "")])
def test_the_limit_counts_a_cell_that_was_done_but_not_yet_in_the_table_once(
    agent: Agent, limit: int, stopped: str
) -> None:
    class Interrupted(InProcess):
        def completed(self, timeout_s: float) -> list[dict[str, Any]]:
            perform([self._waiting[0]], agent.app)
            raise KeyboardInterrupt

    plan = agent.plan(agent.record(2), baseline=False, max_calls=limit)
    with pytest.raises(KeyboardInterrupt):
        plan.run(Interrupted(agent.app))
    assert len(agent.provider.asked) == 2
    assert plan.run().stopped == stopped


def test_a_budget_needs_recorded_usage(agent: Agent) -> None:
    agent.provider.usage = False
    runs = agent.record(2)
    plan = agent.plan(runs, budget=1.0)
    assert plan.estimate().without_usage == 2
    with pytest.raises(InvalidInput, match="2 runs have model calls without it"):
        plan.run()
    assert agent.provider.asked == []
    assert agent.plan(runs, max_calls=2).run().stopped == "budget"


def test_a_run_without_model_calls_needs_no_usage(agent: Agent) -> None:
    run = agent.app.record(str, 1)
    assert agent.plan([run.id], entry=str).estimate().without_usage == 0


def test_answers_without_usage_cost_what_the_recorded_ones_did(agent: Agent) -> None:
    runs = agent.record(4)
    estimate = agent.plan(runs).estimate()
    assert estimate.cost is not None
    agent.provider.usage = False
    plan = agent.plan(runs, budget=estimate.cost / 2)
    seen: list[Status] = []
    result = plan.run(progress=seen.append)
    assert result.stopped == "budget"
    assert 0 < seen[-1].cost <= estimate.cost / 2
    assert {row["withoutUsage"] for row in result.to_dicts()} == {2}
    plan.run()
    assert len(agent.provider.asked) == sum(row["calls"] for row in result.to_dicts())


def test_a_second_process_for_the_same_matrix_is_refused(agent: Agent) -> None:
    refused: list[InvalidInput] = []

    def second(status: Status) -> None:
        if not refused:
            with pytest.raises(InvalidInput, match="Another process is working on the matrix") as error:
                plan.run()
            refused.append(error.value)

    plan = agent.plan(agent.record(2))
    assert len(plan.run(progress=second).to_dicts()) == 4
    assert refused[0].code == "matrix_busy"
    assert len(plan.run().to_dicts()) == 4, "it is free again"


DAMAGED = [b"{", b"\xff\xfe", b"[]", b"null", b'{"run": "x"}', b'{"run":"a","variant":"?","sample":0,"status":"pass"}']


@pytest.mark.parametrize("line", DAMAGED)
def test_a_damaged_line_costs_its_cell_and_nothing_else(
    agent: Agent, line: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    plan = agent.plan(agent.record(2))
    path = plan.run().path
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], line, *lines[2:], b'{"run": "unfin']))
    (listed,) = matrices(agent.app)
    assert listed["done"] == 3
    assert one_matrix(agent.app, plan.id)["done"] == 3
    rows = plan.run().to_dicts()
    assert len(rows) == 4
    assert f"1 line of {path} cannot be read" in caplog.text
    assert len(path.read_bytes().splitlines()) == 4


def test_interrupted_anywhere_it_goes_on_where_it_was(agent: Agent) -> None:
    runs = agent.record(6)
    agent.provider.stop_at = {3, 8, 9, 14, 25}
    plan = agent.plan(runs)
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            plan.run()
    rows = plan.run().to_dicts()
    assert cells(rows) == sorted((lane, 0, run) for lane in ("baseline", "new") for run in runs)
    assert len(agent.provider.asked) == 6 * 2 * 2 + 5, "one call was under way at each interruption"


def test_a_model_that_cannot_be_asked_is_a_bad_row_and_is_tried_again(agent: Agent) -> None:
    runs = agent.record(2)
    plan = agent.plan(runs)
    agent.provider.down = True
    rows = plan.run().to_dicts()
    assert {(row["status"], row["code"]) for row in rows} == {("error", "model_failed")}
    assert len(rows) == 4
    agent.provider.down = False
    again = plan.run()
    assert {row["status"] for row in again.to_dicts()} == {"pass"}
    assert len(again.to_dicts()) == 4
    assert again.verdicts()[0]["leftOut"] == 0


@pytest.mark.parametrize("given", [True, False], ids=["a client that is given", "the agent's own client"])
def test_a_model_that_cannot_be_asked_is_a_bad_row_although_the_agent_goes_on(agent: Agent, given: bool) -> None:
    agent.careless = True
    runs = agent.record(2)
    agent.provider.broken = {"new"}
    plan = agent.plan(runs, **({} if given else {"llm": None}))
    rows = plan.run().to_dicts()
    assert {(row["variant"], row["status"]) for row in rows} == {("baseline", "pass"), ("new", "error")}
    assert {tuple(row["reasons"]) for row in rows if row["variant"] == "new"} == {
        ("The model could not be asked: no such model",)
    }
    agent.provider.broken = set()
    assert {row["status"] for row in plan.run().to_dicts()} == {"pass"}


def test_what_the_sandbox_refuses_a_model_client_is_a_bad_row(agent: Agent, home: Path) -> None:
    agent.careless = True
    runs = agent.record(1)
    agent.provider.writes = home / "log"
    rows = agent.plan(runs, llm=None).run().to_dicts()
    assert {(row["status"], row["code"]) for row in rows} == {("error", "model_failed")}
    assert "Refused in the replay sandbox" in rows[0]["reasons"][0]


def test_a_request_that_is_answered_when_it_is_made_again_is_answered(agent: Agent) -> None:
    agent.tries = 2
    runs = agent.record(1)
    agent.provider.fail_at = {1}
    for client in (agent.provider, None):
        agent.provider.asked.clear()
        rows = agent.plan(runs, baseline=False, llm=client, fresh=True).run().to_dicts()
        assert [row["status"] for row in rows] == ["pass"]
        assert rows[0]["calls"] == len(agent.provider.asked) == 3


def test_cells_that_fail_and_leave_it_undecided_are_no_success(agent: Agent) -> None:
    runs = agent.record(3)
    plan = agent.plan(runs, variants=["new", "other"])
    agent.provider.broken = {"new"}
    result = plan.run()
    assert [one["verdict"] for one in result.verdicts()] == ["undecided", "undecided"]
    assert result.unclear == ["new"]
    assert result.exit_code == 1
    assert result.to_wire()["unclear"] == ["new"]
    assert not result.view()["good"]
    assert result.view()["reasons"] == ["Undecided, and cells failed: new."]
    assert "    3 x model_failed: The model could not be asked: no such model" in result.text().splitlines()
    assert f"antiphon matrix --resume {plan.id}" in result.text()
    assert [lane["badRows"] for lane in result.lanes()] == [
        [],
        [{"code": "model_failed", "reason": "The model could not be asked: no such model", "cells": 3}],
        [],
    ]
    agent.provider.broken = set()
    again = plan.run()
    assert (again.unclear, again.exit_code) == ([], 0), "undecided because there are few runs"
    assert again.view()["good"] is None, "neither good nor bad"
    assert "failed" not in again.text()


def test_a_baseline_that_fails_leaves_all_variants_undecided(agent: Agent) -> None:
    plan = agent.plan(agent.record(2), variants=["new", "other"])
    agent.provider.broken = {"old"}
    assert plan.run().unclear == ["new", "other"]


def test_a_single_variant_that_never_answers_is_no_success(agent: Agent) -> None:
    plan = agent.plan(agent.record(2), baseline=False)
    agent.provider.broken = {"new"}
    assert plan.run().exit_code == 1
    agent.provider.broken = set()
    assert plan.run().exit_code == 0


def test_a_worse_model_is_found_and_then_nothing_more_is_asked(agent: Agent) -> None:
    runs = agent.record(30)
    agent.provider.wrong = {"new"}
    result = agent.plan(runs, "auto").run()
    verdict = result.verdicts()[0]
    assert verdict["verdict"] == "worse"
    assert verdict["difference"] == -1.0
    assert verdict["pairs"] < 30
    assert len(result.to_dicts()) < 60
    assert result.exit_code == 1
    assert "WORSE" in result.text()


def test_an_equal_model_is_not_worse(agent: Agent) -> None:
    result = agent.plan(agent.record(24), "auto", margin=0.4).run()
    assert result.verdicts()[0]["verdict"] == "not worse"
    assert result.exit_code == 0


def test_what_is_held_elsewhere_is_left_to_whoever_holds_it(agent: Agent) -> None:
    """While a cell is computed, a second start asks for the same one: it is told so at once, and asks no model."""
    told: list[Any] = []

    def asked(body: dict[str, Any]) -> Any:
        if not told:
            told.append(None)
            work = plan.work(plan.document.runs[0], plan.document.variants[0], 0)
            with ThreadPoolExecutor(1) as other:  # a thread that the replay did not start
                told[0] = other.submit(copy_context().run, perform, [work], agent.app).result()
        return agent.provider(body)

    plan = agent.plan(agent.record(1), llm=asked)
    rows = plan.run().to_dicts()
    assert [row["status"] for row in told[0]] == ["held"]
    assert len(rows) == 2
    assert len(agent.provider.asked) == 4


def test_held_cells_are_asked_for_again_until_they_are_done(agent: Agent) -> None:
    plan = agent.plan(agent.record(1))
    first: list[Any] = []

    class Held(InProcess):
        def completed(self, timeout_s: float) -> list[dict[str, Any]]:
            rows = super().completed(timeout_s)
            if not first:
                first.extend(rows)
                return [{**row, "status": "held"} for row in rows]
            return rows

    assert len(plan.run(Held(agent.app)).to_dicts()) == 2
    assert len(agent.provider.asked) == 4


def test_a_variant_is_a_mapping_too(agent: Agent) -> None:
    result = agent.plan(agent.record(1), variants=[{"name": "brief", "prompt": "Be brief."}, "new"]).run()
    assert [lane["variant"] for lane in result.lanes()] == ["baseline", "brief", "new"]
    assert "brief" in result.html()


def test_a_selection_says_which_runs(agent: Agent) -> None:
    runs = agent.record(3)
    assert sorted(select(agent.app, "name=main status=completed since=1h")) == sorted(runs)
    assert len(select(agent.app, "name=main limit=2")) == 2
    with pytest.raises(NotFound):
        select(agent.app, "name=nobody")
    for words in (
        "colour=red",
        "since=soon",
        "limit=x",
        "name=main limit=0",
        "name=main please",
        "name=main name=other",
    ):
        with pytest.raises(InvalidInput):
            select(agent.app, words)


def test_unreviewed_side_effects_stop_it_before_anything_is_paid(agent: Agent, home: Path) -> None:
    (home / "side_effect" / "side_effects.yaml").write_text("tools: {}\ndone: false\n")
    plan = agent.plan(agent.record(1))
    with pytest.raises(ReplayBlocked):
        plan.run()
    assert agent.provider.asked == []


@pytest.mark.parametrize(
    "options",
    [
        {"variants": []},
        {"variants": [{"name": "a", "colour": "red"}]},
        {"variants": ["a", "a"]},
        {"samples": 0},
        {"alpha": 0.0},
        {"margin": 1.0},
    ],
)
def test_what_cannot_be_meant_is_refused(agent: Agent, options: dict[str, Any]) -> None:
    runs = agent.record(1)
    with pytest.raises(InvalidInput):
        agent.plan(runs, **{"baseline": False, **options})


def test_functions_and_memory_stores_stay_in_this_process(agent: Agent) -> None:
    class Elsewhere(InProcess):
        remote = True

    class Processes:
        remote = False

    plan = agent.plan(agent.record(1))
    elsewhere: Executor = Elsewhere(agent.app)
    assert plan.run(elsewhere) is not None  # it is here after all
    with pytest.raises(InvalidInput, match="of this process"):
        plan.run(Processes())
    with pytest.raises(InvalidInput, match="cannot be found again"):
        resumed(plan.id, agent.app)
    with pytest.raises(NotFound):
        resumed("nothing", agent.app)
    for name in ("/x", "a**", "../x", ""):
        with pytest.raises(NotFound, match="is not in"):
            resumed(name, agent.app)


def test_matrices_of_this_machine_are_listed_with_verdict_and_progress(agent: Agent, home: Path) -> None:
    runs = agent.record(3)
    agent.provider.wrong.add("new")
    first = agent.plan(runs, max_calls=8)
    first.run()
    agent.provider.wrong.clear()
    last = agent.plan(runs[:1], variants=("other",))
    last.run()
    (home / "home" / "matrix" / "damaged").mkdir()
    (home / "home" / "matrix" / "damaged" / "plan.json").write_text("{")
    found = matrices(agent.app)
    assert [(one["id"], one["done"], one["total"], one["isComplete"]) for one in found] == [
        (last.id, 2, 2, True),
        (first.id, 4, 6, False),
    ]
    assert [one["verdicts"][0]["verdict"] for one in found] == ["undecided", "undecided"]
    assert [lane["passed"] for lane in found[1]["variants"]] == [2, 0]
    assert matrices(agent.app, limit=1) == found[:1]
    one = one_matrix(agent.app, first.id)
    assert one["view"]["line"] == first.id
    assert "table" not in one
    assert str(home) not in json.dumps(one)


def test_a_table_is_read_again_for_the_list_or_a_page_only_when_it_has_changed(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = agent.record(2)
    first = agent.plan(runs, max_calls=4)
    first.run()
    agent.plan(runs, variants=["other"]).run()
    read: list[str] = []
    iterate = Table.__iter__

    def noted(table: Table) -> Any:
        read.append(table.path.parent.name)
        return iterate(table)

    monkeypatch.setattr(Table, "__iter__", noted)
    found, page = matrices(agent.app), one_matrix(agent.app, first.id)
    read.clear()
    assert matrices(agent.app) == found
    assert one_matrix(agent.app, first.id) == page
    assert read == []
    first.document.max_calls = 100
    first.run()
    read.clear()
    assert [one["done"] for one in matrices(agent.app)] == [4, 4]
    assert one_matrix(agent.app, first.id)["done"] == 4
    assert set(read) == {first.id}


def test_a_matrix_of_another_tenant_or_outside_the_folder_is_not_there(agent: Agent) -> None:
    plan = agent.plan(agent.record(1))
    plan.run()
    other = antiphon.Antiphon(tenant="other", store=agent.app.store)
    assert matrices(other) == []
    for app, wanted in ((other, plan.id), (agent.app, "../matrix"), (agent.app, f"../matrix/{plan.id}"), (other, "")):
        with pytest.raises(NotFound):
            one_matrix(app, wanted)
