"""Sagas: the writes of one unit of work, which are undone together if it fails (D50).

A saga keeps no durable state of its own: each of its writes is in the log of its run, with arguments, result and the
saga's id, before any caller gets an answer. What is kept here is what a live ``with`` block needs.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol

from antiphon._drive import drive
from antiphon._late import redacted
from antiphon._lineage import active_saga
from antiphon._scope import RunScope, _cursor, undoing
from antiphon.decide.classify import is_control_flow
from antiphon.errors import Divergence, InvalidInput, SagaUndoing, add_note

log = logging.getLogger("antiphon.saga")

State = Literal["open", "closed", "undoing", "undone", "stuck", "interrupted"]
OPENED, UNDOING, FINISHED = "saga.opened", "saga.undoing", "saga.finished"
NO_UNDO = "no undo is declared for it"
_order = itertools.count(1)
_counts: Counter[str] = Counter()
"""The sagas of this process that have not ended, by state."""
_lock = threading.Lock()


class Write(Protocol):
    """A write of a saga, as the gateway remembers it."""

    tool_name: str
    call_name: str
    order: int
    """Its position in the order in which the writes settled; 0: it is still in flight."""
    why_not: str
    """Why nothing can undo it; empty if something can."""

    def undo(self) -> Any:
        """The result of its undo, or an awaitable of it."""

    def report_state(self, state: str, why: str) -> None:
        """The result of its undo."""


class Undone(NamedTuple):
    """The result of undoing one write with its saga."""

    tool: str
    call: str
    state: Literal["undone", "nothing to undo", "needs a person", "done by hand"]
    why: str = ""

    def to_wire(self) -> dict[str, str]:
        """The JSON form."""
        return {"tool": self.tool, "call": self.call, "state": self.state, **({"why": self.why} if self.why else {})}


class UndoReport(NamedTuple):
    """The result of an undo: ``undone`` if no effect is left, ``stuck`` if a person has to look."""

    saga: str
    state: State
    writes: tuple[Undone, ...]

    @property
    def undone(self) -> list[Undone]:
        return [write for write in self.writes if write.state == "undone"]

    @property
    def needs_person(self) -> list[Undone]:
        return [write for write in self.writes if write.state == "needs a person"]

    def __str__(self) -> str:
        parts = [f"saga {self.saga!r} is {self.state}: {len(self.undone)} undone"]
        parts += [f"needs a person: {write.tool} ({write.why})" for write in self.needs_person]
        return "; ".join(parts)


def next_order() -> int:
    """The position of a write that settles now."""
    return next(_order)


def counts() -> dict[str, int]:
    """How many sagas of this process are open, being undone, or stuck."""
    with _lock:
        return {state: _counts[state] for state in ("open", "undoing", "stuck")}


class Core:
    """One saga of one run, whoever drives it."""

    def __init__(self, scope: RunScope, name: str, saga_id: str, *, wait_s: float) -> None:
        self.scope = scope
        self.name = name
        self.id = saga_id
        self.state: State = "closed"
        self.parent: Core | None = None
        self.asynchronous = False
        self.report: UndoReport | None = None
        self._wait_s = wait_s
        self._in_flight: list[Write] = []
        self._settled: list[Write] = []
        self._changed = threading.Condition()
        self._token: Any = None

    # -- what the gateway tells --------------------------------------------------------------------------------------

    def join(self, write: Write) -> bool:
        """Take a write that is about to be claimed; not if the saga, or one around it, takes no more writes."""
        with self._changed:
            if not self.takes_writes:
                return False
            for saga in self._chain():
                saga._in_flight.append(write)
            return True

    @property
    def takes_writes(self) -> bool:
        """Whether neither it nor a saga around it has failed."""
        return all(saga.state in ("open", "closed") for saga in self._chain())

    def settle(self, write: Write, *, has_effect: bool) -> None:
        """The write has ended; *has_effect*: it had an effect, or may have had one."""
        with self._changed:
            for saga in self._chain():
                saga._in_flight.remove(write)
                if has_effect:
                    saga._settled.append(write)
            self._changed.notify_all()

    def _chain(self) -> Iterator[Core]:
        """The saga and those around it."""
        saga: Core | None = self
        while saga is not None:
            yield saga
            saga = saga.parent

    @property
    def is_over(self) -> bool:
        """Whether its block has been left and, if it failed, its writes have been undone."""
        return self._token is self and self.state not in ("open", "undoing")

    def nearest_unclosed(self) -> Core | None:
        """The saga that takes the writes of this context: the writes of a closed saga belong to its parent."""
        saga: Core | None = self
        while saga is not None and saga.state == "closed":
            saga = saga.parent
        return saga

    # -- its life ----------------------------------------------------------------------------------------------------

    def open(self) -> list[Any]:
        if self.state != "closed" or self._token is not None:
            raise InvalidInput(f"The saga {self.name!r} was opened before.", hint="Open a new one: run.saga(name).")
        outer: Core | None = active_saga.get()
        self.parent = outer.nearest_unclosed() if outer is not None and outer.scope is self.scope else None
        if self.parent is not None:
            self._changed = self.parent._changed
        self._to("open")
        self.scope.sagas.append(self)
        self._token = active_saga.set(self)
        parent = {} if self.parent is None else {"parent": self.parent.id}
        return self._rows(OPENED, parent)

    def leave(self) -> None:
        """The context continues outside of the saga."""
        token, self._token = self._token, self
        try:
            active_saga.reset(token)
        except ValueError:  # left in another context than it was entered in
            active_saga.set(self.parent)

    def close(self) -> list[Any]:
        """Close after success. Its writes also belong to the saga around it, if there is one, which may still fail."""
        self._to("closed")
        self.scope.sagas.remove(self)
        return self._rows(FINISHED, {"state": "closed"})

    def interrupt(self) -> None:
        """The process is exiting: nothing is undone unless somebody requests it."""
        self._to("interrupted")
        log.warning(
            "saga %r was interrupted and nothing was undone; to undo it: antiphon runs undo %s",
            redacted(self.name),
            self.scope.run_id,
        )

    def begin_undo(self, why: str) -> list[Any]:
        """Take no more writes from here on."""
        with self._changed:
            if self.state not in ("open", "stuck"):
                raise SagaUndoing(f"The saga {self.name!r} is {self.state} and cannot be undone.")
            self._to("undoing")
        return self._rows(UNDOING, {"why": why})

    def wait(self) -> None:
        """Wait for writes in flight; one that takes too long is left to a person."""
        with self._changed:
            self._changed.wait_for(lambda: not self._in_flight, self._wait_s)

    async def undo(self) -> UndoReport:
        """Undo the writes in reverse order. Suspends only if an undo does."""
        with self._changed:
            writes = sorted(self._settled, key=lambda write: write.order, reverse=True)
            writes = [*self._in_flight, *writes]
        token, undo = active_saga.set(None), undoing.set(True)  # undos, and what they call, are not writes of the saga
        try:
            self.report = await undo_all(self.name, writes)
        finally:
            with contextlib.suppress(ValueError):
                undoing.reset(undo)
                active_saga.reset(token)
        return self.report

    def end_undo(self, report: UndoReport) -> list[Any]:
        with self._changed:
            self._to(report.state)
            for saga in self._chain() if report.state == "undone" else ():
                saga._settled = [write for write in saga._settled if write not in self._settled or saga is self]
        if report.state == "stuck":
            log.error("%s; after that: antiphon runs undo %s", redacted(str(report)), self.scope.run_id)
        return self._rows(FINISHED, finished(report))

    def _to(self, state: State) -> None:
        with _lock:
            _counts[self.state] -= 1
            _counts[state] += 1
        self.state = state

    def _rows(self, kind: str, payload: dict[str, Any]) -> list[Any]:
        named = {"saga": self.id, "name": self.name, **payload}
        return [self.scope.encode(kind, None, named, {})] if self.scope.records else []


def finished(report: UndoReport) -> dict[str, Any]:
    """The payload of the last event of a saga."""
    return {"state": report.state, "writes": [write.to_wire() for write in report.writes]}


def saga_of(scope: RunScope) -> Core | None:
    """The saga that a write of this context belongs to.

    A thread without a context belongs to the saga that started it, else to the innermost that is not over.
    """
    found: Core | None = active_saga.get()
    if found is not None and found.scope is scope:
        return found.nearest_unclosed()
    if _cursor.get() is not None:
        return None
    return next((saga for saga in reversed(scope.sagas) if not saga.is_over), None)


async def undo_all(name: str, writes: Iterable[Write]) -> UndoReport:
    """Undo *writes* in this order. One that cannot be undone for certain blocks those behind it."""
    done: list[Undone] = []
    blocked = ""
    for write in writes:
        tool, call = write.tool_name, write.call_name
        state: Any = "needs a person"
        if write.why_not or blocked:
            why = write.why_not or f"it is undone only after {blocked}"
        else:
            state, why = await _undo(write)
        if state == "needs a person" and why != NO_UNDO:  # nobody waits for a write that is declared to have no undo
            blocked = blocked or f"{tool} {call}"
        done.append(Undone(tool, call, state, why))
        write.report_state(state, why)
    stuck = any(write.state == "needs a person" for write in done)
    return UndoReport(name, "stuck" if stuck else "undone", tuple(done))


async def _undo(write: Write) -> tuple[Any, str]:
    try:
        result: Any = write.undo()
        if inspect.isawaitable(result):
            result = await result
    except Divergence:
        raise
    except Exception as error:
        return "needs a person", f"its undo failed: {type(error).__name__}: {error}"
    if result.status != "success":
        return "needs a person", f"{result.code}: {result.message}"
    return ("nothing to undo" if (result.metadata or {}).get("undo") else "undone"), ""


def _undoes(error: BaseException) -> bool:
    """Whether an exception that leaves a saga means that it failed: not that the process exits, pauses or diverges."""
    import asyncio

    if isinstance(error, asyncio.CancelledError):
        return True
    return isinstance(error, Exception) and not isinstance(error, Divergence) and not is_control_flow(error)


def _is_fine(error: BaseException | None) -> bool:
    return error is None or (isinstance(error, SystemExit) and error.code in (None, 0))


class _Block:
    """A saga in code. What both faces do is written once: synchronous code completes it with ``drive``."""

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def name(self) -> str:
        return self._core.name

    @property
    def id(self) -> str:
        return self._core.id

    @property
    def state(self) -> State:
        """``open``, ``closed``, ``undoing``, ``undone``, ``stuck`` or ``interrupted``."""
        return self._core.state

    @property
    def report(self) -> UndoReport | None:
        """The result of the undo, if there was one."""
        return self._core.report

    async def _leave(self, error: BaseException | None) -> None:
        core = self._core
        core.leave()
        if core.state != "open":
            return
        if _is_fine(error):
            await self._write(core.close())
        elif error is not None and _undoes(error):
            add_note(error, f"antiphon: {redacted(str(await self._undo(type(error).__qualname__)))}")
        else:
            core.interrupt()

    async def _undo(self, why: str) -> UndoReport:
        core = self._core
        await self._write(core.begin_undo(why))
        await self._wait()
        report = await core.undo()
        await self._write(core.end_undo(report))
        return report

    async def _wait(self) -> None:
        self._core.wait()

    async def _write(self, rows: list[Any]) -> None:
        write = self._core.scope.write
        if rows and write is not None:
            write(rows)


class Saga(_Block):
    """The writes of one unit of work: ``with run.saga("trip"):`` undoes them if an exception leaves the block.

    Made by ``run.saga(name)``; in asynchronous code: ``async with``.
    """

    def __enter__(self) -> Saga:
        drive(self._write(self._core.open()))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        drive(self._leave(error))

    def undo(self) -> UndoReport:
        """Undo what was done so far; the saga takes no further writes."""
        return drive(self._undo("asked"))

    async def __aenter__(self) -> AsyncSaga:
        self._core.asynchronous = True
        saga = AsyncSaga(self._core)
        await saga._write(self._core.open())
        return saga

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        await AsyncSaga(self._core)._leave(error)


class AsyncSaga(_Block):
    """A :class:`Saga` in asynchronous code."""

    async def undo(self) -> UndoReport:
        """Undo what was done so far; the saga takes no further writes."""
        return await self._undo("asked")

    async def _wait(self) -> None:
        if self._core._in_flight:
            import asyncio

            await asyncio.to_thread(self._core.wait)

    async def _write(self, rows: list[Any]) -> None:
        write = self._core.scope.write_async
        if rows and write is not None:
            await write(rows)


def states(events: Iterable[Any], *, over: bool) -> dict[str, dict[str, Any]]:
    """The sagas of a run by id, from its log: name, parent, state and what became of the writes.

    *over*: nobody continues the run, so what is neither closed nor undone was interrupted.
    """
    found: dict[str, dict[str, Any]] = {}
    for event in events:
        if not event.type.startswith("saga."):
            continue
        payload = event.payload
        saga = found.setdefault(
            str(payload.get("saga")), {"id": str(payload.get("saga")), "name": "", "state": "open", "writes": []}
        )
        if event.type == OPENED:
            saga |= {"name": str(payload.get("name")), "parent": payload.get("parent")}
        elif event.type == UNDOING:
            saga["state"] = "undoing"
        else:
            saga |= {"state": str(payload.get("state")), "writes": payload.get("writes", [])}
    for saga in found.values():
        if over and saga["state"] in ("open", "undoing"):
            saga["state"] = "interrupted"
    return found


def members(sagas: Mapping[str, Mapping[str, Any]], root: str) -> Iterator[str]:
    """The saga and those inside it."""
    yield root
    for name, saga in sagas.items():
        if saga.get("parent") == root:
            yield from members(sagas, name)
