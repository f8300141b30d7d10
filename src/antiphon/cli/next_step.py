"""The command that compares the next step of recorded runs with that of another model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import Any

from antiphon.cli import _ui as ui
from antiphon.cli._base import CONFIG, JSON, application, argument, command, flag, positive_int
from antiphon.errors import AntiphonError, InvalidInput


@command(
    argument("runs", nargs="*", metavar="RUN", help="run ids, artifacts, trajectories or s3://… (or use --select)"),
    argument("--select", metavar="WORDS", help="which runs: 'name=terminus-2 since=7d limit=100'"),
    argument("--llm", metavar="TARGET", required=True, help="file.py:function that answers model requests"),
    argument("--model", metavar="MODEL", help="the model that is asked (default: the recorded one)"),
    argument("--steps", type=positive_int, metavar="N", help="at most N steps of each run"),
    flag("--details", "print every step that is not the same"),
    CONFIG,
    JSON,
)
def next_step(arguments: argparse.Namespace) -> int:
    """Show another model the conversation before each recorded model call, and compare its next step.

    The recorded step goes on afterwards, so one difference does not spoil the rest. No code of the agent is needed and
    no tool is called: this also works with trajectories and traces of other tools (antiphon import).

    examples:
      antiphon import jobs/ && antiphon next-step --select name=terminus-2 --llm models.py:ask --model gpt-5
      antiphon next-step trajectory.json --llm models.py:ask --details

    exit codes: 0 compared, 1 a run or a step could not be compared, 2 usage, 4 not found, 5 model missing
    """
    from antiphon.ops.artifacts import open_run
    from antiphon.ops.entry import load_entry
    from antiphon.ops.matrix import select
    from antiphon.ops.next_step import in_all, next_steps

    if bool(arguments.runs) == bool(arguments.select):
        raise InvalidInput("Name the runs, or say which with --select.", hint="For example: --select name=terminus-2")
    done: list[dict[str, Any]] = []
    failed: list[tuple[str, AntiphonError]] = []
    with application(arguments) as app, ui.aside(arguments.json):
        send = load_entry(arguments.llm)
        names = arguments.runs or select(app, arguments.select)
        for name in ui.progress(names, len(names), "comparing, runs") if len(names) > 1 else names:
            try:
                found = next_steps(app, open_run(app, name), send, model=arguments.model, steps=arguments.steps)
                done.append(found)
            except AntiphonError as error:
                if len(names) == 1:
                    raise
                failed.append((name, error))
    for name, problem in failed:
        print(ui.red(f"antiphon: {ui.safe(name)}: {ui.safe(problem.message)}"), file=sys.stderr)
    result = in_all(done, failed)
    ui.output(arguments, result, _lines(result, arguments.details))
    return 1 if failed or result["verdicts"]["error"] else 0


def _lines(result: dict[str, Any], details: bool) -> Iterator[str]:
    from antiphon.ops.next_step import SAME, VERDICTS, text_of

    shown = [name for name in VERDICTS if result["verdicts"][name]]
    rows = [
        (ui.safe(one["run"]), ui.safe(one["name"]), one["steps"], *(one["verdicts"][name] for name in shown))
        for one in result["runs"]
    ]
    head = ("RUN", "NAME", "STEPS", *(name.upper() for name in shown))
    counts = range(2, len(head))
    yield ui.table(head, rows, right=counts, shorten={0: 13, 1: 10}, keep=counts)
    for one in result["runs"] if details else ():
        for row in one["rows"]:
            if row["verdict"] != SAME:
                yield f"{ui.safe(one['run'])} event {row['event']}: {row['verdict'] or 'not compared'}"
                yield from _sides(row)
    yield text_of(result)


def _sides(row: dict[str, Any]) -> Iterator[str]:
    if "why" in row:
        yield f"  {ui.safe(row['why'])}"
        return
    for mark, colour, said in (("-", ui.red, row["recorded"]), ("+", ui.green, row["answer"])):
        calls = "; ".join(f"{name} {arguments}" for name, arguments in said["calls"])
        yield "  " + colour(f"{mark} {ui.safe((calls or str(said['text']))[:300])}")
