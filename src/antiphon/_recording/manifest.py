"""The code under which a run was made: commit, changes, source of the entry point, package versions."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
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
    """The commit of the checkout around *folder*, and whether it has uncommitted changes."""
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
    """The digest of the function's source, if available."""
    if function is None:
        return None
    try:
        return hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
    except (OSError, TypeError):
        return None


def source_files(function: Callable[..., Any] | None) -> dict[str, str] | None:
    """The project's files that *function* can reach, with digests of their source.

    This follows the modules, functions and classes that a module names, and whatever its source imports anywhere, even
    if that has not run yet; nothing is imported for it. Installed packages and files outside the folder of *function*'s
    project are skipped.
    """
    first = sys.modules.get(getattr(inspect.unwrap(function), "__module__", "")) if function is not None else None
    file = _own_file(getattr(first, "__file__", None))
    if first is None or file is None:
        return None
    root = _project(file.parent)
    folders = _folders(root, str(Path.cwd()), tuple(sys.path))
    found: dict[str, str] = {}
    waiting, seen = [(first.__name__, file)], {first.__name__}
    while waiting and len(found) < _MAX_FILES:
        module, path = waiting.pop()
        digest, imports = _read(str(path), stamp_of(path), _package(module, path))
        if digest is not None:
            found[path.relative_to(root).as_posix()] = digest
        for name in (*imports, *_named(sys.modules.get(module))):
            if name in seen:
                continue
            seen.add(name)
            place = _file_of(name, folders)
            if place is not None and place.is_relative_to(root):
                waiting.append((name, place))
    return dict(sorted(found.items())) or None


@lru_cache(maxsize=64)
def _folders(root: Path, working: str, places: tuple[Any, ...]) -> tuple[str, ...]:
    """Where to look for modules of the project."""
    found = (os.path.realpath(Path(working, place)) for place in places if isinstance(place, str))
    return tuple(folder for folder in found if Path(folder).is_relative_to(root))


def _file_of(name: str, folders: tuple[str, ...]) -> Path | None:
    """The user's file of a module, loaded or not; an unloaded one is searched for in *folders* or its package."""
    if name in sys.modules:
        return _own_file(getattr(sys.modules[name], "__file__", None))
    above, _, last = name.rpartition(".")
    if above in sys.modules:
        try:
            folders = tuple(map(str, getattr(sys.modules[above], "__path__", ())))
        except Exception:  # packages may define anything there
            return None
    else:
        last = name.replace(".", "/")
    return _looked_for(last, folders) if folders else None


@lru_cache(maxsize=16_384)
def _looked_for(name: str, folders: tuple[str, ...]) -> Path | None:
    files = (f"{folder}/{name}{end}" for folder in folders for end in (".py", "/__init__.py"))
    return next((_own_file(file) for file in files if os.path.isfile(file)), None)  # noqa: PTH113


@lru_cache(maxsize=16_384)
def _own_file(file: str | None) -> Path | None:
    """The file if it is a user's source: not installed, not in the standard library, not in this package."""
    path = Path(file or "").resolve()
    foreign = {"site-packages", "dist-packages"} & {*path.parts} or path.suffix != ".py"
    return None if foreign or path.is_relative_to(_STANDARD) or path.is_relative_to(_OURS) else path


@lru_cache(maxsize=256)
def _project(folder: Path) -> Path:
    """The folder of the project: the nearest one upwards with a pyproject.toml, an antiphon.toml or a checkout."""
    marks = ("pyproject.toml", "antiphon.toml", ".git")
    found = (place for place in (folder, *folder.parents) if any((place / mark).exists() for mark in marks))
    return next(found, folder)


def _named(module: Any) -> Iterator[str]:
    """The names of loaded modules that define the objects in *module*."""
    for value in [] if module is None else list(vars(module).values()):
        name = value.__name__ if inspect.ismodule(value) else str(getattr(value, "__module__", None) or "")
        if name in sys.modules:
            yield name


def _package(module: str, path: Path) -> str:
    """What a module's relative imports are relative to."""
    known = getattr(sys.modules.get(module), "__package__", None)
    return str(known or (module if path.name == "__init__.py" else module.rpartition(".")[0]))


def stamp_of(path: Path) -> tuple[int, int]:
    """Changes with the content of a file; zeros if it does not exist."""
    try:
        known = path.stat()
    except OSError:
        return 0, 0
    return known.st_mtime_ns, known.st_size


_DOTTED = re.compile(r"[\w.]{1,200}")
_TYPES = re.compile(r"^if (?:typing\.)?TYPE_CHECKING:\n(?:[ \t]+[^\n]*\n|\n)*", re.M)
_NAMES = r"(\([^)]*\)|(?:\\\n|[^\n;#])+)"
_IMPORTS = re.compile(rf"(?:^|[;:])[ \t]*(?:from[ \t]+([.\w]+)[ \t]+)?import\b[ \t]*{_NAMES}", re.M)
_BY_NAME = re.compile(r"(?:import_module|__import__)\(\s*[\"']([\w.]+)[\"']")


@lru_cache(maxsize=1024)
def _read(path: str, stamp: tuple[int, int], package: str) -> tuple[str | None, tuple[str, ...]]:
    """The digest of a file, and the modules that its imports may mean, with their parent packages.

    A parser would take a hundred times as long. Extra words (from comments, ``as``) are harmless: they match no file.
    """
    try:
        data = Path(path).read_bytes()
    except OSError:
        return None, ()
    text = _TYPES.sub("", data.decode(errors="replace").replace("\r\n", "\n"))
    imports = [(origin, name) for origin, names in _IMPORTS.findall(text) for name in _DOTTED.findall(names)]
    found: dict[str, None] = {}
    for origin, name in (*imports, *(("", name) for name in _BY_NAME.findall(text))):
        above = len(origin) - len(origin.lstrip("."))
        around = package.split(".")[: 1 - above or None] if above else []
        parts = [part for part in (*around, *origin.split("."), *name.split(".")) if part]
        found |= dict.fromkeys(".".join(parts[:end]) for end in range(1, len(parts) + 1))
    return hashlib.sha256(data).hexdigest(), tuple(found)


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
    """How to find the function again: ``module:name``, or ``file.py:name`` for a script."""
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
