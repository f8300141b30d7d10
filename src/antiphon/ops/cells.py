"""One cell of a matrix: a recorded run replayed with one variant. It is a guarded call, so it is paid for once.

Workers get plain data and read recordings from the store. A cell that was interrupted is taken over and continues in
the same run: requests its models had answered are not sent again.
"""

from __future__ import annotations

import functools
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from antiphon import _lineage
from antiphon._gateway.ids import uuid7
from antiphon._minilm import model_folder, require_model
from antiphon._recording.manifest import source_digest, source_files
from antiphon._replay.setup import code_of
from antiphon.canonical import canonical_json
from antiphon.errors import AntiphonError, InvalidInput, StoreError
from antiphon.ops.app import Antiphon
from antiphon.ops.entry import load_entry
from antiphon.ops.gateways import Gateway
from antiphon.ops.replay import replay
from antiphon.ops.reports import LazyEmbedder

Work = dict[str, Any]
"""A cell as sent to a worker, as JSON."""
Row = dict[str, Any]
"""The result of a cell, as JSON."""

HELD = "held"
"""The status of a cell that another process is working on."""
SPENT = ("calls", "withoutUsage", "inputTokens", "outputTokens", "cost")
"""The fields of a row that say how much its models were used."""
_NAME, _NAMESPACE = "cell", "matrix"
_LEASE_MS = 30_000
_REASONS, _LONG = 3, 300


class ModelFailed(AntiphonError):
    """The model could not be asked: this says nothing about the variant, and the cell is retried."""

    code = "model_failed"


def digest_of(*parts: Any) -> str:
    """A digest that names plain data."""
    return hashlib.sha256(canonical_json(list(parts))).hexdigest()


def run_of(source: str, key: str) -> str:
    """The id of a cell's own run: the same for whoever starts or takes over the cell; sorts next to its source."""
    marks = (8, 13, 18, 23)
    head = source[:14] if len(source) == 36 and all(source[at] == "-" for at in marks) else f"{key[:8]}-{key[8:12]}-"
    return f"{head}7{key[12:15]}-8{key[15:18]}-{key[18:30]}"


def code_at(target: str) -> dict[str, Any]:
    """Digests of the files behind a function, taken before it ran."""
    return _code(resolve(target))


@functools.cache
def _code(function: Callable[..., Any]) -> dict[str, Any]:
    return code_of(source_digest(function), source_files(function)) or {}


def perform(batch: Sequence[Work], app: Antiphon | None = None) -> list[Row]:
    """Compute the cells of a batch in turn; a cell that fails becomes a row that says why."""
    return [_perform(work, app) for work in batch]


def perform_in_engine(batch: Sequence[Work]) -> list[Row]:
    """The same in a worker of an engine whose own threads keep running during a replay."""
    if not _lineage.engine_threads:
        me = threading.current_thread()
        _lineage.engine_threads.update(one for one in threading.enumerate() if one is not me)
    return perform(batch)


def _perform(work: Work, app: Antiphon | None) -> Row:
    began = time.perf_counter()
    row: Row = {name: work[name] for name in ("key", "run", "variant", "sample")}
    try:
        app = app or _app(work["config"], work["tenant"], work["workspace"])
        row |= _guarded(app, work)
    except AntiphonError as error:
        row |= _bad(error.code, error.message)
    except Exception as error:  # a failed cell is a row
        row |= _bad(type(error).__name__, str(error))
    row.setdefault("seconds", round(time.perf_counter() - began, 4))
    return row


def _bad(code: str, message: str) -> Row:
    return {"status": "error", "code": code, "reasons": [message[:_LONG]]}


@functools.cache
def _app(config: str | None, tenant: str, workspace: str) -> Antiphon:
    return Antiphon(config, tenant=tenant, workspace=workspace)


def _guarded(app: Antiphon, work: Work) -> Row:
    """Through the gateway: claimed under the cell's key, taken over when its process has died, reused when done."""
    if app.store.url != work["store"]:
        raise InvalidInput(
            f"The worker uses the store {app.store.url}, the matrix is in {work['store']}.",
            hint="Give the workers the configuration of the process that starts the matrix.",
            code="other_store",
        )
    for target, wanted in work["code"].items():
        here = code_at(target)
        other = sorted(name for name in here.keys() & wanted.keys() if here[name] != wanted[name])
        if other or bool(here) != bool(wanted):
            raise InvalidInput(
                f"The worker's code is not the code that the matrix was planned with: {', '.join(other) or target}.",
                hint="Update the workers, or plan a new matrix.",
                code="other_code",
            )
    _check_settings(app, work["settings"])
    _now[work["key"]] = work
    result = _gateway(app).execute(
        {
            "contractVersion": "1.1",
            "requestId": uuid7(),
            "toolName": _NAME,
            "toolNamespace": _NAMESPACE,
            "target": {"sessionKey": _NAMESPACE, "actorId": _NAMESPACE},
            "payload": {"version": "1.0", "params": {"key": work["key"]}, "idempotencyKey": work["key"]},
            "transport": {"dedupeMode": "bestEffort", "retryBudget": {"maxAttempts": 1, "maxElapsedMs": 86_400_000}},
            "control": {},
            "trace": {},
        }
    )
    del _now[work["key"]]
    if result.ok:
        row: Row = dict(result.content)
        return {**row, "reused": True, "seconds": 0.0} if result.from_cache else row
    assert result.error is not None
    if result.error.code == "in_flight":
        return {"status": HELD, "reasons": []}
    return _bad(result.error.code, result.error.message)


def _check_settings(app: Antiphon, wanted: Mapping[str, Any]) -> None:
    """Refuse, before a model is asked, to score a cell with other settings than the rest of its matrix."""
    if wanted["embedder"] == "minilm":
        require_model(model_folder())
    here = app.config.replay
    other = [name for name in ("semantic_threshold", "exact_only") if getattr(here, name) != wanted[name]]
    if other:
        raise InvalidInput(
            f"The worker's settings are not those that the matrix was started with: {', '.join(other)}.",
            hint="Give the workers the configuration of the process that starts the matrix.",
            code="other_settings",
        )


_now: dict[str, Work] = {}
"""Cells that this process is working on; the claim knows only their key."""


@functools.cache
def _gateway(app: Antiphon) -> Gateway:
    """A separate gateway on the same store: the cell is not one of the agent's tools."""
    gateway = Gateway(app.store, app.loaded, tenant=app.tenant, workspace=app.workspace)

    @gateway.tool(
        name=_NAME,
        namespace=_NAMESPACE,
        idempotent=True,
        effect="read",
        breaker={"consecutive": 1_000_000, "rate": 1.0, "min_calls": 1_000_000},
        ttl={"done_ms": 30 * 86_400_000, "failed_ms": 1, "lease_ms": _LEASE_MS},
    )
    def cell(key: str) -> Row:
        return _replayed(app, _now[key])

    return gateway


def stored_row(app: Antiphon, key: str) -> Row | None:
    """The row of a cell that is done, from its claim; ``None`` if it cannot be read."""
    plans = _gateway(app)._plans
    plan = plans.plan(plans.tools[f"{_NAMESPACE}/{_NAME}"])
    maker, _ = plan.make_keys((_NAMESPACE, _NAMESPACE, None))
    found = app.journal.read(maker.keys_given({"key": key}, key).store_key)
    payload = None
    if found is not None and found.current.state == "done":
        with suppress(StoreError):  # sealed with another key
            payload = plan.results.kept(found.current, None)
    return None if payload is None else dict(orjson.loads(payload))


def _replayed(app: Antiphon, work: Work) -> Row:
    """Replay the run once, in the cell's own run."""
    began = time.perf_counter()
    with_, settings = work["with"], work["settings"]
    report = replay(
        work["run"],
        app=app,
        mode="explore",
        function=None if work["entry"] is None else resolve(work["entry"]),
        llm=None if with_.get("llm") is None else resolve(with_["llm"]),
        **{name: with_[name] for name in ("model", "temperature", "seed", "prompt") if with_.get(name) is not None},
        min_ars=settings["min_ars"],
        embedder=LazyEmbedder(settings["embedder"]),
        into=run_of(work["run"], work["key"]),
        sandbox=settings["sandbox"],
    )
    data = report.to_wire()
    spent = data["spent"]
    if data["unanswered"]:  # whatever the agent raised
        raise ModelFailed(f"The model could not be asked: {data['unanswered'][0]}"[:_LONG])
    return {
        "status": report.verdict,
        "score": round(float(data["ars"]["score"]), 6),
        "reasons": [str(reason)[:_LONG] for reason in data["verdictReasons"][:_REASONS]],
        "refused": bool(data.get("refusals")),
        "replayRun": data["replayRun"],
        "matrix": work["matrix"],
        **{name: spent[name] for name in SPENT},
        "seconds": round(time.perf_counter() - began, 4),
    }


# -- functions without a name: for a matrix in this process ------------------------------------------------------------

_HERE = "here:"
_given: dict[str, Callable[..., Any]] = {}


def named(function: str | Callable[..., Any]) -> str:
    """How a cell names a function: by its target, or by a name that only this process knows."""
    if isinstance(function, str):
        return function
    name = f"{_HERE}{digest_of(_code(function), getattr(function, '__qualname__', ''))[:16]}"
    _given[name] = function
    return name


def resolve(target: str) -> Callable[..., Any]:
    """The function behind a name."""
    return _given[target] if target in _given else _loaded(target, Path.cwd())


@functools.cache
def _loaded(target: str, folder: Path) -> Callable[..., Any]:
    """Cached: a process loads a module once, and finding that out for each cell takes longer than its claim."""
    return load_entry(target)


def is_in_process(target: str | None) -> bool:
    """Whether only this process knows the function."""
    return target is not None and target.startswith(_HERE)
