"""Strict replay: every call is answered from the recording, or the replay fails (D15).

The invoker is built without anything that could reach the outside world: by construction, a strict replay has no side
effects through Antiphon. Only the verifying one (D28) asks models, and only to compare kinds of answers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from antiphon._replay.by_content import ByContent
from antiphon._replay.masks import KEY_HINT, has_effect
from antiphon._replay.observe import DivergenceFound, Observer
from antiphon._replay.recording import RecordedCall, Recording, RefusalFound, not_kept, refusal_divergence
from antiphon._scope import Site
from antiphon.errors import InvalidInput, ReplayMiss
from antiphon.llm.response import data_of, envelope_kind
from antiphon.llm.stream import assemble_response
from antiphon.ports import AS_RECORDED, Answer, Invocation

Ask = Callable[[dict[str, Any]], Any]


class StrictInvoker:
    """Answers from the recording. Never returns ``None``: there is no live call behind it."""

    def __init__(
        self, recording: Recording, observer: Observer, *, realtime: bool = False, calls: ByContent | None = None
    ) -> None:
        """With *calls*, recorded calls are found by content instead of by their place."""
        self._recording = recording
        self._observer = observer
        self._realtime = realtime
        self._calls = calls
        self.script_vendor: str | None = recording.script_vendor
        self.missed: list[Invocation] = []
        self.refusals: list[RefusalFound] = []

    def known_request(self, provider: str, body: Any) -> Mapping[str, Any] | None:
        """The recorded mapping of this request body: a later release may map it differently."""
        return self._recording.known_request(provider, body)

    def ended(self, site: Site) -> None:
        """A call was given its recorded result: its end need not be compared."""
        self._observer.ended(site)

    def known_arguments(self, arguments: dict[str, Any]) -> tuple[bytes, str] | None:
        """These arguments as JSON, and the recorded digest, if the recording has the same arguments."""
        return self._recording.known_arguments(arguments)

    def answer_tool(self, call: Invocation) -> Answer:
        return self._answer(call, self._find(call))

    async def answer(self, call: Invocation) -> Answer:
        return self.answer_tool(call)

    def _find(self, call: Invocation) -> RecordedCall:
        site, calls = call.site, self._calls
        found = calls.take(call) if calls else self._recording.find(site.lane, call.name, call.digest, site.nth)
        if found is None:
            lane = None if calls else site.lane
            alike = self._recording.match_ignoring_masks(lane, call.name, call.arguments, call.digest)
            if alike is None:
                self.missed.append(call)
                raise self._miss(self._observer.missed(call))
            found, left = alike
            self._observer.left_out(left)
            if any(not one.may_differ for one in left) and has_effect(self._recording.event(found.started)):
                what = f"{call.kind} {call.name}"
                lost = DivergenceFound("masked", site.lane, site.index, found.started, what, note=KEY_HINT)
                self._observer.add(lost)
        return found

    def _answer(self, call: Invocation, found: RecordedCall) -> Answer:
        recording, observer = self._recording, self._observer
        begun = recording.begins(found, call.written) and observer.begun(call.site, found)
        answer = recording.answer(found, realtime=self._realtime, begun=begun)
        observer.moves(call.site.lane)
        if not begun or AS_RECORDED not in answer.meta:
            observer.answered(call.site, found)
        why = None if call.kind == "llm" else not_kept(answer)
        if why is not None:
            lost = DivergenceFound("miss", call.site.lane, call.site.index, found.finished, call.name, note=why)
            raise self._miss(observer.add(lost))
        return answer

    def draw(self, what: str, site: Any, fresh: Callable[[], Any]) -> Any:
        if self._recording.calls_only:
            return fresh()
        place = (site.lane, what, site.nth)
        if place in self._recording.draws:
            return self._recording.draws[place]
        note = "the recording has no such draw here"
        found = DivergenceFound("draw", site.lane, site.index, None, f"draw {what}", note=note)
        raise self._miss(self._observer.add(found))

    def _miss(self, found: DivergenceFound) -> ReplayMiss:
        run = self._recording.manifest.id
        lines = [f"The recording has no answer for {found.what} ({found.where})."]
        lines += [f"  {diff}" for diff in found.fields[:10]]
        if found.note:
            lines.append(f"  {found.note}")
        hint = f"Nearest: antiphon show {run} --event {found.nearest}" if found.nearest is not None else ""
        shown = self._recording.view({"message": "\n".join(lines), "divergence": found.to_wire(run)})
        return ReplayMiss(shown["message"], hint=hint, divergence=shown["divergence"])


class VerifyInvoker(StrictInvoker):
    """Answers from the recording, and also asks each model: does it still answer, does it still refuse?"""

    def __init__(
        self,
        recording: Recording,
        observer: Observer,
        *,
        ask: Ask | None = None,
        outside: Callable[[], AbstractContextManager[Any]] = nullcontext,
        realtime: bool = False,
        calls: ByContent | None = None,
    ) -> None:
        super().__init__(recording, observer, realtime=realtime, calls=calls)
        self._ask = ask
        self._outside = outside
        self.verified: int = 0

    async def answer(self, call: Invocation) -> Answer:
        found = self._find(call)
        if call.kind == "llm":
            await self._verify(call, found)
        return self._answer(call, found)

    async def _verify(self, call: Invocation, found: RecordedCall) -> None:
        ask = self._ask or call.send
        if ask is None:
            raise InvalidInput(
                "Verifying this model call needs a function that calls the model.",
                hint="Pass --llm file.py:function (in Python: llm=…).",
            )
        try:
            with self._outside():
                outcome, reason = await _kind_of(ask, call)
        except Exception as error:
            note = f"the model could not be called: {type(error).__name__}: {error}"
            self._observer.add(
                DivergenceFound("verify", call.site.lane, call.site.index, found.started, "llm", note=note)
            )
            return
        self.verified += 1
        refused = refusal_divergence(self._recording, found, outcome, reason)
        if refused is not None:
            site = call.site
            note = refused.error.message
            self.refusals.append(refused)
            self._observer.add(DivergenceFound("refusal", site.lane, site.index, found.finished, "llm", note=note))
            raise refused.error


async def _kind_of(ask: Ask, call: Invocation) -> tuple[str, str | None]:
    """Ask the model and say whether it refused."""
    response = ask(dict(call.body or {}))
    if inspect.isawaitable(response):
        response = await response
    response, provider = data_of(response), call.dialect
    if hasattr(response, "__aiter__"):
        response = assemble_response([chunk async for chunk in response], provider)
    elif not isinstance(response, dict) and hasattr(response, "__iter__"):
        response = assemble_response(list(response), provider)
    kind, reason = envelope_kind(response, provider)
    return ("refusal" if kind == "refusal" else "ok"), reason
