"""What the current code asks for: read off the calls a replay makes, so that it works in any project layout (K3)."""

from __future__ import annotations

from typing import Any

from antiphon._replay.tape import Tape

_SCORED = ("temperature", "seed")


class Setup:
    """Model, provider, sampling, tools and prompts as one side of a comparison."""

    def __init__(self) -> None:
        self.llm_config: dict[str, Any] | None = None
        self.tools: dict[str, Any] | None = None
        self.prompts: dict[str, Any] | None = None

    def saw_request(self, payload: dict[str, Any]) -> None:
        """The first model call of a run tells its configuration; every one may add tools."""
        request = payload.get("request")
        if not isinstance(request, dict):
            return
        if self.llm_config is None:
            self.llm_config = {"model_name": request.get("model"), "provider": request.get("provider")}
            for name in _SCORED:
                if request.get(name) is not None:
                    self.llm_config[name] = request[name]
        tools = {str(tool.get("name")): tool for tool in request.get("tools") or [] if isinstance(tool, dict)}
        self.tools = {**(self.tools or {}), **tools}

    def saw_prompt(self, payload: dict[str, Any]) -> None:
        self.prompts = {**(self.prompts or {}), str(payload.get("name")): payload.get("template")}

    def to_wire(self) -> dict[str, Any]:
        return {"llm_config": self.llm_config, "tools": self.tools, "prompt": self.prompts}


def recorded_setup(tape: Tape) -> Setup:
    """The setup of the recording."""
    setup = Setup()
    for call in tape.by_name.get("llm", []):
        setup.saw_request(tape.event(call.started).payload)
    for prompt in tape.prompts:
        setup.saw_prompt(prompt)
    if setup.llm_config is None and tape.manifest.llm_config:
        setup.llm_config = dict(tape.manifest.llm_config)
    if not setup.tools and tape.manifest.tool_schemas:
        setup.tools = dict(tape.manifest.tool_schemas)
    return setup
