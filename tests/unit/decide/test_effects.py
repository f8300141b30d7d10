"""K6, D12, D20, L6: what may run live in a replay."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.contract.spec import Effect, ToolSpec
from antiphon.decide import effects
from antiphon.decide.effects import (
    FOUND,
    MODEL_LIVE,
    NOT_FOUND,
    SAFE_WORDS,
    SIDE_EFFECT_WORDS,
    BoundaryRule,
    BoundaryTable,
    block_message,
    may_run_live,
    reviewed_as,
    suggest,
    words_of,
)
from antiphon.errors import InvalidInput

TOOLS_LIVE = BoundaryTable(rules=(BoundaryRule(match="tool", mode="live"), BoundaryRule(match="mcp", mode="live")))
"""The recorded model, safe tools live."""


def spec(*, idempotent: bool = True, effect: Effect | None = None, **settings: Any) -> ToolSpec:
    return ToolSpec(name="tool", idempotent=idempotent, effect=effect, **settings)


# -- K6, D12: suggestions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "safe", "reason"),
    [
        ("send_email", False, FOUND),
        ("tavily_search", True, NOT_FOUND),
        ("write_file", False, FOUND),
        ("process_payment", False, FOUND),
        ("read_file", True, NOT_FOUND),
        ("search_web", True, NOT_FOUND),
        ("write_database", False, FOUND),
    ],
)
def test_k6_examples_of_the_document(name: str, safe: bool, reason: str) -> None:
    assert suggest(name)[:2] == (safe, reason)


@pytest.mark.parametrize("word", SIDE_EFFECT_WORDS)
def test_k6_every_side_effect_word(word: str) -> None:
    assert suggest(f"tool_{word}") == (False, FOUND, (word,))
    assert not suggest(f"search_and_{word}").safe, "a side-effect word wins over a safe one"


@pytest.mark.parametrize("word", SAFE_WORDS)
def test_k6_every_safe_word(word: str) -> None:
    assert suggest(f"tool_{word}") == (True, NOT_FOUND, (word,))


@pytest.mark.parametrize("name", ["calculate", "execute_shell", "drop_table", "foo", "", "42", "sendemail"])
def test_d12_neither_kind_of_word_is_a_side_effect(name: str) -> None:
    suggestion = suggest(name)
    assert not suggestion.safe
    assert "unknown tools count as side effects" in suggestion.reason


@pytest.mark.parametrize(
    "text",
    [
        "sends a mail",
        "Sending it",
        "was sent",
        "updates",
        "updated",
        "updating",
        "creates",
        "created",
        "deleted rows",
        "deleting",
        "Payments",
        "emails",
        "e-mail",
        "E-Mail",
        "newEMailDraft",
        "posts it",
        "posted",
        "purchases",
        "written",
        "wrote",
        "writing",
    ],
)
def test_k6_simple_inflections_of_side_effects(text: str) -> None:
    assert suggest("tool", description=text)[:2] == (False, FOUND)


@pytest.mark.parametrize("text", ["searches", "found", "gets", "getting", "lists", "listing", "fetches", "reading"])
def test_k6_simple_inflections_of_safe_words(text: str) -> None:
    assert suggest("tool", docstring=text).safe


@pytest.mark.parametrize("text", ["postal", "writer", "sender", "readme", "targets", "listen", "budget", "compost"])
def test_k6_only_whole_words(text: str) -> None:
    assert suggest("tool", description=text).words == ()


def test_k6_name_description_and_docstring_are_read() -> None:
    assert suggest("lookup", "find a user", "Then deletes the session.").words == ("deletes",)
    assert suggest("lookup", spec=spec(description="Find a user")).words == ("find",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sendEmail", ["send", "email"]),
        ("SendEMAIL", ["send", "email"]),
        ("HTTPGet", ["http", "get"]),
        ("getURLs", ["get", "ur", "ls"]),
        ("get2update", ["get", "update"]),
        ("create_user__v2", ["create", "user", "v"]),
        ("read-only; no e-mails", ["read", "only", "no", "emails"]),
        ("", []),
    ],
)
def test_k6_words(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@pytest.mark.parametrize("name", ["send_email", "search_web", "calculate"])
def test_k6_what_is_declared_wins_over_words(name: str) -> None:
    assert suggest(name, spec=spec(effect="read")).safe
    assert suggest(name, spec=spec(effect="read", idempotent=False)).safe
    assert not suggest(name, spec=spec(effect="write")).safe
    assert not suggest(name, spec=spec(idempotent=False)).safe


def test_k6_idempotent_alone_does_not_make_safe() -> None:
    assert not suggest("delete_user", spec=spec(idempotent=True)).safe
    assert suggest("find_user", spec=spec(idempotent=True)).safe


def test_k6_block_message() -> None:
    expected = "[Antiphon] Tool 'send_email' blocked (side effect, no cache available)"
    assert block_message("send_email") == expected


@given(st.text(max_size=80), st.text(max_size=80))
def test_a_side_effect_word_always_decides(before: str, after: str) -> None:
    assert not suggest("tool", f"{before} delete {after}").safe


# -- D20: the table --------------------------------------------------------------------------------------------


def test_d20_first_fitting_rule_wins_and_the_rest_is_frozen() -> None:
    table = BoundaryTable(
        rules=(
            BoundaryRule(match="tool:search_*", mode="live"),
            BoundaryRule(match="tool:now", mode="static", value="noon"),
            BoundaryRule(match="tool", mode="fault", fault="timeout"),
        )
    )
    assert table.rule("tool", "search_web").mode == "live"
    assert table.rule("tool", "now").value == "noon"
    assert table.rule("tool", "other").fault == "timeout"
    assert table.rule("llm", "gpt").mode == "frozen"
    assert table.rule("mcp", "search_web").mode == "frozen"


@pytest.mark.parametrize(
    ("table", "model", "tools"),
    [(BoundaryTable(), "frozen", "frozen"), (MODEL_LIVE, "live", "frozen"), (TOOLS_LIVE, "frozen", "live")],
)
def test_d20_presets(table: BoundaryTable, model: str, tools: str) -> None:
    assert table.rule("llm", "m").mode == model
    assert table.rule("tool", "t").mode == table.rule("mcp", "t").mode == tools


@pytest.mark.parametrize(
    "rule",
    [BoundaryRule(match="tool", mode="fault"), BoundaryRule(match="tool", mode="live", fault="refusal")],
)
def test_d20_fault_rules_name_their_fault(rule: BoundaryRule) -> None:
    with pytest.raises(InvalidInput, match="needs a fault"):
        BoundaryTable(rules=(rule,))


@pytest.mark.parametrize(
    ("match", "name", "fits"),
    [
        ("tool:search_*", "search_web", True),
        ("tool:search_*", "shop/search_web", True),
        ("tool:shop/search_*", "shop/search_web", True),
        ("tool:search_*", "shop/send", False),
        ("tool:search_*", "send", False),
        ("tool:", "send", False),
        ("mcp:*", "send", False),
        ("tool", "send", True),
    ],
)
def test_d20_a_namespace_may_be_left_out(match: str, name: str, fits: bool) -> None:
    assert BoundaryRule(match=match, mode="live").fits("tool", name) is fits


@pytest.mark.parametrize(("name", "safe"), [("mcp.crm/update", False), ("mcp.wiki/update", True), ("update", True)])
def test_k6_an_entry_with_the_namespace_counts_first(name: str, safe: bool) -> None:
    """Two servers may have a tool of the same name, of which only one may run."""
    assert reviewed_as(name, {"update": True, "mcp.crm/update": False}) is safe


def test_d20_why_a_safe_call_is_made() -> None:
    read = spec(effect="read")
    live, frozen = TOOLS_LIVE.rule("tool", "t"), MODEL_LIVE.rule("tool", "t")
    assert may_run_live(read, None, live, recorded=False) == (True, "safe: live by the table")
    assert may_run_live(read, None, frozen, recorded=False) == (True, "safe, and not in the recording")


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        *((word, True) for word in ("fetches", "searches", "searching", "gets", "getting", "got", "finds", "listed")),
        *(
            (word, False)
            for word in ("updates", "updated", "updating", "writes", "written", "creating", "posts", "sent")
        ),
    ],
)
def test_d12_words_are_known_in_all_their_forms(name: str, safe: bool) -> None:
    found = suggest(name)
    assert (found.safe, found.words) == (safe, (name,))


@pytest.mark.parametrize("match", ["llm", "llm:*", "llm:gpt-*"])
def test_a_model_may_refuse(match: str) -> None:
    rule = BoundaryRule(match=match, mode="fault", fault="refusal")
    assert BoundaryTable(rules=(rule,)).rules == (rule,)


@pytest.mark.parametrize("match", ["tool", "tool:llm", "mcp:*", "*:search"])
def test_nothing_else_refuses(match: str) -> None:
    with pytest.raises(InvalidInput, match="Only models refuse"):
        BoundaryTable(rules=(BoundaryRule(match=match, mode="fault", fault="refusal"),))
    assert BoundaryTable(rules=(BoundaryRule(match=match, mode="fault", fault="timeout"),)).rules


def test_d20_table_has_a_wire_form() -> None:
    table = BoundaryTable(rules=(BoundaryRule(match="llm", mode="fault", fault="rate_limited"),))
    assert BoundaryTable.from_wire(table.to_wire()) == table


# -- the rule ----------------------------------------------------------------------------------------------------


SPECS = [None, *(spec(idempotent=i, effect=e) for i in (True, False) for e in (None, "read", "write"))]
MODES = ("frozen", "live", "static", "fault")


def rule_of(mode: Any) -> BoundaryRule:
    return BoundaryRule(match="tool", mode=mode, fault="timeout" if mode == "fault" else None)


def may(tool: ToolSpec | None, yaml: bool | None, boundary: str, recorded: bool) -> bool:
    return may_run_live(tool, yaml, rule_of(boundary), recorded=recorded).allowed


def check_the_whole_table() -> None:
    for tool, yaml, boundary, recorded in product(SPECS, (None, True, False), MODES, (True, False)):
        allowed = may(tool, yaml, boundary, recorded)
        declared = tool.effect if tool is not None else None
        side_effect = declared == "write" or yaml is False or (declared is None and yaml is None)
        repeat_hurts = tool is not None and not tool.idempotent and declared != "read"
        expected = (
            boundary in ("frozen", "live")
            and not side_effect
            and not repeat_hurts
            and not (boundary == "frozen" and recorded)
        )
        assert allowed == expected, (tool, yaml, boundary, recorded)


def test_the_whole_table() -> None:
    check_the_whole_table()


def test_k6_side_effect_tools_never_run_live() -> None:
    for yaml, boundary, recorded in product((None, True, False), MODES, (True, False)):
        assert not may(spec(effect="write"), yaml, boundary, recorded)
        assert not may(spec(idempotent=False), yaml, boundary, recorded)
        assert not may(None, False, boundary, recorded)


def test_d12_unknown_tool_without_an_entry_is_blocked() -> None:
    verdict = may_run_live(None, None, rule_of("live"), recorded=False)
    assert not verdict.allowed
    assert "unknown" in verdict.reason


def test_k4_safe_tool_runs_when_the_recording_has_no_answer() -> None:
    assert may(spec(effect="read"), None, "frozen", False)
    assert not may(spec(effect="read"), None, "frozen", True)


def test_l6_nondeterministic_tool_is_reissued_only_if_safe_and_live() -> None:
    dice = spec(effect="read", nondeterministic=True)
    assert not may(dice, True, "frozen", True)
    assert may(dice, True, "live", True)
    assert not may(spec(effect="write", nondeterministic=True), True, "live", True)


def test_planted_bug_trusting_the_file_over_the_declaration_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = effects.may_run_live

    def trusting(tool: ToolSpec | None, yaml: bool | None, *rest: Any, **more: Any) -> Any:
        return honest(None if yaml else tool, yaml, *rest, **more)

    monkeypatch.setitem(globals(), "may_run_live", trusting)
    with pytest.raises(AssertionError):
        check_the_whole_table()
