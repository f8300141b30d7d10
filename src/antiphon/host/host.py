"""The host: workflows and agents as runs of the one log, executed in this process, followed from any (L5–L9).

Only what HTTP needs beyond the library stands here: which runs this process executes, how an interrupted one is found
and resumed, and who may look at what. Calls go through the gateway, events into the run log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from antiphon._gateway.owner import owner_token
from antiphon.config.wiring import sealer_of
from antiphon.contract.events import RunManifest
from antiphon.errors import AntiphonError, ConfigError, InvalidInput, StoreError
from antiphon.host.api_keys import HOST_TENANT, KeyRing, Principal
from antiphon.host.events import Signals
from antiphon.host.providers import Post
from antiphon.host.run import HostRun
from antiphon.host.tenant import Tenant, tools_of
from antiphon.host.webhooks import Webhooks
from antiphon.host.worker_lease import WorkerLease, is_gone, take_over
from antiphon.host.workflow.mock import MockProvider
from antiphon.host.workflow.model import Node, Workflow, parse
from antiphon.host.workflow.nodes import check_nodes
from antiphon.host.workflow.state import Told
from antiphon.ops.admin import Admin
from antiphon.ops.app import Antiphon
from antiphon.ops.entry import AGENT_MARK, load_entry
from antiphon.ports import Journal

log = logging.getLogger("antiphon.host")

KIND = "workflow"
"""The tag that tells the host's runs from others in the log."""
_LOOK_FOR_ORPHANS_S = 5.0
_LOOK_FOR_CANCELS_S = 0.5


class Host:
    """Everything the HTTP face calls. One per process and event loop; :meth:`start` before use, :meth:`stop` after."""

    def __init__(self, app: Antiphon, post: Post) -> None:
        self.app = app
        self.post = post
        self.config = app.config
        self.settings = app.config.host
        self.mock = MockProvider()
        self.signals = Signals()
        self.running: dict[str, HostRun] = {}
        self.workflows: dict[str, Workflow] = {}
        self.digests: dict[str, str] = {}
        self.agents: dict[str, str] = {}
        self.closing = False
        self.webhooks: Webhooks | None = None
        self.claims: dict[str, Any] = {}
        """What the self-test found, for the discovery document."""
        self._tools = tools_of(self.settings.tools)
        self._tenants: dict[str, Tenant] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self.journal: Journal
        self.keys: KeyRing
        self.lease: WorkerLease

    # -- life --------------------------------------------------------------------------------------------------------

    async def start(self, *, resume: bool = True) -> None:
        """Open the store, load what can be run, and go on with what was interrupted."""
        self.journal = self.app.store.open_async()
        self.keys = KeyRing(self.journal, self.app.clock, default_tenant=self.app.tenant)
        await self.keys.refresh(at_once=True)
        self._load()
        self.webhooks = self._webhooks()
        if self.webhooks is not None:
            await self.webhooks.start()
        self.lease = WorkerLease(self.journal)
        await self.lease.start()
        if resume:
            await self.resume_orphans()
            self._tasks.append(asyncio.create_task(self._watch_orphans(), name="antiphon-orphans"))
        self._tasks.append(asyncio.create_task(self._watch_cancels(), name="antiphon-cancels"))

    async def stop(self) -> None:
        """Take nothing new, let short runs end, leave the others to be resumed."""
        self.closing = True
        for task in self._tasks:
            task.cancel()
        waiting = [run.task for run in self.running.values() if run.task is not None]
        if waiting:
            await asyncio.wait(waiting, timeout=self.settings.shutdown_grace_s)
        for run in tuple(self.running.values()):
            await run.leave()
        if self.webhooks is not None:
            await self.webhooks.stop()
        await self.lease.stop()
        for tenant in self._tenants.values():
            await tenant.gateway.close()
        await self.journal.close()

    def _webhooks(self) -> Webhooks | None:
        """Switched on by the operator; the test seams bring them along, for receivers on this machine."""
        settings = self.settings
        if not (settings.webhooks or settings.test_seams):
            return None
        sealer = sealer_of(self.config, self.app.store)()
        if sealer is None and self.journal.durable:
            if not settings.webhooks:
                return None
            raise ConfigError(
                "[host] webhooks keeps the secrets of subscribers, and there is no key to seal them with.",
                hint="Name a key file: [store] seal_key_file.",
                path="store.seal_key_file",
            )
        loopback = settings.webhooks_loopback or settings.test_seams
        return Webhooks(self.journal, self.app.clock, loopback=loopback, post=self.post, sealer=sealer)

    def _load(self) -> None:
        """Agents and workflow definitions; what cannot be run here is named in the log and not offered."""
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
            except InvalidInput as error:
                log.warning("%s is not offered: %s", file.name, error)

    def add_workflow(self, workflow: Workflow) -> None:
        """Offer a workflow, if every node of it can be run here."""
        check_nodes(workflow, self.tenant(self.app.tenant).gateway.tools, self.agents)
        self.digests[workflow.id] = workflow.digest
        self.workflows[workflow.id] = workflow

    # -- tenants -----------------------------------------------------------------------------------------------------

    def tenant(self, name: str) -> Tenant:
        """The tenant of a credential."""
        found = self._tenants.get(name)
        if found is None:
            found = self._tenants[name] = Tenant(self.app, name, self._tools)
        return found

    async def visible(self, principal: Principal, run: str) -> RunManifest | None:
        """The manifest of a run of the host, if it is the principal's to see."""
        manifest = await self.journal.manifest(run)
        if manifest is None or manifest.tenant != principal.tenant or manifest.tenant == HOST_TENANT:
            return None
        return manifest if manifest.tags.get("kind") == KIND else None

    def admin(self, principal: Principal) -> Admin:
        """The acts of an operator, on this loop's journal."""
        app = self.tenant(principal.tenant).app
        return Admin(
            self.journal,
            tenant=app.tenant,
            workspace=app.workspace,
            clock=app.clock,
            redactor=app._redactor,
            actor=principal.key_id,
            settings=app.config.tools,
        )

    async def refresh_breakers(self, tenant: str) -> None:
        """Let an operator's act count at once in this process; others look within a second."""
        self.tenant(tenant).gateway.adopt_breakers(await self.journal.load_breakers(tenant))

    def metrics(self) -> str:
        """The gateway's metrics of every tenant that this process has served, and the runs it executes."""
        prefix = self.config.telemetry.prefix
        name = f"{prefix}_host_runs_executing"
        lines = [f"# HELP {name} Runs this process executes.", f"# TYPE {name} gauge", f"{name} {len(self.running)}"]
        own = self.tenant(self.app.tenant).gateway.metrics()
        return "\n".join(lines) + "\n" + own

    # -- executing ---------------------------------------------------------------------------------------------------

    def launch(self, run: HostRun) -> None:
        """Execute a run in this process."""
        self.running[run.id] = run
        run.start(lambda: self.running.pop(run.id, None))

    def deliver(self, manifest: RunManifest, events: Sequence[tuple[Told, int]]) -> None:
        """Hand new events of a live run to whoever subscribed."""
        if self.webhooks is not None:
            self.webhooks.deliver(manifest, events)

    async def resume_orphans(self) -> int:
        """Go on with runs whose process is gone; how many."""
        number = 0
        for tenant in sorted({self.app.tenant, *self.keys.tenants()}):
            try:
                unfinished = await self.journal.runs(tenant=tenant, status="running", limit=10_000)
                for manifest in reversed(unfinished):
                    number += await self._resume_if_orphan(manifest)
            except StoreError as error:
                log.warning("unfinished runs could not be looked for: %s", error)
        return number

    async def _resume_if_orphan(self, manifest: RunManifest) -> bool:
        owner = manifest.tags.get("executor", "")
        if manifest.tags.get("kind") != KIND or manifest.id in self.running or self.closing:
            return False
        me = self.lease.owner
        if owner != me:
            if not await is_gone(self.journal, owner) or not await take_over(self.journal, manifest.id, owner, me):
                return False
        tags = {**manifest.tags, "executor": me, "owner": owner_token()}
        manifest = msgspec.structs.replace(manifest, tags=tags)
        await self.journal.update_run(manifest)
        workflow = self.workflows.get(manifest.name)
        if workflow is None:
            log.warning("run %s cannot be resumed: this host does not have %s", manifest.id, manifest.name)
            return False
        try:
            run = await HostRun.resumed(self, manifest, workflow)
        except AntiphonError as error:
            log.warning("run %s cannot be resumed: %s", manifest.id, error)
            return False
        if run is None:
            return False
        log.info("resuming run %s of %s", manifest.id, manifest.name)
        self.launch(run)
        return True

    async def _watch_orphans(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_FOR_ORPHANS_S)
            await self.resume_orphans()

    async def _watch_cancels(self) -> None:
        """Runs of this process may be cancelled by a request that reached another one."""
        while True:
            await asyncio.sleep(_LOOK_FOR_CANCELS_S)
            for run in tuple(self.running.values()):
                try:
                    if await run.cancel_requested():
                        run.cancel("cancelled by request")
                except StoreError as error:
                    log.warning("cancellations could not be looked for: %s", error)
                    break
