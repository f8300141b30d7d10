"""The seal keys of a store: which are available, and which are missing although something is sealed with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from antiphon._diff import plural
from antiphon._seal import Sealer, key_id_in, key_ids
from antiphon.config.wiring import seal_key_file
from antiphon.contract.events import RunManifest
from antiphon.errors import StoreError
from antiphon.ops.app import Antiphon

_CLAIMS = 10_000
"""How many of the newest claims are checked for the key of their results."""
_RUNS = 1_000
"""How many of the newest recordings are checked for the key of their originals."""


class KeyProblem(NamedTuple):
    """What is wrong with the keys, and what to do."""

    level: str
    message: str
    hint: str


class SealKeys(NamedTuple):
    """The keys of a store."""

    file: Path | None
    known: list[str]
    missing: list[str]
    """Keys that results of calls are sealed with and that are missing."""
    troubles: list[KeyProblem]


def seal_keys(app: Antiphon) -> SealKeys:
    """Check the keys of the store and what is sealed in it; creates no key."""
    file, given = seal_key_file(app.config, app.store), getattr(app.store, "seal_key", None)
    known: list[str] = []
    troubles: list[KeyProblem] = []
    try:
        if given is not None:
            known = (Sealer.from_text(given) if isinstance(given, str) else Sealer(given)).key_ids
        elif file is not None and file.exists():
            known = key_ids(file)
    except StoreError as error:
        troubles.append(KeyProblem("error", error.message, error.hint))
    where = "which is not configured here" if file is None else f"which is not in {file}"
    results = {key: n for key, n in _sealed_with(app).items() if key not in known}
    for key, n in results.items():
        text = f"{plural(n, 'result')} of calls {'is' if n == 1 else 'are'} sealed with key {key}, {where}"
        hint = "Restore the key from its backup. Until then a repeat of such a call fails with result_not_kept."
        troubles.append(KeyProblem("warning", text, hint))
    recordings = Counter(key_id_in((run.seal or {}).get("key", "")) for run in _closed(app))
    for key, n in recordings.items():
        text = f"the originals of {plural(n, 'recording')} are sealed under key {key} for replays, made from a seal key"
        hint = "Restore the seal key from its backup. Until then they replay with pseudonyms."
        troubles.append(KeyProblem("warning", f"{text} {where}", hint))
    return SealKeys(file, known, list(results), troubles)


def _closed(app: Antiphon) -> Iterator[RunManifest]:
    """Runs of this store whose originals cannot be unsealed; imported ones may need another store's key."""
    for manifest in app.journal.runs(tenant=app.tenant, limit=_RUNS):
        if manifest.seal and "imported" not in manifest.tags:
            try:
                if app.keys.key_of(manifest) is None:
                    yield manifest
            except StoreError:  # the key file cannot be read
                yield manifest


def _sealed_with(app: Antiphon) -> Counter[str]:
    """The ids of the keys that seal results of the newest calls, with counts; large results are not included."""
    claims = app.journal.list(tenant=app.tenant, limit=_CLAIMS)
    return Counter(key_id_in(record.payload_sealed) for record in claims if isinstance(record.payload_sealed, str))
