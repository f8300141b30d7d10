"""The embedding model, installed once into the user's cache folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon._minilm.model import MiniLM
from antiphon.similarity import install_model, load, model_folder
from tests.sharing import locked


@pytest.fixture(scope="session")
def minilm() -> MiniLM:
    """MiniLM; the first session on a machine downloads 83 MB, its workers do it once."""
    folder = model_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(Path(folder.parent, "install.lock")):
        install_model(folder)
    model = load("minilm", folder)
    assert isinstance(model, MiniLM)
    return model
