"""Pages beside the report: one run, and the results of golden runs. One file each, nothing trusted, no requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from antiphon.scoring import html
from antiphon.scoring._structure import Call

_MOST = 2_000


def render_run(run: Mapping[str, Any], calls: Iterable[Call]) -> str:
    """The page of a recorded run: what it was given and answered, and every call with arguments and result."""
    title = str(run.get("name") or "Run")
    status = str(run.get("status") or "")
    shown = list(calls)
    rows = [
        html.fill("single", call=html.call_part(call, place, "Recorded")) for place, call in enumerate(shown[:_MOST])
    ]
    if len(shown) > _MOST:
        rows.append(html.muted(f"{len(shown) - _MOST} more calls are not shown."))
    ends = [
        {"path": name, "recorded": run[key]}
        for key, name in (("input", "input"), ("output", "output"), ("error", "error"))
        if run.get(key) is not None
    ]
    counts: Mapping[str, int] = run.get("counts") or {}
    names = (("calls", "tool calls"), ("models", "model calls"), ("retries", "retries"), ("reused", "reused"))
    alarms = (("blocked", "blocked"), ("errors", "errors"))
    tiles = [html.tile(name, counts[key]) for key, name in names if key in counts]
    tiles += [
        html.tile(name, counts[key], kind="alarm" if counts[key] else "") for key, name in alarms if key in counts
    ]
    body = html.join(
        (
            _header(title, f"{run.get('id', '')}", status, status == "completed"),
            html.fill("numbers", parts=html.fill("calls", tiles=html.join(tiles))) if tiles else "",
            html.fill(
                "ends",
                rows=html.join(html.fill("end", name=e["path"], value=html.value_text(e["recorded"])) for e in ends),
            )
            if ends
            else "",
            html.fill("run-calls", rows=html.join(rows)) if rows else html.muted("The run made no calls."),
        )
    )
    return html.page(title, body)


def render_tests(results: Iterable[Mapping[str, Any]]) -> str:
    """The page of golden runs: each with its verdict, score and reasons."""
    shown = list(results)
    passed = sum(result.get("status") == "pass" for result in shown)
    rows = []
    for result in shown:
        ars = result.get("ars") or {}
        score = f"ARS {ars['score']:.3f} · " if "score" in ars else ""
        good = result.get("status") == "pass"
        rows.append(
            html.fill(
                "golden",
                kind="pass" if good else "fail",
                status=result.get("status", ""),
                path=result.get("path", ""),
                facts=f"{score}{result.get('seconds', 0):.2f} s",
                reasons=html.join(html.fill("item", item=reason) for reason in result.get("reasons") or ()),
            )
        )
    title = f"{passed} of {len(shown)} golden runs pass"
    note = html.muted(
        "ARS, the agent regression score, says how much of the recording was reproduced: 1.000 is all of it."
    )
    body = html.join(
        (_header(title, "", "pass" if passed == len(shown) else "fail", passed == len(shown)), note, *rows)
    )
    return html.page(title, body)


def _header(title: str, line: str, badge: str, good: bool) -> html.Markup:
    mark = html.fill("badge", kind="pass" if good else "fail", verdict=badge) if badge else ""
    return html.fill("header", title=title, line=line, reason="", reasons="", badge=mark)
