"""Comparison of texts: embeddings, matching of arguments, contradictions between answers.

A score says how close two texts are; rules about numbers, names, negations and opposites decide whether one may stand
in for the other. The rules are pure; only the model's files and the word lists are read from disk, once.
"""

from __future__ import annotations

from antiphon._minilm import ModelMissing, install_model, installed, model_folder
from antiphon.similarity.arguments import DEFAULT_THRESHOLD, LeafMatch, Match, SemanticIndex, similar_arguments
from antiphon.similarity.contradiction import Contradiction, contradictions
from antiphon.similarity.embedding import Embedder, LexicalEmbedder, Vectors, cosine, lexical, load, name_of

__all__ = [
    "DEFAULT_THRESHOLD",
    "Contradiction",
    "Embedder",
    "LeafMatch",
    "LexicalEmbedder",
    "Match",
    "ModelMissing",
    "SemanticIndex",
    "Vectors",
    "contradictions",
    "cosine",
    "install_model",
    "installed",
    "lexical",
    "load",
    "model_folder",
    "name_of",
    "similar_arguments",
]
