"""The run log and the breakers in dictionaries."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from antiphon.contract.events import RunManifest
from antiphon.ports import BreakerRow, BreakerRows, Cursor, Events, Manifests, Row
from antiphon.stores._common import RunQuery, event_of, is_wanted, known_manifest


class _Run:
    __slots__ = ("manifest", "rows")

    def __init__(self) -> None:
        self.manifest: RunManifest | None = None
        self.rows: list[Row] = []


class MemoryLog:
    """The run-log half of the journal. Its public methods take the lock, the others require it to be held."""

    def __init__(self, max_events: int) -> None:
        self.lock: threading.Lock = threading.Lock()
        """Never held across an ``await``."""
        self._max_events = max_events
        self._total = 0
        self._runs: dict[str, _Run] = {}
        self._breakers: dict[str, dict[str, BreakerRow]] = {}

    def _forget_log(self) -> None:
        self._total = 0
        self._runs.clear()
        self._breakers.clear()

    def open_run(self, manifest: RunManifest) -> None:
        with self.lock:
            run = self._run(manifest.id)
            if run.manifest is None:
                run.manifest = manifest
            if self._total > self._max_events:
                self._forget_finished()

    def update_run(self, manifest: RunManifest) -> None:
        with self.lock:
            self._run(manifest.id).manifest = manifest

    def append(self, run: str, rows: Sequence[Row]) -> int:
        with self.lock:
            first = len(self._run(run).rows)
            self._run(run).rows.extend(rows)
            self._total += len(rows)
            return first

    def manifest(self, run: str) -> RunManifest | None:
        with self.lock:
            found = self._runs.get(run)
        return None if found is None or found.manifest is None else known_manifest(found.manifest)

    def runs(self, **query: Any) -> Manifests:
        which = RunQuery(**query)
        with self.lock:
            manifests = [run.manifest for run in self._runs.values() if run.manifest is not None]
        found = [manifest for manifest in manifests if is_wanted(manifest, which)]
        found.sort(key=Cursor.of_run, reverse=True)
        return [known_manifest(manifest) for manifest in found[: max(0, which.limit)]]

    def events(self, run: str, *, start: int = 0, stop: int | None = None, limit: int = 1000) -> Events:
        start = max(0, start)
        end = start + max(0, limit) if stop is None else min(stop, start + max(0, limit))
        with self.lock:
            found = self._runs.get(run)
            rows = [] if found is None else found.rows[start : max(start, end)]
        return [event_of(seq, row) for seq, row in enumerate(rows, start)]

    def delete_run(self, run: str) -> bool:
        with self.lock:
            return self._delete_run(run)

    def load_breakers(self, tenant: str) -> BreakerRows:
        with self.lock:
            return [*self._breakers.get(tenant, {}).values()]

    def save_breaker(self, tenant: str, row: BreakerRow) -> None:
        with self.lock:
            rows = self._breakers.setdefault(tenant, {})
            kept = rows.get(row.key)
            if kept is None or row.epoch >= kept.epoch:
                rows[row.key] = row

    def _write(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._run(row.run).rows.append(row)
            self._total += 1

    def _run(self, run: str) -> _Run:
        found = self._runs.get(run)
        if found is None:
            found = self._runs[run] = _Run()
        return found

    def _delete_run(self, run: str) -> bool:
        found = self._runs.pop(run, None)
        if found is None:
            return False
        self._total -= len(found.rows)
        return True

    def _forget_finished(self) -> None:
        """Drop whole finished runs, oldest first: a run is never truncated."""
        for name in [name for name, run in self._runs.items() if run.manifest and run.manifest.status != "running"]:
            if self._total <= self._max_events:
                return
            self._delete_run(name)
