"""Lost answers: the table of the rule, and every short history against a plain model of it."""

from __future__ import annotations

import itertools

from antiphon.decide.lost import LostAnswers

WINDOW = 10.0


def test_a_call_whose_client_waits_leaves_no_credit() -> None:
    rule = LostAnswers(WINDOW)
    assert rule.begin("p", 0, "a") == "a"
    assert rule.begin("p", 0, "b") == "b"  # two equal calls at a time are two calls


def test_a_lost_answer_is_given_once_and_the_next_call_runs() -> None:
    rule = LostAnswers(WINDOW)
    rule.begin("p", 0, "a")
    rule.settled("p", "a", 1)
    rule.lost("p", "a", 2)
    assert rule.begin("q", 3, "other") == "other"
    assert rule.begin("p", 3, "b") == "a"
    assert rule.begin("p", 4, "c") == "c"


def test_a_call_that_still_runs_is_joined_and_its_window_begins_when_it_is_settled() -> None:
    rule = LostAnswers(WINDOW)
    rule.begin("p", 0, "a")
    rule.lost("p", "a", 1)
    assert rule.begin("p", 500, "b") == "a"  # however long it takes
    rule.lost("p", "a", 501)
    rule.settled("p", "a", 600)
    assert rule.begin("p", 610, "c") == "a"
    rule.lost("p", "a", 611)
    assert rule.begin("p", 622, "d") == "d"  # the window is over


def test_what_took_no_effect_is_not_given_again() -> None:
    rule = LostAnswers(WINDOW)
    rule.begin("p", 0, "a")
    rule.lost("p", "a", 1)
    rule.failed("p", "a")
    assert rule.begin("p", 2, "b") == "b"


def test_handed_over_leaves_a_credit_only_where_asked_for_and_until_it_is_confirmed() -> None:
    for asked in (False, True):
        rule = LostAnswers(WINDOW, handed_over=asked)
        rule.begin("p", 0, "a")
        rule.settled("p", "a", 1)
        rule.handed_over("p", "a", "socket", 1)
        assert rule.begin("p", 2, "b") == ("a" if asked else "b")
        rule.settled("p", "b", 2)
        rule.handed_over("p", "b", "socket", 2)
        rule.confirmed("another")
        rule.confirmed("socket")
        assert rule.begin("p", 3, "c") == "c"


def test_the_oldest_credits_give_way() -> None:
    rule = LostAnswers(WINDOW, most=2)
    for name in "abc":
        rule.begin(name, 0, name)
        rule.settled(name, name, 0)
        rule.lost(name, name, 0)
    assert [rule.begin(name, 1, "new") for name in "abc"] == ["new", "b", "c"]


def test_every_history_of_seven_steps() -> None:
    """At most one call is answered for each lost answer, none after the window, and none without a loss."""
    steps = ("call", "settle", "lose", "hand_over", "wait")
    for history in itertools.product(steps, repeat=7):
        rule, now, made = LostAnswers(WINDOW), 0.0, 0
        current: str | None = None
        settled: set[str] = set()
        owed: list[tuple[str, float | None]] = []  # the model: (key, since)
        for step in history:
            now += 1
            if step == "call":
                fresh = f"k{made}"
                made += 1
                good = [item for item in owed if item[1] is None or now - item[1] <= WINDOW]
                expected = good[0][0] if good else fresh
                owed = good[1:]
                current = rule.begin("p", now, fresh)
                assert current == expected, history
            elif current is None:
                continue
            elif step == "settle":
                rule.settled("p", current, now)
                settled.add(current)
                owed = [(key, now if key == current and since is None else since) for key, since in owed]
            elif step == "lose":
                rule.lost("p", current, now)
                owed.append((current, now if current in settled else None))
                current = None
            elif step == "hand_over":
                rule.handed_over("p", current, "socket", now)
                current = None
            else:
                now += WINDOW
