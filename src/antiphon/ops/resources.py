"""What one tenant's work needs: settings, store, gateways, payloads and keys, each made when it is first used."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Self, TypeVar

from antiphon._lineage import outside
from antiphon.config.load import Loaded
from antiphon.config.model import Config
from antiphon.config.wiring import ConfigLike, blobs_of, key_ring_of, resolve, rules_of, store_from
from antiphon.contract.events import Event, RunManifest, spilled
from antiphon.ports import Blobs, Clock, Invoker, Listener, Store, SyncJournal

if TYPE_CHECKING:  # reading runs needs neither gateways nor recorder
    from antiphon._recording.recorder import LoopJournals, Recorder
    from antiphon._recording.seals import KeyRing
    from antiphon._scope import Write, WriteAsync
    from antiphon.ops.gateways import AsyncGateway, Gateway
    from antiphon.redact import Redactor

R = TypeVar("R")
_BATCH = 500


class Resources:
    """The resources of one configuration, for one tenant and workspace."""

    def __init__(
        self,
        config: ConfigLike = None,
        *,
        store: Store | str | None = None,
        tenant: str | None = None,
        workspace: str | None = None,
        clock: Clock | None = None,
        listeners: tuple[Listener, ...] = (),
    ) -> None:
        """*listeners* receive the decisions of its gateways, like a gateway's own listeners."""
        self.loaded: Loaded = resolve(config)
        self.config: Config = self.loaded.config
        self.store: Store = store_from(store, self.config)
        self.tenant: str = tenant or self.config.gateway.tenant
        self.workspace: str = workspace or self.config.gateway.workspace
        self.clock: Clock = clock or Clock()
        self._listeners = listeners

    @functools.cached_property
    def journal(self) -> SyncJournal:
        """The store's synchronous journal."""
        return self.store.open_sync()

    @functools.cached_property
    def gateway(self) -> Gateway:
        """The gateway for synchronous code."""
        from antiphon.ops.gateways import Gateway

        return self._wired(Gateway)

    @functools.cached_property
    def async_gateway(self) -> AsyncGateway:
        """The gateway for asyncio code."""
        from antiphon.ops.gateways import AsyncGateway

        return self._wired(AsyncGateway)

    def _wired(self, kind: Callable[..., R]) -> R:
        whose = {"tenant": self.tenant, "workspace": self.workspace}
        return kind(self.store, self.loaded, **whose, clock=self.clock, listeners=self._listeners)

    @functools.cached_property
    def blobs(self) -> Blobs | None:
        """Large payloads; ``None`` for a store that lives only in this process."""
        return None if self.store.in_process else blobs_of(self.config, self.store)

    @functools.cached_property
    def _redactor(self) -> Redactor:
        from antiphon.redact import Redactor

        return Redactor(rules_of(self.config), salt=os.urandom(16), environment=os.environ)

    @functools.cached_property
    def loops(self) -> LoopJournals:
        """The store's asynchronous journals, shared by all runs of an event loop."""
        from antiphon._recording.recorder import LoopJournals

        return LoopJournals(self.store)

    @functools.cached_property
    def keys(self) -> KeyRing:
        """The keys that unseal the originals of recordings."""
        return key_ring_of(self.config, self.store)

    def for_tenant(self, tenant: str | None) -> Self:
        """The same for another tenant of the store; this object for its own tenant or ``None``."""
        if not tenant or tenant == self.tenant:
            return self
        return type(self)(self.loaded, store=self.store, tenant=tenant, workspace=self.workspace, clock=self.clock)

    def events(self, run: str, *, start: int = 0) -> Iterator[Event]:
        """The events of a run in order, read in batches."""
        while batch := self.journal.events(run, start=start, limit=_BATCH):
            yield from batch
            start = batch[-1].seq + 1

    def whole(self, event: Event) -> Event:
        """The event with its spilled parts, also from inside a sandbox."""
        from antiphon._recording.recorder import restore_blobs

        if not spilled(event):
            return event
        with outside():
            return restore_blobs(event, self.blobs, self.tenant)

    def recorder(
        self,
        manifest: RunManifest,
        *,
        run_id: str | None = None,
        invoker: Invoker | None = None,
        write: Write | None = None,
        write_async: WriteAsync | None = None,
    ) -> Recorder:
        """Writes the events of a run: to the store, or with *write* and *write_async*.

        If the run's key is unavailable, what is written from now on uses a new one.
        """
        from antiphon._recording.recorder import Recorder
        from antiphon._recording.seals import RunKey

        keeps = self.config.redact.keep_sealed
        run = run_id or manifest.id
        known = self.keys.key_of(manifest)
        key = RunKey.new(run, keeps=keeps) if known is None else known._replace(keeps=keeps)
        if self.keys.in_process and keeps and write is None and not manifest.seal:
            self.keys.kept[run] = key
        return Recorder(
            run,
            store=self.store,
            journal=self.journal,
            clock=self.clock,
            redactor=self._redactor,
            key=key,
            ring=self.keys,
            blobs=lambda: self.blobs,
            tenant=self.tenant,
            invoker=invoker,
            write=write,
            write_async=write_async,
            loops=self.loops,
        )
