"""What a key is made of where nobody says: a changed default would lose every record that is kept."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.contract.spec import ToolSpec
from antiphon.errors import InvalidInput
from antiphon.keys import KEY_VERSION, KeyMaker, key_text, store_key, store_key_parts

PLACE: dict[str, Any] = {"namespace": "tools", "tool": "send", "idempotency_key": "k", "session": "s", "actor": "a"}


def test_tenant_workspace_and_scope_that_nobody_names() -> None:
    parts = store_key_parts(**PLACE)
    assert parts == [KEY_VERSION, "default", "default", "session", "s", "a", "tools", "send", "k"]
    assert store_key(**PLACE) == store_key(**PLACE, tenant="default", workspace="default", scope="session")
    spec = ToolSpec(name="send", idempotent=False)
    unnamed = KeyMaker(spec, session="s", actor="a").keys({"to": "ada"})
    named = KeyMaker(spec, session="s", actor="a", tenant="default", workspace="default").keys({"to": "ada"})
    assert unnamed == named


@pytest.mark.parametrize("value", [None, True, 1.5, "", " ", (), [], {}])
def test_what_is_no_key(value: Any) -> None:
    with pytest.raises(InvalidInput):
        key_text(value)


def test_a_key_of_several_parts() -> None:
    assert key_text(["order", 7]) == ('["order",7]', "json")
