"""The replay report: its structure, and its console output in the layout that the document shows (D29)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from antiphon._diff import plural, shorten
from antiphon.scoring._scores import THRESHOLD, band

ReplayReport = dict[str, Any]
"""A replay or a comparison of two runs, as docs/reference/replay-report.md describes it; every field may be absent."""


def count(value: Any) -> int:
    """A count, given as a number or as the items themselves."""
    if isinstance(value, (int, float)):
        return int(value)
    return len(value) if value is not None else 0


_EXECUTING = {
    "A": "Executing A Replay (Using cached outputs)...",
    "B": "Executing B Replay (Re-executing agent with cached tool calls)...",
}
_WIDEST = 200
_MEANS = {
    "A": "strict: every answer comes from the recording",
    "B": "explore: the model is called again, tools answer from the recording",
}
NOT_RUN = "No code ran: the recording was only checked."


def compared_text(report: ReplayReport) -> str:
    """How the answers were compared, and by which embedder: *1 by meaning (minilm), 2 equal*."""
    counts = report.get("answers") or {}
    by = f" ({report.get('embedder')})"
    words = {
        "meaning": f"by meaning{by}",
        "characters": f"by characters ({report.get('embedder')} does not know their words)",
        "equal": "equal",
        "missing": "missing",
        "extra": "not recorded",
    }
    said = [f"{counts[how]} {words[how]}" for how in words if counts.get(how)]
    if said and not counts.get("meaning") and not counts.get("characters"):
        said.append("no embedder needed")
    return ", ".join(said)


def plan_text(report: ReplayReport) -> str:
    """Type, score and changes: printed before the replay runs."""
    kind = report.get("replayType", "A")
    score, limit = report.get("determinismScore", 1.0), report.get("threshold", THRESHOLD)
    if report.get("executed") is False:
        return f"Replay Type: {kind}\n\n{NOT_RUN}\n"
    lines = [f"Replay Type: {kind}", f"Determinism Score: {score:.2f} (threshold: {limit:.2f})", ""]
    changes = report.get("changes") or {}
    if changes:
        lines += ["Changes Detected:", *_changes(changes), ""]
    else:
        lines.append("No changes detected.")
    return "\n".join([*lines, _EXECUTING[kind]]) + "\n"


def result_text(report: ReplayReport) -> str:
    """Counts and scores: printed after it."""
    ars = report.get("ars") or {}
    if report.get("executed") is False:
        return ""
    digits = 3 if report.get("replayType", "A") == "A" else 2
    return (
        "[Antiphon] Replay Execution:\n"
        f"  - Cache Hits: {count(report.get('cacheHits'))}\n"
        f"  - New Tool Calls: {count(report.get('newToolCalls'))}\n"
        f"  - Unused Tool Calls: {count(report.get('unusedToolCalls'))}\n"
        "\n"
        f"ARS (Agent Regression Score): {ars.get('score', 0.0):.3f}\n"
        f"  - Output Similarity: {ars.get('outputSimilarity', 0.0):.{digits}f}\n"
        f"  - Tool Accuracy: {ars.get('toolAccuracy', 0.0):.{digits}f}\n"
    )


def findings_text(report: ReplayReport) -> str:
    """What the document's block has no line for: blocked calls, divergences, contradictions, the verdict."""
    lines = list(_findings(report))
    return "\n".join(lines) + "\n" if lines else ""


def report_text(report: ReplayReport) -> str:
    """The complete output of a replay."""
    findings = findings_text(report)
    return "\n".join(part for part in (plan_text(report), result_text(report), findings) if part)


def _changes(changes: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Iterator[str]:
    for section, fields in changes.items():
        yield f"  - {section}:"
        for name, change in fields.items():
            yield f"      {name}: {shorten(dict(change), _WIDEST)}"


def _findings(report: ReplayReport) -> Iterator[str]:
    if count(report.get("blocked")):
        yield f"Blocked Side Effects: {count(report.get('blocked'))}"
    if report.get("notCompared"):
        yield f"Not Compared (unknown on one side): {', '.join(report['notCompared'])}"
    if report.get("insideTools"):
        inside = plural(report["insideTools"], "recorded call")
        yield f"Not Compared: {inside} inside of tools, because their tools were answered from the recording"
    if report.get("callsOnly"):
        yield "Not Compared: order and output, because only calls were recorded, from outside of the code"
    if report.get("answers"):
        yield f"Answers Compared: {compared_text(report)}"
    for hit in report.get("semanticHits") or ():
        yield f"Semantic Hit: {hit.get('name', '?')} {float(hit.get('score', 0)):.0%}"
        yield f"  - recorded: {shorten(hit.get('recorded'), _WIDEST)}"
        yield f"  - replayed: {shorten(hit.get('live'), _WIDEST)}"
    for divergence in report.get("divergences") or ():
        yield f"Divergence: {divergence.get('message') or shorten(dict(divergence), _WIDEST)}"
    if report.get("consequences"):
        missing = report["consequences"]
        what = "recorded call" if report.get("callsOnly") else "recorded lane"
        yield f"  - so {plural(len(missing), what)} did not happen: {', '.join(missing[:5])}"
    for found in report.get("contradictions") or ():
        old, new = shorten(found.get("recorded")), shorten(found.get("replayed"))
        yield f"Contradiction: {found.get('kind', '?')}, {old} became {new}"
    if "verdict" in report:
        ars = report.get("ars") or {}
        meaning = f" ({ars.get('band') or band(ars['score']).label})" if "score" in ars else ""
        yield f"Verdict: {report['verdict']}{meaning}"
        for reason in report.get("verdictReasons") or ():
            yield f"  - {reason}"
        if "score" in ars and report.get("executed"):
            kind = report.get("replayType", "A")
            yield f"({kind} is {_MEANS[kind]}. ARS: 1 is the same answers and calls.)"
