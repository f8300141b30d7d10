"""Explore replay: some boundaries live, others from the recording, side effects blocked (K4, K6, D11, D20).

A tool call is answered by, in this order: a static or fault rule; an equal recorded call (each once, in recorded order;
then again for idempotent tools); a call with similar free text (never for a side effect); a result that this replay has
already fetched; the live tool, if it is safe; the block message.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import field

from antiphon._lineage import origin_var, outside
from antiphon._replay.recording import RecordedCall, Recording, RefusalFound, not_kept, refusal_divergence
from antiphon.contract._base import Opaque
from antiphon.contract.spec import ToolSpec
from antiphon.decide.effects import BoundaryRule, BoundaryTable, block_message, may_run_live, reviewed_as
from antiphon.errors import MaskedArgument, ReplayMiss
from antiphon.llm.response import outcome_of
from antiphon.ports import STREAM_ABANDONED, Answer, Invocation
from antiphon.similarity import SemanticIndex

_FAULTS: Mapping[str, dict[str, Any]] = {
    "timeout": {
        "class": "builtins.TimeoutError",
        "code": "ETIMEDOUT",
        "message": "injected timeout",
        "status": "timeout",
    },
    "rate_limited": {"class": "", "code": "rate_limited", "message": "injected 429", "status": "retriable_error"},
}


class SemanticHit(NamedTuple):
    """A call answered by a similar one, with both argument sets (D11)."""

    name: str
    recorded: Any
    current: Any
    score: float
    seq: int


class Blocked(NamedTuple):
    """A call that was blocked."""

    name: str
    arguments: Any
    reason: str


class ExploreInvoker(Opaque, eq=False):
    """Answers by the boundary table. ``None`` means that the call is made live."""

    recording: Recording
    table: BoundaryTable
    reviewed: Mapping[str, bool]
    schemas: Mapping[str, Mapping[str, Any]]
    embedder: Any
    threshold: float
    exact_only: bool
    rewrite: Callable[[dict[str, Any]], dict[str, Any]] | None
    """The request as changed by this replay: another model, temperature or prompt."""
    llm: Callable[[dict[str, Any]], Any] | None
    fork_at: int | None
    realtime: bool
    earlier: Any = None
    """What this replay had drawn before it was interrupted, if it was."""
    tool_hits: int = 0
    model_hits: int = 0
    reused: int = 0
    live_models: int = 0
    unanswered: dict[str, str] = {}
    """Model requests that failed and were not answered on a later try: digest -> reason."""
    semantic: list[SemanticHit] = []
    blocked: list[Blocked] = []
    new: list[tuple[str, Any]] = []
    refusals: list[RefusalFound] = []
    faults: set[str] = set()
    """The match patterns of fault rules that were hit."""
    _indexed: set[str] = set()
    _queues: dict[tuple[str, str], list[RecordedCall]] = {}
    _fresh: dict[tuple[str, str], Answer] = {}
    _models: dict[str, list[RecordedCall]] = {}
    _asked: dict[str, int] = {}
    _paired: dict[str, RecordedCall] = {}
    _answered: set[str] = set()
    _closed: bool = False
    _index: SemanticIndex[RecordedCall] = field(default_factory=SemanticIndex)

    def __post_init__(self) -> None:
        self._index = SemanticIndex(self.embedder, self.threshold)
        for call in sorted(self.recording.calls.values(), key=lambda call: call.started):
            self._queues.setdefault((call.name, call.digest), []).append(call)
            if call.kind == "llm":
                self._models.setdefault(call.lane, []).append(call)

    @property
    def script_vendor(self) -> str | None:
        """That of the recording."""
        return self.recording.script_vendor

    @property
    def answers_models(self) -> bool:
        """Whether a given function answers every live model call."""
        return self.llm is not None

    def close(self) -> None:
        """The replay has ended: what it left running is answered from the recording or not at all."""
        self._closed = True

    def _live(self, call: Invocation) -> None:
        """Refuse a live call after the end of the replay."""
        if self._closed:
            origin = origin_var.get()
            if origin is not None and origin.replay is not None:
                origin.replay.note(f"{call.kind} {call.name} after the end of the replay")
            raise ReplayMiss(f"The replay has ended, and the recording has no answer for {call.name}.")

    def unmet_faults(self) -> list[BoundaryRule]:
        """Fault rules that no call matched: what they were to test was not tested."""
        return [rule for rule in self.table.rules if rule.mode == "fault" and rule.match not in self.faults]

    def draw(self, what: str, site: Any, fresh: Callable[[], Any]) -> Any:
        """The recorded value if there is one, a fresh one where the code took another path."""
        place = (site.lane, what, site.nth)
        if place in self.recording.draws:
            return self.recording.draws[place]
        return fresh() if self.earlier is None else self.earlier.draw(what, site, fresh)

    def answer_tool(self, call: Invocation) -> Answer | None:
        rule = self.table.rule(call.kind, call.name)
        answer = self._ruled(rule) or self._tool(call, rule)
        if answer is None:
            self._live(call)
        return answer

    async def answer(self, call: Invocation) -> Answer | None:
        if call.kind != "llm":
            return self.answer_tool(call)
        rule = self.table.rule(call.kind, call.name)
        self._pair_with_recorded(call)
        answer = self._ruled(rule) or self._model(call, rule)
        if answer is None:
            self._live(call)
            answer = None if call.earlier_answer is None else call.earlier_answer()
            if answer is not None:
                answer = answer._replace(source="live")  # judged like any other answer of the model
            elif self.llm is not None:
                answer = await self._ask(call)
        return answer

    def _ruled(self, rule: BoundaryRule) -> Answer | None:
        """The answer of a rule that needs no recording."""
        if rule.mode == "static":
            return Answer("ok", rule.value, source="static")
        if rule.mode == "fault":
            self.faults.add(rule.match)
            return _fault(rule)
        return None

    async def _ask(self, call: Invocation) -> Answer:
        """The model function given to this replay answers instead of the code's own model."""
        assert self.llm is not None
        if call.begin is not None:
            await call.begin()
        with outside():
            response = self.llm(dict(call.body or {}))
            if inspect.isawaitable(response):
                response = await response
        outcome, meta = outcome_of(response, call.dialect)
        return Answer(outcome, response, source="live", meta=meta)

    # -- models --------------------------------------------------------------------------------------------------

    def _pair_with_recorded(self, call: Invocation) -> None:
        """The recorded model call to compare this one with: the same request, else the same turn in its lane, unless
        lanes say nothing."""
        lane = call.site.lane
        turn = self._asked.get(lane, 0)
        self._asked[lane] = turn + 1
        if self.recording.calls_only:
            found = self._next(call, again=True)
        else:
            found = self.recording.find(lane, call.name, call.digest, call.site.nth)
            recorded = self._models.get(lane, ())
            if found is None and turn < len(recorded):
                found = recorded[turn]
        if found is not None:
            self._paired[call.site.call] = found

    def judge(
        self, call: Invocation, outcome: str, reason: str | None, failure: Mapping[str, Any] | None = None
    ) -> RefusalFound | None:
        """Whether a live model refused where it had answered, or the other way round (L4)."""
        self._note_answer(call.digest, failure)
        recorded = self._paired.pop(call.site.call, None)
        found = None if recorded is None else refusal_divergence(self.recording, recorded, outcome, reason)
        if found is not None:
            self.refusals.append(found)
        return found

    def _note_answer(self, digest: str, failure: Mapping[str, Any] | None) -> None:
        """Note whether a request was answered; an abandoned stream or an unneeded task is no failure."""
        failure = {} if failure is None or failure.get("code") == STREAM_ABANDONED else failure
        if not failure:
            self._answered.add(digest)
            self.unanswered.pop(digest, None)
        elif digest not in self._answered or failure.get("code") != "CancelledError":
            self.unanswered[digest] = str(failure.get("message", ""))

    def _before_fork(self, call: RecordedCall | None) -> bool:
        return self.fork_at is not None and call is not None and call.started < self.fork_at

    def has_before_fork(self, digest: str) -> bool:
        """Whether a model request with this digest was recorded before the fork, and is still to be answered."""
        calls = self._queues.get(("llm", self.recording.digests.get(digest, digest)), ())
        return any(not call.used and self._before_fork(call) for call in calls)

    def _model(self, call: Invocation, rule: BoundaryRule) -> Answer | None:
        found = self.recording.find(call.site.lane, call.name, call.digest, call.site.nth)
        if rule.mode == "live" and not self._before_fork(found):
            found = self._next(call, again=False)  # an equal request, made elsewhere
        if rule.mode == "live" and not self._before_fork(found):
            try:
                self._check(call)
            except MaskedArgument as error:
                self.unanswered[call.digest] = error.message
                raise
            self.live_models += 1
            return None
        found = found or self._next(call, again=False)
        if found is None:
            raise ReplayMiss(
                "The model is frozen and the recording has no answer for this request.",
                hint="Allow it with: --live llm",
            )
        self.model_hits += 1
        return self.recording.answer(found, realtime=self.realtime)

    # -- tools ---------------------------------------------------------------------------------------------------

    def _tool(self, call: Invocation, rule: BoundaryRule) -> Answer | None:
        spec: ToolSpec | None = call.spec
        short = call.name.partition("/")[2] or call.name
        reviewed = reviewed_as(call.name, self.reviewed)
        idempotent = spec is not None and spec.idempotent
        exact = self._next(call, again=idempotent)
        verdict = may_run_live(spec, reviewed, rule, recorded=exact is not None)
        if verdict.allowed and rule.mode == "live" and not self._before_fork(exact):
            self._go_live(call)
            return None
        if exact is not None:
            return _given(call.name, self._recorded(exact))
        alike = self._alike(call, short) if self._may_match(spec, reviewed) else None
        if alike is not None:
            return _given(call.name, self._recorded(alike, "semantic"))
        kept = self._fresh.get((call.name, call.digest))
        if kept is not None and (spec is None or idempotent):
            self.reused += 1
            return _given(call.name, kept)
        if verdict.allowed:
            self._go_live(call)
            return None
        self.blocked.append(Blocked(call.name, call.arguments, verdict.reason))
        return Answer("ok", block_message(short), source="blocked", meta={"blocked": verdict.reason})

    def _go_live(self, call: Invocation) -> None:
        """Allow the call to be made."""
        self._check(call)
        self.new.append((call.name, call.arguments))

    def _check(self, call: Invocation) -> None:
        """A pseudonym must never reach the outside world (D36)."""
        if self.recording.masks.holds(call.arguments) is not None:
            raise MaskedArgument(
                f"The call of {call.name} was not made: its arguments hold a pseudonym of the recording.",
                hint="Replay with the originals (ANTIPHON_REPLAY_KEY), or answer it from the recording.",
            )

    def _recorded(self, call: RecordedCall, source: str = "recording") -> Answer:
        self.tool_hits += 1
        return self.recording.answer(call, source=source, realtime=self.realtime)

    def keep(self, name: str, digest: str, payload: Mapping[str, Any]) -> None:
        """Keep the result of a live call for later equal ones."""
        outcome = str(payload.get("outcome", "ok"))
        self._fresh[(name, digest)] = Answer(outcome, payload.get("value"), payload.get("error"), source="kept")

    def _next(self, call: Invocation, *, again: bool) -> RecordedCall | None:
        queue = self._queues.get((call.name, call.digest), [])
        fresh = next((found for found in queue if not found.used), None)
        return fresh or (queue[-1] if again and queue else None)

    def _may_match(self, spec: ToolSpec | None, reviewed: bool | None) -> bool:
        """Only reads are matched by similarity; a side effect matches exactly or not at all (D11)."""
        if self.exact_only or reviewed is False:
            return False
        if spec is not None and (spec.effect == "write" or (spec.effect is None and not spec.idempotent)):
            return False
        return reviewed is True or (spec is not None and (spec.effect == "read" or spec.idempotent))

    def _alike(self, call: Invocation, short: str) -> RecordedCall | None:
        self._prepare(call.name, call.spec)
        hits = [hit for hit in self._index.find(call.name, call.arguments) if not hit.ref.used]
        if not hits:
            return None
        found, match = hits[0]
        recorded = self.recording.arguments(found)
        self.semantic.append(SemanticHit(short, recorded, call.arguments, match.score, found.started))
        return found

    def _prepare(self, name: str, spec: ToolSpec | None) -> None:
        if name in self._indexed:
            return
        self._indexed.add(name)
        schema = self.schemas.get(name.partition("/")[2] or name)
        if spec is not None or schema is not None:
            self._index.declare(name, schema, spec.exact if spec is not None else ())
        for recorded in self.recording.by_name.get(name, []):
            self._index.add(name, self.recording.arguments(recorded), recorded)


def _given(name: str, answer: Answer) -> Answer:
    why = not_kept(answer)
    if why is not None:
        raise ReplayMiss(f"The recording has no answer for {name}: {why}.", hint=f"Allow it with: --live {name}")
    return answer


def _fault(rule: BoundaryRule) -> Answer:
    if rule.fault == "malformed":
        return Answer("ok", {"malformed": "\u0000"}, source="fault")
    if rule.fault == "refusal":
        return Answer("refusal", {"kind": "refusal", "reason": "injected refusal"}, source="fault")
    return Answer("error", error=_FAULTS[str(rule.fault)], source="fault")
