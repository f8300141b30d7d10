"""``antiphon replay``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antiphon.cli._base import add_config, add_json, application, dim, number, print_json, share, whole
from antiphon.errors import InvalidInput

DESCRIPTION = "Replay a run: strictly (nothing leaves the process) or exploring a new model, prompt or code."
EXAMPLE = (
    "examples:\n"
    "  antiphon replay --latest\n"
    "  antiphon replay 01a1dd44 --strict --json\n"
    "  antiphon replay golden/refund.antiphon --strict\n"
    "  antiphon replay 01a1dd44 --explore --model gpt-5 --llm my_models.py:ask --samples 3 --baseline\n"
    "  antiphon replay 01a1dd44 --from 12 --edit '11.value.status=\"lost\"' --llm my_models.py:ask\n"
    "  antiphon replay 01a1dd44 --fault search=timeout --frozen llm\n\n"
    "exit codes: 0 passed, 1 regression or divergence, 2 usage, 3 blocked for review, 4 not found,\n"
    "            5 entry point or model missing, 6 unreadable or other-version recording"
)


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", nargs="?", help="run id, the beginning of one, or an artifact (default: the latest run)")
    parser.add_argument("--latest", action="store_true", help="the latest run")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--strict", action="store_const", const="strict", dest="mode", help="A: only recorded answers")
    kind.add_argument("--explore", action="store_const", const="explore", dest="mode", help="B: ask the model again")
    parser.add_argument("--entry", metavar="TARGET", help="file.py:function to run instead of the recorded entry point")
    parser.add_argument("--llm", metavar="TARGET", help="file.py:function that answers model requests")
    parser.add_argument("--min-ars", type=share, metavar="X", help="fail below this score (default 0.8)")
    parser.add_argument("--html", metavar="FILE", help="write the report as one page")
    strict = parser.add_argument_group("strict replay")
    strict.add_argument("--no-execute", action="store_true", help="do not run the agent's code (plain A)")
    strict.add_argument(
        "--verify", action="store_true", help="ask the model beside it, to find refusals that came or went"
    )
    strict.add_argument("--realtime", action="store_true", help="streams keep their recorded pauses")
    strict.add_argument("--no-fence", action="store_true", help="let the code reach the world past Antiphon")
    explore = parser.add_argument_group("explore replay")
    explore.add_argument("--model", help="another model")
    explore.add_argument("--provider", help="another provider")
    explore.add_argument("--temperature", type=number)
    explore.add_argument("--seed", type=int)
    explore.add_argument("--prompt", metavar="TEXT", help="another system prompt (@FILE reads a file)")
    explore.add_argument("--input", metavar="JSON", help="another input")
    explore.add_argument(
        "--from", dest="from_event", type=whole(), metavar="N", help="frozen before event N, live from it on"
    )
    explore.add_argument(
        "--edit", action="append", default=[], metavar="N.PATH=JSON", help="change a part of recorded event N"
    )
    explore.add_argument(
        "--samples", type=whole(1), default=1, metavar="N", help="replay N times and report the spread"
    )
    explore.add_argument("--baseline", action="store_true", help="replay the recorded model beside it")
    explore.add_argument("--exact-only", action="store_true", help="no semantic matches")
    table = parser.add_argument_group("what is frozen (NAME: a tool, or llm, tool, mcp for all of a kind)")
    table.add_argument("--table", metavar="FILE", help="rules in TOML or JSON")
    table.add_argument("--live", action="append", default=[], metavar="NAME", help="call it, if it is safe")
    table.add_argument("--frozen", action="append", default=[], metavar="NAME", help="answer it from the recording")
    table.add_argument("--static", action="append", default=[], metavar="NAME=JSON", help="answer it with this")
    table.add_argument(
        "--fault", action="append", default=[], metavar="NAME=FAULT", help="timeout, rate_limited, malformed or refusal"
    )
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay and print the report; 1 for a regression or divergence."""
    from antiphon.ops.entry import load_entry
    from antiphon.ops.replay import replay
    from antiphon.ops.tables import json_value, table_of

    if arguments.run and arguments.latest:
        raise InvalidInput("Name a run or say --latest, not both.")
    options: dict[str, Any] = {
        "mode": arguments.mode,
        "execute": not arguments.no_execute,
        "verify": arguments.verify,
        "model": arguments.model,
        "provider": arguments.provider,
        "temperature": arguments.temperature,
        "seed": arguments.seed,
        "prompt": _prompt(arguments.prompt),
        "input": None if arguments.input is None else json_value(arguments.input, "--input"),
        "exact_only": arguments.exact_only or None,
        "min_ars": arguments.min_ars,
        "from_event": arguments.from_event,
        "edits": _edits(arguments.edit),
        "samples": arguments.samples,
        "baseline": arguments.baseline,
        "realtime": arguments.realtime,
        "fence": False if arguments.no_fence else "process",
        "table": table_of(
            Path(arguments.table) if arguments.table else None,
            live=arguments.live,
            frozen=arguments.frozen,
            faults=arguments.fault,
            statics=arguments.static,
        ),
    }
    with application(arguments) as app:
        options["function"] = load_entry(arguments.entry) if arguments.entry else None
        options["llm"] = load_entry(arguments.llm) if arguments.llm else None
        if arguments.mode == "strict" and not (arguments.verify or arguments.no_fence):
            _leave_network(app)
        report = replay(arguments.run, app=app, **options)
        if arguments.html:
            Path(arguments.html).write_text(report.html(), encoding="utf-8")
        if arguments.json:
            print_json(report.to_wire())
        else:
            print(report.text(), end="")
            for line in _more(report.to_wire()):
                print(dim(line))
            if arguments.html:
                print(dim(f"report: {arguments.html}"))
        if report.replay_type == "A" and report["executed"]:
            _notice(app, report.recording)
    return report.exit_code


def _more(data: dict[str, Any]) -> Iterator[str]:
    """What the document's layout has no line for."""
    for name, title in (("spread", "Samples"), ("baseline", "Baseline (recorded model)")):
        if name in data:
            score = data[name]["score"]
            span = f"{score['mean']:.3f} (from {score['min']:.3f} to {score['max']:.3f})"
            yield f"{title}: {data[name]['samples']}, ARS {span}, {data[name]['failed']} failed"
    saved = data.get("saved") or {}
    if saved.get("calls"):
        money = f", {saved['cost']:.4f} in money" if saved.get("cost") else ""
        yield f"Answered from the recording: {saved['calls']} calls, {saved.get('tokens', 0)} tokens{money}"
    if data.get("ambiguousLanes"):
        yield f"Ambiguous lanes: {len(data['ambiguousLanes'])} (name parallel work with antiphon.branch)"
    shown = next((found["show"] for found in data["divergences"] if "show" in found), None)
    if shown:
        yield f"Look at the recorded side: {shown}"


def _leave_network(app: Any) -> None:
    """An empty network namespace around a strict replay, unless the recording itself is on another machine."""
    from antiphon import cli
    from antiphon.ops.fence import leave_network

    if cli.own_process and app.store.url.startswith(("sqlite", "memory")) and app.config.artifacts.backend == "local":
        leave_network()


def _notice(app: Any, recording: Any) -> None:
    from antiphon.ops.explore import known_tools
    from antiphon.ops.side_effects import notice

    text = notice(recording.manifest.entry, known_tools(app, recording))
    if text:
        print(dim(text), file=sys.stderr)


def _prompt(text: str | None) -> str | None:
    if not text or not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"--prompt: {text[1:]} cannot be read: {error.strerror}.") from None


def _edits(texts: list[str]) -> dict[int, dict[str, Any]]:
    from antiphon.ops.tables import json_value

    found: dict[int, dict[str, Any]] = {}
    for text in texts:
        place, equals, value = text.partition("=")
        number, dot, path = place.partition(".")
        if not equals or not dot or not number.isdigit() or not path:
            raise InvalidInput(f"{text!r} is not N.PATH=JSON.", hint="For example: --edit '11.value.status=\"lost\"'")
        found.setdefault(int(number), {})[path] = json_value(value, text)
    return found
