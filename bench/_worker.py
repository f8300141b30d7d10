"""Runs the cases of one file in whatever environment it is started in; answers JSON lines (standard library only).

    python bench/_worker.py bench/cases/NAME.py

    {"op": "open", "case": "key", "params": {...}}  ->  {"ok": true}
    {"op": "run", "n": 1000}                        ->  {"ok": true, "cpu": s, "wall": s, "rss_kb": n, "extra": {...}}
    {"op": "close"}                                 ->  {"ok": true}, and the process ends

A failure answers {"ok": false, "error": "..."}. What a case prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import inspect
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any


def load(path: str) -> Any:
    """The case file as a module."""
    spec = importlib.util.spec_from_file_location("bench_cases", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_cases"] = module
    spec.loader.exec_module(module)
    return module


class Opened:
    """One case, set up: knows how to run it *n* times and how to take it down."""

    def __init__(self, factory: Callable[..., Any], params: dict[str, Any]) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._made = factory(**params)
        if inspect.isasyncgen(self._made):
            call = self._until(anext(self._made))
        elif inspect.isgenerator(self._made):
            call = next(self._made)
        elif inspect.iscoroutine(self._made):
            call = self._until(self._made)
        else:
            call = self._made
        self._is_async = inspect.iscoroutinefunction(call)
        self._takes_n = _takes_n(call)
        self._call = call
        self.prepare: Callable[[], object] = getattr(call, "prepare", _nothing)
        """Makes ready for one sample, which it is no part of."""

    def _until(self, awaitable: Any) -> Any:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self._loop)
        return self._loop.run_until_complete(awaitable)

    def run(self, n: int) -> Any:
        """Run the case *n* times; what the last call returned, if it is a dict, is kept as ``extra``."""
        call = self._call
        if self._is_async:
            return self._until(call(n) if self._takes_n else _repeat_async(call, n))
        if self._takes_n:
            return call(n)
        for _ in range(n):
            call()
        return None

    def close(self) -> None:
        """Run what the case has after its ``yield``."""
        if inspect.isgenerator(self._made):
            for _ in self._made:
                pass
        elif inspect.isasyncgen(self._made):
            with contextlib.suppress(StopAsyncIteration):
                self._until(anext(self._made))
        if self._loop is not None:
            self._loop.close()


def _nothing() -> None:
    """What a case does before a sample unless it says otherwise."""


async def _repeat_async(call: Callable[[], Any], n: int) -> None:
    for _ in range(n):
        await call()


def _takes_n(call: Callable[..., Any]) -> bool:
    with contextlib.suppress(ValueError, TypeError):
        return any(
            parameter.default is parameter.empty
            and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
            for parameter in inspect.signature(call).parameters.values()
        )
    return False


def measure(opened: Opened, n: int) -> dict[str, Any]:
    """One sample: CPU seconds of this process (all threads), wall seconds, peak memory."""
    opened.prepare()
    gc.collect()
    cpu, wall = time.process_time(), time.perf_counter()
    extra = opened.run(n)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "cpu": cpu,
        "wall": wall,
        "rss_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "extra": extra if isinstance(extra, dict) else {},
    }


def requests() -> Iterator[dict[str, Any]]:
    """What the harness asks, line by line."""
    for line in sys.stdin:
        yield json.loads(line)


def main(path: str) -> None:
    """Serve the harness until it asks to close."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a case that prints must not garble the protocol
    opened: Opened | None = None
    for request in requests():
        try:
            answer: dict[str, Any] = {}
            if request["op"] == "open":
                opened = Opened(getattr(load(path), request["case"]), request["params"])
            elif request["op"] == "run":
                assert opened is not None, "open a case first"
                answer = measure(opened, request["n"])
            elif opened is not None:
                opened.close()
            answers.write(json.dumps({"ok": True, **answer}) + "\n")
        except BaseException as error:
            traceback.print_exc()
            answers.write(json.dumps({"ok": False, "error": f"{type(error).__name__}: {error}"}) + "\n")
        if request["op"] == "close":
            break
    answers.flush()
    os._exit(0)  # a peer's background threads must not keep the process


if __name__ == "__main__":
    sys.path.pop(0)  # bench/ itself must not shadow a peer's modules
    main(sys.argv[1])
