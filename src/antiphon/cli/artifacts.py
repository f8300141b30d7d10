"""Commands about files: export, import, and the search for secrets."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from antiphon._diff import plural
from antiphon.cli import _ui as ui
from antiphon.cli._base import CONFIG, JSON, RUN, application, argument, check_run, command, exit_code, flag
from antiphon.errors import InvalidInput, NotFound


@command(
    *RUN,
    argument(
        "-o", "--output", metavar="FILE", help="output file (default: artifacts/<id>.antiphon); - for standard output"
    ),
    argument("--format", choices=["antiphon", "kurral"], help="default: by file extension"),
    flag("--upload", "upload it to the configured bucket"),
    flag("--waiting", "only retry pending uploads"),
    CONFIG,
    JSON,
)
def export(arguments: argparse.Namespace) -> int:
    """Write a run as one readable JSON document (.antiphon, or .kurral by extension), or upload it to the bucket.

    examples:
      antiphon export --latest -o golden/triage.antiphon && jq .tool_calls golden/triage.antiphon
      antiphon export --latest -o - | jq .llm_config
      antiphon export --latest --upload    # to the bucket of [artifacts]; exit code 1 while uploads are pending
      antiphon export --waiting            # send what earlier uploads could not
    """
    from antiphon.ops.golden import steps_with_key
    from antiphon.ops.runs import find_run

    _check(arguments)
    with application(arguments) as app:
        if arguments.waiting:
            return _waiting(app, arguments)
        manifest = find_run(app, arguments.run)
        if arguments.upload:
            return _upload(app, manifest, arguments)
        path, size = _write(app, manifest, arguments)
        steps = steps_with_key(app, manifest)
    if arguments.output == "-":
        print(f"{manifest.id}  {size} bytes", file=sys.stderr)
    else:
        wire = {"run": manifest.id, "file": str(path), "bytes": size, "needsKey": steps}
        ui.output(arguments, wire, f"{path}  {size} bytes")
    if steps and not arguments.json:
        note = "These steps need the key in CI (ANTIPHON_REPLAY_KEY, see antiphon replay-key):"
        print("\n  ".join((note, *steps)), file=sys.stderr)
    if manifest.tags.get("openWork") and not arguments.json:
        note = "work that the run started may still be running: the artifact is incomplete; export it again later"
        print(f"antiphon: {note}", file=sys.stderr)
    return 0


@command(CONFIG, JSON)
def replay_key(arguments: argparse.Namespace) -> int:
    """Print the key that opens the originals of recordings made with this store, for ANTIPHON_REPLAY_KEY elsewhere.

    It opens recordings only, never claim records. Keep it where the other secrets of your CI are.

    example:
      antiphon replay-key | gh secret set ANTIPHON_REPLAY_KEY
    """
    from antiphon.config.wiring import sealer_of
    from antiphon.ops.admin import audit_before

    with application(arguments) as app:
        sealer = sealer_of(app.config, app.store)()
        if sealer is None:
            raise NotFound(
                "This store has no seal key, so its recordings hold no originals.",
                hint="Name a key file: [store] seal_key_file.",
            )
        audit_before(app, "replay-key", {})
    key = sealer.replay_key.hex()
    ui.output(arguments, {"replayKey": key}, key)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    check_run(arguments)
    if arguments.upload and arguments.output:
        raise InvalidInput("Give --upload or --output, not both.", hint="Export twice to have both.")
    if arguments.json and arguments.output == "-":
        raise InvalidInput("Give --json or --output -, not both.", hint="The artifact is JSON itself.")
    if arguments.waiting and (arguments.run or arguments.latest or arguments.upload or arguments.output):
        raise InvalidInput("--waiting cannot be combined with a run or an output.")


def _write(app: Any, manifest: Any, arguments: argparse.Namespace) -> tuple[Path, int]:
    """Export to a file; the standard output gets all of it or nothing, too."""
    import shutil
    import tempfile

    from antiphon.ops.artifacts import export_run
    from antiphon.ops.storage import local_path

    if arguments.output == "-":
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "run")
            size = export_run(app, manifest, path, arguments.format, progress=ui.progress)
            with path.open("rb") as artifact:
                shutil.copyfileobj(artifact, sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return path, size
    path = Path(arguments.output) if arguments.output else local_path(app, manifest, arguments.format or "antiphon")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"The folder {path.parent} cannot be created: {error.strerror}.") from None
    return path, export_run(app, manifest, path, arguments.format, progress=ui.progress)


def _upload(app: Any, manifest: Any, arguments: argparse.Namespace) -> int:
    from antiphon.config.wiring import bucket_of
    from antiphon.ops.storage import keep

    bucket_of(app.config.artifacts)  # reports what is missing before anything is written
    kept = keep(app, manifest, arguments.format or "antiphon", progress=ui.progress)
    ui.output(arguments, {"run": manifest.id, **kept._asdict()}, f"{kept.place}  {kept.bytes} bytes")
    return _complain(kept, "artifact", arguments.json)


def _waiting(app: Any, arguments: argparse.Namespace) -> int:
    from antiphon.ops.storage import send_waiting

    kept = send_waiting(app)
    if arguments.json:
        ui.print_json(kept._asdict())
    elif not kept.waiting:
        print(f"no uploads pending for {kept.place}")
    return _complain(kept, "object", arguments.json)


def _complain(kept: Any, what: str, as_json: bool) -> int:
    """The exit code; a person is told what waits for the bucket, and why."""
    if kept.waiting and not as_json:
        files = f"1 {what} waits" if kept.waiting == 1 else f"{kept.waiting} {what}s wait"
        print(ui.yellow(f"{files} for the bucket: {kept.trouble}"), file=sys.stderr)
        print(
            ui.yellow("Stored in the outbox of the state folder; retry with: antiphon export --waiting"),
            file=sys.stderr,
        )
    return 1 if kept.waiting else 0


@command(
    argument("files", nargs="+", metavar="FILE", help="file or folder, run id in the bucket, or s3://…"),
    flag("--dry-run", "only check the files and say how complete they are; store nothing"),
    flag("--gaps", "name every gap of runs of other formats"),
    CONFIG,
    JSON,
)
def import_(arguments: argparse.Namespace) -> int:
    """Read runs into the store: artifacts (.antiphon), and runs of other formats (.kurral, ATIF trajectories,
    OpenTelemetry traces as OTLP JSON). A file that cannot be read changes nothing, and the other files are read.

    A format that tells less than a recording of ours is imported with a figure of how complete it is, by field.

    examples:
      antiphon import golden/*.antiphon
      antiphon import 01a1dd44                # from the bucket of [artifacts]
      antiphon import s3://our-bucket/team/billing/artifacts/2026/11/01a1dd44.antiphon
      antiphon import jobs/                   # every trajectory and trace below a folder
      antiphon import jobs/ --dry-run --gaps  # how complete they are, and what is missing
    """
    from antiphon.ops.artifacts import ImportResult, import_all

    with application(arguments) as app:
        done: ImportResult = import_all(app, arguments.files, dry_run=arguments.dry_run, progress=ui.progress)
    if len(arguments.files) == 1 and not done.runs and len(done.failed) == 1:
        raise done.failed[0][1]
    for name, error in done.failed:
        message = error.message if name in error.message else f"{name}: {error.message}"
        print(ui.red(f"antiphon: {ui.safe(message)}"), file=sys.stderr)
    if arguments.json:
        ui.print_json(done.to_wire())
    else:
        for line in _imported(done, arguments):
            print(line)
    return exit_code(done.failed[0][1]) if done.failed else 0


def _imported(done: Any, arguments: argparse.Namespace) -> Iterator[str]:
    for one in done.runs:
        completeness = one.get("completeness")
        note = ui.yellow("  edited after it was written") if one["altered"] else ""
        much = "" if completeness is None else f"  {completeness['overall']:.0%} complete"
        yield f"{ui.safe(one['file'])}  {one['run']}{much}{note}"
        if completeness is not None and arguments.gaps:
            yield from (f"  {ui.safe(gap)}" for gap in completeness["gaps"])
            if completeness["moreGaps"]:
                yield f"  and {completeness['moreGaps']} more"
    whole = done.completeness()
    if whole is not None:
        yield ""
        rows = [
            (name, f"{count['present']} of {count['of']}", f"{count['present'] / count['of']:.0%}")
            for name, count in whole["fields"].items()
        ]
        rows.append((f"overall, {plural(whole['runs'], 'run')}", "", f"{whole['overall']:.0%}"))
        yield ui.table(("FIELD", "PRESENT", "SHARE"), rows, right=(1, 2))
    if done.skipped:
        yield ui.dim(f"{plural(len(done.skipped), 'file')} of other kinds skipped")
    if arguments.dry_run:
        yield ui.dim("nothing was stored (--dry-run)")


@command(argument("paths", nargs="+", metavar="PATH"), CONFIG, JSON)
def scan(arguments: argparse.Namespace) -> int:
    """Search files or folders for secrets. The secrets themselves are never printed. Exit code 1 if any are found.

    example:
      antiphon scan golden/    # as a pre-commit or CI step
    """
    from antiphon.config.load import load
    from antiphon.config.wiring import rules_of
    from antiphon.redact import files_below, scan_path

    rules = msgspec.structs.replace(rules_of(load(arguments.config).config), personal=False)
    files = []
    for name in arguments.paths:
        if not Path(name).exists():
            raise NotFound(f"There is no {name}.")
        files += list(files_below(Path(name)))
    scanned = (list(scan_path(file, rules)) for file in files)
    found = [finding for findings in ui.progress(scanned, len(files), "scanning, files") for finding in findings]
    lines = [f"{finding.file}: {finding.where}: {finding.kind} ({finding.fingerprint})" for finding in found]
    many = ui.red(f"{len(found)} secret{'s' if len(found) > 1 else ''} found")
    lines.append(many if found else ui.green("no secrets found"))
    ui.output(arguments, {"findings": [finding._asdict() for finding in found]}, lines)
    return 1 if found else 0
