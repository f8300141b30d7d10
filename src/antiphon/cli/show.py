"""Commands that look at runs: list them, show one, compare two."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antiphon._diff import mark_words, plural, shorten
from antiphon.cli import _ui as ui
from antiphon.cli._base import (
    CONFIG,
    JSON,
    LATEST,
    application,
    argument,
    ask,
    check_run,
    command,
    flag,
    one_of,
    positive_int,
    ratio,
    repeated,
)
from antiphon.errors import InvalidInput

_COLOUR = {"completed": ui.green, "failed": ui.red}
_UNDONE = {"undone": ui.green, "would be undone": ui.green, "nothing to undo": ui.dim, "done by hand": ui.dim}


@command(
    argument("prefix", nargs="?", default="", help="prefix of the run ids to list, s3://… in the bucket, or: undo"),
    argument("run", nargs="?", help="undo: the run whose sagas are undone (id, unique prefix or latest)"),
    argument("--entry", metavar="FILE", help="undo: the file or module that declares the tools (default: the run's)"),
    flag("--dry-run", "undo: say what would be undone, and undo nothing"),
    repeated("--done", "CALL", "undo: a person has dealt with this call (0@2), so it is not undone and blocks nothing"),
    argument("--reason", default="", metavar="TEXT", help="undo: why, for the audit log"),
    flag("--yes", "undo: do not ask (at a terminal, the plan is shown first)"),
    flag("--force", "undo: even if it is not certain from here that the run's process has ended"),
    flag("--bucket", "list the artifacts in the configured bucket"),
    argument("--name", default="", help="only runs of this name"),
    argument("--status", default="", choices=["running", "completed", "failed", "interrupted"]),
    flag("--replays", "list replays too"),
    one_of(
        argument("--limit", type=positive_int, default=20, metavar="N", help="at most N runs (default 20)"),
        flag("--all", "all runs"),
    ),
    CONFIG,
    JSON,
)
def runs(arguments: argparse.Namespace) -> int:
    """List recorded runs, newest first; or undo the sagas of a run that were interrupted or got stuck.

    examples:
      antiphon runs                              # or: antiphon runs list
      antiphon runs --status failed --limit 5
      antiphon runs --bucket                     # what teammates have shared
      antiphon runs s3://our-bucket/team/billing
      antiphon runs undo 01a1dd44 --dry-run      # what would be undone
      antiphon runs undo 01a1dd44 --entry trip.py
      antiphon runs undo 01a1dd44 --entry trip.py --done 0@2 --reason "wrote a second mail"

    exit codes of undo: 0 undone or nothing to undo, 1 a person is needed, 2 usage, 4 not found,
                        5 the tools are not known here (--entry)
    """
    from antiphon.ops.bucket import is_address
    from antiphon.ops.runs import count_runs, list_runs

    if arguments.prefix == "undo":
        return _undo(arguments)
    if arguments.prefix == "list":
        arguments.prefix, arguments.run = arguments.run or "", None
    if arguments.run is not None:
        raise InvalidInput(
            f"antiphon runs takes one prefix, not {arguments.run!r} as well.",
            hint="To undo a run: antiphon runs undo RUN",
        )
    if arguments.bucket or is_address(arguments.prefix):
        return _in_bucket(arguments)
    wanted = {name: getattr(arguments, name) for name in ("prefix", "name", "status", "replays")}
    with application(arguments) as app:
        place = app.store.url
        rows = list_runs(app, **wanted, limit=sys.maxsize if arguments.all else arguments.limit)
        total = len(rows) if len(rows) < arguments.limit or arguments.all else count_runs(app, **wanted)
    chosen = arguments.prefix or arguments.name or arguments.status
    nothing = "No runs match." if chosen else "No runs yet. Record one: antiphon run agent.py:main"
    text = f"{nothing}\nLooked in {place} (--store names another)."
    ui.output(arguments, {"runs": rows, "total": total, "store": place}, _runs(rows, total) if rows else text)
    return 0


def _undo(arguments: argparse.Namespace) -> int:
    """Undo the sagas of a run."""
    from antiphon.ops.runs import find_run
    from antiphon.ops.sagas import undo_run

    if arguments.run is None:
        raise InvalidInput("Name the run to undo.", hint="antiphon runs undo RUN; antiphon runs lists them.")
    with application(arguments) as app, ui.aside(arguments.json):
        manifest = find_run(app, arguments.run)
        options = {name: getattr(arguments, name) for name in ("entry", "dry_run", "force", "done", "reason")}
        found = undo_run(app, manifest, **options, confirm=None if arguments.yes else _confirm_undo)
    lines = [] if found["sagas"] else [f"Run {manifest.id} has no saga to undo."]
    ui.output(arguments, found, [*lines, *_undone(found["sagas"])])
    return 0 if arguments.dry_run or all(saga["state"] == "undone" for saga in found["sagas"]) else 1


def _confirm_undo(planned: dict[str, Any]) -> None:
    """At a terminal, a person sees the plan first; a script has asked by calling the command."""
    number = sum(write["state"] == "would be undone" for saga in planned["sagas"] for write in saga["writes"])
    if number and sys.stdin is not None and sys.stdin.isatty():
        print("\n".join(_undone(planned["sagas"])), file=sys.stderr)
        ask(f"Undo {plural(number, 'call')} of run {planned['run']}?")


def _undone(sagas: list[dict[str, Any]]) -> Iterator[str]:
    """Each saga and what became, or would become, of its writes."""
    for saga in sagas:
        yield f"{ui.bold('saga ' + ui.safe(saga['name']))}  {saga['state']}"
        width = max((len(write["state"]) for write in saga["writes"]), default=0)
        for write in saga["writes"]:
            state = _UNDONE.get(write["state"], ui.red)(write["state"].ljust(width))
            yield f"  {state}  {ui.safe(write['tool'])} {ui.safe(write['call'])}"
            if write.get("why"):
                yield f"    {ui.safe(write['why'])}"


def _in_bucket(arguments: argparse.Namespace) -> int:
    from antiphon.ops.bucket import address_of, is_address, stored_runs

    with application(arguments) as app:
        address = is_address(arguments.prefix)
        found = sorted(stored_runs(app, arguments.prefix if address else address_of(app)), key=lambda one: one.run)
        place = address_of(app)
    rows = [
        one.to_wire()
        for one in reversed(found)
        if (address or one.run.startswith(arguments.prefix))
        and (arguments.replays or not one.replay)
        and arguments.name in ("", one.title)
    ]
    shown = rows if arguments.all else rows[: arguments.limit]
    lines = [(row["id"], ui.safe(row["name"]), row["month"], row["address"]) for row in shown]
    text = ui.table(("RUN", "NAME", "MONTH", "ADDRESS"), lines) if shown else f"No artifacts in {place}."
    if len(rows) > len(shown):
        text += "\n" + ui.dim(f"{len(shown)} of {len(rows)} artifacts; --all lists them all")
    ui.output(arguments, {"runs": shown, "total": len(rows), "bucket": place}, text)
    return 0


def _runs(rows: list[dict[str, Any]], total: int) -> Iterator[str]:
    head = ("RUN", "NAME", "STATUS", "STARTED", "TOOK", "EVENTS", "REPLAY OF")
    lines = [
        (
            row["id"],
            ui.safe(row["name"]),
            f"{row['status']}, exit {row['exitCode']}" if "exitCode" in row else row["status"],
            ui.when(row["startedAtMs"]),
            ui.duration(row["durationMs"]),
            "" if row["finishedAtMs"] is None else row["events"],  # counted when a run ends
            ui.safe(row["sourceRun"] or "")[:13],
        )
        for row in rows
    ]
    text = ui.table(head, lines, right=(5,), shorten={0: 13, 1: 10}, keep=(2,)).splitlines()
    yield text[0]
    at = len(text[0].removeprefix("\x1b[1m").partition("STATUS")[0])
    for line, row in zip(text[1:], rows, strict=True):
        colour = _COLOUR.get(row["status"], ui.yellow)
        yield line[:at] + line[at:].replace(row["status"], colour(row["status"]), 1)
    if total > len(rows):
        yield ui.dim(f"{len(rows)} of {total} runs; --all lists them all")


@command(
    argument("run", nargs="?", help="run id, a unique prefix, an artifact or s3://… (default: the latest run)"),
    LATEST,
    one_of(
        argument("--event", type=int, metavar="N", help="one event, whole"),
        argument("--context", type=int, metavar="N", help="exactly what the model saw at event N"),
        argument("--diff", type=int, nargs=2, metavar=("N", "M"), help="what differs between events N and M"),
        argument("--html", metavar="FILE", help="also write the run as one page"),
    ),
    flag("--reveal", "show the originals of masked values; recorded in the audit log"),
    CONFIG,
    JSON,
)
def show(arguments: argparse.Namespace) -> int:
    """Show a run as a timeline; or one event, what the model saw, or what changed between two events.

    examples:
      antiphon show --latest
      antiphon show 01a1dd44 --event 3
      antiphon show 01a1dd44 --context 6
      antiphon show 01a1dd44 --diff 6 10
      antiphon show golden/refund.antiphon --event 3
      antiphon show --latest --html run.html
    """
    from antiphon.ops.artifacts import open_run
    from antiphon.ops.bucket import is_address
    from antiphon.ops.runs import context_of, is_artifact, one_event, timeline

    check_run(arguments)
    artifact = arguments.run is not None and (is_artifact(arguments.run) or is_address(arguments.run))
    with application(arguments, temporary=artifact) as app:  # what is not in the store leaves nothing there
        manifest, reveal = open_run(app, arguments.run), arguments.reveal
        if reveal:
            _revealed(app, manifest.id, arguments)
        if arguments.event is not None:
            ui.print_json(one_event(app, manifest.id, arguments.event, reveal=reveal).to_wire())
        elif arguments.context is not None:
            _context(context_of(app, manifest.id, arguments.context, reveal=reveal), arguments.json)
        elif arguments.diff is not None:
            first, second = (one_event(app, manifest.id, seq, reveal=reveal) for seq in arguments.diff)
            _diff(first.payload, second.payload, arguments)
        else:
            tree = timeline(app, manifest)
            lines = list(_tree(tree))
            if arguments.html:
                from antiphon.ops.lines import run_file  # with all that compares runs

                Path(arguments.html).write_text(run_file(app, manifest), encoding="utf-8")
                lines.append(ui.dim(f"page: {arguments.html}"))
            ui.output(arguments, tree, lines)
    return 0


def _revealed(app: Any, run: str, arguments: argparse.Namespace) -> None:
    """Note who looked at originals; without one event to look at there is nothing to reveal."""
    from antiphon.ops.admin import audit_before

    chosen = [arguments.event, arguments.context, *(arguments.diff or ())]
    events = [seq for seq in chosen if seq is not None]
    if not events:
        raise InvalidInput("--reveal needs --event, --context or --diff.", hint="antiphon show RUN --event 3 --reveal")
    audit_before(app, "reveal", {"run": run, "events": events})


def _context(context: dict[str, Any], as_json: bool) -> None:
    request = context["request"]
    messages = request.get("messages") if isinstance(request, dict) else None
    if as_json or not isinstance(messages, list):
        ui.print_json(context)
        return
    rest = {name: value for name, value in request.items() if name != "messages"}
    rebuilt = ", rebuilt from the steps before it" if context.get("rebuilt") else ""
    print(ui.bold(f"{context['provider']} request at event {context['seq']}{rebuilt}"))
    for message in (entry for entry in messages if isinstance(entry, dict)):
        role = str(message.get("role", "?"))
        content = message.get("content")
        print(f"{ui.bold(ui.safe(role) + ':'):<12} {_lines(content) if isinstance(content, str) else ''}".rstrip())
        if not isinstance(content, str):
            ui.print_json({name: value for name, value in message.items() if name != "role"})
    if rest:
        print(ui.dim("with"))
        ui.print_json(rest)


def _lines(text: str) -> str:
    """A recorded text of several lines, as a terminal may show it."""
    return "\n".join(ui.safe(line) for line in text.split("\n"))


def _diff(left: Any, right: Any, arguments: argparse.Namespace) -> None:
    from antiphon._diff import diff_values

    found = diff_values(left, right)
    lines = [] if found else ["The two events are equal."]
    for diff in found:
        lines.append(ui.bold(diff.path))
        if isinstance(diff.left, str) and isinstance(diff.right, str):
            lines.append("  " + mark_words(_lines(diff.left), _lines(diff.right)).replace("\n", "\n  "))
        else:
            lines.append(f"  {ui.red('- ' + repr(diff.left))}\n  {ui.green('+ ' + repr(diff.right))}")
    ui.output(arguments, {"differences": [diff.to_wire() for diff in found]}, lines)


_OUTCOME = {"ok": ui.green, "error": ui.red, "denied": ui.yellow, "refusal": ui.yellow}


def _tree(run: dict[str, Any]) -> Iterator[str]:
    colour = _COLOUR.get(run["status"], ui.yellow)
    yield f"{ui.bold(ui.safe(run['name']))}  {run['id']}  {colour(run['status'])}"
    took = ui.duration(run["durationMs"])
    yield ui.dim(f"started {ui.when(run['startedAtMs'])}" + (f", took {took}" if took else ""))
    if run["sourceRun"]:
        yield ui.dim(f"replay of {ui.safe(run['sourceRun'])}")
    yield from _origin(run.get("imported"))
    yield from _nodes(run["timeline"], "")
    if run["stoppedAt"] is not None:
        why = "it is not finished" if run["status"] == "running" else "its process ended before the run finished"
        yield ui.yellow(f"the run stops after event {run['stoppedAt']}: {why}")
    if run["error"]:
        yield ui.red(_error(run["error"], "class"))
    elif run["output"] is not None:
        yield f"output  {_short(str(run['output']))}"
    yield from _sagas(run)
    counts = run["counts"]
    words = [plural(counts["nodes"], "node")] if counts["nodes"] else []
    words += [plural(counts["calls"], "tool call"), plural(counts["models"], "model call")]
    words += [plural(counts[name], word) for name, word in (("retries", "retry"), ("errors", "error")) if counts[name]]
    words += [f"{counts[name]} {name}" for name in ("reused", "blocked") if counts[name]]
    if counts["afterEnd"]:
        words.append(f"{counts['afterEnd']} after the end of the run")
    if "openWork" in run:
        words.append(f"{run['openWork']} of its threads and tasks were still running when it ended")
    if run["tokens"]["input"] or run["tokens"]["output"]:
        words.append(f"{run['tokens']['input']} + {run['tokens']['output']} tokens")
    if run["cost"] is not None:
        words.append(f"cost {run['cost']:.4f}")
    yield ui.dim(" · ".join(words))


_SHOWN_GAPS = 3


def _origin(imported: Any) -> Iterator[str]:
    """Where an imported run comes from, and what its format did not tell."""
    completeness = imported.get("completeness") if isinstance(imported, dict) else None
    if not isinstance(completeness, dict) or not isinstance(completeness.get("overall"), (int, float)):
        return
    gaps = [ui.safe(str(gap)) for gap in completeness.get("gaps") or ()]
    more = len(gaps) - _SHOWN_GAPS + int(completeness.get("moreGaps") or 0)
    yield ui.yellow(f"imported from {ui.safe(str(imported.get('format')))}, {completeness['overall']:.0%} complete")
    yield from (ui.dim(f"  {_short(gap)}") for gap in gaps[:_SHOWN_GAPS])
    if more > 0:
        yield ui.dim(f"  and {plural(more, 'more gap')}: antiphon show RUN --event 1")


def _sagas(run: dict[str, Any]) -> Iterator[str]:
    for saga in run["sagas"]:
        state = saga["state"]
        undone = sum(write.get("state") == "undone" for write in saga["writes"])
        colour = ui.green if state in ("closed", "undone") else ui.red if state == "stuck" else ui.yellow
        suffix = f"  {undone} undone" if undone else f"  {plural(saga['calls'], 'call')}" if state != "undone" else ""
        yield f"saga {ui.safe(saga['name'])}  {colour(ui.safe(state))}{suffix}"
        for write in saga["writes"]:
            if write.get("state") == "needs a person":
                yield ui.red(ui.safe(f"  needs a person: {write.get('tool')} {write.get('call')}: {write.get('why')}"))
        if state in ("interrupted", "stuck"):
            yield ui.yellow(f"  to undo what is left: antiphon runs undo {run['id']}")


def _nodes(nodes: list[dict[str, Any]], indent: str) -> Iterator[str]:
    for place, node in enumerate(nodes):
        last = place == len(nodes) - 1
        yield indent + ("└─ " if last else "├─ ") + _line(node)
        below = indent + ("   " if last else "│  ")
        for note in node["notes"]:
            yield below + _note(note)
        if node.get("error"):
            yield below + ui.red(_error(node["error"], "code"))
        yield from _nodes(node.get("children", []), below)


def _error(error: Any, kind: str) -> str:
    known = error if isinstance(error, dict) else {}
    return _short(f"{known.get(kind, '')}: {known.get('message', '')}")


def _short(text: str) -> str:
    text = ui.safe(text)
    return text if len(text) <= 200 else text[:199] + "…"


_ANSWERED = {"recording": "from the recording", "semantic": "from a similar recorded call", "live": "live"}


def _line(node: dict[str, Any]) -> str:
    meta = node["meta"]
    metadata = meta.get("metadata")
    answered = metadata.get("answeredBy") if isinstance(metadata, dict) else None
    name = node["name"] if node["kind"] != "llm" else f"model {node.get('model') or ''}".rstrip()
    parts = [ui.dim(f"{node['seq']:>4}"), ui.bold(ui.safe(name))]
    if node.get("what"):
        parts.append(ui.safe(node["what"]))
    if node.get("orphan"):
        parts.append(ui.yellow("orphan"))
    if node["outcome"] and answered != "blocked":
        colour = _OUTCOME.get(str(node["outcome"]), ui.plain)
        parts.append(colour(ui.safe(node["outcome"])))
    elif node["kind"] in ("tool", "llm", "mcp", "node"):
        parts.append(ui.yellow("no outcome recorded"))
    if meta.get("durationMs") is not None:
        parts.append(ui.dim(ui.duration(meta["durationMs"])))
    if meta.get("attempts", 1) > 1:
        parts.append(ui.yellow(f"{meta['attempts']} attempts"))
    if answered == "blocked":
        parts.append(ui.red("blocked"))
    elif answered or meta.get("fromCache"):
        parts.append(ui.yellow(_ANSWERED.get(str(answered), "reused")))
    if node.get("undo"):
        colour = _UNDONE.get(node["undo"], ui.red)
        parts.append(colour(ui.safe(node["undo"])))
    if node.get("undoes") is not None:
        parts.append(ui.dim(f"undoes {node['undoes']}"))
    if meta.get("breakerState"):
        parts.append(ui.yellow(ui.safe(f"breaker {meta['breakerState']}")))
    usage = meta.get("usage") or {}
    if usage.get("inputTokens") or usage.get("outputTokens"):
        parts.append(ui.dim(f"{usage.get('inputTokens') or 0}+{usage.get('outputTokens') or 0} tokens"))
    return "  ".join(parts)


def _note(note: dict[str, Any]) -> str:
    what = note.get("what") or ""
    details = ", ".join(
        f"{name} {value:.0f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in note.items()
        if name != "what"
    )
    return ui.yellow(ui.safe(f"· {what}" + (f" ({details})" if details else "")))


@command(
    argument("a", help="run id, a unique prefix, latest, or an artifact"),
    argument("b", help="the run to compare it with"),
    argument("--html", metavar="FILE", help="write the comparison as one page"),
    argument("--min-ars", type=ratio, default=0.0, metavar="X", help="the score required to pass"),
    flag("--all", "also ids and times that differ in every response"),
    CONFIG,
    JSON,
)
def diff(arguments: argparse.Namespace) -> int:
    """Compare two runs: calls added, dropped, changed, reordered; outputs; scores.

    examples:
      antiphon diff 01a1dd44 01a1dd4b
      antiphon diff golden/refund.antiphon latest --html diff.html

    exit codes: 0 equal, 1 different, 4 not found, 6 unreadable
    """
    from antiphon import scoring
    from antiphon.ops.artifacts import open_recording
    from antiphon.ops.compare import compare

    with application(arguments) as app:
        left, right = open_recording(app, arguments.a), open_recording(app, arguments.b)
        data = compare(app, left, right, min_ars=arguments.min_ars, every=arguments.all)
    lines = [ui.bold(f"{left.manifest.name} {left.manifest.id}  →  {right.manifest.name} {right.manifest.id}")]
    lines += _differences(data) if "structure" in data else _divergences(data)
    if data["hiddenIds"]:
        ids = plural(data["hiddenIds"], "id")
        lines.append(ui.dim(f"{ids} of model calls differ, as in any two runs; --all shows them"))
    if arguments.html:
        Path(arguments.html).write_text(scoring.render_report(data), encoding="utf-8")
        lines.append(ui.dim(f"report: {arguments.html}"))
    ui.output(arguments, data, lines)
    return 0 if data["equal"] else 1


def _divergences(data: dict[str, Any]) -> Iterator[str]:
    """A strict replay beside its recording."""
    if data["equal"]:
        yield ui.green("equal: the strict replay passed")
    for found in data["divergences"]:
        yield ui.red(f"  {ui.safe(str(found.get('message', '')))}")


def _differences(data: dict[str, Any]) -> Iterator[str]:
    from antiphon import scoring

    structure = data["structure"]
    if data["equal"]:
        yield ui.green(f"equal: {plural(structure['equal'], 'call')}, same outputs")
        return
    yield f"{plural(structure['equal'], 'call')} equal"
    for call in structure["added"]:
        yield ui.green(f"  + added    {call['name']} {shorten(call.get('arguments'), 160)}")
    for call in structure["dropped"]:
        yield ui.red(f"  - dropped  {call['name']} {shorten(call.get('arguments'), 160)}")
    for name, word in (("changed", "changed "), ("resultsChanged", "result  ")):
        for change in structure[name]:
            yield ui.yellow(f"  ~ {word} {change['name']}")
            for field in change["fields"]:
                yield f"      {_field(field)}"
    for call in structure["reordered"]:
        yield ui.yellow(f"  ⇅ moved    {call}")
    for number, (old, new) in enumerate(zip(data["outputsA"], data["outputsB"], strict=False)):
        if old != new:
            both = isinstance(old, str) and isinstance(new, str)
            yield f"  output {number}: {mark_words(old, new) if both else f'{shorten(old, 160)} → {shorten(new, 160)}'}"
    more = len(data["outputsB"]) - len(data["outputsA"])
    if more:
        yield f"  {abs(more)} output{'s' if abs(more) > 1 else ''} {'more' if more > 0 else 'fewer'}"
    for found in data["contradictions"]:
        yield ui.red(
            f"  contradiction: {found.get('kind')}, {found.get('recorded')!r} became {found.get('replayed')!r}"
        )
    if structure.get("sideEffectsChanged"):
        yield ui.red(f"  {plural(structure['sideEffectsChanged'], 'side effect')} changed")
    how = scoring.compared_text(data)
    yield ui.dim(f"ARS (Agent Regression Score) {data['ars']['score']:.3f} ({data['ars']['band']}); answers: {how}")


def _field(field: dict[str, Any]) -> str:
    """One difference; a side that has nothing there says so."""
    sides = [shorten(field[name], 80) if name in field else "absent" for name in ("recorded", "current")]
    return f"{field['path']}: {sides[0]} → {sides[1]}"
