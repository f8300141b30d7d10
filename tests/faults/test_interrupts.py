"""D54: a call that is interrupted at each of its moments in turn: nobody hangs, nothing is done twice, and the same
call can be made again."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

from antiphon import Gateway
from tests.campaigns.signals import store_of
from tests.interrupts import Interrupt
from tests.unit.gateway.kit import envelope

PATIENCE_S = 60.0


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize(("kind", "step"), [("memory", 1), ("sqlite", 1), ("redis", 4), ("postgres", 4)])
def test_a_call_interrupted_at_each_moment(kind: str, step: int) -> None:
    """At each fourth one with a server, which takes longer."""
    entered: Counter[str] = Counter()

    def send(order: str) -> str:
        entered[order] += 1
        return f"sent {order}"

    def call(order: str) -> Any:
        return gateway.execute(envelope(params={"order": order}, call_id=order))

    with store_of(kind) as store:
        gateway = Gateway(store=store)
        gateway.tool("send", idempotent=False, effect="write")(send)
        assert call("warm").ok
        at, interrupted = 0, True
        while interrupted:
            at += step
            order = f"o{at}"
            interrupted = Interrupt(at, "/antiphon/").run(lambda order=order: call(order))  # type: ignore[misc]
            before = entered[order]
            answers: list[Any] = []
            again = threading.Thread(target=lambda: answers.append(call(order)), daemon=True)  # noqa: B023
            again.start()
            again.join(PATIENCE_S)
            assert answers, f"the next call waits for ever after an interrupt at moment {at}"
            (answer,) = answers
            assert answer.ok or (answer.code, before) == ("outcome_unknown", 1), (at, answer)
            assert entered[order] <= 1, at
        assert at > 100
        gateway.close()


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize(("kind", "step"), [("sqlite", 1), ("redis", 97), ("postgres", 1)])
def test_the_first_step_of_a_store_interrupted_at_each_moment(kind: str, step: int) -> None:
    """It connects; whoever comes next does not wait for what it held."""
    with store_of(kind) as store:
        at, interrupted = 0, True
        while interrupted:
            at += step
            journal = store.open_sync()
            interrupted = Interrupt(at, f"/stores/{kind}/").run(lambda: journal.list(tenant="default"))  # noqa: B023
            found: list[Any] = []
            again = threading.Thread(target=lambda: found.append(journal.list(tenant="default")), daemon=True)  # noqa: B023
            again.start()
            again.join(PATIENCE_S)
            assert found == [[]], f"the next one waits for ever after an interrupt at moment {at}"
            journal.close()
        assert at > 20


@pytest.mark.parametrize("connects", [True, False])
def test_the_pool_of_postgres_interrupted_at_each_moment(connects: bool) -> None:
    """An interrupt inside Python's ``threading`` or ``queue`` may leave one of its locks taken."""
    with store_of("postgres") as store:
        at, interrupted = 0, True
        while interrupted:
            at += 1
            journal = store.open_sync()
            if not connects:
                journal.list(tenant="default")
            interrupt = Interrupt(at, "/psycopg_pool/", "/threading.py", "/queue.py")
            ended: list[bool] = []

            def first(journal: Any = journal, interrupt: Interrupt = interrupt, ended: list[bool] = ended) -> None:
                ended.append(interrupt.run(lambda: journal.list(tenant="default")))

            def second(journal: Any = journal, ended: list[bool] = ended) -> None:
                ended.append(journal.list(tenant="default") == [])

            for caller in (first, second):
                thread = threading.Thread(target=caller, daemon=True)
                thread.start()
                thread.join(PATIENCE_S)
            assert len(ended) == 2, f"a caller waits forever after an interrupt at moment {at}"
            interrupted = ended[0]
            journal.close()
        assert at > (20 if connects else 5)


@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis", "postgres"])
def test_one_who_waits_interrupted_at_each_moment(kind: str) -> None:
    """Others who wait for the same call get its answer."""
    begun, go = threading.Semaphore(0), threading.Semaphore(0)

    def send(order: str) -> str:
        begun.release()
        assert go.acquire(timeout=PATIENCE_S)
        return f"sent {order}"

    def call(order: str) -> Any:
        return gateway.execute(envelope(params={"order": order}, key=order))

    with store_of(kind) as store:
        gateway = Gateway(store=store)
        gateway.tool("send", idempotent=False, effect="write")(send)
        at, number, interrupted, came_late = 0, 0, True, False
        while interrupted or came_late:
            at, number = at + (not came_late), number + 1
            order = f"o{number}"
            answers: list[Any] = []
            own: list[Any] = []

            def ask(answers: list[Any], order: str = order) -> None:
                answers.append(call(order))

            threads = [threading.Thread(target=ask, args=(answers,), daemon=True) for _ in range(2)]
            threads[0].start()
            assert begun.acquire(timeout=PATIENCE_S)
            threads[1].start()
            soon = threading.Timer(0.01, go.release)
            soon.start()
            interrupted = Interrupt(at, "/antiphon/stores/", "/antiphon/_daemon.py").run(lambda own=own: ask(own))  # type: ignore[misc]
            for thread in threads:
                thread.join(PATIENCE_S)
            assert [answer.content for answer in answers] == [f"sent {order}"] * 2, at
            came_late = any(answer.cache.matched_on == "completed" for answer in own)  # it had nothing to wait for
        assert at > 10
        gateway.close()
