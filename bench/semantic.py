"""Matching arguments by meaning: right answers on public and on our own pairs, and what a miss costs."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from antiphon import similarity
from antiphon.similarity import Embedder, contradictions, similar_arguments
from antiphon.similarity.embedding import SAME_FROM
from bench import Case, Context, Row

DATA = Path(__file__).parent.parent / "tests" / "data"
PAIRS = DATA / "argument_pairs.json"
SICK = "ANTIPHON_SICK"
GET_SICK = (
    f"SICK is not measured: set {SICK} to a folder with SICK_train.txt and SICK_test_annotated.txt "
    "(SemEval-2014 task 1; a copy is in github.com/brmson/dataset-sts, data/sts/sick2014)."
)
OPPOSITES = "ANTIPHON_OPPOSITES"
GET_OPPOSITES = (
    f"Public opposites are not measured: set {OPPOSITES} to a folder with clones of github.com/mahartmann/"
    "negationminpairs, verypluming/JSICK, hitz-zentroa/XNLIvar and PhilipMay/stsb-multi-mt."
)
EACH = 20
"""Public pairs of one language and label; which ones is decided by their digest."""
GOAL = 0.94
"""The precision on the training pairs from which the cosine is chosen; then the test pairs are looked at."""
_NEGATION = re.compile(r"\b(?:no|not|nobody|nothing|none|never|without|neither|nor|cannot)\b|n't\b", re.IGNORECASE)
_NO = re.compile(r"\b(?:no|nunca|nadie|nada|ning[uú]n\w*|jamás|sin)\b", re.IGNORECASE)
_NUMBER = re.compile(r"\b(?:\d+|two|three|four|five|six|seven|eight|nine|ten)\b", re.IGNORECASE)


class Pair(NamedTuple):
    """Two sentences; ``same``: entailment with relatedness ≥ 4.5, not ``same``: contradiction or relatedness < 4."""

    recorded: str
    live: str
    same: bool
    contradicts: bool


def run(ctx: Context) -> list[Row]:
    similarity.install_model()
    minilm = similarity.load("minilm")
    rows = public(minilm) + accuracy("no embedder", None) + accuracy("MiniLM", minilm)
    rows += answers() + opposites()
    rows += _miss(ctx, characters=40, recorded=1000)
    rows += _miss(ctx, characters=200, recorded=100)
    rows.append(_miss_of_many(ctx))
    return rows


def sick(path: Path) -> list[Pair]:
    """The pairs of one SICK file that are clearly the same or clearly not."""
    with path.open(encoding="utf-8") as file:
        return list(_pairs(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)))


def _pairs(lines: Any) -> Iterator[Pair]:
    for line in lines:
        judged, related = line["entailment_judgment"], float(line["relatedness_score"])
        same, contradicts = judged == "ENTAILMENT" and related >= 4.5, judged == "CONTRADICTION"
        if same or contradicts or related < 4:
            yield Pair(line["sentence_A"], line["sentence_B"], same, contradicts)


class Cut:
    """An embedder with each vector computed once, and a cosine of its own from which texts mean the same."""

    def __init__(self, embedder: Embedder, same_from: float) -> None:
        self.same_from = same_from
        self._embedder = embedder
        self._known: dict[str, Any] = {}

    def __call__(self, texts: Any) -> Any:
        missing = [text for text in texts if text not in self._known]
        self._known.update(zip(missing, self._embedder(missing), strict=True))
        return [self._known[text] for text in texts]


def public(minilm: Embedder) -> list[Row]:
    """Tuned on SICK's training pairs, reported on its test pairs."""
    folder = os.environ.get(SICK)
    if not folder:
        print(GET_SICK)
        return []
    tuned, (precision, recall, _) = tune(sick(Path(folder, "SICK_train.txt")), Cut(minilm, 0.8))
    note = f"cosine from {tuned:.2f} (shipped: {SAME_FROM:.2f})"
    rows = [
        Row(name="precision, SICK train", value=precision, unit="", note=note),
        Row(name="recall, SICK train", value=recall, unit="", note=note),
    ]
    tests = sick(Path(folder, "SICK_test_annotated.txt"))
    precision, recall, wrong = measure(tests, scores(tests, Cut(minilm, SAME_FROM)), SAME_FROM)
    note = f"{len(tests)} pairs, {sum(pair.same for pair in tests)} of them the same"
    changed = [pair for pair in wrong if pair.contradicts and _signs(pair.recorded) != _signs(pair.live)]
    return [
        *rows,
        Row(name="precision, SICK test", value=precision, unit="", at_least=0.88, note=note),
        Row(name="recall, SICK test", value=recall, unit="", at_least=0.5, note=note),
        Row(
            name="accepted contradictions by negation or number, SICK test",
            value=len(changed),
            unit="",
            at_most=0,
            note=f"{sum(pair.contradicts for pair in wrong)} accepted contradictions of any kind, "
            f"of {sum(pair.contradicts for pair in tests)}",
        ),
    ]


def _signs(text: str) -> tuple[int, list[str]]:
    """How many negations and which numbers a sentence has, by a rule of its own and not by the one that is measured."""
    return len(_NEGATION.findall(text)), sorted(map(str.lower, _NUMBER.findall(text)))


def scores(pairs: list[Pair], embedder: Embedder) -> list[float]:
    found = (similar_arguments({"query": pair.recorded}, {"query": pair.live}, embedder, 0.0) for pair in pairs)
    return [match.score for match in found]


def measure(pairs: list[Pair], found: list[float], cut: float) -> tuple[float, float, list[Pair]]:
    """Precision, recall, and the pairs that were accepted and are not the same."""
    hits = [pair for pair, score in zip(pairs, found, strict=True) if score >= cut]
    right = sum(pair.same for pair in hits)
    return right / len(hits), right / sum(pair.same for pair in pairs), [pair for pair in hits if not pair.same]


def tune(pairs: list[Pair], embedder: Embedder) -> tuple[float, tuple[float, float, list[Pair]]]:
    """The lowest cosine, in steps of a hundredth, with enough precision."""
    found = scores(pairs, embedder)
    tried = ((cut / 100, measure(pairs, found, cut / 100)) for cut in range(80, 100))
    return next(entry for entry in tried if entry[1][0] >= GOAL)


def accuracy(name: str, embedder: Embedder | None) -> list[Row]:
    """Precision and recall on all pairs, and on those that were written after the first rules."""
    pairs = json.loads(PAIRS.read_bytes())["pairs"]
    rows = []
    for part, chosen in (("all", pairs), ("held out", [pair for pair in pairs if pair["held_out"]])):
        hits = [pair["same"] for pair in chosen if similar_arguments(pair["recorded"], pair["live"], embedder).hit]
        same = sum(pair["same"] for pair in chosen)
        note = f"our own, {len(chosen)} pairs, {same} of them the same"
        precision, recall = (0.95, 0.75) if embedder else (0.99, 0.65)
        rows.append(
            Row(name=f"precision, {name}, {part}", value=sum(hits) / len(hits), unit="", at_least=precision, note=note)
        )
        rows.append(Row(name=f"recall, {name}, {part}", value=sum(hits) / same, unit="", at_least=recall, note=note))
    return rows


def answers() -> list[Row]:
    """How many contradicting answers are flagged, and how many harmless ones."""
    lines = [line.split("\t") for line in (DATA / "contradictions.tsv").read_text("utf-8").splitlines()[1:]]
    flagged: dict[str, list[bool]] = {"yes": [], "no": []}
    for contradicts, _, _, recorded, replayed in lines:
        flagged[contradicts].append(bool(contradictions(recorded, replayed)))
    shares = {contradicts: sum(found) / len(found) for contradicts, found in flagged.items()}
    return [
        Row(
            name="contradicting answers flagged",
            value=shares["yes"],
            unit="",
            at_least=0.95,
            note=f"our own, {len(flagged['yes'])} pairs, six languages",
        ),
        Row(
            name="harmless answers flagged",
            value=shares["no"],
            unit="",
            at_most=0.05,
            note=f"our own, {len(flagged['no'])} pairs",
        ),
    ]


def opposites() -> list[Row]:
    """Pairs by somebody who had not seen the rules, and pairs of public sets."""
    own = (line.split("\t") for line in (DATA / "opposites.tsv").read_text("utf-8").splitlines())
    pairs = [(kind == "opposite", (old, new)) for _, _, kind, old, new in (row for row in own if len(row) > 1)]
    rows = _flagged("by another hand", pairs)
    folder = os.environ.get(OPPOSITES)
    if not folder:
        print(GET_OPPOSITES)
        return rows
    sets = {language: [*_negated(Path(folder), language)] for language in ("en", "de", "fr", "zh", "es", "ja")}
    same = {language: [*_equivalent(Path(folder), language)] for language in sets}
    for name, choose in (("public sample", _sample), ("public, all", list)):
        chosen = [(True, pair) for found in sets.values() for pair in choose(found)]
        chosen += [(False, pair) for found in same.values() for pair in choose(found)]
        rows += _flagged(name, chosen)
    return rows


def _flagged(name: str, pairs: list[tuple[bool, tuple[str, str]]]) -> list[Row]:
    rows = []
    for opposite, label in ((True, "opposites"), (False, "harmless")):
        found = [bool(contradictions(*pair)) for kind, pair in pairs if kind is opposite]
        note = f"{sum(found)} of {len(found)} pairs, six languages"
        row = Row(name=f"{label} flagged, {name}", value=sum(found) / len(found), unit="", note=note)
        rows.append(replace(row, at_least=0.95) if opposite else replace(row, at_most=0.05))
    return rows


def _sample(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return sorted(pairs, key=lambda pair: hashlib.sha256("\t".join(pair).encode()).digest())[:EACH]


def _negated(folder: Path, language: str) -> Iterator[tuple[str, str]]:
    """Sentences of which people say that the second contradicts the first, by a negation."""
    if language == "es":
        for name in ("xnli-es-original.tsv", "xnli-eu2es-native.tsv"):
            for row in _table(folder / "XNLIvar" / "data" / "es" / name):
                a, b = row["premise"], row["hypothesis"]
                words = [{*re.findall(r"\w+", text.casefold())} for text in (a, b)]
                negated = [bool(_NO.search(text)) for text in (a, b)]
                alike = len(words[0] & words[1]) / len(words[0] | words[1])
                if row["label"] == "2" and alike >= 0.4 and negated[0] != negated[1]:
                    yield a, b
    elif language == "ja":
        for row in _table(folder / "JSICK" / "jsick" / "test.tsv"):
            near = float(row["relatedness_score_Ja"]) >= 4
            if row["entailment_label_Ja"] == "contradiction" and near and "Negation" in row["semtag_short"]:
                yield row["sentence_A_Ja"], row["sentence_B_Ja"]
    else:
        name = f"negationminpairs/data/minimal_pairs/eval_splits/minimal_pairs_xnli_{language}.test.json"
        for versions in json.loads((folder / name).read_bytes()).values():
            first = versions.pop("Orig")
            for other in versions.values():
                for side in ("sentence1", "sentence2"):
                    if other["gold_label"] != other["orig_label"] and first[side] != other[side]:
                        yield _joined(first[side]), _joined(other[side])


def _equivalent(folder: Path, language: str) -> Iterator[tuple[str, str]]:
    """Sentences to which people gave the highest grade."""
    with (folder / "stsb-multi-mt" / "data" / f"stsb-{language}-test.csv").open(encoding="utf-8") as file:
        yield from ((row[0], row[1]) for row in csv.reader(file) if float(row[2]) >= 5)


def _table(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        yield from csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)


def _joined(text: str) -> str:
    """A sentence whose tokens were set apart, as people write it."""
    text = re.sub(r"\s+'\s?(?=\w)", "'", text)
    text = re.sub(r"(?<=[\u3400-\u9fff，。])\s+(?=[\u3400-\u9fff，。])", "", text)
    return re.sub(r"\s+([.,!?;:])", r"\1", text)


def _miss(ctx: Context, *, characters: int, recorded: int) -> list[Row]:
    texts, asked = _texts(recorded, characters)
    params = {"texts": texts, "asked": asked}
    race = ctx.race(
        {
            "antiphon": Case("semantic", "miss", params),
            "antiphon, MiniLM": Case("semantic", "miss_by_meaning", params),
            "kurral": Case("kurral_semantic", "miss", params, peer="kurral"),
        },
        rounds=3,
        n=2,
        warmup=1,
    )
    name = f"miss among {recorded} calls of {characters} characters"
    return [
        race.row(name, "antiphon", "kurral", faster=100),
        race.row(f"{name}, MiniLM", "antiphon, MiniLM", "kurral", faster=100),
    ]


def _miss_of_many(ctx: Context) -> Row:
    texts, asked = _texts(1000, 200)
    race = ctx.race({"antiphon": Case("semantic", "miss", {"texts": texts, "asked": asked})}, rounds=3)
    return race.row("miss among 1000 calls of 200 characters", "antiphon", note="kurral: 18 s when last measured")


def _texts(count: int, characters: int) -> tuple[list[str], list[str]]:
    """Texts of words that real arguments use; the questions are not among them."""
    pairs = json.loads(PAIRS.read_bytes())["pairs"]
    words = sorted({word for pair in pairs for word in json.dumps(pair["live"]).split() if word.isalpha()})
    rng = random.Random(11)
    made = []
    for _ in range(count + 20):
        text = ""
        while len(text) < characters:
            text += rng.choice(words) + " "
        made.append(text[:characters].strip())
    return made[:count], made[count:]
