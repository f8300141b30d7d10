"""A run of the host on its way: its events written, its followers woken, its task cancelled or left to be resumed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from antiphon._gateway.ids import uuid7
from antiphon._gateway.owner import owner_token
from antiphon._recording.recorder import Recorder
from antiphon.canonical import canonical_digest
from antiphon.config.model import HostSection
from antiphon.contract.events import Event, RunManifest
from antiphon.errors import StoreError
from antiphon.host.events import Numbered, Reader, Signals, as_row
from antiphon.host.llm import ModelBoundary
from antiphon.host.providers import Post
from antiphon.host.run_services import ReplayInvoker, RunServices
from antiphon.host.tenant import Tenant
from antiphon.host.worker_lease import WorkerLease
from antiphon.host.workflow.mock import MockProvider
from antiphon.host.workflow.model import Workflow
from antiphon.host.workflow.runner import Replay, Runner, Stopped
from antiphon.host.workflow.source import Comparison, Source
from antiphon.host.workflow.state import TERMINAL, State, Told, fold
from antiphon.ops.app import Antiphon
from antiphon.ports import ClaimTemplate, Journal, Row, StaticClaimRequest

log = logging.getLogger("antiphon.host")

_DAY_MS = 86_400_000
_FEEDS_STATE = frozenset({"run.started", "node.completed"})


class Executor(Protocol):
    """What a run needs of the host that executes it."""

    app: Antiphon
    settings: HostSection
    agents: dict[str, str]
    mock: MockProvider
    post: Post
    signals: Signals
    journal: Journal
    lease: WorkerLease

    def tenant(self, name: str) -> Tenant: ...

    def deliver(self, manifest: RunManifest, events: Sequence[tuple[Told, int]]) -> None: ...


class HostRun:
    """One run that this process executes."""

    def __init__(self, host: Executor, manifest: RunManifest, workflow: Workflow, events: Sequence[Told]) -> None:
        self.host = host
        self.manifest = manifest
        self.task: asyncio.Task[None] | None = None
        tenant = host.tenant(manifest.tenant)
        self._later: list[Row] = []
        self._rows: int | None = len(events)
        """Rows of the log, as long as all of them are written here; calls of tools write their own."""
        closed = ReplayInvoker() if self.is_replay else None
        self.recorder = tenant.app.recorder(
            manifest.id, manifest.salt, invoker=closed, write=self._record, write_async=self._record_async
        )
        self.models = ModelBoundary(self.recorder.scope, host.settings, host.mock, manifest.tenant, host.post)
        services = RunServices(
            tenant.app,
            tenant.gateway,
            host.agents,
            self.recorder,
            manifest,
            self.models,
            self._later,
            closed,
            self._lose_count,
        )
        self.runner = Runner(
            workflow,
            fold(workflow, events),
            run=manifest.id,
            tenant=manifest.tenant,
            services=services,
            write=self._write,
            replay=self._replay(events),
            staged=lambda node: host.mock.staged(manifest.tenant, node),
        )

    @property
    def id(self) -> str:
        return self.manifest.id

    @property
    def is_replay(self) -> bool:
        """Whether this is a fork in mode ``replay``: it observes nothing itself and delivers nothing."""
        return isinstance(self.manifest.replay, dict) and self.manifest.replay.get("mode") == "replay"

    @property
    def state(self) -> State:
        return self.runner.state

    def _replay(self, events: Sequence[Told]) -> Replay | None:
        if not self.is_replay or self.manifest.source_run is None:
            return None
        told: list[Told] = []
        source = Source(self.manifest.source_run, told)
        reader = self.reader(self.host, source.run, self.manifest.tenant)

        async def load() -> Source:
            if not told or told[-1].type not in TERMINAL:
                told.extend(event.told for event in await reader.more())
            return source

        seen = sum(1 for event in events if not event.type.startswith("replay."))
        return Replay(load, Comparison(source, seen), self.host.settings.replay_verify)

    @staticmethod
    def reader(host: Executor, run: str, tenant: str) -> Reader:
        """Reads the workflow events of a run."""
        return Reader(host.journal, run, host.tenant(tenant).app.blobs, tenant)

    # -- writing -----------------------------------------------------------------------------------------------------

    def _lose_count(self) -> None:
        self._rows = None

    def _record(self, rows: Sequence[Row]) -> None:
        if self._rows is not None:
            self._rows += len(rows)
        self.host.tenant(self.manifest.tenant).app.journal.append(self.id, rows)

    async def _record_async(self, rows: Sequence[Row]) -> None:
        if self._rows is not None:
            self._rows += len(rows)
        await self.host.journal.append(self.id, rows)

    async def _write(self, events: Sequence[tuple[Told, int]], over: bool) -> None:
        if not self.host.lease.holds():
            raise Stopped(f"this process lost its lease; run {self.id} is left to another one")
        later, self._later[:] = tuple(self._later), ()
        rows = (*later, *(row_of(self.recorder, told, number) for told, number in events))
        journal = self.host.journal
        if self._rows is not None:
            self._rows += len(rows)
        if not over:
            await journal.append(self.id, rows)
        elif self._rows is not None:
            await asyncio.gather(journal.append(self.id, rows), journal.update_run(self._finished(self._rows)))
        else:
            first = await journal.append(self.id, rows)
            await journal.update_run(self._finished(first + len(rows)))
        self.host.signals.wake(self.id)
        if not self.is_replay:
            self.host.deliver(self.manifest, events)

    def _finished(self, rows: int) -> RunManifest:
        now = self.host.app.clock.now_ms()
        self.manifest = msgspec.structs.replace(
            self.manifest, status=self.state.status, finished_at_ms=now, events=rows
        )
        return self.manifest

    # -- executing ---------------------------------------------------------------------------------------------------

    def start(self, done: Callable[[], Any]) -> None:
        """Execute in a task of its own."""
        self.task = asyncio.create_task(self._execute(), name=f"antiphon-run-{self.id}")
        self.task.add_done_callback(lambda task: done())

    async def _execute(self) -> None:
        scope = self.recorder.scope
        token = scope.activate()
        try:
            if self.runner.replay is not None:
                await self.runner.replay.load()
            await self.runner.execute()
        except asyncio.CancelledError:
            log.info("run %s is left to be resumed", self.id)
        except (StoreError, Stopped) as error:
            log.warning("run %s stopped here and will be resumed: %s", self.id, error)
        except Exception:
            log.exception("run %s stopped here and will be resumed", self.id)
        finally:
            scope.deactivate(token)
            self.host.signals.wake(self.id)

    def cancel(self, reason: str) -> None:
        """End the run as the user wishes."""
        if self.task is not None and self.runner.cancel_reason is None:
            self.runner.stop(reason)
            self.task.cancel()

    async def leave(self) -> None:
        """Stop executing without ending the run."""
        if self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.wait((self.task,), timeout=2.0)

    async def cancel_requested(self) -> bool:
        return await self.host.journal.read(cancel_key(self.id)) is not None

    # -- going on after an interruption ------------------------------------------------------------------------------

    @classmethod
    async def resumed(cls, host: Executor, manifest: RunManifest, workflow: Workflow) -> HostRun | None:
        """The run as its log left it; ``None`` if nothing is left to do."""
        reader = cls.reader(host, manifest.id, manifest.tenant)
        events = await reader.more(keep_rows=True)
        if not events:
            return None
        run = cls(host, manifest, workflow, [event.told for event in events])
        run._lose_count()
        if run.state.status in TERMINAL.values():
            finished = msgspec.structs.replace(manifest, status=run.state.status, finished_at_ms=events[-1].at_ms)
            await host.journal.update_run(finished)
            return None
        if run.state.error is None and not run.is_replay and any(event.redacted for event in events):
            run.state.error = {
                "code": "resume_redacted",
                "message": "The run was interrupted, and its log holds placeholders for secrets or personal data: "
                "going on would send those. Start it again.",
            }
        if run.state.open is not None:
            run.models.known = _known_answers(reader.rows, events, run.state.open)
        if await run.cancel_requested():
            run.runner.stop("cancelled by request")
        return run


def row_of(recorder: Recorder, told: Told, sequence: int) -> Row:
    """An event as a row that says whether a later resumption can rely on it."""
    redacted = told.type in _FEEDS_STATE and recorder.present(dict(told.payload), "")[2]
    return as_row(recorder, told, sequence, redacted=redacted)


def _known_answers(rows: Sequence[Event], events: Sequence[Numbered], node: str) -> dict[str, list[Any]]:
    """Answers of models that the interrupted execution of *node* has received."""
    begun = max((event.row for event in events if event.told.type == "node.started"), default=0)
    keys: dict[str, str] = {}
    known: dict[str, list[Any]] = {}
    for row in rows:
        if row.seq < begun or row.call is None:
            continue
        if row.type == "call.started" and row.payload.get("kind") == "llm" and row.payload.get("nodeId") == node:
            keys[row.call] = str(row.payload.get("key"))
        elif row.type == "call.finished" and row.call in keys and row.payload.get("outcome") in ("ok", "refusal"):
            known.setdefault(keys[row.call], []).append(row.payload.get("value"))
    return known


# -- cancelling from another process -------------------------------------------------------------------------------


def cancel_key(run: str) -> str:
    """Where the wish to cancel a run is noted."""
    return canonical_digest(["host-cancel", run])


async def request_cancel(host: Executor, manifest: RunManifest) -> None:
    """Leave a note for the process that executes the run."""
    key = cancel_key(manifest.id)
    template = ClaimTemplate(
        tool="host/cancel",
        session="host",
        actor="host",
        ttl_ms=_DAY_MS,
        lease_ms=1,
        owner=owner_token(),
        tenant=manifest.tenant,
        workspace=manifest.workspace,
    )
    await host.journal.begin(StaticClaimRequest(key, key, template, key, (key, key), manifest.id, token=uuid7()))
