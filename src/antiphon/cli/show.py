"""``antiphon show``."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from antiphon.cli._base import (
    add_config,
    add_json,
    application,
    bold,
    dim,
    duration,
    green,
    print_json,
    red,
    safe,
    when,
    yellow,
)
from antiphon.errors import InvalidInput

DESCRIPTION = "Show a run as a timeline; or one event, what the model saw, or what changed between two events."
EXAMPLE = (
    "examples:\n  antiphon show --latest\n  antiphon show 01a1dd44 --event 3\n"
    "  antiphon show 01a1dd44 --context 6\n  antiphon show 01a1dd44 --diff 6 10"
)


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", nargs="?", help="run id or the beginning of one (default: the latest run)")
    parser.add_argument("--latest", action="store_true", help="the latest run")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--event", type=int, metavar="N", help="one event, whole")
    what.add_argument("--context", type=int, metavar="N", help="exactly what the model saw at event N")
    what.add_argument("--diff", type=int, nargs=2, metavar=("N", "M"), help="what differs between events N and M")
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Print what was asked for."""
    from antiphon.ops import views
    from antiphon.ops.runs import find_run

    if arguments.run and arguments.latest:
        raise InvalidInput("Give a run id or --latest, not both.")
    with application(arguments) as app:
        manifest = find_run(app, arguments.run)
        if arguments.event is not None:
            print_json(views.one_event(app, manifest.id, arguments.event).to_wire())
        elif arguments.context is not None:
            _context(views.context_of(app, manifest.id, arguments.context), arguments.json)
        elif arguments.diff is not None:
            first, second = (views.one_event(app, manifest.id, seq) for seq in arguments.diff)
            _diff(first.payload, second.payload, arguments.json)
        else:
            tree = views.timeline(app, manifest)
            if arguments.json:
                print_json(tree)
            else:
                print("\n".join(_tree(tree)))
    return 0


def _context(context: dict[str, Any], as_json: bool) -> None:
    request = context["request"]
    messages = request.get("messages") if isinstance(request, dict) else None
    if as_json or not isinstance(messages, list):
        print_json(context)
        return
    rest = {name: value for name, value in request.items() if name != "messages"}
    print(bold(f"{context['provider']} request at event {context['seq']}"))
    for message in (entry for entry in messages if isinstance(entry, dict)):
        role = str(message.get("role", "?"))
        content = message.get("content")
        print(f"{bold(safe(role) + ':'):<12} {_lines(content) if isinstance(content, str) else ''}".rstrip())
        if not isinstance(content, str):
            print_json({name: value for name, value in message.items() if name != "role"})
    if rest:
        print(dim("with"))
        print_json(rest)


def _lines(text: str) -> str:
    """A recorded text of several lines, as a terminal may show it."""
    return "\n".join(safe(line) for line in text.split("\n"))


def _diff(left: Any, right: Any, as_json: bool) -> None:
    from antiphon._differ import diff_values, mark_words

    found = diff_values(left, right)
    if as_json:
        print_json({"differences": [diff.to_wire() for diff in found]})
        return
    if not found:
        print("The two events are equal.")
    for diff in found:
        print(bold(diff.path))
        if isinstance(diff.left, str) and isinstance(diff.right, str):
            print("  " + mark_words(_lines(diff.left), _lines(diff.right)).replace("\n", "\n  "))
        else:
            print(f"  {red('- ' + repr(diff.left))}\n  {green('+ ' + repr(diff.right))}")


_OUTCOME = {"ok": green("ok"), "error": red("error"), "denied": yellow("denied"), "refusal": yellow("refusal")}


def _tree(run: dict[str, Any]) -> Iterator[str]:
    colour = {"completed": green, "failed": red}.get(run["status"], yellow)
    yield f"{bold(safe(run['name']))}  {run['id']}  {colour(run['status'])}"
    took = duration(run["durationMs"])
    yield dim(f"started {when(run['startedAtMs'])}" + (f", took {took}" if took else ""))
    if run["sourceRun"]:
        yield dim(f"replay of {safe(run['sourceRun'])}")
    yield from _nodes(run["timeline"], "")
    if run["stoppedAt"] is not None:
        why = "it is not finished" if run["status"] == "running" else "its process ended before it was finished"
        yield yellow(f"the run stops after event {run['stoppedAt']}: {why}")
    if run["error"]:
        yield red(_error(run["error"], "class"))
    elif run["output"] is not None:
        yield f"output  {_short(str(run['output']))}"
    counts = run["counts"]
    words = [f"{counts['nodes']} nodes"] if counts["nodes"] else []
    words += [f"{counts['calls']} tool calls", f"{counts['models']} model calls"]
    words += [f"{counts[name]} {name}" for name in ("retries", "reused", "blocked", "errors") if counts[name]]
    if run["tokens"]["input"] or run["tokens"]["output"]:
        words.append(f"{run['tokens']['input']} + {run['tokens']['output']} tokens")
    if run["cost"] is not None:
        words.append(f"cost {run['cost']:.4f}")
    yield dim(" · ".join(words))


def _nodes(nodes: list[dict[str, Any]], indent: str) -> Iterator[str]:
    for place, node in enumerate(nodes):
        last = place == len(nodes) - 1
        yield indent + ("└─ " if last else "├─ ") + _line(node)
        below = indent + ("   " if last else "│  ")
        for note in node["notes"]:
            yield below + _note(note)
        if node.get("error"):
            yield below + red(_error(node["error"], "code"))
        yield from _nodes(node.get("children", []), below)


def _error(error: Any, kind: str) -> str:
    known = error if isinstance(error, dict) else {}
    return _short(f"{known.get(kind, '')}: {known.get('message', '')}")


def _short(text: str) -> str:
    text = safe(text)
    return text if len(text) <= 200 else text[:199] + "…"


def _line(node: dict[str, Any]) -> str:
    meta = node["meta"]
    name = node["name"] if node["kind"] != "llm" else f"model {node.get('model') or ''}".rstrip()
    parts = [dim(f"{node['seq']:>4}"), bold(safe(name))]
    if node.get("what"):
        parts.append(safe(node["what"]))
    if node.get("orphan"):
        parts.append(yellow("orphan"))
    if node["outcome"]:
        parts.append(_OUTCOME.get(str(node["outcome"])) or safe(node["outcome"]))
    elif node["kind"] in ("tool", "llm", "mcp", "node"):
        parts.append(yellow("no outcome recorded"))
    if meta.get("durationMs") is not None:
        parts.append(dim(duration(meta["durationMs"])))
    if meta.get("attempts", 1) > 1:
        parts.append(yellow(f"{meta['attempts']} attempts"))
    if meta.get("fromCache"):
        parts.append(yellow("reused"))
    if meta.get("breakerState"):
        parts.append(yellow(safe(f"breaker {meta['breakerState']}")))
    usage = meta.get("usage") or {}
    if usage.get("inputTokens") or usage.get("outputTokens"):
        parts.append(dim(f"{usage.get('inputTokens') or 0}+{usage.get('outputTokens') or 0} tokens"))
    return "  ".join(parts)


def _note(note: dict[str, Any]) -> str:
    what = note.get("what") or ""
    details = ", ".join(
        f"{name} {value:.0f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in note.items()
        if name != "what"
    )
    return yellow(safe(f"· {what}" + (f" ({details})" if details else "")))
