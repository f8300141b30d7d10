"""Where the MiniLM weights lie on this machine, and what is said if they do not."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from antiphon.errors import NotFound

MODEL = "minilm-l6-v2"
FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
"""The files that are kept, with the SHA-256 they must have."""


class ModelMissing(NotFound):
    """The embedding model is not on this machine."""

    code = "model_missing"


def model_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Where the weights live: ``ANTIPHON_HOME/models``, else the user's cache folder."""
    variables = os.environ if environment is None else environment
    home = variables.get("ANTIPHON_HOME")
    if home:
        return Path(home) / "models" / MODEL
    cache = variables.get("XDG_CACHE_HOME")
    base = Path(cache) if cache else Path.home() / ".cache"
    return base / "antiphon" / "models" / MODEL


def installed(folder: Path | None = None) -> bool:
    """Whether both files are there (their content was checked when they were installed)."""
    place = folder if folder is not None else model_folder()
    return all((place / name).is_file() for name in FILES)


def require_model(folder: Path) -> None:
    """Raise the one sentence for an absent model."""
    if not installed(folder):
        raise ModelMissing(
            f"The embedding model is not installed (looked in {folder}).",
            hint="Install it once with: antiphon models install. Or choose the lexical embedder.",
        )
