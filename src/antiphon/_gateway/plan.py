"""What applies to the calls of one tool, computed once and again whenever something changes.

Nothing is frozen when a function is decorated: changing a time limit, a hook or a switch at runtime affects the next
call, however it is made. What does not apply is empty, so the fast path is the path with nothing in it.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from antiphon._daemon import renewed_after_fork
from antiphon._gateway.approval_rule import ApprovalRule
from antiphon._gateway.breakers import Breakers, Path
from antiphon._gateway.hooks import HookReply, Hooks
from antiphon._gateway.ids import Fingerprints
from antiphon._gateway.leases import Lease, Leases
from antiphon._gateway.owner import owner_token
from antiphon._gateway.recording import EventTemplate
from antiphon._gateway.report import Listeners, Reporter, Tallies, Tally, TraceData
from antiphon._gateway.result_store import ResultStore
from antiphon._gateway.settings import Settings
from antiphon._gateway.store_breaker import StoreBreaker
from antiphon._gateway.switches import in_effect
from antiphon._gateway.threads import ThreadRunner
from antiphon._gateway.tool import Tool
from antiphon._gateway.turns import Guards
from antiphon._gateway.watcher import ShadowWorker
from antiphon.decide.breaker import Breaker, Permit, Refusal
from antiphon.decide.retry import TokenBucket
from antiphon.errors import ConfigError, InvalidInput
from antiphon.keys import KeyMaker
from antiphon.ports import Blobs, BreakerRow, ClaimTemplate, Clock, Store

log = logging.getLogger("antiphon.gateway")

_PLACES_KEPT = 256
Place = tuple[str, str, str | None]
"""Session, actor and workspace."""


def _nothing() -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """What a gateway is built from. The config layer wires it; the engine only uses it."""

    store: Store
    settings: Settings = field(default_factory=Settings)
    clock: Clock = field(default_factory=Clock)
    reporter: Reporter = field(default_factory=Reporter)
    redactor: Any = None
    """``None`` for a store that never leaves the process."""
    masks: Any = None
    """Redacts the messages of exceptions, which leave the process whatever the store."""
    sealer: Callable[[], Any] = _nothing
    fingerprints: Fingerprints = field(default_factory=Fingerprints)
    blobs: Callable[[], Blobs | None] = _nothing
    reload: Callable[[], Settings | None] = _nothing
    """New settings if the configuration changed since the last call."""
    renews: bool = True
    """Whether the process's thread renews leases; otherwise the owner of the gateway does (tests, simulations)."""


class Verdict(NamedTuple):
    """What somebody decided in the framework that makes the call. It counts for the approval they were shown."""

    approve: bool
    by: str
    where: str
    """The framework; a decision that names no approval counts for one that this framework has shown before."""
    approval: str = ""
    reason: str = ""


class Options(NamedTuple):
    """What a caller specifies for one call besides its arguments."""

    given_key: str | None = None
    mode: str = "enforced"
    timeout_s: float | None = None
    deadline: float | None = None
    """On the monotonic clock."""
    max_attempts: int | None = None
    max_elapsed_ms: int | None = None
    breaker: str = "tool"
    safety_critical: bool = False
    retry_safe: bool = False
    reuse: Any = None
    """What applies where the tool declares nothing."""
    trace_data: TraceData | None = None
    by_id: bool | None = None
    """Whether its id is valid for one set of arguments only; ``None``: if the call has one."""
    counted_in: str = ""
    """The scope of the id: a response of a model, or, if this is empty, the whole session."""
    keyed: str = ""
    """The given key names what the call is about, as ``text`` or ``json``: session and actor are no part of it."""
    undoes: Any = None
    """The execution that the call undoes (:class:`~antiphon._gateway.undo.Execution`), if it undoes one."""
    verdict: Verdict | None = None
    """What was decided in the caller's framework, if a person must approve the call."""
    shown_in: str = ""
    """The framework that shows the question of this call to its people."""
    only_asks: bool = False
    """Ask for approval, and dispatch nothing, approved or not."""
    before: OldPlace | None = None
    """Where release 0.1.0 kept the record of the call, if that is another place."""


class OldPlace(NamedTuple):
    """The place that release 0.1.0 gave to a call."""

    workspace: str
    shared: bool
    """Calls of other scopes had the same place: only a record of this very request is its own."""


Permits = Sequence[tuple[Breaker, Permit]]


class Policy:
    """What applies to one call. Calls without options share the one of their plan."""

    __slots__ = (
        "claim_terms",
        "deadline",
        "given_key",
        "inline",
        "max_attempts",
        "max_elapsed_ms",
        "mode",
        "path",
        "permits",
        "retry_safe",
        "reuse",
        "safety",
        "timeout_s",
        "unclaimed",
    )

    def __init__(self, plan: Plan, options: Options) -> None:
        tool = plan.tool
        guarded = not plan.pass_through
        self.given_key = options.given_key
        self.mode: str = options.mode
        self.unclaimed: bool = self.mode == "disabled" or (plan.unclaimed and self.given_key is None)
        """Whether the call is made without a claim."""
        self.safety: bool = options.safety_critical
        self.retry_safe: bool = options.retry_safe or tool.spec.forward_key
        self.reuse: Any = _first(tool.reuse_default, options.reuse, "turn")
        best, again, gate = self.mode == "bestEffort", tool.spec.after_undo == "run", plan.ttl_ms
        self.claim_terms: tuple[Any, ...] = ("", plan.idempotent, False, best, self.reuse, 0, False, gate, None, again)
        """The :class:`~antiphon.decide.claim.Claimant` of a plain call, without its identity."""
        self.max_attempts: int = _least(tool.retry.max_attempts, options.max_attempts) if guarded else 1
        self.max_elapsed_ms: int = _least(tool.retry.max_elapsed_ms, options.max_elapsed_ms)
        self.timeout_s = _shorter(tool.timeout, options.timeout_s) if guarded else None
        self.deadline: float | None = options.deadline if guarded else None
        usual = options.breaker == "tool" or plan.off
        self.path: Path = plan.path if usual else plan.breakers.path(tool, options.breaker)
        self.permits: Permits = ()
        """Permits of all breakers on the path, as long as they are closed: then one permit serves all calls."""
        self.inline: bool = plan.inline and self.timeout_s is None and self.deadline is None
        """Whether an attempt is nothing but ``function(**arguments)``."""

    def all_closed(self) -> Permits | None:
        """Permits of all breakers on the path; ``None`` if one of them has to be asked."""
        permits = tuple((breaker, breaker.pass_for_all) for breaker in self.path)
        if any(permit is None for _, permit in permits):
            return None
        self.permits = permits  # type: ignore[assignment]
        return self.permits

    def replied(self, reply: HookReply, plan: Plan) -> bool:
        """Apply what a before-hook may change: the key (unless the caller gave one) and the hints.

        Returns whether the key is the hook's.
        """
        gives_key = reply.idempotency_key is not None and self.given_key is None
        if gives_key:
            self.given_key = reply.idempotency_key
            self.unclaimed = self.mode == "disabled"
        if reply.timeout_ms is not None and not plan.pass_through:
            self.timeout_s = _shorter(self.timeout_s, reply.timeout_ms / 1000)
            self.inline = False
        if reply.safety_critical is not None:
            self.safety = reply.safety_critical
        if reply.expected_retry_safe is not None:
            self.retry_safe = reply.expected_retry_safe or plan.tool.spec.forward_key
        return gives_key


def _first(*values: Any) -> Any:
    return next(value for value in values if value is not None)


def _least(own: int, asked: int | None) -> int:
    return own if asked is None else min(own, asked)


def _shorter(own: float | None, asked: float | None) -> float | None:
    return asked if own is None else own if asked is None else min(own, asked)


NO_OPTIONS = Options()


Keys = tuple[KeyMaker, ClaimTemplate]
"""What the keys and claims of one tool, session and actor share."""


class Plan:
    """What currently applies to the calls of one tool."""

    __slots__ = (
        "_keyed",
        "_settings",
        "approval_rule",
        "bare",
        "bind",
        "bound_loop",
        "breakers",
        "budget",
        "bypass",
        "clock",
        "credit",
        "dirty",
        "event_template",
        "function",
        "guards",
        "hold",
        "hooks",
        "idempotent",
        "inline",
        "is_keyed",
        "known_keys",
        "largest",
        "lease_ms",
        "monotonic",
        "name",
        "off",
        "on_blocked",
        "on_end",
        "on_start",
        "open_mode",
        "pass_through",
        "path",
        "plans",
        "policy",
        "release",
        "renew_every",
        "reporter",
        "results",
        "reuses",
        "shadow",
        "shared",
        "shows",
        "stale",
        "tallies",
        "tally",
        "threads",
        "time_ns",
        "tool",
        "ttl_ms",
        "unclaimed",
        "usual",
        "watches",
    )

    def __init__(self, plans: Plans, tool: Tool, *, shadow_of: Plan | None = None, keyed: bool = False) -> None:
        self.is_keyed: bool = keyed or (shadow_of is not None and shadow_of.is_keyed)
        """Whether its calls name what they are about."""
        self._keyed: Plan | None = None
        spec, settings, reporter = tool.spec, plans.settings, plans.reporter
        self.plans: Plans = plans
        self.tool: Tool = tool
        self.name: str = tool.full_name
        self.stale: bool = False
        """Something has changed since."""
        self._settings = settings
        # what is switched on
        own = [settings.tools[name] for name in (self.name, spec.name) if name in settings.tools]
        self.off: bool = not settings.enabled or any(override.enabled is False for override in own)
        self.pass_through: bool = self.off or shadow_of is not None
        """The layer is off or in shadow mode: the function alone decides."""
        self.open_mode: bool = settings.open_mode and not self.pass_through
        self.unclaimed: bool = self.off or not settings.derive_keys
        self.hooks: Hooks | None = plans.hooks if plans.hooks.active else None
        heard = not self.off
        self.on_start: Listeners = reporter.who_wants("tool_call_start") if heard else ()
        self.on_end: Listeners = reporter.who_wants("tool_call_end") if heard else ()
        self.on_blocked: Listeners = reporter.who_wants("tool_call_blocked") if heard else ()
        self.watches: bool = plans.guards.policy.watches and not self.pass_through
        self.bypass: Callable[..., Any] | None = (
            tool.function
            if self.off and self.hooks is None and tool.context_param is None and tool.approval_rule is None
            else None
        )
        """What a decorated function is if there is nothing to do at all."""
        self.usual: bool = self.bypass is None
        """Calls use this plan: it is not stale, and there is something to do."""
        # what the tool says
        self.function: Callable[..., Any] = tool.function
        self.bind: Callable[..., dict[str, Any]] = tool.quick_bind or tool.bind
        plain = tool.kind == plans.inline_kind and tool.context_param is None and tool.is_plain
        self.inline: bool = plain and not tool.has_point
        self.idempotent: bool = spec.idempotent
        self.approval_rule: ApprovalRule | None = tool.approval_rule
        """Which calls a person must approve; ``None``: none."""
        self.bound_loop: bool = not spec.poll and not spec.cost
        """Whether the loop guard needs to know nothing but the call."""
        self.reuses: bool = spec.idempotent and tool.reuse_default == "session"
        self.ttl_ms: int = int(spec.key_ttl * 1000) if self.is_keyed else tool.ttl.done_ms
        self.lease_ms: int = tool.ttl.lease_ms
        self.renew_every: float = tool.renew_every
        self.shared: bool = not plans.store.in_process
        """Whether another process may take over a claim while this one is paused."""
        self.shows: bool = self.shared and not self.idempotent and not self.pass_through
        """Whether claims keep the arguments: others see them, and a lost worker leaves an unknown outcome."""
        self.event_template: EventTemplate = EventTemplate(spec, tool.streams, tool.decode)
        # what its calls share
        self.clock: Clock = plans.clock
        self.monotonic: Callable[[], float] = plans.clock.monotonic
        self.time_ns: Callable[[], int] = plans.time_ns
        self.breakers: Breakers = plans.breakers if shadow_of is None else plans.shadow_breakers
        self.dirty: dict[str, Breaker] = self.breakers.dirty
        self.path: Path = () if self.off else self.breakers.path(tool, "tool")
        self.budget: TokenBucket = TokenBucket() if self.pass_through else plans.budget(tool)
        self.credit: Callable[[], int] = self.budget.success
        self.largest: int = plans.results.largest_plain
        """The size up to which a result is stored as it is, without inspecting it."""
        self.reporter: Reporter = reporter
        self.results: ResultStore = plans.results
        self.threads: ThreadRunner = plans.bare_threads if self.pass_through else plans.threads
        self.hold: Callable[[Lease, float], None] = plans.leases.hold
        self.release: Callable[[Lease, None], float | None] = plans.leases.release
        self.guards: Guards = plans.guards
        self.tallies: Tallies = Tallies(None if self.off else reporter.metrics, tool)
        self.tally: Tally = self._first_tally
        """Counts a call that simply succeeded."""
        self.known_keys: dict[Place, Keys] = {} if shadow_of is None else shadow_of.known_keys
        self.policy: Policy = Policy(self, NO_OPTIONS)
        self.bare: Policy = Policy(self, NO_OPTIONS) if shadow_of is not None else self.policy
        """What applies to a call in shadow mode itself: nothing."""
        if shadow_of is not None:
            self.bare.path, self.bare.unclaimed = (), True
        shadowed = shadow_of is None and not self.off and (settings.shadow or any(override.shadow for override in own))
        shadowed = shadowed and tool.approval_rule is None  # a call that needs a person is never only watched
        self.shadow: Plan | None = Plan(plans, tool, shadow_of=self) if shadowed else None
        """How calls that are only watched are made."""

    def _first_tally(self, took_ms: float) -> None:
        """A tool that was never called is not counted."""
        self.tally = self.tallies["success", ""]
        self.tally(took_ms)

    def outdate(self) -> None:
        """Something has changed: the next call makes a new plan."""
        self.stale, self.usual = True, False
        if self._keyed is not None:
            self._keyed.outdate()

    def enforces(self, refusal: Refusal) -> bool:
        """Whether an open breaker stops a call: always, if somebody forced it open (D32)."""
        return self.open_mode or (refusal.state == "FORCED_OPEN" and not self.pass_through)

    def now_ms(self) -> int:
        return self.time_ns() // 1_000_000

    def keyed(self) -> Plan:
        """The plan of calls that name what they are about."""
        if self.is_keyed:
            return self
        if self._keyed is None:
            made = self._keyed = Plan(self.plans, self.tool, keyed=True)
            if self.stale:  # outdated in the meantime
                made.outdate()
        return self._keyed

    def as_of_now(self) -> Plan:
        """The current plan after a change."""
        plan = self.plans.plan(self.tool)
        return plan.keyed() if self.is_keyed else plan

    def make_keys(self, place: Place) -> Keys:
        """What the keys and claims of a session and actor share; made once."""
        session, actor, workspace = place
        settings, tool = self._settings, self.tool
        space = workspace or settings.workspace
        maker = KeyMaker(
            tool.spec, session=session, actor=actor, tenant=settings.tenant, workspace=space, keyed=self.is_keyed
        )
        template = ClaimTemplate(
            tool=self.name,
            session=session,
            actor=actor,
            ttl_ms=self.ttl_ms,
            lease_ms=tool.ttl.lease_ms,
            owner=owner_token(),
            tenant=settings.tenant,
            workspace=space,
        )
        if len(self.known_keys) >= _PLACES_KEPT:
            self.known_keys.clear()
        made = self.known_keys[place] = (maker, template)
        return made


class Plans:
    """The plans of one gateway, and the parts they are made of.

    Every change goes through a method here, and each of them invalidates the current plans.
    """

    def __init__(self, dependencies: Dependencies, *, asynchronous: bool) -> None:
        self._reload = dependencies.reload
        self.store: Store = dependencies.store
        settings, clock = in_effect(dependencies.settings), dependencies.clock
        self._given = dependencies.settings
        self.settings: Settings = settings
        """The settings in effect."""
        self.clock: Clock = clock
        plain = type(clock).now_ms is Clock.now_ms
        self.time_ns: Callable[[], int] = time.time_ns if plain else lambda: clock.now_ms() * 1_000_000
        self.reporter: Reporter = dependencies.reporter
        self.fingerprints: Fingerprints = dependencies.fingerprints
        self.results: ResultStore = ResultStore(
            settings, dependencies.redactor, dependencies.sealer, dependencies.blobs, dependencies.masks
        )
        self.inline_kind = "async" if asynchronous else "sync"
        self.tools: dict[str, Tool] = {}
        self.hooks: Hooks = Hooks()
        self.breakers: Breakers = Breakers(clock, settings.breaker_quorum, changed=self.changed)
        self.shadow_breakers: Breakers = Breakers(clock, settings.breaker_quorum, changed=self.changed)
        self.leases: Leases = Leases(dependencies.store, clock, settings, attached=dependencies.renews)
        self.store_breaker: StoreBreaker = self.leases.breaker
        self.watcher: ShadowWorker = ShadowWorker(self.store_breaker)
        self.threads: ThreadRunner = ThreadRunner(settings.abandoned_threads)
        self.bare_threads: ThreadRunner = ThreadRunner(sys.maxsize)
        """For tools that are called as if there were no gateway."""
        self.guards: Guards = Guards(settings.loop)
        self._budgets: dict[str, TokenBucket] = {}
        self._plans: dict[Tool, Plan] = {}
        self.unshared: dict[str, Breaker] = {}
        """Breakers whose state could not be written: retried with the next refresh."""
        self.next_refresh: float = 0.0
        """When changed settings, log levels and breakers of others are checked again."""
        self.was_refreshed: bool = False
        """Whether breakers of others have been read before."""
        renewed_after_fork(self, Plans.changed)  # claims name the process that makes them

    def plan(self, tool: Tool) -> Plan:
        """The current plan of a tool."""
        plan = self._plans.get(tool)
        if plan is None or plan.stale:
            plan = self._plans[tool] = Plan(self, tool)
        return plan

    def changed(self) -> None:
        """A setting, a switch, a hook, a listener, a breaker's place or the process has changed."""
        for plan in tuple(self._plans.values()):
            plan.outdate()

    def add(self, tool: Tool) -> None:
        """Make a tool callable by its full name, and by its short one unless that is taken."""
        tools, short = self.tools, tool.spec.name
        known = tools.get(tool.full_name)
        if known is not None and known.origin != tool.origin:
            raise InvalidInput(
                f"There is a tool {tool.full_name} already: {'.'.join(known.origin)}. "
                "Two tools of one name would share their answers.",
                hint="Give this one another name: @gateway.tool('name', idempotent=...), or another namespace.",
            )
        if known is not None and (before := self._plans.pop(known, None)) is not None:
            before.outdate()  # a function that was decorated with it continues, with a plan of its own
        tools[tool.full_name] = tool
        if short not in tools or tools[short].full_name == tool.full_name:
            tools[short] = tool
        self.reporter.registered(tool)

    def budget(self, tool: Tool) -> TokenBucket:
        """The retry budget of the tool's dependency (D22)."""
        return self._budgets.setdefault(tool.spec.dependency or tool.full_name, TokenBucket())

    def adopt(self, rows: Iterable[BreakerRow], *, pushed: bool = False) -> None:
        """Adopt breaker states that other processes or an operator wrote; *pushed*: at this moment."""
        for key, transition in self.breakers.adopt(rows, pushed=pushed):
            self.reporter.transition(key, transition)

    def unshared_rows(self) -> list[tuple[str, BreakerRow]]:
        """The states of breakers that other processes have yet to be told."""
        return [(name, self.breakers.row(name, breaker)) for name, breaker in tuple(self.unshared.items())]

    def check_for_changes(self) -> None:
        """Check what needs no store: changed settings, and log levels."""
        self.reload()
        self.refreshed()

    def refreshed(self) -> None:
        """Log levels may have changed since the current plans were made."""
        self.next_refresh = self.monotonic() + self.settings.refresh_ms / 1000
        self.was_refreshed = True
        wants, plans = self.reporter.who_wants, tuple(self._plans.values())
        heard = (wants("tool_call_start"), wants("tool_call_end"), wants("tool_call_blocked"))
        if any((plan.on_start, plan.on_end, plan.on_blocked) != heard for plan in plans if not plan.off):
            self.changed()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def reload(self) -> None:
        """Apply changed settings; a configuration that became unusable is reported, and the old one stays."""
        try:
            settings = self._reload()
        except ConfigError as error:
            log.error("the changed configuration was rejected: %s", error)
            return
        if settings is not None:
            self.configure(settings)

    def configure(self, settings: Settings) -> None:
        """Apply new settings while running: switches, per-tool overrides, policies."""
        self.settings, self._given = in_effect(settings, self._given, self.settings), settings
        self.guards.policy = settings.loop
        self.threads.cap = settings.abandoned_threads
        self.breakers.quorum = self.shadow_breakers.quorum = settings.breaker_quorum
        self.leases.configure(settings)
        self.results.configure(settings)
        for tool in dict.fromkeys((*self._plans, *self.tools.values())):  # replaced ones may still be called
            before = tool.breaker_policy
            tool.configure(settings)
            if tool.breaker_policy != before:
                self.breakers.replace(tool)
        self.changed()
