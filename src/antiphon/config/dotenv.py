"""The environment as settings see it: the process's own, completed by a ``.env`` file of the working folder (K7)."""

from __future__ import annotations

import os
import re
from pathlib import Path

_READ = re.compile(r"(?:KURRAL|R2|AWS)_[A-Z0-9_]+")
"""Only what names a bucket and who may use it is taken from the file; everything else there is none of our business."""


def read_dotenv(path: Path) -> dict[str, str]:
    """``NAME=value`` lines of a ``.env`` file; quotes are taken off, nothing is expanded."""
    found: dict[str, str] = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return found
    for line in lines:
        name, equals, value = line.strip().removeprefix("export ").partition("=")
        if equals and name and not name.startswith("#"):
            found[name.strip()] = _unquoted(value.strip())
    return found


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value.partition(" #")[0].rstrip()


def environment(folder: Path | None = None) -> dict[str, str]:
    """``os.environ``, and below it the storage settings of ``.env``."""
    path = (folder or Path.cwd()) / ".env"
    below = {name: value for name, value in read_dotenv(path).items() if _READ.fullmatch(name)}
    return {**below, **os.environ}
