"""All kill campaigns of approvals and undos, one after the other, on SQLite and PostgreSQL; prints the total.

    python -m tests.campaigns.kills [--kills 1000] [--json]

Half of the kills of each store hit calls that ask, are approved and go on, the other half sagas and their undos.
Progress goes to standard error. Exit code 1 if anything happened that must not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from tests.campaigns import approval_kills, undo

CAMPAIGNS = {"approval_kills": approval_kills.WRONG, "undo": undo.WRONG}


def run(campaign: str, store: str, kills: int) -> dict[str, Any]:
    """What one campaign has counted."""
    words = [sys.executable, "-m", f"tests.campaigns.{campaign}", "--store", store, "--kills", str(kills), "--json"]
    print(f"{campaign} on {store}", file=sys.stderr, flush=True)
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(f"{' '.join(words[1:])} failed with exit code {done.returncode}")
    return {"campaign": campaign, **json.loads(done.stdout)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1000, help="of each store (default 1000)")
    parser.add_argument("--json", action="store_true", help="print one document")
    arguments = parser.parse_args()
    half = (arguments.kills + 1) // 2
    found = [run(campaign, store, half) for store in ("sqlite", "postgresql") for campaign in CAMPAIGNS]
    wrong = {name: sum(one.get(name, 0) for one in found) for names in CAMPAIGNS.values() for name in names}
    total = {"kills": sum(one["kills"] for one in found), "wrong": wrong}
    if arguments.json:
        print(json.dumps({**total, "campaigns": found}, indent=2))
    else:
        for one in found:
            said = ", ".join(f"{name} {one[name]}" for name in CAMPAIGNS[one["campaign"]])
            print(f"{one['campaign']:>14} on {one['store']:<10}  {one['kills']:>5} kills  {said}")
        print(f"{'total':>14} {total['kills']} kills, {sum(wrong.values())} of what must not happen")
    return int(any(wrong.values()))


if __name__ == "__main__":
    raise SystemExit(main())
