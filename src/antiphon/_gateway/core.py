"""The pipeline, written once: turn, loop guard, claim, attempts, settle (see ``docs/explanation/pipeline.md``).

The synchronous face drives these coroutines with ports that never suspend; the asynchronous face awaits them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from antiphon._gateway import claims, guards, record, settling
from antiphon._gateway.attempts import Attempts, interrupted
from antiphon._gateway.breakers import Breakers
from antiphon._gateway.call import Call, Outcome, failed
from antiphon._gateway.context import held, is_held
from antiphon._gateway.feed import BreakerFeed
from antiphon._gateway.hooks import HookCall, HookReply, Hooks, refused_by_hook
from antiphon._gateway.keeping import Keeper
from antiphon._gateway.parts import Parts
from antiphon._gateway.renewer import Renewer
from antiphon._gateway.settings import Settings
from antiphon._gateway.shadow import Shadow
from antiphon._gateway.switches import Switches
from antiphon._gateway.tool import Tool
from antiphon._scope import current_scope
from antiphon.decide.breaker import Breaker, Refusal
from antiphon.decide.budget import TokenBucket
from antiphon.errors import ConfigError, InvalidInput, StoreError
from antiphon.keys import KeyMaker
from antiphon.ports import BreakerRow, Clock, Journal

if TYPE_CHECKING:
    from antiphon._gateway.express import Ticket

log = logging.getLogger("antiphon.gateway")

_MAKERS_KEPT = 256


class Core:
    """What both faces share: tools, policies, store and the path a call takes."""

    def __init__(self, parts: Parts, *, asynchronous: bool, journal: Callable[[], Journal], clock: Clock) -> None:
        settings = parts.settings
        self.parts = parts
        self.store = parts.store
        self.settings = settings
        self.clock = clock
        self.telemetry = parts.reporter
        self.keeper = Keeper(parts)
        self.asynchronous = asynchronous
        self.in_process = hasattr(parts.store, "in_process")
        """Whether the store lives in this process and can be asked without a coroutine (see ``express``)."""
        self.journal = journal
        self.tools: dict[str, Tool] = {}
        self.hooks = Hooks()
        self.switches = Switches(settings)
        self.breakers = Breakers(clock, settings.breaker_quorum)
        self.feed = BreakerFeed(self)
        self.budgets: dict[str, TokenBucket] = {}
        self.renewer = Renewer(parts.store, clock, settings)
        self.attempts = Attempts(self)
        self.shadow = Shadow(self)
        self.guards = guards.Guards(settings.loop)
        self._unshared: dict[str, Breaker] = {}
        """Breakers whose state could not be written: tried again with the next refresh."""
        self.next_refresh = self._next_reload = 0.0
        self.quiet = False
        """Whether nobody wants to know of single calls; looked at once per ``refresh_ms``."""

    # -- tools ---------------------------------------------------------------------------------------------------

    def find(self, namespace: str, name: str) -> Tool | None:
        return self.tools.get(f"{namespace}/{name}")

    def budget(self, tool: Tool) -> TokenBucket:
        """The retry budget of the tool's dependency (D22)."""
        key = tool.spec.dependency or tool.full_name
        bucket = self.budgets.get(key)
        if bucket is None:
            bucket = self.budgets.setdefault(key, TokenBucket())
        return bucket

    # -- the path of a call --------------------------------------------------------------------------------------

    async def run(self, call: Call) -> Outcome:
        """From the door to the outcome. Only control flow (cancellation, interrupts) leaves as an exception."""
        call.started = started = self.clock.monotonic()
        scope = current_scope()
        if scope is not None:
            call.scope = scope
            if scope.invoker is not None:
                answered = await record.ask_invoker(self, call, scope)
                if answered is not None:
                    return answered
        if started >= self.next_refresh:
            await self.refresh()
        hooked: HookCall | None = None
        if self.hooks.active:
            hooked = self._hook_call(call, 1)
            try:
                reply = self.hooks.before(hooked)
            except Exception as error:
                return await self.finish(call, refused_by_hook(error), hooked, recorded=False)
            if reply is not None:
                _apply(reply, call)
        try:
            self.derive(call)
        except InvalidInput as error:
            outcome = failed("error", "validation_error", str(error))
            return await self.finish(call, outcome, hooked, recorded=False)
        if self.telemetry.wanted("tool_call_start"):
            self.telemetry.start(call)
        if scope is not None:
            record.enter(call, scope)
        switches = self.switches
        try:
            if switches.any_shadow and switches.shadows(call.tool) and not call.safety:
                outcome = await self._shadowed(call, hooked)
            elif (refused := self._short_circuit(call, started)) is not None:
                outcome = refused
            elif call.mode == "disabled" or not (switches.derive_keys or call.given_key):
                outcome = await self._unclaimed(call, hooked)
            else:
                outcome = await self._claimed(call, hooked)
        except BaseException as interrupt:
            await self.interrupted(call, hooked, interrupt)
            raise
        return await self.finish(call, outcome, hooked)

    async def _shadowed(self, call: Call, hooked: HookCall | None) -> Outcome:
        outcome = await self.shadow.run(call)
        if hooked is not None:
            self.hooks.after(hooked, outcome)
        return outcome

    def derive(self, call: Call) -> None:
        """Compute the keys of the call (R2, D1), unless that has been done."""
        if call.digest and call.given_key is None:
            return
        tool = call.tool
        place = (call.session, call.actor, call.workspace)
        maker = tool.makers.get(place)
        if maker is None:
            maker = self._maker(tool, place)
        if call.given_key is None:
            call.key, call.idem_key, call.digest, call.exact, call.fingerprint = maker.keys(call.params)
        else:
            keys = maker.keys_given(call.params, call.given_key)
            call.key, call.idem_key, call.digest, call.exact, call.fingerprint = keys
            call.identity = call.key

    def _maker(self, tool: Tool, place: tuple[str, str, str | None]) -> KeyMaker:
        """What the keys of a tool, session and actor share is computed once."""
        session, actor, workspace = place
        maker = KeyMaker(
            tool.spec,
            session=session,
            actor=actor,
            tenant=self.settings.tenant,
            workspace=workspace or self.settings.workspace,
        )
        if len(tool.makers) >= _MAKERS_KEPT:
            tool.makers.clear()
        tool.makers[place] = maker
        return maker

    def _hook_call(self, call: Call, attempt: int) -> HookCall:
        spec = call.tool.spec
        return HookCall(
            spec.name, spec.namespace, call.params, call.session, call.actor, call.request_id, call.call_id, attempt
        )

    def _short_circuit(self, call: Call, now: float) -> Outcome | None:
        """Deadline, turn control, loop guard and reentrancy: what needs no store."""
        if call.deadline is not None and call.deadline <= now:
            return failed("retry_exhausted", "deadline_exceeded", "The deadline had passed before the call was made.")
        if call.turn is not None:
            denied: Outcome | None = call.turn.deny(call)
            if denied is not None:
                return denied
        guard = self.guards.of(call)
        if guard is not None:
            call.guard = guard
            blocked = guard.before(call, now)
            if blocked is not None:
                return blocked
        if held.get() is not None and call.mode != "disabled" and is_held(call.key):
            message = f"{call.tool.full_name} called itself with equal arguments; its own call is still running."
            return failed("retriable_error", "in_flight", message, retriable=True, reason="reentrant")
        return None

    async def _unclaimed(self, call: Call, hooked: HookCall | None) -> Outcome:
        refusal = self._refused(call)
        if refusal is not None:
            return refusal
        try:
            await record.start(self, call)
        except StoreError as error:
            return await self._outage(call, hooked, error)
        return await self.attempts.run(call, hooked)

    async def _claimed(self, call: Call, hooked: HookCall | None) -> Outcome:
        refusal = self._refused(call)
        if refusal is not None:
            return await claims.answer_if_done(self, call) or refusal
        try:
            answer = await claims.claim(self, call)
            if answer is not None:
                return answer
            if call.scope is not None and not call.recorded:
                await record.start(self, call)
            if self.clock.monotonic() - call.started > call.tool.renew_every:
                answer = await self._after_a_while(call)
                if answer is not None:
                    return answer
        except StoreError as error:
            if call.version:
                await settling.write(self, call, settling.not_dispatched(call), None)
                call.version = 0
            return await self._outage(call, hooked, error)
        self.renewer.hold(call)
        return await self._dispatch(call, hooked, None)

    async def _after_a_while(self, call: Call) -> Outcome | None:
        """This worker may have been away since it won the claim: make sure of it, or claim once more."""
        while not await self.journal().renew(call.key, call.version, call.tool.ttl.lease_ms):
            call.version = 0
            answer = await claims.claim(self, call)
            if answer is not None:
                return answer
        return None

    async def _dispatch(self, call: Call, hooked: HookCall | None, error: BaseException | None) -> Outcome:
        """Make the attempts of a claimed call and settle it; *error* is what the first one has raised already."""
        try:
            outcome = await self.attempts.run(call, hooked, error)
            if outcome.stream is None:  # else settled when the stream ends
                self.renewer.release(call)
                call.outcome = outcome
                await settling.settle(self, call, outcome)
        finally:
            if call.gate is not None:
                call.gate.set()
        return outcome

    def carry_on(self, ticket: Ticket) -> Call:
        """The call behind a ticket, its lease now held by the call."""
        call = ticket.to_call()
        self.renewer.release(ticket)
        self.renewer.hold(call)
        return call

    async def resume(self, call: Call, error: BaseException) -> Outcome:
        """Go on in the pipeline with a call whose first attempt has raised *error* (see ``express``)."""
        try:
            self.complete(call)
            outcome = await self._dispatch(call, None, error)
        except BaseException as interrupt:
            await self.interrupted(call, None, interrupt)
            raise
        return await self.finish(call, outcome, None)

    async def finish_plain(self, call: Call, value: Any) -> Outcome:
        """Settle a successful call whose result needs more than the straight way (see ``express``)."""
        outcome = call.outcome = Outcome("success", value, 1)
        try:
            self.complete(call)
            now = self.clock.monotonic()
            self.attempts.note(call, call.started, now)
            self.attempts.succeeded(self.breakers.path(call.tool, call.hint), call.permits, now)
            self.renewer.release(call)
            await settling.settle(self, call, outcome)
        except BaseException as interrupt:
            await self.interrupted(call, None, interrupt)
            raise
        return await self.finish(call, outcome, None)

    def complete(self, call: Call) -> None:
        """The digests that the straight way leaves out."""
        key = call.key
        self.derive(call)
        call.key = key

    async def interrupted(self, call: Call, hooked: HookCall | None, interrupt: BaseException) -> None:
        """The caller was cancelled or the process interrupted: settle what was begun, then let it pass."""
        self.renewer.release(call)
        if not self.asynchronous:
            await self._wrap_up(call, hooked, interrupt)
        elif not isinstance(interrupt, GeneratorExit):  # a closed coroutine cannot wait: the lease will run out
            import asyncio

            await asyncio.shield(asyncio.ensure_future(self._wrap_up(call, hooked, interrupt)))

    async def _wrap_up(self, call: Call, hooked: HookCall | None, interrupt: BaseException) -> None:
        outcome = call.outcome or interrupted(call, interrupt)
        if call.outcome is not None:  # only the writing was interrupted
            if call.version:
                await settling.settle(self, call, call.outcome)
        elif call.version:
            why = f"the caller was interrupted ({type(interrupt).__name__})"
            await settling.write(self, call, settling.interrupted_final(call, why), outcome)
        await self.finish(call, outcome, hooked)

    async def _outage(self, call: Call, hooked: HookCall | None, error: StoreError) -> Outcome:
        """The store cannot be used: reads may run unprotected, everything else fails closed (D10)."""
        fail_open = call.tool.safe_outage and not call.safety and error.code != "store_version"
        self.telemetry.outage(call, error, fail_open)
        if fail_open:
            outcome = await self.attempts.run(call, hooked)
            outcome.metadata = {**(outcome.metadata or {}), "unprotected": error.code}
            return outcome
        message = f"The call was not made: {error}"
        return failed("retriable_error", error.code, message, retriable=True, reason="store")

    def _refused(self, call: Call) -> Outcome | None:
        """The answer of an open breaker, without touching the tool."""
        for _, breaker in self.breakers.path(call.tool, call.hint):
            refusal = breaker.peek(call.started)
            if refusal is not None and self.switches.open_mode:
                return circuit_open(call, refusal)
        return None

    async def finish(
        self,
        call: Call,
        outcome: Outcome,
        hooked: HookCall | None,
        *,
        recorded: bool = True,
        elsewhere: bool = False,
    ) -> Outcome:
        """Tell everybody who has to know what came of the call; *elsewhere*: from another thread than the call's."""
        if hooked is not None and outcome.attempts == 0:
            self.hooks.after(hooked, outcome)
        if outcome.stream is not None:
            return outcome
        if recorded:
            if call.turn is not None:
                call.turn.note(call, outcome)
            if call.guard is not None:
                call.guard.after(call, outcome)
            if call.site is not None:
                await record.finish(self, call, outcome, self.asynchronous and not elsewhere)
        if self.breakers.dirty and not elsewhere:
            await self.share_breakers()
        self.telemetry.end(call, outcome, (self.clock.monotonic() - call.started) * 1000)
        return outcome

    # -- shared state --------------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """At most once per ``refresh_ms``: changed settings, log levels, and breaker state that others wrote."""
        self.quiet = not self.telemetry.wanted("tool_call_end")
        self.next_refresh = self.clock.monotonic() + self.settings.refresh_ms / 1000
        self.reload()
        try:
            journal = self.journal()
            if journal.durable:
                await self.feed.refresh(journal)
        except StoreError as error:
            log.warning("breaker state could not be read: %s", error)
            return
        if self._unshared:
            self.breakers.dirty, self._unshared = {**self._unshared, **self.breakers.dirty}, {}
            await self.share_breakers()

    def reload(self) -> None:
        """Take changed settings; a configuration that became unusable is reported, and the old one stays."""
        try:
            settings = self.parts.reload()
        except ConfigError as error:
            log.error("the changed configuration was not taken: %s", error)
            return
        if settings is not None:
            self.configure(settings)

    def bypassed(self, tool: Tool) -> bool:
        """Whether the layer is switched off for the tool. Looks, too, whether it was switched on again."""
        now = self.clock.monotonic()
        if now >= self._next_reload:
            self._next_reload = now + self.settings.refresh_ms / 1000
            self.reload()
        switches = self.switches
        return not switches.enabled or tool.full_name in switches.tools_off or tool.spec.name in switches.tools_off

    def log_scrape(self, error: StoreError) -> None:
        """The store's records could not be counted for the metrics."""
        log.warning("the records could not be counted: %s", error)

    def adopt(self, rows: Iterable[BreakerRow]) -> None:
        """Take over breaker state from the store."""
        for key, transition in self.breakers.adopt(rows):
            self.telemetry.transition(key, transition)

    async def share_breakers(self) -> None:
        """Write the state of breakers that changed here."""
        dirty, self.breakers.dirty = self.breakers.dirty, {}
        for key, breaker in dirty.items():
            try:
                await self.journal().save_breaker(self.settings.tenant, self.breakers.row(key, breaker))
            except StoreError as error:
                log.warning("the state of breaker %s could not be shared yet: %s", key, error)
                self._unshared[key] = breaker

    def configure(self, settings: Settings) -> None:
        """Take new settings while running: switches, per-tool overrides, policies."""
        self.settings = settings
        self.switches.take(settings)
        for tool in set(self.tools.values()):
            before = tool.breaker_policy
            tool.configure(tool.spec, settings)
            tool.makers.clear()
            if tool.breaker_policy != before:
                self.breakers.replace(tool)


def circuit_open(call: Call, refusal: Refusal) -> Outcome:
    """The outcome of a call that an open breaker refused."""
    wait = f" Try again in {refusal.retry_after_ms / 1000:.1f} s." if refusal.retry_after_ms else ""
    reason = f" ({refusal.reason})" if refusal.reason else ""
    why = "an operator or its settings forced it open" if refusal.state == "FORCED_OPEN" else "it failed too often"
    outcome = failed(
        "circuit_open",
        "circuit_open",
        f"{call.tool.full_name} is fenced off{reason}: {why}. The call was not made.{wait}",
        retriable=True,
    )
    outcome.breaker = refusal.state
    return outcome


def _apply(reply: HookReply, call: Call) -> None:
    """What a before-hook may change: the key (unless the caller gave one) and the hints."""
    if reply.idempotency_key and call.given_key is None:
        call.given_key = reply.idempotency_key
        call.from_hook = reply.name
    if reply.timeout_ms is not None:
        seconds = reply.timeout_ms / 1000
        call.timeout = seconds if call.timeout is None else min(call.timeout, seconds)
    if reply.safety_critical is not None:
        call.safety = reply.safety_critical
    if reply.expected_retry_safe is not None:
        call.retry_safe = reply.expected_retry_safe
