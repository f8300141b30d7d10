"""Where Antiphon keeps its state: ``.antiphon/`` of the working folder, or ``ANTIPHON_HOME``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from antiphon.errors import ConfigError


def home(environment: Mapping[str, str] | None = None) -> Path:
    """The state folder (not created)."""
    env = os.environ if environment is None else environment
    return Path(env.get("ANTIPHON_HOME") or ".antiphon")


def ensure_home(environment: Mapping[str, str] | None = None) -> Path:
    """The state folder, created with a ``.gitignore`` so that its content is never committed by accident."""
    folder = home(environment)
    ignore = folder / ".gitignore"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not ignore.exists():
            ignore.write_text("*\n", encoding="ascii")
    except OSError as error:
        raise ConfigError(
            f"The state folder {folder} cannot be used: {error.strerror or error}.",
            hint="Name another one with ANTIPHON_HOME, or a store elsewhere: [store] url.",
            path="ANTIPHON_HOME",
        ) from None
    return folder
