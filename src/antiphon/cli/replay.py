"""Commands that replay: one run, or a folder of golden runs as tests."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon._diff import plural
from antiphon.cli import EXIT
from antiphon.cli import _ui as ui
from antiphon.cli._base import (
    CONFIG,
    JSON,
    LATEST,
    application,
    argument,
    check_run,
    command,
    ended_with,
    exit_code,
    flag,
    group,
    no_sandbox,
    non_negative_int,
    non_negative_number,
    one_of,
    positive_int,
    prompt_in,
    ratio,
    repeated,
)
from antiphon.errors import InvalidInput, NotFound

if TYPE_CHECKING:
    from antiphon.ops import golden
    from antiphon.ops.child import Send

_OPTIONS = "mode verify realtime masked min_ars samples baseline from_event model provider temperature seed".split()
"""Given to a replay as they are."""


@command(
    argument("run", nargs="?", help="run id, a unique prefix, an artifact or s3://… (default: the latest run)"),
    LATEST,
    one_of(
        argument("--strict", action="store_const", const="strict", dest="mode", help="A: only recorded answers"),
        argument("--explore", action="store_const", const="explore", dest="mode", help="B: call the model again"),
    ),
    argument("--entry", metavar="TARGET", help="file.py:function to run instead of the recorded entry point"),
    argument("--llm", metavar="TARGET", help="file.py:function that answers model requests"),
    argument("--min-ars", type=ratio, metavar="X", help="fail below this score (default 0.8)"),
    argument("--html", metavar="FILE", help="write the report as one page"),
    group(
        "strict replay",
        flag("--no-execute", "do not run the agent's code; only check the recording"),
        flag("--verify", "also ask the model, to find refusals that appeared or disappeared"),
        flag("--realtime", "replay streams with their recorded timing"),
        flag("--masked", "give the code pseudonyms, as a machine without the key of the recording does"),
        no_sandbox("the code"),
    ),
    group(
        "explore replay",
        argument("--model", help="another model"),
        argument("--provider", help="another provider"),
        argument("--temperature", type=non_negative_number),
        argument("--seed", type=int),
        argument("--prompt", metavar="TEXT", help="another system prompt (@FILE reads a file)"),
        argument("--input", metavar="JSON", help="another input"),
        argument(
            "--from",
            dest="from_event",
            type=non_negative_int,
            metavar="N",
            help="answer from the recording before event N, live from N on",
        ),
        repeated("--edit", "N.PATH=JSON", "change a part of recorded event N"),
        argument("--samples", type=positive_int, default=1, metavar="N", help="replay N times and report the spread"),
        flag("--baseline", "also replay with the recorded model, for comparison"),
        flag("--exact-only", "no semantic matches"),
    ),
    group(
        "what is frozen (NAME: a tool, or llm, tool, mcp for all of a kind)",
        argument("--table", metavar="FILE", help="rules in TOML or JSON"),
        repeated("--live", "NAME", "call it, if it is safe"),
        repeated("--frozen", "NAME", "answer it from the recording"),
        repeated("--static", "NAME=JSON", "answer it with this"),
        repeated("--fault", "NAME=FAULT", "timeout, rate_limited, malformed or refusal"),
    ),
    CONFIG,
    JSON,
)
def replay(arguments: argparse.Namespace) -> int:
    """Replay a run: strictly (no side effects) or as an exploration of a new model, prompt or code.

    examples:
      antiphon replay --latest
      antiphon replay 01a1dd44 --strict --json
      antiphon replay golden/refund.antiphon --strict
      antiphon replay 01a1dd44 --explore --model gpt-5 --llm my_models.py:ask --samples 3 --baseline
      antiphon replay 01a1dd44 --from 12 --edit '11.value.status="lost"' --llm my_models.py:ask
      antiphon replay 01a1dd44 --fault search=timeout --frozen llm

    exit codes: 0 passed, 1 regression or divergence, 2 usage, 3 blocked for review, 4 not found,
                5 entry point or model missing, 6 unreadable or other-version recording
    """
    from antiphon.ops import replay as ops
    from antiphon.ops.entry import load_entry
    from antiphon.ops.reports import Report
    from antiphon.ops.tables import json_value, table_of

    check_run(arguments)
    prompt = arguments.prompt
    options: dict[str, Any] = {name: getattr(arguments, name) for name in _OPTIONS}
    options |= {
        "execute": not arguments.no_execute,
        "prompt": prompt_in(prompt[1:]) if prompt and prompt.startswith("@") else prompt,
        "input": json_value(arguments.input, "--input"),
        "exact_only": arguments.exact_only or None,
        "edits": _edits(arguments.edit),
        "sandbox": False if arguments.no_sandbox else "process",
        "table": table_of(
            Path(arguments.table) if arguments.table else None,
            live=arguments.live,
            frozen=arguments.frozen,
            faults=arguments.fault,
            statics=arguments.static,
        ),
    }

    temporary = _temporary(arguments)

    def work(send: Send) -> None:
        with application(arguments, temporary=temporary) as app:
            options["function"] = load_entry(arguments.entry) if arguments.entry else None
            options["llm"] = load_entry(arguments.llm) if arguments.llm else None
            if arguments.mode == "strict" and not (arguments.verify or arguments.no_sandbox):
                _leave_network(app)
            report = ops.replay(arguments.run, app=app, keep=False, progress=ui.progress, **options)
            assert report.recording is not None
            notice = _notice(app, report.recording) if report.replay_type == "A" and report["executed"] else ""
            send({"report": report.to_wire(), "given": report.recording.input(), "notice": notice})

    found = _replayed(work, arguments)
    if "report" not in found:
        return int(found["code"])
    data = found["report"]
    with application(arguments, temporary=temporary) as app:
        ops.finish_in_parent(app, data, found["given"], found["late"], found["missing"])
    report = Report(data)
    lines = [report.text().rstrip("\n"), *map(ui.dim, _more(data))]
    if arguments.html:
        Path(arguments.html).write_text(report.html(), encoding="utf-8")
        lines.append(ui.dim(f"report: {arguments.html}"))
    ui.output(arguments, data, lines)
    if found["notice"]:
        print(ui.dim(found["notice"]), file=sys.stderr)
    return report.exit_code


def _temporary(arguments: argparse.Namespace) -> bool:
    """Whether nothing is kept: a strict replay of an artifact makes no state folder."""
    from antiphon.config.load import load
    from antiphon.config.wiring import keeps_runs
    from antiphon.ops.runs import is_artifact

    wanted = arguments.run
    strict = arguments.mode == "strict" and wanted is not None and is_artifact(wanted)
    return strict and not keeps_runs(load(arguments.config).config)


def _replayed(
    work: Callable[[Callable[[dict[str, Any]], None]], None], arguments: argparse.Namespace
) -> dict[str, Any]:
    """What *work* sends; in a process of its own, where this one is only there for the command."""
    from antiphon import cli
    from antiphon.ops.child import in_children

    found: dict[str, Any] = {"late": [], "missing": []}
    if not (cli.own_process and hasattr(os, "fork")):
        with ui.aside(arguments.json):
            work(found.update)
        return found
    for _, message in in_children([work], quiet=arguments.json):
        if "late" in message:
            found["late"].append(message["late"])
        elif "missing" in message:
            found["missing"].append(message["missing"])
        else:
            found.update(message)
    code = found.pop("ended")
    if "report" in found and code:
        found["late"].append(f"ending the process with {ended_with(code)}")
    elif "report" not in found and "failed" not in found:
        text = f"The replayed code ended its process with {ended_with(code)}."
        if arguments.json:
            ui.print_json({"error": "process_ended", "message": text, "hint": ""}, indent=False)
        print(f"antiphon: {text}", file=sys.stderr)
        code = EXIT["diverged"]
    return {"code": code, **found}


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
        paid = plural(saved.get("tokens", 0), "token")
        yield f"Answered from the recording: {plural(saved['calls'], 'call')}, {paid}{money}"
    if data.get("executed", True):
        yield from masked_lines(data.get("masked") or {})
    if data.get("ambiguousLanes"):
        yield f"Ambiguous lanes: {len(data['ambiguousLanes'])} (name parallel work with antiphon.branch)"
    shown = next((found["show"] for found in data["divergences"] if "show" in found), None)
    if shown:
        yield f"Show the recorded side: {shown}"


def masked_lines(masked: dict[str, Any]) -> Iterator[str]:
    """How masked values were used, and which were not compared."""
    left = masked.get("notCompared", [])
    if left:
        places = "; ".join(f"{one['what']} {one['path']} ({one['kind']})" for one in left[:3])
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        yield f"Masked values not compared: {len(left)} ({places}{more})"
    elif masked.get("values"):
        how = "originals" if masked.get("originals") else "pseudonyms"
        yield f"Masked values: {masked['values']}, all compared ({how})"
    if masked.get("note"):
        yield f"Note: {masked['note']}"


def _leave_network(app: Any) -> None:
    """An empty network namespace around a strict replay, unless the recording itself is on another machine."""
    from antiphon import cli
    from antiphon.ops.sandbox import leave_network

    if cli.own_process and app.store.url.startswith(("sqlite", "memory")) and app.config.artifacts.backend == "local":
        leave_network()


def _notice(app: Any, recording: Any) -> str:
    from antiphon.ops.execution import known_tools
    from antiphon.ops.side_effects import notice

    return notice(recording.manifest.entry, known_tools(app, recording)) or ""


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


@command(
    argument(
        "places",
        nargs="+",
        metavar="DIR",
        help="folders, files (.antiphon, .kurral), s3://…, run ids in the bucket",
    ),
    argument("--jobs", "-j", type=positive_int, default=1, metavar="N", help="replay in N processes"),
    argument("--min-ars", type=ratio, default=0.9, metavar="X", help="fail below this score (default 0.9)"),
    flag("--explore", "call the model again instead of replaying strictly"),
    argument("--model", help="another model, for --explore"),
    argument("--llm", metavar="TARGET", help="file.py:function that answers model requests, for --explore"),
    argument("--entry", metavar="TARGET", help="file.py:function to run instead of the recorded entry points"),
    argument("--junit", metavar="FILE", type=Path, help="write JUnit XML"),
    argument("--markdown", metavar="FILE", type=Path, help="write a summary for a pull request"),
    argument("--html", metavar="FILE", type=Path, help="write the results as one page"),
    flag("--masked", "give the code pseudonyms, as a machine without the key of the recordings does"),
    no_sandbox("the code"),
    CONFIG,
    JSON,
)
def test(arguments: argparse.Namespace) -> int:
    """Replay golden runs against the current code: each artifact is a test.

    examples:
      antiphon export 01a1dd44 -o golden/refund.antiphon   # make one
      antiphon test golden/
      antiphon test golden/ --jobs 4 --junit report.xml --markdown summary.md
      antiphon test golden/ --explore --model gpt-5 --llm my_models.py:ask
      antiphon test s3://our-bucket/team/billing/           # golden runs in the bucket of [artifacts]

    A dropped, added or changed side effect fails a test whatever its score says.
    exit codes: 0 all passed, 1 a regression or divergence; if none, what kept a run from being replayed:
                3 blocked for review, 4 not found, 5 entry point or model missing, 6 unreadable
    """
    from antiphon import cli
    from antiphon.ops import golden, verdicts

    options = golden.Options(
        mode="explore" if arguments.explore else "strict",
        min_ars=arguments.min_ars,
        config=arguments.config,
        llm=arguments.llm,
        sandbox=not arguments.no_sandbox,
        model=arguments.model,
        entry=arguments.entry,
        masked=arguments.masked,
    )
    by_path: dict[str, golden.Result] = {}
    own = cli.own_process
    with _own_folder() as folder, ui.aside(arguments.json and not own):
        with application(arguments, temporary=True) as app:
            places, tenant = _local(app, arguments.places, folder), app.tenant
        paths = golden.find_artifacts(places)
        checked = golden.check_all(
            paths, options, jobs=arguments.jobs, code_of=exit_code, apart=own, quiet=arguments.json
        )
        for result in ui.progress(checked, len(paths), "replaying, golden runs"):
            by_path[result.path] = result  # updated if its process reports late calls at exit
            verdicts.keep(
                result.path,
                result.status,
                result.reasons,
                result.report,
                tenant=tenant,
                seconds=result.seconds,
                address=places.get(Path(result.path), ""),
            )
            if not arguments.json:
                _tell(result)
    results = list(by_path.values())
    if arguments.junit:
        arguments.junit.write_text(golden.junit(results), encoding="utf-8")
    if arguments.markdown:
        arguments.markdown.write_text(golden.markdown(results), encoding="utf-8")
    if arguments.html:
        from antiphon.scoring.html import render_tests

        page = render_tests([result.to_wire() for result in results])
        arguments.html.write_text(page, encoding="utf-8")
    passed = sum(result.status == "pass" for result in results)
    if arguments.json:
        ui.print_json({"passed": passed, "total": len(results), "results": [result.to_wire() for result in results]})
    else:
        print(ui.bold(f"{passed} of {len(results)} golden runs pass"))
        for line in _legend([reason for result in results for reason in result.reasons]):
            print(ui.dim(line))
    return golden.exit_code(results)


def _legend(messages: list[str]) -> Iterator[str]:
    """What the words of the lines above mean."""
    yield "ARS, agent regression score: how much of the recording was reproduced, 1.000 is all of it"
    if any(re.search(r"\blane\b", message) for message in messages):
        yield "lane: one sequence of calls; parallel tasks and threads have lanes of their own"


def _local(app: Any, places: Sequence[str], folder: Path) -> dict[Path, str]:
    """The places as paths; what lies in the bucket is brought into *folder* first, and has its address."""
    from antiphon.ops.bucket import download, find, is_address, is_remote, stored_runs

    found: dict[Path, str] = {}
    for place in places:
        if is_address(place):
            stored = list(stored_runs(app, place))
            if not stored:
                raise NotFound(f"There is no artifact at {place}.", hint="List what is there: antiphon runs --bucket")
            found |= {download(app, one.name, folder): one.address for one in stored}
        elif Path(place).exists() or not is_remote(app) or (one := find(app, place)) is None:
            found[Path(place)] = ""
        else:
            found[download(app, one.name, folder)] = one.address
    return found


@contextmanager
def _own_folder() -> Iterator[Path]:
    """A temporary folder of this process; children that replay leave it to their parent."""
    folder, owner = tempfile.mkdtemp(prefix="antiphon-"), os.getpid()
    try:
        yield Path(folder)
    finally:
        if os.getpid() == owner:
            shutil.rmtree(folder, ignore_errors=True)


def _tell(result: golden.Result) -> None:
    ars = (result.report.get("ars") or {}).get("score")
    score = "" if ars is None else f"  ARS {ars:.3f}"
    mark = ui.green("✓") if result.status == "pass" else ui.red("✗")
    print(f"{mark} {result.path}{score}  {ui.dim(f'{result.seconds:.2f} s')}")
    for reason in result.reasons:
        shown = ui.dim(reason) if result.status == "pass" else reason
        print(f"    {shown}")
    masked = result.report.get("masked") or {}
    if masked.get("notCompared") or masked.get("note"):
        for line in masked_lines(masked):
            print(f"    {ui.dim(line)}")
