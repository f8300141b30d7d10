"""What a run that has just been recorded may lack: its calls, or those of an SDK that is used without its adapter."""

from __future__ import annotations

import gc
import sys
from typing import Any

from antiphon._recording.run import Run

SDKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "openai": ("wrap", ("OpenAI", "AsyncOpenAI", "AzureOpenAI", "AsyncAzureOpenAI")),
    "anthropic": ("wrap", ("Anthropic", "AsyncAnthropic")),
    "google.genai": ("adapters.google", ("Client",)),
    "litellm": ("adapters.httpx", ()),
}
"""Modules of SDKs, what records the calls of each, and its client classes."""


def _is_wrapped(client: Any) -> bool:
    """Whether a client of an SDK sends through one of our transports."""
    transport = getattr(getattr(client, "_client", None), "_transport", None)
    return type(transport).__module__.partition(".")[0] == "antiphon"


def unrecorded(run: Run) -> list[str]:
    """Warnings about a run that has just been recorded."""
    calls = [event for event in run.events() if event.type == "call.started"]
    said = []
    if run.opened:
        count = "a run" if len(run.opened) == 1 else f"{len(run.opened)} runs"
        said.append(
            f"the code opened {count} of its own, whose calls cannot be replayed with this one. Replay it separately "
            f"(antiphon replay {run.opened[0]}), or open no run in the code"
        )
    elif not calls:
        said.append(
            "no model call and no tool call was recorded: decorate tools, wrap the client, or use antiphon exec"
        )
    loaded = [module for module in SDKS if module in sys.modules]
    if loaded and not any(event.payload.get("kind") == "llm" for event in calls):
        named = [(module, name) for module in loaded for name in SDKS[module][1] if hasattr(sys.modules[module], name)]
        kinds = {getattr(sys.modules[module], name): module for module, name in named}
        found = [one for one in gc.get_referrers(*kinds) if type(one) in kinds]
        for module in loaded:
            adapter = SDKS[module][0]
            clients = [client for client in found if kinds[type(client)] == module]
            bare = [client for client in clients if not _is_wrapped(client)]
            if clients and not bare:
                continue
            made = f"; {len(bare)} of its clients exist without it" if bare else ""
            said.append(f"{module} is loaded, but none of its calls was recorded: use antiphon.{adapter}{made}")
    return said
