"""The documented keys (R2, R3, R4, D1, D4, T4) against vectors an independent implementation made."""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from antiphon.contract.spec import ToolSpec
from antiphon.errors import CanonicalError, InvalidInput
from antiphon.keys import (
    KeyMaker,
    idempotency_key,
    idempotency_parts,
    params_digests,
    store_key,
    store_key_parts,
    turn_key,
    turn_key_parts,
)

VECTORS = json.loads((Path(__file__).parents[2] / "vectors" / "keys.json").read_text())
WRITE = ToolSpec(name="t", idempotent=False)


def spec_of(vector: dict[str, Any]) -> ToolSpec | None:
    return ToolSpec.from_wire(vector["spec"]) if "spec" in vector else None


@pytest.mark.parametrize("vector", VECTORS["idempotency"], ids=lambda vector: vector["id"])
def test_idempotency_vectors(vector: dict[str, Any]) -> None:
    given_parts = {name: vector[name] for name in ("namespace", "tool", "params", "session", "actor")}
    spec = spec_of(vector)
    before = json.dumps(vector["params"])
    assert idempotency_key(**given_parts, spec=spec) == vector["key"]
    parts = idempotency_parts(**given_parts, spec=spec)
    assert parts["params"] == vector["canonicalParams"]
    assert hashlib.sha256("::".join(parts.values()).encode()).hexdigest() == vector["key"]
    digest, exact, canonical = params_digests(vector["params"], spec)
    assert (digest, exact) == (vector["paramsDigest"], vector["paramsDigestExact"])
    assert canonical.decode() == vector["canonicalParams"]
    assert json.dumps(vector["params"]) == before


@pytest.mark.parametrize("vector", VECTORS["idempotency"], ids=lambda vector: vector["id"])
def test_prepared_keys_are_the_same_keys(vector: dict[str, Any]) -> None:
    spec = spec_of(vector) or WRITE
    maker = KeyMaker(
        spec,
        namespace=vector["namespace"],
        tool=vector["tool"],
        session=vector["session"],
        actor=vector["actor"],
        tenant="acme",
        workspace="blue",
    )
    found = maker.keys(vector["params"])
    assert found.idempotency_key == vector["key"]
    assert (found.params_digest, found.params_digest_exact) == (vector["paramsDigest"], vector["paramsDigestExact"])
    place: dict[str, Any] = {
        "tenant": "acme",
        "workspace": "blue",
        "scope": spec.scope,
        "session": vector["session"],
        "actor": vector["actor"],
        "namespace": vector["namespace"],
        "tool": vector["tool"],
    }
    assert found.store_key == store_key(**place, idempotency_key=vector["key"])
    assert found.fingerprint == found.store_key[:16]
    for caller_key in ("k", 'order "17"', "ü🙂"):
        told = maker.keys_given(vector["params"], caller_key)
        assert told.store_key == store_key(**place, idempotency_key=caller_key)
        assert told.idempotency_key == caller_key
        assert told[2:4] == found[2:4]


@pytest.mark.parametrize("vector", VECTORS["store"], ids=lambda vector: vector["id"])
def test_store_vectors(vector: dict[str, Any]) -> None:
    parts = {name: value for name, value in vector.items() if name not in ("id", "canonical", "key", "idempotencyKey")}
    parts["idempotency_key"] = vector["idempotencyKey"]
    assert store_key(**parts) == vector["key"]
    assert rfc8785.dumps(store_key_parts(**parts)).decode() == vector["canonical"]


def test_a_separator_inside_a_name_never_makes_two_intents_meet() -> None:
    """The formula alone would collide; the store key does not (D1)."""
    one = {"namespace": "n", "tool": "t", "session": "a::b", "actor": "c"}
    two = {"namespace": "n", "tool": "t", "session": "a", "actor": "b::c"}
    assert idempotency_key(**one, params={}) == idempotency_key(**two, params={})  # type: ignore[arg-type]
    same = idempotency_key(**one, params={})  # type: ignore[arg-type]
    assert store_key(**one, idempotency_key=same) != store_key(**two, idempotency_key=same)


@pytest.mark.parametrize("name", ["tenant", "workspace", "session", "actor", "namespace", "tool", "idempotency_key"])
def test_each_part_changes_the_store_key(name: str) -> None:
    parts = dict.fromkeys(("tenant", "workspace", "session", "actor", "namespace", "tool", "idempotency_key"), "x")
    assert store_key(**parts) != store_key(**{**parts, name: "y"})


def test_global_scope_keeps_tenant_and_workspace() -> None:
    parts = {"namespace": "n", "tool": "t", "idempotency_key": "k", "scope": "global"}
    assert store_key(**parts, session="a", actor="b") == store_key(**parts, session=None, actor=None)
    assert store_key(**parts, session=None, actor=None, tenant="x") != store_key(**parts, session=None, actor=None)


def test_an_unknown_scope_is_refused() -> None:
    with pytest.raises(InvalidInput, match="scope"):
        store_key(namespace="n", tool="t", idempotency_key="k", session="s", actor="a", scope="planet")


def test_keys_follow_the_spec_session_and_actor() -> None:
    read = ToolSpec(name="t", idempotent=True, effect="read")
    mine = KeyMaker(read, session="s", actor="a")
    assert mine.keys({"q": "a b"})[:3] == mine.keys({"q": "a  b"})[:3]
    assert mine.keys({"q": "a b"})[3] != mine.keys({"q": "a  b"})[3]
    write = KeyMaker(WRITE, session="s", actor="a")
    assert write.keys({"q": "a b"})[0] != write.keys({"q": "a  b"})[0]
    assert write.keys({}) != KeyMaker(WRITE, session="s", actor="b").keys({})
    assert write.keys({}).store_key != KeyMaker(WRITE, session="s", actor="a", tenant="x").keys({}).store_key


blanks = st.text(st.sampled_from(' \t\n\x0b\x1c\x85\xa0\u2003\u3000ab"\\é'), max_size=6)
params = st.dictionaries(
    st.text(st.sampled_from('ab "\\'), max_size=2),
    st.recursive(
        blanks | st.integers(0, 3),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(blanks, inner, max_size=3),
    ),
    max_size=4,
)


def squeezed(value: Any) -> Any:
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, dict):
        return {name: squeezed(item) for name, item in value.items()}
    return [squeezed(item) for item in value] if isinstance(value, list) else value


@given(params)
def test_a_reads_white_space_is_squeezed_in_values_never_in_names(value: dict[str, Any]) -> None:
    read = ToolSpec(name="t", idempotent=True, effect="read")
    digest, exact, canonical = params_digests(value, read)
    assert canonical == rfc8785.dumps(squeezed(value))
    assert exact == hashlib.sha256(rfc8785.dumps(value)).hexdigest()
    assert digest == hashlib.sha256(canonical).hexdigest()


@given(params)
def test_a_writes_white_space_matters(value: dict[str, Any]) -> None:
    assert params_digests(value, WRITE)[2] == rfc8785.dumps(value)


@pytest.mark.parametrize("bad", [{"a": object()}, {"a": float("nan")}, {1: 2}])
def test_params_that_are_not_json_are_refused(bad: Any) -> None:
    with pytest.raises(CanonicalError):
        idempotency_key(namespace="n", tool="t", params=bad, session="s", actor="a")


@pytest.mark.parametrize("bad", [None, [], "text"])
def test_params_that_are_not_an_object_are_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        idempotency_key(namespace="n", tool="t", params=bad, session="s", actor="a")
    assert caught.value.path == "$.params"


def test_a_name_with_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(InvalidInput, match="surrogate"):
        idempotency_key(namespace="n", tool="t", params={}, session="\ud800", actor="a")


@pytest.mark.parametrize("vector", VECTORS["turn"], ids=lambda vector: vector["text"])
def test_turn_vectors(vector: dict[str, Any]) -> None:
    assert turn_key(vector["tool"], vector["arguments"]) == vector["key"]
    assert turn_key_parts(vector["tool"], vector["arguments"]) == vector["text"]


class Colour(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    "bad", [{"a": {1}}, {"a": float("nan")}, {1: 2}, {"a": [{None: 1}]}, object(), {"a": b""}, {1: 1, "a": 2}]
)
def test_turn_arguments_that_are_not_json_raise_the_typed_error(bad: Any) -> None:
    with pytest.raises(CanonicalError):
        turn_key("t", bad)


def test_turn_arguments_may_be_deep_or_circular() -> None:
    circle: list[Any] = []
    circle.append(circle)
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    for bad in (circle, deep):
        with pytest.raises(CanonicalError):
            turn_key("t", bad)
    assert turn_key("t", {"c": Colour.RED}) == turn_key("t", {"c": "red"})


@given(st.dictionaries(st.sampled_from(["a", "clientTs", "text"]), st.sampled_from([1, 1.0, 2.5, "x  y", "x y", None])))
def test_quick_keys_are_the_keys(params: dict[str, Any]) -> None:
    for spec in (WRITE, ToolSpec(name="t", idempotent=True, effect="read")):
        maker = KeyMaker(spec, session="s", actor="a")
        keys = maker.keys(params)
        for remember in (False, True, True):
            store, key, canonical, exact = maker.quick(params, remember)
            assert (store, key) == (keys.store_key, keys.idempotency_key)
            assert key == idempotency_key(
                namespace="tools", tool=spec.name, params=params, session="s", actor="a", spec=spec
            )
            assert hashlib.sha256(canonical).hexdigest() == keys.params_digest
            assert hashlib.sha256(canonical if exact is None else exact).hexdigest() == keys.params_digest_exact


def test_what_quick_keys_remember_is_bounded() -> None:
    maker = KeyMaker(WRITE, session="s", actor="a")
    for n in range(5000):
        assert maker.quick({"n": n}, True)[0] == maker.keys({"n": n}).store_key
    maker.quick({"n": "x" * 10_000}, True)
    assert len(maker._memo) <= 1024
    assert max(map(len, maker._memo)) < 5000
