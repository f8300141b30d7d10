"""R6, D3: the memory store is bounded, forgets in the right order, and never forgets what must be kept."""

from __future__ import annotations

import pytest

from antiphon.errors import InvalidInput, StoreUnavailable
from antiphon.ports import Settlement
from tests.unit.stores.kit import Kit, claimed, done, existing, failed

MUST_BE_KEPT = [
    failed("outcome_unknown"),
    Settlement("cancelled", 60_000, dispatched=True),
    done(None),
]
MAY_GO = [
    done(),
    done(None, payload_ref="sha256:x"),
    done(None, payload_sealed="x"),
    failed("refused"),
    Settlement("cancelled", 60_000, dispatched=False),
]


def test_the_least_recently_used_goes_first() -> None:
    kit = Kit(max_keys=3)
    for key in ("a", "b", "c"):
        kit.finish(key)
    existing(kit.begin("a"))  # used again
    kit.finish("d")
    assert [kit.known(key) for key in "abcd"] == [True, False, True, True]
    assert kit.size() == 3


@pytest.mark.parametrize("settlement", MAY_GO)
def test_what_may_go_makes_room(settlement: Settlement) -> None:
    kit = Kit(max_keys=1)
    kit.finish("a", settlement=settlement)
    kit.claim("b")
    assert not kit.known("a")


@pytest.mark.parametrize("settlement", MUST_BE_KEPT)
def test_unknown_outcomes_are_never_evicted(settlement: Settlement) -> None:
    kit = Kit(max_keys=3)
    kit.finish("unknown", settlement=settlement)
    kit.claim("in-flight")
    for n in range(20):
        kit.finish(f"done-{n}")
    assert kit.known("unknown")
    assert kit.known("in-flight")
    assert kit.size() == 3


def test_a_store_full_of_what_must_be_kept_refuses_new_claims_and_keeps_the_old() -> None:
    kit = Kit(max_keys=3)
    held = kit.claim("a")
    kit.finish("b", settlement=failed("outcome_unknown"))
    kit.claim("c")
    with pytest.raises(StoreUnavailable, match="full") as refused:
        kit.begin("d")
    assert refused.value.code == "store_full"
    assert "MemoryStore" in refused.value.hint
    assert all(kit.known(key) for key in "abc")
    assert existing(kit.begin("a", "call-2")).current.version == held  # duplicates are still answered
    with pytest.raises(StoreUnavailable):
        kit.journal.take_over(kit.harness.request("a", "call-2"), held)
    assert kit.journal.settle("a", held, done()) is not None
    claimed(kit.begin("d"))


def test_what_must_be_kept_goes_when_its_whole_time_is_over() -> None:
    kit = Kit(max_keys=2)
    kit.claim("a")
    kit.finish("b", settlement=failed("outcome_unknown"))
    kit.clock.advance(60_001)
    kit.claim("c")  # in the place of the unknown one
    with pytest.raises(StoreUnavailable):
        kit.claim("d")  # a claim in flight is given its time once more: the clock may have been set forward
    assert kit.known("a")
    kit.clock.advance(60_001)
    kit.claim("d")
    assert not kit.known("a")
    assert kit.size() == 2


def test_an_unknown_that_was_settled_may_go() -> None:
    kit = Kit(max_keys=1)
    version = kit.finish("a", settlement=failed("outcome_unknown"))
    kit.journal.settle("a", version, done())
    kit.claim("b")
    assert not kit.known("a")


def test_a_done_record_that_turns_out_unknown_stays() -> None:
    kit = Kit(max_keys=1)
    version = kit.finish("a")
    kit.journal.settle("a", version, failed("outcome_unknown"))
    with pytest.raises(StoreUnavailable):
        kit.begin("b")


def test_executions_of_one_key_are_bounded_too() -> None:
    kit = Kit(max_keys=10)
    version = kit.finish("a", "call-0")
    for n in range(1, 50):
        taken = claimed(kit.journal.take_over(kit.harness.request("a", f"call-{n}"), version))
        version = kit.journal.settle("a", taken.version, done()) or 0
    assert kit.size() == 10
    assert existing(kit.begin("a", "call-0")).own is None
    assert existing(kit.begin("a", "call-45")).own is not None


def test_aliases_are_bounded_too() -> None:
    kit = Kit(max_keys=10)
    version = kit.finish("a")
    for n in range(50):
        kit.journal.alias("a", f"sharer-{n}", version)
    assert kit.size() <= 10
    assert existing(kit.begin("a", "sharer-49")).own is not None


def test_an_earlier_execution_makes_room_where_all_current_ones_must_be_kept() -> None:
    kit = Kit(max_keys=4)
    version = kit.finish("a", "call-1")
    claimed(kit.journal.take_over(kit.harness.request("a", "call-2"), version))
    for key in ("b", "c"):
        kit.claim(key)
    kit.claim("d")  # instead of the first execution of a
    assert kit.size() == 4
    assert existing(kit.begin("a", "call-1")).own is None
    with pytest.raises(StoreUnavailable):
        kit.begin("e")


def test_what_ran_long_is_forgotten_last() -> None:
    kit = Kit(max_keys=3)
    long = kit.claim("long")
    for key in ("a", "b"):
        kit.finish(key)
    assert kit.journal.settle("long", long, done()) is not None
    kit.finish("c")
    assert [kit.known(key) for key in ("long", "a", "b", "c")] == [True, False, True, True]


def test_records_are_listed_newest_claim_first_whatever_was_used_since() -> None:
    kit = Kit()
    for key in ("a", "b", "c"):
        kit.finish(key)
        kit.clock.advance(1)
    existing(kit.begin("a"))
    assert [record.key for record in kit.journal.list(tenant=kit.harness.tenant)] == ["c", "b", "a"]


def test_everything_goes_when_everything_expired() -> None:
    kit = Kit()
    for n in range(100):
        kit.finish(f"k{n}", settlement=done(ttl_ms=1_000 * (n + 1)))
    kit.clock.advance(50_000)
    assert kit.journal.sweep() == 50
    assert kit.size() == 50
    kit.clock.advance(3_600_000)
    assert kit.journal.sweep(limit=20) == 20
    assert kit.journal.sweep() == 30
    assert kit.size() == 0


def test_a_clock_that_goes_back_gives_no_version_twice() -> None:
    kit = Kit()
    versions = [kit.claim("a")]
    kit.clock.advance(-3_600_000)
    kit.journal.clear("a")
    versions.append(kit.claim("a"))
    kit.clock.advance(-3_600_000)
    versions.append(kit.journal.settle("a", versions[-1], done()) or 0)
    assert versions == sorted(set(versions))


def test_the_log_forgets_whole_finished_runs_oldest_first() -> None:
    kit = Kit(max_events=10)
    journal, harness = kit.journal, kit.harness
    journal.open_run(harness.manifest("live"))
    journal.append("live", harness.rows("live", "a", "b"))
    for n in range(6):
        journal.open_run(harness.manifest(f"r{n}", status="completed"))
        journal.append(f"r{n}", harness.rows(f"r{n}", *"abc"))
    journal.open_run(harness.manifest("last"))
    kept = [len(journal.events(f"r{n}")) for n in range(6)]
    assert kept == [0, 0, 0, 0, 3, 3]
    assert len(journal.events("live")) == 2


def test_a_store_without_room_makes_no_sense() -> None:
    with pytest.raises(InvalidInput, match="max_keys"):
        Kit(max_keys=0)


def test_clearing_forgets_executions_whose_current_record_is_gone() -> None:
    kit = Kit()
    version = kit.finish("a", "call-1")
    taken = claimed(kit.journal.take_over(kit.harness.request("a", "call-2"), version))
    kit.journal.settle("a", taken.version, failed(ttl_ms=10))
    kit.clock.advance(20)
    kit.journal.sweep()
    assert kit.known("a", "call-1")
    assert kit.journal.clear("a")
    assert not kit.known("a", "call-1")
    assert kit.size() == 0


def test_unknown_outcomes_are_counted_apart_and_half_the_store_is_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kit = Kit(max_keys=8)
    versions = {}
    for number in range(3):
        versions[number] = kit.finish(f"u{number}", settlement=failed("outcome_unknown"))
        kit.finish(f"d{number}")
    assert kit.journal.ping()["unknown"] == 3
    assert not [record for record in caplog.records if record.name == "antiphon.stores"]
    kit.finish("u3", settlement=Settlement("cancelled", 60_000, dispatched=True))
    kit.finish("u4", settlement=failed("outcome_unknown"))
    [warned] = [record for record in caplog.records if record.name == "antiphon.stores"]
    assert "4 outcomes in the memory store are unknown; at 8 it refuses new calls" in warned.getMessage()
    for number, version in versions.items():
        kit.journal.settle(f"u{number}", version, done())
    assert kit.journal.ping()["unknown"] == 2
    kit.journal.clear("u3")
    assert kit.journal.ping()["unknown"] == 1
