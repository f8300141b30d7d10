"""Undo the sagas of a run from its log: those that a dead process left open, and those that got stuck (D50)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from antiphon import _saga
from antiphon._drive import drive
from antiphon._gateway import codec
from antiphon._gateway.call import NOTHING
from antiphon._gateway.gateway import AsyncGateway, Gateway
from antiphon._gateway.ids import uuid7
from antiphon._gateway.tool import Tool
from antiphon._gateway.undo import NOT_READABLE, Execution, Undo, may_have_effect
from antiphon._replay.recording import full_name
from antiphon.contract.approval import is_asking
from antiphon.contract.events import Event, RunManifest, is_masked, type_not_kept
from antiphon.decide.claim import is_unknown
from antiphon.errors import InvalidInput, NotFound
from antiphon.ops.admin import audit_before
from antiphon.ops.app import Antiphon, using
from antiphon.ops.entry import load_module
from antiphon.ops.gateways import find_tool
from antiphon.ops.runs import learn_values, opener, real_status

_LAST = 1 << 62
"""The position of a write that was never seen to settle: it is undone first."""


class Logged:
    """A write of a saga as recorded in the log."""

    def __init__(self, app: Antiphon, started: Event, finished: Event | None) -> None:
        self.tool_name: str = full_name(started.payload)
        self.call_name: str = started.call or ""
        self.order: int = _LAST + started.seq if finished is None else finished.seq
        key, identity, token = _execution(started)
        self.token: str = token
        self._claim = (key, identity)
        self.by_hand: bool = False
        """Whether a person has handled it."""
        found = find_tool(self.tool_name, app.store)
        self.gateway: Gateway | AsyncGateway | None = None if found is None else found[0]
        self.tool: Tool | None = None if found is None else found[1]
        arguments, said = started.payload.get("arguments"), {} if finished is None else finished.payload
        self.why_not: str = ""
        if self.tool is None:
            self.why_not = "no tool of this name is registered here (--entry FILE names the file that declares it)"
        elif self.tool.undo is None:
            self.why_not = _saga.NO_UNDO
        elif is_masked(started) or not isinstance(arguments, dict):
            self.why_not = NOT_READABLE
        self._arguments: dict[str, Any] = codec.revived(arguments) if isinstance(arguments, dict) else {}
        self._journal = app.journal
        self._value: Any = NOTHING
        known = finished is not None and said.get("outcome") == "ok" and not finished.meta.get("stream")
        if known and finished is not None and not is_masked(finished) and type_not_kept(said.get("value")) is None:
            self._value = said.get("value")

    @property
    def is_open(self) -> bool:
        """Whether its effect is unknown and nobody can be asked: it is not undone until a person has resolved it."""
        if self.tool is None or self.tool.spec.reconcile is not None:
            return False
        found = self._journal.read(*self._claim)
        record = None if found is None else found.own or found.current
        if record is None:
            return False
        return is_unknown(record) or (record.state == "inflight" and not is_asking(record))

    def report_state(self, state: str, why: str) -> None:
        if self.gateway is not None and self.tool is not None:
            self.gateway._plans.reporter.undone(self.tool, state, why)

    def undo(self) -> Any:
        tool, value = self.tool, self._value
        assert tool is not None
        undo: Undo = tool.undo
        known = value is not NOTHING  # else its claim record has the result, or says how it ended
        of = Execution(*self._claim, self.token, tool, self._arguments, known, self.call_name)
        return undo.start(of, codec.as_declared(tool.decode, value) if known else NOTHING)


def undo_run(
    app: Antiphon,
    manifest: RunManifest,
    *,
    entry: str | None = None,
    dry_run: bool = False,
    force: bool = False,
    done: Sequence[str] = (),
    reason: str = "",
    confirm: Callable[[dict[str, Any]], None] | None = None,
) -> dict[str, Any]:
    """Undo what the interrupted and stuck sagas of a run have done, as plain data: each saga, and each of its writes.

    Nothing is undone twice: each undo is claimed by the execution it undoes. *done* names calls that a person has
    handled: they are not undone, and block nothing. *confirm* receives the plan of a dry run, and raises if it should
    not be carried out.
    """
    events = list(app.events(manifest.id))
    over = force or real_status(manifest) != "running"
    sagas = _saga.states(events, over=over)
    wanted = [saga for saga in sagas.values() if saga["state"] in ("interrupted", "stuck")]
    if not wanted:
        if open_ones := [saga["name"] for saga in sagas.values() if saga["state"] in ("open", "undoing")]:
            raise InvalidInput(
                f"Run {manifest.id} is still running, with the saga {open_ones[0]!r}. Nothing was undone.",
                hint="If its process is certainly gone (it ran on another machine): --force.",
            )
        return {"run": manifest.id, "sagas": []}
    with using(app):
        place = entry or (manifest.entry or "").rpartition(":")[0]
        if place:
            load_module(place)
        names = {saga["id"] for saga in wanted}
        tops = [saga for saga in reversed(wanted) if saga.get("parent") not in names]
        plans = [(saga, *_writes(app, manifest, events, set(_saga.members(sagas, saga["id"])))) for saga in tops]
        if done:
            plans = _by_hand(plans, set(done))
        planned = {"run": manifest.id, "dryRun": True, "sagas": [_planned(*plan) for plan in plans]}
        if dry_run:
            return planned
        _check_tools(manifest, [write for _, writes, _ in plans for write in writes])
        if confirm is not None:
            confirm(planned)
        audit_before(app, "undo", {"run": manifest.id, "done": sorted(set(done)) or None, "reason": reason})
        return {"run": manifest.id, "sagas": _undo(app, manifest, plans, reason)}


def _check_tools(manifest: RunManifest, writes: Sequence[Logged]) -> None:
    """If none of its tools is known here, the wrong code was loaded, or none."""
    if writes and all(write.tool is None for write in writes):
        missing = ", ".join(sorted({write.tool_name for write in writes}))
        raise NotFound(
            f"None of the tools that run {manifest.id} has called is registered here: {missing}. Nothing was undone.",
            hint="Name the file or module that declares them: --entry FILE.",
            code="entry_missing",
        )


def _by_hand(plans: Plans, done: set[str]) -> Plans:
    """The plans without what a person has handled."""
    writes = [write for _, standing, _ in plans for write in standing]
    if unknown := sorted(done - {write.call_name for write in writes}):
        left = ", ".join(f"{write.call_name} ({write.tool_name})" for write in writes) or "none"
        raise InvalidInput(
            f"{', '.join(unknown)}: not a call of a saga that is left to undo. Nothing was changed.",
            hint=f"Left to undo: {left}.",
        )
    for write in writes:
        write.by_hand = write.call_name in done
    return [
        (saga, [w for w in standing if not w.by_hand], [*before, *(w for w in standing if w.by_hand)])
        for saga, standing, before in plans
    ]


def _writes(
    app: Antiphon, manifest: RunManifest, events: Sequence[Event], members: set[str]
) -> tuple[list[Logged], list[Logged]]:
    """The writes of a saga that stand, the last first; and those that were undone before."""
    key = app.keys.key_of(manifest)
    opened = None if key is None else opener(app, key, app._redactor.for_run(key.key).pseudonyms)

    def read(event: Event) -> Event:
        event = app.whole(event)
        return event if opened is None else opened(event)

    last: dict[str, Event] = {}
    """By position in the run: a resumed run starts over from its beginning."""
    starts: list[Event] = []
    ends: dict[int, Event] = {}
    undone: set[str] = set()
    by_hand: set[str] = set()
    for event in events:
        if event.type == _saga.UNDOING:
            by_hand.update(map(str, event.meta.get("byHand") or ()))
        elif event.type == "call.started":
            last[event.call or ""] = event
            if event.meta.get("saga") in members:
                starts.append(event)
        elif event.type == "call.finished" and (start := last.get(event.call or "")) is not None:
            if "undoes" not in start.meta:
                ends[start.seq] = event
            elif event.payload.get("outcome") == "ok":
                undone.add(str(start.meta["undoes"]))
    found = [
        Logged(app, read(event), read(ends[event.seq]) if event.seq in ends else None)
        for event in starts
        if event.seq not in ends or _has_effect(ends[event.seq])
    ]
    found.sort(key=lambda write: write.order, reverse=True)
    for write in found:
        write.by_hand = write.token in by_hand
    over = undone | by_hand
    return [w for w in found if w.token not in over], [w for w in found if w.token in over]


def _execution(started: Event) -> tuple[str, str, str]:
    """The claim key, the identity and the token of the execution that a start event records."""
    where = started.meta.get("execution")
    place = where if isinstance(where, dict) else {}
    return str(place.get("key", "")), str(place.get("identity", "")), str(place.get("token", ""))


def _has_effect(finished: Event) -> bool:
    """Whether a call of a saga was dispatched by it and took effect, or may have."""
    if finished.meta.get("fromCache"):
        return False
    if finished.payload.get("outcome") == "ok":
        return True
    said = finished.payload.get("error")
    error = said if isinstance(said, dict) else {}
    dispatched = bool(finished.meta.get("attempts")) or error.get("code") == "cancelled"
    return dispatched and may_have_effect(str(error.get("code")), str(error.get("status")))


_UNKNOWN = "it is not known whether it took effect: antiphon claims resolve"


def _planned(saga: dict[str, Any], writes: Iterable[Logged], before: Iterable[Logged]) -> dict[str, Any]:
    shown, first = [], ""
    for write in writes:
        tool, call = write.tool_name, write.call_name
        why = write.why_not or (f"it is undone only after {first}" if first else _UNKNOWN if write.is_open else "")
        if why:
            shown.append(_saga.Undone(tool, call, "needs a person", why).to_wire())
            first = first or ("" if why == _saga.NO_UNDO else f"{tool} {call}")
        else:
            shown.append({"tool": tool, "call": call, "state": "would be undone"})
    return {"id": saga["id"], "name": saga["name"], "state": saga["state"], "writes": shown + _before(before)}


def _before(writes: Iterable[Logged]) -> list[dict[str, str]]:
    return [
        _saga.Undone(write.tool_name, write.call_name, "done by hand" if write.by_hand else "undone").to_wire()
        for write in writes
    ]


Plans = list[tuple[dict[str, Any], list[Logged], list[Logged]]]


def _undo(app: Antiphon, manifest: RunManifest, plans: Plans, reason: str) -> list[dict[str, Any]]:
    """Undo them; the calls are appended to the run, in a separate lane."""
    recorder = app.recorder(manifest)
    learn_values(app, manifest, recorder.redactor.pseudonyms)
    scope = recorder.scope
    recorder.after_end(lambda calls: None)

    def tell(kind: str, payload: dict[str, Any], meta: dict[str, Any]) -> None:
        if scope.write is not None:
            scope.write([scope.encode(kind, None, payload, meta)])

    async def undo_all() -> list[dict[str, Any]]:
        done = []
        for saga, writes, before in plans:
            named = {"saga": saga["id"], "name": saga["name"]}
            hand = [write for write in before if write.by_hand]
            why = {"why": "asked"} | ({"reason": reason} if reason else {})
            by_hand = {"byHand": [write.call_name for write in hand]} if hand else {}
            tell(_saga.UNDOING, {**named, **why, **by_hand}, {"byHand": [w.token for w in hand]} if hand else {})
            report = await _saga.undo_all(saga["name"], writes)
            payload = _saga.finished(report)
            payload["writes"] += _before(before)
            tell(_saga.FINISHED, {**named, **payload}, {})
            done.append({"id": saga["id"], "name": saga["name"], **payload})
        return done

    undoable = [write for _, writes, _ in plans for write in writes if not write.why_not]
    waits = {write.gateway for write in undoable if isinstance(write.gateway, AsyncGateway)}
    entered = scope.activate()
    try:
        with scope.branch(f"undo {uuid7()}"):
            if not waits:
                return drive(undo_all())
            import asyncio

            async def waited() -> list[dict[str, Any]]:
                try:
                    return await undo_all()
                finally:
                    for gateway in waits:
                        await gateway.close()
                    await recorder.close()

            return asyncio.run(waited())
    finally:
        scope.deactivate(entered)
