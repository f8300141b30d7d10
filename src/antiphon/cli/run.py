"""``antiphon run``."""

from __future__ import annotations

import argparse
import sys

from antiphon.cli._base import add_config, add_json, application, dim, print_json
from antiphon.errors import InvalidInput

DESCRIPTION = "Run an agent entry point and record everything observable."
EXAMPLE = "example:\n  antiphon run examples/support_agent.py:main --input '\"My order 1042 is late\"'"


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("target", help="file.py:function or module:function")
    parser.add_argument(
        "--input", metavar="JSON", help="the argument, as JSON (an object with args/kwargs for several)"
    )
    parser.add_argument(
        "--resume", metavar="RUN", help="go on with an interrupted run: finished calls are not made again"
    )
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the entry point; 1 if the agent failed."""
    from antiphon.ops.start import start

    with application(arguments) as app:
        result = start(app, arguments.target, _input(arguments.input), resume=arguments.resume)
    if arguments.json:
        print_json({"run": result.id, "name": result.name, "status": result.status, "output": result.output})
    else:
        if result.output is not None:
            print(result.output if isinstance(result.output, str) else _pretty(result.output))
        note = f"run {result.id} {result.status} · show it: antiphon show {result.id[:13]}"
        print(dim(note), file=sys.stderr)
        if result.error is not None:
            print(f"antiphon: {type(result.error).__name__}: {result.error}", file=sys.stderr)
    return 0 if result.error is None else 1


def _pretty(value: object) -> str:
    import orjson

    return orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2).decode()


def _input(text: str | None) -> object:
    if text is None:
        return None
    import orjson

    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(
            f"--input is not JSON: {error}.", hint="A plain text needs its quotes: --input '\"hello\"'"
        ) from None
