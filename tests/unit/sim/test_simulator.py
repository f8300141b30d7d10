"""The simulator of the claim protocol: the invariants hold, and every planted bug is found."""

from __future__ import annotations

from collections import Counter

import pytest

from antiphon.errors import StoreUnavailable
from antiphon.stores import SQLiteStore
from antiphon.testing.journal_conformance import Harness, claimed
from antiphon.testing.sim import BUGS, explore, simulate
from antiphon.testing.sim.__main__ import main
from antiphon.testing.sim.disk import FAULTS, DiskFault, virtual_disk
from antiphon.testing.sim.plan import Plan
from antiphon.testing.sim.world import TIME_WIDTH

SEEDS = 2_000
"""Each planted bug is found by one of them."""
RARE = {
    "two-answers": 105,
    "zombie-retries": 600,
    "stale-epoch": 295,
    "nothing-is-abandoned": 530,
    "perhaps-means-no": 308,
    "shadow-binds": 70,
    "cancelled-probe-is-good": 175,
    "not-recorded-unsaid": 45,
    "overtaken-request": 170,
    "claim-left-in-flight": 90,
    "no-fencing": 35,
}
"""Near to where those show that take more than a few seeds; ``make prove`` looks at all of them."""


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_the_invariants_hold(start: int) -> None:
    explored = explore(range(start, start + 50))
    assert [(simulation.seed, simulation.broken) for simulation in explored.broken] == []
    assert explored.seeds == 50


@pytest.mark.parametrize("seed", [109, 225, 545])
def test_two_deliveries_of_one_call_while_an_equal_one_ends_get_one_answer(seed: int) -> None:
    """In these simulations one delivery shares the answer of the equal call while another is about to run."""
    assert simulate(seed, "two-answers").broken != ""
    assert simulate(seed).broken == ""


def test_a_lost_call_that_others_have_followed_is_read_back_and_not_for_ever() -> None:
    assert simulate(987).broken == ""


def test_an_attempt_made_after_its_claim_was_lost_stops_nobody() -> None:
    """Its worker was paused right before it; no record will say what became of it."""
    assert simulate(20802).broken == ""


@pytest.mark.parametrize(
    ("seed", "what"),
    [
        (85087, "a twin in shadow mode asks the store from a thread, and later from a task"),
        (86720, "the request of an interrupted caller arrives when the record that kept it out has expired"),
        (520923, "the same where that record was in flight and ended"),
        (94326, "a worker that was paused dispatches after others have given up on its claim"),
        (98324, "an attempt that was given up fails for certain while another one may have had its effect"),
        (147560, "a call that began before all is quiet ends long after it"),
        (160139, "the same after an attempt whose answer was lost"),
        (172750, "a claim whose lease had run out is renewed while another delivery is about to take it over"),
        (180377, "whether a shared answer was remembered gets lost, while another delivery of the call runs"),
        (168472, "a retry whose tool calls another tool outlives the last delivery"),
    ],
)
def test_seeds_that_were_broken_once(seed: int, what: str) -> None:
    assert simulate(seed).broken == "", what


def test_the_request_of_an_interrupted_caller_arrives_after_its_claim_was_given_back() -> None:
    """The worker was paused for longer than failures are kept."""
    assert simulate(520923, without=frozenset(f"call{n}" for n in (0, *range(2, 9), *range(11, 17), 18))).broken == ""


def test_the_seeds_reach_what_matters() -> None:
    seen = explore(range(150)).seen
    for what in (
        "pauses",
        "kills",
        "cancellations",
        "lost requests",
        "lost answers",
        "takeovers",
        "outcome_unknown",
        "reconciled",
        "reused",
        "in_flight",
        "circuit_open",
        "breaker to CLOSED",
        "by execute",
        "by turn",
        "by function",
        "by once",
        "by adapter",
        "by stream",
        "calls by tools",
        "left",
        "fail-overs",
        "slow store steps",
        "answers that expired",
        "late results",
        "cancelled store steps",
        "steps while the store is away",
        "dispatches without a claim that binds",
        "denied",
        "changed: enabled",
        "changed: tool off",
        "changed: shadow",
        "changed: tool in shadow",
        "changed: open_mode",
        "changed: derive_keys",
        "changed: timeout",
        "changed: attempts",
        "changed: breaker",
        "changed: listener",
        "changed: before-hook",
        "changed: after-hook",
    ):
        assert seen[what] > 0, f"no seed led to: {what}"


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    explored = explore(range(RARE.get(bug, 0), SEEDS), bug, stop_at=1)
    assert explored.broken, f"{bug} was not found in {explored.seeds} seeds"
    invariant = explored.broken[0].broken.partition(":")[0]
    assert invariant in BUGS[bug].invariants
    assert simulate(explored.broken[0].seed).broken == "", "the seed that finds a bug is fine without it"


def test_a_disk_that_fails_is_reached() -> None:
    seen: Counter[str] = Counter()
    for seed in (seed for seed in range(400) if Plan(seed).bad_disks):
        simulation = simulate(seed)
        assert simulation.broken == ""
        seen.update(simulation.seen)
    assert [fault for fault in FAULTS if not seen[f"disk: {fault}"]] == []
    assert seen["store_unavailable"] > 0


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_disk_reaches_the_store(fault: DiskFault) -> None:
    """A step that was not stored is an error, and the next one works."""
    with virtual_disk() as disk:
        store = SQLiteStore(disk.folder / "one.db")
        journal, request = store.open_sync(), Harness(lambda: store).request("k", "call-1")
        journal.read("k")  # opens the file
        fails = disk.failing(lambda step: fault if (step == "fsync") == (fault == "fsync fails") else None)
        with fails, pytest.raises(StoreUnavailable):
            journal.begin(request)
        if fault != "fsync fails":  # then it is uncertain, and the error says so
            assert journal.read("k", "call-1") is None
        claimed(journal.begin(Harness(lambda: store).request("k2", "call-2")))
        journal.close()
        for left in disk.folder.glob("one.db*"):
            left.unlink()


def test_a_fail_over_excuses_only_what_it_lost() -> None:
    """Twice the same effect is counted where the claim was lost, and broken where it was not."""
    seen = explore(seed for seed in range(200, 250) if Plan(seed).failovers).seen
    assert seen["fail-overs"] > 0
    assert seen["after a lost write, not promised: one dispatch"] > 0


def test_a_seed_is_the_whole_simulation() -> None:
    first, second = simulate(7), simulate(7)
    assert first.trace == second.trace
    assert first.steps == second.steps
    assert first.schedule == second.schedule


def test_schedules_differ_by_their_order_and_not_by_their_times() -> None:
    simulation = simulate(7)
    later = [f"{'9' * (TIME_WIDTH - 2)}  {line[TIME_WIDTH:]}" for line in simulation.trace]
    assert simulation._replace(trace=later).schedule == simulation.schedule
    assert simulation._replace(trace=later[1:]).schedule != simulation.schedule
    assert len(explore(range(40)).schedules) == 40


def test_the_command_says_what_was_explored(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "10", "--bug", "release-on-cancel"]) == 0
    assert "found by seed" in capsys.readouterr().out
    assert main(["--seed", "109", "--bug", "two-answers"]) == 1
    shrunk = capsys.readouterr().out
    command = shrunk.splitlines()[-1]
    assert command.startswith("again with: python -m antiphon.testing.sim --seed 109 --bug two-answers --without ")
    assert main(command.split()[5:]) == 1, "the command shows the same"
    assert capsys.readouterr().out == shrunk
    assert main(["--seed", "3"]) == 0
    assert "claims" in capsys.readouterr().out
    assert main(["--seeds", "1", "--start", "3", "--bug", "stale-epoch"]) == 1
    assert "NOT FOUND" in capsys.readouterr().out
