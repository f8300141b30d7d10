"""Under which code a run was made: commit, changes, source of the entry point, package versions."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

from antiphon.contract.events import CodeVersion

_PACKAGES = (
    "antiphon",
    "anthropic",
    "google-genai",
    "httpx",
    "httpx2",
    "langchain",
    "langchain-core",
    "langgraph",
    "litellm",
    "mcp",
    "openai",
    "openai-agents",
    "pydantic-ai-slim",
)
_GIT_SECONDS = 2.0


@lru_cache(maxsize=8)
def _git(folder: str) -> tuple[str | None, bool | None]:
    """Commit of the checkout around *folder*, and whether it has uncommitted changes."""
    import shutil
    import subprocess

    git = shutil.which("git")
    if git is None:
        return None, None

    def ask(*words: str) -> str | None:
        try:
            done = subprocess.run(
                [git, "-C", folder, *words], capture_output=True, text=True, timeout=_GIT_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = ask("rev-parse", "HEAD")
    if commit is None:
        return None, None
    status = ask("status", "--porcelain", "--untracked-files=no")
    return commit, None if status is None else bool(status)


def code_version(function: Callable[..., Any] | None) -> CodeVersion:
    """The version of the code around *function*, or of the working folder."""
    folder = str(Path.cwd())
    digest = source_digest(function)
    if function is not None and digest is not None:
        folder = str(Path(inspect.getfile(function)).resolve().parent)
    commit, dirty = _git(folder)
    return CodeVersion(commit=commit, dirty=dirty, source_digest=digest)


def source_digest(function: Callable[..., Any] | None) -> str | None:
    """Digest of the function's source, where there is one."""
    if function is None:
        return None
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        return None


@lru_cache(maxsize=1)
def package_versions() -> dict[str, str]:
    """Python and the packages a replay cares about."""
    from importlib import metadata

    found = {"python": sys.version.partition(" ")[0]}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def entry_of(function: Callable[..., Any]) -> str:
    """How the function can be found again: ``module:name``, or ``file.py:name`` for a script."""
    function = inspect.unwrap(function)
    module = getattr(function, "__module__", "__main__")
    name = getattr(function, "__qualname__", type(function).__name__)
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if module != "__main__" and not getattr(loaded, "__antiphon_script__", False):
        return f"{module}:{name}"
    if file is None:
        return f"__main__:{name}"
    path = Path(file).resolve()
    try:
        return f"{path.relative_to(Path.cwd())}:{name}"
    except ValueError:
        return f"{path}:{name}"
