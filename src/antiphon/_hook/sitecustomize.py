"""Loaded by Python at start when ``antiphon exec`` put this folder on its path: starts the recording, then steps aside.

A ``sitecustomize`` of the environment that this one hides is run as well.
"""

import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path


def _run_hidden() -> None:
    here = Path(__file__).resolve().parent
    path = [place for place in sys.path if Path(place or ".").resolve() != here]
    found = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if found is not None and found.loader is not None:
        module = importlib.util.module_from_spec(found)
        found.loader.exec_module(module)


def _refuse_replay(error: Exception) -> None:
    """End the process: Python would run the program nevertheless, and all its calls would be real."""
    text = f"The replay cannot begin: {type(error).__name__}: {error}. The program was not run."
    failure = {"error": "replay_not_begun", "message": text, "hint": f"The Python of the program is {sys.executable}"}
    try:
        Path(json.loads(_order)["report"]).write_text(json.dumps(failure), encoding="utf-8")
    finally:
        os._exit(2)


_order = os.environ.pop("ANTIPHON_EXEC", "")
if _order:
    try:
        from antiphon.adapters import _process

        _process.begin(_order)
    except Exception as error:
        if json.loads(_order)["replay"] is not None:
            _refuse_replay(error)
        raise
_run_hidden()
