"""How a replay fork answers the calls of an agent, and what it learns from them."""

from __future__ import annotations

from antiphon._replay.observe import Observer
from antiphon._replay.recording import RecordedCall, Recording
from antiphon._replay.strict import StrictInvoker, VerifyInvoker
from antiphon.host.workflow.nodes import AgentObservations
from antiphon.ports import Invocation


class AgentReplayInvoker(StrictInvoker):
    """Answers every call from the recording."""

    def report_to(self, observations: AgentObservations) -> None:
        """Report what was observed."""
        observations.unasked = self._unasked
        if self.refusals:
            found = self.refusals[0].payload
            before, now = str(found["originalEnvelopeKind"]), str(found["replayEnvelopeKind"])
            observations.refusal = before, now, str(found.get("refusalReason", ""))

    def _unasked(self, rows: range) -> int:
        return sum(call.started in rows and not call.used for call in self._recording.top_calls())


class AskingInvoker(AgentReplayInvoker, VerifyInvoker):
    """The same, and also asks each model again to check whether it still answers or refuses."""

    def __init__(self, recording: Recording, observer: Observer) -> None:
        super().__init__(recording, observer)
        self._not_asked: list[str] = []

    async def _verify(self, call: Invocation, found: RecordedCall) -> None:
        if call.send is None:
            self._not_asked.append("the code does not say how its model is called")
            return
        known = len(self._observer.divergences)
        await super()._verify(call, found)
        self._not_asked += [one.note for one in self._observer.divergences[known:] if one.kind == "verify"]

    def report_to(self, observations: AgentObservations) -> None:
        super().report_to(observations)
        observations.unverified = self._not_asked
