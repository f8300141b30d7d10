"""Runs one workflow: node after node, every step an event, live or as a replay of another run.

An interrupted run, a fork and a new run are all handled alike: a state computed from events, and the next step. Events
of nodes that cannot block are written together; before anything that may block or have external effects, all events so
far are on disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import msgspec

from antiphon._late import traceback_of
from antiphon.errors import StoreError
from antiphon.host.workflow.model import Workflow
from antiphon.host.workflow.nodes import (
    AgentObservations,
    Function,
    NodeExecution,
    NodeFailed,
    Outputs,
    Services,
    implementation,
)
from antiphon.host.workflow.source import NOT_VERIFIED, Comparison, Recorded, Source, event_id
from antiphon.host.workflow.state import TERMINAL, State, WorkflowEvent
from antiphon.redact import without_values

log: logging.Logger = logging.getLogger("antiphon.host")

Write = Callable[[Sequence[tuple[WorkflowEvent, int]], bool], Awaitable[None]]
"""(events with their numbers, whether the run is over) -> written."""


class Stopped(Exception):
    """This process must not continue the run: another process owns it."""


class Replay(NamedTuple):
    """Marks a run as a replay fork and gives the source of its observations."""

    load: Callable[[], Awaitable[Source]]
    comparison: Comparison
    verify: bool = False
    """Ask the model again although the answer is recorded, and compare the kinds (D28)."""


class Runner(msgspec.Struct, eq=False, kw_only=True):
    """Executes one run."""

    workflow: Workflow
    state: State
    run: str
    tenant: str
    services: Services
    write: Write
    replay: Replay | None = None
    staged: Callable[[str], bool] = lambda node: False
    """Whether the mock provider has an answer for the next call of a node."""
    is_branch: bool = False
    """Whether this is a new branch: a node that was open at the fork point starts anew."""
    cancel_reason: str | None = None
    pending: list[tuple[WorkflowEvent, int]] = []
    """Events to be written."""

    # -- events ------------------------------------------------------------------------------------------------------

    async def emit(self, kind: str, payload: dict[str, Any], asked: str = "") -> None:
        """Queue an event for :meth:`flush`; nothing follows the last event of a run."""
        event = WorkflowEvent(kind, payload, asked)
        diverged = None if self.replay is None else self.replay.comparison.see(event)
        if kind in TERMINAL:
            self._note_divergence(diverged)
            self._note(event)
        else:
            self._note(event)
            self._note_divergence(diverged)

    def _note_divergence(self, payload: dict[str, Any] | None) -> None:
        if payload is not None:
            self._note(WorkflowEvent("replay.diverged", payload))

    def _note(self, event: WorkflowEvent) -> None:
        number = self.state.sequence
        self.state.apply(event)
        self.pending.append((event, number))

    async def flush(self, *, over: bool = False) -> None:
        """Write the queued events."""
        pending, self.pending = self.pending, []
        if not pending and not over:
            return
        try:
            await self.write(pending, over)
        except Exception:
            self.pending = [*pending, *self.pending]
            raise

    # -- the run -----------------------------------------------------------------------------------------------------

    async def execute(self) -> None:
        """Continue where the events end; cancelling the task without :meth:`stop` leaves the run to be resumed."""
        state = self.state
        if self._is_cancelled():
            await self._cancelled()
            return
        try:
            limit = self.workflow.settings.timeout / 1000 or None
            async with asyncio.timeout(limit):
                while state.error is None and not state.is_done:
                    if state.limited:
                        await self.emit("workflow.loopback-limit", {"nodeId": state.limited[0]})
                    elif state.next_node is not None:
                        await self._node(state.next_node)
        except asyncio.CancelledError:
            if not self._is_cancelled():
                raise
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
            await self._cancelled()
            return
        except TimeoutError:
            error = {"code": "run_timeout", "message": f"The run took longer than {self.workflow.settings.timeout} ms."}
            if state.open is not None:
                await self.emit("node.failed", {"nodeId": state.open, "error": error})
            state.error = error
        await self._end()

    async def _end(self) -> None:
        state = self.state
        if state.error is None:
            await self.emit("run.completed", {"outputs": state.result()})
        else:
            payload: dict[str, Any] = {"error": state.error}
            if state.failed_node is not None:
                payload["failedNodeId"] = state.failed_node
            await self.emit("run.failed", payload)
        await self.flush(over=True)

    async def give_up(self, error: dict[str, Any]) -> None:
        """End the run although its last events could not be written; drop those events."""
        state = self.state
        dropped, self.pending = [event for event, _ in self.pending], []
        if dropped:
            state.sequence -= len(dropped)
        begun = {event.payload["nodeId"] for event in dropped if event.type == "node.started"}
        ended = {event.payload["nodeId"] for event in dropped if event.type in ("node.completed", "node.failed")}
        left = ({state.open} if state.open is not None else set()) | ended
        for node in sorted(left - begun):
            self._note(WorkflowEvent("node.failed", {"nodeId": node, "error": error}))
        state.error = error
        self._note(WorkflowEvent("run.failed", {"error": error}))
        await self.flush(over=True)

    def _is_cancelled(self) -> bool:
        return self.cancel_reason is not None

    def stop(self, reason: str) -> None:
        """Note that the user requested the cancellation that follows."""
        self.cancel_reason = reason

    async def _cancelled(self) -> None:
        if self.state.open is not None:
            await self.emit("node.cancelled", {"nodeId": self.state.open})
        await self.emit("run.cancelled", {"reason": self.cancel_reason})
        await self.flush(over=True)

    # -- nodes -------------------------------------------------------------------------------------------------------

    async def _node(self, node_id: str) -> None:
        state = self.state
        node = self.workflow.node(node_id)
        found = implementation(node)
        told_before = list(state.emitted) if state.open is not None and not self.is_branch else []

        async def emit(kind: str, payload: dict[str, Any]) -> None:
            """Emit an event unless the interrupted execution already emitted it."""
            if told_before and told_before[0] == WorkflowEvent(kind, payload):
                del told_before[0]
            else:
                await self.emit(kind, payload)

        visit = NodeExecution(
            node=node,
            inputs=state.bind(node_id),
            tenant=self.tenant,
            run=self.run,
            execution=state.ended.get(node_id, 0),
            services=self.services,
            emit=emit,
        )
        asked = "" if found is None or found[0] == "pure" else self.services.request_digest(visit)
        started = {"nodeId": node_id, "typeId": node.type_id}
        if state.open is None or self.is_branch:
            await self.emit("node.started", started, asked)
        self.is_branch = False
        try:
            if found is None:
                raise NodeFailed("unknown_node_type", f"This host does not know the node type {node.type_id}.")
            kind, function = found
            if self.replay is not None and kind != "pure":
                event = WorkflowEvent("node.started", started, asked)
                outputs = await self._observe(self.replay, visit, event, function, is_model=kind == "model")
            else:
                if node.type_id not in ("core.noop", "core.identity", "core.conformance.fail"):
                    await self.flush()
                outputs = await function(visit)
        except NodeFailed as failure:
            await self.emit("node.failed", {"nodeId": node_id, "error": failure.to_payload()})
            return
        except (StoreError, Stopped):
            raise  # not known to be the node's fault, so the run is resumed later
        except Exception as error:
            secrets = self.services.secrets(visit)
            log.error("node %s of run %s raised\n%s", node_id, self.run, traceback_of(error, secrets))
            message = without_values(f"{type(error).__name__}: {error}", secrets)
            await self.emit("node.failed", {"nodeId": node_id, "error": {"code": "node_error", "message": message}})
            return
        await self.emit("node.completed", {"nodeId": node_id, "outputs": outputs})

    async def _observe(
        self, replay: Replay, visit: NodeExecution, started: WorkflowEvent, function: Function, *, is_model: bool
    ) -> Outputs:
        """The recorded observation of a node, or a failure; a replay never makes its own observations (RFC 0140)."""
        await self.flush()
        source = await replay.load()
        recorded = source.outcome(visit.node.id, visit.execution)
        if recorded is not None:
            self._note_divergence(replay.comparison.request(recorded, started))
        if is_model and (replay.verify or self.staged(visit.node.id)):
            await self._verify(source, recorded, visit, function)
        if recorded is None:
            raise NodeFailed(
                "replay_source_missing",
                f"The source run has no outcome {visit.execution + 1} of this node, and a replay executes nothing.",
                {"sourceRunId": source.run, "nodeId": visit.node.id, "n": visit.execution + 1},
            )
        if visit.node.type_id.startswith("agent:"):
            return await self._agent(replay, source, recorded, visit, function)
        for event in recorded.emitted:
            await visit.emit(event.type, dict(event.payload))
        if recorded.terminal.type == "node.failed":
            error = recorded.terminal.payload["error"]
            raise NodeFailed(str(error["code"]), str(error["message"]), error.get("details"))
        return dict(recorded.terminal.payload.get("outputs") or {})

    async def _agent(
        self, replay: Replay, source: Source, recorded: Recorded, visit: NodeExecution, function: Function
    ) -> Outputs:
        """Run an agent's code again, with all its calls answered from the recording."""
        observations = AgentObservations()
        visit.observations = observations
        try:
            outputs = await function(visit)
        finally:
            for reason in observations.unverified:
                self._not_verified(visit.node.id, reason)
            if observations.refusal is not None:
                await self._refused(source, recorded, visit.node.id, *observations.refusal)
        unasked = observations.unasked(recorded.rows)
        if unasked:
            self._note_divergence(replay.comparison.unasked(recorded, unasked))
        return outputs

    def _not_verified(self, node: str, reason: str) -> None:
        """Report that a model could not be asked again, or that its answer has nothing to be compared with."""
        message = f"The model call was not verified: {reason}"
        payload = {"nodeId": node, "level": "warning", "code": NOT_VERIFIED, "message": message}
        self._note(WorkflowEvent("log.appended", payload))

    async def _verify(
        self, source: Source, recorded: Recorded | None, visit: NodeExecution, function: Function
    ) -> None:
        """Ask the model and compare the kind of its answer with the recorded one (L4)."""
        emitted: list[WorkflowEvent] = []

        async def collect(kind: str, payload: dict[str, Any]) -> None:
            emitted.append(WorkflowEvent(kind, payload))

        live, visit.emit = visit.emit, collect
        problem = ""
        try:
            await function(visit)
            now = "valid"
        except NodeFailed as failure:
            now = "refusal" if any(one.type == "envelope.refusal" for one in emitted) else "unknown"
            problem = f"{failure.code}: {failure.message}"
        finally:
            visit.emit = live
        before = "unknown" if recorded is None else recorded.kind
        if now == "unknown":
            self._not_verified(visit.node.id, problem)
        elif recorded is None or before == "unknown":
            self._not_verified(visit.node.id, "the source has neither an answer nor a refusal here")
        elif before != now:
            reason = _refusal_reason(emitted if now == "refusal" else recorded.emitted)
            await self._refused(source, recorded, visit.node.id, before, now, reason)

    async def _refused(
        self, source: Source, recorded: Recorded, node: str, before: str, now: str, reason: str
    ) -> NoReturn:
        payload: dict[str, Any] = {
            "sourceRunId": source.run,
            "atSequence": recorded.sequence,
            "originalEventId": event_id(source.run, recorded.sequence),
            "nodeId": node,
            "originalEnvelopeKind": before,
            "replayEnvelopeKind": now,
        }
        if reason:
            payload["refusalReason"] = reason
        await self.emit("replay.divergedAtRefusal", payload)
        details = {
            name: payload[name] for name in ("atSequence", "nodeId", "originalEnvelopeKind", "replayEnvelopeKind")
        }
        raise NodeFailed(
            "replay_diverged_at_refusal",
            f"The source run got a {before} response here, the replay a {now} one. Later nodes did not run.",
            details,
        )


def _refusal_reason(emitted: Sequence[WorkflowEvent]) -> str:
    for one in emitted:
        if one.type == "envelope.refusal":
            return str(one.payload.get("refusalText") or one.payload.get("safetyCategory") or "")
    return ""
