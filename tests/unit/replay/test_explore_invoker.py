"""Answers of an exploring replay to tools of which nothing is declared, as those of adapters and MCP servers."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon._replay.explore import ExploreInvoker
from antiphon.contract.spec import ToolSpec
from antiphon.decide.effects import MODEL_LIVE, BoundaryTable
from antiphon.errors import ReplayMiss
from antiphon.ports import Answer, Invocation
from antiphon.similarity.embedding import LexicalEmbedder
from tests.unit.replay.made import Script, site

READ = ToolSpec(name="look", idempotent=True, effect="read")
READ_ONCE = ToolSpec(name="look", idempotent=False, effect="read")


def invoker(script: Script, table: BoundaryTable = MODEL_LIVE, **more: Any) -> ExploreInvoker:
    given: dict[str, Any] = {
        "reviewed": {},
        "schemas": {},
        "embedder": LexicalEmbedder(),
        "threshold": 0.85,
        "exact_only": False,
        "rewrite": None,
        "llm": None,
        "fork_at": None,
        "realtime": False,
    }
    return ExploreInvoker(script.recording(), table, **(given | more))


def look(q: str, spec: ToolSpec | None = None, name: str = "tools/look") -> Invocation:
    arguments = {"q": q}
    return Invocation("tool", name, arguments, f"look{arguments}", site(), spec)


def recorded() -> Script:
    script = Script()
    script.call("look", {"q": "the  tides of today"}, "high")
    return script


@pytest.mark.parametrize(("reviewed", "matched"), [(True, True), (False, False), (None, False)])
def test_only_a_reviewed_tool_is_matched_by_meaning(reviewed: bool | None, matched: bool) -> None:
    exploring = invoker(recorded(), reviewed={} if reviewed is None else {"look": reviewed})
    answer = exploring.answer_tool(look("the tides of today"))
    assert answer is not None
    assert (answer.source, len(exploring.blocked)) == (("semantic", 0) if matched else ("blocked", 1))


@pytest.mark.parametrize(("spec", "kept"), [(None, True), (READ, True), (READ_ONCE, False)])
def test_what_a_live_call_brought_is_given_again_where_that_does_no_harm(spec: ToolSpec | None, kept: bool) -> None:
    exploring = invoker(recorded(), reviewed={"look": True})
    asked = look("something else", spec)
    assert exploring.answer_tool(asked) is None
    exploring.keep(asked.name, asked.digest, {"value": "low"})
    assert exploring.answer_tool(asked) == (Answer("ok", "low", source="kept") if kept else None)
    assert exploring.reused == int(kept)


def test_a_tool_without_a_namespace_is_found_by_its_schema() -> None:
    schema = {"type": "object", "properties": {"q": {"type": "string", "enum": ["a", "b"]}}}
    asked: list[Any] = []

    class Index:
        def declare(self, *words: Any) -> None:
            asked.append(words)

        def add(self, *words: Any) -> None:
            pass

        def find(self, *words: Any) -> list[Any]:
            return []

    for name in ("tools/look", "look"):
        exploring = invoker(recorded(), reviewed={"look": True}, schemas={"look": schema})
        exploring._index = Index()  # type: ignore[assignment]
        exploring.answer_tool(look("other", name=name))
    assert asked == [("tools/look", schema, ()), ("look", schema, ())]
    exploring = invoker(recorded(), reviewed={"look": True})
    exploring._index = Index()  # type: ignore[assignment]
    exploring.answer_tool(look("other"))
    assert len(asked) == 2, "nothing is declared of it"


async def test_what_was_heard_of_a_model_is_its_answer() -> None:
    exploring = invoker(Script())
    heard = Answer("ok", {"n": 1}, source="recording")
    call = Invocation("llm", "llm", {}, "d", site(), earlier_answer=lambda: heard)
    answer = await exploring.answer(call)
    assert answer == heard._replace(source="live")
    assert (exploring.answers_models, invoker(Script(), llm=lambda body: {}).answers_models) == (False, True)


def test_a_recorded_model_call_is_not_given_twice() -> None:
    script = Script()
    start = {"kind": "llm", "name": "llm", "request": {"model": "m"}, "digest": "d", "variant": "v", "nth": 0}
    script.add("call.started", start, call="0@1")
    script.add("call.finished", {"outcome": "ok", "value": {"n": 1}}, call="0@1")
    exploring = invoker(script, BoundaryTable())
    rule = BoundaryTable().rule("llm", "llm")
    elsewhere = Invocation("llm", "llm", {}, "d", site("9@9", lane="9"))
    first = exploring._model(elsewhere, rule)
    assert first is not None
    assert first.value == {"n": 1}
    with pytest.raises(ReplayMiss, match="The model is frozen"):
        exploring._model(elsewhere, rule)
