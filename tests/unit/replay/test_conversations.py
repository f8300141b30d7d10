"""Each request of a growing conversation is recorded under its own key (L1)."""

from __future__ import annotations

import threading
from typing import Any

import antiphon
from antiphon.llm.key import llm_cache_key
from tests.unit.replay.kit import memory_app, says


def _talk(length: int, word: str = "turn") -> list[dict[str, Any]]:
    return [{"role": "user" if n % 2 == 0 else "assistant", "content": f"{word} {n}"} for n in range(length)]


def _keys(run: Any) -> list[tuple[str, dict[str, Any]]]:
    started = [event for event in run.events() if event.type == "call.started"]
    return [(event.payload["key"], event.payload["request"]) for event in started]


def test_every_recorded_key_is_the_plain_one_also_when_messages_change_in_place() -> None:
    app = memory_app()
    messages = _talk(9)
    with app.run("long") as run:
        for number in range(12):
            run.llm({"model": "m", "temperature": 0, "messages": messages}, lambda body: says("ok"))
            if number % 4 == 3:
                messages[2]["content"] += " edited"  # in place, as some agents compact their history
            messages.append({"role": "user", "content": f"more {number}"})
    assert all(key == llm_cache_key(request) for key, request in _keys(run))


def test_lanes_that_share_a_beginning_do_not_mix() -> None:
    app = memory_app()

    def work(word: str) -> None:
        run = antiphon.current_run()
        messages = _talk(10)
        for number in range(20):
            messages.append({"role": "user", "content": f"{word} {number}"})
            run.llm({"model": "m", "temperature": 0, "messages": list(messages)}, lambda body: says("ok"))

    with app.run("lanes") as run:
        threads = [threading.Thread(target=antiphon.wrap_context(work), args=(f"lane {n}",)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(_keys(run)) == 60
    assert all(key == llm_cache_key(request) for key, request in _keys(run))
