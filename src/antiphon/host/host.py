"""The host: workflows and agents as runs in the shared log, executed in this process and visible from any (L5–L9).

This is only what HTTP needs beyond the library: which runs this process executes, how interrupted runs are found and
resumed, and who may see what. Calls go through the gateway, events into the run log.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import random
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
import orjson

from antiphon._gateway.ids import uuid7
from antiphon._gateway.owner import owner_token
from antiphon._recording.recorder import Recorder
from antiphon._recording.run import Run
from antiphon._recording.seals import Originals
from antiphon._scope import Site
from antiphon.canonical import canonical_digest
from antiphon.config.model import Config, HostSection
from antiphon.config.wiring import sealer_of
from antiphon.contract.events import RunManifest, is_masked
from antiphon.contract.spec import ToolSpec
from antiphon.errors import (
    AntiphonError,
    ConfigError,
    Divergence,
    InvalidInput,
    StoreError,
    StoreUnavailable,
)
from antiphon.host.addresses import Lookup
from antiphon.host.api_keys import KeyRing, Principal
from antiphon.host.events import Reader, SequencedEvent, Signals, follow, is_large, one_line, row_of
from antiphon.host.fairness import FairCoroutine, LoopUsage
from antiphon.host.llm import MockProvider, ModelBoundary, request_of
from antiphon.host.logs import about
from antiphon.host.webhooks import ApprovalListener, Mask, PostTo, Webhooks
from antiphon.host.wire import document_digest
from antiphon.host.worker_lease import WorkerLease, claim_request, is_gone, keep, take_over
from antiphon.host.workflow.model import Node, Workflow, parse
from antiphon.host.workflow.nodes import SIDE_EFFECT_TOOL, NodeExecution, NodeFailed, Outputs, check_nodes
from antiphon.host.workflow.runner import Replay, Runner, Stopped
from antiphon.host.workflow.source import Comparison, Source, is_remark
from antiphon.host.workflow.state import TERMINAL, State, WorkflowEvent, fold
from antiphon.ops.admin import Admin
from antiphon.ops.app import Antiphon, using
from antiphon.ops.approval_page import where
from antiphon.ops.approvals import Approvals, Link
from antiphon.ops.entry import AGENT_MARK, load_entry, load_module
from antiphon.ops.gateways import listen
from antiphon.ops.inputs import arguments_of, is_arguments
from antiphon.ops.runs import learn_values
from antiphon.ops.traffic import Traffic
from antiphon.ports import Answer, Invocation, Journal, Row
from antiphon.redact import secrets_in, without_values

T = TypeVar("T")
log: logging.Logger = logging.getLogger("antiphon.host")

KIND = "workflow"
"""The tag that marks the host's runs in the log."""
_LOOK_FOR_ORPHANS_S = 5.0
_READY_S = 2.0
_ROOM_BYTES = 8 << 20
"""A store with less free space than this takes no new runs."""
_LOOK_FOR_CANCELS_S = 0.5
_LEVELS = {
    "run.started": logging.INFO,
    "run.completed": logging.INFO,
    "run.cancelled": logging.INFO,
    "run.failed": logging.WARNING,
    "node.failed": logging.WARNING,
    "envelope.refusal": logging.WARNING,
    "replay.diverged": logging.WARNING,
    "replay.divergedAtRefusal": logging.WARNING,
    "log.appended": logging.WARNING,
}
"""Log levels by event; other events are logged at debug level."""
_FRESH = {
    "now": lambda: datetime.now(UTC).isoformat(),
    "random": lambda: repr(random.random()),
    "uuid4": lambda: str(uuid.uuid4()),
}


class Rejected(AntiphonError):
    """The host refuses a request with a status and code of the protocol."""

    def __init__(self, status: int, code: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message, code=code)
        self.status = status
        self.details: dict[str, Any] | None = dict(details) if details else None


def not_found(run_id: str) -> Rejected:
    """The same answer for a run of another tenant and for a run that does not exist."""
    return Rejected(404, "run_not_found", f"There is no run {run_id[:64]!r}.")


def _free_bytes(folder: Path) -> int:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return _ROOM_BYTES  # unknown: a write will show it


def log_fields_of(manifest: RunManifest) -> dict[str, str]:
    """The log fields that identify a run."""
    return {"tenant": manifest.tenant, "runId": manifest.id}


def tools_of(places: Sequence[str]) -> list[tuple[Callable[..., Any], ToolSpec]]:
    """The reserved tool, and those of *places* (``file.py`` or a module), undecorated, with what they declare."""
    namespace, _, name = SIDE_EFFECT_TOOL.partition("/")
    reserved = ToolSpec(name=name, namespace=namespace, idempotent=False, effect="write")
    found: list[tuple[Callable[..., Any], ToolSpec]] = [(performed_effect, reserved)]
    for place in places:
        module = load_module(place)
        tools = [value.tool for value in vars(module).values() if hasattr(value, "tool") and callable(value)]
        named = [tool for tool in tools if isinstance(getattr(tool, "spec", None), ToolSpec)]
        if not named:
            raise ConfigError(f"[host] tools: {place} has no tool.", path="host.tools")
        found += [(tool.function, tool.spec) for tool in named]
    return found


def performed_effect(nodeId: str) -> dict[str, str]:  # noqa: N803 - the name on the wire
    """The reserved effect of the conformance fixtures: something that would be different if it were done again."""
    return {"nodeId": nodeId, "effectId": str(uuid.uuid4())}


class Host:
    """Everything the HTTP layer calls. One per process and event loop; :meth:`start` before use, :meth:`stop` after."""

    def __init__(self, app: Antiphon, post: PostTo, operator: str = "environment") -> None:
        """*operator* names whoever holds the key from the environment."""
        self.app = app
        self._operator = operator
        self.post = post
        self.config: Config = app.config
        self.settings: HostSection = app.config.host
        self.mock: MockProvider = MockProvider()
        self.signals: Signals = Signals()
        self.loop_usage: LoopUsage = LoopUsage()
        self.running: dict[str, HostRun] = {}
        self._traffic: Traffic | None = None
        self.seen_health: dict[str, tuple[Any, dict[str, Any]]] = {}
        """The last report of each tenant and its inputs, cached because it is polled."""
        self.seen_interrupted: dict[str, tuple[float, tuple[list[RunManifest], bool]]] = {}
        """The runs of each tenant whose process is gone, and when to look again."""
        self.workflows: dict[str, Workflow] = {}
        self.digests: dict[str, str] = {}
        self.agents: dict[str, str] = {}
        self.closing: bool = False
        self.webhooks: Webhooks | None = None
        self.self_test_result: dict[str, Any] = {}
        """What the self-test found, for the discovery document."""
        self.set_aside: dict[str, str] = {}
        """Unfinished runs that this process cannot resume, and why."""
        self._tools = tools_of(self.settings.tools)
        self._tenants: dict[str, Antiphon] = {}
        self._threads: dict[tuple[str, str], ThreadPoolExecutor] = {}
        self._open: defaultdict[str, int] = defaultdict(int)
        """Open requests by tenant."""
        self._calls: dict[asyncio.Task[Any], str] = {}
        """Running calls and their tenants."""
        self._folder: Path | None = None
        """The folder of the store, if it is on this machine."""
        self._tasks: list[asyncio.Task[None]] = []
        self._notifications: set[asyncio.Task[None]] = set()
        self._resuming = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.grace_over: asyncio.Future[None]
        """Done when the shutdown grace is over and nobody can wait for calls any longer."""
        self.journal: Journal
        self.keys: KeyRing
        self.lease: WorkerLease

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self, *, resume: bool = True) -> None:
        """Open the store, load agents and workflows, and resume interrupted runs."""
        self._loop = asyncio.get_running_loop()
        self.grace_over = self._loop.create_future()
        self.journal = self.app.store.open_async()
        self.app.loops.share(asyncio.get_running_loop(), self.journal)
        path = (await self.journal.ping()).get("path")
        self._folder = Path(str(path)).parent if path else None
        self.keys = KeyRing(self.journal, self.app.clock, default_tenant=self.app.tenant, environment=self._operator)
        await self.keys.refresh(0.0)
        self._load()
        listen(lambda tenant: ApprovalListener(self.publish, tenant), self.app.store)  # the gateways of agents
        self.webhooks = self._webhooks()
        if self.webhooks is not None:
            try:
                await self.webhooks.start()
            except StoreUnavailable:
                raise
            except Exception as error:
                log.error("webhooks are off: the subscriptions cannot be read: %s", one_line(error))
                self.webhooks = None
        self.lease = WorkerLease(self.journal)
        await self.lease.start()
        if resume:
            number = await self.resume_orphans()
            if number or self.set_aside:
                log.warning("%d interrupted runs were resumed, %d cannot be", number, len(self.set_aside))
            self._tasks.append(asyncio.create_task(self._watch_orphans(), name="antiphon-orphans"))
        self._tasks.append(asyncio.create_task(self._watch_cancels(), name="antiphon-cancels"))

    def begin_shutdown(self) -> None:
        """Shutdown has begun: end streams and polls at once; clients waiting for calls get the same grace as runs."""
        if not self.closing:
            self.closing = True
            asyncio.get_running_loop().call_later(self.settings.shutdown_grace_s, self._give_up)

    def _give_up(self) -> None:
        if not self.grace_over.done():
            self.grace_over.set_result(None)

    async def stop(self) -> None:
        """Accept nothing new, let short runs finish, and leave the others to be resumed."""
        self.closing = True
        for task in self._tasks:
            task.cancel()
        waiting = [run.task for run in self.running.values() if run.task is not None] + list(self._calls)
        if waiting:
            await asyncio.wait(waiting, timeout=self.settings.shutdown_grace_s)
        for run in tuple(self.running.values()):
            await run.leave()
        self._give_up()
        for call in tuple(self._calls):
            call.cancel()
        if self._notifications:
            await asyncio.wait(self._notifications, timeout=2.0)
        if self.webhooks is not None:
            await self.webhooks.stop()
        await self.lease.stop()
        for tenant in self._tenants.values():
            await tenant.async_gateway.close()
        for pool in self._threads.values():
            pool.shutdown(wait=False, cancel_futures=True)
        await self.journal.close()

    def _webhooks(self) -> Webhooks | None:
        """Webhooks, if the operator enables them; test seams enable them for receivers on this machine."""
        settings = self.settings
        if not (settings.webhooks or settings.test_seams):
            return None
        sealer = sealer_of(self.config, self.app.store)()
        if sealer is None and self.journal.durable:
            if not settings.webhooks:
                return None
            raise ConfigError(
                "[host] webhooks stores the secrets of subscribers, and there is no key to seal them with.",
                hint="Name a key file: [store] seal_key_file.",
                path="store.seal_key_file",
            )
        loopback = settings.webhooks_loopback or settings.test_seams
        return Webhooks(
            self.journal,
            self.app.clock,
            lookup=Lookup(loopback=loopback),
            post=self.post,
            sealer=sealer,
            most=settings.tenant_webhooks,
        )

    def _load(self) -> None:
        """Load agents and workflow definitions; those that cannot run here are logged and not offered."""
        for target in self.settings.agents:
            function = load_entry(target)
            name = str(getattr(function, AGENT_MARK, {}).get("name") or target.rpartition(":")[2])
            self.agents[name] = target
            node = Node(id="agent", type_id=f"agent:{name}")
            self.add_workflow(Workflow(id=f"agent:{name}", nodes=[node], name=name))
        folder = self.settings.workflows
        if folder is None:
            return
        if not Path(folder).is_dir():
            raise ConfigError(f"[host] workflows: there is no folder {folder}.", path="host.workflows")
        for file in sorted(Path(folder).glob("*.json")):
            try:
                self.add_workflow(parse(file.read_bytes()))
            except Exception as error:
                reason = str(error) if isinstance(error, InvalidInput) else one_line(error)
                log.warning("%s is not offered: %s", file.name, reason)

    def add_workflow(self, workflow: Workflow) -> None:
        """Offer a workflow if all of its nodes can run here."""
        check_nodes(workflow, self.tenant(self.app.tenant).async_gateway.tools, self.agents)
        self.digests[workflow.id] = workflow.digest
        self.workflows[workflow.id] = workflow

    # -- tenants -----------------------------------------------------------------------------------------------------

    def tenant(self, name: str) -> Antiphon:
        """The application of a tenant: its runs, audit log and gateway with all tools, on the host's event loop."""
        found = self._tenants.get(name)
        if found is None:
            base = self.app
            listeners = (ApprovalListener(self.publish, name),)
            found = Antiphon(base.loaded, store=base.store, tenant=name, clock=base.clock, listeners=listeners)
            self._tenants[name] = found
            found.loops = base.loops
            for function, spec in self._tools:
                found.async_gateway.register(function, spec)
        return found

    def admit(self, tenant: str) -> Callable[[], None]:
        """Admit a request unless its tenant has too many open; return the function that releases it."""
        limit = self.settings.tenant_requests
        if self._open[tenant] >= limit:
            raise Rejected(
                429,
                "too_many_requests",
                f"{limit} requests of this tenant are open here ([host] tenant_requests), streams and polls included.",
                {"limit": limit},
            )
        self._open[tenant] += 1

        def release() -> None:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]

        return release

    async def not_ready(self) -> tuple[str, str]:
        """Why new runs are not accepted, as code and message; empty if they are."""
        if self.closing:
            return "shutting_down", "The host is shutting down."
        try:
            async with asyncio.timeout(_READY_S):
                await self.lease.prove()
        except TimeoutError:
            return "store_unavailable", f"The store did not take a write within {_READY_S:g} seconds."
        except AntiphonError as error:
            log.warning("not ready: %s", error)
            return "store_unavailable", "The store does not take writes."
        except Exception as error:
            log.warning("not ready: %s", one_line(error))
            return "store_unavailable", "The store cannot be used."
        free = _ROOM_BYTES if self._folder is None else _free_bytes(self._folder)
        if free < _ROOM_BYTES:
            log.warning("not ready: %d bytes are left on the disk of the store", free)
            return "disk_full", f"Fewer than {_ROOM_BYTES >> 20} MiB are left on the disk of the store."
        return "", ""

    async def in_thread(self, tenant: str, work: Callable[[], T], of: Literal["agents", "rows"] = "agents") -> T:
        """Run a tenant's blocking work in its thread pool; a tenant that exhausts its pool delays only its own runs."""
        pool = self._threads.get((tenant, of))
        if pool is None:
            number = self.settings.tenant_threads if of == "agents" else 1
            pool = ThreadPoolExecutor(number, thread_name_prefix=f"antiphon-{of}-{tenant}")
            self._threads[(tenant, of)] = pool
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(pool, context.run, work)

    def follow(self, manifest: RunManifest, *, idle_s: float) -> AsyncGenerator[list[SequencedEvent]]:
        """New events of a run as they arrive, an empty list after *idle_s* of silence."""
        reader = HostRun.reader(self, manifest.id, manifest.tenant)
        return follow(reader, self.signals, manifest.id, is_local=lambda: manifest.id in self.running, idle_s=idle_s)

    async def visible(self, principal: Principal, run: str) -> RunManifest:
        """The manifest of one of the principal's runs; any other is not found."""
        manifest = await self.journal.manifest(run)
        if manifest is None or manifest.tenant != principal.tenant or manifest.tags.get("kind") != KIND:
            raise not_found(run)
        return manifest

    @property
    def traffic(self) -> Traffic:
        """The calls of recorded runs, read once."""
        if self._traffic is None:
            self._traffic = Traffic(self.journal)
        return self._traffic

    def admin(self, principal: Principal) -> Admin:
        """Operator actions on this loop's journal."""
        return Admin(self.tenant(principal.tenant), self.journal, actor=principal.key_id)

    def approvals(self, principal: Principal, where: str) -> Approvals:
        """Approvals on this loop's journal; *where* says where the decision comes from."""
        return Approvals(self.tenant(principal.tenant), self.journal, actor=principal.key_id, where=where)

    def approvals_for_link(self, scope: MutableMapping[str, Any], link: Link) -> Approvals:
        """The approvals behind a signed link, whose requests count towards its tenant."""
        if "release" not in scope.setdefault("state", {}):
            scope["state"]["release"] = self.admit(link.tenant)
        return Approvals(self.tenant(link.tenant), self.journal, actor=link.to, where=where(scope))

    async def refresh_breakers(self, tenant: str) -> None:
        """Apply an operator's change to breakers in this process at once; others follow within a second."""
        self.tenant(tenant).async_gateway.adopt_breakers(await self.journal.load_breakers(tenant))

    async def metrics(self) -> str:
        """Metrics of the gateway, of each tenant's store, and of the runs and deliveries of this process."""
        prefix = f"{self.config.telemetry.prefix}_host"
        waiting, lost = (0, 0) if self.webhooks is None else (self.webhooks.waiting(), self.webhooks.lost)
        lines = []
        for name, kind, value, text in (
            (f"{prefix}_runs_executing", "gauge", len(self.running), "Runs this process executes."),
            (f"{prefix}_webhook_queue", "gauge", waiting, "Webhook deliveries that this process has yet to make."),
            (f"{prefix}_webhook_lost_total", "counter", lost, "Webhook deliveries that were dropped."),
        ):
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"]
        tenants = sorted({self.app.tenant, *self._tenants, *self.keys.tenants()})
        gateway = self.tenant(self.app.tenant).async_gateway
        own = await asyncio.to_thread(gateway.metrics_of, tenants, frozenset(self.set_aside))
        return "\n".join(lines) + "\n" + own

    # -- executing ---------------------------------------------------------------------------------------------------

    def check_capacity(self, tenant: str) -> None:
        """Refuse a new run if its tenant is at its limit."""
        if self.closing:
            raise Rejected(503, "shutting_down", "The host is shutting down. Try again in a few seconds.")
        limit = self.settings.tenant_runs
        number = sum(run.manifest.tenant == tenant for run in self.running.values())
        if number + sum(one == tenant for one in self._calls.values()) >= limit:
            raise Rejected(
                429,
                "too_many_runs",
                f"{limit} runs and calls of this tenant are under way ([host] tenant_runs). Try again when one ends.",
                {"limit": limit},
            )

    def run_detached(self, tenant: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run *work* of a tenant to completion, whoever waits for it; on shutdown it gets the same grace as runs."""
        try:
            self.check_capacity(tenant)
        except Rejected:
            work.close()
            raise
        task = asyncio.create_task(work, name="antiphon-call")
        self._calls[task] = tenant
        task.add_done_callback(self._calls.pop)
        return task

    def launch(self, run: HostRun) -> None:
        """Execute a run in this process."""
        self.running[run.id] = run
        run.start(lambda: self.running.pop(run.id, None))

    def deliver(self, manifest: RunManifest, events: Sequence[tuple[WorkflowEvent, int]], mask: Mask) -> None:
        """Deliver new events of a live run to subscribers, without secrets."""
        if self.webhooks is not None:
            try:
                self.webhooks.deliver(manifest, events, mask)
            except Exception:
                log.exception("events of run %s were not delivered", manifest.id, extra=log_fields_of(manifest))

    def publish(self, tenant: str, kind: str, payload: dict[str, Any]) -> None:
        """Deliver a tenant event to subscribers; callable from any thread."""
        if self._loop is not None and not self.closing and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._notify, tenant, kind, payload)

    def _notify(self, tenant: str, kind: str, payload: dict[str, Any]) -> None:
        webhooks = self.webhooks
        if webhooks is None:
            return

        async def notify() -> None:
            shown, _ = self.tenant(tenant)._redactor.redact_bytes(orjson.dumps(payload))
            await webhooks.publish(tenant, kind, orjson.loads(shown))

        task = asyncio.create_task(notify(), name="antiphon-notice")
        self._notifications.add(task)
        task.add_done_callback(self._notifications.discard)

    async def resume_orphans(self) -> int:
        """Resume the runs whose process is gone, each independently; return their number."""
        async with self._resuming:
            return await self._resume_orphans()

    async def _resume_orphans(self) -> int:
        number = 0
        for tenant in sorted({self.app.tenant, *self.keys.tenants()}):
            try:
                unfinished = await self.journal.runs(tenant=tenant, status="running", limit=10_000)
            except StoreError as error:
                log.warning("unfinished runs of tenant %s could not be listed: %s", tenant, error)
                continue
            for manifest in reversed(unfinished):
                if manifest.tags.get("kind") != KIND or manifest.id in self.running or manifest.id in self.set_aside:
                    continue
                try:
                    number += await self._resume_if_orphan(manifest)
                except StoreUnavailable as error:
                    log.warning("run %s could not be checked and will be checked again: %s", manifest.id, error)
                except Exception as error:
                    self._leave(manifest, one_line(error))
        return number

    def _leave(self, manifest: RunManifest, reason: str) -> None:
        """Set a run aside and leave its log as it is."""
        self.set_aside[manifest.id] = reason
        log.error(
            "run %s of %s cannot be resumed: %s", manifest.id, manifest.name, reason, extra=log_fields_of(manifest)
        )

    async def _resume_if_orphan(self, manifest: RunManifest) -> bool:
        if self.closing:
            return False
        owner, me = manifest.tags.get("executor", ""), self.lease.owner
        if owner == me:
            if not await keep(self.journal, manifest.id, me):
                return False
        elif not await is_gone(self.journal, owner) or not await take_over(self.journal, manifest.id, owner, me):
            return False
        workflow = self.workflows.get(manifest.name)
        if workflow is None:
            self._leave(manifest, "this host does not have the workflow")
            return False
        tags = {**manifest.tags, "executor": me, "owner": owner_token()}
        manifest = msgspec.structs.replace(manifest, tags=tags)
        await self.journal.update_run(manifest)
        run = await HostRun.resumed(self, manifest, workflow)
        if run is None or manifest.id in self.running:
            return False
        log.info("resuming run %s of %s", manifest.id, manifest.name, extra=log_fields_of(manifest))
        self.launch(run)
        return True

    async def _watch_orphans(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_FOR_ORPHANS_S)
            try:
                await self.resume_orphans()
            except Exception:
                log.exception("interrupted runs could not be listed")

    async def _watch_cancels(self) -> None:
        """Watch for cancel requests that reached another process."""
        while True:
            await asyncio.sleep(_LOOK_FOR_CANCELS_S)
            for run in tuple(self.running.values()):
                try:
                    if not await run.is_kept():
                        log.warning(
                            "run %s was taken over by another process", run.id, extra=log_fields_of(run.manifest)
                        )
                        await run.leave()
                    elif await run.cancel_requested():
                        run.cancel("cancelled by request")
                except Exception as error:
                    log.warning("run %s could not be checked for a cancel request: %s", run.id, one_line(error))
                    break


class ReplayInvoker:
    """The invoker of a replay fork: refuses every call that no recording answers (RFC 0140)."""

    def __init__(self) -> None:
        self.inner: Any = None
        """Answers from the recording while an agent runs."""

    def answer_tool(self, call: Invocation) -> Answer | None:
        return self._reached(call).answer_tool(call)  # type: ignore[no-any-return]

    async def answer(self, call: Invocation) -> Answer | None:
        return await self._reached(call).answer(call)  # type: ignore[no-any-return]

    def _reached(self, call: Invocation) -> Any:
        if self.inner is None:
            message = f"{call.name} was called in a replay fork, which performs no call."
            raise Divergence(message, code="replay_source_missing")
        return self.inner

    def draw(self, what: str, site: Site, fresh: Any) -> Any:
        return fresh() if self.inner is None else self.inner.draw(what, site, fresh)


class HostRun:
    """One run that this process executes."""

    def __init__(
        self,
        host: Host,
        manifest: RunManifest,
        workflow: Workflow,
        events: Sequence[WorkflowEvent],
        *,
        new: bool = False,
    ) -> None:
        self.host = host
        self.manifest: RunManifest = manifest
        self.task: asyncio.Task[None] | None = None
        self.app: Antiphon = host.tenant(manifest.tenant)
        self._later: list[Row] = []
        """Rows to be written with the next events."""
        self._lapses = host.lease.lapses
        self._replaying = ReplayInvoker() if self.is_replay else None
        self.recorder: Recorder = self.app.recorder(manifest, invoker=self._replaying)
        self.models: ModelBoundary = ModelBoundary(
            self.recorder.scope, host.settings, host.mock, manifest.tenant, host.post
        )
        self.runner: Runner = Runner(
            workflow=workflow,
            state=fold(workflow, events),
            run=manifest.id,
            tenant=manifest.tenant,
            services=self,
            write=self._write,
            replay=self._replay(events),
            staged=lambda node: host.mock.staged(manifest.tenant, node),
            is_branch=new and isinstance(manifest.replay, dict) and manifest.replay.get("mode") == "branch",
        )

    @property
    def id(self) -> str:
        return self.manifest.id

    @property
    def is_replay(self) -> bool:
        """Whether this is a fork in mode ``replay``, which observes nothing itself and delivers nothing."""
        return isinstance(self.manifest.replay, dict) and self.manifest.replay.get("mode") == "replay"

    @property
    def state(self) -> State:
        return self.runner.state

    def _replay(self, events: Sequence[WorkflowEvent]) -> Replay | None:
        if not self.is_replay or self.manifest.source_run is None:
            return None
        source_events: list[WorkflowEvent] = []
        rows: list[int] = []
        source = Source(self.manifest.source_run, source_events, rows)

        async def load() -> Source:
            if not source_events or source_events[-1].type not in TERMINAL:
                manifest = await self.host.journal.manifest(source.run)
                reader = self.reader(self.host, source.run, self.manifest.tenant, manifest)
                source_events.clear()
                rows.clear()
                for event in await reader.more():
                    source_events.append(event.body)
                    rows.append(event.row)
            return source

        seen = sum(1 for event in events if not is_remark(event))
        return Replay(load, Comparison(source, seen), self.host.settings.replay_verify)

    @staticmethod
    def reader(host: Host, run: str, tenant: str, manifest: RunManifest | None = None) -> Reader:
        """A reader of a run's workflow events: masked, or the originals if *manifest* is given."""
        app = host.tenant(tenant)
        reader = Reader(host.journal, run, app.blobs, tenant)
        if manifest is not None:
            key = app.keys.key_of(manifest)
            reader.unmask = (lambda event: event) if key is None else Originals(key).unseal
        return reader

    # -- writing -----------------------------------------------------------------------------------------------------

    async def learn_values(self, source: RunManifest, last: int | None = None) -> None:
        """Mask the values that are masked in *source*, up to its row *last*, wherever they occur in this run."""
        await asyncio.to_thread(learn_values, self.app, source, self.recorder.redactor.pseudonyms, last=last)

    async def rows_of(self, events: Sequence[tuple[WorkflowEvent, int]]) -> list[Row]:
        """Events as log rows; large ones are encoded in a thread, one at a time for each tenant.

        The thread competes with the loop for the interpreter lock, so its time counts like that of a step.
        """

        def make() -> list[Row]:
            return [row_of(self.recorder, event, number) for event, number in events]

        def timed() -> tuple[list[Row], float]:
            begun = time.thread_time()
            return make(), time.thread_time() - begun

        if not any(is_large(event.payload) for event, _ in events):
            return make()
        rows, took = await self.host.in_thread(self.manifest.tenant, timed, of="rows")
        self.host.loop_usage.spent(self.manifest.tenant, took)
        return rows

    async def _write(self, events: Sequence[tuple[WorkflowEvent, int]], over: bool) -> None:
        if not self.host.lease.holds() or not await self.is_kept():
            raise Stopped(f"this process lost its lease; run {self.id} is left to another one")
        later, self._later[:] = tuple(self._later), ()
        rows = (*later, *await self.rows_of(events))
        first = await self.host.journal.append(self.id, rows)
        if over:
            end = {"status": self.state.status, "finished_at_ms": self.app.clock.now_ms(), "events": first + len(rows)}
            self.manifest = self.recorder.with_key(msgspec.structs.replace(self.manifest, **end))
            await self.host.journal.update_run(self.manifest)
        self.host.signals.wake(self.id)
        self._log_events(events)
        if not self.is_replay:
            self.host.deliver(self.manifest, events, self.masked)

    def _log_events(self, events: Sequence[tuple[WorkflowEvent, int]]) -> None:
        """Log what happened, without the content."""
        for event, sequence in events if self.host.config.telemetry.logs else ():
            level = _LEVELS.get(event.type, logging.DEBUG)
            if not log.isEnabledFor(level):
                continue
            fields: dict[str, Any] = {"event": event.type, "sequence": sequence, **log_fields_of(self.manifest)}
            if "nodeId" in event.payload:
                fields["nodeId"] = event.payload["nodeId"]
            error = event.payload.get("error")
            if isinstance(error, dict):
                fields["code"] = error.get("code")
            log.log(level, "%s %s", event.type, self.manifest.name, extra=fields)

    def log_start(self) -> None:
        """Log the start of the run."""
        kind = "run.started" if self.manifest.source_run is None else "run.forked"
        if self.host.config.telemetry.logs:
            log.info("%s %s", kind, self.manifest.name, extra={"event": kind, **log_fields_of(self.manifest)})

    def masked(self, payload: dict[str, Any]) -> dict[str, Any]:
        """A payload, masked for use outside the host."""
        found: dict[str, Any] = self.recorder.view(payload)
        return found

    # -- what its nodes reach ----------------------------------------------------------------------------------------

    async def call_tool(self, name: str, arguments: Mapping[str, Any], key: str) -> Any:
        envelope = tool_request(name, arguments, self.id, key, attempts=1000, elapsed_ms=2**53 - 1)
        result = await self.app.async_gateway.execute(envelope)
        if result.status == "success" and result.output is not None:
            return result.output.content
        if result.error is None:
            raise NodeFailed("tool_error", f"{name} gave neither a result nor an error.")
        raise NodeFailed(result.error.code, self._unquoted(arguments, result.error.message))

    def _unquoted(self, arguments: Mapping[str, Any], text: str) -> str:
        """An exception message without the secrets that it may quote from the arguments."""
        return without_values(text, secrets_in(arguments, self.masked))

    def secrets(self, visit: NodeExecution) -> Mapping[str, str]:
        return secrets_in(visit.inputs, self.masked)

    async def ask_model(self, visit: NodeExecution) -> Outputs:
        return await self.models.ask(visit)

    def draw(self, what: str) -> Any:
        scope = self.recorder.scope
        site = scope.enter(what, "")
        value = _FRESH[what]()
        self._later.append(scope.encode("draw", site, {"what": what, "value": value, "nth": site.nth}, {}))
        return value

    def request_digest(self, visit: NodeExecution) -> str:
        """The digest of a node's request: the model request, or the arguments of any other node."""
        is_model = visit.node.type_id.startswith(("core.ai.", "core.llm."))
        asks = request_of(visit) if is_model else {**visit.node.config, **visit.inputs}
        return document_digest(self.recorder.redact_arguments(asks, "")[0])

    async def run_agent(self, visit: NodeExecution) -> Any:
        """Call an entry point; its calls are part of this run, and a replay answers them from the recording."""
        function = load_entry(self.host.agents[visit.node.type_id.removeprefix("agent:")])
        inputs = visit.inputs
        args, kwargs = arguments_of(dict(inputs)) if is_arguments(dict(inputs)) else ([], dict(inputs))
        scope, app = self.recorder.scope, self.app
        run = Run(self.recorder, self.manifest, app._caller(self.manifest))
        if self._replaying is not None:
            self._replaying.inner = await self._recording_invoker()
        try:
            if inspect.iscoroutinefunction(inspect.unwrap(function)):
                with run.attached(), using(app):
                    return await function(*args, **kwargs)

            def call() -> Any:
                with run.attached(), using(app):
                    scope.adopt()
                    return function(*args, **kwargs)

            return await self.host.in_thread(self.manifest.tenant, call)
        except asyncio.CancelledError:
            scope.cancelled = True  # its thread continues but must not send anything
            raise
        except Divergence as error:
            raise NodeFailed("replay_source_missing", error.message) from None
        except AntiphonError as error:
            raise NodeFailed(error.code, error.message) from None
        except Exception as error:
            text = self._unquoted(inputs, f"{type(error).__name__}: {error}")
            raise NodeFailed("agent_error", text) from None
        finally:
            if self._replaying is not None:
                if visit.observations is not None:
                    self._replaying.inner.report_to(visit.observations)
                self._replaying.inner = None
            scope.adopt()

    async def _recording_invoker(self) -> Any:
        from antiphon._replay.observe import Observer
        from antiphon.host.agent_replay import AgentReplayInvoker, AskingInvoker
        from antiphon.ops.runs import find_run, load_recording

        def load() -> Any:
            app = self.app
            source = find_run(app, self.manifest.source_run)
            recording = load_recording(app, source)
            kind = AskingInvoker if self.host.settings.replay_verify else AgentReplayInvoker
            return kind(recording, Observer(recording, lambda value: value))

        return await self.host.in_thread(self.manifest.tenant, load)

    # -- executing ---------------------------------------------------------------------------------------------------

    def start(self, done: Callable[[], Any]) -> None:
        """Execute the run in its own task."""
        self.task = asyncio.create_task(self._fairly(), name=f"antiphon-run-{self.id}")
        self.task.add_done_callback(lambda task: done())

    async def _fairly(self) -> None:
        await FairCoroutine(self._execute(), self.host.loop_usage, self.manifest.tenant)

    async def _execute(self) -> None:
        scope = self.recorder.scope
        token = scope.activate()
        about.set(log_fields_of(self.manifest))
        try:
            if self.runner.replay is not None:
                await self.runner.replay.load()
            await self.runner.execute()
        except asyncio.CancelledError:
            log.info("run %s is left to be resumed", self.id)
        except (StoreError, Stopped) as error:
            log.warning(
                "run %s stopped here and will be resumed: %s", self.id, error, extra=log_fields_of(self.manifest)
            )
        except Exception as error:
            log.exception("run %s failed in the host", self.id, extra=log_fields_of(self.manifest))
            await self._give_up(error)
        finally:
            scope.deactivate(token)
            self.host.signals.wake(self.id)

    async def _give_up(self, error: Exception) -> None:
        """End a run that would fail the same way on every resume; its effects are not repeated."""
        message = f"The host could not go on with this run ({type(error).__name__}); its log has the cause."
        try:
            await self.runner.give_up({"code": "internal_error", "message": message})
        except Exception as problem:
            self.host._leave(self.manifest, one_line(problem))

    def cancel(self, reason: str) -> None:
        """End the run at the user's request."""
        if self.task is not None and self.runner.cancel_reason is None:
            self.runner.stop(reason)
            self.task.cancel()

    async def leave(self) -> None:
        """Stop executing without ending the run."""
        if self.task is not None and not self.task.done():
            self.task.cancel()
            await asyncio.wait((self.task,), timeout=2.0)

    async def is_kept(self) -> bool:
        """Whether this process still executes the run: if its lease had ended, another may have taken it over."""
        lapses = self.host.lease.lapses
        if self._lapses != lapses:
            if not await keep(self.host.journal, self.id, self.host.lease.owner):
                return False
            self._lapses = lapses
        return True

    async def cancel_requested(self) -> bool:
        return await self.host.journal.read(_cancel_key(self.id)) is not None

    # -- resuming ----------------------------------------------------------------------------------------------------

    @classmethod
    async def resumed(cls, host: Host, manifest: RunManifest, workflow: Workflow) -> HostRun | None:
        """The run, restored from its log; ``None`` if nothing is left to do."""
        reader = cls.reader(host, manifest.id, manifest.tenant, manifest)
        events = await reader.more(keep_rows=True)
        if not events:
            return None
        run = cls(host, manifest, workflow, [event.body for event in events])
        if run.state.status in TERMINAL.values():
            finished = msgspec.structs.replace(manifest, status=run.state.status, finished_at_ms=events[-1].at_ms)
            await host.journal.update_run(finished)
            return None
        await run.learn_values(manifest)
        if run.state.error is None and not run.is_replay and any(event.redacted for event in events):
            run.state.error = {
                "code": "resume_redacted",
                "message": "The run was interrupted, and its log holds pseudonyms for secrets or personal data whose "
                "originals cannot be read: resuming would send those. Start it again.",
            }
        if run.state.open is not None:
            run.models.known = await _known_answers(reader, events, run.state.open)
        if await run.cancel_requested():
            run.runner.stop("cancelled by request")
        return run


def tool_request(
    name: str, arguments: Mapping[str, Any], run: str, key: str, *, attempts: int, elapsed_ms: int
) -> dict[str, Any]:
    """The envelope of a node's tool call."""
    namespace, _, tool = name.rpartition("/")
    return {
        "contractVersion": "1.1",
        "requestId": uuid7(),
        "toolName": tool,
        "toolNamespace": namespace or "tools",
        "target": {"sessionKey": f"run:{run}", "actorId": "host"},
        "payload": {"version": "1.0", "params": dict(arguments), "idempotencyKey": key},
        "transport": {"dedupeMode": "enforced", "retryBudget": {"maxAttempts": attempts, "maxElapsedMs": elapsed_ms}},
        "control": {},
        "trace": {},
    }


async def _known_answers(reader: Reader, events: Sequence[SequencedEvent], node: str) -> dict[str, list[Any]]:
    """Model answers that the interrupted execution of *node* received, up to one whose originals cannot be read."""
    begun = max((event.row for event in events if event.body.type == "node.started"), default=0)
    keys: dict[str, str] = {}
    known: dict[str, list[Any]] = {}
    for row in reader.rows:
        if row.seq < begun or row.call is None:
            continue
        if row.type == "call.started" and row.payload.get("kind") == "llm" and row.payload.get("nodeId") == node:
            keys[row.call] = str(row.payload.get("key"))
        elif row.type == "call.finished" and row.call in keys and row.payload.get("outcome") in ("ok", "refusal"):
            answer = await reader.opened(row)
            if is_masked(answer):
                break
            known.setdefault(keys[row.call], []).append(answer.payload.get("value"))
    return known


def _cancel_key(run: str) -> str:
    """The key under which a cancel request is stored."""
    return canonical_digest(["host-cancel", run])


async def request_cancel(host: Host, manifest: RunManifest) -> None:
    """Store a cancel request for the process that executes the run."""
    key = _cancel_key(manifest.id)
    request = claim_request(
        "host/cancel", key, manifest.id, lease_ms=1, tenant=manifest.tenant, workspace=manifest.workspace
    )
    await host.journal.begin(request)
