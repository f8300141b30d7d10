"""Recorded calls, streams and long runs of Antiphon."""

import itertools
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path


def _application(**store):
    folder = tempfile.mkdtemp(prefix="bench-")
    os.environ["ANTIPHON_HOME"] = folder
    from antiphon import Antiphon

    limits = {"enabled": False}
    return folder, Antiphon({"telemetry": {"logs": False}, "loop": limits, "store": store})


def calls(file, synchronous="FULL"):
    """Guarded calls of one run, each with its start and its outcome in the log."""
    params = json.loads(Path(file).read_bytes())
    folder, app = _application(synchronous=synchronous)
    numbers = itertools.count()

    @app.gateway.tool(idempotent=False)
    def send(number: int, arguments: dict) -> dict:
        return {"sent": True, "id": "m-1"}

    with app.run("bench"):
        yield lambda: send(next(numbers), params)
    shutil.rmtree(folder, ignore_errors=True)


def growth(file, events=10_000):
    """What a call costs at the end of a long run, as a multiple of what it costs in a new one; taken in turns."""
    params = json.loads(Path(file).read_bytes())
    folder, app = _application(synchronous="NORMAL")
    numbers = itertools.count()

    @app.gateway.tool(idempotent=False)
    def send(number: int, arguments: dict) -> dict:
        return {"sent": True, "id": "m-1"}

    long = app.run("long")
    with long:
        for _ in range(events // 2):
            send(next(numbers), params)

    def took(run):
        with run.attached():
            began = time.process_time()
            send(next(numbers), params)
            return time.process_time() - began

    def run(n):
        late, early = [], []
        for _ in range(n):
            fresh = app.run("fresh")
            with fresh:
                for _ in range(5):
                    send(next(numbers), params)
            for _ in range(10):
                late.append(took(long))
                early.append(took(fresh))
        return {"late": statistics.median(late) / statistics.median(early)}

    yield run
    shutil.rmtree(folder, ignore_errors=True)


def first_chunk(file):
    """Milliseconds by which recording delays the first piece of a model's stream, and of a tool's."""
    folder, app = _application()
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

    yield run
    shutil.rmtree(folder, ignore_errors=True)


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
