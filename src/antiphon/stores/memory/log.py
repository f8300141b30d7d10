"""The run log in dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from antiphon.contract.events import RunManifest
from antiphon.ports import Row


class _Run:
    __slots__ = ("manifest", "rows")

    def __init__(self) -> None:
        self.manifest: RunManifest | None = None
        self.rows: list[Row] = []


class LogTable:
    """Runs and their events. The caller holds the lock."""

    __slots__ = ("_max_events", "_runs", "_total")

    def __init__(self, max_events: int) -> None:
        self._max_events = max_events
        self._total = 0
        self._runs: dict[str, _Run] = {}

    def open_run(self, manifest: RunManifest) -> None:
        run = self._run(manifest.id)
        if run.manifest is None:
            run.manifest = manifest
        if self._total > self._max_events:
            self._forget_finished()

    def update_run(self, manifest: RunManifest) -> None:
        self._run(manifest.id).manifest = manifest

    def write(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self._run(row.run).rows.append(row)
            self._total += 1

    def append(self, run: str, rows: Sequence[Row]) -> int:
        kept = (self._runs.get(run) or self._run(run)).rows
        first = len(kept)
        kept.extend(rows)
        self._total += len(rows)
        return first

    def manifest(self, run: str) -> RunManifest | None:
        found = self._runs.get(run)
        return None if found is None else found.manifest

    def manifests(self, tenant: str) -> list[RunManifest]:
        """Newest first."""
        found = [run.manifest for run in self._runs.values() if run.manifest is not None]
        found = [manifest for manifest in found if manifest.tenant == tenant]
        found.sort(key=lambda manifest: (manifest.started_at_ms, manifest.id), reverse=True)
        return found

    def rows(self, run: str, start: int, stop: int | None, limit: int) -> list[tuple[int, Row]]:
        found = self._runs.get(run)
        if found is None or limit <= 0:
            return []
        start = max(0, start)
        end = start + limit if stop is None else min(stop, start + limit)
        return list(enumerate(found.rows[start : max(start, end)], start))

    def delete_run(self, run: str) -> bool:
        found = self._runs.pop(run, None)
        if found is None:
            return False
        self._total -= len(found.rows)
        return True

    def _run(self, run: str) -> _Run:
        found = self._runs.get(run)
        if found is None:
            found = self._runs[run] = _Run()
        return found

    def _forget_finished(self) -> None:
        """Drop whole finished runs, oldest first: a run is never cut."""
        for name in [name for name, run in self._runs.items() if run.manifest and run.manifest.status != "running"]:
            if self._total <= self._max_events:
                return
            self.delete_run(name)
