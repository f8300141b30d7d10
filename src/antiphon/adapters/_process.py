"""Runs inside a process started by ``antiphon exec``, which is one run for its whole life, recorded or replayed.

Public methods are wrapped when their modules are imported: the transports of httpx, httpx2 and LiteLLM, and the entry
points of MCP. Methods are replaced on the classes, so clients created earlier are covered too.
"""

from __future__ import annotations

import atexit
import functools
import importlib.abc
import importlib.machinery
import os
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import msgspec
import orjson

from antiphon import _lineage
from antiphon._lineage import Replay
from antiphon._replay.observe import escape_of
from antiphon.adapters._mcp import wrap_stdio
from antiphon.adapters._model import recording_scope
from antiphon.adapters._wire import endpoint_of
from antiphon.adapters.httpx import handle, handle_async
from antiphon.errors import AntiphonError

Report = Callable[[], dict[str, Any]]
"""Returns the current report."""
End = Callable[[BaseException | None], Report]


class Order(msgspec.Struct, frozen=True):
    """The instructions of the command for the process."""

    name: str
    report: str
    """The path of the report that the process writes."""
    config: str | None = None
    replay: str | None = None
    sandbox: bool = True


def begin(text: str) -> None:
    """Open the run, wrap the transports and write the report at exit; called before the program's own code."""
    order = msgspec.json.decode(text, type=Order)
    _hide_ourselves()
    try:
        from antiphon.ops.app import Antiphon

        app = Antiphon(order.config)
        end = _record(app, order) if order.replay is None else _replay(app, order, order.replay)
    except AntiphonError as error:
        said = {"error": error.code, "message": error.message, "hint": error.hint}
        _report(order, lambda: said)
        os._exit(2)
    install()
    failure = _watch_failures()
    pid = os.getpid()

    def finish() -> None:
        if os.getpid() == pid:  # not in forked children
            _report(order, end(failure()))

    atexit.register(finish)


def _hide_ourselves() -> None:
    """Leave child processes alone: they are not recorded, and find their own ``sitecustomize``."""
    folder = str(Path(__file__).resolve().parent.parent / "_hook")
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place and place != folder]
    if places:
        os.environ["PYTHONPATH"] = os.pathsep.join(places)
    else:
        os.environ.pop("PYTHONPATH", None)


def _watch_failures() -> Callable[[], BaseException | None]:
    """Remember the exception that ends the program."""
    seen: list[BaseException] = []
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        seen.append(error)
        before(kind, error, trace)

    sys.excepthook = hook
    return lambda: seen[-1] if seen else None


def _record(app: Any, order: Order) -> End:
    from antiphon.ops.app import using

    run = app.run(order.name, tags={"exec": "true"})
    _report(order, lambda: {"run": run.id, "begun": True})  # this is all that remains if the process is killed
    stack = ExitStack()
    stack.enter_context(using(app))
    run.__enter__()

    def end(error: BaseException | None) -> Report:
        run.__exit__(None if error is None else type(error), error, None)
        stack.close()
        events = run.events()
        started = [event for event in events if event.type == "call.started"]
        ends = [event for event in events if event.type == "call.finished"]
        kinds = [str(event.payload.get("kind")) for event in started]
        found = {
            "run": run.id,
            "status": run.status,
            "modelCalls": kinds.count("llm"),
            "mcpCalls": kinds.count("mcp"),
            "toolCalls": kinds.count("tool"),
            "failed": sum(event.payload.get("outcome") == "error" for event in ends),
            "refusals": sum(event.payload.get("outcome") == "refusal" for event in ends),
            "tokens": sum(_tokens(event.meta) for event in ends),
        }
        return lambda: found

    return end


def _tokens(meta: dict[str, Any]) -> int:
    usage = meta.get("usage") or {}
    return sum(value for value in usage.values() if isinstance(value, int))


def _replay(app: Any, order: Order, wanted: str) -> End:
    from antiphon.ops.app import using
    from antiphon.ops.artifacts import open_recording
    from antiphon.ops.child import cuts_off
    from antiphon.ops.entry import GRACE_S
    from antiphon.ops.execution import complete, watched
    from antiphon.ops.sandbox import hold_process, leave_network, sandboxed

    recording = open_recording(app, wanted)
    result, run = watched(app, recording)
    _report(order, lambda: {"run": recording.manifest.id, "begun": True})
    stack = ExitStack()
    stack.enter_context(using(app))
    stack.enter_context(run.attached())
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # otherwise its import downloads prices
    if order.sandbox and app.store.url.startswith("sqlite"):  # other stores are reached over the network
        leave_network()
    result.escapes = stack.enter_context(sandboxed(order.sandbox, title=recording.manifest.id))

    def end(error: BaseException | None) -> Report:
        origin = run.scope.origin
        origin.returned = True
        origin.wait_for_owed(GRACE_S)
        stack.close()
        cuts = cuts_off()
        found: list[dict[str, Any]] = []
        late: list[dict[str, Any]] = []
        left: dict[str, dict[str, Any]] = {}

        def report() -> dict[str, Any]:
            return {
                "run": recording.manifest.id,
                "answered": recording.answered,
                "divergences": [*found, *late, *left.values()],
                "divergenceCount": result.observer.total + len(late) + len(left),
                "escapes": list(result.escapes),
            }

        def note_late(replay: Replay, what: str) -> None:
            """Report late calls of finalizers and threads; the command reads the report once the process has exited."""
            late.append(escape_of(what, late=True).to_wire(recording.manifest.id))
            _report(order, report)

        def note_left(replay: Replay, lane: str, what: dict[str, Any] | None, certain: bool) -> None:
            left.pop(lane, None)
            if what is not None and (certain or not cuts):
                left[lane] = what
            _report(order, report)

        _lineage.on_late.append(note_late)
        _lineage.on_left = note_left
        complete(result, run)
        found += recording.view([one.to_wire(recording.manifest.id) for one in result.divergences])
        if order.sandbox:
            hold_process(recording.manifest.id)
        return report

    return end


def _report(order: Order, found: Report) -> None:
    """Write the report, and again if other threads changed it meanwhile, because the process may end."""
    part, written = Path(f"{order.report}.{threading.get_ident()}"), None
    while (now := found()) != written:
        part.write_bytes(orjson.dumps(now))
        part.replace(order.report)
        written = now


_MARK = "__antiphon_original__"


def wrap_transports(module: ModuleType) -> None:
    """Record and answer every model call that goes through *module* (httpx or httpx2)."""
    _replace(module.HTTPTransport, "handle_request", lambda send, request: handle(module, request, send))
    _replace(
        module.AsyncHTTPTransport,
        "handle_async_request",
        lambda send, request: handle_async(module, request, send),
    )


def wrap_litellm(module: ModuleType) -> None:
    """The same for the aiohttp-based transport that LiteLLM gives its asynchronous httpx clients."""
    import httpx

    transport = getattr(module, "LiteLLMAiohttpTransport", None)
    if transport is not None:
        _replace(transport, "handle_async_request", lambda send, request: handle_async(httpx, request, send))


def _replace(kind: Any, name: str, around: Callable[[Callable[[Any], Any], Any], Any]) -> None:
    original = getattr(kind, name)
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def wrapped(self: Any, request: Any) -> Any:
        return around(functools.partial(original, self), request)

    setattr(wrapped, _MARK, original)
    setattr(kind, name, wrapped)


def tell_unseen(module: ModuleType) -> None:
    """Warn about model calls that are not recorded because they use a session of *module* (aiohttp)."""
    _notice(module.ClientSession, "post", 0)
    _notice(module.ClientSession, "request", 1)


def _notice(kind: Any, name: str, place: int) -> None:
    """Check a session method whose URL is the argument at *place*."""
    original = getattr(kind, name)

    @functools.wraps(original)
    def noticed(self: Any, *args: Any, **options: Any) -> Any:
        method = "POST" if not place else str(args[0] if args else options.get("method")).upper()
        path = str(args[place] if len(args) > place else options.get("url")).partition("?")[0]
        if endpoint_of(method, path) is not None and recording_scope() is not None:
            message = f"a model call over aiohttp is not recorded: {path}. Configure its SDK to use httpx."
            warnings.warn(f"antiphon: {message}", RuntimeWarning, stacklevel=2)
        return original(self, *args, **options)

    setattr(kind, name, noticed)


WRAPPERS: dict[str, Callable[[ModuleType], None]] = {
    "httpx": wrap_transports,
    "httpx2": wrap_transports,
    "litellm.llms.custom_httpx.aiohttp_transport": wrap_litellm,
    "aiohttp": tell_unseen,
    "mcp.client.stdio": wrap_stdio,
}
"""Wrappers by module, applied after the module has been executed."""


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in WRAPPERS:
            return None
        others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((found for found in others if found is not None and found.loader is not None), None)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_wrap(module: ModuleType) -> None:
                run(module)
                WRAPPERS[name](module)

            spec.loader.exec_module = run_and_wrap  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Wrap modules that are already loaded, and others when they are imported."""
    for name, wrap in WRAPPERS.items():
        if name in sys.modules:
            wrap(sys.modules[name])
    sys.meta_path.insert(0, _Finder())
