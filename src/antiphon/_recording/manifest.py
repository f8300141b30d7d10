"""Under which code a run was made: commit, changes, source of the entry point, package versions."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from antiphon.contract._base import UNSET
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
_MAX_FILES = 200
_STANDARD = Path(os.__file__).resolve().parent
_OURS = Path(__file__).resolve().parents[1]


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
    return CodeVersion(commit=commit, dirty=dirty, source_digest=digest, files=source_files(function) or UNSET)


def source_digest(function: Callable[..., Any] | None) -> str | None:
    """Digest of the function's source, where there is one."""
    if function is None:
        return None
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        return None


def source_files(function: Callable[..., Any] | None) -> dict[str, str] | None:
    """The project's files that *function* can reach, and digests of their source.

    Followed are the modules, functions and classes that a module names, and what its functions import when they run.
    Installed packages and files outside the folder of *function*'s project are not looked at.
    """
    first = sys.modules.get(getattr(inspect.unwrap(function), "__module__", "")) if function is not None else None
    file = _own_file(getattr(first, "__file__", None))
    if first is None or file is None:
        return None
    root = _project(file.parent)
    found: dict[str, str] = {}
    waiting, seen = [(first, file)], {first.__name__}
    while waiting and len(found) < _MAX_FILES:
        module, path = waiting.pop()
        digest = _file_digest(str(path), _stamp(path))
        if digest is not None:
            found[path.relative_to(root).as_posix()] = digest
        for name in _named(module):
            if name in seen or name not in sys.modules:
                continue
            seen.add(name)
            place = _own_file(getattr(sys.modules[name], "__file__", None))
            if place is not None and place.is_relative_to(root):
                waiting.append((sys.modules[name], place))
    return dict(sorted(found.items())) or None


@lru_cache(maxsize=16_384)
def _own_file(file: str | None) -> Path | None:
    """A source file of the user: not installed, not of the standard library, not of this package."""
    path = Path(file or "").resolve()
    foreign = {"site-packages", "dist-packages"} & {*path.parts} or path.suffix != ".py"
    return None if foreign or path.is_relative_to(_STANDARD) or path.is_relative_to(_OURS) else path


@lru_cache(maxsize=256)
def _project(folder: Path) -> Path:
    """The folder that holds the project: the nearest one upwards with a pyproject.toml or a checkout."""
    marks = ("pyproject.toml", "antiphon.toml", ".git")
    found = (place for place in (folder, *folder.parents) if any((place / mark).exists() for mark in marks))
    return next(found, folder)


def _named(module: Any) -> Iterator[str]:
    """The names of modules that the objects of *module* come from, and that its functions import."""
    for value in list(vars(module).values()):
        if inspect.ismodule(value):
            yield value.__name__
            continue
        yield str(getattr(value, "__module__", None) or "")
        code = getattr(inspect.unwrap(value), "__code__", None) if callable(value) else None
        if code is not None and getattr(value, "__module__", None) == module.__name__:
            yield from code.co_names


def _stamp(path: Path) -> tuple[int, int]:
    try:
        known = path.stat()
    except OSError:
        return 0, 0
    return known.st_mtime_ns, known.st_size


@lru_cache(maxsize=1024)
def _file_digest(path: str, stamp: tuple[int, int]) -> str | None:
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
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
