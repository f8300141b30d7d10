"""Verdicts of golden tests: the last one of each artifact, for the console.

A golden test replays in a temporary store, and has to work without a configured one. So its verdict, and the comparison
that explains a failure, are one small file in the state folder of the project, if there is one. The verdict applies to
the content of the artifact: once that changes, it says so.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import orjson

from antiphon.config.place import state_place
from antiphon.contract.events import RunManifest
from antiphon.errors import ConfigError, InvalidInput, NotFound
from antiphon.ops.app import Antiphon
from antiphon.ops.artifacts import export_run, manifest_at, open_recording
from antiphon.ops.compare import compare
from antiphon.ops.runs import find_run, is_audit, load_recording, real_status, summary
from antiphon.scoring.html import report_view

FOLDER = "golden"
_LARGEST = 1_000_000
"""Comparisons up to this many bytes are kept whole; of larger ones only the divergences."""
_FIRST = 20
_LOOKED = 200
_OFFERED = 20
_ENDED = ("completed", "failed")


class Tested(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """The last verdict on one artifact, as it is kept."""

    id: str
    tenant: str
    path: str
    """Its display name: relative to the folder of the test, or an address in the bucket."""
    file: str = ""
    """Its path on this machine; empty if it is in the bucket."""
    digest: str = ""
    at_ms: int
    status: str
    """``pass``, ``fail`` or ``error``, like ``antiphon test``."""
    reasons: list[str] = []
    seconds: float = 0.0
    node: str = ""
    """The pytest test that it belongs to."""
    run: str = ""
    name: str = ""
    entry: str = ""
    event: int | None = None
    """The recorded event of the first divergence."""
    replay_type: str = ""
    ars: float | None = None
    view: dict[str, Any] | None = None


# -- writing ---------------------------------------------------------------------------------------------------------


def keep(
    path: Path | str,
    status: str,
    reasons: Sequence[str],
    report: dict[str, Any],
    *,
    tenant: str,
    seconds: float = 0.0,
    node: str = "",
    address: str = "",
) -> bool:
    """Store a verdict, with secrets masked as in *report*. False if no project keeps state.

    An artifact that was only checked, because it names no entry point, says nothing about the code.
    """
    if status == "pass" and report.get("executed") is False:
        return False
    try:
        folder = state_place().folder
        if not folder.is_dir():
            return False
        file = "" if address else str(Path(path).absolute())
        head = None if report else manifest_at(Path(path))
        found = Tested(
            id=hashlib.sha256(f"{tenant}\0{address or file}".encode("utf-8", "surrogateescape")).hexdigest()[:16],
            tenant=tenant,
            path=address or os.path.relpath(file),
            file=file,
            digest=_digest(file) if file else "",
            at_ms=int(time.time() * 1000),
            status=status,
            reasons=[*reasons],
            seconds=round(seconds, 3),
            node=node,
            run=str(report.get("sourceRun", "")),
            name=str(report.get("title", "")) if head is None else head.name,
            entry=str(report.get("entry") or "") if head is None else head.entry or "",
            event=_event(report),
            replay_type=str(report.get("replayType", "")),
            ars=(report.get("ars") or {}).get("score"),
            view=None if status == "pass" or not report else _view(report),
        )
        folder = folder / FOLDER
        folder.mkdir(exist_ok=True)
        partial = folder / f".{found.id}.{os.getpid()}.part"
        partial.write_bytes(orjson.dumps(msgspec.to_builtins(found)))
        partial.replace(folder / f"{found.id}.json")
    except (OSError, ConfigError, TypeError, ValueError):  # failing to store a verdict does not change it
        return False
    return True


def _event(report: Mapping[str, Any]) -> int | None:
    for found in report.get("divergences") or ():
        at = found.get("seq", found.get("nearest"))
        if at is not None:
            return int(at)
    return None


def _view(report: dict[str, Any]) -> dict[str, Any]:
    found = report_view(report)
    if len(orjson.dumps(found, default=str)) <= _LARGEST:
        return found
    kept = ("sourceRun", "title", "replayType", "verdict", "verdictReasons", "ars", "determinismScore")
    short: dict[str, Any] = {name: report[name] for name in kept if name in report}
    short["divergences"] = list(report.get("divergences") or ())[:_FIRST]
    return report_view(short)


def _digest(file: str) -> str:
    found = Path(file).stat()
    return _digest_of(file, found.st_size, found.st_mtime_ns)


@functools.lru_cache(1_024)
def _digest_of(file: str, size: int, changed_ns: int) -> str:
    with Path(file).open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


# -- reading ---------------------------------------------------------------------------------------------------------


def verdicts(app: Antiphon) -> list[dict[str, Any]]:
    """The golden tests of a tenant: failed ones first, then the newest. Artifacts that no longer exist are left out."""
    found = [wire for one in _all(app) if (wire := _to_wire(one)) is not None]
    return sorted(found, key=lambda one: (one["status"] not in ("fail", "error"), -one["atMs"], one["path"]))


def failed(app: Antiphon) -> list[dict[str, Any]]:
    """Those that need attention."""
    return [one for one in verdicts(app) if one["status"] in ("fail", "error")]


def verdict(app: Antiphon, wanted: str) -> dict[str, Any]:
    """One of them, with the comparison that explains it, and the runs that could replace its recording."""
    found, wire = _find(app, wanted)
    return {**wire, "view": found.view, "candidates": [summary(one) for one in _candidates(app, found)]}


def _all(app: Antiphon) -> list[Tested]:
    try:
        paths = sorted((state_place().folder / FOLDER).glob("*.json"))
    except (OSError, ConfigError):
        return []
    return [one for path in paths if (one := _read(app, path)) is not None]


def _read(app: Antiphon, path: Path) -> Tested | None:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Tested)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.tenant == app.tenant else None


def _to_wire(found: Tested) -> dict[str, Any] | None:
    """A verdict as of now; ``changed`` if the artifact was modified since. ``None`` if it no longer exists."""
    status = found.status
    if found.file:
        try:
            status = status if _digest(found.file) == found.digest else "changed"
        except OSError:
            return None
    path = shlex.quote(found.path)
    commands = {
        "test": f"pytest {shlex.quote(found.node)}" if found.node else f"antiphon test {path}",
        "record": f"antiphon run {shlex.quote(found.entry)}" if found.entry and not found.node else "",
        "accept": f"pytest --antiphon-rewrite {shlex.quote(found.node)}" if found.node else "",
    }
    if not found.node and found.file:
        commands["accept"] = f"antiphon export RUN -o {path}"
    return {
        "id": found.id,
        "path": found.path,
        "status": status,
        "atMs": found.at_ms,
        "reasons": found.reasons,
        "seconds": found.seconds,
        "node": found.node or None,
        "run": found.run or None,
        "name": found.name,
        "entry": found.entry or None,
        "event": found.event,
        "replayType": found.replay_type or None,
        "ars": found.ars,
        "commands": {name: text for name, text in commands.items() if text},
    }


def _find(app: Antiphon, wanted: str) -> tuple[Tested, dict[str, Any]]:
    found = wire = None
    if re.fullmatch(r"[0-9a-f]{16}", wanted):
        with contextlib.suppress(ConfigError):
            found = _read(app, state_place().folder / FOLDER / f"{wanted}.json")
        wire = None if found is None else _to_wire(found)
    if found is None or wire is None:
        raise NotFound(f"There is no golden test {wanted[:64]!r} here.", hint="List them: GET /v1/golden")
    return found, wire


# -- accepting a new recording ---------------------------------------------------------------------------------------


def _fits(found: Tested, manifest: RunManifest) -> bool:
    own = not is_audit(manifest) and manifest.source_run is None and "imported" not in manifest.tags
    same = manifest.entry == found.entry if found.entry else manifest.name == found.name
    return own and same and manifest.id != found.run and real_status(manifest) in _ENDED


def _candidates(app: Antiphon, found: Tested) -> list[RunManifest]:
    """The newest finished runs of the same agent, among the newest with that name."""
    if found.node or not found.file or not found.name:
        return []
    newest = app.journal.runs(tenant=app.tenant, name=found.name, limit=_LOOKED)
    return list(itertools.islice((one for one in newest if _fits(found, one)), _OFFERED))


def accept(app: Antiphon, wanted: str, run: str, *, digest: str = "", dry_run: bool = False) -> dict[str, Any]:
    """Write *run* over the artifact of a golden test. A dry run makes every check and shows both side by side.

    With *digest* only if the artifact is unchanged since the dry run that showed it.
    """
    found, wire = _find(app, wanted)
    if found.node or not found.file:
        where = "a test of pytest" if found.node else "an artifact in the bucket"
        command = wire["commands"].get("accept", "antiphon export RUN --upload")
        raise InvalidInput(f"{found.path} is {where}: it is recorded again with its own command.", hint=command)
    manifest = find_run(app, run)
    if not _fits(found, manifest):
        raise InvalidInput(
            f"Run {manifest.id} cannot replace {found.path}: it must be a finished run of this agent, not a replay.",
            hint=wire["commands"].get("record"),
            path="$.run",
        )
    there = _digest(found.file)
    if digest and digest != there:
        raise InvalidInput(
            f"{found.path} has changed since it was shown. Nothing was replaced.",
            hint="Look at it again.",
            path="$.digest",
        )
    answer = {"id": found.id, "path": found.path, "run": manifest.id, "digest": there}
    if not dry_run:
        return {**answer, "bytes": export_run(app, manifest, Path(found.file))}
    from antiphon.stores import MemoryStore

    beside = Antiphon(app.loaded, store=MemoryStore(), tenant=app.tenant, workspace=app.workspace)
    beside.keys = app.keys  # equal secrets look the same on both sides
    data = compare(app, open_recording(beside, found.file), load_recording(app, manifest))
    return {**answer, "dryRun": True, "equal": data["equal"], "view": report_view(data)}
