"""Finds the function that ``file.py:function`` or ``module:function`` names, and calls it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from antiphon._scope import RunScope
from antiphon.errors import ConfigError, InvalidInput, NotFound

AGENT_MARK = "__antiphon_agent__"
_LOOK_EVERY_S = 1.0
GRACE_S = 1.0
"""How long the command line and tests wait for work that the code has started and does not wait for itself."""


def load_entry(target: str) -> Callable[..., Any]:
    """The entry point; a clear error if it cannot be found or imported."""
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise InvalidInput(
            f"{target!r} does not name an entry point.", hint="Write file.py:function or module:function."
        )
    module = load_module(place)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            known = ", ".join(sorted(n for n, v in vars(module).items() if callable(v) and not n.startswith("_"))[:10])
            raise NotFound(
                f"{place} has no {name!r}.", hint=f"It has: {known or 'no functions'}.", code="entry_missing"
            )
    if not callable(found):
        raise InvalidInput(f"{target} is not callable.")
    return found  # type: ignore[no-any-return]


def name_of(function: Callable[..., Any]) -> str:
    """What runs of an entry point are called."""
    return str(getattr(function, AGENT_MARK, {}).get("name") or getattr(function, "__name__", "agent"))


def is_agent_code(function: Callable[..., Any]) -> bool:
    """Whether an imported recording may run *function*: marked as an agent, or source in this folder.

    A recording is data. It must not be able to name ``os:system`` or anything else that merely happens to be
    importable.
    """
    if hasattr(function, AGENT_MARK):
        return True
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return False
    file = Path(code.co_filename).resolve()
    return file.is_relative_to(Path.cwd().resolve()) and "site-packages" not in file.parts


def load_module(place: str) -> Any:
    """The module that a file (``file.py``) or a dotted name stands for."""
    return _script(Path(place)) if place.endswith(".py") else _module(place)


def _script(path: Path) -> Any:
    full = path.resolve()
    if not full.is_file():
        raise NotFound(f"There is no file {path}.", hint="Give the path from the working folder.", code="entry_missing")
    running = sys.modules.get("__main__")
    if running is not None and Path(getattr(running, "__file__", None) or "").resolve() == full:
        return running  # a script that replays its own agent must not be executed again
    name = f"antiphon_script_{hashlib.sha256(str(full).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    folder = str(full.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(name, full)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__antiphon_script__"] = True
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, (Exception, SystemExit)) and not isinstance(error, ConfigError):
            raise _not_imported(str(path), error) from error
        raise
    return module


def _module(name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise _not_imported(f"The module {name}", error) from error


def _not_imported(what: str, error: BaseException) -> NotFound:
    said = f"{type(error).__name__}: {error}".removesuffix(".")
    return NotFound(f"{what} cannot be imported: {said}.", code="entry_missing")


# -- calling ---------------------------------------------------------------------------------------------------------


def check_arguments(target: str, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    """Input that does not fit is the caller's mistake, not a failed run of the agent."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # code without a signature
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidInput(
            f"{target} does not accept this input: {error}.",
            hint="Give --input: one value, or an object with args and kwargs for several.",
        ) from None


def call_entry(
    scope: RunScope,
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    stuck: Callable[[], Exception | None] | None = None,
    returned: Callable[[Any, BaseException | None], None] = lambda value, error: None,
) -> Any:
    """Call an entry point and await it if it is asynchronous; its own calls belong to the run's root lane.

    *stuck* is asked every second whether waiting is futile. *returned* receives what the code returned or raised; work
    that it has left running gets a second to finish.
    """
    origin = scope.origin

    def end(value: Any, error: BaseException | None) -> float:
        origin.returned = True
        returned(value, error)
        return GRACE_S if error is None or isinstance(error, (Exception, SystemExit)) else 0

    try:
        value = function(*args, **kwargs)
    except BaseException as error:
        origin.wait(end(None, error))
        raise
    if not inspect.isawaitable(value):
        origin.wait(end(value, None))
        return value
    import asyncio

    left: list[BaseException] = []

    async def finish() -> Any:
        scope.adopt()
        try:
            found = await value
        except asyncio.CancelledError:  # perhaps another task ended the loop: the exception that leaves it says so
            raise
        except BaseException as error:
            await origin.settle(end(None, error))
            if not isinstance(error, (SystemExit, KeyboardInterrupt)):
                raise
            left.append(error)  # as the task's own exception it would stop the loop and be logged as never retrieved
            return None
        await origin.settle(end(found, None))
        return found

    async def watch() -> Any:
        task = asyncio.create_task(finish())
        while not (await asyncio.wait((task,), timeout=_LOOK_EVERY_S))[0]:
            error = None if stuck is None else stuck()
            if error is not None:
                task.cancel()
                raise error
        return task.result()

    try:
        result = asyncio.run(finish() if stuck is None else watch())
    except BaseException as error:
        if not origin.returned:
            end(None, error)
        raise
    finally:
        origin.wait(GRACE_S)
    if left:
        raise left[0]
    return result
