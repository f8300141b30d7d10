"""The result of a matrix: its comparisons, their verdicts, and what people and machines read about them."""

from __future__ import annotations

import functools
import hashlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antiphon._diff import plural
from antiphon._recording.manifest import stamp_of
from antiphon.errors import NotFound
from antiphon.ops.app import Antiphon
from antiphon.ops.cells import Row
from antiphon.ops.matrix_table import PLAN, TABLE, Document, Table, document_in, folder_of
from antiphon.scoring.sequential import Comparison, shares

_LOWEST, _REASONS = 10, 3


def ordered(document: Document, round_: int) -> list[str]:
    """The runs in the order of a round: drawn in advance, the same at every start."""
    mark = f"{document.order}:{round_}:"
    return sorted(document.runs, key=lambda run: hashlib.sha256(f"{mark}{run}".encode()).digest())


class Judge:
    """Feeds the comparisons, pair by pair in the drawn order, in whatever order the cells finish."""

    def __init__(self, document: Document) -> None:
        self._document = document
        base, *others = document.variants
        self._base = base.name
        rest = [one.name for one in others] if document.compares else []
        share = document.alpha / max(1, len(rest))
        split = shares(document.rounds)
        self.comparisons: dict[str, Comparison] = {
            name: Comparison(alpha=share, margin=document.margin, shares=split) for name in rest
        }
        self.left_out: dict[str, int] = dict.fromkeys(rest, 0)
        """Pairs that could not be compared because one of them failed."""
        self._at = dict.fromkeys(rest, (0, 0))
        self._values: dict[tuple[str, int, str], float | None] = {}
        self._orders: dict[int, list[str]] = {}

    def order(self, round_: int) -> list[str]:
        """The runs of a round."""
        if round_ not in self._orders:
            self._orders[round_] = ordered(self._document, round_)
        return self._orders[round_]

    @property
    def decided(self) -> dict[str, str]:
        """The comparisons that are decided."""
        return {name: test.decision for name, test in self.comparisons.items() if test.decision != "undecided"}

    def add(self, row: Row) -> None:
        """Add one cell."""
        value: float | None = None
        if row["status"] in ("pass", "fail"):
            value = float(row["score"]) if self._document.metric == "score" else float(row["status"] == "pass")
        self._values[(row["variant"], row["sample"], row["run"])] = value
        for name in self.comparisons:
            if row["variant"] in (name, self._base):
                self._advance(name)

    def _advance(self, name: str) -> None:
        round_, place = self._at[name]
        while round_ < self._document.rounds:
            run = self.order(round_)[place]
            mine, base = (name, round_, run), (self._base, round_, run)
            if mine not in self._values or base not in self._values:
                break
            value, against = self._values.pop(mine), self._values[base]
            if value is None or against is None:
                self.left_out[name] += 1
            else:
                self.comparisons[name].add_pair(round_, run, value - against)
            place += 1
            if place == len(self._document.runs):
                round_, place = round_ + 1, 0
        self._at[name] = (round_, place)


class Matrix:
    """The table and the verdicts."""

    def __init__(self, document: Document, table: Table, *, stopped: str = "") -> None:
        self.document = document
        self.stopped = stopped
        """``budget`` if it ran out before all cells were done; a start with a larger one continues."""
        self._table = table
        self._judge = Judge(document)
        self._lanes: dict[str, dict[str, Any]] = {
            one.name: {"cells": 0, "passed": 0, "errors": 0, "refused": 0, "scores": 0.0, "cost": 0.0, "calls": 0}
            for one in document.variants
        }
        self._of_run: dict[str, list[float]] = {}
        self._why: dict[str, Counter[tuple[str, str]]] = {one.name: Counter() for one in document.variants}
        for row in table:
            self._add(row)

    def _add(self, row: Row) -> None:
        self._judge.add(row)
        lane = self._lanes[row["variant"]]
        lane["cells"] += 1
        if row["status"] == "error":
            lane["errors"] += 1
            self._why[row["variant"]][row.get("code", ""), " ".join(row["reasons"][:1])] += 1
        lane["passed"] += row["status"] == "pass"
        lane["refused"] += bool(row.get("refused"))
        lane["scores"] += row.get("score", 0.0)
        lane["cost"] += row.get("cost", 0.0)
        lane["calls"] += row.get("calls", 0)
        if row["status"] != "error" and row["variant"] != self.document.variants[0].name:
            sums = self._of_run.setdefault(row["run"], [0.0, 0.0])
            sums[0] += row["score"]
            sums[1] += 1

    @property
    def id(self) -> str:
        """Of the matrix."""
        return self.document.id

    @property
    def path(self) -> Path:
        """The file with the rows, one JSON document per line."""
        return self._table.path

    def to_dicts(self) -> list[Row]:
        """All rows."""
        return list(self._table)

    def to_pandas(self) -> Any:
        """All rows as a ``pandas.DataFrame``."""
        import importlib

        return importlib.import_module("pandas").DataFrame(self.to_dicts())

    def verdicts(self) -> list[dict[str, Any]]:
        """The result of each comparison."""
        base = self.document.variants[0].name
        results = {name: test.result() for name, test in self._judge.comparisons.items()}
        return [
            {
                "variant": name,
                "comparedWith": base,
                "verdict": result.decision,
                "difference": round(result.difference, 6),
                "pairs": result.pairs,
                "leftOut": self._judge.left_out[name],
                "evidenceWorse": round(min(result.evidence_worse, 1.0), 4),
                "evidenceNotWorse": round(min(result.evidence_not_worse, 1.0), 4),
            }
            for name, result in results.items()
        ]

    def lanes(self) -> list[dict[str, Any]]:
        """The numbers of each variant."""
        found = []
        for name, lane in self._lanes.items():
            good = lane["cells"] - lane["errors"]
            rate = lane["passed"] / good if good else None
            mean = lane["scores"] / good if good else None
            kept = {key: lane[key] for key in ("cells", "passed", "errors", "refused", "calls", "cost")}
            why = [
                {"code": code, "reason": reason, "cells": cells}
                for (code, reason), cells in self._why[name].most_common(_REASONS)
            ]
            found.append({"variant": name, **kept, "passRate": rate, "meanScore": mean, "badRows": why})
        return found

    def lowest(self) -> list[dict[str, Any]]:
        """The runs with the lowest mean score over the variants; a list to inspect, not a test."""
        means = sorted((total / count, run) for run, (total, count) in self._of_run.items())
        return [{"run": run, "meanScore": round(mean, 6)} for mean, run in means[:_LOWEST]]

    @property
    def unclear(self) -> list[str]:
        """Undecided variants with failed cells, their own or those of the baseline."""
        bad = {name: lane["errors"] for name, lane in self._lanes.items()}
        if not self._judge.comparisons:  # nothing to compare with: a variant should at least answer
            return [name for name, lane in self._lanes.items() if 0 < lane["cells"] == lane["errors"]]
        base = self.document.variants[0].name
        return [name for name in self._judge.comparisons if name not in self._judge.decided and bad[name] + bad[base]]

    @property
    def is_complete(self) -> bool:
        """Whether all cells that the verdict needs are done."""
        decided = self._judge.decided if self.document.stops else {}
        if decided and len(decided) == len(self._judge.comparisons):
            return True
        each = len(self.document.runs) * self.document.rounds
        return all(lane["cells"] >= each for name, lane in self._lanes.items() if name not in decided)

    @property
    def exit_code(self) -> int:
        """1 if a variant is worse, or undecided while cells failed; else 0."""
        return int(any(one["verdict"] == "worse" for one in self.verdicts()) or bool(self.unclear))

    def to_wire(self) -> dict[str, Any]:
        """The result without its rows."""
        document = self.document
        done = sum(lane["cells"] for lane in self._lanes.values())
        return {
            "id": self.id,
            "createdAtMs": document.created_at_ms,
            "done": done,
            "total": document.cells,
            "isComplete": self.is_complete,
            "runs": len(document.runs),
            "rounds": document.rounds,
            "metric": document.metric,
            "embedder": document.settings.get("embedder", ""),
            "alpha": document.alpha,
            "margin": document.margin,
            "stopped": self.stopped,
            "variants": self.lanes(),
            "verdicts": self.verdicts(),
            "unclear": self.unclear,
            "lowest": self.lowest(),
            "table": str(self.path),
        }

    def text(self) -> str:
        """The result for a console."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        document = self.document
        used = f", embedder: {document.settings['embedder']}" if document.settings else ""
        yield f"{plural(len(document.runs), 'run')}, {plural(len(document.variants), 'variant')}{used}"
        for lane in self.lanes():
            rate = "-" if lane["passRate"] is None else f"{lane['passRate']:.1%} pass, mean ARS {lane['meanScore']:.3f}"
            bad = f", {plural(lane['errors'], 'failed cell')}" if lane["errors"] else ""
            refused = f", {lane['refused']} refused" if lane["refused"] else ""
            money = f", cost {lane['cost']:.4f}" if lane["cost"] else ""
            yield f"  {lane['variant']}: {plural(lane['cells'], 'cell')}, {rate}{refused}{bad}{money}"
            for one in lane["badRows"]:
                yield f"    {one['cells']} x {one['code']}: {' '.join(one['reason'].split())}"
            others = len(self._why[lane["variant"]]) - len(lane["badRows"])
            if others:
                yield f"    and {plural(others, 'other reason')}: see the table"
        margin = f"{document.margin * 100:g} points"
        words = {
            "worse": "WORSE",
            "not worse": f"not worse by {margin} or more",
            "undecided": f"undecided: neither clearly worse nor clearly within {margin}",
        }
        for one in self.verdicts():
            points = f"{one['difference'] * 100:+.1f} points in {plural(one['pairs'], 'pair')}"
            left = f", {plural(one['leftOut'], 'pair')} left out" if one["leftOut"] else ""
            yield f"{one['variant']} vs. {one['comparedWith']}: {words[one['verdict']]} ({points}{left})"
        if not self._judge.comparisons:
            yield "Nothing to compare with: add --baseline, or a second variant."
        if self.unclear:
            yield f"Undecided, and cells failed: {', '.join(self.unclear)}."
            yield f"Retry these cells: antiphon matrix --resume {self.id}"
        if self.stopped:
            yield f"Stopped by the {self.stopped}. Resume with a larger one: antiphon matrix --resume {self.id}"

    def view(self) -> dict[str, Any]:
        """The data of the result's page."""
        from antiphon.scoring.html import matrix_view

        return matrix_view(self.to_wire(), self._table)

    def html(self) -> str:
        """The result as one page."""
        from antiphon.scoring.html import render_matrix

        return render_matrix(self.view())


def matrices(app: Antiphon, limit: int = 50) -> list[dict[str, Any]]:
    """The matrices of this tenant and store that are driven from this machine, newest first."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder_of().glob(f"*/{PLAN}"), reverse=True):
        owner, wire = _summary(*_state(path.parent))
        if owner == (app.tenant, app.store.url):
            found.append(dict(wire))
            if len(found) == limit:
                break
    return found


def one_matrix(app: Antiphon, wanted: str) -> dict[str, Any]:
    """The current state of a matrix: its verdicts, its progress, and as ``view`` what its page shows."""
    owner, wire = _page(*_state(folder_of(wanted))) if re.fullmatch(r"[\w-]{1,64}", wanted) else (None, {})
    if owner != (app.tenant, app.store.url):
        raise NotFound(f"There is no matrix {wanted[:64]!r} here.", hint="List them: GET /v1/matrices")
    return dict(wire)


_Stamp = tuple[int, int]
CachedMatrix = tuple[tuple[str, str] | None, dict[str, Any]]
"""Tenant and store of a matrix, and its description."""


def _state(folder: Path) -> tuple[Path, _Stamp, _Stamp]:
    """A folder and the state of its files: cached data is read again when it changes."""
    return folder, stamp_of(folder / PLAN), stamp_of(folder / TABLE)


@functools.lru_cache(maxsize=1024)
def _summary(folder: Path, plan: _Stamp, table: _Stamp) -> CachedMatrix:
    """The list entry."""
    owner, found = _read(folder)
    wire = {} if found is None else found.to_wire()
    return owner, {name: value for name, value in wire.items() if name not in ("lowest", "table")}


@functools.lru_cache(maxsize=16)
def _page(folder: Path, plan: _Stamp, table: _Stamp) -> CachedMatrix:
    """The page entry; the table is a path on this machine."""
    owner, found = _read(folder)
    wire = {} if found is None else {**found.to_wire(), "view": found.view()}
    return owner, {name: value for name, value in wire.items() if name != "table"}


def _read(folder: Path) -> tuple[tuple[str, str] | None, Matrix | None]:
    document = document_in(folder)
    if document is None:
        return None, None
    return (document.tenant, document.store), Matrix(document, Table(folder, document))
