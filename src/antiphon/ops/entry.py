"""Finds the function that ``file.py:function`` or ``module:function`` names, and calls it."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from antiphon._scope import RunScope
from antiphon.errors import InvalidInput, NotFound, class_name, class_named

AGENT_MARK = "__antiphon_agent__"
_LOOK_EVERY_S = 1.0
GRACE_S = 1.0
"""So long the command line and tests wait for work that the code has started and does not wait for."""


def load_entry(target: str) -> Callable[..., Any]:
    """The entry point; a clear error where it cannot be found or imported."""
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
    """Whether a recording from elsewhere may have *function* run: marked as an agent, or source of this folder.

    A recording is data. It must not be able to name ``os:system``, or anything else that merely can be imported.
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
        return running  # a script that replays its own agent must not be run a second time for it
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
        if isinstance(error, (Exception, SystemExit)):
            raise NotFound(
                f"{path} cannot be imported: {type(error).__name__}: {error}.", code="entry_missing"
            ) from error
        raise
    return module


def _module(name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise NotFound(
            f"The module {name} cannot be imported: {type(error).__name__}: {error}.", code="entry_missing"
        ) from error


# -- calling ---------------------------------------------------------------------------------------------------------


def is_arguments(given: Any) -> bool:
    """Whether the input says ``args`` and ``kwargs`` itself."""
    return isinstance(given, dict) and bool(given) and set(given) <= {"args", "kwargs"}


def arguments_of(given: Any) -> tuple[list[Any], dict[str, Any]]:
    """The input as call arguments."""
    if is_arguments(given):
        return list(given.get("args", [])), dict(given.get("kwargs", {}))
    return ([] if given is None else [given]), {}


def written_input(given: Any) -> tuple[Any, dict[str, str] | None]:
    """An input as it is recorded, and the classes of the arguments that are no JSON; ``None`` if all of it is JSON."""
    if not is_arguments(given):
        return given, None
    from antiphon._gateway import codec

    args, kwargs = arguments_of(given)
    types: dict[str, str] = {}

    def written(place: str, value: Any) -> Any:
        try:
            form = orjson.loads(codec.encode(value))
            if not _is_json(value):
                kind = type(value)
                types[place] = "" if kind.__module__ == "builtins" else class_name(kind)
            return form
        except (codec.NotSerialisable, RecursionError):  # recorded as far as it goes
            return value

    form: dict[str, Any] = {}
    if "args" in given:
        form["args"] = [written(str(place), value) for place, value in enumerate(args)]
    if "kwargs" in given:
        form["kwargs"] = {name: written(str(name), value) for name, value in kwargs.items()}
    return (given, None) if not types and form == given else (form, types)


def _is_json(value: Any) -> bool:
    kind = type(value)
    if kind is dict:
        return all(type(name) is str and _is_json(item) for name, item in value.items())
    return all(map(_is_json, value)) if kind is list else value is None or kind in (str, int, float, bool)


def arguments_again(
    function: Callable[..., Any], given: Any, types: Mapping[str, str] | None
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a recorded input as the code was given them: see :func:`written_input`.

    An object is made by the annotation of its parameter, or by its class where this process has it.
    """
    args, kwargs = arguments_of(given)
    if types is None:
        return args, kwargs
    from antiphon._gateway import codec

    try:
        hints = typing.get_type_hints(function)
        names = list(inspect.signature(function).parameters)
    except Exception:  # code that does not tell, annotations that name what is not there
        hints, names = {}, []

    def made(place: str, name: str, value: Any) -> Any:
        decode: Callable[[bytes], Any] = codec.plain
        if place in types:
            hinted = codec.decoder(hints.get(name), name)
            decode = codec.decoder(class_named(types[place]), name) if hinted is codec.plain else hinted
        return codec.as_declared(decode, value)

    again = [made(str(at), names[at] if at < len(names) else "", value) for at, value in enumerate(args)]
    return again, {name: made(name, name, value) for name, value in kwargs.items()}


def by_name(function: Callable[..., Any], given: Any) -> dict[str, Any]:
    """The positional arguments of an input under the names of their parameters, as far as *function* names them."""
    args, _ = arguments_of(given)
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # code that does not tell
        return {}
    return dict(zip(parameters, args, strict=False))


def check_arguments(target: str, function: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> None:
    """Input that does not fit is a mistake of the caller, not a run of the agent that failed."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # code that does not tell
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
    """Call an entry point, and wait for it if it is asynchronous; its own calls stand in the run's root lane.

    *stuck* is asked every second whether there is any sense in waiting longer. *returned* is told what the code
    returned or raised; work that it has started and that goes on gets a second to end.
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
        except BaseException as error:
            await origin.settle(end(None, error))
            if not isinstance(error, (SystemExit, KeyboardInterrupt)):
                raise
            left.append(error)  # as the task's own exception it would stop the loop, and be logged as never retrieved
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
    finally:
        origin.wait(GRACE_S)
    if left:
        raise left[0]
    return result
