"""Processes are killed while they write, undo, and undo what others left: nothing is undone twice or skipped.

    python -m tests.campaigns.undo [--store sqlite|postgresql] [--kills 500] [--seed N] [--json]

Each case is a saga of a few calls that fails: bookings, whose outcome can be read back; charges, whose answer is lost
now and then and nobody but a person can settle; mails, which have no undo. Processes are killed with SIGKILL

- before or after a step of their journal, or before or after an effect,
- before a statement of a transaction (SQLite), so in the middle of writing a record,
- at any moment, by another process.

Then ``antiphon runs undo`` is asked for in further processes, and a person settles what is unknown in others; all of
them are killed in the same ways, until everything is undone or listed as "needs a person". Half of the cases are
asynchronous code. Effects are lines of a file.

Wanted: 0 ``undoneTwice``, ``skipped`` (stands, and nobody was told), ``bookedTwice``, ``wrongOrder``, ``endless``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import inspect
import json
import logging
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import antiphon
from antiphon import AsyncGateway, DidNotHappen, Gateway, Happened
from antiphon._drive import drive
from antiphon.ops.admin import Admin
from antiphon.ops.runs import all_runs, timeline
from antiphon.ops.sagas import undo_run
from antiphon.stores import PostgresStore, SQLiteStore
from antiphon.stores.postgres.journal import PostgresJournal
from antiphon.stores.sqlite.schema import Connection
from antiphon.stores.sqlite.store import SQLiteJournal
from tests.servers import Postgres

QUIET = {"telemetry": {"logs": False}}
STEPS = ("begin", "settle", "take_over", "append", "read", "open_run", "update_run", "alias", "renew")
UNDO_OF = {"book": "unbook", "charge": "refund"}
WRONG = ("undoneTwice", "skipped", "bookedTwice", "wrongOrder", "endless")
_MOST_ROUNDS = 50
_EVERY_S = 5.0


class Bomb:
    """Kills its process at a step: before it, or after it; or between the statements of a transaction."""

    def __init__(self, at: int, *, statements: bool) -> None:
        self._left = at
        self._statements = statements

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def plant(self, store: Any) -> None:
        """In this process, which is killed or ends: nobody else has it."""
        if self._statements and isinstance(store, SQLiteStore):
            execute = Connection.execute

            def watched(connection: Any, *arguments: Any) -> Any:
                self.step()
                return execute(connection, *arguments)

            Connection.execute = watched  # type: ignore[method-assign]
            return
        for kind in {type(store.open_sync()), SQLiteJournal if isinstance(store, SQLiteStore) else PostgresJournal}:
            for name in STEPS:
                setattr(kind, name, self._around(getattr(kind, name)))

    def _around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(function):

            async def awaited(*args: Any, **kwargs: Any) -> Any:
                self.step()
                value = await function(*args, **kwargs)
                self.step()
                return value

            return awaited

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.step()
            value = function(*args, **kwargs)
            self.step()
            return value

        return watched


class Ledger:
    """What happened out there: one line each."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, what: str, item: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{what} {item}\n")

    def lines(self) -> list[tuple[str, str]]:
        text = self._path.read_text() if self._path.exists() else ""
        return [(line.split()[0], line.split()[1]) for line in text.splitlines()]


class Desk:
    """The application and the tools of one process."""

    def __init__(self, store: Any, ledger: Ledger, bomb: Bomb, face: str, chance: random.Random) -> None:
        self._ledger, self._bomb, self._chance, self._face = ledger, bomb, chance, face
        bomb.plant(store)
        self.app = antiphon.Antiphon(QUIET, store=store)
        self.gateway: Any = (AsyncGateway if face == "async" else Gateway)(store, QUIET)
        tool = self.gateway.tool
        self.tools: dict[str, Any] = {
            "book": tool("book", idempotent=False, reconcile=self._seen("book"))(self._faced(self._make("book"))),
            "charge": tool("charge", idempotent=False)(self._faced(self._make("charge", loses=True))),
            "mail": tool("mail", idempotent=False)(self._faced(self._make("mail"))),
        }
        self.tools["book"].undo(reconcile=self._seen("unbook"))(self._faced(self._take_back("unbook")))
        self.tools["charge"].undo(self._faced(self._take_back("refund", loses=True)))

    def _seen(self, what: str) -> Callable[[dict[str, Any]], Any]:
        def look(params: dict[str, Any]) -> Any:
            item = str(params["item"])
            return Happened(item) if (what, item) in self._ledger.lines() else DidNotHappen()

        return look

    def _happen(self, what: str, item: str, loses: bool) -> str:
        lost = self._chance.random() if loses else 1.0
        self._bomb.step()
        if lost < 0.1:
            raise TimeoutError("no answer, and nothing happened")
        self._ledger.add(what, item)
        self._bomb.step()
        if lost < 0.2:
            raise TimeoutError("no answer, and it happened")
        return item

    def _make(self, what: str, *, loses: bool = False) -> Callable[..., str]:
        def make(item: str) -> str:
            return self._happen(what, item, loses)

        return make

    def _take_back(self, what: str, *, loses: bool = False) -> Callable[..., str]:
        def take_back(result: str, *, item: str) -> str:
            return self._happen(what, item, loses)

        return take_back

    def _faced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self._face == "sync":
            return function

        async def faced(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return function(*args, **kwargs)

        faced.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
        return faced

    def trip(self, name: str, items: list[str]) -> None:
        """Make the calls in a saga, which fails."""
        if self._face == "async":
            asyncio.run(self._trip_async(name, items))
            return
        with contextlib.suppress(LookupError), self.app.run(name) as run, run.saga("trip"):
            for item in items:
                with contextlib.suppress(TimeoutError):
                    self.tools[item.split("-")[0]](item)
            raise LookupError

    async def _trip_async(self, name: str, items: list[str]) -> None:
        with contextlib.suppress(LookupError):
            async with self.app.run(name) as run, run.saga("trip"):
                for item in items:
                    with contextlib.suppress(TimeoutError):
                        await self.tools[item.split("-")[0]](item)
                raise LookupError
        await self.gateway.close()

    def undo(self, name: str) -> None:
        """What an operator asks for."""
        for manifest in list(all_runs(self.app, name=name)):
            undo_run(self.app, manifest)

    def settle(self, name: str) -> None:
        """What a person does who looks what became of the charges and refunds of which nobody knows."""
        admin, lines = Admin(self.app, actor="grace"), self._ledger.lines()
        for row in drive(admin.claims(state="unknown")):
            item = str(json.loads(row["arguments"] or "{}").get("item", ""))
            if row["tool"].startswith("tools/charge") and item.endswith(f"-{name}"):
                what = "refund" if row["tool"].endswith(".undo") else "charge"
                verdict = "happened" if (what, item) in lines else "did-not-happen"
                value = item if verdict == "happened" else None
                drive(admin.resolve(row["key"], verdict, value=value, reason="looked it up"))

    def left(self, name: str) -> list[str]:
        """The calls that a person is asked to look after."""
        runs = list(all_runs(self.app, name=name))
        sagas = [saga for manifest in runs for saga in timeline(self.app, manifest)["sagas"]]
        if any(saga["state"] not in ("undone", "stuck") for saga in sagas):
            return ["interrupted"]
        writes = [write for saga in sagas for write in saga["writes"]]
        return [str(write["tool"]) for write in writes if write["state"] == "needs a person"]

    def told(self, name: str) -> dict[str, Any]:
        """All that is known of a case."""
        runs = list(all_runs(self.app, name=name))
        events = [event.to_wire() for run in runs for event in self.app.events(run.id)]
        keys = {event["meta"]["execution"]["key"] for event in events if "execution" in event.get("meta", {})}
        claims = [
            row for row in drive(Admin(self.app).claims(limit=10_000)) if row["key"] in keys or _undo_of(row, events)
        ]
        return {"runs": [run.to_wire() for run in runs], "claims": claims, "events": events}


def _undo_of(row: dict[str, Any], events: list[dict[str, Any]]) -> bool:
    return row["idempotencyKey"] in {event.get("meta", {}).get("undoes") for event in events}


class Case(NamedTuple):
    """One saga: its store and its ledger, and chance."""

    store: Callable[[], Any]
    ledger: Ledger
    name: str
    face: str
    answer: Path
    chance: random.Random
    tally: Counter[str]

    def child(self, work: Callable[[Desk], Any], *, spare: bool = False) -> bool:
        """Do *work* in a process of its own, which is killed unless it is fast or spared; whether it was."""
        how = "no" if spare else self.chance.choice(("step", "step", "statement", "moment"))
        at = self.chance.randint(1, 120 if how == "statement" else 50) if how in ("step", "statement") else 0
        seed = self.chance.random()
        usual = self.tally["microseconds"] / max(1, self.tally["processes"]) / 1e6
        after = self.chance.uniform(0.0, 1.2 * usual)
        began = time.monotonic()
        pid = os.fork()
        if pid == 0:
            code = 1
            logging.disable()
            try:
                bomb = Bomb(at, statements=how == "statement")
                found = work(Desk(self.store(), self.ledger, bomb, self.face, random.Random(seed)))
                self.answer.write_text(json.dumps(found))
                code = 0
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
            finally:
                os._exit(code)
        if how == "moment":
            time.sleep(after)
            os.kill(pid, signal.SIGKILL)  # the dead wait to be waited for, so the number is still its own
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            self.tally["kills"] += 1
            self.tally[f"kills {how}"] += 1
            return True
        if os.WEXITSTATUS(status):
            raise RuntimeError(f"a process of the campaign failed ({self.name})")
        self.tally["microseconds"] += int((time.monotonic() - began) * 1e6)
        self.tally["processes"] += 1
        return False

    def play(self) -> None:
        """From the writes to the last undo; then what is wrong is counted."""
        tally, name = self.tally, self.name
        before = sum(tally[key] for key in WRONG)
        items = [f"{self.chance.choice(('book', 'book', 'charge', 'mail'))}-{n}-{name}" for n in range(3)]
        items = items[: self.chance.randint(1, 3)]
        tally["kills in the trip"] += self.child(lambda desk: desk.trip(name, items))
        left: list[str] = []
        for _ in range(_MOST_ROUNDS):
            self.child(lambda desk: desk.left(name), spare=True)
            left = json.loads(self.answer.read_text())
            if set(left) <= {"tools/mail"}:
                break
            tally["kills in an undo"] += self.child(lambda desk: desk.undo(name))
            tally["kills of a person"] += self.child(lambda desk: desk.settle(name))
        else:
            tally["endless"] += 1
        tally["cases"] += 1
        lines = self.ledger.lines()
        count = Counter(lines)
        tally["undone"] += sum(what in UNDO_OF.values() for what, _ in lines)
        tally["listed"] += len(left)
        for item in items:
            kind = item.split("-")[0]
            tally["bookedTwice"] += count[kind, item] > 1
            if kind in UNDO_OF:
                tally["undoneTwice"] += count[UNDO_OF[kind], item] > 1
                tally["skipped"] += count[kind, item] > count[UNDO_OF[kind], item]
        tally["skipped"] += max(0, sum(what == "mail" for what, _ in lines) - left.count("tools/mail"))
        undone = [items.index(item) for what, item in lines if what in UNDO_OF.values()]
        tally["wrongOrder"] += undone != sorted(undone, reverse=True)
        if sum(tally[key] for key in WRONG) > before:
            self.child(lambda desk: desk.told(name), spare=True)
            told = {"case": name, "face": self.face, "items": items, "effects": lines, "left": left}
            print(json.dumps({**told, **json.loads(self.answer.read_text())}, indent=1), file=sys.stderr, flush=True)


@contextlib.contextmanager
def stores(kind: str, folder: Path) -> Iterator[Callable[[], Any]]:
    if kind == "sqlite":
        yield lambda: SQLiteStore(folder / "store.db")
        return
    with Postgres() as server:
        yield lambda: PostgresStore(server.url)


def campaign(make_store: Callable[[], Any], folder: Path, kills: int, seed: int) -> Counter[str]:
    """Cases until so many processes were killed; says now and then how far it is."""
    chance, tally = random.Random(seed), Counter[str]()
    told = time.monotonic()
    while tally["kills"] < kills:
        number = tally["cases"]
        ledger, face = Ledger(folder / f"ledger-{number}"), chance.choice(("sync", "async"))
        Case(make_store, ledger, f"case{number}", face, folder / "answer", chance, tally).play()
        if time.monotonic() - told > _EVERY_S:
            told = time.monotonic()
            wrong = sum(tally[name] for name in WRONG)
            print(f"{tally['kills']} of {kills} kills, {number + 1} cases, {wrong} wrong", file=sys.stderr, flush=True)
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=["sqlite", "postgresql", "postgres"], default="sqlite")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name, stores(arguments.store, Path(name)) as make_store:
        tally = campaign(make_store, Path(name), arguments.kills, arguments.seed)
    how = [f"kills {how}" for how in ("step", "statement", "moment", "in the trip", "in an undo", "of a person")]
    shown = {key: tally[key] for key in ("kills", *how, "cases", "undone", "listed", *WRONG)}
    found = {"store": arguments.store, "seed": arguments.seed, **shown, "seconds": round(time.monotonic() - began, 1)}
    print(json.dumps(found) if arguments.json else "\n".join(f"{key:>20}  {value}" for key, value in found.items()))
    return int(any(tally[key] for key in WRONG))


if __name__ == "__main__":
    raise SystemExit(main())
