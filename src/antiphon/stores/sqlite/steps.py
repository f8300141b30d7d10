"""The claim steps of a journal as operations, which threads and event loops hand to the database file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.ports import Claimed, ClaimRequest, Clock, Existing, Row, Settlement
from antiphon.stores.sqlite import claims, log
from antiphon.stores.sqlite.file import DatabaseFile, Operation

ALL_NEW = 8
"""After so many claims were won in a row, looking before writing is a waste."""
CHUNK = 1000
"""How many claims one transaction deletes or indexes, so that calls that go on meanwhile get their turn."""


class Steps:
    """What the journals of one file have in common."""

    durable = True

    __slots__ = ("_file", "_time_ns", "_won")

    def __init__(self, file: DatabaseFile, clock: Clock) -> None:
        self._file = file
        self._time_ns = time.time_ns if type(clock) is Clock else lambda: clock.now_ms() * 1_000_000
        self._won = 0
        """How many claims were won in a row."""

    def _now(self) -> int:
        return self._time_ns() // 1_000_000

    def _begin(self, request: ClaimRequest, events: Sequence[Row]) -> Operation:
        def probe(connection: sqlite3.Connection) -> Existing | None:
            return claims.look_up(connection, request.key, request.identity, self._now())

        def run(connection: sqlite3.Connection) -> Claimed | Existing:
            answer = claims.begin(connection, request, self._now())
            if events and answer.__class__ is Claimed:
                log.write(connection, events)
            return answer

        return Operation(run, (), None if self._won >= ALL_NEW else probe)

    def _take_over(self, request: ClaimRequest, version: int, events: Sequence[Row]) -> Operation:
        def run(connection: sqlite3.Connection) -> Claimed | Existing:
            answer = claims.take_over(connection, request, version, self._now())
            if events and answer.__class__ is Claimed:
                log.write(connection, events)
            return answer

        return Operation(run, (request.key,))

    def _settle(self, key: str, version: int, settlement: Settlement, events: Sequence[Row]) -> Operation:
        def run(connection: sqlite3.Connection) -> int | None:
            if events:
                log.write(connection, events)
            return claims.settle(connection, key, version, settlement, self._now())

        return Operation(run, (key,))

    def _described(self, started: float) -> Mapping[str, Any]:
        """What ``ping`` answers."""
        return {
            "store": "sqlite",
            "path": str(self._file.path),
            "durable": True,
            "synchronous": self._file.synchronous,
            "sqlite": sqlite3.sqlite_version,
            "schema": self._file.schema,
            "latencyMs": round((time.perf_counter() - started) * 1000, 3),
        }
