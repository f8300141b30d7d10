"""What may differ between a recorded and a live call, and what may not (D11)."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.ops.reports import LazyEmbedder
from antiphon.similarity import SemanticIndex, similar_arguments
from antiphon.similarity.arguments import kind_of, leaves, same_value, squeeze_math

MEMO = "monthly rent payment for the apartment in the old town, second floor"


def score(left: str, right: str) -> float:
    return similar_arguments({"q": left}, {"q": right}, threshold=0.0).score


def same_vector(texts: Any) -> list[list[float]]:
    """An embedder that sees no difference at all."""
    return [[1.0, 0.0] for _ in texts]


SF = {"location": "San Francisco, CA", "units": "metric"}


def test_the_documents_example_is_a_hit_and_names_both_sides() -> None:
    match = similar_arguments(SF, {"location": "San Francisco", "units": "metric"})
    assert match.hit
    assert match.score == pytest.approx(2 / 2.15)
    (leaf,) = match.leaves
    assert (leaf.path, leaf.recorded, leaf.live) == ("$.location", "San Francisco, CA", "San Francisco")


@pytest.mark.parametrize(
    ("recorded", "live"),
    [
        ({"amount": 1000, "memo": MEMO}, {"amount": 9000, "memo": MEMO}),
        ({"sql": "SELECT * FROM t WHERE country='US'"}, {"sql": "SELECT * FROM t WHERE country='UK'"}),
        ({"query": "SELECT * FROM t WHERE country='US'"}, {"query": "SELECT * FROM t WHERE country='UK'"}),
        ({"query": "DELETE FROM t WHERE id=1"}, {"query": "DELETE FROM t WHERE id=2"}),
    ],
)
def test_the_known_wrong_hits_are_misses(recorded: dict[str, Any], live: dict[str, Any]) -> None:
    match = similar_arguments(recorded, live, threshold=0.01)
    assert not match.hit
    assert match.score == 0.0


@pytest.mark.parametrize(
    ("recorded", "live"),
    [
        ({"q": "python history"}, {"q": "python history?"}),
        ({"input": "25 * 4"}, {"input": "25*4"}),
        ({"a": 1, "b": 2}, {"a": 1.0, "b": 2}),
    ],
)
def test_the_known_wrong_misses_are_hits(recorded: dict[str, Any], live: dict[str, Any]) -> None:
    assert similar_arguments(recorded, live).hit


@pytest.mark.parametrize("recorded", [" , France", ", France", " ,, France", "\u00a0, France", ", , Paris, France"])
def test_a_region_without_a_place_is_no_error(recorded: str) -> None:
    assert not similar_arguments({"location": recorded}, {"location": "Lyon, France"}).hit
    assert not similar_arguments({"location": "Lyon, France"}, {"location": recorded}).hit


def test_equal_arguments_match_whatever_they_are() -> None:
    anything = {"a": [1, None, True, {"b": "SELECT 1"}], "c": "", "d": {}, "e": []}
    assert similar_arguments(anything, anything) == (1.0, True, (), "equal")


def test_a_miss_says_why() -> None:
    assert similar_arguments({"n": 1}, {"n": 2}).why == "$.n: 1 is not 2"
    assert similar_arguments({"q": "a b"}, {"q": "a b", "n": 1}).why == "$.n stands on one side only"
    assert similar_arguments({"q": "cancel the trip"}, {"q": "never cancel the trip"}).why == "$.q: negation differs"
    below = similar_arguments({"q": "the old town"}, {"q": "old town"}, threshold=0.999)
    assert below.why.endswith("is below 100%)")


def test_a_schema_makes_a_leaf_exact() -> None:
    recorded, live = {"place": {"name": "Vienna, Austria"}}, {"place": {"name": "Vienna"}}
    assert similar_arguments(recorded, live).hit
    for rule in ({"enum": ["Vienna"]}, {"format": "uri"}, {"pattern": ".*"}, {"const": "x"}):
        schema = {"properties": {"place": {"properties": {"name": {"type": "string", **rule}}}}}
        assert not similar_arguments(recorded, live, schema=schema).hit, rule
    assert not similar_arguments(recorded, live, exact=("place.name",)).hit
    assert not similar_arguments(recorded, live, exact=("name",)).hit
    listed = {"properties": {"places": {"items": {"enum": ["Vienna"]}}}}
    assert not similar_arguments({"places": ["Vienna, Austria"]}, {"places": ["Vienna"]}, schema=listed).hit


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("query", "weather in Paris", "text"),
        ("query", "Paris", "word"),
        ("query", "", "exact"),
        ("query", "x" * 2001, "exact"),
        ("customerId", "two words", "exact"),
        ("start_date", "next Monday", "exact"),
        ("text", "two words", "data"),
        ("query", "ann@example.com", "exact"),
        ("query", "https://example.com/a b", "text"),
        ("query", "https://example.com/a", "exact"),
        ("query", "/etc/passwd", "exact"),
        ("query", "user_42", "exact"),
        ("query", "2024-05-01", "math"),
        ("query", "10:30", "exact"),
        ("query", "ls -la /tmp", "exact"),
        ("query", "find restaurants in Rome", "text"),
        ("query", "find . -name x", "exact"),
        ("query", "{name}", "exact"),
        ("query", "x == 1 or y", "exact"),
        ("query", "drop table users", "exact"),
        ("query", "<b>bold move</b>", "exact"),
        ("input", "3 + 4", "math"),
    ],
)
def test_kinds_of_strings(key: str, value: str, kind: str) -> None:
    assert kind_of(value, key) == kind


def test_leaves_have_one_order_and_empty_containers_count() -> None:
    found = leaves({"b": [], "a": {"y": 1, "x": [True, {}]}})
    assert [leaf.path for leaf in found] == ["$.a.x[0]", "$.a.x[1]", "$.a.y", "$.b"]


def test_values_are_the_same_by_json_not_by_python() -> None:
    assert same_value(1, 1.0)
    assert not same_value(1, True)
    assert not same_value(0, False)
    assert not same_value("1", 1)
    assert same_value([1, [2.0]], (1.0, (2,)))


def test_an_expression_may_differ_in_spaces_only() -> None:
    assert squeeze_math("2 5") != squeeze_math("25")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("IT jobs", "jobs"),
        ("us elections", "US elections"),
        ("book 3 of 5", "book 5 of 3"),
        ("ABCdef9 status", "abcdef9 status"),
        ("Portland, OR weather", "Portland, ME weather"),
        ("a cat on a red sofa", "a red cat on a sofa"),
        ("compare Germany, France", "compare Germany"),
        ("books for cats", "books about cats"),
        ("flights to Rome", "flights from Rome"),
        ("flights Rome", "flights from Rome"),
        ("Ⅳ plan features", "Ⅵ plan features"),
        ("plan IV features", "plan VI features"),
        ("the ① option", "the ② option"),
        ("version 3.10 notes", "version 3.1 notes"),
        ("open on Monday", "open on Friday"),
        ("sales in March", "sales in August"),
        ("is the item in stock", "is the item out of stock"),
        ("is it a valid ticket", "is it an invalid ticket"),
        ("rent in dollars", "rent in euros"),
        ("show the ✅ entries", "show the ❌ entries"),
        ("python -snake pictures", "python snake pictures"),
        ("Nike shoes by Ann", "Nike shoes by Bob"),
        ("the dog bites the man", "the man bites the dog"),
        ("wer hat den Antrag genehmigt", "wer hat den Antrag nicht genehmigt"),
        ("qui a payé la facture", "qui n'a pas payé la facture"),
        ("已批准 的 退款", "未批准 的 退款"),
    ],
)
def test_texts_that_may_not_stand_for_each_other(left: str, right: str) -> None:
    for old, new in ((left, right), (right, left)):
        assert score(old, new) == 0.0
        assert not similar_arguments({"q": old}, {"q": new}, same_vector).hit


def test_a_region_goes_where_it_goes_without_saying() -> None:
    assert score("Paris, France", "Paris") > 0.85
    assert score("Boston, MA, USA", "Boston, MA") > 0.85
    assert score("Austin, Texas", "Austin, TX") > 0.85
    assert score("Paris, Texas", "Paris") == 0.0
    assert score("Springfield, IL", "Springfield") == 0.0
    assert score("Boston, Massachusetts", "Boston, USA") == 0.0
    assert score("Italy, France, Spain", "Italy, France") == 0.0


def test_an_embedder_decides_where_words_do_not() -> None:
    def apart(texts: Any) -> list[list[float]]:
        return [[1.0, 0.0] if "sprint" in text else [0.0, 1.0] for text in texts]

    assert not similar_arguments({"q": "sprint races"}, {"q": "dash races"}).hit
    assert similar_arguments({"q": "sprint races"}, {"q": "dash races"}, same_vector).hit
    assert not similar_arguments({"q": "sprint races"}, {"q": "dash races"}, apart).hit
    assert not similar_arguments({"q": "cheap races"}, {"q": "expensive races"}, same_vector).hit
    assert not similar_arguments({"q": "races of Ann"}, {"q": "races of Bob"}, same_vector).hit


def test_an_embedder_says_from_which_cosine_texts_mean_the_same() -> None:
    class Near:
        same_from = 0.7

        def __call__(self, texts: Any) -> list[list[float]]:
            return [[1.0, 0.0] if "sprint" in text else [0.8, 0.6] for text in texts]

    recorded, live = {"q": "sprint races"}, {"q": "dash races"}
    assert similar_arguments(recorded, live, Near(), threshold=0.75).score == pytest.approx(0.8)
    assert not similar_arguments(recorded, live, Near(), threshold=0.85).hit
    assert not similar_arguments(recorded, live, lambda texts: Near()(texts), threshold=0.75).hit


def test_spelling_is_not_meaning_also_where_the_embedder_is_loaded_late() -> None:
    app: Any = SimpleNamespace(config=SimpleNamespace(replay=SimpleNamespace(embedder="lexical")))
    embedder = LazyEmbedder(app.config.replay.embedder)
    recorded = "the long history of gardening in northern Scandinavia"
    assert not similar_arguments({"q": recorded}, {"q": f"not {recorded}"}, embedder).hit
    assert embedder.name == "none needed"
    assert not similar_arguments({"q": recorded}, {"q": recorded.replace("gardening", "gardener")}, embedder).hit
    assert embedder.name == "lexical"


def test_texts_that_the_embedder_cannot_read_are_compared_by_characters() -> None:
    class English:
        def __call__(self, texts: Any) -> list[list[float]]:
            return [[1.0] for _ in texts]

        def unknown(self, text: str) -> tuple[list[str], int]:
            return [c for c in text if not c.isascii()], len(text)

    match = similar_arguments({"q": "天气预报 北京 明天上午的温度"}, {"q": "天气预报 北京 明天下午的温度"}, English())
    assert not match.hit
    near = similar_arguments({"q": "天气预报 北京 明天上午的温度"}, {"q": "天气预报 北京 明天上午的气温度"}, English())
    assert near.why == "$.q: characters"


def test_the_index_keeps_tools_apart_and_orders_its_answers() -> None:
    index: SemanticIndex[int] = SemanticIndex()
    index.declare("lookup", schema={"properties": {"q": {"enum": ["old town"]}}})
    index.add("search", {"q": "the old town"}, 1)
    index.add("search", {"q": "old town"}, 2)
    index.add("search", {"q": "old town"}, 3)
    index.add("lookup", {"q": "the old town"}, 4)
    assert [found.ref for found in index.find("search", {"q": "old town"})] == [2, 3, 1]
    assert index.find("lookup", {"q": "old town"}) == []
    assert index.find("other", {"q": "old town"}) == []


WORDS = st.lists(st.sampled_from("river market garden window planet engine coffee".split()), min_size=2, max_size=6)


@given(WORDS, st.integers(0, 9999), st.integers(0, 9999))
def test_another_number_never_matches(words: list[str], old: int, new: int) -> None:
    text = " ".join(words)
    match = similar_arguments({"q": f"{text} {old}"}, {"q": f"{text} {new}"}, threshold=0.0001)
    assert match.hit == (old == new)


@given(WORDS, st.integers(0, 5), st.sampled_from(["not", "never", "without", "no"]))
def test_a_negation_never_matches(words: list[str], place: int, negation: str) -> None:
    changed = [*words[:place], negation, *words[place:]]
    assert not similar_arguments({"q": " ".join(words)}, {"q": " ".join(changed)}, threshold=0.0001).hit


@given(WORDS, st.randoms(use_true_random=False))
def test_shuffled_words_match_only_in_their_order(words: list[str], rng: Any) -> None:
    shuffled = list(words)
    rng.shuffle(shuffled)
    match = similar_arguments({"q": " ".join(words)}, {"q": " ".join(shuffled)}, threshold=0.0001)
    assert match.hit == (words == shuffled)


@given(st.text(max_size=200), st.text(max_size=200))
def test_any_text_is_read_and_compared(left: str, right: str) -> None:
    assert 0.0 <= score(left, right) <= 1.0
    assert score(left, left) == 1.0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(JSON, JSON)
def test_the_index_agrees_with_a_comparison_on_any_arguments(recorded: Any, live: Any) -> None:
    index: SemanticIndex[str] = SemanticIndex()
    index.add("t", recorded, "ref")
    assert bool(index.find("t", live)) == similar_arguments(recorded, live).hit
    assert index.find("t", recorded)
