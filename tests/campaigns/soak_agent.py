"""An agent's process of the soak: recorded runs, guarded calls, streams and replays on one store, until it is ended.

    python -m tests.campaigns.soak_agent STORE [LEAK …]

Prints how many calls it has made, twice a second. ``LEAK`` plants one: ``descriptor``, ``thread`` or ``memory``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import antiphon

THREADS = 2
REPLAY_EVERY = 10
_kept: list[Any] = []


def leak(*kinds: str) -> None:
    """Lose something for good: a planted bug."""
    if "descriptor" in kinds:
        os.open(os.devnull, os.O_RDONLY)
    if "thread" in kinds and len(_kept) % 4 == 0:
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    if kinds:
        _kept.append(b"x" * (8_000_000 if len(_kept) < 100 else 200_000) if "memory" in kinds else b"")


def tokens(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A model that streams."""
    for word in ("on ", "its ", "way"):
        yield {"choices": [{"index": 0, "delta": {"content": word}}]}


class Desk:
    """An application with tools, and agents that use them."""

    def __init__(self, store: str, leaks: tuple[str, ...] = ()) -> None:
        self.app = antiphon.Antiphon({"store": {"url": store}, "telemetry": {"logs": False}})
        self.leaks = leaks
        self.calls = 0
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._add_tools(self.app.gateway)
        self._add_tools(self.app.async_gateway)

    def _add_tools(self, gateway: Any) -> None:
        gateway.tool("look_up", idempotent=True, effect="read")(self.look_up)
        gateway.tool("send", idempotent=False, effect="write")(self.send)
        gateway.tool("flaky", idempotent=True, effect="read", retry={"base_ms": 1, "max_attempts": 2})(self.flaky)

    def look_up(self, order: str) -> dict[str, str]:
        return {"order": order, "state": "on its way"}

    def send(self, order: str, text: str) -> str:
        if self.leaks:
            leak(*self.leaks)
        return f"sent {order}: {text}"

    def flaky(self, order: str) -> str:
        if hash(order) % 2:
            raise ConnectionError("the other side is gone")
        return order

    def counted(self, number: int) -> None:
        with self._lock:
            self.calls += number

    def answer(self, order: str) -> str:
        """An agent: two tools, a model that streams, a message sent once and delivered twice."""
        run = antiphon.current_run()
        turn = self.app.gateway.session(order).turn()
        found = turn.call("look_up", {"order": order}, call_id="look").content
        request = {
            "model": "m-1",
            "stream": True,
            "messages": [{"role": "user", "content": f"say {found} {run.now()}"}],
        }
        said = "".join(chunk["choices"][0]["delta"]["content"] for chunk in run.llm(request, tokens))
        turn.call("flaky", {"order": order}, call_id="flaky")
        first = turn.call("send", {"order": order, "text": said}, call_id="send")
        again = self.app.gateway.session(order).turn().call("send", {"order": order, "text": said}, call_id="send")
        return f"{first.content} {again.content}"

    async def answer_async(self, order: str) -> str:
        turn = self.app.async_gateway.session(order).turn()
        await turn.call("look_up", {"order": order}, call_id="look")
        await turn.call("flaky", {"order": order}, call_id="flaky")
        return str((await turn.call("send", {"order": order, "text": "x" * 200}, call_id="send")).content)

    def work(self) -> None:
        """Runs one after the other; now and then the last one is replayed strictly."""
        while True:
            number = next(self._ids)
            run = self.app.record(self.answer, f"order-{os.getpid()}-{number}")
            assert run.status == "completed", run.error
            self.counted(5)
            if number % REPLAY_EVERY == 0:
                report = antiphon.replay(run.id, app=self.app, mode="strict", function=self.answer)
                assert report.passed, report.text()
                self.counted(5)

    async def work_async(self) -> None:
        while True:
            orders = [f"async-{os.getpid()}-{next(self._ids)}" for _ in range(4)]
            await asyncio.gather(*(self.app.record(self.answer_async, order) for order in orders))
            self.counted(3 * len(orders))


def main() -> None:
    """Work until the parent ends it; a worker that fails ends the process."""
    logging.disable(logging.CRITICAL)
    desk = Desk(sys.argv[1], tuple(sys.argv[2:]))

    def guarded(work: Any) -> None:
        try:
            work()
        except BaseException as error:
            print(f"failed: {type(error).__name__}: {error}", flush=True)
            os._exit(1)

    for _ in range(THREADS):
        threading.Thread(target=guarded, args=(desk.work,), daemon=True).start()
    threading.Thread(target=guarded, args=(lambda: asyncio.run(desk.work_async()),), daemon=True).start()
    while True:
        print(desk.calls, flush=True)
        time.sleep(0.5)


if __name__ == "__main__":
    main()
