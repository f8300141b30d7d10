"""Rows of a benchmark: what was measured, beside what, and whether the goal is met."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """One line of the table. ``ratio`` is ours ÷ peer; a goal bounds the ratio if there is one, else the value.

    ``margin`` is how far the ratio may be off. ``release`` is what release 0.1.0 took for the same, ``release_ratio``
    its ratio to the same peer. ``setup`` says what was configured, ``failed`` why there is no number of a peer.
    """

    name: str
    value: float
    unit: str = "µs"
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    margin: float | None = None
    at_most: float | None = None
    at_least: float | None = None
    faster: float | None = None
    release: float | None = None
    release_ratio: float | None = None
    setup: str = ""
    note: str = ""
    failed: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; ``None`` where the row only informs."""
        if self.at_most is self.at_least is self.faster is None:
            return None
        if self._unmeasured:
            return False
        measured = self.value if self.ratio is None else self.ratio
        return (
            (self.at_most is None or measured <= self.at_most)
            and (self.at_least is None or measured >= self.at_least)
            and (self.faster is None or measured * self.faster <= 1)
        )

    @property
    def _unmeasured(self) -> bool:
        return bool(self.failed and self.peer) and self.ratio is None

    def cells(self) -> list[str]:
        """The row as the table prints it."""
        goal = ""
        if self.met is not None:
            bounds = [f"≤ {_number(self.at_most)}"] if self.at_most is not None else []
            bounds += [f"≥ {_number(self.at_least)}"] if self.at_least is not None else []
            bounds += [f"≥ {_number(self.faster)}× faster"] if self.faster is not None else []
            goal = f"{' '.join(bounds)} {'ok' if self.met else 'FAILED' if self._unmeasured else 'MISSED'}"
        ours = f"{_number(self.value)} {self.unit}"
        note = "; ".join(text for text in (self.note, self.failed and f"FAILED: {self.failed}") if text)
        return [self.name, ours, self._beside(), self._ratio(), goal, self._release(), self.setup, note]

    def _beside(self) -> str:
        if self.peer_value is None:
            return self.peer
        return f"{self.peer} {_number(self.peer_value)} {self.unit}"

    def _ratio(self) -> str:
        if self.ratio is None:
            return ""
        margin = f" ± {self.margin:.2g}" if self.margin else ""
        faster = f" ({_number(1 / self.ratio)}× faster)" if 0 < self.ratio < 0.8 else ""
        return f"{_number(self.ratio)}{margin}{faster}"

    def _release(self) -> str:
        if self.release is None:
            return ""
        ratio = "" if self.release_ratio is None else f" (ratio {_number(self.release_ratio)})"
        return f"{_number(self.release)} {self.unit}{ratio}"


HEAD = ["what", "antiphon", "beside", "ratio", "goal", "release 0.1.0", "configured", "note"]
OPTIONAL = {"release 0.1.0", "configured"}
"""Columns that are left out where no row has anything to say in them."""


def _number(value: float | None) -> str:
    if value is None:
        return ""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def table(rows: Iterable[Row]) -> str:
    """The rows as aligned text, readable as Markdown too."""
    cells = [row.cells() for row in rows]
    shown = [column for column, head in enumerate(HEAD) if head not in OPTIONAL or any(line[column] for line in cells)]
    lines = [[line[column] for column in shown] for line in (HEAD, *cells)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(shown))]
    out = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    out.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(out)


def write(path: Path, groups: dict[str, Sequence[Row]], failures: dict[str, str]) -> None:
    """Keep the run as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        "groups": {name: [{**asdict(row), "met": row.met} for row in rows] for name, rows in groups.items()},
        "failures": failures,
    }
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
