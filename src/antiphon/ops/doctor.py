"""What ``antiphon doctor`` checks."""

from __future__ import annotations

import importlib.util
import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from antiphon._diff import plural
from antiphon._drive import drive
from antiphon._gateway.owner import owner_token
from antiphon._gateway.switches import start_value
from antiphon.canonical import canonical_digest
from antiphon.config.wiring import CLAIMS_NOT_SHARED, SHARE_CLAIMS, claims_are_shared, seal_key_file
from antiphon.errors import AntiphonError
from antiphon.ops.admin import TRIAL, Admin, tenants_of, usage
from antiphon.ops.app import Antiphon
from antiphon.ops.bucket import is_remote, stored_runs
from antiphon.ops.entry import load_module
from antiphon.ops.gateways import declared
from antiphon.ops.runs import list_runs
from antiphon.ops.seal_keys import seal_keys
from antiphon.ops.storage import waiting_uploads
from antiphon.ports import Claimed, ClaimTemplate, StaticClaimRequest

_RETRYING = {
    "openai": "max_retries=0 (antiphon.wrap sets it)",
    "anthropic": "max_retries=0 (antiphon.wrap sets it)",
    "tenacity": "no second retry loop around a tool that the gateway retries",
    "litellm": "num_retries=0",
    "langchain": "no ToolRetryMiddleware together with the gateway",
}


LEVELS = ("error", "warning", "ok", "note")
"""Worst first."""


def _found(level: str, check: str, message: str, hint: str = "", **more: Any) -> dict[str, Any]:
    finding = {"level": level, "check": check, "message": message, **more}
    return {**finding, "hint": hint} if hint else finding


def grouped(findings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The findings by check, each with its worst level."""
    checks: dict[str, dict[str, Any]] = {}
    for finding in findings:
        group = checks.setdefault(finding["check"], {"level": finding["level"], "findings": []})
        group["level"] = min(group["level"], finding["level"], key=LEVELS.index)
        group["findings"].append({name: value for name, value in finding.items() if name != "check"})
    return checks


def examine(app: Antiphon, entry: str | None = None) -> list[dict[str, Any]]:
    """Every finding; ``error`` means broken, ``warning`` needs a person, ``note`` is a limit to know about."""
    checks: dict[str, Callable[[], Iterable[dict[str, Any]]]] = {
        "store": lambda: _store(app),
        "recordings": lambda: _originals(app),
        "seal key": lambda: (_found(trouble.level, "seal key", *trouble[1:]) for trouble in seal_keys(app).troubles),
        "claims": lambda: _claims(app),
        "runs": lambda: _runs(app),
        "uploads": lambda: _uploads(app),
        "tools": lambda: _tools(entry),
        "retries": _retry_owners,
        "limits": _limits,
    }
    findings = []
    for name, check in checks.items():
        try:
            findings += list(check())
        except AntiphonError as error:
            where = f"{app.store.url}: " if name == "store" else ""
            findings.append(_found("error", name, f"{where}{error.message}", error.hint))
    return findings


def _store(app: Antiphon) -> Iterator[dict[str, Any]]:
    facts = app.journal.ping()
    parts = [facts["claims"], facts["log"]] if facts.get("store") == "composed" else [facts]
    for part in parts:
        yield from _server(app.store.url if part is facts else "", part)
    if len(parts) > 1 and not claims_are_shared(app.config):
        yield _found("warning", "store", CLAIMS_NOT_SHARED, SHARE_CLAIMS)
    if not any(part.get("readOnly") for part in parts):
        yield from _trial(app)
    if not app.journal.durable:
        yield _found(
            "warning", "store", "claims are lost when this process ends", "Use sqlite:, redis: or postgresql:."
        )


def _trial(app: Antiphon) -> Iterator[dict[str, Any]]:
    """Whether the store accepts claims, including those of safety-critical calls: make one, then release it."""
    token = secrets.token_hex(8)
    template = ClaimTemplate(
        tool="antiphon/doctor", session="", actor="", ttl_ms=1000, lease_ms=1000, owner=owner_token(), tenant=TRIAL
    )
    request = StaticClaimRequest(
        key=canonical_digest([TRIAL, token]),
        identity=token,
        template=template,
        idempotency_key=token,
        params=("", ""),
        request_id=token,
        token=token,
        wait_replicas=app.config.store.wait_replicas,
    )
    try:
        claim = app.journal.begin(request)
        if isinstance(claim, Claimed):
            app.journal.clear(request.key, claim.version)
    except AntiphonError as error:
        yield _found("error", "store", f"claims are refused: {error.message}", error.hint)


def _originals(app: Antiphon) -> Iterator[dict[str, Any]]:
    """Whether recordings can be replayed with the originals of masked values."""
    if not app.config.redact.keep_sealed:
        yield _found("note", "recordings", "originals of masked values are not kept: replays get pseudonyms")
    elif seal_key_file(app.config, app.store) is None and not (
        app.store.in_process or getattr(app.store, "seal_key", None)
    ):
        hint = "Name a key file: [store] seal_key_file."
        yield _found("note", "recordings", "there is no seal key: recordings replay with pseudonyms", hint)


def _server(url: str, facts: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What one server reports about itself, and what weakens the guarantees there."""
    where = url or str(facts.get("url", facts.get("store", "")))
    about = " ".join(str(facts[name]) for name in ("server", "version") if name in facts)
    durable = "durable" if facts.get("durable") else "not durable"
    details = ", ".join(part for part in (about, f"{facts.get('latencyMs', 0)} ms", durable) if part)
    yield _found("ok", "store", f"{where} answers ({details})", facts=dict(facts))
    for text in facts.get("warnings", ()):
        hint = "A call that was made may be made again after such a loss. Change the setting of the server."
        yield _found("warning", "store", str(text), hint)
    if facts.get("readOnly"):
        yield _found("error", "store", f"{where} is a read-only replica", "Name the primary in [store].")


def _claims(app: Antiphon) -> Iterator[dict[str, Any]]:
    """The claims of all tenants, as metrics count them."""
    apps = [app.for_tenant(tenant) for tenant in tenants_of(app)]
    stale, live, records = Counter[str](), 0, 0
    for one in apps:
        counts = one.journal.counts(one.tenant)
        stale[one.tenant] = sum(n for (_, state), n in counts.items() if state == "stale")
        live += sum(n for (_, state), n in counts.items() if state == "inflight")
        records += sum(counts.values())
    if late := stale.total():
        of, option = _whose(app, +stale)
        text = f"{late} of {late + live} in flight have an expired lease{of and f' ({of})'}"
        hint = f"antiphon claims list --state inflight{option} shows whose they are."
        yield _found("warning", "claims", text, hint, stale=late)
    unknown, whose = Counter[str](), Counter[str]()
    for one in apps:
        for claim in drive(Admin(one).claims(state="unknown", limit=sys.maxsize)):
            unknown[claim["tool"]] += 1
            whose[one.tenant] += 1
    if unknown:
        by_tool = ", ".join(f"{tool}: {number}" for tool, number in unknown.most_common(5))
        more = "" if len(unknown) <= 5 else f" and {len(unknown) - 5} more tools"
        of, option = _whose(app, whose)
        look, settle = (f"antiphon claims {act}{option}" for act in ("list --state unknown", "resolve CLAIM"))
        text = f"{plural(unknown.total(), 'outcome')} unknown ({by_tool}{more}{of and f'; {of}'})"
        yield _found(
            "warning", "claims", text, f"Find out what happened: {look}, then: {settle}", unknown=dict(unknown)
        )
    costs = [usage(one) for one in apps]
    if all("bytes" in cost for cost in costs):
        records, size = (sum(cost[name] for cost in costs) for name in ("records", "bytes"))
        text = f"about {round(size / max(1, records))} bytes each in the server, {size / 1e6:.1f} MB together"
        yield _found("ok", "claims", f"{plural(records, 'record')}, {text}")
    elif not late and not unknown:
        yield _found("ok", "claims", f"{plural(records, 'record')}, none stale, none unknown")


def _whose(app: Antiphon, numbers: Mapping[str, int]) -> tuple[str, str]:
    """How many each tenant has, and the option that selects one; empty if it is only the application's own tenant."""
    if list(numbers) == [app.tenant]:
        return "", ""
    tenants = ", ".join(f"{tenant}: {number}" for tenant, number in numbers.items())
    return f"by tenant {tenants}", " --tenant TENANT"


def _runs(app: Antiphon) -> Iterator[dict[str, Any]]:
    interrupted = list_runs(app, status="interrupted", limit=1000)
    if not interrupted:
        yield _found("ok", "runs", "no interrupted runs")
        return
    number = "1000 or more" if len(interrupted) == 1000 else str(len(interrupted))
    newest = interrupted[0]
    text = f"{number} interrupted; the newest is {newest['id']} ({newest['name']})"
    hint = "Resume one: antiphon run TARGET --resume RUN; list them: antiphon runs --status interrupted"
    yield _found("warning", "runs", text, hint, interrupted=len(interrupted))


def _uploads(app: Antiphon) -> Iterator[dict[str, Any]]:
    """What waits for the bucket, and for how long; whether the bucket answers."""
    found = waiting_uploads()
    for waiting in found:
        minutes = max(0, app.clock.now_ms() - waiting.oldest_ms) / 60_000
        age = f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
        what = f"{waiting.what} wait" if waiting.number > 1 else f"{waiting.what.removesuffix('s')} waits"
        text = f"{waiting.number} {what} for the bucket ({waiting.bytes} bytes), the oldest for {age}"
        hint = "Send them: antiphon export --waiting"
        if not is_remote(app):
            hint = "No bucket is configured here: name it in [artifacts], then: antiphon export --waiting"
        yield _found("warning", "uploads", text, hint)
    if not is_remote(app):
        return
    try:
        next(stored_runs(app), None)
    except AntiphonError as error:
        yield _found("error", "uploads", error.message, error.hint)
    else:
        if not found:
            yield _found("ok", "uploads", "no uploads pending")


def _tools(entry: str | None) -> Iterator[dict[str, Any]]:
    if entry is None:
        yield _found("note", "tools", "not checked; name an entry point with --entry to check its tools")
        return
    load_module(entry.partition(":")[0])
    specs = declared()
    unsaid = [name for name, spec in sorted(specs.items()) if spec.effect is None]
    if unsaid:
        shown = ", ".join(unsaid[:5]) + (f" and {len(unsaid) - 5} more" if len(unsaid) > 5 else "")
        hint = 'Declare effect="read" or effect="write": replays treat it as a side effect until then.'
        text = f"{shown}: effect not declared"
        yield _found("warning", "tools", text, hint, undeclared=unsaid)
    if not specs:
        text = f"{entry} registers no tools: its functions are neither guarded nor recorded"
        yield _found("warning", "tools", text, "Decorate them: @gateway.tool(idempotent=...)")
    elif not unsaid:
        yield _found("ok", "tools", f"{plural(len(specs), 'tool')}, all with a declared effect")


def _retry_owners() -> Iterator[dict[str, Any]]:
    found = {package: rule for package, rule in _RETRYING.items() if importlib.util.find_spec(package) is not None}
    if found:
        rules = "; ".join(f"{package}: {rule}" for package, rule in found.items())
        yield _found(
            "note",
            "retries",
            f"installed packages that retry on their own: {', '.join(found)}",
            f"Let only one component retry: {rules}.",
        )


def _limits() -> Iterator[dict[str, Any]]:
    text = "functions never wrapped are invisible; outside a run, a decorated call without an id is always new"
    yield _found("note", "limits", text)
    if start_value(os.environ, "enabled") is False:
        yield _found("warning", "switches", "TOOL_RELIABILITY_ENABLED is off: calls are not guarded")
