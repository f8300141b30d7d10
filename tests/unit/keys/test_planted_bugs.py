"""The vectors can fail: each planted bug in keys, mapping and refusals is found by them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from antiphon import keys
from antiphon.contract.spec import ToolSpec
from antiphon.decide import turn
from antiphon.decide.turn import ReplayControl
from antiphon.llm import _draft, key, response
from antiphon.llm.request import canonical_request

VECTORS = Path(__file__).parents[2] / "vectors"
KEYS = json.loads((VECTORS / "keys.json").read_text())
REQUESTS = json.loads((VECTORS / "requests.json").read_text())["requests"]
RESPONSES = json.loads((VECTORS / "responses.json").read_text())["responses"]


def _keys_hold() -> bool:
    for vector in KEYS["idempotency"]:
        spec = ToolSpec.from_wire(vector["spec"]) if "spec" in vector else None
        found = keys.params_digests(vector["params"], spec)
        if found[:2] != (vector["paramsDigest"], vector["paramsDigestExact"]):
            return False
    return all(
        key.llm_cache_key(vector["request"], recipe=recipe) == vector[recipe]["key"]
        for vector in KEYS["llm"]
        for recipe in key.RECIPES
    )


def _stores_hold() -> bool:
    return all(
        keys.store_key(
            **{
                name: vector[name] for name in ("tenant", "workspace", "scope", "session", "actor", "namespace", "tool")
            },
            idempotency_key=vector["idempotencyKey"],
        )
        == vector["key"]
        for vector in KEYS["store"]
    )


def _requests_hold() -> bool:
    return all(
        canonical_request(
            vector["body"], provider=vector["provider"], model=vector.get("model"), vendor=vector.get("vendor")
        )
        == vector["canonical"]
        for vector in REQUESTS
    )


def _refusals_hold() -> bool:
    return all(
        response.envelope_kind(vector["response"], vector["provider"])[0] == vector["summary"]["kind"]
        for vector in RESPONSES
    )


def _turns_hold() -> bool:
    control = ReplayControl()
    control.record_success("t", {"a": 1, "b": 2})
    return control.should_skip("t", {"b": 2, "a": 1})[0] and not control.should_skip("u", {"b": 2, "a": 1})[0]


def _true(*_: Any) -> bool:
    return True


def _by_code_point(tool: dict[str, Any]) -> str:
    return str(tool["name"])


def _order_matters(tool: str, arguments: Any) -> str:
    return f"{tool}:{arguments}"


def _undigested(data: Any, path: str) -> str:
    return str(data)


PLANTED: dict[str, tuple[Any, str, Any, Callable[[], bool]]] = {
    "white space is never looked at": (keys, "_surely_tidy", _true, _keys_hold),
    "volatile names are kept": (keys, "VOLATILE", frozenset(), _keys_hold),
    "tools are sorted by code point": (key, "tool_order", _by_code_point, _keys_hold),
    "another key version": (keys, "KEY_VERSION", "k2", _stores_hold),
    "no field is transport": (_draft, "TRANSPORT", frozenset(), _requests_hold),
    "images are kept whole": (_draft, "digest_of_base64", _undigested, _requests_hold),
    "a guardrail is an answer": (response, "_BEDROCK_BLOCKS", frozenset(), _refusals_hold),
    "blocked content is an answer": (response, "_GEMINI_BLOCKS", frozenset(), _refusals_hold),
    "the order of arguments matters": (turn, "turn_key", _order_matters, _turns_hold),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, broken, holds = PLANTED[bug]
    assert holds()
    monkeypatch.setattr(module, name, broken)
    assert not holds()
