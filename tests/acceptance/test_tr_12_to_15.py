"""TR-12 … TR-15: hooks, observability, the switch and secrets, each with its non-regression column."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from antiphon import ToolDenied
from antiphon.stores import SQLiteStore
from antiphon.telemetry.logs import json_logs
from tests.acceptance.tr_kit import Bench, HttpError

UNAVAILABLE = HttpError(503)
ONCE = ["before 1", "after 1"]


class Hooks:
    """The hooks of a plugin, and what they saw."""

    def __init__(self, bench: Bench) -> None:
        self.seen: list[str] = []
        self.codes: list[str] = []
        bench.gateway.before(self.before)
        bench.gateway.after(self.after)

    def before(self, call: Any) -> None:
        self.seen.append(f"before {call.attempt}")

    def after(self, call: Any, outcome: Any) -> None:
        self.seen.append(f"after {call.attempt}")
        self.codes.append(outcome.code or outcome.status)

    def take(self) -> list[str]:
        seen, self.seen = self.seen, []
        return seen


# -- TR-12 --------------------------------------------------------------------------------------------------------


def test_TR_12_hooks_fire_once_per_attempt(bench: Bench) -> None:
    bench.tool(UNAVAILABLE, UNAVAILABLE, "fine", idempotent=True)
    hooks = Hooks(bench)
    bench.execute()
    assert hooks.take() == ["before 1", "after 1", "before 2", "after 2", "before 3", "after 3"]
    assert hooks.codes == ["http_503", "http_503", "success"]


def test_TR_12_hooks_fire_once_for_every_short_circuit(bench: Bench) -> None:
    bench.tool("found", idempotent=True)
    turn = bench.gateway.session("s1", actor="a1").turn()
    hooks = Hooks(bench)
    turn.call("act", {"to": "ada"}, "c1")
    assert hooks.take() == ONCE
    turn.call("act", {"to": "ada"}, "c1")
    assert (hooks.take(), hooks.codes[-1]) == (ONCE, "success")  # a duplicate, reused
    assert isinstance(turn.call("act", {"to": "ada"}, "c2"), ToolDenied)
    assert (hooks.take(), hooks.codes[-1]) == (ONCE, "denied")
    bench.execute(key="k", params={"to": "ada"})
    hooks.take()
    bench.execute(key="k", params={"to": "bob"})
    assert (hooks.take(), hooks.codes[-1]) == (ONCE, "idempotency_conflict")
    bench.gateway._plans.breakers.get("tool/tools/act").force_open(bench.clock.seconds, "maintenance")
    bench.execute(params={"to": "eve"})
    assert (hooks.take(), hooks.codes[-1]) == (ONCE, "circuit_open")


def test_TR_12_wrapping_twice_is_wrapping_once(bench: Bench) -> None:
    hooks = Hooks(bench)
    bench.gateway.before(hooks.before)
    decorate = bench.gateway.tool(idempotent=True)

    def look(q: str) -> str:
        return q

    twice = decorate(decorate(look))
    assert twice("x") == "x"
    assert hooks.take() == ONCE


def test_TR_12_non_regression_baseline_hooks_without_the_layer(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_RELIABILITY_ENABLED", "false")
    bench.gateway = bench.another()
    bench.tool("found", ValueError("no"))
    hooks = Hooks(bench)
    bench.execute()
    assert hooks.take() == ONCE
    bench.execute()
    assert hooks.take() == ONCE


# -- TR-13 --------------------------------------------------------------------------------------------------------


def value(text: str, name: str, **labels: str) -> float:
    """One sample of a Prometheus text."""
    wanted = {f'{key}="{label}"' for key, label in labels.items()}
    for line in text.splitlines():
        found = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", line)
        if found and found[1] == name and wanted <= set(re.findall(r'\w+="[^"]*"', found[2])):
            return float(found[3])
    return 0.0


def journey(bench: Bench) -> None:
    """Success, reuse, retry, failure, open breaker, recovery."""
    bench.tool("fine", UNAVAILABLE, "fine", *[UNAVAILABLE] * 5, "fine", idempotent=True)
    bench.execute(params={"to": "first"})
    bench.execute(params={"to": "first"})
    bench.execute(params={"to": "retried"})
    for number in range(5):
        bench.execute(attempts=1, params={"to": f"f{number}"})
    bench.execute(params={"to": "refused"})
    bench.clock.advance(30.1)
    for number in range(2):
        bench.execute(params={"to": f"p{number}"})


def test_TR_13_metrics_are_emitted_for_every_transition(bench: Bench) -> None:
    journey(bench)
    text = bench.gateway.metrics()
    tool = "tools/act"
    assert value(text, "antiphon_tool_calls_total", tool=tool, status="success", scope="session") == 5
    assert value(text, "antiphon_tool_calls_total", tool=tool, status="retriable_error") == 5
    assert value(text, "antiphon_tool_calls_total", tool=tool, status="circuit_open") == 1
    assert value(text, "antiphon_tool_retry_attempts_total", tool=tool, reason="http_503") == 1
    assert value(text, "antiphon_tool_idempotency_hits_total", tool=tool, state="done") == 1
    assert value(text, "antiphon_tool_call_duration_ms_count", tool=tool, status="success") == 5
    for before, after in (("CLOSED", "OPEN"), ("OPEN", "HALF_OPEN"), ("HALF_OPEN", "CLOSED")):
        moves = "antiphon_tool_circuit_breaker_transitions_total"
        assert value(text, moves, tool=tool, from_state=before, to_state=after) == 1
    assert value(text, "antiphon_tool_circuit_breaker_state", tool=tool, state="CLOSED") == 1
    assert value(text, "antiphon_tool_circuit_breaker_state", tool=tool, state="OPEN") == 0


def test_TR_13_transitions_and_calls_are_logged(bench: Bench) -> None:
    journey(bench)
    moves = [(found["fromState"], found["toState"]) for found in bench.ears.of("tool_call_circuit_state")]
    assert moves == [("CLOSED", "OPEN"), ("OPEN", "HALF_OPEN"), ("HALF_OPEN", "CLOSED")]
    assert len(bench.ears.of("tool_call_start")) == 11
    assert len(bench.ears.of("tool_call_end")) + len(bench.ears.of("tool_call_blocked")) == 11
    assert len(bench.ears.of("tool_call_retry")) == 1
    end = bench.ears.of("tool_call_end")[0]
    for field in (
        "requestId",
        "toolName",
        "sessionKey",
        "idempotencyKeyHash",
        "state",
        "attempt",
        "elapsedMs",
        "fromCache",
    ):
        assert field in end


def test_TR_13_non_regression_the_number_of_series_is_bounded(bench: Bench) -> None:
    bench.tool("fine")
    for number in range(300):
        bench.execute(session=f"s{number}", actor=f"a{number}", call_id=f"c{number}", params={"to": f"t{number}"})
        bench.execute(tool=f"unknown{number}")
    lines = [line for line in bench.gateway.metrics().splitlines() if line and not line.startswith("#")]
    assert len(lines) < 200
    text = "\n".join(lines)
    for label in ("s17", "a17", "c17", "t17", "unknown17"):
        assert f'"{label}"' not in text


# -- TR-14 --------------------------------------------------------------------------------------------------------


def test_TR_14_the_switch_makes_calls_direct(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_RELIABILITY_ENABLED", "false")
    bench.gateway = bench.another()
    script = bench.tool(UNAVAILABLE, "fine", "fine again")
    failed = bench.execute(call_id="c1")
    assert (failed["status"], failed["attempts"], "retriedBy" in failed) == ("error", 1, False)
    assert bench.execute(call_id="c1")["output"] == {"content": "fine"}
    assert bench.execute(call_id="c1")["output"] == {"content": "fine again"}
    assert len(script) == 3
    assert bench.records() == []
    assert bench.clock.slept == []


def test_TR_14_behaviour_is_the_baselines(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOL_RELIABILITY_ENABLED", "false")
    gateway = bench.another()

    def baseline(value: Any, *, fail: bool = False) -> Any:
        if fail:
            raise LookupError("mine")
        return value

    guarded = gateway.tool(idempotent=False)(baseline)
    marker = object()  # not even JSON: nothing looks at it
    assert guarded(marker) is baseline(marker) is marker
    for function in (baseline, guarded):
        with pytest.raises(LookupError, match="mine") as caught:
            function(marker, fail=True)
        assert not getattr(caught.value, "__notes__", [])


def test_TR_14_non_regression_a_safe_way_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    script = bench.tool("first")
    bench.execute(call_id="c1")
    monkeypatch.setenv("TOOL_RELIABILITY_ENABLED", "false")
    bench.gateway = bench.another()
    bench.tool("direct")
    assert bench.execute(call_id="c1")["output"] == {"content": "direct"}
    monkeypatch.delenv("TOOL_RELIABILITY_ENABLED")
    bench.gateway = bench.another()
    bench.tool("second")
    again = bench.execute(call_id="c1")
    assert (again["output"], again["fromCache"]) == ({"content": "first"}, True)
    assert len(script) == 1


# -- TR-15 --------------------------------------------------------------------------------------------------------

SECRETS = {
    "openai": "sk-proj-" + "a1B2c3D4" * 6,
    "github": "ghp_" + "a1B2c3D4e5F6" * 3,
    "aws": "AKIA" + "ABCDEFGH12345678",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
}
PERSON = "ada.lovelace@example.com"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logger = logging.getLogger("antiphon")
    level, propagate = logger.level, logger.propagate
    handler = json_logs(logging.DEBUG, stream)
    yield stream
    logger.removeHandler(handler)
    logger.setLevel(level)
    logger.propagate = propagate


def everything_on_disk(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("kind", SECRETS)
def test_TR_15_secrets_reach_neither_logs_nor_records(
    bench: Bench, log: io.StringIO, tmp_path: Path, kind: str
) -> None:
    secret = SECRETS[kind]
    bench.gateway = bench.another()
    bench.tool(
        {"token": secret, "password": "correct-Horse-7"}, ValueError(f"refused {secret} of {PERSON}"), idempotent=True
    )
    wire = bench.envelope(params={"to": secret, "text": f"mail {PERSON}"}, call_id="c1", tenantId="t")
    wire["control"]["requestTags"] = [f"token={secret}"]
    wire["trace"]["baggage"] = {"authorization": f"Bearer {secret}"}
    first = bench.gateway.execute(wire).to_wire()
    assert first["output"]["content"]["token"] == secret, "the caller gets the result intact"
    bench.execute(params={"to": secret, "text": "fails"}, call_id="c2")
    text = log.getvalue()
    assert text.count("tool_call") >= 4
    assert all(json.loads(line) for line in text.splitlines() if "Set [store] seal_key_file" not in line)
    for word in (secret, "correct-Horse-7", PERSON):
        assert word not in text
        assert word not in bench.gateway.metrics()
    if not bench.store.url.startswith("memory"):  # it never leaves the process
        stored = json.dumps([record.to_wire() for record in bench.records()])
        for word in (secret, "correct-Horse-7", PERSON):
            assert word not in stored
        for word in (secret, "correct-Horse-7"):
            assert word.encode() not in everything_on_disk(tmp_path)


def test_TR_15_a_duplicate_still_gets_the_result_intact_where_it_can_be_sealed(bench: Bench, tmp_path: Path) -> None:
    secret = SECRETS["openai"]
    bench.tool({"token": secret})
    bench.execute(call_id="c1")
    again = bench.execute(call_id="c1")
    assert again["fromCache"] is True
    if bench.store.url.startswith("memory") or isinstance(bench.store, SQLiteStore):
        assert again["output"]["content"] == {"token": secret}
    else:  # no seal key was configured: the answer says what is missing
        assert secret not in json.dumps(again)
        assert again["output"]["metadata"]["outputRedacted"] is True
    if isinstance(bench.store, SQLiteStore):
        [key] = [path for path in tmp_path.rglob("*seal-key*") if path.is_file()]
        assert key.stat().st_mode & 0o777 == 0o600


def test_TR_15_non_regression_what_is_no_secret_stays_readable(bench: Bench, log: io.StringIO) -> None:
    bench.gateway = bench.another()
    bench.tool({"status": "sent", "id": "order-17"})
    bench.execute(session="session-with-a-name", params={"to": "bob"}, call_id="c1")
    text = log.getvalue()
    assert "session-with-a-name" in text
    assert bench.execute(session="session-with-a-name", params={"to": "bob"}, call_id="c1")["output"] == {
        "content": {"status": "sent", "id": "order-17"}
    }
