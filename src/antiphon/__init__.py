"""Reliable and replayable calls for AI agents.

The public API. Every name below is imported on first use, so that ``import antiphon`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module

from antiphon._version import __version__

TYPE_CHECKING = False  # type checkers recognise this name; importing typing would cost more than everything else
if TYPE_CHECKING:
    from typing import Any

    from antiphon._gateway.context import CallContext
    from antiphon._gateway.point import effect
    from antiphon._scope import branch, submit, wrap_context
    from antiphon.adapters.httpx import wrap
    from antiphon.canonical import canonical_json
    from antiphon.contract.result import ToolDenied
    from antiphon.contract.spec import DidNotHappen, Happened, ToolSpec
    from antiphon.decide.turn import ReplayControl
    from antiphon.errors import AntiphonError
    from antiphon.keys import idempotency_key
    from antiphon.llm.key import llm_cache_key
    from antiphon.llm.request import canonical_request
    from antiphon.ops.app import Antiphon, agent, configure, current_run, record, run
    from antiphon.ops.gateways import AsyncGateway, Gateway
    from antiphon.ops.matrix import matrix
    from antiphon.ops.replay import replay

_NAMES = {
    "_gateway.context": "CallContext",
    "_gateway.point": "effect",
    "_scope": "branch submit wrap_context",
    "adapters.httpx": "wrap",
    "canonical": "canonical_json",
    "contract.result": "ToolDenied",
    "contract.spec": "DidNotHappen Happened ToolSpec",
    "decide.turn": "ReplayControl",
    "errors": "AntiphonError",
    "keys": "idempotency_key",
    "llm.key": "llm_cache_key",
    "llm.request": "canonical_request",
    "ops.app": "Antiphon agent configure current_run record run",
    "ops.gateways": "AsyncGateway Gateway",
    "ops.matrix": "matrix",
    "ops.replay": "replay",
}
_HOMES = {name: f"antiphon.{home}" for home, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Antiphon",
    "AntiphonError",
    "AsyncGateway",
    "CallContext",
    "DidNotHappen",
    "Gateway",
    "Happened",
    "ReplayControl",
    "ToolDenied",
    "ToolSpec",
    "__version__",
    "agent",
    "branch",
    "canonical_json",
    "canonical_request",
    "configure",
    "current_run",
    "effect",
    "idempotency_key",
    "llm_cache_key",
    "matrix",
    "record",
    "replay",
    "run",
    "submit",
    "wrap",
    "wrap_context",
]


def __getattr__(name: str) -> Any:
    """Import the requested name and cache it."""
    home = _HOMES.get(name)
    if name == "stores":
        return import_module("antiphon.stores")
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
