"""D25: the loop guard fires where agents go round in circles, and only there."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from antiphon.decide import loop as module
from antiphon.decide.loop import Action, LoopGuard, LoopPolicy, LoopVerdict, normalise, outcome_digest

Step = tuple[str, str]


def run(guard: LoopGuard, steps: Iterable[Step], *, now: float = 0.0, ok: bool = True) -> list[LoopVerdict]:
    """Make calls, named by one word for tool and arguments; what is refused is not run."""
    verdicts = []
    for call, outcome in steps:
        verdict = guard.check(call, call, now)
        verdicts.append(verdict)
        if not verdict.refused:
            guard.record(call, call, outcome, ok=ok)
    return verdicts


def actions(verdicts: list[LoopVerdict]) -> list[Action]:
    return [verdict.action for verdict in verdicts]


def guard(**settings: object) -> LoopGuard:
    """A guard with small limits, so that the tables below stay short."""
    small = {"note_after": 3, "block_after": 7, "note_rounds": 3, "block_rounds": 5, "ceiling": 50, "max_calls": 10_000}
    return LoopGuard(LoopPolicy(**{**small, **settings}), started=0.0)  # type: ignore[arg-type]


# -- identical calls ---------------------------------------------------------------------------------------


def test_ladder_note_block_end() -> None:
    watched = guard()
    verdicts = run(watched, [("search", "nothing")] * 12)
    assert actions(verdicts) == ["allow"] * 3 + ["note"] * 4 + ["block"] * 2 + ["end"] * 3
    assert {verdict.reason for verdict in verdicts[3:]} == {"identical"}
    assert watched.ended is not None


def test_after_the_end_everything_is_refused() -> None:
    watched = guard()
    run(watched, [("search", "nothing")] * 10)
    assert watched.check("other", "fresh", 0.0).action == "end"


def test_blocked_attempts_count() -> None:
    """A blocked call is not recorded, and yet the ladder goes on."""
    watched = guard(end_after_blocks=2)
    assert actions(run(watched, [("exec", "ok")] * 9))[-2:] == ["block", "end"]


def test_planted_bug_uncounted_blocks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopGuard, "_blocked", lambda self, verdict: verdict)
    with pytest.raises(AssertionError):
        test_blocked_attempts_count()


def test_timestamps_do_not_hide_a_repetition() -> None:
    results = [f'{{"state": "busy", "checkedAt": "2024-05-01T10:00:{second:02}Z"}}' for second in range(8)]
    assert actions(run(guard(), [("state", result) for result in results]))[-1] == "block"


def test_planted_bug_raw_outcomes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "outcome_digest", lambda outcome: outcome)
    with pytest.raises(AssertionError):
        test_timestamps_do_not_hide_a_repetition()


def test_failures_repeat_too() -> None:
    assert actions(run(guard(), [("read", "error: no such file")] * 8, ok=False))[-1] == "block"


def test_a_new_result_starts_over() -> None:
    watched = guard()
    assert set(actions(run(watched, [("log", f"line {n // 2}") for n in range(20)]))) == {"allow"}


def test_messages_tell_the_model_what_to_do() -> None:
    note, block, end = (run(guard(), [("search", "nothing")] * 10)[place] for place in (3, 7, 9))
    assert "'search' has returned the same result 3 times" in note.message
    assert "change the arguments" in note.message
    assert block.message.startswith("Not run:")
    assert "the run is ended" in end.message


# -- progress -------------------------------------------------------------------------------------------------


def test_edit_and_rerun_tests_is_no_loop() -> None:
    steps = [step for n in range(40) for step in ((f"edit {n}", "ok"), ("run_tests", "1 failed"))]
    assert set(actions(run(guard(), steps))) == {"allow"}


def test_new_calls_that_fail_are_no_progress() -> None:
    watched = guard()
    for n in range(8):
        run(watched, [("search", "nothing")])
        run(watched, [(f"guess {n}", "error")], ok=False)
    assert watched.check("search", "search", 0.0).action == "block"


def test_progress_forgives_blocks() -> None:
    watched = guard()
    run(watched, [("search", "nothing")] * 9)
    run(watched, [("write", "done")])
    assert actions(run(watched, [("search", "nothing")] * 3)) == ["allow"] * 3
    assert watched.ended is None


# -- cycles ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2, 3, 4])
def test_cycles(length: int) -> None:
    calls = [(f"call {n}", f"result {n}") for n in range(length)]
    verdicts = run(guard(note_after=100, block_after=100), calls * 6)
    blocked = actions(verdicts).index("block")
    assert blocked == 5 * length, "after five rounds"
    assert actions(verdicts).index("note") == 3 * length
    assert verdicts[blocked].reason == "cycle"
    assert f"the same {length} calls" in verdicts[blocked].message


def test_planted_bug_only_the_last_call_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopGuard, "_cycle", lambda self, token: None)
    with pytest.raises(ValueError, match="not in list"):
        test_cycles(2)


def test_a_cycle_with_a_new_result_is_none() -> None:
    steps = [step for n in range(12) for step in (("left", "same"), ("right", f"{n}"))]
    verdicts = run(guard(note_after=100, block_after=100), steps)
    assert "cycle" not in {verdict.reason for verdict in verdicts}


def test_leaving_the_cycle_is_allowed() -> None:
    watched = guard(note_after=100, block_after=100)
    run(watched, [("a", "1"), ("b", "2")] * 5)
    assert watched.check("c", "c", 0.0).action == "allow"
    assert watched.check("a", "a", 0.0).action == "block"


# -- same arguments, changing results ---------------------------------------------------------------------------


def test_ceiling_when_only_the_results_change() -> None:
    verdicts = run(guard(), [("random", f"value {n}") for n in range(51)])
    assert actions(verdicts)[:25] == ["allow"] * 25
    assert set(actions(verdicts)[25:50]) == {"note"}
    assert (verdicts[50].action, verdicts[50].reason) == ("block", "ceiling")


# -- polls ------------------------------------------------------------------------------------------------------


def poll(watched: LoopGuard, now: float, outcome: str = "pending") -> LoopVerdict:
    verdict = watched.check("job", "job", now, poll=True)
    assert not verdict.refused
    watched.record("job", "job", outcome, poll=True)
    return verdict


def test_polls_are_slowed_down_and_never_blocked() -> None:
    watched = guard()
    delays = [poll(watched, n / 1000).delay_ms for n in range(200)]
    assert delays[:6] == [0, 0, 1_000, 2_000, 4_000, 8_000]
    assert delays[-1] == 60_000
    assert watched.ended is None


def test_a_patient_poll_is_left_alone() -> None:
    watched = guard()
    now = 0.0
    for _ in range(100):
        assert poll(watched, now).action == "allow"
        now += 60.0


def test_a_poll_with_news_starts_over() -> None:
    watched = guard()
    for n in range(10):
        poll(watched, n / 1000)
    poll(watched, 0.1, "half done")
    assert poll(watched, 0.1, "half done").action == "allow"


def test_sleeping_between_polls_is_excused() -> None:
    watched = guard()
    for n in range(40):
        poll(watched, n * 5.0)
        assert run(watched, [("sleep", "slept")])[0].action in ("allow", "note")


def test_planted_bug_healthy_polling_killed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = LoopGuard._judge
    monkeypatch.setattr(
        LoopGuard, "_judge", lambda self, tool, seen, now, poll: honest(self, tool, seen, now, poll=False)
    )
    with pytest.raises(AssertionError):
        test_polls_are_slowed_down_and_never_blocked()


# -- caps -------------------------------------------------------------------------------------------------------


def test_cap_on_calls() -> None:
    watched = guard(max_calls=5)
    verdicts = run(watched, [(f"call {n}", "ok") for n in range(7)])
    assert actions(verdicts) == ["allow"] * 5 + ["end"] * 2
    assert verdicts[-1].reason == "calls"


def test_cap_on_seconds() -> None:
    watched = guard(max_seconds=10)
    assert watched.check("a", "1", 10.0).action == "allow"
    assert watched.check("a", "2", 10.1) == watched.ended
    assert watched.ended is not None
    assert watched.ended.reason == "seconds"


def test_cap_on_cost() -> None:
    watched = guard(max_cost=1.0)
    for n in range(5):
        assert watched.check("a", f"{n}", 0.0, cost=0.1).action == "allow"
    watched.spend(0.45)
    assert watched.check("b", "1", 0.0).action == "allow"
    assert watched.check("a", "6", 0.0, cost=0.1).reason == "cost"
    assert watched.cost == pytest.approx(0.95), "what did not run was not paid for"


def test_threads_do_not_overrun_the_cap_on_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    watched, over = guard(max_cost=1.0), LoopGuard._over

    def raced(self: LoopGuard, *of: Any) -> Any:
        found = over(self, *of)
        self.spend(0.5)  # by another thread, which was allowed as well
        return found

    monkeypatch.setattr(LoopGuard, "_over", raced)
    assert watched.check("a", "1", 0.0, cost=1.0).action == "end"
    assert watched.ended is not None
    assert (watched.ended.reason, watched.cost) == ("cost", 0.5)


def test_switched_off() -> None:
    watched = guard(enabled=False, max_calls=None)
    assert set(actions(run(watched, [("search", "nothing")] * 50))) == {"allow"}


def test_caps_hold_with_the_loop_guard_off() -> None:
    watched = guard(enabled=False, max_calls=40)
    verdicts = run(watched, [("search", "nothing")] * 42)
    assert actions(verdicts) == ["allow"] * 40 + ["end"] * 2
    assert verdicts[-1].reason == "calls"
    watched = guard(enabled=False, max_calls=None, max_cost=0.25)
    assert [watched.check("a", "1", 0.0, cost=0.1).action for _ in range(3)] == ["allow", "allow", "end"]


@pytest.mark.parametrize("cap", [{"max_calls": 1}, {"max_seconds": 1.0}, {"max_cost": 1.0}])
def test_a_run_is_watched_for_loops_or_for_caps(cap: dict[str, Any]) -> None:
    assert LoopPolicy().watches
    assert not LoopPolicy(enabled=False).watches
    assert LoopPolicy(enabled=False, **cap).watches


def test_no_caps() -> None:
    watched = guard(max_calls=None)
    assert set(actions(run(watched, [(f"call {n}", "ok") for n in range(11_000)]))) == {"allow"}


# -- mechanics ----------------------------------------------------------------------------------------------------


def test_outcomes_are_only_normalised_when_a_call_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes | str] = []

    def noted(outcome: bytes | str) -> bytes:
        seen.append(outcome)
        return outcome_digest(outcome)

    monkeypatch.setattr(module, "outcome_digest", noted)
    watched = guard()
    run(watched, [(f"call {n}", "ok") for n in range(1_000)])
    assert seen == []
    run(watched, [("call 999", "ok")])
    assert seen == [], "equal bytes need no second look"
    run(watched, [("call 999", "changed")])
    assert seen == ["changed", "ok"]


def test_memory_is_bounded() -> None:
    watched = guard(remember=10, max_calls=None)
    run(watched, [(f"call {n}", "x" * 1_000) for n in range(10_000)])
    assert len(watched._recent) + len(watched._older) <= 20


def test_what_was_just_called_is_remembered() -> None:
    watched = guard(remember=4)
    steps = [("search", "nothing"), *((f"guess {n}", "error") for n in range(3))]
    for _ in range(6):
        run(watched, steps, ok=False)
    assert "block" in actions(run(watched, steps * 3, ok=False))


def test_huge_outcomes_are_compared_but_not_kept() -> None:
    watched = guard()
    huge = b"x" * 1_000_000
    for _ in range(7):
        assert not watched.check("dump", "dump", 0.0).refused
        watched.record("dump", "dump", huge)
    assert watched.check("dump", "dump", 0.0).action == "block"
    assert not any(huge in (entry if isinstance(entry, tuple) else ()) for entry in watched._recent.values())


def test_threads_end_the_run_once() -> None:
    watched = guard(max_calls=None)
    refused = itertools.count()

    def work(name: int) -> None:
        for n in range(2_000):
            if watched.check(f"tool {name}", f"{n}", 0.0).refused:
                next(refused)
            else:
                watched.record(f"tool {name}", f"{n}", "ok")

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert next(refused) == 0
    assert watched.calls == 8_000


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("xy"), st.booleans()), max_size=120))
def test_the_ladder_only_goes_up(steps: list[tuple[str, str, bool]]) -> None:
    watched = guard(note_after=2, block_after=4, note_rounds=2, block_rounds=3, ceiling=12)
    over = False
    for call, outcome, ok in steps:
        verdict = watched.check(call, call, 0.0)
        assert not over or verdict.action == "end"
        over = over or verdict.action == "end"
        assert (verdict.message == "") == (verdict.action == "allow")
        if not verdict.refused:
            watched.record(call, call, outcome, ok=ok)


# -- normalised outcomes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("done at 2024-05-01T10:00:00Z", "done at 2025-06-02T11:22:33.123Z"),
        ("done at 2024-05-01 10:00:00,123 +0200", "done at 2024-05-01 10:00:09,456 +0200"),
        ("job 123e4567-e89b-12d3-a456-426614174000", "job 99999999-E89B-12D3-A456-426614174999"),
        ("took 12 ms", "took 1.5 ms"),
        ("took 12s", "took 9s"),
        ("finished in 3 seconds", "finished in 14 seconds"),
        ('{"elapsed_ms": 12.5, "ok": true}', '{"elapsed_ms": 8, "ok": true}'),
        ('{"requestId":"abc","x":1}', '{"requestId":"def","x":1}'),
        ('{"created_at": 5, "x": 1}', '{"created_at": 6, "x": 1}'),
        ("now=1714557600", "now=1714557609"),
        ("now=1714557600123", "now=1714557609456"),
        ("<object at 0x7f3a5c001234>", "<object at 0x7f3a5c00ffff>"),
        ("trace 0af7651916cd43dd8448eb211c80319c", "trace ffffffffffffffffffffffffffffffff"),
        ("a  b\n c", "a b c"),
        (b"took 12 \xc2\xb5s", b"took 99 \xc2\xb5s"),
    ],
)
def test_noise_is_taken_out(one: bytes | str, other: bytes | str) -> None:
    assert normalise(one) == normalise(other)
    assert outcome_digest(one) == outcome_digest(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("45 % done", "46 % done"),
        ("3 files", "4 files"),
        ('{"price": 12.50}', '{"price": 12.60}'),
        ('{"status": "pending"}', '{"status": "done"}'),
        ("line 100", "line 101"),
        ("version 1.2.3", "version 1.2.4"),
        ("order 4711", "order 4712"),
        ("section 5 shows", "section 6 shows"),
        ("", "x"),
    ],
)
def test_what_means_something_stays(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from(["x", "y"])), max_size=60))
@example([*zip("abced", "xxxxy", strict=True), *zip("addd", "xyyx", strict=True)])  # a was nearly forgotten
def test_the_cheap_way_says_and_remembers_the_same(steps: list[Step]) -> None:
    """``is_new`` stands for ``check``: two guards that see the same stay equal."""
    one, other = (guard(max_calls=None, remember=4) for _ in range(2))
    for call, outcome in steps:
        mark = (call, call)
        verdict = module.ALLOW if one.is_new(mark) else one.check(*mark, 0.0)
        assert verdict == other.check(*mark, 0.0)
        assert one.calls == other.calls
        if not verdict.refused:
            one.record(*mark, outcome.encode())
            other.record(*mark, outcome.encode())


def test_the_cheap_way_leaves_caps_and_switched_off_guards_to_the_other() -> None:
    assert not guard(max_calls=5).is_new(("a", "a"))
    assert not guard(max_calls=None, max_seconds=5.0).is_new(("a", "a"))
    assert not guard(max_calls=None, max_cost=5.0).is_new(("a", "a"))
    assert not guard(max_calls=None, enabled=False).is_new(("a", "a"))


def test_the_cheap_way_knows_what_is_new() -> None:
    watched = guard(max_calls=None, remember=1)
    assert watched.calls == 0
    for call in (("a", "a"), ("b", "b")):
        assert watched.is_new(call)
        watched.note(call, "ok")
    assert watched.calls == 2
    assert not watched.is_new(("a", "a")), "among the older ones"
    assert not watched.is_new(("b", "b"))
    assert watched.calls == 2
    run(watched, [("b", "ok")] * 20)
    assert watched.ended is not None
    assert not watched.is_new(("c", "c"))


# -- to the number ------------------------------------------------------------------------------------------------


def test_what_is_refused() -> None:
    verdicts = [LoopVerdict(action) for action in ("allow", "note", "backoff", "block", "end")]
    assert [verdict.refused for verdict in verdicts] == [False, False, False, True, True]


@pytest.mark.parametrize("length", [2, 3, 4])
def test_a_cycle_that_was_interrupted_begins_again(length: int) -> None:
    calls = [(f"call {n}", f"result {n}") for n in range(length)]
    watched = guard(note_after=100, block_after=100)
    run(watched, [*calls, calls[-1]])
    allowed = 3 * length - 1  # the call that interrupted is the last one of a round
    assert actions(run(watched, (calls * 4)[: allowed + 1])) == ["allow"] * allowed + ["note"]


@pytest.mark.parametrize("length", [2, 3, 4])
def test_two_rounds_of_a_cycle(length: int) -> None:
    calls = [(f"call {n}", f"result {n}") for n in range(length)]
    verdicts = run(guard(note_after=100, block_after=100, note_rounds=2, block_rounds=3), calls * 4)
    assert actions(verdicts)[: 3 * length + 1] == ["allow"] * 2 * length + ["note"] * length + ["block"]


def test_a_poll_among_the_calls_of_a_cycle_begins_it_again() -> None:
    calls = [("a", "1"), ("b", "2")]
    watched = guard(note_after=100, block_after=100)
    run(watched, calls * 2)
    poll(watched, 0.0)
    assert actions(run(watched, calls * 4)) == ["allow"] * 6 + ["note"] * 2


def test_failures_from_the_first_call_on_are_counted() -> None:
    verdicts = run(guard(ceiling=4), [("read", f"error {n}") for n in range(7)], ok=False)
    assert actions(verdicts) == ["allow"] * 2 + ["note"] * 2 + ["block"] * 2 + ["end"]


def test_after_progress_every_count_begins_at_nothing() -> None:
    watched = guard(note_after=1, block_after=2)
    run(watched, [("a", "1"), ("b", "2")])
    assert watched.check("a", "a", 0.0).action == "allow"
    watched = guard(ceiling=2)
    run(watched, [("a", "1"), ("b", "2")])
    assert watched.check("a", "a", 0.0).action == "allow"
    watched = guard(ceiling=10)
    run(watched, [("a", "0"), ("a", "1"), ("b", "2")])
    verdicts = run(watched, [("a", f"{n}") for n in range(10, 17)])
    assert actions(verdicts) == ["allow"] * 5 + ["note"] * 2


def test_a_recorded_call_went_well_unless_it_is_said_that_it_failed() -> None:
    for said in (LoopGuard.record, lambda watched, tool, args, outcome: watched.note((tool, args), outcome)):
        watched = guard()
        run(watched, [("search", "nothing")] * 7)
        said(watched, "write", "it", "done")
        assert watched.check("search", "search", 0.0).action == "allow"


def test_a_limit_below_the_note_blocks_at_once() -> None:
    verdicts = run(guard(note_after=10, block_after=2), [("search", "nothing")] * 3)
    assert actions(verdicts) == ["allow", "allow", "block"]


def test_how_many_calls_are_remembered() -> None:
    watched = guard(remember=3, max_calls=None)
    run(watched, [(f"call {n}", "ok") for n in range(1, 8)])
    known = [n for n in range(1, 8) if not watched.is_new((f"call {n}", f"call {n}"))]
    assert known == [4, 5, 6, 7]


def test_an_outcome_as_long_as_is_kept_is_compared_by_what_it_says() -> None:
    results = [f'{{"at": "2024-05-01T10:00:{second:02}Z", "text": "'.ljust(65_534, "x") + '"}' for second in range(8)]
    assert {len(result) for result in results} == {65_536}
    assert actions(run(guard(), [("dump", result) for result in results]))[-1] == "block"
    longer = [result.replace("x", "xx", 1) for result in results]
    assert set(actions(run(guard(), [("dump", result) for result in longer]))) == {"allow"}


def test_a_short_outcome_after_a_huge_one_is_another() -> None:
    steps = [("dump", "x" * 100_000), *[("dump", "short")] * 4]
    assert actions(run(guard(), steps)) == ["allow"] * 4 + ["note"]


def test_a_poll_is_told_how_long_to_wait() -> None:
    watched = guard()
    assert [poll(watched, 1_000.0).action for _ in range(2)] == ["allow", "allow"]
    told = poll(watched, 1_000.9995)
    assert told[:2] == ("backoff", "poll"), "however late the clock began"
    assert told.delay_ms == 1_000
    assert poll(watched, 1_000.9995 + 1.9995).delay_ms == 2_000
    assert poll(watched, 1_002.999 + 4.0).action == "allow"


def test_caps_to_the_number() -> None:
    watched = guard(max_calls=3, max_seconds=10.0)
    assert actions(run(watched, [(f"call {n}", "ok") for n in range(4)])) == ["allow"] * 3 + ["end"]
    watched = guard(max_cost=1.0)
    assert watched.check("a", "1", 0.0, cost=1.0).action == "allow"
    assert watched.check("a", "2", 0.0, cost=0.001).action == "end"
    watched = LoopGuard(LoopPolicy(max_seconds=10.0), started=100.0)
    assert watched.check("a", "1", 109.9).action == "allow"
    assert watched.check("a", "2", 110.1).action == "end"


def test_half_a_character_can_be_compared() -> None:
    assert normalise("\ud800") == b"\xed\xa0\x80"
