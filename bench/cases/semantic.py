"""A live call that no recorded one answers."""

from itertools import cycle

from antiphon import similarity
from antiphon.similarity import SemanticIndex


def miss(texts, asked):
    return _miss(SemanticIndex(), texts, asked)


def miss_by_meaning(texts, asked):
    return _miss(SemanticIndex(similarity.load("minilm")), texts, asked)


def _miss(index, texts, asked):
    for number, text in enumerate(texts):
        index.add("search", {"query": text}, number)
    questions = cycle(asked)

    def once():
        assert not index.find("search", {"query": next(questions)})

    return once
