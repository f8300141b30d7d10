"""The boundary table from files and flags (D20)."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.errors import ConfigError, InvalidInput
from antiphon.ops.tables import FAULTS, check_names, read_table, table_of

RECORDED = [("llm", "openai"), ("tool", "tools/search"), ("mcp", "mcp/files/read")]


def test_flags_come_before_the_file_and_a_live_model_is_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text('[[rules]]\nmatch = "llm"\nmode = "frozen"\n')
    table = table_of(live=["search"], faults=["pay=timeout"], statics=['now={"t": 1}'])
    assert table is not None
    assert table.rule("llm", "llm").mode == "live"
    assert table.rule("tool", "search").mode == "live"
    assert table.rule("tool", "pay").fault == "timeout"
    assert table.rule("mcp", "now").value == {"t": 1}
    assert table.rule("tool", "other").mode == "frozen"
    table = table_of(file, live=["tool"])
    assert table is not None
    assert table.rule("llm", "llm").mode == "frozen"
    assert table.rule("tool", "any").mode == "live"
    assert table_of() is None


def test_json_is_read_too(tmp_path: Path) -> None:
    file = tmp_path / "rules.json"
    file.write_text('{"rules": [{"match": "tool:a*", "mode": "static", "value": 3}]}')
    assert read_table(file).rule("tool", "abc").value == 3


@pytest.mark.parametrize("text", ["{", '{"rules": [{"match": "a", "mode": "sleepy"}]}', '{"rule": []}'])
def test_a_table_that_cannot_be_used_says_where(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rules.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"rules\.json"):
        read_table(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_table(tmp_path / "gone.toml")


@pytest.mark.parametrize("text", ["pay", "=timeout", "pay=", "pay=sleepy"])
def test_faults_are_named(text: str) -> None:
    with pytest.raises(InvalidInput, match="NAME=FAULT"):
        table_of(faults=[text])
    assert set(FAULTS) == {"timeout", "rate_limited", "malformed", "refusal"}


@pytest.mark.parametrize("text", ["pay", "=1", "pay={"])
def test_static_answers_are_json(text: str) -> None:
    with pytest.raises(InvalidInput):
        table_of(statics=[text])


@pytest.mark.parametrize(
    "name",
    ["search", "tools/search", "tool:search", "tool:tools/search", "tool:sea*", "tool:none*", "llm", "mcp", "new"],
)
def test_names_that_a_rule_may_have(name: str) -> None:
    table = table_of(faults=[f"{name}=timeout"])
    assert table is not None
    check_names(table, RECORDED, ["tools/new"])


@pytest.mark.parametrize("name", ["serach", "other/search", "mcp:search", "tool:nope", "search/", "openai/search"])
def test_a_misspelt_name_is_refused_with_the_names_there_are(name: str) -> None:
    table = table_of(faults=[f"{name}=timeout"])
    assert table is not None
    with pytest.raises(InvalidInput, match=r"Its tools: mcp/files/read, tools/search; its model calls: llm\."):
        check_names(table, RECORDED, ["tools/new"])


def test_a_kind_that_was_never_called_can_be_frozen_but_not_broken() -> None:
    only = [("tool", "tools/search")]
    frozen, broken = table_of(frozen=["mcp"], live=["llm"]), table_of(faults=["mcp=timeout"])
    assert frozen is not None
    assert broken is not None
    check_names(frozen, only)
    with pytest.raises(InvalidInput, match=r"'mcp' \(fault\)"):
        check_names(broken, only)
