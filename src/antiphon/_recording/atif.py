"""Trajectories in the Agent Trajectory Interchange Format (ATIF 1.x, Harbor's RFC 0001) as runs.

A step contains the model's answer and the results of its calls, but not the request. So a model call is stored with the
messages since the previous call, marked as partial, and a comparison rebuilds the conversation from them. What has no
place in our events is stored next to them as ``imported``: nothing in a file is dropped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Literal

import msgspec
import orjson

from antiphon._recording.foreign import (
    Completeness,
    EventBuilder,
    ImportedRun,
    answer_of,
    assistant,
    ms_of,
    usable_id,
    usage_of,
)
from antiphon.contract.events import RunManifest
from antiphon.errors import ArtifactError

FORMAT = "atif"
_PREFIX = "ATIF-v"
_DEEPEST = 8
NOT_RECORDED = "(not recorded)"


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    source: dict[str, Any] | None = None


class _Reference(msgspec.Struct):
    trajectory_id: str | None = None
    trajectory_path: str | None = None
    session_id: str | None = None


class _Result(msgspec.Struct):
    source_call_id: str | None = None
    content: str | list[_Part] | None = None
    subagent_trajectory_ref: list[_Reference] | None = None


class _Observation(msgspec.Struct):
    results: list[_Result]


class _Call(msgspec.Struct):
    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class _Metrics(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None


class _Step(msgspec.Struct):
    source: Literal["system", "user", "agent"]
    message: str | list[_Part]
    step_id: int | None = None
    timestamp: str | None = None
    model_name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    observation: _Observation | None = None
    metrics: _Metrics | None = None
    llm_call_count: int | None = None
    is_copied_context: bool | None = None


class _Agent(msgspec.Struct):
    name: str
    version: str = ""
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None
    extra: dict[str, Any] | None = None


class _Trajectory(msgspec.Struct):
    schema_version: str
    agent: _Agent
    steps: list[_Step]
    session_id: str | None = None
    trajectory_id: str | None = None
    continued_trajectory_ref: str | None = None
    subagent_trajectories: list[dict[str, Any]] | None = None


_KEPT = frozenset(
    "source message timestamp model_name reasoning_content tool_calls observation step_id is_copied_context".split()
)
"""Fields of a step that the events themselves hold."""


def is_atif(document: Any) -> bool:
    """Whether a document identifies itself as a trajectory."""
    return isinstance(document, dict) and str(document.get("schema_version", "")).startswith(_PREFIX)


def runs_of(document: dict[str, Any], *, tenant: str, workspace: str, depth: int = 0) -> Iterator[ImportedRun]:
    """The run of the trajectory, then those of the agents it delegated to, if they are in the file."""
    version = str(document.get("schema_version", "")).removeprefix(_PREFIX)
    if not version.startswith("1."):
        raise ArtifactError(f"ATIF {version[:40] or '?'} is not known.", hint="This release reads ATIF-v1.x.")
    if depth > _DEEPEST:
        raise ArtifactError("The trajectory holds agents of agents too deeply.")
    try:
        trajectory = msgspec.convert(document, _Trajectory)
    except msgspec.ValidationError as error:
        raise ArtifactError(f"The trajectory is not valid {_PREFIX}{version}: {error}") from None
    if not trajectory.steps:
        raise ArtifactError("The trajectory has no steps.")
    writer = _Writer(document, trajectory, tenant, workspace)
    yield writer.to_run()
    for number, inner in enumerate(trajectory.subagent_trajectories or ()):
        inner = {"schema_version": document["schema_version"], **inner}
        try:
            for imported in runs_of(inner, tenant=tenant, workspace=workspace, depth=depth + 1):
                tags = {"parentRun": writer.manifest.id, **imported.manifest.tags}
                yield imported._replace(manifest=msgspec.structs.replace(imported.manifest, tags=tags))
        except ArtifactError as error:
            raise ArtifactError(f"subagent_trajectories[{number}]: {error.message}", hint=error.hint) from None


class _Writer:
    """Converts one trajectory to events."""

    def __init__(self, document: dict[str, Any], trajectory: _Trajectory, tenant: str, workspace: str) -> None:
        self._document = document
        self._trajectory = trajectory
        self._completeness = Completeness()
        self._waiting: list[dict[str, Any]] = []
        """Messages since the last model call."""
        self._output: Any = None
        self._open = False
        agent = trajectory.agent
        times = [moment for step in trajectory.steps if (moment := ms_of(step.timestamp))]
        given = trajectory.trajectory_id or trajectory.session_id or ""
        self._digest = hashlib.sha256(orjson.dumps(document, option=orjson.OPT_SORT_KEYS)).hexdigest()
        temperature = (agent.extra or {}).get("temperature")
        config = {"model_name": agent.model_name, "temperature": temperature}
        self.manifest = RunManifest(
            id=usable_id(given, FORMAT) if given else f"{FORMAT}-{self._digest[:32]}",
            name=agent.name[:256] or FORMAT,
            status="completed",
            started_at_ms=min(times, default=0),
            finished_at_ms=max(times, default=0),
            tenant=tenant,
            workspace=workspace,
            llm_config={name: value for name, value in config.items() if value is not None},
            tool_schemas={name: one for one in agent.tool_definitions or () if (name := _name(one))},
            tags={"imported": FORMAT, "agentVersion": agent.version[:100]},
        )
        self._lines = EventBuilder(self.manifest.id, self.manifest.started_at_ms)

    def to_run(self) -> ImportedRun:
        """The run, with its completeness in the event ``import``."""
        trajectory, lines = self._trajectory, self._lines
        users = [step for step in trajectory.steps if step.source == "user"]
        task = _plain(users[0].message) if users else None
        lines.add("run.started", {"name": self.manifest.name, "input": task})
        header: dict[str, Any] = {"format": FORMAT, "version": trajectory.schema_version}
        header["document"] = {k: v for k, v in self._document.items() if k not in ("steps", "subagent_trajectories")}
        lines.add("import", header)
        self._completeness.gap(
            "ATIF has no model requests: steps can be compared one by one, the run cannot be replayed strictly"
        )
        self._completeness.count("task", users, "no user message says what the task was")
        self._completeness.count("system prompt", any(step.source == "system" for step in trajectory.steps))
        self._completeness.count("tool definitions", self.manifest.tool_schemas, "the tools are not defined")
        for number, step in enumerate(trajectory.steps, 1):
            self._step(number, step, self._document["steps"][number - 1])
        if self._open:
            lines.add("interaction.finished", {"output": self._output}, **lines.place())
        if self._waiting:  # what came after the last model call
            lines.add("import", {"format": FORMAT, "n": 1, "messages": self._waiting})
        if trajectory.continued_trajectory_ref:
            self._completeness.gap(f"the trajectory goes on in another file: {trajectory.continued_trajectory_ref}")
        header["completeness"] = self._completeness.to_wire()  # known once all steps are read
        lines.at_ms = self.manifest.finished_at_ms or 0
        lines.add("run.finished", {"status": "completed", "output": self._output})
        return ImportedRun(self.manifest, lines.events, self._digest)

    def _step(self, number: int, step: _Step, raw: dict[str, Any]) -> None:
        if step.step_id != number:
            self._completeness.gap(f"step {number} is numbered {step.step_id}")
        at = ms_of(step.timestamp)
        self._lines.at_ms = at or self._lines.at_ms  # everything that comes with this step
        self._completeness.count("timestamps", at)
        extra = {name: value for name, value in raw.items() if name not in _KEPT}
        self._media(number, step.message)
        content = _content(step.message)
        if step.source == "agent":
            self._agent(number, step, content, raw, extra)
            return
        self._waiting.append({"role": step.source, "content": content})
        kept = {"imported": extra} if extra else {}
        if step.source == "user":
            if self._open:
                self._lines.add("interaction.finished", {"output": self._output}, **self._lines.place())
            self._open = True
            task = {"input": _plain(step.message), **kept}
            self._lines.add("interaction.started", task, **self._lines.place())
        else:
            prompt = {"name": "system", "template": None, "variables": {}, "text": _plain(step.message), **kept}
            self._lines.add("prompt", prompt, **self._lines.place())
        for result in step.observation.results if step.observation else ():
            self._unbound(number, result)

    def _agent(self, number: int, step: _Step, content: Any, raw: dict[str, Any], extra: dict[str, Any]) -> None:
        calls = step.tool_calls or []
        model = step.model_name or self._trajectory.agent.model_name
        message = assistant(
            content, [(c.tool_call_id, c.function_name, c.arguments) for c in calls], step.reasoning_content
        )
        if step.is_copied_context:  # of an earlier trajectory: stored there, not here
            self._waiting.append(message)
            bound, loose = self._paired(number, step, calls)
            for call, results in zip(calls, bound, strict=True):
                self._answered(call, _joined(results))
            for result in loose:
                self._unbound(number, result)
            return
        if step.llm_call_count != 0:
            self._model(number, step, message, model, extra)
        else:
            self._waiting.append(message)
        if not calls or _plain(step.message):
            self._output = _plain(step.message)
        self._tools(number, step, calls, raw)

    def _model(
        self, number: int, step: _Step, message: dict[str, Any], model: str | None, extra: dict[str, Any]
    ) -> None:
        metrics = step.metrics or _Metrics()
        used = metrics.prompt_tokens is not None and metrics.completion_tokens is not None
        self._completeness.count("model name", model, f"step {number}: the model is not named")
        self._completeness.count(
            "model answers", _plain(step.message) or step.tool_calls, f"step {number}: an empty answer"
        )
        self._completeness.count("model requests", False)
        self._completeness.count("sampling parameters", "temperature" in self.manifest.llm_config)
        self._completeness.count("token usage", used, f"step {number}: no token usage")
        self._completeness.count("cost", metrics.cost_usd is not None)
        if (step.llm_call_count or 1) > 1:
            self._completeness.gap(f"step {number}: {step.llm_call_count} model calls are told as one")
        request = {"model": model or "unknown", "messages": self._waiting}
        place = self._lines.start("llm", "llm", request, provider="openai-chat", partial=True)
        self._waiting = []
        value = answer_of(message, model)
        meta = {"usage": usage_of(metrics.prompt_tokens, metrics.completion_tokens), "step": number}
        self._lines.finish(place, value, extra=extra, meta=meta)

    def _tools(self, number: int, step: _Step, calls: list[_Call], raw: dict[str, Any]) -> None:
        results = list(step.observation.results) if step.observation else []
        beside = {
            id(one): _extra_fields(raw_one, _Result) for one, raw_one in zip(results, _raw_results(raw), strict=False)
        }
        bound, loose = self._paired(number, step, calls)
        for call, own, raw_call in zip(calls, bound, raw.get("tool_calls") or (), strict=True):
            found = _joined(own)
            meta = {"importedId": call.tool_call_id, "step": number}
            place = self._lines.start(
                "tool", call.function_name or "tool", call.arguments, meta=meta, extra=_extra_fields(raw_call, _Call)
            )
            present = found is not None and (found.content is not None or bool(found.subagent_trajectory_ref))
            shared = ", only one for all calls of the step" if loose else ""
            self._completeness.count(
                "tool results", present, f"step {number}: no result of {call.function_name} is told{shared}"
            )
            if found is not None:
                self._media(number, found.content)
                self._references(number, found)
                if present:
                    extra = [beside[id(one)] for one in own]
                    kept = extra[0] if len(extra) == 1 else {"results": extra} if any(extra) else None
                    self._lines.finish(place, _value(found), extra=kept)
            self._answered(call, found)
        for result in loose:
            self._unbound(number, result)

    def _paired(self, number: int, step: _Step, calls: list[_Call]) -> tuple[list[list[_Result]], list[_Result]]:
        """The results of each call, and those without one. Equal ids get theirs in order, the last one the rest."""
        results = list(step.observation.results) if step.observation else []
        bound: list[list[_Result]] = [[] for _ in calls]
        places: dict[str, list[int]] = {}
        for place, call in enumerate(calls):
            places.setdefault(call.tool_call_id, []).append(place)
        for name, own in places.items():
            if len(own) > 1:
                self._completeness.gap(
                    f"step {number}: {len(own)} calls have the id {name!r}: each gets the next result"
                )
        loose: list[_Result] = []
        for result in results:
            free = places.get(result.source_call_id or "") if result.source_call_id is not None else None
            if free is None:
                loose.append(result)
            else:
                bound[free[0] if len(free) == 1 else free.pop(0)].append(result)
        if len(calls) == 1 and len(loose) == 1 and not bound[0]:  # it cannot belong to any other
            bound, loose = [loose], []
        for call, many in zip(calls, bound, strict=True):
            if len(many) > 1:
                self._completeness.gap(f"step {number}: {len(many)} results of {call.function_name} are told as one")
        return bound, loose

    def _answered(self, call: _Call, found: _Result | None) -> None:
        content = NOT_RECORDED if found is None or found.content is None else _content(found.content)
        self._waiting.append({"role": "tool", "tool_call_id": call.tool_call_id, "content": content})

    def _unbound(self, number: int, result: _Result) -> None:
        """Feedback that belongs to no call: the model saw it as a message."""
        self._media(number, result.content)
        self._references(number, result)
        if result.content is not None:
            self._waiting.append({"role": "user", "content": _content(result.content)})

    def _references(self, number: int, result: _Result) -> None:
        inner = {one.get("trajectory_id") for one in self._trajectory.subagent_trajectories or ()}
        for one in result.subagent_trajectory_ref or ():
            where = one.trajectory_path or one.trajectory_id or one.session_id
            present = one.trajectory_id is not None and one.trajectory_id in inner
            self._completeness.count(
                "delegated trajectories", present, f"step {number}: a delegated trajectory is not in the file: {where}"
            )

    def _media(self, number: int, content: Any) -> None:
        for part in content if isinstance(content, list) else ():
            if part.type != "text":
                self._completeness.count(
                    "media", False, f"step {number}: {part.type} is a reference, its content is elsewhere"
                )


def _joined(results: list[_Result]) -> _Result | None:
    """The results of one call combined, with all their parts."""
    if len(results) < 2:
        return results[0] if results else None
    parts: list[_Part] = []
    for one in results:
        parts += [_Part("text", one.content)] if isinstance(one.content, str) else one.content or []
    references = [reference for one in results for reference in one.subagent_trajectory_ref or ()]
    return _Result(results[0].source_call_id, parts or None, references or None)


def _extra_fields(raw: Any, known: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields of an object in the file that are not otherwise read."""
    return {name: value for name, value in (raw or {}).items() if name not in known.__struct_fields__}


def _raw_results(raw: dict[str, Any]) -> list[dict[str, Any]]:
    return list((raw.get("observation") or {}).get("results") or ())


def _name(definition: dict[str, Any]) -> str | None:
    function = definition.get("function")
    name = function.get("name") if isinstance(function, dict) else definition.get("name")
    return name if isinstance(name, str) else None


def _plain(content: str | list[_Part]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text or "" for part in content if part.type == "text")


def _content(content: str | list[_Part]) -> Any:
    if isinstance(content, str):
        return content
    return [
        {"type": "text", "text": part.text or ""}
        if part.type == "text"
        else {"type": f"{part.type}_url", f"{part.type}_url": {"url": (part.source or {}).get("path")}}
        for part in content
    ]


def _value(result: _Result) -> Any:
    if result.subagent_trajectory_ref:
        return {
            "content": _content(result.content or ""),
            "delegated": msgspec.to_builtins(result.subagent_trajectory_ref),
        }
    return _content(result.content or "")
