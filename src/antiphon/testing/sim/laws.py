"""What must hold after every step, whatever the seed does.

| law            | in words                                                                                       |
|----------------|------------------------------------------------------------------------------------------------|
| one dispatch   | a tool that may not be repeated is not dispatched while an earlier outcome of its intent is    |
|                | open, except by a worker that had no way to know                                               |
| honest records | a record never says "not dispatched", or keeps a definite failure, of a call whose effect is open |
| fencing        | a record's result was produced under the record's own fence; an older fence is not dispatched  |
|                | after a newer one, except by a worker that had no way to know                                  |
| leases         | a worker that was neither paused nor killed nor cut off never loses its claim                  |
| identity       | a call that was answered for good gets the same answer again, whatever ran since; so does      |
|                | another delivery of it that was under way at that moment                                       |
| intent         | nobody is given the result of another intent                                                   |
| epochs         | a breaker closes only after good probes that were sent in its half-open period                 |
| an end         | every call of a living worker is answered                                                      |

A worker has no way to know when it was paused after the store had confirmed its claim and before it entered the tool:
no client can look and act in one step. That is what the fence is for that a tool can hand to its sink.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from antiphon._gateway.call import Outcome
from antiphon._gateway.context import CallContext
from antiphon.contract._base import UNSET
from antiphon.decide.breaker import Transition
from antiphon.decide.claim import UNKNOWN_CODE
from antiphon.ports import Ask, Final

if TYPE_CHECKING:
    from antiphon.testing.sim.plan import Plan
    from antiphon.testing.sim.store import Shared
    from antiphon.testing.sim.worker import Worker
    from antiphon.testing.sim.world import World

_OPEN_ENDS = ("ETIMEDOUT", "http_503")


class Dispatch:
    """One attempt that reached the tool."""

    def __init__(self, number: int, intent: str, fence: int, worker: Worker, began: float) -> None:
        self.number = number
        self.intent = intent
        self.fence = fence
        self.worker = worker
        self.began = began
        self.ended: float | None = None
        self.ok = False
        self.effect = False
        """Something changed in the world."""
        self.no_effect = False
        self.closed = False
        """A record says what became of it."""


class Claim:
    """A claim that was won and has not been settled."""

    def __init__(self, worker: Worker, since: float) -> None:
        self.worker = worker
        self.since = since


class Laws:
    """Watches a story; the first law that is broken ends it."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self.shared: Shared | None = None
        self.broken = ""
        self.seen: Counter[str] = Counter()
        self._dispatches: dict[str, list[Dispatch]] = {}
        self._claims: dict[tuple[str, int], Claim] = {}
        self._current: dict[str, int] = {}
        self._fences: dict[int, int] = {}
        """The fence behind every later version of a record."""
        self._verified: dict[int, float] = {}
        """When the store last said that a fence holds its claim."""
        self._answers: dict[str, tuple[float, Any]] = {}
        """By identity: when it was first answered for good, and with what."""
        self._half_open: dict[str, float] = {}

    def breaks(self, law: str, text: str) -> None:
        if not self.broken:
            self.broken = f"{law}: {text}"
            self.world.say(f"BROKEN  {self.broken}")
            self.world.stop()

    # -- claims --------------------------------------------------------------------------------------------------

    def claimed(self, ask: Ask, version: int, worker: Worker) -> None:
        """The store gave the claim on an intent to a worker."""
        before = self._current.get(ask.key)
        held = None if before is None else self._claims.get((ask.key, before))
        if held is not None:
            self.seen["takeovers"] += 1
            if held.worker.healthy_since(held.since):
                self.breaks("leases", f"{worker.name} took the claim of {held.worker.name}, which was well")
        self._current[ask.key] = version
        self._claims[ask.key, version] = Claim(worker, self.world.now)
        self._verified[version] = self.world.now
        self.world.say(f"{worker.name}: claims {ask.identity} as {version}")

    def renewed(self, version: int) -> None:
        """The store said that a claim is still held."""
        self._verified[version] = self.world.now

    async def settled(self, key: str, version: int, final: Final, worker: Worker, became: int) -> None:
        """The store took the end of a claim, or what an unknown one turned out to be."""
        code = "" if final.error is None else final.error[0]
        fence = self._fences[became] = self._fences.get(version, version)
        self.world.say(f"{worker.name}: settles fence {fence} as {final.state} {code}")
        held = self._claims.pop((key, version), None)
        if held is not None and held.worker is not worker and held.worker.healthy_since(held.since):
            self.breaks("leases", f"{worker.name} gave up on {held.worker.name}, which was well")
        for dispatch in self._of_fence(fence):
            self._judge_record(dispatch, final, code, read_back=fence != version)
        assert self.shared is not None
        found = await self.shared.inner.read(key, "")
        if found is not None and found.current.state == "done" and found.current.payload is not UNSET:
            kept = msgspec.json.decode(found.current.payload)
            if kept["fence"] != found.current.fence:
                self.breaks("fencing", f"the record of fence {found.current.fence} holds a result of {kept['fence']}")

    def _judge_record(self, dispatch: Dispatch, final: Final, code: str, read_back: bool) -> None:
        surely = not dispatch.effect if read_back else dispatch.no_effect
        if final.state == "cancelled" and not final.dispatched and not surely:
            self.breaks("honest records", f"act({dispatch.intent}) is recorded as not dispatched, but it was")
        if final.state == "failed" and code in _OPEN_ENDS and not self.plan.idempotent:
            self.breaks("honest records", f"act({dispatch.intent}) may have happened, but is recorded as {code}")
        if final.state == "done" or (final.state == "failed" and code != UNKNOWN_CODE) or not final.dispatched:
            dispatch.closed = True

    def happened(self, fence: int) -> bool | None:
        """What a perfect read-back would say of the call that held *fence*; ``None`` while it may still happen."""
        found = self._of_fence(fence)
        if any(dispatch.effect for dispatch in found):
            return True
        if any(dispatch.ended is None and not dispatch.worker.dead for dispatch in found):
            return None
        return False

    def _of_fence(self, fence: int) -> list[Dispatch]:
        return [dispatch for found in self._dispatches.values() for dispatch in found if dispatch.fence == fence]

    # -- dispatches ----------------------------------------------------------------------------------------------

    def dispatched(self, intent: str, ctx: CallContext, worker: Worker) -> Dispatch:
        """The tool is entered."""
        self.seen["dispatches"] += 1
        earlier = self._dispatches.setdefault(intent, [])
        dispatch = Dispatch(self.seen["dispatches"], intent, ctx.fence, worker, self.world.now)
        self.world.say(f"{worker.name}: act({intent}) fence {ctx.fence} for {ctx.call_id}")
        knew = worker.healthy_since(self._verified[ctx.fence])
        for other in earlier:
            if other.fence > ctx.fence:
                self._late(knew, "fencing", f"fence {ctx.fence} was dispatched after {other.fence}")
            if self.plan.idempotent:
                continue
            if other.fence == ctx.fence and not other.no_effect:
                self.breaks("one dispatch", f"act({intent}) was tried again although it may have happened")
            if other.fence != ctx.fence and not other.closed:
                self._late(knew, "one dispatch", f"act({intent}) by {worker.name} while fence {other.fence} is open")
        earlier.append(dispatch)
        return dispatch

    def _late(self, knew: bool, law: str, text: str) -> None:
        """A worker that went away right after the store confirmed its claim cannot know; a sink can, by the fence."""
        if knew:
            self.breaks(law, text)
        else:
            self.seen["dispatches only a fence can stop"] += 1

    # -- answers -------------------------------------------------------------------------------------------------

    def answered(self, identity: str, intent: str, asked_at: float, outcome: Outcome) -> None:
        """A caller got its answer."""
        self.seen[outcome.code or ("reused" if outcome.from_cache else "answered")] += 1
        metadata = outcome.metadata or {}
        if outcome.status != "success":
            self._answered_without_result(identity, asked_at, outcome)
            return
        value = outcome.value
        if value["what"] != intent:
            self.breaks("intent", f"{identity} asked for {intent} and got a result of {value['what']}")
        first = self._answers.get(identity)
        uncertain = "fenced" in metadata or "notRecorded" in metadata
        if first is not None and first[1] != value and (first[0] <= asked_at or not uncertain):
            self.breaks("identity", f"{identity} was answered {first[1]}, and another delivery of it {value}")
        if self.plan.loss and (metadata.get("reused") or metadata.get("reconciled")):
            uncertain = True  # the store may not have learned that this caller shared an answer
        if first is None and not uncertain:
            self._answers[identity] = (self.world.now, value)

    def _answered_without_result(self, identity: str, asked_at: float, outcome: Outcome) -> None:
        first = self._answers.get(identity)
        if (
            first is not None
            and first[0] <= asked_at
            and outcome.code not in ("store_unavailable", "deadline_exceeded")
        ):
            self.breaks("identity", f"{identity} was answered {first[1]}, and later with {outcome.code}")

    # -- breakers ------------------------------------------------------------------------------------------------

    def moved(self, worker: Worker, move: Transition) -> None:
        """A breaker changed its state."""
        self.world.say(f"{worker.name}: breaker {move.from_state} -> {move.to_state} ({move.reason})")
        self.seen[f"breaker to {move.to_state}"] += 1
        if move.to_state == "HALF_OPEN":
            self._half_open[worker.name] = self.world.now
        if move.from_state == "HALF_OPEN" and move.to_state == "CLOSED":
            since = self._half_open[worker.name]
            good = sum(
                dispatch.ok and dispatch.worker is worker and dispatch.began >= since
                for found in self._dispatches.values()
                for dispatch in found
            )
            needed = self.plan.spec.breaker_policy.close_after
            if good < needed:
                self.breaks("epochs", f"the breaker of {worker.name} closed after {good} good probes, not {needed}")
