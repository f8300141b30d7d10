"""What the nodes of a run reach: registered tools through the gateway, models and agents through the recorder."""

from __future__ import annotations

import asyncio
import inspect
import random
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from antiphon._gateway.ids import uuid7
from antiphon._recording.recorder import Recorder
from antiphon._recording.run import Run
from antiphon._scope import Site
from antiphon.contract._base import UNSET
from antiphon.contract.events import RunManifest
from antiphon.errors import AntiphonError, Divergence
from antiphon.host.llm import ModelBoundary
from antiphon.host.workflow.nodes import NodeFailed, Outputs, Visit
from antiphon.ops.app import Antiphon, using
from antiphon.ops.entry import load_entry
from antiphon.ops.gateways import AsyncGateway
from antiphon.ops.start import arguments_of, is_arguments
from antiphon.ports import Answer, Invocation, Row

_FRESH = {
    "now": lambda: datetime.now(UTC).isoformat(),
    "random": lambda: repr(random.random()),
    "uuid4": lambda: str(uuid.uuid4()),
}


class ReplayInvoker:
    """The invoker of a replay fork: what no recording answers is refused, whatever reaches for it (RFC 0140)."""

    def __init__(self) -> None:
        self.inner: Any = None
        """Answers from a recording while an agent runs."""

    def answer_tool(self, call: Invocation) -> Answer | None:
        return self._reached(call).answer_tool(call)  # type: ignore[no-any-return]

    async def answer(self, call: Invocation) -> Answer | None:
        return await self._reached(call).answer(call)  # type: ignore[no-any-return]

    def _reached(self, call: Invocation) -> Any:
        if self.inner is None:
            message = f"{call.name} was called in a replay fork, which performs no call."
            raise Divergence(message, code="replay_source_missing")
        return self.inner

    def draw(self, what: str, site: Site, fresh: Any) -> Any:
        return fresh() if self.inner is None else self.inner.draw(what, site, fresh)


class RunServices:
    """The services of one run."""

    def __init__(
        self,
        app: Antiphon,
        gateway: AsyncGateway,
        agents: Mapping[str, str],
        recorder: Recorder,
        manifest: RunManifest,
        models: ModelBoundary,
        later: list[Row],
        replaying: ReplayInvoker | None,
        writes: Callable[[], None],
    ) -> None:
        self._app = app
        self._gateway = gateway
        self._agents = agents
        self._recorder = recorder
        self._manifest = manifest
        self._models = models
        self._later = later
        """Rows to be written with the next events."""
        self._replaying = replaying
        self._writes = writes
        """Told when something else may write to the run's log."""

    async def call_tool(self, name: str, arguments: Mapping[str, Any], key: str) -> Any:
        self._writes()
        namespace, _, tool = name.rpartition("/")
        result = await self._gateway.execute(
            {
                "contractVersion": "1.1",
                "requestId": uuid7(),
                "toolName": tool,
                "toolNamespace": namespace or "tools",
                "target": {"sessionKey": f"run:{self._manifest.id}", "actorId": "host"},
                "payload": {"version": "1.0", "params": dict(arguments), "idempotencyKey": key},
                "transport": {
                    "dedupeMode": "enforced",
                    "retryBudget": {"maxAttempts": 1000, "maxElapsedMs": 2**53 - 1},
                },
                "control": {},
                "trace": {},
            }
        )
        if result.status == "success" and result.output is not UNSET:
            return result.output.content
        if result.error is UNSET:
            raise NodeFailed("tool_error", f"{name} gave neither a result nor an error.")
        raise NodeFailed(result.error.code, result.error.message)

    async def ask_model(self, visit: Visit) -> Outputs:
        return await self._models.ask(visit)

    def draw(self, what: str) -> Any:
        scope = self._recorder.scope
        site = scope.enter(what, "")
        value = _FRESH[what]()
        self._later.append(scope.encode("draw", site, {"what": what, "value": value, "nth": site.nth}, {}))
        return value

    async def run_agent(self, name: str, inputs: Mapping[str, Any]) -> Any:
        """Call an entry point; its own calls stand in this run, and a replay answers them from the recording."""
        self._writes()
        function = load_entry(self._agents[name])
        args, kwargs = arguments_of(dict(inputs)) if is_arguments(dict(inputs)) else ([], dict(inputs))
        scope = self._recorder.scope
        run = Run(self._recorder, self._manifest, self._app._caller(self._manifest))
        if self._replaying is not None:
            self._replaying.inner = await self._recording_invoker()
        try:
            if inspect.iscoroutinefunction(inspect.unwrap(function)):
                with run.attached(), using(self._app):
                    return await function(*args, **kwargs)

            def call() -> Any:
                with run.attached(), using(self._app):
                    scope.adopt()
                    return function(*args, **kwargs)

            return await asyncio.to_thread(call)
        except Divergence as error:
            raise NodeFailed("replay_source_missing", error.message) from None
        except AntiphonError as error:
            raise NodeFailed(error.code, error.message) from None
        except Exception as error:
            raise NodeFailed("agent_error", f"{type(error).__name__}: {error}") from None
        finally:
            if self._replaying is not None:
                self._replaying.inner = None
            scope.adopt()

    async def _recording_invoker(self) -> Any:
        from antiphon._replay.observe import Observer
        from antiphon._replay.strict import StrictInvoker
        from antiphon.ops.runs import find_run, load_recording

        def load() -> Any:
            source = find_run(self._app, self._manifest.source_run)
            recording = load_recording(self._app, source)
            redactor = self._app._redactor.with_salt(source.salt)
            return StrictInvoker(recording, Observer(recording, redactor.redact))

        return await asyncio.to_thread(load)
