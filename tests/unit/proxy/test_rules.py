"""Rules for single tools, as an operator writes them."""

from __future__ import annotations

import pytest

from antiphon.errors import InvalidInput
from antiphon.proxy.options import ToolRule, ToolRules, deadline_of, first_of, identity_keys


def test_later_rules_stand_above_earlier_ones() -> None:
    rules = ToolRules(["files/*:window=5", "files/read_*:read", "shop/charge:on_disconnect=cancel"], window_s=120)
    assert rules.of("files", "read_text") == ToolRule(5.0, read=True)
    assert rules.of("files", "write") == ToolRule(5.0)
    assert rules.of("shop", "charge") == ToolRule(120, on_disconnect="cancel")
    assert rules.of("shop", "other") == ToolRule(120)
    assert [rules.of(*place).ends_with_client for place in (("files", "read_x"), ("shop", "charge"), ("a", "b"))] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "text", ["charge:read", "shop/charge", "shop/charge:reads", "a/b:window=x", "a/b:", "a/b:read=1"]
)
def test_a_rule_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="--tool"):
        ToolRules([text], window_s=1)


def test_rules_for_one_server_name_tools_only() -> None:
    rules = ToolRules(["*:read", "files/write:approve"], window_s=0, one_server=True)
    assert rules.of("desk", "look") == ToolRule(0, read=True)
    assert rules.of("desk", "files/write") == ToolRule(0, read=True, approve="always")
    for text in (":read", "look:window=3", "look:on_disconnect=cancel", "look:guard_handed_over"):
        with pytest.raises(InvalidInput, match=f"--tool '{text}' cannot be read"):
            ToolRules([text], window_s=0, one_server=True)


def test_a_rule_for_a_server_that_is_not_there_is_refused() -> None:
    for text in ("shop/charge:approve", "*/charge:approve", "sh*/charge:approve"):
        ToolRules([text], window_s=0, servers=["shop"])
    with pytest.raises(InvalidInput, match="--tool shpo/charge names no MCP server") as caught:
        ToolRules(["shpo/charge:approve"], window_s=0, servers=["shop"])
    assert "Servers given with --mcp: shop." in str(caught.value)


@pytest.mark.parametrize("key", ["", "progressToken", "traceparent", "io.modelcontextprotocol/clientInfo", "a b"])
def test_what_changes_with_each_delivery_is_no_identity(key: str) -> None:
    with pytest.raises(InvalidInput, match="--identity"):
        identity_keys([key])


def test_the_first_field_that_is_there_names_the_call() -> None:
    assert first_of({"b": "2", "a": None}, identity_keys(["a", "b"])) == "2"
    assert first_of(None, ("a",)) is None


def test_deadlines() -> None:
    assert (deadline_of(None, 9), deadline_of("2.5", 9), deadline_of("99", 9)) == (None, 2.5, 9)
    for text in ("0", "-1", "soon", "1e9", ""):
        with pytest.raises(InvalidInput):
            deadline_of(text, 9)
