"""Kills workers and approvers with SIGKILL while they ask, approve and go on; counts what must not happen.

    python -m tests.campaigns.approval_kills --kills 1000
    python -m tests.campaigns.approval_kills --kills 1000 --store postgresql://…   (default: SQLite in a folder)
    python -m tests.campaigns.approval_kills --kills 1000 --store postgresql       (starts a server of its own)

Each order is one call of a payment that needs approval. Workers deliver every call again and again, as a queue would;
approvers approve what waits. The payment is a line in a file, written with one system call. Afterwards every order must
be paid once, or its outcome unknown with at most one payment.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import antiphon
from antiphon._drive import drive
from antiphon.errors import AntiphonError
from antiphon.ops.app import Antiphon
from antiphon.ops.approvals import Approvals
from tests.unit.gateway.kit import envelope

CONFIG: dict[str, Any] = {"telemetry": {"logs": False}}
WRONG = ("paidWithoutApproval", "paidTwice", "skipped", "saidPaidButNot")
_EVERY_S = 5.0
_AT_ONCE = 24
"""Orders that a worker delivers in turn."""


def _line(path: Path, text: str) -> None:
    """Append a line, whole or not at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{text}\n".encode())
    os.close(descriptor)


def _deliver(store: str, folder: Path, orders: range) -> None:
    """A worker: delivers every call until each has an outcome, and some of those that have one."""
    gateway = antiphon.Gateway(store, CONFIG)

    def pay(order: int) -> str:
        time.sleep(random.uniform(0.0, 0.01))
        _line(folder / "payments", str(order))
        time.sleep(random.uniform(0.0, 0.01))
        return f"paid {order}"

    gateway.tool("pay", idempotent=False, approve="always", ttl={"lease_ms": 2_000})(pay)
    done = sorted(_outcomes(folder))
    left = [*random.sample(done, min(5, len(done))), *sorted(set(orders) - set(done))]
    while left:
        for order in random.sample(left[:_AT_ONCE], min(_AT_ONCE, len(left))):
            try:
                answer = gateway.execute(envelope("pay", {"order": order}, call_id=f"call-{order}", elapsed_ms=5_000))
            except AntiphonError:
                continue
            if answer.status == "success" or answer.code == "outcome_unknown":
                _line(folder / "outcomes", json.dumps([order, answer.code or "paid"]))
                left.remove(order)
        time.sleep(0.005)


def _approve(store: str, folder: Path) -> None:
    """A person: says so, then approves."""
    desk = Approvals(Antiphon(CONFIG, store=store), actor="grace", where="campaign")
    while True:
        try:
            for one in drive(desk.waiting(limit=20)):
                _line(folder / "approvals", str(json.loads(one["arguments"])["order"]))
                drive(desk.decide(one["id"], "approve"))
        except AntiphonError:
            pass  # decided by another, or asked anew
        time.sleep(0.002)


def _start(task: Any, *arguments: Any) -> int:
    """Fork a process for *task*; nothing of a store is open in this one."""
    child = os.fork()
    if child:
        return child
    try:
        random.seed()
        task(*arguments)
    finally:
        os._exit(0)


def campaign(store: str, folder: Path, kills: int, orders: int) -> dict[str, int]:
    """Kill processes *kills* times while they work; what came of the orders."""
    tasks: list[tuple[Any, ...]] = [(_deliver, store, folder, range(orders))] * 3 + [(_approve, store, folder)] * 2
    running = {_start(*task): task for task in tasks}
    killed: Counter[str] = Counter()
    told = time.monotonic()
    while (number := sum(killed.values())) < kills:
        _until(lambda done=number * orders // kills: len(_outcomes(folder)) >= done)
        time.sleep(random.uniform(0.0, 0.05))
        child = random.choice(list(running))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        task = running.pop(child)
        killed["approver" if task[0] is _approve else "worker"] += 1
        running[_start(*task)] = task
        if time.monotonic() - told > _EVERY_S:
            told = time.monotonic()
            done = f"{len(_outcomes(folder))} of {orders} orders done"
            print(f"{sum(killed.values())} of {kills} kills, {done}", file=sys.stderr, flush=True)
    for count in range(len(_outcomes(folder)), orders):
        if not _until(lambda count=count: len(_outcomes(folder)) > count):
            break
    for child in running:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    payments = Counter(map(int, _lines(folder / "payments")))
    approved = set(map(int, _lines(folder / "approvals")))
    outcomes = _outcomes(folder)
    unknown = {order for order, codes in outcomes.items() if "outcome_unknown" in codes}
    return {
        "kills": sum(killed.values()),
        "killedWorkers": killed["worker"],
        "killedApprovers": killed["approver"],
        "orders": orders,
        "paid": len(payments),
        "unknown": len(unknown),
        "paidWithoutApproval": len(set(payments) - approved),
        "paidTwice": sum(number > 1 for number in payments.values()),
        "skipped": len([order for order in range(orders) if order not in outcomes]),
        "saidPaidButNot": len([o for o, codes in outcomes.items() if "paid" in codes and not payments[o]]),
    }


def _until(condition: Any) -> bool:
    """Wait for work to go on, so that kills meet calls in all their states; whether it did within two minutes."""
    deadline = time.monotonic() + 120
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _outcomes(folder: Path) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for line in _lines(folder / "outcomes"):
        order, code = json.loads(line)
        found.setdefault(order, set()).add(code)
    return found


def main() -> int:
    """Run the campaign and print the counts; 1 if anything happened that must not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--orders", type=int, default=0, help="default: one for each kill")
    parser.add_argument("--store", default="sqlite", help="sqlite, postgresql, or a URL")
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = arguments.store
        if store == "sqlite":
            store = f"sqlite:///{folder / 'claims.db'}"
        elif store == "postgresql":
            from tests.servers import Postgres

            store = stack.enter_context(Postgres()).url
        began = time.monotonic()
        found = campaign(store, folder, arguments.kills, arguments.orders or arguments.kills)
    told = {"store": arguments.store, **found, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(told) if arguments.json else "\n".join(f"{key:>20}  {value}" for key, value in told.items()))
    return int(any(found[name] for name in WRONG))


if __name__ == "__main__":
    sys.exit(main())
