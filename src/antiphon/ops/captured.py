"""What a recording may lack: no call at all, an SDK without its adapter, a client that was made without it."""

from __future__ import annotations

import sys
from typing import Any

from antiphon._recording.run import Run

SDKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "openai": ("sdk", ("OpenAI", "AsyncOpenAI", "AzureOpenAI", "AsyncAzureOpenAI")),
    "anthropic": ("sdk", ("Anthropic", "AsyncAnthropic")),
    "google.genai": ("google", ("Client",)),
    "litellm": ("httpx", ()),
}
"""Modules of SDKs, the adapter of each, and the classes of its clients."""


def missing(run: Run) -> list[str]:
    """Warnings about a run that has just been recorded."""
    calls = [event for event in run.events() if event.type == "call.started"]
    said = []
    if not calls:
        said.append(
            "no model call and no tool call was recorded: decorate tools, wrap the client, or use antiphon exec"
        )
    if not any(event.payload.get("kind") == "llm" for event in calls):
        for module, (adapter, _) in SDKS.items():
            if module in sys.modules:
                bare = _clients(module)
                made = f"; {bare} of its clients exist without it" if bare else ""
                said.append(
                    f"{module} is loaded, but none of its calls was recorded: use antiphon.adapters.{adapter}{made}"
                )
    return said


def _clients(module: str) -> int:
    """How many clients of an SDK exist in this process; wrapped ones are of a class of ours, or say so."""
    import gc

    kinds = tuple(getattr(sys.modules[module], name, None) for name in SDKS[module][1])
    known = tuple(kind for kind in kinds if isinstance(kind, type))
    return sum(_is(found, known) for found in gc.get_objects()) if known else 0


def _is(found: Any, kinds: tuple[type, ...]) -> bool:
    return type(found) in kinds
