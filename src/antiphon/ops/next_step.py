"""Next steps compared: at each recorded model call another model gets the same conversation, and its answer is compared
with the recorded one. Then the conversation continues with the recorded answer, so one difference does not affect
the rest.

This needs no agent code and calls no tools, so it also works for runs of other formats.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from antiphon._diff import plural
from antiphon._recording.foreign import PARTIAL, conversation
from antiphon._replay.recording import RecordedCall, Recording
from antiphon.contract.events import Event, RunManifest
from antiphon.errors import AntiphonError, InvalidInput
from antiphon.llm.response import summarise
from antiphon.ops import Progress, silent
from antiphon.ops.app import Antiphon
from antiphon.ops.runs import load_recording

Send = Callable[[dict[str, Any]], Any]
SAME, SAME_TOOLS, OTHER_TOOLS = "same", "same tools", "other tools"
CALLS, ANSWERS, OTHER_ANSWER, ERROR = "calls instead", "answers instead", "other answer", "error"
VERDICTS = (SAME, SAME_TOOLS, OTHER_TOOLS, CALLS, ANSWERS, OTHER_ANSWER, ERROR)
"""The same calls or the same text; the same tools with other arguments; other tools; calls where the recorded model
answered; an answer where it called; another text; the model could not be asked.
"""
_LONG = 300


def next_steps(
    app: Antiphon,
    manifest: RunManifest,
    send: Send,
    *,
    model: str | None = None,
    steps: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Ask *send* for the next step at each model call of the run; its answers are recorded as a separate run."""
    recording = load_recording(app, manifest)
    asked = [call for call in recording.top_calls() if call.kind == "llm"][:steps]
    if not asked:
        raise InvalidInput(f"Run {manifest.id} has no model call to compare.", path="run")
    rows: list[dict[str, Any]] = []
    tags = {"nextStepOf": manifest.id}
    with app.run("next-step", input={"run": manifest.id, "model": model}, tags=tags, llm_cache=False) as run:
        for call, request in progress(_requests(recording, asked), len(asked), "asking for next steps"):
            recorded = _said(None if call.finished is None else recording.event(call.finished).payload.get("value"))
            row: dict[str, Any] = {"event": call.started, "recorded": recorded}
            why = _unfit(recording, request, recorded)
            if recorded is None or why:
                rows.append({**row, "verdict": None, "why": why})
                continue
            try:
                response = run.llm({**request, **({"model": model} if model else {})}, send)
            except Exception as error:  # a step that cannot be asked for becomes a row
                rows.append({**row, "verdict": ERROR, "why": f"{type(error).__name__}: {error}"[:_LONG]})
                continue
            answer = _said(response)
            if answer is None:
                why = f"the model function returned a {type(response).__name__} that is not a model response"
                rows.append({**row, "verdict": ERROR, "why": why})
                continue
            rows.append({**row, "answer": answer, "verdict": _compared(recorded, answer)})
        counted = Counter(row["verdict"] for row in rows if row["verdict"] is not None)
        totals = {name: counted[name] for name in VERDICTS}
        run.finish(totals)
    return {
        "run": manifest.id,
        "name": manifest.name,
        "nextStepRun": run.id,
        "steps": sum(totals.values()),
        "notCompared": len(rows) - sum(totals.values()),
        "verdicts": totals,
        "rows": [recording.view(row) for row in rows],
    }


def _requests(recording: Recording, asked: Sequence[RecordedCall]) -> Iterator[tuple[RecordedCall, dict[str, Any]]]:
    """The request of each model call; the whole conversation, even if the format only tells what was added."""
    before: list[Event] = []
    for call in asked:
        started = recording.event(call.started)
        found = started.payload.get("providerRequest") or started.payload.get("request")
        request = dict(found) if isinstance(found, dict) else {}
        if PARTIAL in started.payload:
            before.append(started)
            request["messages"] = conversation(before)
            if recording.manifest.tool_schemas:
                request["tools"] = list(recording.manifest.tool_schemas.values())
            if call.finished is not None:
                before.append(recording.event(call.finished))
        yield call, request


def _unfit(recording: Recording, request: dict[str, Any], recorded: Any) -> str:
    """Why a step cannot be compared."""
    if recorded is None or not request.get("messages"):
        return "the recording does not contain both the request and the answer"
    if recording.masks.holds(request) is not None:
        return "the conversation holds a masked value, which is never sent (ANTIPHON_REPLAY_KEY opens it)"
    return ""


def _said(response: Any) -> dict[str, Any] | None:
    """The step of a model: its text, and its calls as (name, arguments)."""
    account = summarise(response)
    if account["kind"] == "unknown":
        return {"text": response, "calls": []} if isinstance(response, str) else None
    calls = [[str(one.get("name")), _arguments(one.get("arguments"))] for one in account["toolCalls"]]
    return {"text": account["text"], "calls": calls, **({"refusal": True} if account["kind"] == "refusal" else {})}


def _arguments(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


def _compared(recorded: dict[str, Any], answer: dict[str, Any]) -> str:
    left, right = recorded["calls"], answer["calls"]
    if left and right:
        if left == right:
            return SAME
        return SAME_TOOLS if [name for name, _ in left] == [name for name, _ in right] else OTHER_TOOLS
    if left or right:
        return ANSWERS if left else CALLS
    same = " ".join(str(recorded["text"]).split()) == " ".join(str(answer["text"]).split())
    return SAME if same and recorded.get("refusal") == answer.get("refusal") else OTHER_ANSWER


def in_all(many: Sequence[dict[str, Any]], failed: Sequence[tuple[str, AntiphonError]] = ()) -> dict[str, Any]:
    """Several runs in numbers; shares are of the steps that could be compared."""
    totals = {name: sum(one["verdicts"][name] for one in many) for name in VERDICTS}
    compared = sum(totals.values()) - totals[ERROR]
    return {
        "runs": [dict(one) for one in many],
        "steps": sum(totals.values()),
        "notCompared": sum(one["notCompared"] for one in many),
        "verdicts": totals,
        "sameShare": round(totals[SAME] / compared, 4) if compared else None,
        "failed": [{"run": name, "error": error.code, "message": error.message} for name, error in failed],
    }


def text_of(result: dict[str, Any]) -> str:
    """One line for people."""
    said = ", ".join(f"{count} {name}" for name, count in result["verdicts"].items() if count)
    share = "" if result["sameShare"] is None else f": {result['sameShare']:.1%} the same"
    left = f"; {plural(result['notCompared'], 'step')} not compared" if result["notCompared"] else ""
    return f"{plural(result['steps'], 'next step')} in {plural(len(result['runs']), 'run')}{share} ({said}){left}"
