"""Integers that canonical JSON refuses are no reason for a call to fail: they are recorded and replayed like others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon._recording.artifact import read_artifact
from antiphon._recording.boundary import Boundary
from antiphon._recording.plain import digest_of
from antiphon._scope import current_scope
from antiphon.canonical import canonical_digest
from antiphon.ops.artifacts import export_run
from tests.unit.replay.kit import memory_app, says

LARGE = [2**53, 1093847561029384756, 2**64 - 1, -(2**63), 2**70]


def replays(app: antiphon.Antiphon, code: Callable[[], Any], changed: Callable[[], Any]) -> None:
    run = app.record(code)
    assert "bob@example.org" not in str(run.events())
    report = antiphon.replay(run, app=app, mode="strict", function=code, keep=False)
    assert report.passed, report.text()
    assert not antiphon.replay(run, app=app, mode="strict", function=changed, keep=False).passed


@pytest.mark.parametrize("number", LARGE)
def test_a_tool_call_with_something_to_mask(number: int) -> None:
    app = memory_app()

    @app.gateway.tool(idempotent=True, effect="read", reuse="never")
    def find(channel_id: int, to: str) -> str:
        return "found"

    replays(app, lambda: find(number, "bob@example.org"), lambda: find(number + 1, "bob@example.org"))


def test_an_export_over_another_differs_only_in_what_changed(tmp_path: Path) -> None:
    app, digests = memory_app(), set[str]()

    @app.gateway.tool(idempotent=True, effect="read", reuse="never")
    def find(channel_id: int, to: str) -> str:
        return "found"

    for _ in range(2):
        run = app.record(lambda: find(LARGE[1], "bob@example.org"))
        export_run(app, run.manifest, tmp_path / "a.antiphon")
        started = read_artifact(tmp_path / "a.antiphon").events()
        digests |= {event.payload["digest"] for event in started if event.type == "call.started"}
    assert len(digests) == 1


@pytest.mark.parametrize("number", LARGE)
def test_a_prompt_and_an_interaction(number: int) -> None:
    app = memory_app()

    def code(given: int = number) -> str:
        run = antiphon.current_run()
        with run.interaction({"id": given, "from": "bob@example.org"}) as interaction:
            interaction.finish(run.prompt("p", "{id} {to}", {"id": given, "to": "bob@example.org"}))
        return "done"

    replays(app, code, lambda: code(number + 1))


@pytest.mark.parametrize("text", ["hi", "I am bob@example.org"])
@pytest.mark.parametrize("number", LARGE)
def test_a_model_call_whose_tools_have_a_limit(number: int, text: str) -> None:
    app, asked = memory_app(), list[Any]()

    def send(body: Any) -> dict[str, Any]:
        asked.append(body)
        return says("done")

    def code(given: int = number) -> Any:
        schema = {"type": "object", "properties": {"id": {"type": "integer", "maximum": given}}}
        tools = [{"type": "function", "function": {"name": "find", "parameters": schema}}]
        request = {"model": "m", "messages": [{"role": "user", "content": text}], "tools": tools}
        return antiphon.current_run().llm(request, send)

    replays(app, code, lambda: code(number + 1))
    assert len(asked) == 1


@pytest.mark.parametrize("number", LARGE)
def test_a_call_of_an_mcp_server(number: int) -> None:
    def code() -> str:
        scope = current_scope()
        assert scope is not None
        return Boundary(scope, "mcp", "server/tool", {"id": number}, {"arguments": {"id": number}}).digest

    assert memory_app().record(code).output == digest_of({"id": number})


def test_a_value_with_a_canonical_form_keeps_its_digest() -> None:
    value = {"b": [1.0, 1e21, "é"], "a": None}
    assert digest_of(value) == canonical_digest(value) != digest_of({**value, "a": 2**60})


def test_the_order_of_members_does_not_matter() -> None:
    assert digest_of({"id": 2**60, "of": {"a": 1, "b": 2**70}}) == digest_of({"of": {"b": 2**70, "a": 1}, "id": 2**60})
