"""A fleet for tests: worker processes around one store, and effects that are counted outside of it."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from antiphon import AsyncGateway, Gateway
from antiphon.config.wiring import open_store
from antiphon.contract.spec import Ttls
from antiphon.ports import ClaimRequest, ClaimTemplate, Journal, StaticClaimRequest, Store, SyncJournal
from tests.processes import forked, process

PATIENCE_S = 90.0


class Effects:
    """What tools did to the world: one line per dispatch, appended in one write, whoever is killed."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def add(self, what: str) -> None:
        handle = os.open(self.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(handle, f"{what}\n".encode())
        finally:
            os.close(handle)

    def counts(self) -> Counter[str]:
        return Counter(self.file.read_text().split()) if self.file.exists() else Counter()


class Worker:
    """One process of the fleet; it talks over a pipe."""

    def __init__(self, target: Callable[..., None], *args: Any, child: bool = False) -> None:
        self.pipe, there = forked.Pipe()
        self.process: BaseProcess = process(target, *args, there, child=child)
        self.process.start()
        there.close()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def say(self, message: Any) -> None:
        self.pipe.send(message)

    def hear(self, seconds: float = PATIENCE_S) -> Any:
        assert self.pipe.poll(seconds), f"worker {self.pid} said nothing for {seconds} s"
        return self.pipe.recv()

    def ask(self, message: Any) -> Any:
        self.say(message)
        return self.hear()

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@contextlib.contextmanager
def fleet(target: Callable[..., None], *shared: Any, size: int, child: bool = False) -> Iterator[list[Worker]]:
    """*size* workers, each told its number; all of them ready, and ended afterwards."""
    workers = [Worker(target, *shared, number, child=child) for number in range(size)]
    try:
        for worker in workers:
            assert worker.hear() == "ready"
        yield workers
    finally:
        for worker in workers:
            worker.kill()


def open_gateway(url: str, **config: Any) -> Gateway:
    return Gateway(store=open_store(url), config=config)


def open_async_gateway(url: str, **config: Any) -> AsyncGateway:
    return AsyncGateway(store=open_store(url), config=config)


class Tampered:
    """A store whose journals make some steps in another way: ``step(journal, …)``, a coroutine for event loops."""

    def __init__(self, store: Store, **steps: Callable[..., Any]) -> None:
        self._store = store
        self._awaited = {name: step for name, step in steps.items() if inspect.iscoroutinefunction(step)}
        self._plain = {name: step for name, step in steps.items() if name not in self._awaited}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def open_sync(self) -> Any:
        return _Tampered(self._store.open_sync(), self._plain)

    def open_async(self) -> Any:
        return _Tampered(self._store.open_async(), self._awaited)


class _Tampered:
    def __init__(self, journal: SyncJournal | Journal, steps: dict[str, Callable[..., Any]]) -> None:
        self._journal = journal
        for name, step in steps.items():
            setattr(self, name, partial(step, journal))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)


def of_another(request: ClaimRequest) -> StaticClaimRequest:
    """The request of another process for the same claim."""
    tool = request.template.tool
    template = ClaimTemplate(tool=tool, session="s", actor="a", ttl_ms=60_000, lease_ms=60_000, owner="another")
    return StaticClaimRequest(request.key, "other", template, request.idempotency_key, request.params, "r", "token")


def short(lease_ms: int) -> Ttls:
    """Leases that a test can wait for."""
    return Ttls(lease_ms=lease_ms)


def envelope(tool: str, params: dict[str, Any], call_id: str, *, key: str | None = None) -> dict[str, Any]:
    """A call in the wire form; with a *key* of the caller, that key alone is the intent."""
    payload: dict[str, Any] = {"version": "1.0", "params": params}
    if key is not None:
        payload["idempotencyKey"] = key
    return {
        "contractVersion": "1.1",
        "requestId": f"request-{call_id}",
        "toolCallId": call_id,
        "toolName": tool,
        "toolNamespace": "tools",
        "target": {"sessionKey": "s", "actorId": "a"},
        "payload": payload,
        "transport": {"dedupeMode": "enforced", "retryBudget": {"maxAttempts": 1, "maxElapsedMs": 60_000}},
        "control": {},
        "trace": {},
    }


def summary(result: Any) -> dict[str, Any]:
    """What tests look at in a result envelope, fit for a pipe."""
    wire = result.to_wire()
    return {
        "status": wire["status"],
        "code": wire.get("error", {}).get("code", ""),
        "message": wire.get("error", {}).get("message", ""),
        "attempts": wire["attempts"],
        "fromCache": wire["fromCache"],
        "value": wire.get("output", {}).get("content"),
        "metadata": wire.get("output", {}).get("metadata", {}),
    }


def until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> float:
    """Wait until *condition* holds; how long that took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, f"not within {seconds} s: {what}"
        time.sleep(0.01)
    return time.monotonic() - start


def serve(pipe: Connection, acts: dict[str, Callable[..., Any]]) -> None:
    """Do what the test asks for, one act after the other: ``(name, arguments…)``."""
    pipe.send("ready")
    while True:
        name, *arguments = pipe.recv()
        pipe.send(acts[name](*arguments))
