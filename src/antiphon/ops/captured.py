"""What a recording may lack: no call at all, an SDK without its adapter, a client that was made without it."""

from __future__ import annotations

import sys

from antiphon._recording.run import Run
from antiphon.ops.objects import living_kinds

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
    loaded = [module for module in SDKS if module in sys.modules]
    if loaded and not any(event.payload.get("kind") == "llm" for event in calls):
        exist = living_kinds()
        for module in loaded:
            adapter, names = SDKS[module]
            bare = sum(exist[getattr(sys.modules[module], name, None)] for name in names)  # wrapped ones are of ours
            made = f"; {bare} of its clients exist without it" if bare else ""
            said.append(
                f"{module} is loaded, but none of its calls was recorded: use antiphon.adapters.{adapter}{made}"
            )
    return said
