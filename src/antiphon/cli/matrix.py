"""The command that replays many runs with several models, and says whether one of them is worse."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any, TextIO

from antiphon.cli import _ui as ui
from antiphon.cli._base import (
    CONFIG,
    JSON,
    application,
    argument,
    command,
    flag,
    group,
    interrupted,
    no_sandbox,
    non_negative_int,
    non_negative_number,
    positive_int,
    prompt_in,
    ratio,
    repeated,
)
from antiphon.errors import InvalidInput

_EVERY_S = 0.5
_PLANNED = (
    *("runs", "select", "model", "prompt", "llm", "entry", "temperature", "baseline", "samples", "metric"),
    *("alpha", "margin", "min_ars", "fresh", "no_sandbox"),
)
"""What is part of the plan of a matrix."""


def _samples(text: str) -> int | str:
    return text if text == "auto" else positive_int(text)


@command(
    argument("runs", nargs="*", metavar="RUN", help="run ids, artifacts or s3://… (or use --select)"),
    argument("--select", metavar="WORDS", help="which runs: 'name=refund status=failed since=7d limit=100'"),
    group(
        "variants",
        repeated("--model", "MODEL", "a variant with another model; give it several times to compare several"),
        repeated("--prompt", "FILE", "a variant with the system prompt in FILE"),
        argument("--llm", metavar="TARGET", help="file.py:function that answers model requests"),
        argument("--entry", metavar="TARGET", help="file.py:function to run instead of the recorded entry points"),
        argument("--temperature", type=non_negative_number, help="of every variant"),
        flag("--baseline", "compare with the recorded model, replayed as often (else: with the first variant)"),
    ),
    group(
        "verdict",
        argument("--samples", type=_samples, metavar="N", help="rounds, or auto (default): as many as it needs"),
        argument("--metric", choices=["pass", "score"], help="compare pass rates (default) or scores"),
        argument("--alpha", type=ratio, metavar="X", help="chance of a wrong verdict (default 0.05)"),
        argument("--margin", type=ratio, metavar="X", help="how much worse is harmless (default 0.05)"),
        argument("--min-ars", type=ratio, metavar="X", help="a cell passes from this score on (default 0.8)"),
    ),
    group(
        "execution",
        argument("--on", default="local", metavar="WHERE", help="local (default), here or dask://host:8786"),
        argument(
            "--jobs", "-j", type=positive_int, metavar="N", help="processes of --on local (default: one per core)"
        ),
        argument("--budget", type=non_negative_number, metavar="MONEY", help="stop before more is spent, by [prices]"),
        argument("--max-calls", type=non_negative_int, metavar="N", help="stop before more model calls are made"),
        argument("--resume", metavar="ID", help="resume a matrix that was interrupted or ran out of budget"),
        flag("--estimate", "print the estimate of calls and cost, and stop"),
        flag("--fresh", "replay cells again that an earlier matrix has"),
        no_sandbox("the code"),
    ),
    argument("--html", metavar="FILE", type=Path, help="write the result as one page"),
    CONFIG,
    JSON,
)
def matrix(arguments: argparse.Namespace) -> int:
    """Replay many runs with several models or prompts, and tell whether one is worse.

    examples:
      antiphon matrix --select 'name=refund since=7d' --model gpt-5 --baseline --estimate
      antiphon matrix --select 'name=refund since=7d' --model gpt-5 --baseline --budget 50
      antiphon matrix --select 'status=failed' --model a --model b --samples 3 --on dask://10.0.0.5:8786
      antiphon matrix --resume 01a1dd44 --json

    Cells that are done are never paid for again; a matrix that is started again continues where it stopped.
    With --json it prints one line per step of progress and the result, or what went wrong, as the last line.
    exit codes: 0 no variant is worse, 1 a variant is worse, or undecided and cells failed,
                2 usage, or workers that cannot be used, 3 blocked for review, 4 not found,
                5 entry point or model missing, 130 interrupted
    """
    from antiphon.ops.executors import executor_of
    from antiphon.ops.matrix import Status

    if arguments.html:
        _check_page(arguments.html)
    with application(arguments) as app:
        plan = _plan(app, arguments)
        estimate = plan.estimate()
        if arguments.estimate:
            ui.output(arguments, {**estimate._asdict()}, estimate.text())
            return 0
        _tell(arguments, {"matrix": plan.id, "estimate": estimate._asdict()}, f"matrix {plan.id}: {estimate.text()}")
        said, out = 0.0, sys.stdout

        def progress(status: Status) -> None:
            nonlocal said
            now = time.monotonic()
            if now - said >= _EVERY_S:
                said = now
                _show(arguments, status, out)

        try:
            with redirect_stdout(sys.stderr) if arguments.json else nullcontext():
                result = plan.run(executor_of(arguments.on, app, arguments.jobs), progress=progress)
        except KeyboardInterrupt:
            return interrupted(arguments.json, f"Resume with: antiphon matrix --resume {plan.id}")
        finally:
            if ui.knows_codes(sys.stderr):
                print("\r\x1b[K", end="", file=sys.stderr)
    if arguments.json:
        _line(result.to_wire())
    else:
        print("\n".join(map(ui.safe, result.text().splitlines())))
        print(ui.dim(f"table: {result.path}"))
    if arguments.html:
        _write_page(result, arguments.html)
        if not arguments.json:
            print(ui.dim(f"report: {arguments.html}"))
    return int(result.exit_code)


def _check_page(path: Path) -> None:
    """Refuse a page that cannot be written, before anything is paid for."""
    fits = not path.is_dir() if path.exists() else path.parent.is_dir()
    if not fits or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InvalidInput(
            f"{path} cannot be written. Nothing was started.",
            hint="Name a file in a folder that exists and may be written to.",
            path="html",
        )


def _write_page(result: Any, path: Path) -> None:
    try:
        path.write_text(result.html(), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"{path}: {error.strerror}. The result is kept in {result.path}.",
            hint=f"Write the page with: antiphon matrix --resume {result.id} --html FILE",
            path="html",
        ) from None


def _is_given(value: Any) -> bool:
    return value is not None and value is not False and value != []


def _plan(app: Any, arguments: argparse.Namespace) -> Any:
    from antiphon.ops import matrix as ops
    from antiphon.ops.matrix_table import Variant

    if arguments.resume is not None:
        given = [name for name in _PLANNED if _is_given(getattr(arguments, name))]
        if given:
            words = ", ".join("RUN" if name == "runs" else f"--{name.replace('_', '-')}" for name in given)
            raise InvalidInput(
                f"A resumed matrix keeps its plan: {words} cannot be given.",
                hint="Leave it out (--budget, --max-calls, --on and --jobs can be given), or start a new matrix.",
            )
        plan = ops.resumed(arguments.resume, app)
        for name in ("budget", "max_calls"):
            if getattr(arguments, name) is not None:
                setattr(plan.document, name, getattr(arguments, name))
        return plan
    if bool(arguments.runs) == bool(arguments.select):
        raise InvalidInput("Name the runs, or say which with --select.", hint="For example: --select 'name=refund'")
    variants = [Variant(name=model, model=model, temperature=arguments.temperature) for model in arguments.model]
    for file in arguments.prompt:
        variants.append(Variant(name=Path(file).name, prompt=prompt_in(file), temperature=arguments.temperature))
    names = ("samples", "llm", "entry", "metric", "alpha", "margin", "min_ars", "budget", "max_calls")
    return ops.matrix(
        arguments.select or arguments.runs,
        variants,
        baseline=arguments.baseline,
        fresh=arguments.fresh,
        sandbox=not arguments.no_sandbox,
        app=app,
        progress=ui.progress,
        **{name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None},
    )


def _show(arguments: argparse.Namespace, status: Any, out: TextIO) -> None:
    if arguments.json:
        _line({"progress": status.to_wire()}, out)
    elif ui.knows_codes(sys.stderr):
        wide = 20
        full = "#" * int(wide * status.done / max(1, status.total))
        rest = ui.duration(status.left_s * 1000)
        counts = f"{status.done} of at most {status.total}, {status.per_second:.1f}/s, {rest} left"
        bad = f"{status.failed} did not pass, {status.errors} failed cells, cost {status.cost:.2f}"
        print(f"\r\x1b[K[{full:<{wide}}] {counts}, {bad}", end="", file=sys.stderr, flush=True)


def _tell(arguments: argparse.Namespace, data: dict[str, Any], text: str) -> None:
    if arguments.json:
        _line(data)
    else:
        print(text, file=sys.stderr)


def _line(data: dict[str, Any], out: TextIO | None = None) -> None:
    """One JSON document on a line; what agents print meanwhile goes to standard error."""
    import orjson

    print(orjson.dumps(data, default=str).decode(), file=out or sys.stdout, flush=True)
