"""``antiphon run``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import antiphon
from antiphon._diff import plural
from antiphon.cli import _ui as ui
from antiphon.cli._base import CONFIG, JSON, application, argument, command
from antiphon.errors import AntiphonError


@command(
    argument("target", help="file.py:function or module:function"),
    argument("--input", metavar="JSON", help="the argument, as JSON (an object with args/kwargs for several)"),
    argument(
        "--resume",
        metavar="RUN",
        help="resume an interrupted run (id or prefix): finished calls are not repeated",
    ),
    CONFIG,
    JSON,
)
def run(arguments: argparse.Namespace) -> int:
    """Run an agent entry point and record everything observable.

    example:
      antiphon run examples/support_agent.py:main --input '"My order 1042 is late"'
    """
    from antiphon._recording.run import exit_code
    from antiphon.ops.app import start
    from antiphon.ops.captured import missing
    from antiphon.ops.runs import find_run
    from antiphon.ops.tables import json_value

    given = json_value(arguments.input, "--input")
    with application(arguments) as app:
        resume = None if arguments.resume is None else find_run(app, arguments.resume).id
        with ui.aside(arguments.json):
            result = start(app, arguments.target, given, resume=resume)
        warnings = missing(result)
        late = result.late_calls
    code = exit_code(result.error)
    if arguments.json:
        left: dict[str, Any] = {} if code is None else {"exitCode": code}
        if late:
            left["afterEnd"] = late
        if warnings:
            left["warnings"] = warnings
        ui.print_json({"run": result.id, "name": result.name, "status": result.status, **left, "output": result.output})
    else:
        if isinstance(result.output, str):
            print(result.output)
        elif result.output is not None:
            ui.print_json(result.output)
        status = result.status if code is None else f"{result.status} with exit code {code}"
        note = f"run {result.id} {status} · show it: antiphon show {result.id[:13]}"
        print(ui.dim(note), file=sys.stderr)
        if result.error is not None:
            _explain(result.error)
    for warning in warnings:
        print(f"antiphon: {warning}", file=sys.stderr)
    if late:
        print(f"antiphon: {plural(late, 'call')} came after the end of the run and stand behind it", file=sys.stderr)
    return code or (0 if result.error is None else 1)


def _explain(error: BaseException) -> None:
    """The failure; where it is the agent's own, with the lines of its code that led there."""
    if isinstance(error, SystemExit):
        if isinstance(error.code, str):  # Python would say it now
            print(error.code, file=sys.stderr)
        return
    if not isinstance(error, AntiphonError):
        import traceback

        ours = str(Path(antiphon.__file__).parent)
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
        print("".join(traceback.format_list(frames)), end="", file=sys.stderr)
    print(f"antiphon: {type(error).__name__}: {error}", file=sys.stderr)
