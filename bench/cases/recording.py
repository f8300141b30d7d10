"""Long runs, streams and a large run. Public names only: the same cases measure the working tree and release 0.1.0."""

import contextvars
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path


def _application(folder=None, **store):
    os.environ["ANTIPHON_HOME"] = folder or tempfile.mkdtemp()
    from antiphon import Antiphon

    return Antiphon({"store": store})


def growth(file, events=10_000):
    """What a call costs at the end of a long run, as a multiple of what it costs in a new one; taken in turns."""
    params = json.loads(Path(file).read_bytes())
    app = _application(synchronous="NORMAL")
    numbers = itertools.count()

    @app.gateway.tool(idempotent=False)
    def send(number: int, arguments: dict) -> dict:
        return {"sent": True, "id": "m-1"}

    def opened(calls):
        """A context with a run open in it that has had so many calls."""
        context = contextvars.copy_context()
        context.run(app.run("bench").__enter__)
        context.run(many, calls)
        return context

    def many(calls):
        for _ in range(calls):
            send(next(numbers), params)

    def took():
        began = time.process_time()
        send(next(numbers), params)
        return time.process_time() - began

    long = opened(events // 2)

    def run(n):
        late, early = [], []
        for _ in range(n):
            fresh = opened(5)
            for _ in range(10):
                late.append(long.run(took))
                early.append(fresh.run(took))
        return {"late": statistics.median(late) / statistics.median(early)}

    return run


def first_chunk():
    """Milliseconds by which recording delays the first piece of a model's stream, and of a tool's."""
    app = _application()
    came = [0.0]

    def send(request):
        yield from _timed(came)

    @app.gateway.tool(idempotent=True)
    def stream(n: int):
        yield from _timed(came)

    counter = itertools.count()

    def run(n):
        delays = {"model": [], "tool": []}
        with app.run("bench") as current:
            for _ in range(n):
                request = {"model": "m", "stream": True, "messages": [{"role": "user", "content": str(next(counter))}]}
                delays["model"].append(_delay(current.llm(request, send), came))
                delays["tool"].append(_delay(stream(next(counter)), came))
        return {kind: statistics.median(found) * 1000 for kind, found in delays.items()}

    return run


def _timed(came):
    came[0] = time.perf_counter()
    yield {"choices": [{"index": 0, "delta": {"content": "first "}}]}
    for word in range(20):
        yield {"choices": [{"index": 0, "delta": {"content": f"word {word} "}}]}


def _delay(source, came):
    pieces = iter(source)
    next(pieces)
    delay = time.perf_counter() - came[0]
    for _ in pieces:
        pass
    return delay


def large_run(folder):
    """A run of 10,000 events and 50 MB in the state folder *folder*; its id."""
    app = _application(folder, synchronous="NORMAL")

    @app.gateway.tool(idempotent=False)
    def work(n: int, text: str) -> int:
        return n

    text = "lorem ipsum dolor sit amet " * 370
    with app.run("large") as run:
        for number in range(5_000):
            work(number, text)
    return run.id


if __name__ == "__main__":
    print(large_run(sys.argv[1]))
