"""Which parameters make a call another call, and what its key is a hash of, by formulas that are written out here."""

from __future__ import annotations

import enum
import hashlib
import uuid
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest
import rfc8785

from antiphon.contract.spec import ToolSpec
from antiphon.errors import CanonicalError, InvalidInput
from antiphon.keys import (
    KeyMaker,
    exact_params,
    idempotency_key,
    idempotency_parts,
    key_text,
    params_digests,
    store_key_parts,
    turn_key_parts,
)

BY: tuple[dict[str, Any], ...] = ({}, {"session": "s2"}, {"actor": "a2"})
PLACE: dict[str, Any] = {"session": "s", "actor": "a", "tenant": "acme", "workspace": "blue"}


def spec_of(**more: Any) -> ToolSpec:
    return ToolSpec(name="pay", idempotent=False, namespace="shop", **more)


def dumps(value: Any) -> bytes:
    return rfc8785.dumps(value)


def sha(value: Any) -> str:
    return hashlib.sha256(dumps(value)).hexdigest()


def canonical(params: dict[str, Any], **spec: Any) -> Any:
    return params_digests(params, spec_of(**spec))[2].decode()


# -- names of intents and calls ------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["session", "global"])
def test_a_call_that_names_what_it_is_about(scope: str) -> None:
    effect = "read" if scope == "global" else None
    spec = ToolSpec(name="pay", idempotent=True, namespace="shop", scope=scope, effect=effect)  # type: ignore[arg-type]
    made = {KeyMaker(spec, **{**PLACE, **by}, keyed=True).keys_given({}, "order-1", "text").store_key for by in BY}
    assert made == {sha(["k2", "acme", "blue", "shop", "pay", "text", "order-1"])}
    other = KeyMaker(spec, **PLACE, keyed=True, namespace="bank", tool="send").keys_given({}, "order-1", "json")
    assert other.store_key == sha(["k2", "acme", "blue", "bank", "send", "json", "order-1"])


def test_a_given_key_belongs_to_session_and_actor() -> None:
    maker = KeyMaker(spec_of(), **PLACE)
    assert maker.place == ("s", "a")
    given = maker.keys_given({"n": 1, "retryCount": 2}, "k")
    assert given.store_key == sha(["k1", "acme", "blue", "session", "s", "a", "shop", "pay", "k"])
    assert given[1:] == ("k", sha({"n": 1}), sha({"n": 1, "retryCount": 2}), given.store_key[:16])
    assert maker.keys_given({"n": 1}, "k")[2:4] == (sha({"n": 1}), sha({"n": 1}))


def test_what_names_a_call_by_its_id() -> None:
    name = KeyMaker(spec_of(), **PLACE).call_name("call-7")
    assert name == sha(["c1", "acme", "blue", "s", "a", "shop", "pay", "call-7"])


def test_a_computed_key_is_the_documented_hash() -> None:
    maker = KeyMaker(spec_of(), **PLACE)
    key = hashlib.sha256(b'shop::pay::{"n":1}::s::a').hexdigest()
    keys = maker.keys({"n": 1})
    assert keys.idempotency_key == key
    assert keys.store_key == sha(["k1", "acme", "blue", "session", "s", "a", "shop", "pay", key])
    assert keys[2:] == (sha({"n": 1}), sha({"n": 1}), keys.store_key[:16])


def test_a_tool_for_everybody_has_neither_session_nor_actor_in_its_key() -> None:
    spec = ToolSpec(name="find", idempotent=True, namespace="shop", effect="read", scope="global")
    key = hashlib.sha256(b'shop::find::{"n":1}::::').hexdigest()
    keys = KeyMaker(spec, **PLACE).keys({"n": 1})
    assert keys.idempotency_key == key
    assert keys.store_key == sha(["k1", "acme", "blue", "global", None, None, "shop", "find", key])
    asked: dict[str, Any] = {"namespace": "shop", "tool": "find", "params": {"n": 1}, "session": "s", "actor": "a"}
    assert idempotency_key(**asked, spec=spec) == key
    assert idempotency_parts(**asked, spec=spec) == {**asked, "params": '{"n":1}', "session": "", "actor": ""}
    assert idempotency_parts(**asked) == {**asked, "params": '{"n":1}'}


def test_a_name_with_a_lone_surrogate_says_where() -> None:
    with pytest.raises(InvalidInput, match="at index 1"):
        KeyMaker(spec_of(), session="s", actor="a", tool="x\ud800")
    with pytest.raises(InvalidInput) as caught:
        store_key_parts(namespace="n", tool="t", idempotency_key="k", session="s", actor="a", scope="planet")
    assert caught.value.path == "$.scope"
    assert "'planet'" in str(caught.value)


# -- what a call is about ------------------------------------------------------------------------------------------


class Kind(enum.StrEnum):
    CARD = "card"


class Names:
    """It has a length, and no form."""

    def __len__(self) -> int:
        return 1


def _loop() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def test_keys_as_text() -> None:
    assert key_text(Kind.CARD) == ("card", "text")
    assert type(key_text(Kind.CARD)[0]) is str
    assert key_text(" x ") == (" x ", "text")
    assert key_text(0) == ("0", "json")
    assert key_text(uuid.UUID(int=1)) == ('{"$uuid":"00000000-0000-0000-0000-000000000001"}', "json")
    assert key_text(("order", 7)) == ('["order",7]', "json")


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("", "The key is empty"),
        ("\t", "The key is empty"),
        ([], "The key is empty"),
        (("order", None), "A part of the key is empty"),
        (["order", ""], "A part of the key is empty"),
        (None, "not None"),
        (True, "not True"),
        (1.5, "not 1.5"),
        ("a\ud800", "lone surrogate at index 1"),
        (Names(), "A Names is not JSON"),
        (_loop(), "A list is no key"),
    ],
)
def test_what_is_no_key_says_why(value: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        key_text(value)
    assert caught.value.path == ("$" if "surrogate" in says else "$.key")


# -- what is left out ----------------------------------------------------------------------------------------------


def test_a_keyed_call_ignores_what_its_tool_says() -> None:
    spec = spec_of(key_ignore=("note", "items.hint"))
    given = {"n": 1, "note": "x", "items": [{"hint": 1, "of": 2}]}
    keyed, plain = (KeyMaker(spec, **PLACE, keyed=keyed) for keyed in (True, False))
    assert keyed.keys_given(given, "k", "text").params_digest == sha({"n": 1, "items": [{"of": 2}]})
    assert keyed.keys_given(given, "k", "text").params_digest_exact == sha(given)
    assert plain.keys_given(given, "k").params_digest == plain.keys(given).params_digest == sha(given)


@pytest.mark.parametrize("name", ["clientTs", "retryCount", "traceparent"])
def test_volatile_names(name: str) -> None:
    assert canonical({"n": 1, name: 2}) == '{"n":1}'
    assert params_digests({"n": 1, name: 2})[2] == b'{"n":1}'
    assert canonical({"n": {name: 2}}) == f'{{"n":{{"{name}":2}}}}'
    assert canonical({"n": 1, name: 2}, exact=(name,)) == dumps({"n": 1, name: 2}).decode()
    assert canonical({"n": 1, "at": 2, name: 3}, volatile=("at",)) == '{"n":1}'


def test_volatile_paths() -> None:
    rule = {"volatile": ("options.at", "steps.by.whom", "options.x.y")}
    given = {
        "options": {"at": 1, "x": 2},
        "steps": [{"by": {"whom": 1, "how": 2}}, {"by": 3}, 4, {"at": 5}],
        "at": 6,
    }
    wanted = {
        "options": {"x": 2},
        "steps": [{"by": {"how": 2}}, {"by": 3}, 4, {"at": 5}],
        "at": 6,
    }
    before = dumps(given)
    digest, exact, made = params_digests(given, spec_of(**rule))
    assert made == dumps(wanted)
    assert (digest, exact) == (sha(wanted), sha(given))
    assert dumps(given) == before
    assert canonical({"options": 1, "steps": [[{"by": {"whom": 1}}]]}, **rule) == '{"options":1,"steps":[[{"by":{}}]]}'


def test_a_volatile_path_alone() -> None:
    spec = spec_of(volatile=("options.at",), exact=("clientTs", "retryCount", "traceparent"))
    assert KeyMaker(spec, **PLACE).keys({"options": {"at": 1, "x": 2}}).params_digest == sha({"options": {"x": 2}})


@dataclass
class Order:
    number: int
    note: str = ""


def test_a_volatile_path_into_an_object_of_a_class() -> None:
    def digest(order: Order, *volatile: str) -> str:
        return params_digests({"order": order}, spec_of(volatile=volatile))[0]

    assert digest(Order(1, "x"), "order.note") == digest(Order(1, "y"), "order.note")
    assert digest(Order(1, "x"), "order.note") != digest(Order(2, "x"), "order.note")
    assert digest(Order(1, "x"), "order.by") == digest(Order(1, "x"))
    assert digest(Order(1, "x"), "order.by") != digest(Order(2, "x"), "order.by")


def test_a_volatile_path_takes_no_callers_object_for_one_of_a_class() -> None:
    def digest(of_caller: Any, *others: Any) -> str:
        return params_digests({"x": of_caller, "others": others}, spec_of(volatile=("x.a",)))[0]

    for others in ((), (Decimal(1),)):
        assert digest({"$object": {"a": 1}}, *others) != digest({"$object": {"a": 2}}, *others)
        assert digest({"$object": ["X", {"a": 1}]}, *others) != digest({"$object": ["X", {"a": 2}]}, *others)
        assert digest({None: {"a": 1}}, *others) != digest({None: {"a": 2}}, *others)
        assert digest({"a": 1, "b": 2}, *others) == digest({"a": 2, "b": 2}, *others)


def test_volatile_paths_beside_values_of_other_types() -> None:
    rule = {"volatile": ("order.note", "tag")}
    typed = ["$typed", {"order": {"n": 1}, "price": {"$decimal": "2"}}]
    assert canonical({"order": {"n": 1, "note": "x"}, "price": Decimal(2), "tag": object()}, **rule) == (
        dumps(typed).decode()
    )
    _, exact, _ = params_digests({"order": {"note": "x"}, "price": Decimal(2)}, spec_of(**rule))
    assert exact == sha(["$typed", {"order": {"note": "x"}, "price": {"$decimal": "2"}}])


# -- white space ---------------------------------------------------------------------------------------------------

SPACED: dict[str, Any] = {
    "note": " a  b ",
    "options": {"text": ["c\td", {"deep": " e"}], "code": "f  g"},
    "code": "h  i",
}


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({}, SPACED),
        ({"insensitive": ("note",)}, {**SPACED, "note": "a b"}),
        (
            {"insensitive": ("options.text",)},
            {**SPACED, "options": {"text": ["c d", {"deep": "e"}], "code": "f  g"}},
        ),
        (
            {"insensitive": ("options",), "exact": ("options.code", "options.text.deep")},
            {**SPACED, "options": {"text": ["c d", {"deep": " e"}], "code": "f  g"}},
        ),
        (
            {"effect": "read", "exact": ("code", "options")},
            {**SPACED, "note": "a b"},
        ),
        (
            {"effect": "read"},
            {"note": "a b", "options": {"text": ["c d", {"deep": "e"}], "code": "f g"}, "code": "h i"},
        ),
        ({"insensitive": ("text", "deep")}, SPACED),
        (
            {"effect": "read", "exact": ("note", "options.text")},
            {**SPACED, "options": {**SPACED["options"], "code": "f g"}, "code": "h i"},
        ),
    ],
    ids=["a write", "one", "a path", "all but", "a read but", "a read", "no such path", "all after"],
)
def test_where_white_space_does_not_matter(spec: dict[str, Any], wanted: dict[str, Any]) -> None:
    made = ToolSpec(name="pay", idempotent="effect" in spec, **spec)
    before = dumps(SPACED)
    digest, exact, canonical = params_digests(SPACED, made)
    assert canonical == dumps(wanted)
    assert (digest, exact) == (sha(wanted), sha(SPACED))
    assert dumps(SPACED) == before
    keys = KeyMaker(made, session="s", actor="a").keys(SPACED)
    assert keys[2:4] == (sha(wanted), sha(SPACED))


@pytest.mark.parametrize(
    "text", ["a  b", " a", "a ", "a\nb", "a\tb ", "a\u3000b", "\u2003", '"  "', '" ', ' "', "\\ x  y"]
)
def test_any_white_space_of_a_read_is_squeezed(text: str) -> None:
    read = ToolSpec(name="find", idempotent=True, effect="read")
    for make in (lambda v: v, lambda v: [1, v], lambda v: {"x": [v], "y": "z"}):
        tidy = params_digests({"q": make(" ".join(text.split()))}, read)
        made = params_digests({"q": make(text)}, read)
        assert made[0] == tidy[0]
        assert made[1] != tidy[1]
        named = ToolSpec(name="find", idempotent=True, effect="read", exact=("q",))
        assert params_digests({"q": make(text)}, named)[0] == made[1]


def test_white_space_beside_values_of_other_types() -> None:
    made = {"note": " a  b", "price": Decimal(2)}
    typed = ["$typed", {"note": "a b", "price": {"$decimal": "2"}}]
    assert canonical(made, insensitive=("note",)) == dumps(typed).decode()


def test_text_that_is_nested_too_deeply_is_refused() -> None:
    deep: Any = " x"
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(CanonicalError):
        params_digests({"q": deep}, ToolSpec(name="find", idempotent=True, effect="read"))


# -- parameters as they were given ---------------------------------------------------------------------------------


def test_parameters_as_they_were_given() -> None:
    given = {"n": 1, "retryCount": 2, "q": " a  b"}
    read = ToolSpec(name="find", idempotent=True, effect="read")
    for spec in (None, spec_of(), read):
        assert exact_params(given, spec) == dumps(given)
    typed = {"price": Decimal(2), "n": 1}
    digest = sha(["$typed", {"price": {"$decimal": "2"}, "n": 1}])
    assert exact_params(typed) == (digest, digest)
    written = spec_of(serialisers={"n": lambda n: [n]})
    assert exact_params({"n": 1}, written) == (sha({"n": [1]}),) * 2
    with pytest.raises(CanonicalError):
        exact_params({"n": object()})


# -- quick keys ----------------------------------------------------------------------------------------------------


def test_only_who_asks_for_it_is_given_what_was_remembered() -> None:
    maker = KeyMaker(spec_of(), **PLACE)
    first = maker.quick({"n": 1}, True)
    assert maker.quick({"n": 1}, True) is first
    assert maker.quick({"n": 1}) is not first
    assert maker.quick({"n": 1}) == first
    assert maker.quick({"n": 1, "retryCount": 1}, True) == (*first[:3], b'{"n":1,"retryCount":1}')
    fresh = KeyMaker(spec_of(), **PLACE)
    fresh.quick({"n": 1})
    fresh.quick({"n": 1, "retryCount": 1}, True)
    assert fresh._memo == {}


@pytest.mark.parametrize(("size", "kept"), [(4096, True), (4097, False)])
def test_large_parameters_are_not_remembered(size: int, kept: bool) -> None:
    maker = KeyMaker(spec_of(), **PLACE)
    params = {"n": "x" * (size - len('{"n":""}'))}
    assert (maker.quick(params, True) is maker.quick(params, True)) is kept


def test_so_many_are_remembered() -> None:
    maker = KeyMaker(spec_of(), **PLACE)
    for number in range(1024):
        maker.quick({"n": number}, True)
    assert len(maker._memo) == 1024
    maker.quick({"n": "one more"}, True)
    assert len(maker._memo) == 1


# -- turns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({"a": [1, ({1: 2},)]}, r"not a string \(at \$\.a\[1\]\[0\]\)"), ({"a": {None: 1}, "b": 1}, "not a string")],
)
def test_turn_arguments_with_other_names(arguments: Any, says: str) -> None:
    with pytest.raises(CanonicalError, match=says):
        turn_key_parts("send", arguments)


def test_turn_arguments_in_tuples() -> None:
    assert turn_key_parts("send", {"b": ({"x": 1},), "a": "ü"}) == 'send:{"a": "\\u00fc", "b": [{"x": 1}]}'


def test_a_volatile_path_may_begin_at_the_root() -> None:
    spec = spec_of(volatile=("$.meta.sentAt", "$.at"))
    first = params_digests({"k": 1, "meta": {"sentAt": 1}, "at": 1}, spec)[0]
    assert params_digests({"k": 1, "meta": {"sentAt": 2}, "at": 2}, spec)[0] == first
    assert params_digests({"k": 2, "meta": {"sentAt": 1}, "at": 1}, spec)[0] != first
