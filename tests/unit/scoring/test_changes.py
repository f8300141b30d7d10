"""What changed, and which kind of replay that asks for (K3, K4)."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.contract.events import CodeVersion, RunManifest
from antiphon.errors import InvalidInput
from antiphon.scoring import changes, critical, decide_replay_type, not_compared

CONFIG = {"model_name": "gpt-4", "provider": "openai", "temperature": 0.0, "seed": 42}
SEARCH = {"name": "search", "description": "Search the web", "parameters": {"properties": {"q": {"type": "string"}}}}
SETUP: dict[str, Any] = {
    "llm_config": CONFIG,
    "tools": [SEARCH],
    "prompt": {"template": "Hello {name}", "variables": {"name": "Ann"}},
    "graph": {"graph_hash": "1"},
    "code": {"commit": "abc", "dirty": False},
}


def test_nothing_changed() -> None:
    assert changes(SETUP, SETUP) == {}
    assert decide_replay_type(1.0, {}).type == "A"


def test_the_documents_shape() -> None:
    found = changes(SETUP, {**SETUP, "llm_config": {**CONFIG, "model_name": "gpt-4o"}})
    assert found == {"llm_config": {"model_name": {"artifact": "gpt-4", "current": "gpt-4o"}}}


@pytest.mark.parametrize(
    ("section", "value", "field", "forces_b"),
    [
        ("llm_config", {**CONFIG, "model_name": "gpt-4o"}, "model_name", True),
        ("llm_config", {**CONFIG, "provider": "azure"}, "provider", True),
        ("llm_config", {**CONFIG, "temperature": 0.5}, "temperature", False),
        ("llm_config", {**CONFIG, "seed": 7}, "seed", False),
        ("llm_config", {**CONFIG, "top_p": 0.1}, "top_p", False),
        ("tools", [], "search", True),
        ("tools", [SEARCH, {"name": "send"}], "send", True),
        ("tools", [{**SEARCH, "description": "Search"}], "search.description", True),
        ("prompt", {"template": "Bye {name}", "variables": {"name": "Ann"}}, "template", True),
        ("graph", {"graph_hash": "2"}, "graph_hash", True),
        ("code", {"commit": "def", "dirty": False}, "commit", False),
    ],
)
def test_each_change_is_found_and_weighed(section: str, value: Any, field: str, forces_b: bool) -> None:
    found = changes(SETUP, {**SETUP, section: value})
    assert list(found) == [section]
    assert list(found[section]) == [field]
    assert bool(critical(found)) == forces_b
    decision = decide_replay_type(1.0, found)
    assert decision.type == ("B" if forces_b else "A")
    assert section in decision.reason or not forces_b


def test_the_order_of_tools_and_the_variables_of_a_prompt_do_not_matter() -> None:
    other = {"name": "send"}
    assert changes({"tools": [SEARCH, other]}, {"tools": [other, SEARCH]}) == {}
    assert changes({"tools": {"search": SEARCH}}, {"tools": {"search": SEARCH}}) == {}
    assert changes(SETUP, {**SETUP, "prompt": {"template": "Hello {name}", "variables": {"name": "Bob"}}}) == {}
    assert changes({"prompt": "a"}, {"prompt": "b"})["prompt"] == {"template": {"artifact": "a", "current": "b"}}
    named = {"prompts": {"system": "a", "user": {"template": "b"}}}
    assert list(changes(named, {"prompts": {"system": "a", "user": {"template": "c"}}})["prompt"]) == ["user"]


def test_what_one_side_does_not_know_is_named_and_not_compared() -> None:
    assert changes(SETUP, {"llm_config": CONFIG}) == {}
    assert not_compared(SETUP, {"llm_config": CONFIG}) == ["tools", "prompt", "graph", "code"]
    assert changes({"tools": []}, {"tools": [SEARCH]})["tools"] == {
        "search": {"artifact": "absent", "current": "present"}
    }


def test_run_manifests_are_setups() -> None:
    def manifest(**fields: Any) -> RunManifest:
        return RunManifest(id="r", name="n", status="completed", started_at_ms=0, **fields)

    old = manifest(llm_config={"model_name": "a"}, graph_digest="1", code=CodeVersion(commit="x"))
    new = manifest(llm_config={"model_name": "b"}, graph_digest="2", code=CodeVersion(commit="y"))
    assert list(changes(old, new)) == ["llm_config", "graph", "code"]
    assert not_compared(old, manifest(llm_config={"model_name": "a"})) == ["graph"]


def test_the_score_decides_where_nothing_critical_changed() -> None:
    assert decide_replay_type(0.8, {}).type == "A"
    assert decide_replay_type(0.7999, {}) == ("B", "score 0.7999 is below 0.80")
    assert decide_replay_type(0.5, {}, threshold=0.5).type == "A"
    assert (
        decide_replay_type(1.0, {"llm_config": {"model_name": {}}}).reason == "critical change: llm_config.model_name"
    )


def test_a_setup_must_be_a_mapping() -> None:
    with pytest.raises(InvalidInput, match="mapping"):
        changes([], {})
