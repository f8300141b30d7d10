"""Checks the history of a campaign after the fact: it has never seen a gateway or a store, only two logs.

The driver's log has the calls, their answers and the faults; the recorder's log has the effects, and the stalls: times
in which a worker was starved of CPU or disk I/O. Times are those of the machine's monotonic clock, the same for all
processes.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

Event = dict[str, Any]
OPEN_ANSWERS = ("outcome_unknown", "in_flight")


class Call(NamedTuple):
    """One delivery of an order to a worker."""

    number: int
    order: str
    worker: str
    began: float
    ended: float
    """When it was answered; never for a call whose worker was killed."""
    answer: Event | None
    final: bool

    def was_open(self, since: float, until: float) -> bool:
        return self.began <= until and since <= self.ended


class Fault(NamedTuple):
    """What happened to one worker, or to the store of all of them (``worker`` is empty)."""

    what: str
    worker: str
    since: float
    until: float
    orders: frozenset[str] | None = None
    """Those whose claims were lost; None: all, or not a loss."""
    locks: bool = False
    """A pause in the middle of a write to a shared file, for which everybody has to wait."""
    excuses: bool = True
    """Whether it explains an outcome that is open."""

    def lost(self, order: str) -> bool:
        return self.what == "writes lost" and (self.orders is None or order in self.orders)

    def hit(self, call: Call) -> bool:
        everybody = self.locks or self.worker == ""
        return self.excuses and (everybody or self.worker == call.worker) and call.was_open(self.since, self.until)


class Verdict(NamedTuple):
    """What the logs say."""

    counts: dict[str, int]
    violations: list[str]
    matched: list[str]
    """Duplicates that follow a loss of writes which the store had confirmed; none is promised there."""


def read(file: Path) -> list[Event]:
    """A log, one JSON object per line."""
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def repeatable(order: str) -> bool:
    """Whether the order is one of the tool that may be repeated."""
    return order.startswith("r")


def check(driver: list[Event], recorder: list[Event]) -> Verdict:
    """Every law over the whole history."""
    return _Checker(driver, recorder).check()


class _Checker:
    def __init__(self, driver: list[Event], recorder: list[Event]) -> None:
        self.calls = _calls(driver)
        self.faults = _faults(driver)
        stalls = _stalls([event for event in recorder if "stalled" in event], self.faults)
        self.faults += stalls
        self.effects: dict[str, list[Event]] = {}
        for effect in recorder:
            if "stalled" not in effect:
                self.effects.setdefault(effect["order"], []).append(effect)
        self.stored = {event["run"]: event["output"] for event in driver if event["event"] == "stored"}
        self.counts: Counter[str] = Counter(event["event"] for event in driver if event["event"] not in _PLAIN)
        self.counts["stall"] = len(stalls)
        self.counts.update("pause in a write" for event in driver if event.get("locks"))
        self.counts.update(f"calls, {via}" for event in driver for via in event.get("via", ()))
        self.violations: list[str] = []
        self.matched: list[str] = []

    def check(self) -> Verdict:
        by_order: dict[str, list[Call]] = {}
        for call in self.calls.values():
            by_order.setdefault(call.order, []).append(call)
        for order, calls in by_order.items():
            self._check_effects(order)
            self._check_answers(order, calls)
        self._check_phantoms()
        self._check_recordings()
        self.violations += [f"worker {f.worker} ended by itself" for f in self.faults if f.what == "crash"]
        self.counts["calls"] = len(self.calls)
        self.counts["orders"] = len(by_order)
        self.counts["effects"] = sum(map(len, self.effects.values()))
        return Verdict(dict(self.counts), self.violations, self.matched)

    def _check_effects(self, order: str) -> None:
        """At most one effect per order that may not be repeated; a repeated one only after a fault."""
        found = self.effects.get(order, [])
        used: list[Fault] = []
        for before, after in pairwise(found):
            lost = self._loss_between(order, before, after, used)
            if lost is not None:
                used.append(lost)
                self.counts["duplicates after lost writes"] += 1
                numbers = f"{before['number']} and {after['number']}"
                self.matched.append(f"{order}: effects {numbers}; its claim was lost between them at {lost.since:.3f}")
            elif not repeatable(order):
                self.counts["duplicates"] += 1
                self.violations.append(f"{order} took effect twice: {before} and {after}")
            elif not any(fault.hit(self.calls[before["call"]]) for fault in self.faults):
                self.violations.append(f"{order} was repeated although nothing was wrong: {before} and {after}")
            else:
                self.counts["repeated after a fault"] += 1

    def _loss_between(self, order: str, before: Event, after: Event, used: list[Fault]) -> Fault | None:
        """The loss of the claim that the first effect was made under; a loss explains one duplicate of an order."""
        call = self.calls.get(before["call"])
        began = before["at"] if call is None else call.began
        losses = (f for f in self.faults if f.lost(order) and f not in used)
        return next((f for f in losses if began <= f.since <= after["at"]), None)

    def _check_phantoms(self) -> None:
        """Every effect belongs to a call that its worker was given, and whose answer says so."""
        for order, found in self.effects.items():
            for effect in found:
                call = self.calls.get(effect["call"])
                if call is None or call.order != order or call.worker != effect["worker"] or effect["at"] < call.began:
                    self.violations.append(f"nobody asked for {effect}")
                elif call.answer is not None and _says_not_made(call.answer):
                    self.violations.append(f"call {call.number} took effect, but was answered {call.answer}")

    def _check_recordings(self) -> None:
        """What was answered with a recording is in the bucket in the end, with the same result."""
        for call in self.calls.values():
            run = None if call.answer is None else call.answer.get("run")
            if run is None or call.answer is None:
                continue
            if run not in self.stored:
                self.violations.append(f"the recording {run} of call {call.number} is lost")
            elif self.stored[run] != call.answer["value"]:
                self.violations.append(f"the recording {run} of call {call.number} says {self.stored[run]}")
            else:
                self.counts["recordings in the bucket"] += 1

    def _check_answers(self, order: str, calls: list[Call]) -> None:
        numbers = {effect["number"] for effect in self.effects.get(order, [])}
        lost = any(fault.lost(order) for fault in self.faults)
        values = set()
        for call in calls:
            if call.answer is None:
                if not any(f.what == "kill" and f.worker == call.worker for f in self.faults):
                    self.violations.append(f"call {call.number} of {order} was never answered")
                continue
            answer = call.answer
            self.counts[f"answered {answer['code'] or ('reused' if answer['fromCache'] else 'done')}"] += 1
            if not answer["code"]:
                values.add(answer["value"])
                if answer["value"] not in numbers:
                    self.violations.append(f"call {call.number} of {order} got {answer['value']}, no effect of its own")
            else:
                self._justify(call, calls, answer)
        if len(values) > 1 and not lost and not repeatable(order):
            self.violations.append(f"{order} was answered with several results: {sorted(values)}")

    def _justify(self, call: Call, calls: list[Call], answer: Event) -> None:
        """An answer that leaves something open needs a fault that hit a call of its order before."""
        code, order = answer["code"], call.order
        hits = [f for f in self.faults for other in calls if f.hit(other) and f.since <= call.ended]
        hits += [f for f in self.faults if f.orders and f.lost(order) and f.since <= call.ended]
        if code == "store_unavailable":
            if not any((f.locks or f.worker == "") and f.what != "clock stepped" for f in hits):
                self.violations.append(f"call {call.number} of {order} found no store although it was there: {answer}")
        elif code not in OPEN_ANSWERS or (code == "in_flight" and call.final):
            self.violations.append(f"call {call.number} of {order} was answered {code}")
        elif code == "outcome_unknown" and repeatable(order):
            self.violations.append(f"call {call.number} of {order} is unknown, though it may be repeated")
        elif not hits:
            self.violations.append(f"call {call.number} of {order} is {code}, and no fault explains it")
        else:
            self.counts[f"{code}, justified"] += 1


def _says_not_made(answer: Event) -> bool:
    return bool(answer["fromCache"]) or answer["code"] == "store_unavailable"


_PLAIN = ("call", "answer", "resume", "over", "stored")
AFTERMATH_S = 5.0
"""For so long after a fault of the store its connections may still fail."""


def _calls(driver: list[Event]) -> dict[int, Call]:
    answers = {event["call"]: event for event in driver if event["event"] == "answer"}
    calls = {}
    for event in driver:
        if event["event"] == "call":
            answer = answers.get(event["call"])
            ended = float("inf") if answer is None else answer["at"]
            calls[event["call"]] = Call(
                event["call"], event["order"], event["worker"], event["at"], ended, answer, event["final"]
            )
    return calls


def _faults(driver: list[Event]) -> list[Fault]:
    faults = []
    for n, event in enumerate(driver):
        what = event["event"]
        if what in _PLAIN:
            continue
        worker, until = event.get("worker", ""), event["at"]
        if what == "pause":
            back = (e["at"] for e in driver[n:] if e["event"] == "resume" and e["worker"] == worker)
            until = next(back, float("inf"))
        elif what != "writes lost" and not worker:
            over = (e["at"] for e in driver[n:] if e["event"] == "over" and e["what"] == what)
            until = next(over, float("inf")) + AFTERMATH_S
        orders = frozenset(event["orders"]) if "orders" in event else None
        locks, excuses = event.get("locks", False), event.get("excuses", True)
        faults.append(Fault(what, worker, event["at"], until, orders, locks, excuses))
    return faults


def _stalls(noticed: list[Event], faults: list[Fault]) -> list[Fault]:
    """Those of a worker that nobody had paused at the time."""
    pauses = [fault for fault in faults if fault.what == "pause"]
    return [
        Fault("stall", event["stalled"], event["at"], event["until"], locks=event["locks"])
        for event in noticed
        if not any(p.worker == event["stalled"] and p.since < event["until"] and event["at"] < p.until for p in pauses)
    ]
