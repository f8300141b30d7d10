"""``antiphon.matrix``: recorded runs × variants × samples, replayed, scored and compared, with a verdict that holds.

A matrix is a plan and a growing table, both files in the state folder; its cells are claims in the store. So it can be
interrupted at any time, and continues when it is started again.
"""

from __future__ import annotations

import functools
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import msgspec

from antiphon import similarity
from antiphon._diff import plural
from antiphon._gateway.ids import uuid7
from antiphon._version import __version__
from antiphon.contract.events import RunManifest
from antiphon.errors import AntiphonError, InvalidInput, NotFound, StoreError
from antiphon.ops import Progress, silent
from antiphon.ops.app import Antiphon, current
from antiphon.ops.artifacts import open_run
from antiphon.ops.cells import HELD, SPENT, Row, Work, code_at, digest_of, is_in_process, named, run_of, stored_row
from antiphon.ops.costs import UsageTotals, cost_of
from antiphon.ops.execution import known_tools
from antiphon.ops.executors import Executor, InProcess, LocalProcesses
from antiphon.ops.matrix_result import Judge, Matrix
from antiphon.ops.matrix_table import PLAN, Cell, Document, Metric, Table, Variant, cell_of, folder_of
from antiphon.ops.runs import all_runs, is_audit, load_recording, real_status
from antiphon.ops.side_effects import gate

P = ParamSpec("P")
T = TypeVar("T")

BASELINE = "baseline"
CAP = 5
"""Rounds of ``samples="auto"``."""
_BATCH_S, _LARGEST = 0.25, 32
"""A batch takes long enough to make the cost of handing it out negligible."""
_WORDS = re.compile(r"(name|status|since|limit)=(\S+)")
_SPAN = re.compile(r"(\d+)([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class Estimate(NamedTuple):
    """What a matrix will use, estimated from the usage of the recorded runs; an upper bound with ``samples="auto"``."""

    cells: int
    calls: int
    input_tokens: int
    output_tokens: int
    cost: float | None
    """``None`` if a model has no price."""
    unpriced: list[str]
    without_usage: int
    """Runs whose recorded model calls report no usage: these count as zero tokens."""

    def text(self) -> str:
        """One line for people."""
        tokens = f"{self.input_tokens:,} tokens in, {self.output_tokens:,} out"
        money = (
            "cost unknown: no price for " + ", ".join(self.unpriced) if self.cost is None else f"cost {self.cost:.2f}"
        )
        less = f"; {plural(self.without_usage, 'run')} without recorded usage" if self.without_usage else ""
        return f"at most {plural(self.cells, 'cell')}, {plural(self.calls, 'model call')}, {tokens}, {money}{less}"


class Status(NamedTuple):
    """The progress of a matrix."""

    done: int
    total: int
    """An upper bound: fewer if every comparison is decided early."""
    failed: int
    errors: int
    calls: int
    cost: float
    seconds: float
    decided: dict[str, str]
    before: int = 0
    """Cells that were already done when it was started."""

    @property
    def per_second(self) -> float:
        """Cells per second."""
        return (self.done - self.before) / self.seconds if self.seconds > 0 else 0.0

    @property
    def left_s(self) -> float:
        """An upper bound for the remaining time at this rate."""
        return (self.total - self.done) / self.per_second if self.per_second else 0.0

    def to_wire(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**self._asdict(), "perSecond": round(self.per_second, 2), "leftSeconds": round(self.left_s, 1)}


def select(app: Antiphon, words: str) -> list[str]:
    """Runs that match ``name=refund status=failed since=7d limit=100``; replays are never included."""
    pairs = _WORDS.findall(words)
    wanted = dict(pairs)
    rest = _WORDS.sub("", words).split()
    if rest or not wanted:
        raise InvalidInput(
            f"The selection {words!r} is not understood{': ' + rest[0] if rest else ''}.",
            hint="For example: name=refund status=failed since=7d limit=100",
            path="select",
        )
    if len(pairs) > len(wanted):
        raise InvalidInput(f"The selection {words!r} repeats a word; give each one once.", path="select")
    since = 0
    if "since" in wanted:
        span = _SPAN.fullmatch(wanted["since"])
        if span is None:
            raise InvalidInput(f"since={wanted['since']} is not a time.", hint="For example: since=7d", path="select")
        since = app.clock.now_ms() - int(span[1]) * _SECONDS[span[2]] * 1000
    if not re.fullmatch("0*[1-9][0-9]*", wanted.get("limit", "1")):
        raise InvalidInput(f"limit={wanted['limit']} is not a whole number from 1.", path="select")
    limit = int(wanted.get("limit", "1000000"))
    found: list[str] = []
    named_ = {"name": wanted["name"]} if "name" in wanted else {}
    for manifest in all_runs(app, **named_):
        fits = manifest.source_run is None and not is_audit(manifest) and manifest.started_at_ms >= since
        if fits and wanted.get("status", real_status(manifest)) == real_status(manifest):
            found.append(manifest.id)
        if len(found) >= limit:
            break
    if not found:
        raise NotFound(f"No runs match {words!r}.", hint=f"Looked in {app.store.url}. List runs: antiphon runs")
    return found


def matrix(
    runs: str | Iterable[Any],
    variants: Sequence[Variant | Mapping[str, Any] | str],
    samples: int | Literal["auto"] = "auto",
    *,
    baseline: bool = False,
    llm: str | Callable[[dict[str, Any]], Any] | None = None,
    entry: str | Callable[..., Any] | None = None,
    metric: Metric = "pass",
    alpha: float = 0.05,
    margin: float = 0.05,
    min_ars: float | None = None,
    budget: float | None = None,
    max_calls: int | None = None,
    order: int = 0,
    fresh: bool = False,
    sandbox: bool = True,
    app: Antiphon | None = None,
    progress: Progress = silent,
) -> Plan:
    """Plan the replay of *runs* with each of *variants*, without asking any model.

    *runs* are ids, artifacts, or a selection such as ``"name=refund status=failed since=7d"``. A variant is the name of
    a model, or a mapping with ``name`` and any of ``model``, ``temperature``, ``seed``, ``prompt``, ``llm``, ``entry``.
    With *baseline* the variants are compared with the recorded model, else with the first of them. *samples* is a
    number of rounds, or ``auto``: at most 5, and no more than the verdict needs. *alpha* bounds the chance, over all
    variants together, that the verdict calls a variant worse that is not, or not worse that is worse by *margin*.
    *budget* (money, by ``[prices]``) and *max_calls* (of models) are exceeded at most by what is in progress. Equal
    cells that are done are not paid for again, unless *fresh* is set.
    """
    app = app or current()
    lanes = [_variant(one) for one in variants]
    client = None if llm is None else named(llm)
    lanes = [msgspec.structs.replace(one, llm=one.llm or client) for one in lanes]
    if baseline:
        lanes = [Variant(name=BASELINE, llm=client), *lanes]
    _check(lanes, samples, alpha, margin)
    given = select(app, runs) if isinstance(runs, str) and "=" in runs else [runs] if isinstance(runs, str) else runs
    manifests = {one.id: one for one in (open_run(app, wanted) for wanted in given)}
    if not manifests:
        raise NotFound("A matrix needs at least one run.", hint="List the runs with: antiphon runs")
    own = None if entry is None else named(entry)
    entries = _entries(manifests.values(), own)
    targets = (target for one in lanes for target in (one.llm, one.entry) if target)
    code = {target: code_at(target) for target in sorted({*entries.values(), *targets})}
    compares = len(lanes) > 1
    found = Document(
        id=uuid7(),
        created_at_ms=app.clock.now_ms(),
        version=__version__,
        store=app.store.url,
        tenant=app.tenant,
        workspace=app.workspace,
        runs=list(manifests),
        variants=lanes,
        compares=compares,
        rounds=(CAP if compares else 1) if samples == "auto" else samples,
        stops=samples == "auto",
        code=code,
        entries=entries,
        metric=metric,
        alpha=alpha,
        margin=margin,
        min_ars=min_ars,
        budget=budget,
        max_calls=max_calls,
        order=order,
        config=None if app.loaded.file is None else str(app.loaded.file.absolute()),
        sandbox=sandbox,
        sizes={one.id: one.events for one in manifests.values()},
    )
    if fresh:
        found.salt = found.id
    return Plan(app, found, progress=progress)


def _variant(given: Variant | Mapping[str, Any] | str) -> Variant:
    if isinstance(given, Variant):
        return given
    try:
        return Variant(name=given, model=given) if isinstance(given, str) else msgspec.convert(given, Variant)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{given!r} is not a variant: {error}.", path="variants") from None


def _check(lanes: Sequence[Variant], samples: int | str, alpha: float, margin: float) -> None:
    if not lanes:
        raise InvalidInput("A matrix needs a variant.", hint="Name a model: --model gpt-5", path="model")
    names = [one.name for one in lanes]
    if len(set(names)) < len(names):
        raise InvalidInput("Two variants have the same name.", path="model")
    if samples != "auto" and (not isinstance(samples, int) or samples < 1):
        raise InvalidInput("samples must be a whole number from 1, or auto.", path="samples")
    for name, value in (("alpha", alpha), ("margin", margin)):
        if not 0.0 < value < 1.0:
            raise InvalidInput(f"{name} must be between 0 and 1.", path=name)


def _entries(manifests: Iterable[RunManifest], own: str | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for manifest in manifests:
        target = own or manifest.entry
        if not target:
            raise InvalidInput(
                f"The recording of run {manifest.id} does not name its entry point.",
                hint="Pass --entry file.py:function (in Python: entry=).",
                code="entry_missing",
            )
        if found.setdefault("", target) != target:
            found[manifest.id] = target
    return found


def resumed(wanted: str, app: Antiphon | None = None) -> Plan:
    """The plan of an existing matrix, by its id or a unique prefix."""
    app = app or current()
    parent = folder_of()
    is_name = re.fullmatch(r"[\w-]+", wanted)
    found = sorted(path.name for path in parent.glob(f"{wanted}*") if (path / PLAN).is_file()) if is_name else []
    if len(found) != 1:
        said = f"matches several matrices: {', '.join(found)}" if len(found) > 1 else f"is not in {parent}"
        raise NotFound(f"The matrix {wanted!r} {said}.", hint="A matrix prints its id when it starts.")
    try:
        document = msgspec.json.decode((parent / found[0] / PLAN).read_bytes(), type=Document)
    except msgspec.MsgspecError as error:
        raise InvalidInput(
            f"The plan of the matrix {found[0]} cannot be read: {error}.",
            hint="Start a new matrix: cells that are done are not paid for again.",
        ) from None
    if document.store != app.store.url:
        raise InvalidInput(f"The matrix {found[0]} is in the store {document.store}, not in {app.store.url}.")
    if any(map(is_in_process, document.code)):
        raise InvalidInput("This matrix runs functions of the process that planned it, which cannot be found again.")
    changed = sorted(
        target for target, files in document.code.items() if digest_of(code_at(target)) != digest_of(files)
    )
    if changed:
        raise InvalidInput(
            f"The code of {', '.join(changed)} has changed since the matrix {found[0]} was planned.",
            hint="Start a new matrix: one table never mixes two versions.",
            code="other_code",
        )
    return Plan(app, document)


class Plan:
    """What a matrix will do. ``estimate()`` reports what it costs, ``run()`` runs it."""

    def __init__(self, app: Antiphon, document: Document, *, progress: Progress = silent) -> None:
        self.app = app
        self.document = document
        self._progress = progress
        same = [digest_of(msgspec.to_builtins(msgspec.structs.replace(one, name=""))) for one in document.variants]
        self._first = {
            one.name: same[:at].count(same[at]) * document.rounds for at, one in enumerate(document.variants)
        }
        """The number of each variant's first sample: variants that differ only by name share no samples."""
        self._code = digest_of(document.code)

    @property
    def id(self) -> str:
        """For ``--resume``."""
        return self.document.id

    @property
    def cells(self) -> int:
        """An upper bound."""
        return self.document.cells

    @functools.cached_property
    def _used(self) -> dict[str, UsageTotals]:
        """The model usage of each recorded run; read once."""
        runs = self.document.runs
        read = self._progress(runs, len(runs), "reading recorded usage, runs")
        return {run: self._spent(run) for run in read}

    def _spent(self, run: str) -> UsageTotals:
        """The model usage of a run, from its log."""
        spent = UsageTotals(self.app.config.prices)
        for event in self.app.events(run):
            spent.add(event)
        return spent

    def spent_by(self, work: Work) -> Row:
        """The model usage of a failed cell, over all its attempts."""
        spent = self._spent(run_of(work["run"], work["key"])).to_wire()
        return {"matrix": self.id, **{name: spent[name] for name in SPENT}}

    def _cost(self, usage: UsageTotals, variant: Variant) -> float | None:
        """The cost of a cell at its model's price; ``None`` if it has no price."""
        if variant.model is None:
            return None if usage.unpriced else usage.cost
        price = self.app.config.prices.get(variant.model)
        tokens = {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens}
        return None if price is None else cost_of(price, tokens)

    def estimate(self) -> Estimate:
        """Calls, tokens and money, by the usage of the recorded runs."""
        document = self.document
        used = self._used.values()
        costs = [self._cost(usage, one) for usage in used for one in document.variants]
        unpriced = {one.model for one in document.variants if one.model and one.model not in self.app.config.prices}
        if any(one.model is None for one in document.variants):
            unpriced |= {model or "the recorded model" for usage in used for model in usage.unpriced}
        times = len(document.variants) * document.rounds
        known = [cost for cost in costs if cost is not None]
        return Estimate(
            cells=self.cells,
            calls=sum(usage.calls for usage in used) * times,
            input_tokens=sum(usage.input_tokens for usage in used) * times,
            output_tokens=sum(usage.output_tokens for usage in used) * times,
            cost=sum(known) * document.rounds if len(known) == len(costs) else None,
            unpriced=sorted(unpriced),
            without_usage=sum(usage.without_usage > 0 for usage in used),
        )

    def work(self, run: str, variant: Variant, sample: int) -> Work:
        """The cell of a run, a variant and a sample, for a worker."""
        document = self.document
        changed = {name: value for name, value in msgspec.to_builtins(variant).items() if name not in ("name", "entry")}
        named_ = digest_of(
            3,
            run,
            document.sizes.get(run, 0),
            self._code,
            changed,
            variant.entry,
            self._first[variant.name] + sample,
            document.settings,
            document.salt,
        )
        return {
            "key": named_,
            "matrix": document.id,
            "run": run,
            "variant": variant.name,
            "sample": sample,
            "with": changed,
            "entry": variant.entry or document.entries.get(run, document.entries[""]),
            "code": document.code,
            "settings": document.settings,
            "store": document.store,
            "tenant": document.tenant,
            "workspace": document.workspace,
            "config": document.config,
        }

    def run(self, executor: Executor | None = None, *, progress: Callable[[Status], object] | None = None) -> Matrix:
        """Run what is not done yet. If interrupted, it can be continued: ``antiphon.ops.matrix.resumed(plan.id)``."""
        document = self.document
        here = any(map(is_in_process, document.code))
        if executor is None:
            executor = InProcess(self.app) if here or self.app.store.in_process else LocalProcesses()
        self._check(executor, here)
        self._settle()
        self._check_budget()
        try:
            with Table(folder_of(self.id), document) as table:
                drive = _Scheduler(self, executor, table, progress)
                drive.run()
        finally:
            executor.cancel()
        found = Matrix(document, table, stopped=drive.stopped)
        if not found.is_complete and not found.stopped:
            raise AntiphonError(
                f"The matrix {self.id} ended before all cells that its verdict needs were done. "
                f"The others are in {table.path}.",
                hint=f"Resume with: antiphon matrix --resume {self.id}",
                code="matrix_unfinished",
            )
        return found

    def result(self) -> Matrix:
        """The current content of the table."""
        return Matrix(self.document, Table(folder_of(self.id), self.document))

    def _check_budget(self) -> None:
        """Refuse a budget that cannot be enforced."""
        if self.document.budget is None:
            return
        estimate = self.estimate()
        if estimate.cost is None:
            raise InvalidInput(
                f"A budget needs prices, and there is none for {', '.join(estimate.unpriced)}.",
                hint='Add [prices."MODEL"] input = …, output = … to antiphon.toml, or use --max-calls.',
                path="budget",
            )
        if estimate.without_usage:
            raise InvalidInput(
                f"A budget needs recorded usage, and {plural(estimate.without_usage, 'run')} "
                f"{'has' if estimate.without_usage == 1 else 'have'} model calls without it.",
                hint="Use --max-calls, leave these runs out, or record them with usage.",
                path="budget",
            )

    def _check(self, executor: Executor, here: bool) -> None:
        """Before anything is paid for, refuse what cannot work."""
        url = self.app.store.url
        if isinstance(executor, InProcess):
            return
        if here:
            raise InvalidInput(
                "A function of this process cannot be run by another process.",
                hint="Name it: file.py:function, or run the matrix here (--on here).",
            )
        if self.app.store.in_process:
            raise InvalidInput(
                "A memory store is visible to this process only.", hint="Use --on here, or another store."
            )
        if executor.remote and "sqlite:" in url:
            raise InvalidInput(
                f"Workers on other machines cannot share the store {url}.",
                hint="Use redis: or postgresql: ([store] url), or --on local.",
                path="on",
            )

    def _settle(self) -> None:
        """Record at the first start what decides a verdict; refuse a later start with different settings."""
        document, replay = self.document, self.app.config.replay
        embedder = similarity.load(replay.embedder)
        found = {
            "min_ars": replay.min_ars if document.min_ars is None else document.min_ars,
            "semantic_threshold": replay.semantic_threshold,
            "exact_only": replay.exact_only,
            "embedder": "lexical" if embedder is similarity.lexical else "minilm",
            "sandbox": document.sandbox,
            "side_effects": self._review(),
        }
        changed = [name for name, value in found.items() if document.settings.get(name, value) != value]
        if changed:
            raise InvalidInput(
                f"{', '.join(changed)}: changed since the matrix {self.id} was started.",
                hint="Change it back, or start a new matrix: one table never mixes two versions.",
                code="other_settings",
            )
        document.settings = found

    def _review(self) -> dict[str, dict[str, bool]]:
        """The review of side effects that every explore replay needs, once for each entry point (K6)."""
        document = self.document
        first: dict[str, str] = {}
        for run in document.runs:
            first.setdefault(document.entries.get(run, document.entries[""]), run)
        found: dict[str, dict[str, bool]] = {}
        for target, run in first.items():
            manifest = self.app.journal.manifest(run)
            if manifest is None:
                raise NotFound(f"The run {run} no longer exists.")
            found[target] = gate(manifest.entry, known_tools(self.app, load_recording(self.app, manifest)))
        return found


class _Scheduler:
    """Hands out cells within capacity and budget, and writes rows as they arrive."""

    def __init__(
        self, plan: Plan, executor: Executor, table: Table, progress: Callable[[Status], object] | None
    ) -> None:
        self._plan, self._executor, self._table, self._progress = plan, executor, table, progress
        self._document = plan.document
        self._lanes = {one.name: one for one in plan.document.variants}
        self._judge = Judge(plan.document)
        self._done: set[Cell] = set()
        self._failed = self._errors = self._calls = 0
        self._cost = 0.0
        self._paid: dict[Cell, tuple[int, float]] = {}
        """For cells that failed or were interrupted."""
        for row in table:
            self._add_spend(row)
            if row["status"] != "error":  # else it is retried
                self._count(row)
        if table.is_resumed and self._is_limited:
            self._add_spend_of_interrupted()
        self._under_way: dict[str, tuple[Work, float, int]] = {}
        self._held: deque[tuple[Work, float, int]] = deque()
        self._began = time.monotonic()
        self._before = len(self._done)
        self._took, self._timed = 0.0, 0
        self.stopped = ""

    def _count(self, row: Row) -> None:
        self._done.add(cell_of(row))
        self._judge.add(row)
        self._failed += row["status"] == "fail"
        self._errors += row["status"] == "error"

    def _add_spend(self, row: Row) -> None:
        """Count what this matrix has spent; a row covers all attempts of its cell."""
        if row.get("matrix", "" if row.get("reused") else self._plan.id) != self._plan.id:
            return
        calls, cost = self._paid.pop(cell_of(row), (0, 0.0))
        spent = row.get("calls", 0), row.get("cost", 0.0) + self._unreported_cost(row)
        self._calls += spent[0] - calls
        self._cost += spent[1] - cost
        if row["status"] == "error":
            self._paid[cell_of(row)] = spent

    @property
    def _is_limited(self) -> bool:
        return self._document.budget is not None or self._document.max_calls is not None

    def _add_spend_of_interrupted(self) -> None:
        """Count what cells without a row have spent: an earlier start was interrupted before it wrote them.

        A cell that is done says which matrix paid for it; any other is taken for this one's.
        """
        for run, variant, sample in self._cells():
            if (variant.name, sample, run) not in self._paid:
                work = self._plan.work(run, variant, sample)
                spent = stored_row(self._plan.app, work["key"]) or self._plan.spent_by(work)
                self._add_spend({**spent, "run": run, "variant": variant.name, "sample": sample, "status": "error"})

    def _unreported_cost(self, row: Row) -> float:
        """An estimate for calls whose answers reported no usage: the mean of the recorded run."""
        missing = row.get("withoutUsage", 0)
        if not missing or self._document.budget is None:
            return 0.0
        cost, calls = self._expected(row["run"], self._lanes[row["variant"]])
        return float(missing * cost / max(1, calls))

    def _expected(self, run: str, variant: Variant) -> tuple[float, int]:
        """Expected cost and model calls of a cell, from the recorded run."""
        usage = self._plan._used[run]
        return self._plan._cost(usage, variant) or 0.0, usage.calls

    def _cells(self) -> Iterator[tuple[str, Variant, int]]:
        document, judge = self._document, self._judge
        for round_ in range(document.rounds):
            for run in judge.order(round_):
                decided = judge.decided if document.stops else {}
                if judge.comparisons and len(decided) == len(judge.comparisons):
                    return
                for variant in document.variants:
                    if variant.name not in decided and (variant.name, round_, run) not in self._done:
                        yield run, variant, round_

    def run(self) -> None:
        cells = self._cells()
        waiting: tuple[Work, float, int] | None = None
        while True:
            workers = max(1, self._executed(self._executor.capacity))  # if there are none, a batch waits for the first
            size = self._size(workers)
            while not self.stopped and len(self._under_way) < 2 * workers * size:
                batch: list[Work] = []
                while len(batch) < size:
                    waiting = waiting or self._next(cells)
                    if waiting is None or not self._affordable(waiting):
                        break
                    work = waiting[0]
                    self._under_way[work["key"]] = waiting
                    batch.append(work)
                    waiting = None
                if not batch:
                    break
                self._executed(self._executor.submit, batch)
            if waiting is not None and not self._under_way:
                self.stopped = "budget"
            if not self._under_way:
                if self.stopped or not self._held:
                    return
                time.sleep(0.2)  # all remaining cells are held by other processes
                again, self._held = list(self._held), deque()
                for cell in again:
                    self._under_way[cell[0]["key"]] = cell
                self._executed(self._executor.submit, [cell[0] for cell in again])
            for row in self._executed(self._executor.completed, 1.0):
                self._handle_row(row)

    def _executed(self, do: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Calls the executor; its failure says nothing about a variant."""
        try:
            return do(*args, **kwargs)
        except AntiphonError:
            raise
        except Exception as error:  # from a library or a custom executor
            raise InvalidInput(
                f"The matrix {self._plan.id} was stopped: its workers can no longer be used "
                f"({type(error).__name__}: {error}). Cells that are done are in {self._table.path}.",
                hint=f"Resume with: antiphon matrix --resume {self._plan.id}",
                path="on",
                code="executor_failed",
            ) from error

    def _size(self, workers: int) -> int:
        """Cells per batch; if the next pair may decide, cells in progress are at most a quarter of those done."""
        mean = self._took / self._timed if self._timed else _BATCH_S
        most = len(self._done) // (8 * workers) if self._document.stops else _LARGEST
        return max(1, min(_LARGEST, most, int(_BATCH_S / max(mean, 1e-6))))

    def _next(self, cells: Iterator[tuple[str, Variant, int]]) -> tuple[Work, float, int] | None:
        found = next(cells, None)
        if found is None:
            return None
        run, variant, sample = found
        cost, calls = self._expected(run, variant) if self._is_limited else (0.0, 0)
        return self._plan.work(run, variant, sample), cost, calls

    def _affordable(self, cell: tuple[Work, float, int]) -> bool:
        """Whether the budget allows the cell in addition to everything in progress."""
        if not self._is_limited:
            return True
        budget, most = self._document.budget, self._document.max_calls
        cost = self._cost + cell[1] + sum(one[1] for one in self._under_way.values())
        calls = self._calls + cell[2] + sum(one[2] for one in self._under_way.values())
        return (budget is None or cost <= budget) and (most is None or calls <= most)

    def _handle_row(self, row: Row) -> None:
        cell = self._under_way.pop(row.pop("key"), None)
        if cell is None:
            return
        if row["status"] == HELD:
            self._held.append(cell)
            return
        if row["status"] == "error":
            with suppress(StoreError):
                row |= self._plan.spent_by(cell[0])
        if not row.get("reused"):
            self._took, self._timed = self._took + row["seconds"], self._timed + 1
        self._add_spend(row)
        self._count(row)
        self._table.add(row)
        if self._progress is not None:
            self._progress(self._status())

    def _status(self) -> Status:
        return Status(
            done=len(self._done),
            total=self._plan.cells,
            failed=self._failed,
            errors=self._errors,
            calls=self._calls,
            cost=self._cost,
            seconds=time.monotonic() - self._began,
            decided=self._judge.decided,
            before=self._before,
        )
