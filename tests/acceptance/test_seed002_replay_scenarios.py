"""The three replay scenarios of the RFC with the behaviour that upstream left open, at the library's level (L9).

* portable key: equal to an offline computation, 64 hex digits, noise changes nothing, each field counts, hosts agree
* divergence at refusal: both directions, see also ``tests/unit/replay/test_refusals.py``
* observable sequence: what a replay shows is what the recording showed, a nondeterministic tool included
"""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.contract.events import Event
from antiphon.llm.key import llm_cache_key
from antiphon.stores import MemoryStore

REQUEST: dict[str, Any] = {
    "model": "gpt-4",
    "provider": "openai",
    "messages": [{"role": "user", "content": "héllo \u2028 ✓"}],
    "tools": [{"name": "b", "parameters": {}}, {"name": "a", "parameters": {"type": "object"}}],
    "temperature": 0.5,
    "responseSchema": None,
}


def _offline(request: dict[str, Any]) -> str:
    """The recipe computed by hand: sorted keys, no spaces, UTF-8, SHA-256."""
    parts = {**request, "tools": sorted(request["tools"], key=lambda tool: tool["name"])}
    return hashlib.sha256(
        json.dumps(parts, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    ).hexdigest()


def test_portable_key_equals_an_offline_computation() -> None:
    key = llm_cache_key(REQUEST)
    assert key == _offline(REQUEST)
    assert len(key) == 64
    assert set(key) <= set("0123456789abcdef")


@pytest.mark.parametrize("noise", [{"requestId": "r1"}, {"traceparent": "00-1"}, {"tenantId": "t"}, {"tags": {"a": 1}}])
def test_portable_key_ignores_noise(noise: dict[str, Any]) -> None:
    assert llm_cache_key({**REQUEST, **noise}) == llm_cache_key(REQUEST)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "gpt-5"},
        {"provider": "azure"},
        {"messages": [{"role": "user", "content": "other"}]},
        {"tools": []},
        {"temperature": 0.6},
        {"responseSchema": {"type": "object"}},
    ],
    ids=str,
)
def test_portable_key_depends_on_each_field(change: dict[str, Any]) -> None:
    assert llm_cache_key({**REQUEST, **change}) != llm_cache_key(REQUEST)


def test_portable_key_is_the_same_on_another_host() -> None:
    """Another process with another hash seed, locale and working folder."""
    program = "import json, sys; from antiphon.llm.key import llm_cache_key; print(llm_cache_key(json.load(sys.stdin)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(REQUEST),
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={"PYTHONHASHSEED": "77", "LC_ALL": "C", "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )
    assert done.stdout.strip() == llm_cache_key(REQUEST)


class Host:
    """An agent with a model that can be told to refuse and a tool that never gives the same answer twice."""

    def __init__(self) -> None:
        self.app = antiphon.Antiphon({"telemetry": {"logs": False}}, store=MemoryStore())
        self.refuses = False
        self.draws = itertools.count()

        @self.app.gateway.tool(idempotent=False, effect="read", nondeterministic=True)
        def dice(sides: int) -> dict[str, int]:
            return {"n": next(self.draws), "sides": sides}

        self.dice = dice

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        return {"kind": "refusal", "reason": "safety"} if self.refuses else {"kind": "valid", "text": "roll"}

    def main(self) -> list[Any]:
        run = antiphon.current_run()
        said = run.llm({"model": "m", "messages": [{"role": "user", "content": "play"}]}, self.ask)
        return [said, self.dice(sides=6), self.dice(sides=6), run.random()]


@pytest.mark.parametrize(
    "first", [False, True], ids=["original=valid, replay=refusal", "original=refusal, replay=valid"]
)
def test_divergence_at_refusal_is_an_event_and_an_error(first: bool) -> None:
    host = Host()
    host.refuses = first
    run = host.app.record(host.main)
    host.refuses = not first
    report = antiphon.replay(run, app=host.app, mode="strict", function=host.main, verify=True)
    assert report["error"]["code"] == "replay_diverged_at_refusal"
    events = host.app.journal.events(report["replayRun"])
    payload = next(event.payload for event in events if event.type == "replay.divergedAtRefusal")
    assert {"sourceRunId", "atSequence", "originalEnvelopeKind", "replayEnvelopeKind"} <= payload.keys()
    assert payload["originalEnvelopeKind"] == ("refusal" if first else "valid")
    assert payload["replayEnvelopeKind"] == ("valid" if first else "refusal")
    assert events[-1].payload["error"]["code"] == "replay_diverged_at_refusal"


def _observable(events: list[Event]) -> list[bytes]:
    return [json.dumps([e.type, e.lane, e.index, e.payload], sort_keys=True).encode() for e in events]


def test_observable_sequence_is_byte_equal_and_the_nondeterministic_result_is_reproduced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "side_effect").mkdir()
    (tmp_path / "side_effect" / "side_effects.yaml").write_text("tools: {}\ndone: true\n")
    monkeypatch.setattr(
        "antiphon.ops.side_effects.file_of", lambda entry: tmp_path / "side_effect" / "side_effects.yaml"
    )
    host = Host()
    run = host.app.record(host.main)
    drawn = next(host.draws)
    from antiphon.decide.effects import BoundaryTable

    report = antiphon.replay(run, app=host.app, mode="explore", function=host.main, table=BoundaryTable())
    assert report.passed, report.text()
    assert next(host.draws) == drawn + 1  # the tool was not called again
    replayed = host.app.journal.events(report["replayRun"])
    assert _observable(replayed) == _observable(run.events())


def test_a_nondeterministic_tool_is_asked_again_only_where_it_is_safe_and_set_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L6: the recorded result is the default; explore replay with a live rule asks again."""
    monkeypatch.setattr("antiphon.ops.side_effects.file_of", lambda entry: tmp_path / "side_effects.yaml")
    (tmp_path / "side_effects.yaml").write_text("tools:\n  dice: true\ndone: true\n")
    from antiphon.decide.effects import BoundaryRule, BoundaryTable

    host = Host()
    run = host.app.record(host.main)
    table = BoundaryTable(rules=(BoundaryRule(match="tool:dice", mode="live"),))
    report = antiphon.replay(run, app=host.app, mode="explore", function=host.main, table=table)
    assert [entry["n"] for entry in report["outputsB"][0][1:3]] == [2, 3]
    assert antiphon.replay(run, app=host.app, mode="strict", function=host.main).passed
