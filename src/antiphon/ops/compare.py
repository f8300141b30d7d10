"""Two runs side by side, or a recording beside its replay: what ``antiphon diff`` prints and the console shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from antiphon._replay.recording import Recording
from antiphon.ops.app import Antiphon
from antiphon.ops.replay import shown
from antiphon.ops.reports import SHOWN_CALLS, call_of, outputs_of, score_runs
from antiphon.ops.runs import load_recording
from antiphon.redact._pointers import viewed


def compare(
    app: Antiphon, left: Recording, right: Recording, *, min_ars: float = 0.0, every: bool = False
) -> dict[str, Any]:
    """What differs between two runs, with masks in place of secrets.

    Ids and times that a provider generates for each response are left out unless *every* includes them; ``hiddenIds``
    says how many there were. A strict replay stores no calls of its own: its side shows where it diverged from the
    recording.
    """
    kept: Mapping[str, Any] = right.manifest.replay or {}
    of_this = right.manifest.source_run == left.manifest.id
    ids = 0
    if of_this and kept.get("replayType") == "A":
        data = _strict(app, left, right, kept)
    else:
        data = shown(right, shown(left, score_runs(app, left, right, min_ars=min_ars)))
        ids = 0 if every else _without_ids(data)
        data["equal"] = _equal(data)
        if not data["equal"] and data["verdict"] == "pass":
            data["verdict"], data["verdictReasons"] = "fail", ["the runs differ"]
        if of_this:
            data |= {name: kept[name] for name in ("replayType", "determinismScore", "changes") if name in kept}
    head = {"sourceRun": left.manifest.id, "replayRun": right.manifest.id, "title": left.manifest.name}
    return {**head, **data, "hiddenIds": ids}


def _strict(app: Antiphon, left: Recording, right: Recording, kept: Mapping[str, Any]) -> dict[str, Any]:
    """A strict replay from what it stored: its divergences, and the calls before the first one in each lane."""
    recording = load_recording(app, left.manifest, shown=True)
    kind = "replay.diverged"
    divergences = [event for event in map(viewed, app.events(right.manifest.id)) if event.type == kind]
    found = [{**event.payload, "lane": event.meta.get("lane", "0")} for event in divergences]
    at: dict[int, dict[str, Any]] = {}
    over: dict[str, int] = {}
    for one in found:
        if isinstance(one.get("seq"), int):
            at.setdefault(one["seq"], one)
            over[one["lane"]] = min(one["seq"], over.get(one["lane"], one["seq"]))
    calls = [call for call in recording.top_calls() if call.started <= over.get(call.lane, call.started)]
    timeline = [call_of(app, recording, call).to_wire() for call in calls[:SHOWN_CALLS]]
    passed = kept.get("verdict") == "pass"
    return {
        **kept,
        "equal": passed,
        "divergences": found,
        "verdictReasons": [] if passed else [str(one.get("message", "")) for one in found[:5]],
        "outputsA": outputs_of(recording),
        "outputsB": outputs_of(recording) if passed else [],
        "timelineA": timeline,
        "timelineB": timeline,
        "pairs": [
            {"left": place, "right": place, "fields": at.get(call.started, {}).get("fields") or []}
            for place, call in enumerate(calls[:SHOWN_CALLS])
        ],
    }


# -- expected differences --------------------------------------------------------------------------------------------

_ISSUED = (
    "id tool_call_id call_id toolCallId callId created created_at createTime system_fingerprint responseId".split()
)
_ISSUED_PATH = re.compile(rf"(?:^|[.\]])(?:{'|'.join(_ISSUED)})$")


def _without_ids(data: dict[str, Any]) -> int:
    """Remove what a provider generates for each response (ids, times); returns how many there were."""
    ids = 0
    for side in ("timelineA", "timelineB"):
        data[side] = [_lasting(call) if call.get("kind") == "llm" else call for call in data[side]]
    structure = data["structure"]
    for name in ("changed", "resultsChanged"):
        kept = []
        for change in structure[name]:
            model = change["kind"] == "llm"
            fields = [field for field in change["fields"] if not (model and _ISSUED_PATH.search(field["path"]))]
            ids += len(change["fields"]) - len(fields)
            if fields:
                kept.append({**change, "fields": fields})
            else:
                structure["equal"] += 1
        structure[name] = kept
    return ids


def _lasting(value: Any, top: bool = True) -> Any:
    """A recorded model call without its provider's ids and times; the call's own fields stay."""
    if isinstance(value, dict):
        return {name: _lasting(inner, False) for name, inner in value.items() if top or name not in _ISSUED}
    return [_lasting(inner, False) for inner in value] if isinstance(value, list) else value


def _equal(data: dict[str, Any]) -> bool:
    structure = data["structure"]
    changed = any(structure[name] for name in ("added", "dropped", "changed", "resultsChanged", "reordered"))
    return not changed and bool(data["outputsA"] == data["outputsB"])
