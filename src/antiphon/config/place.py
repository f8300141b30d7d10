"""Where a project keeps its state: one folder, wherever a program is started from.

``ANTIPHON_HOME``; else ``.antiphon/`` in the project's folder. The search for it starts in the folder of the main
script (in the working folder if there is none): the nearest one upwards with ``antiphon.toml``, else the root of the
repository, else the nearest one with ``pyproject.toml``, else the folder itself. The home folder and the root of the
file system are never a project.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import weakref
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from antiphon.errors import ConfigError

FOLDER = ".antiphon"
DATABASE = "antiphon.db"
FILE_NAME = "antiphon.toml"
_REPOSITORY = (".git", ".hg", ".jj", ".svn")


class Place(NamedTuple):
    """The state folder, and how it was found."""

    folder: Path
    project: Path | None
    """``None``: ``ANTIPHON_HOME`` sets it."""
    is_legacy: bool = False
    """It is in a subfolder of the project, where release 0.1.0 put it."""


def state_place() -> Place:
    """Where state is kept (not created)."""
    given = os.environ.get("ANTIPHON_HOME")
    if given:
        return Place(Path(in_home(given)).absolute(), None)
    start = _start()
    project = _project(start)
    if project is None:
        if (start / FOLDER / DATABASE).is_file():
            return Place(start / FOLDER, start, is_legacy=True)
        raise ConfigError(
            f"No project to keep state in: {start} is the home folder or the root of the file system.",
            hint="Name a folder with ANTIPHON_HOME, start from a project's folder, or give a store: [store] url.",
            path="ANTIPHON_HOME",
        )
    own = project / FOLDER
    for folder in _earlier_folders(start, project):
        if (folder / FOLDER / DATABASE).is_file():
            return Place(folder / FOLDER, project, is_legacy=True)
    return Place(own, project)


def in_home(path: str) -> str:
    """A configured path, with the home folder in place of a leading ``~``."""
    return os.path.expanduser(path)  # noqa: PTH111 - Path.expanduser fails where there is no home folder


def project_file() -> Path | None:
    """The project's ``antiphon.toml``: the nearest one upwards."""
    return next((folder / FILE_NAME for folder in _upwards(_start()) if (folder / FILE_NAME).is_file()), None)


def _project(start: Path) -> Path | None:
    folders = _upwards(start)
    for names in ((FILE_NAME,), _REPOSITORY, ("pyproject.toml",)):
        found = next((folder for folder in folders if any((folder / name).exists() for name in names)), None)
        if found is not None:
            return found
    return folders[0] if folders else None


def _upwards(start: Path) -> list[Path]:
    """The folder and its parents, as far as they can be a project."""
    folders: list[Path] = []
    for folder in (start, *start.parents):
        if folder in (_home(), Path(folder.anchor)):
            break
        folders.append(folder)
    return folders


def _earlier_folders(start: Path, project: Path) -> list[Path]:
    """Where 0.1.0 may have put its folder: in the working folder, if that belongs to the project, or further up."""
    found: list[Path] = []
    for first in (_working_folder(), _script_folder() or start, start):
        if first != project and project in first.parents:
            found += [first, *(folder for folder in first.parents if project in folder.parents)]
    return found


def _home() -> Path | None:
    try:
        return Path.home().resolve()
    except (RuntimeError, OSError):
        return None


def _working_folder() -> Path:
    try:
        return Path.cwd().resolve()
    except OSError:  # it was deleted
        return Path("/")


def _start() -> Path:
    """The folder of the main script; the working folder if there is none, or if it is an installed program."""
    folder = _script_folder()
    if folder is None:
        return _working_folder()
    while (folder / "__init__.py").is_file():  # a module in a package of the project
        folder = folder.parent
    return folder


def _script_folder() -> Path | None:
    script = _main_script()
    if script is None:
        return None
    folder = script.parent
    while not folder.is_dir():  # inside an archive
        folder = folder.parent
    return folder


def _main_script() -> Path | None:
    named: Any = getattr(sys.modules.get("__main__"), "__file__", None)
    if named is None and sys.argv:  # a worker spawned by multiprocessing that has not loaded its main module yet
        named = sys.argv[0] if sys.argv[0].endswith(".py") else None
    if not isinstance(named, str):
        return None
    try:
        script = Path(named).resolve()
    except OSError:
        return None
    if not script.exists() and not any(parent.is_file() for parent in script.parents):
        return None
    return None if any(folder in script.parents for folder in _installed()) else script


def _installed() -> set[Path]:
    """Folders of installed programs: these work for the project in which they are started."""
    paths = sysconfig.get_paths()
    folders = [paths[name] for name in ("scripts", "purelib", "platlib", "stdlib", "platstdlib")]
    folders += [str(Path(sys.executable).parent), str(Path(site.getuserbase()) / "bin"), site.getusersitepackages()]
    folders.append(str(Path(__file__).parent.parent))  # python -m antiphon.cli, wherever this package is
    return {Path(folder).resolve() for folder in folders if folder}


# -- tests ---------------------------------------------------------------------------------------------------------


class Resettable(Protocol):
    """A store whose content can be dropped."""

    def forget_everything(self) -> None: ...


class TestStores:
    """Stores that replace the default one under pytest: each test starts with empty ones."""

    __test__ = False  # else pytest would collect it

    def __init__(self) -> None:
        self.active = False
        """Set by the pytest plugin of this process; child processes of a test decide for themselves."""
        self._stores: weakref.WeakSet[Any] = weakref.WeakSet()

    def add(self, store: Resettable) -> None:
        self._stores.add(store)

    def begin_test(self) -> None:
        for store in list(self._stores):
            store.forget_everything()


test_stores: TestStores = TestStores()
