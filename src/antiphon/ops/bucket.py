"""Artifacts in the configured bucket, read by run id, unique prefix or ``s3://`` address (K7)."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from antiphon.config.wiring import bucket_of, objects_of
from antiphon.errors import InvalidInput, NotFound
from antiphon.ops.app import Antiphon

SCHEME = "s3://"
_SUFFIXES = (".antiphon", ".kurral")
_LONGEST = 120
_PARTS = 6
"""Tenant, name, kind, year, month, file."""


class Stored(NamedTuple):
    """An artifact in the bucket, as its name describes it."""

    name: str
    """Below the configured prefix."""
    address: str
    run: str
    title: str
    month: str
    replay: bool

    def to_wire(self) -> dict[str, Any]:
        """The JSON form."""
        found = {"id": self.run, "name": self.title, "month": self.month, "replay": self.replay}
        return {**found, "address": self.address}


def is_address(wanted: str) -> bool:
    """Whether *wanted* names something in a bucket."""
    return wanted.startswith(SCHEME)


def is_remote(app: Antiphon) -> bool:
    """Whether artifacts go to a bucket."""
    return app.config.artifacts.backend != "local"


def address_of(app: Antiphon, name: str = "") -> str:
    """The address of an object below the configured prefix."""
    bucket = bucket_of(app.config.artifacts)
    return f"{SCHEME}{bucket.name}/" + (f"{bucket.prefix}/" if bucket.prefix else "") + name


def stored_runs(app: Antiphon, below: str = "") -> Iterator[Stored]:
    """The artifacts of this tenant; with *below* (an address or part of one), only those under it."""
    start = _name(app, below) if below else f"{part_of(app.tenant)}/"
    for name in objects_of(app.config.artifacts).names(start[: start.rfind("/") + 1]):
        parts = name.split("/")
        if name.startswith(start) and len(parts) == _PARTS and name.endswith(_SUFFIXES):
            run = unquote(PurePosixPath(name).stem)
            month = "/".join(parts[3:5])
            yield Stored(name, address_of(app, name), run, unquote(parts[1]), month, parts[2] == "replay_runs")


def find(app: Antiphon, wanted: str) -> Stored | None:
    """The artifact of the run *wanted* (an id or unique prefix); our format before ``.kurral``."""
    fitting: dict[str, Stored] = {}
    for found in stored_runs(app):
        if found.run.startswith(wanted) and (found.run not in fitting or found.name.endswith(_SUFFIXES[0])):
            fitting[found.run] = found
    if wanted in fitting:
        return fitting[wanted]
    if len(fitting) > 1:
        listed = ", ".join(f"{found.run} ({found.title})" for found in list(fitting.values())[:10])
        raise NotFound(
            f"{wanted!r} matches several runs in the bucket.", hint=f"Candidates: {listed}", code="ambiguous"
        )
    return next(iter(fitting.values()), None)


@contextmanager
def fetched(app: Antiphon, address: str) -> Iterator[Path]:
    """The object at *address* as a temporary file."""
    name = _name(app, address)
    with tempfile.TemporaryDirectory(prefix="antiphon-") as folder:
        yield download(app, name, Path(folder))


def download(app: Antiphon, name: str, folder: Path) -> Path:
    """An object of the bucket, written into *folder*."""
    try:
        content = objects_of(app.config.artifacts).get(name)
    except NotFound:
        raise NotFound(
            f"There is no {address_of(app, name)}.", hint="List what is there: antiphon runs --bucket"
        ) from None
    own = folder / hashlib.sha256(name.encode()).hexdigest()[:16]  # two folders may hold artifacts of the same name
    own.mkdir(exist_ok=True)
    path = own / PurePosixPath(name).name
    path.write_bytes(content)
    return path


def part_of(text: str) -> str:
    """Any text as one path segment."""
    quoted = quote(text, safe=" ") or "_"
    if len(quoted) > _LONGEST:
        quoted = f"{quoted[: _LONGEST - 20]}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    return "%2E" + quoted[1:] if quoted.startswith(".") else quoted


def _name(app: Antiphon, address: str) -> str:
    """The name below the configured prefix; nothing outside the bucket and nothing of another tenant is read."""
    if not is_remote(app):
        raise InvalidInput(
            f"{address} cannot be read: no bucket is configured.",
            hint='Set backend = "s3" and bucket = "…" under [artifacts] in antiphon.toml.',
        )
    root = address_of(app)
    if not (f"{address.rstrip('/')}/" if address.rstrip("/") + "/" == root else address).startswith(root):
        raise InvalidInput(f"{address} is not in the configured bucket, {root}.", hint="See [artifacts].")
    name = address[len(root) :]
    own = f"{part_of(app.tenant)}/"
    if name and not (name.startswith(own) or own.startswith(name)):
        raise InvalidInput(f"{address} belongs to another tenant than {app.tenant}.")
    return name if name.startswith(own) else own
