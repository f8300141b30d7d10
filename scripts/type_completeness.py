"""How much of the public interface is annotated, as ``pyright --verifytypes`` counts it; exit code 1 below 99 %.

python -m scripts.type_completeness
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

GOAL = 0.99


def measure(package: str = "antiphon", path: str = "") -> dict[str, Any]:
    """Pyright's report about *package*, which is installed or lies in the folder *path*.

    With ``--verifytypes`` pyright asks the first ``python`` on the PATH where packages are.
    """
    programs = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [str(programs / "pyright"), "--verifytypes", package, "--ignoreexternal", "--outputjson"],
            cwd=folder,
            env={**environment, "PYTHONPATH": path, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    report: dict[str, Any] = json.loads(done.stdout)
    if not report["typeCompleteness"].get("pyTypedPath"):
        raise SystemExit(f"pyright did not find {package}: {report['generalDiagnostics']}")
    found: dict[str, Any] = report["typeCompleteness"]
    return found


def open_ends(report: dict[str, Any]) -> list[str]:
    """The public symbols whose type is missing, with the reason where it is their own."""
    return [
        f"{symbol['name']}: {symbol['diagnostics'][0]['message'].splitlines()[0]}"
        for symbol in report["symbols"]
        if symbol["isExported"] and not symbol["isTypeKnown"] and symbol["diagnostics"]
    ]


def main() -> int:
    """Print the number and what is missing."""
    report = measure()
    counts, score = report["exportedSymbolCounts"], report["completenessScore"]
    print("\n".join(open_ends(report)))
    print(f"type completeness: {score:.2%} ({counts['withKnownType']} of {sum(counts.values())} public symbols)")
    return 0 if score >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
