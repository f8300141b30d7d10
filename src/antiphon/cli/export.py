"""``antiphon export``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from antiphon.cli._base import add_config, add_json, application, print_json, yellow
from antiphon.errors import InvalidInput

DESCRIPTION = (
    "Write a run as one readable JSON document (.antiphon, or .kurral by its ending), or send it to the bucket."
)
EXAMPLE = (
    "examples:\n  antiphon export --latest -o golden/triage.antiphon && jq .tool_calls golden/triage.antiphon\n"
    "  antiphon export --latest -o - | jq .llm_config\n"
    "  antiphon export --latest --upload    # to the bucket of [artifacts]; exit code 1 while anything waits for it\n"
    "  antiphon export --waiting            # send what earlier uploads could not"
)


def register(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument("run", nargs="?", help="run id or the beginning of one (default: the latest run)")
    parser.add_argument("--latest", action="store_true", help="the latest run")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="where to (default: artifacts/<id>.antiphon); - prints it"
    )
    parser.add_argument("--format", choices=["antiphon", "kurral"], help="default: by the file's ending")
    parser.add_argument("--upload", action="store_true", help="send it to the configured bucket")
    parser.add_argument("--waiting", action="store_true", help="only send what earlier uploads could not")
    add_config(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Export and say where it went; 1 if something still waits for its bucket."""
    from antiphon.ops.runs import find_run

    _check(arguments)
    with application(arguments) as app:
        if arguments.waiting:
            return _waiting(app, arguments.json)
        manifest = find_run(app, arguments.run)
        if arguments.upload:
            return _upload(app, manifest, arguments)
        path, size = _write(app, manifest, arguments)
    if arguments.output == "-":
        print(f"{manifest.id}  {size} bytes", file=sys.stderr)
    elif arguments.json:
        print_json({"run": manifest.id, "file": str(path), "bytes": size})
    else:
        print(f"{path}  {size} bytes")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    if arguments.run and arguments.latest:
        raise InvalidInput("Give a run id or --latest, not both.")
    if arguments.upload and arguments.output:
        raise InvalidInput("Give --upload or --output, not both.", hint="Export twice to have both.")
    if arguments.json and arguments.output == "-":
        raise InvalidInput("Give --json or --output -, not both.", hint="The artifact is JSON itself.")
    if arguments.waiting and (arguments.run or arguments.latest or arguments.upload or arguments.output):
        raise InvalidInput("--waiting sends what waits and nothing else.")


def _write(app: Any, manifest: Any, arguments: argparse.Namespace) -> tuple[Path, int]:
    from antiphon.ops.artifacts import export_run
    from antiphon.ops.storage import local_path

    if arguments.output == "-":
        return Path("-"), _print(app, manifest, arguments)
    if arguments.output is not None:
        path = Path(arguments.output)
    else:
        path = local_path(app, manifest, arguments.format or "antiphon")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"The folder {path.parent} cannot be made: {error.strerror}.") from None
    return path, export_run(app, manifest, path, arguments.format, progress=_progress(manifest.events))


def _print(app: Any, manifest: Any, arguments: argparse.Namespace) -> int:
    """Write to the standard output, which gets all of it or nothing, too."""
    import shutil
    import tempfile

    from antiphon.ops.artifacts import export_run

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        size = export_run(app, manifest, path, arguments.format, progress=_progress(manifest.events))
        with path.open("rb") as artifact:
            shutil.copyfileobj(artifact, sys.stdout.buffer)
    sys.stdout.buffer.flush()
    return size


def _progress(total: int) -> Any:
    """A line that counts events, on a terminal only."""
    from antiphon.cli._base import progress

    return lambda events: progress(events, total or None, "exporting, events") if sys.stderr.isatty() else events


def _upload(app: Any, manifest: Any, arguments: argparse.Namespace) -> int:
    from antiphon.config.buckets import bucket_of
    from antiphon.ops.storage import keep

    bucket_of(app.config.artifacts)  # says what is missing before anything is written
    kept = keep(app, manifest, arguments.format or "antiphon")
    if arguments.json:
        print_json({"run": manifest.id, **kept._asdict()})
    else:
        print(f"{kept.place}  {kept.bytes} bytes")
        _complain(kept)
    return 1 if kept.waiting else 0


def _waiting(app: Any, as_json: bool) -> int:
    from antiphon.ops.storage import send_waiting

    kept = send_waiting(app)
    if as_json:
        print_json(kept._asdict())
    elif kept.waiting:
        _complain(kept, "object")
    else:
        print(f"nothing waits for {kept.place}")
    return 1 if kept.waiting else 0


def _complain(kept: Any, what: str = "artifact") -> None:
    if kept.waiting:
        files = f"1 {what} waits" if kept.waiting == 1 else f"{kept.waiting} {what}s wait"
        print(yellow(f"{files} for the bucket: {kept.trouble}"), file=sys.stderr)
        print(yellow("Kept in the outbox of the state folder; send again: antiphon export --waiting"), file=sys.stderr)
