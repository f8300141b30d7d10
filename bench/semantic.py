"""Matching arguments by meaning (D11): right answers on the labelled pairs, and what a miss costs."""

from __future__ import annotations

import json
import random
from pathlib import Path

from antiphon import similarity
from antiphon.similarity import Embedder, similar_arguments
from bench import Case, Context, Row

PAIRS = Path(__file__).parent.parent / "tests" / "data" / "argument_pairs.json"


def run(ctx: Context) -> list[Row]:
    similarity.install_model()
    rows = accuracy("no embedder", None) + accuracy("MiniLM", similarity.load("minilm"))
    rows += _miss(ctx, characters=40, recorded=1000)
    rows += _miss(ctx, characters=200, recorded=100)
    rows.append(_miss_of_many(ctx))
    return rows


def accuracy(name: str, embedder: Embedder | None) -> list[Row]:
    """Precision and recall on all pairs, and on those that were written after its rules."""
    pairs = json.loads(PAIRS.read_bytes())["pairs"]
    rows = []
    for part, chosen in (("all", pairs), ("held out", [pair for pair in pairs if pair["held_out"]])):
        hits = [pair["same"] for pair in chosen if similar_arguments(pair["recorded"], pair["live"], embedder).hit]
        same = sum(pair["same"] for pair in chosen)
        note = f"{len(chosen)} pairs, {same} of them the same"
        rows.append(
            Row(name=f"precision, {name}, {part}", value=sum(hits) / len(hits), unit="", at_least=0.99, note=note)
        )
        rows.append(Row(name=f"recall, {name}, {part}", value=sum(hits) / same, unit="", at_least=0.8, note=note))
    return rows


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
