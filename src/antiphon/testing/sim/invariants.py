"""What must hold after every step, whatever the seed does.

| invariant      | in words                                                                                       |
|----------------|------------------------------------------------------------------------------------------------|
| one dispatch   | a tool that may not be repeated is not dispatched while an earlier outcome of its intent is    |
|                | open, except by a worker that had no way to know; no call repeats it by itself                 |
| honest records | a record never says "not dispatched", or keeps a definite failure, of a call whose effect is open |
| fencing        | a record's result was produced under the record's own fence; an older fence is not dispatched  |
|                | after a newer one, except by a worker that had no way to know                                  |
| leases         | a worker that was neither paused nor killed nor cut off never loses its claim                  |
| identity       | a call that was answered for good gets the same answer again, whatever ran since; so does      |
|                | another delivery of it that was under way at that moment                                       |
| no call        | a call that may not be repeated and came after an equal one was over is dispatched, not         |
| vanishes       | answered with the other's result; only a redelivery and a caller who waited share              |
| intent         | nobody is given the result of another intent                                                   |
| epochs         | a breaker closes only after good probes that were sent in its half-open period                 |
| switches       | the configuration as of a call's start binds it: switched on, the tool is dispatched with a    |
|                | claim; off, without one; in shadow, with one that binds nobody                                 |
| alone          | off or in shadow, a call is dispatched once, and its answer is what its own dispatch returned  |
| an end         | every call of a living worker is answered, or passes its cancellation on, and leaves no claim  |
|                | in flight and no lease behind                                                                  |

A worker has no way to know if it was paused after the store had confirmed its claim and before it entered the tool: no
client can check and act in one step. For this, a tool can pass its fence to its sink. Before a retry, a worker can
check again. A worker that checks after its lease has run out knows as little: another one that saw the lease run out
may be about to take over, and a renewal does not stop that.

Calls have no binding claim while the layer is off or in shadow, while keys are not derived, with
``dedupeMode: disabled``, or unprotected because the store cannot be reached (reads only). For them *intent*, *alone*,
*switches* and *an end* hold, and none of them repeats an attempt whose effect is open. *One dispatch* between calls,
*honest records*, *fencing* and *identity* do not apply: they and other calls do not know of each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, NamedTuple

import msgspec

from antiphon.adapters._calls import ToolAnswer
from antiphon.contract._base import UNSET
from antiphon.contract.result import ToolDenied, ToolResultEnvelope
from antiphon.decide.breaker import RESET_REASON, Transition
from antiphon.decide.claim import UNKNOWN_CODE
from antiphon.ports import Existing, Settlement
from antiphon.testing.sim.plan import LEASE_S, SHORT_LIFE_S, Plan
from antiphon.testing.sim.world import Mode, Process, World


@dataclass(eq=False)
class Asked:
    """One call of one worker: what the store and the tool know about it."""

    number: int
    identity: str
    """Equal for redeliveries; unique for a call that cannot be redelivered."""
    intent: str
    worker: Process
    at: float
    claims: bool
    """Whether the caller wants a claim at all (``dedupeMode`` is not ``disabled``)."""
    without_metadata: bool
    """Whether the answer comes without metadata (a decorated function)."""
    until: float = inf
    """Its deadline."""
    request: Any = None
    """The claim request to the store: the guarded call itself."""
    cut_off: bool = False
    """A request to the store, or its answer, was lost."""
    unbound: bool = False
    """It was dispatched without a claim."""
    dispatches: list[int] = field(default_factory=list)

    @property
    def fence(self) -> int:
        """The version of the claim that it knows it holds; 0: none."""
        return 0 if self.request is None else int(self.request.version)

    @cached_property
    def modes(self) -> frozenset[Mode]:
        """The modes of its worker from the start of the call to its first claim or dispatch: it follows one of them."""
        return self.worker.modes_since(self.at)


asking: ContextVar[Asked | None] = ContextVar("antiphon_sim_asking", default=None)
"""The current call of this context."""


class Answered(NamedTuple):
    """What the caller got, through whichever entry point."""

    code: str
    """The error code; empty for a success."""
    value: Any = None
    from_cache: bool = False
    metadata: dict[str, Any] = {}


def answer_of(result: Any) -> Answered:
    """An envelope, a denial, what an adapter was given, or the return value of a decorated function."""
    if isinstance(result, ToolDenied):
        return Answered(result.code)
    if isinstance(result, ToolAnswer):
        return Answered(result.code, first_of(result.value), result.reused)
    if not isinstance(result, ToolResultEnvelope):
        return Answered("", first_of(result))
    if result.output is None:
        return Answered(result.code, from_cache=result.from_cache)
    metadata = result.output.metadata or {}
    return Answered("", first_of(result.output.content), result.from_cache, metadata)


def first_of(value: Any) -> Any:
    """Every chunk of a stream has the same content."""
    return value[0] if isinstance(value, list) else value


def failure_of(error: Exception) -> Answered:
    """The exception of a decorated function."""
    return Answered(getattr(error, "code", type(error).__name__))


LEFT = "left"
"""The result of a reader that left a stream."""
_OPEN_ENDS = ("ETIMEDOUT", "http_503")
_SHADOW = "shadow."
_NOT_ANSWERS = ("store_unavailable", "deadline_exceeded", "denied", LEFT)
"""Codes that say nothing about the call itself."""


@dataclass(eq=False)
class Dispatch:
    """One attempt that reached the tool."""

    number: int
    intent: str
    identity: str
    fence: int
    worker: Process
    began: float
    ended: float | None = None
    ok: bool = False
    effect: bool = False
    """It changed something in the outside world."""
    no_effect: bool = False
    closed: bool = False
    """A record has its outcome."""
    closed_at: float = inf
    unknown_at: float = inf
    """Since then a record says that its outcome is unknown."""
    denied: bool = False
    """A record says that it was not dispatched."""


def _leaves_open(settlement: Settlement, code: str) -> bool:
    """Whether a record says that the outcome of its call is unknown."""
    failed = settlement.state == "failed" and code != UNKNOWN_CODE
    return settlement.dispatched and settlement.state != "done" and not failed


class Claim(NamedTuple):
    """A claim that was won and has not been settled."""

    worker: Process
    since: float
    until: float
    """The deadline of its call, at which renewal ends."""


class Invariants:
    """Watches a simulation; the first broken invariant ends it."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.broken: str = ""
        self.seen: Counter[str] = Counter()
        self._dispatches: dict[str, list[Dispatch]] = {}
        """By intent: those with a binding claim."""
        self._by_call: dict[int, list[Dispatch]] = {}
        self._claims: dict[tuple[str, int], Claim] = {}
        self._current: dict[str, int] = {}
        self._shadows: set[int] = set()
        """Fences of claims that bind nobody."""
        self._fences: dict[int, int] = {}
        """Every later version of a record -> its fence."""
        self._unknown: dict[int, float] = {}
        """Fence -> since when its record says that the outcome is unknown."""
        self._over: set[int] = set()
        """Fences whose records have an outcome."""
        self._verified: dict[int, float] = {}
        """When the store last confirmed that a fence holds its claim."""
        self._lapsed: set[int] = set()
        """Fences whose lease had run out by then."""
        self._answers: dict[str, tuple[float, Any]] = {}
        """By identity: when it received its first final answer, and which."""
        self._first_asked: dict[str, float] = {}
        self._half_open: dict[str, float] = {}
        self._intents: dict[str, str] = {}
        """By key."""
        self._forgotten: set[str] = set()
        """Intents for which the store lost a confirmed write."""

    def lost_writes(self, keys: set[str]) -> None:
        """The store forgot the last writes to these keys: little can be promised for their intents."""
        self._forgotten |= {self._intents[key] for key in keys if key in self._intents}
        for held in [held for held in self._claims if held[0] in keys]:
            self._claims.pop(held)
        for key in keys:
            self._current.pop(key, None)

    def breaks(self, invariant: str, text: str) -> None:
        if not self.broken:
            self.broken = f"{invariant}: {text}"
            self.world.say(f"BROKEN  {self.broken}")
            self.world.stop()

    # -- claims --------------------------------------------------------------------------------------------------

    def claimed(self, key: str, version: int, worker: Process, asked: Asked | None) -> None:
        """The store gave the claim on an intent to a worker."""
        before = self._current.get(key)
        held = None if before is None else self._claims.get((key, before))
        if held is not None:
            self.seen["takeovers"] += 1
            if self._is_well(held):
                self.breaks("leases", f"{worker.name} took the claim of {held.worker.name}, which was well")
        self._current[key] = version
        if asked is not None:
            self._intents[key] = asked.intent
        self._claims[key, version] = Claim(worker, self.world.now, inf if asked is None else asked.until)
        self._verified[version] = self.world.now
        shadow = key.startswith(_SHADOW)
        if shadow:
            self._shadows.add(version)
        who = "somebody" if asked is None else asked.identity
        self.world.say(f"{worker.name}: claims {who} as {version}{' in shadow' if shadow else ''}")
        if asked is not None:
            self._check_switches(asked, "shadow" if shadow else "on", "was claimed")

    def _is_well(self, held: Claim) -> bool:
        """Whether nothing prevented the holder of a claim from renewing its lease."""
        return held.worker.healthy_since(held.since) and self.world.now < held.until

    def renewed(self, version: int) -> None:
        """The store confirmed that a claim is still held."""
        ran_out = self.world.now >= self._verified.get(version, self.world.now) + LEASE_S
        (self._lapsed.add if ran_out else self._lapsed.discard)(version)
        self._verified[version] = self.world.now

    def settled(
        self, key: str, version: int, settlement: Settlement, worker: Process, became: int, found: Existing | None
    ) -> None:
        """The store accepted a settlement, or the true outcome of an unknown call; *found* is what it shows then."""
        code = "" if settlement.error is None else settlement.error[0]
        fence = self._fences[became] = self._fences.get(version, version)
        self.world.say(f"{worker.name}: settles fence {fence} as {settlement.state} {code}")
        held = self._claims.pop((key, version), None)
        if held is not None and held.worker is not worker and self._is_well(held):
            self.breaks("leases", f"{worker.name} gave up on {held.worker.name}, which was well")
        if fence in self._shadows:
            return
        if _leaves_open(settlement, code):
            self._unknown.setdefault(fence, self.world.now)
        else:
            self._over.add(fence)
        for dispatch in self._of_fence(fence):
            self._judge_record(dispatch, settlement, code, read_back=fence != version)
        if self._intents.get(key) in self._forgotten:
            return
        if found is not None and found.current.state == "done" and found.current.payload is not UNSET:
            kept = first_of(msgspec.json.decode(found.current.payload))
            if kept["fence"] != found.current.fence:
                self.breaks("fencing", f"the record of fence {found.current.fence} holds a result of {kept['fence']}")

    def _judge_record(self, dispatch: Dispatch, settlement: Settlement, code: str, read_back: bool) -> None:
        answered_no = code == "http_400" and not dispatch.effect  # it ran, and reports that nothing happened
        surely = not dispatch.effect if read_back else dispatch.no_effect or answered_no
        failed = settlement.state == "failed" and code != UNKNOWN_CODE
        if settlement.state == "cancelled" and not settlement.dispatched and not surely:
            self.breaks("honest records", f"act({dispatch.intent}) is recorded as not dispatched, but it was")
        if failed and not self.plan.idempotent and (code in _OPEN_ENDS or dispatch.effect):
            self.breaks("honest records", f"act({dispatch.intent}) may have happened, but is recorded as {code}")
        dispatch.denied = settlement.state == "cancelled" and not settlement.dispatched
        if _leaves_open(settlement, code):
            dispatch.unknown_at = min(dispatch.unknown_at, self.world.now)
        else:
            self._close(dispatch)

    def took_effect(self, dispatch: Dispatch) -> None:
        """The dispatch took effect."""
        dispatch.effect = True
        if dispatch.denied:
            self.breaks("honest records", f"act({dispatch.intent}) took effect, but is recorded as not made")

    def happened(self, fence: int) -> bool | None:
        """What a perfect read-back would say about the call that held *fence*; ``None`` while it may still happen."""
        found = self._of_fence(fence)
        if any(dispatch.effect for dispatch in found):
            return True
        if any(dispatch.ended is None and not dispatch.worker.dead for dispatch in found):
            return None
        for dispatch in found:  # whoever reads it may act on it: a replaced record cannot be settled
            self._close(dispatch)
        return False

    def _close(self, dispatch: Dispatch) -> None:
        dispatch.closed = True
        dispatch.closed_at = min(dispatch.closed_at, self.world.now)

    def _of_fence(self, fence: int) -> list[Dispatch]:
        return [dispatch for found in self._dispatches.values() for dispatch in found if dispatch.fence == fence]

    # -- dispatches ----------------------------------------------------------------------------------------------

    def dispatched(self, intent: str, fence: int, worker: Process, asked: Asked) -> Dispatch:
        """The tool is entered."""
        self.seen["dispatches"] += 1
        dispatch = Dispatch(self.seen["dispatches"], intent, asked.identity, fence, worker, self.world.now)
        self.world.say(f"{worker.name}: act({intent}) fence {fence} for {asked.identity}")
        own = self._by_call.setdefault(asked.number, [])
        asked.dispatches.append(dispatch.number)
        binds = fence != 0 and fence not in self._shadows
        self._check_switches(asked, "on" if binds else "shadow" if fence else "off", "was dispatched")
        if not self.plan.idempotent and any(not other.no_effect for other in own):
            self.breaks("one dispatch", f"{asked.identity} tried act({intent}) again although it may have happened")
        if asked.modes <= {"off", "shadow"} and own:
            self.breaks("alone", f"{asked.identity} tried act({intent}) again while the layer was off or in shadow")
        if binds:
            self._compare(dispatch, worker, tried_blindly=self._tried_blindly(own, fence, asked))
        else:
            asked.unbound = True
            self.seen["dispatches without a claim that binds"] += 1
        own.append(dispatch)
        return dispatch

    def _tried_blindly(self, own: list[Dispatch], fence: int, asked: Asked) -> bool:
        """Whether a retry did not check first, although it could, that the claim is still its own."""
        ended = max((other.ended for other in own if other.ended is not None), default=None)
        return ended is not None and self._verified[fence] < ended and not asked.cut_off

    def _check_switches(self, asked: Asked, seems: str, what: str) -> None:
        """Check that a mode which the call may have seen explains what was done."""
        allowed = {"on": "on", "off": "off", "shadow": "shadow", "no keys": "off"}
        explained = {allowed[mode] for mode in asked.modes}
        if "no keys" in asked.modes and self.plan.is_keyed(asked.identity):
            explained.add("on")
        if "on" in asked.modes and (not asked.claims or (asked.cut_off and self.plan.spec.effect == "read")):
            explained.add("off")
        if "shadow" in asked.modes:
            explained.add("off")  # another call holds the shadow claim, or the store cannot be reached
        if seems not in explained:
            modes = ", ".join(sorted(asked.modes))
            self.breaks("switches", f"{asked.identity} {what} as if {seems}, while the layer was: {modes}")

    def _compare(self, dispatch: Dispatch, worker: Process, *, tried_blindly: bool) -> None:
        """Check against earlier dispatches of the same intent."""
        intent, fence = dispatch.intent, dispatch.fence
        earlier = self._dispatches.setdefault(intent, [])
        looked = worker.healthy_since(self._verified[fence]) and fence not in self._lapsed
        knew = tried_blindly or looked
        dispatch.unknown_at = self._unknown.get(fence, inf)  # others gave up on it: its record already says so
        if fence in self._over:
            self._late(knew, intent, "fencing", f"fence {fence} was dispatched after its record was settled")
            self._close(dispatch)
        for other in earlier:
            if other.fence > fence:
                self._late(knew, intent, "fencing", f"fence {fence} was dispatched after {other.fence}")
                self._close(dispatch)  # its record is settled without knowing of it
            if self.plan.idempotent:
                continue
            if other.fence == fence and not other.no_effect:
                self.breaks("one dispatch", f"act({intent}) was tried again although it may have happened")
            if other.fence != fence and not other.closed and not self._gate_is_over(other, dispatch):
                text = f"act({intent}) by {worker.name} while fence {other.fence} is open"
                self._late(knew, intent, "one dispatch", text)
        earlier.append(dispatch)

    def _gate_is_over(self, other: Dispatch, dispatch: Dispatch) -> bool:
        """Whether an unknown outcome is so old that it no longer stops a new call of its intent."""
        over = self.world.now >= other.unknown_at + self.plan.life_s and other.identity != dispatch.identity
        self.seen["calls after the gate of an unknown one"] += over
        return over

    def _late(self, knew: bool, intent: str, invariant: str, text: str) -> None:
        """A worker that was paused right after the store confirmed its claim cannot know; a sink can, by the fence."""
        if intent in self._forgotten:
            self.seen[f"after a lost write, not promised: {invariant}"] += 1
        elif knew:
            self.breaks(invariant, text)
        else:
            self.seen["dispatches only a fence can stop"] += 1

    # -- answers -------------------------------------------------------------------------------------------------

    def answered(self, asked: Asked, answer: Answered) -> None:
        """A caller got its answer."""
        self.seen[answer.code or ("reused" if answer.from_cache else "answered")] += 1
        if not answer.code and answer.value["what"] != asked.intent:
            self.breaks("intent", f"{asked.identity} asked for {asked.intent} and got {answer.value['what']}")
        self._check_shared(asked, answer)
        if asked.modes <= {"off", "shadow"}:
            self._answered_alone(asked, answer)
        elif asked.modes == {"on"} and not asked.unbound:
            self._answered_for_good(asked, answer)

    def asked(self, asked: Asked) -> None:
        """A call begins."""
        self._first_asked.setdefault(asked.identity, asked.at)

    def _check_shared(self, asked: Asked, answer: Answered) -> None:
        """Check that the caller could have waited for what it was given."""
        if answer.code or self.plan.idempotent or not answer.value["number"]:
            return
        since, number = self._first_asked[asked.identity], answer.value["number"]
        for dispatch in self._dispatches.get(asked.intent, ()):
            if dispatch.number != number or dispatch.closed_at >= since:
                continue
            if asked.intent in self._forgotten:  # its settlement was lost and written again: it was in flight once more
                self.seen["after a lost write, not promised: no call vanishes"] += 1
            else:
                self.breaks("no call vanishes", f"{asked.identity} was given dispatch {number}, which was over before")

    def _answered_alone(self, asked: Asked, answer: Answered) -> None:
        if answer.from_cache or (not answer.code and answer.value["number"] not in asked.dispatches):
            self.breaks("alone", f"{asked.identity} got {answer.value}, which its own dispatch did not return")

    def _answered_for_good(self, asked: Asked, answer: Answered) -> None:
        identity, metadata = asked.identity, answer.metadata
        first = self._answers.get(identity)
        if asked.intent in self._forgotten:
            return
        if first is not None and self._has_expired(asked, first[1]):
            first = None
            del self._answers[identity]
        if answer.code:
            if first is not None and first[0] <= asked.at and answer.code not in _NOT_ANSWERS:
                self.breaks("identity", f"{identity} was answered {first[1]}, and later with {answer.code}")
            return
        value = answer.value
        uncertain = "fenced" in metadata or "notRecorded" in metadata
        if asked.without_metadata and not asked.worker.healthy_since(asked.at):
            uncertain = True  # a decorated function returns no metadata
        if asked.cut_off and (asked.without_metadata or metadata.get("reused") or metadata.get("reconciled")):
            uncertain = True  # the store may not have learned that this caller shared an answer, or could not refuse
        if first is not None and first[1] != value and (first[0] <= asked.at or not uncertain):
            self.breaks("identity", f"{identity} was answered {first[1]}, and another delivery of it {value}")
        if first is None and not uncertain:
            self._answers[identity] = (self.world.now, value)

    def _has_expired(self, asked: Asked, value: Any) -> bool:
        """Whether the store may have forgotten an answer: from then on the same identity is a new call."""
        if self.plan.life_s > SHORT_LIFE_S or asked.identity in self.plan.named_keys.values():
            return False
        settled = (d.ended for d in self._dispatches.get(asked.intent, ()) if d.number == value["number"])
        ended = next(settled, None)
        over = ended is None or self.world.now >= ended + self.plan.life_s
        self.seen["answers that expired"] += over
        return over

    # -- breakers ------------------------------------------------------------------------------------------------

    def moved(self, worker: Process, move: Transition) -> None:
        """A breaker changed its state."""
        self.world.say(f"{worker.name}: breaker {move.from_state} -> {move.to_state} ({move.reason})")
        self.seen[f"breaker to {move.to_state}"] += 1
        if move.to_state == "HALF_OPEN":
            self._half_open[worker.name] = self.world.now
        if move.from_state == "HALF_OPEN" and move.to_state == "CLOSED" and not move.reason.startswith(RESET_REASON):
            since = self._half_open[worker.name]
            good = sum(
                dispatch.ok and dispatch.worker is worker and dispatch.began >= since
                for found in self._by_call.values()
                for dispatch in found
            )
            if good < self.plan.close_after:
                wanted = self.plan.close_after
                self.breaks("epochs", f"the breaker of {worker.name} closed after {good} good probes, not {wanted}")

    # -- the end -------------------------------------------------------------------------------------------------

    def nothing_is_left(self, busy: Iterable[str]) -> None:
        """All calls are over; *busy* are the living workers that still renew leases."""
        for (key, version), claim in self._claims.items():
            if self._current.get(key) == version and claim.worker.healthy_since(claim.since):
                self.breaks("an end", f"{claim.worker.name} left its claim {version} in flight")
        for name in busy:
            self.breaks("an end", f"{name} still renews leases")
