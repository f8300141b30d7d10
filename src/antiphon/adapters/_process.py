"""What happens inside a process that ``antiphon exec`` started: one run for its whole life, recorded or replayed."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import orjson

from antiphon.adapters import _patch
from antiphon.errors import AntiphonError


class Order(msgspec.Struct, frozen=True):
    """What the command asks of the process."""

    name: str
    report: str
    """Where the process says what came of it."""
    config: str | None = None
    replay: str | None = None
    fence: bool = True


def begin(text: str) -> None:
    """Called before the program's own code: open the run, wrap the transports, write the report at exit."""
    order = msgspec.json.decode(text, type=Order)
    _hide_ourselves()
    try:
        from antiphon.ops.app import Antiphon

        app = Antiphon(order.config)
        end = _record(app, order) if order.replay is None else _replay(app, order, order.replay)
    except AntiphonError as error:
        _report(order, {"error": error.code, "message": error.message, "hint": error.hint})
        os._exit(2)
    _patch.install()
    failure = _watch_failures()
    pid = os.getpid()

    def finish() -> None:
        if os.getpid() == pid:  # a fork of the program is not the program
            _report(order, end(failure()))

    atexit.register(finish)


def _hide_ourselves() -> None:
    """Processes the program starts are its own affair: they are not recorded, and find their own ``sitecustomize``."""
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


def _record(app: Any, order: Order) -> Callable[[BaseException | None], dict[str, Any]]:
    from antiphon.ops.app import using

    run = app.run(order.name, tags={"exec": "true"})
    _report(order, {"run": run.id, "begun": True})  # all there is if the process is killed
    stack = ExitStack()
    stack.enter_context(using(app))
    run.__enter__()

    def end(error: BaseException | None) -> dict[str, Any]:
        run.__exit__(None if error is None else type(error), error, None)
        stack.close()
        events = run.events()
        started = [event for event in events if event.type == "call.started"]
        ends = [event for event in events if event.type == "call.finished"]
        kinds = [str(event.payload.get("kind")) for event in started]
        return {
            "run": run.id,
            "status": run.status,
            "modelCalls": kinds.count("llm"),
            "mcpCalls": kinds.count("mcp"),
            "toolCalls": kinds.count("tool"),
            "failed": sum(event.payload.get("outcome") == "error" for event in ends),
            "refusals": sum(event.payload.get("outcome") == "refusal" for event in ends),
            "tokens": sum(_tokens(event.meta) for event in ends),
        }

    return end


def _tokens(meta: dict[str, Any]) -> int:
    usage = meta.get("usage") or {}
    return sum(value for value in usage.values() if isinstance(value, int))


def _replay(app: Any, order: Order, wanted: str) -> Callable[[BaseException | None], dict[str, Any]]:
    from antiphon.ops.app import using
    from antiphon.ops.fence import fence_process, leave_network, open_process
    from antiphon.ops.replay import open_recording
    from antiphon.ops.strict import watched

    recording = open_recording(app, wanted)
    result, run = watched(app, recording)
    _report(order, {"run": recording.manifest.id, "begun": True})
    stack = ExitStack()
    stack.enter_context(using(app))
    stack.enter_context(run.attached())
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else its import asks the network for prices
    if order.fence and app.store.url.startswith("sqlite"):  # other stores are reached over the network
        leave_network()
    escapes = fence_process() if order.fence else []

    def end(error: BaseException | None) -> dict[str, Any]:
        open_process()
        stack.close()
        result.observer.finish()
        return {
            "run": recording.manifest.id,
            "answered": result.invoker.hits,
            "divergences": [found.to_wire(recording.manifest.id) for found in result.divergences],
            "divergenceCount": result.observer.total,
            "escapes": escapes,
        }

    return end


def _report(order: Order, found: dict[str, Any]) -> None:
    Path(order.report).write_bytes(orjson.dumps(found))
