"""Commands of operators: backup, restore, keys that seal."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from antiphon._diff import plural
from antiphon.cli import _ui as ui
from antiphon.cli._base import CONFIG, JSON, application, argument, command, flag
from antiphon.errors import InvalidInput, NotFound


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
        lines.append(f"there is no seal key yet, because nothing has been sealed: {arguments.seal_key} was not written")
    ui.output(arguments, result, lines)
    return 0


@command(
    argument("folder", type=Path, help="the folder of a backup"),
    argument("--seal-key", metavar="FILE", type=Path, help="the seal key of the backup, to be put in its place"),
    flag("--force", "replace the store that is there (it is moved aside), or go without the seal key"),
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
    runs, claims = plural(result["runsUnfinished"], "unfinished run"), plural(result["claimsInFlight"], "claim")
    unfinished = f"{runs} and {claims} in flight"
    lines.append(f"{unfinished}: the store does not know what they did after the backup. Look before you start a host:")
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
    from antiphon._seal import KEY_BYTES, key_id_of, read_keys, write_keys
    from antiphon.config.wiring import seal_key_file

    with application(arguments) as app:
        file = seal_key_file(app.config, app.store)
    if file is None:
        raise InvalidInput("No key file is configured.", hint="Name one: [store] seal_key_file.")
    keys = read_keys(file) if file.exists() else []
    by_id = {key_id_of(key): key for key in keys}
    if arguments.act in ("use", "remove") and arguments.id not in by_id:
        known = ", ".join(by_id) or "none"
        raise NotFound(f"There is no seal key {arguments.id!r} in {file}.", hint=f"Known: {known}.")
    if arguments.act == "rotate":
        keys = [os.urandom(KEY_BYTES), *keys]
    elif arguments.act == "add":
        keys = [*keys, os.urandom(KEY_BYTES)]
    elif arguments.act == "use":
        keys = [by_id[arguments.id], *(key for name, key in by_id.items() if name != arguments.id)]
    elif arguments.act == "remove":
        if arguments.id == key_id_of(keys[0]):
            raise InvalidInput(f"Key {arguments.id} is the one that seals.", hint="Use another one first.")
        if not arguments.force:
            raise InvalidInput(
                f"What was sealed with key {arguments.id} could never be read again. Nothing was removed.",
                hint="Results are kept as long as their TTL; secrets of webhooks until they are replaced. "
                "When nothing is left: --force",
            )
        keys = [key for name, key in by_id.items() if name != arguments.id]
    if arguments.act != "list":
        write_keys(file, keys)
    found = [{"id": key_id_of(key), "use": "seals" if not number else "unseals"} for number, key in enumerate(keys)]
    lines = [ui.table(("KEY", "USE"), [(one["id"], one["use"]) for one in found]) if found else "No seal key yet."]
    ui.output(arguments, {"file": str(file), "keys": found}, [*lines, ui.dim(f"file: {file}")])
    return 0
