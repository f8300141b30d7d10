"""What starting costs: importing the package, the first gateway, the command line."""

from __future__ import annotations

import sys
from pathlib import Path

from bench import Context, Race, Row

BUDGETS_MS = {"import antiphon": 60.0, "first Gateway()": 150.0, "antiphon --help": 200.0}


def run(ctx: Context) -> list[Row]:
    python = sys.executable
    race = ctx.commands(
        {
            "bare": [python, "-c", "pass"],
            "import antiphon": [python, "-c", "import antiphon"],
            "first Gateway()": [python, "-c", "import antiphon; antiphon.Gateway()"],
            "antiphon --help": [str(Path(python).parent / "antiphon"), "--help"],
            "asyncio": [python, "-c", "import asyncio"],
        }
    )
    rows = [_above_bare(race, "import antiphon"), _above_bare(race, "first Gateway()")]
    rows.append(
        Row(
            name="antiphon --help, whole process",
            value=race["antiphon --help"].seconds("wall") * 1e3,
            unit="ms",
            peer="python -c pass",
            peer_value=race["bare"].seconds("wall") * 1e3,
            at_most=BUDGETS_MS["antiphon --help"],
        )
    )
    return rows


def _above_bare(race: Race, name: str) -> Row:
    return Row(
        name=f"{name}, above bare python",
        value=(race[name].seconds("wall") - race["bare"].seconds("wall")) * 1e3,
        unit="ms",
        peer="import asyncio",
        peer_value=(race["asyncio"].seconds("wall") - race["bare"].seconds("wall")) * 1e3,
        at_most=BUDGETS_MS[name],
        note="wall time",
    )
