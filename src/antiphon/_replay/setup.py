"""The setup of the current code: read off the calls of a replay, so that it works in any project layout (K3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon._replay.recording import Recording
from antiphon.contract._base import given
from antiphon.llm.request import config_of


class Setup:
    """Model, provider, sampling, tools, prompts, graph and code, as one side of a comparison."""

    def __init__(self) -> None:
        self.llm_config: dict[str, Any] | None = None
        self.tools: dict[str, Any] | None = None
        self.prompts: dict[str, Any] | None = None
        self.graph: str | None = None
        self.code: dict[str, Any] | None = None
        self._system: str | None = None

    @property
    def templates(self) -> dict[str, Any] | None:
        """The prompts that the code named, else the first system prompt that it sent."""
        if self.prompts is not None or self._system is None:
            return self.prompts
        return {"system": self._system}

    def saw_request(self, payload: dict[str, Any], meta: Mapping[str, Any] | None = None) -> None:
        """The first model call of a run determines its configuration; each may add tools."""
        request = payload.get("request")
        if not isinstance(request, dict):
            return
        if self.llm_config is None:
            self.llm_config = config_of(request, request.get("provider"))
            if meta and meta.get("endpoint"):
                self.llm_config["endpoint"] = meta["endpoint"]
                self.llm_config["headers"] = dict(meta.get("requestHeaders") or {})
            self._system = _system_text(request)
        tools = {str(tool.get("name")): tool for tool in request.get("tools") or [] if isinstance(tool, dict)}
        self.tools = {**(self.tools or {}), **tools}

    def saw_prompt(self, payload: dict[str, Any]) -> None:
        """A template the code used."""
        self.prompts = {**(self.prompts or {}), str(payload.get("name")): payload.get("template")}

    def merged_with(self, seen: Setup) -> Setup:
        """The setup that the current code showed; parts that it did not show count as unchanged."""
        merged = Setup()
        merged.llm_config = seen.llm_config if seen.llm_config is not None else self.llm_config
        merged.tools = seen.tools if seen.llm_config is not None else self.tools
        merged.prompts = seen.templates if seen.templates is not None else self.templates
        merged.graph = seen.graph if seen.graph is not None else self.graph
        merged.code = seen.code if seen.code is not None else self.code
        return merged

    def with_flags(self, config: dict[str, Any], prompt: str | None) -> Setup:
        """The setup as changed by the command line."""
        flagged = self.merged_with(Setup())
        if config:
            flagged.llm_config = {**(self.llm_config or {}), **config}
        if prompt is not None:
            flagged.prompts = {**(self.templates or {}), "system": prompt}
        return flagged

    def to_wire(self) -> dict[str, Any]:
        """The sections that scores compare."""
        return {
            "llm_config": self.llm_config,
            "tools": self.tools,
            "prompt": self.templates,
            "graph": self.graph,
            "code": self.code,
        }


def _system_text(request: dict[str, Any]) -> str | None:
    found = [
        m.get("content") for m in request.get("messages") or () if isinstance(m, dict) and m.get("role") == "system"
    ]
    texts = [text if isinstance(text, str) else repr(text) for text in found]
    return "\n".join(texts) if texts else None


def recorded_setup(recording: Recording) -> Setup:
    """The setup of the recording."""
    setup = Setup()
    for call in recording.by_name.get("llm", []):
        event = recording.event(call.started)
        setup.saw_request(event.payload, event.meta)
    for prompt in recording.prompts:
        setup.saw_prompt(prompt)
    manifest = recording.manifest
    if setup.llm_config is None and manifest.llm_config:
        setup.llm_config = dict(manifest.llm_config)
    if not setup.tools and manifest.tool_schemas:
        setup.tools = dict(manifest.tool_schemas)
    setup.graph = manifest.graph_digest or None
    setup.code = code_of(manifest.code.source_digest, given(manifest.code.files))
    return setup


def code_of(digest: str | None, files: Mapping[str, str] | None) -> dict[str, Any] | None:
    """The code of a run as scores compare it; files that only one side has are skipped."""
    code = {"source_digest": digest} if digest else {}
    return {**code, **(files or {})} or None
