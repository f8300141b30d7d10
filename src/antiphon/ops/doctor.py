"""What ``antiphon doctor`` looks at."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from typing import Any

from antiphon._drive import drive
from antiphon.errors import AntiphonError
from antiphon.ops.admin import Admin, usage
from antiphon.ops.app import Antiphon
from antiphon.ops.entry import load_entry
from antiphon.ops.gateways import declared
from antiphon.ops.storage import is_remote, waiting_uploads
from antiphon.ops.views import list_runs

_RETRYING = {
    "openai": "max_retries=0 (antiphon.wrap sets it)",
    "anthropic": "max_retries=0 (antiphon.wrap sets it)",
    "tenacity": "no second retry loop around a tool that the gateway retries",
    "litellm": "num_retries=0",
    "langchain": "no ToolRetryMiddleware beside the gateway",
}


def _found(level: str, check: str, message: str, hint: str = "") -> dict[str, Any]:
    finding = {"level": level, "check": check, "message": message}
    return {**finding, "hint": hint} if hint else finding


def examine(app: Antiphon, entry: str | None = None) -> list[dict[str, Any]]:
    """Every finding; ``error`` means broken, ``warning`` wants a person, ``note`` is a limit to know."""
    return [*_store(app), *_records(app), *_runs(app), *_uploads(app), *_tools(entry), *_retry_owners(), *_limits()]


def _store(app: Antiphon) -> list[dict[str, Any]]:
    try:
        facts = app.journal.ping()
    except AntiphonError as error:
        return [_found("error", "store", f"{app.store.url}: {error.message}", error.hint)]
    parts = [facts["claims"], facts["log"]] if facts.get("store") == "composed" else [facts]
    findings = [finding for part in parts for finding in _server(app.store.url if part is facts else "", part)]
    if not app.journal.durable:
        findings.append(
            _found("warning", "store", "claims do not outlive this process", "Use sqlite:, redis: or postgresql:.")
        )
    return findings


def _server(url: str, facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What one server says of itself, and what weakens the guarantees there."""
    shown = {name: value for name, value in facts.items() if name not in ("url", "warnings")}
    details = ", ".join(f"{name} {value}" for name, value in shown.items())
    where = url or str(facts.get("url", facts.get("store", "")))
    findings = [_found("ok", "store", f"{where} answers ({details})")]
    hint = "See docs/explanation/failover.md for what this can lose."
    findings += [_found("warning", "store", str(text), hint) for text in facts.get("warnings", ())]
    if facts.get("readOnly"):
        findings.append(_found("error", "store", f"{where} is a read-only replica", "Name the primary in [store]."))
    return findings


def _records(app: Antiphon) -> list[dict[str, Any]]:
    try:
        counts = app.journal.counts(app.tenant)
        unknown = drive(Admin(app).claims(state="unknown", limit=20))
        cost = usage(app)
    except AntiphonError as error:
        return [_found("error", "claims", error.message, error.hint)]
    findings = []
    stale = sum(number for (_, state), number in counts.items() if state == "stale")
    live = sum(number for (_, state), number in counts.items() if state == "inflight")
    if stale:
        share = stale / max(1, stale + live)
        findings.append(
            _found("warning", "claims", f"{stale} in flight past their lease ({share:.0%} of those in flight)")
        )
    for claim in unknown:
        command = f"antiphon claims resolve {claim['fingerprint']} --happened | --did-not-happen"
        hint = f"Find out what happened, then: {command}"
        findings.append(_found("warning", "claims", f"{claim['tool']}: outcome unknown ({claim['fingerprint']})", hint))
    if "bytesPerRecord" in cost:
        text = f"about {cost['bytesPerRecord']} bytes each in the server, {cost['bytes'] / 1e6:.1f} MB together"
        findings.append(_found("ok", "claims", f"{cost['records']} records, {text}"))
    return findings or [_found("ok", "claims", f"{sum(counts.values())} records, none stale, none unknown")]


def _runs(app: Antiphon) -> list[dict[str, Any]]:
    try:
        interrupted = list_runs(app, status="interrupted", limit=5)
    except AntiphonError as error:
        return [_found("error", "runs", error.message, error.hint)]
    if not interrupted:
        return [_found("ok", "runs", "no interrupted runs")]
    hint = "Go on with one: antiphon run TARGET --resume RUN"
    return [_found("warning", "runs", f"{row['name']} {row['id']} was interrupted", hint) for row in interrupted]


def _uploads(app: Antiphon) -> list[dict[str, Any]]:
    """What waits for the bucket, and for how long."""
    findings = []
    for waiting in waiting_uploads():
        minutes = max(0, app.clock.now_ms() - waiting.oldest_ms) / 60_000
        age = f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
        what = f"{waiting.what} wait" if waiting.number > 1 else f"{waiting.what.removesuffix('s')} waits"
        text = f"{waiting.number} {what} for the bucket ({waiting.bytes} bytes), the oldest for {age}"
        if is_remote(app):
            hint = "Send them: antiphon export --waiting"
        else:
            hint = "No bucket is configured here: name it in [artifacts], then: antiphon export --waiting"
        findings.append(_found("warning", "uploads", text, hint))
    if is_remote(app) and not findings:
        findings.append(_found("ok", "uploads", "nothing waits for the bucket"))
    return findings


def _tools(entry: str | None) -> list[dict[str, Any]]:
    if entry is None:
        return [_found("note", "tools", "not looked at; name an entry point with --entry to see its tools")]
    try:
        load_entry(entry)
    except AntiphonError as error:
        return [_found("error", "tools", error.message, error.hint)]
    specs = declared()
    if not specs:
        hint = "Decorate them: @gateway.tool(idempotent=...)"
        return [
            _found(
                "warning", "tools", f"{entry} registers no tools: its functions are neither guarded nor recorded", hint
            )
        ]
    findings = []
    for name, spec in sorted(specs.items()):
        if spec.effect is None:
            hint = 'Declare effect="read" or effect="write": replays treat it as a side effect until then.'
            findings.append(_found("warning", "tools", f"{name} does not declare its effect", hint))
    return findings or [_found("ok", "tools", f"{len(specs)} tools, all with a declared effect")]


def _retry_owners() -> list[dict[str, Any]]:
    findings = []
    for package, rule in _RETRYING.items():
        if importlib.util.find_spec(package) is not None:
            findings.append(
                _found("note", "retries", f"{package} is installed and retries by itself", f"One owner: {rule}.")
            )
    return findings


def _limits() -> list[dict[str, Any]]:
    findings = [
        _found("note", "limits", "functions that were never wrapped are not seen, neither live nor in a replay"),
        _found("note", "limits", "outside a run, a decorated call without a call id is always a new call"),
    ]
    if os.environ.get("TOOL_RELIABILITY_ENABLED", "").lower() in ("0", "false", "off", "no"):
        findings.append(_found("warning", "switches", "TOOL_RELIABILITY_ENABLED is off: calls are not guarded"))
    return findings
