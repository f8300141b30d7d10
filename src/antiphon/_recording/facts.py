"""What the head of an artifact says about a run, gathered in one pass over its events (K1)."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import orjson

from antiphon.contract.events import Event, RunManifest

_MOST_ERRORS = 1_000


def iso(ms: int | None) -> str | None:
    """A time as it stands in an artifact."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")


def digest(value: Any) -> str:
    """Of JSON data, whatever the order of its keys."""
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


class Facts:
    """Inputs, outputs, model, tools, tokens and errors of a run; holds no more than the head needs."""

    def __init__(self, manifest: RunManifest) -> None:
        self.inputs: list[Any] = []
        self.outputs: list[dict[str, Any]] = []
        self.prompt: dict[str, Any] | None = None
        self.templates: set[str] = set()
        self.usage = {"input_tokens": 0, "output_tokens": 0}
        self.errors: list[dict[str, Any]] = []
        self.llm_config: dict[str, Any] = dict(manifest.llm_config)
        self.tools: dict[str, Any] = dict(manifest.tool_schemas)
        self.error: Any = None
        self._interactions = False

    def see(self, event: Event) -> None:
        """Take note of the next event."""
        payload = event.payload
        match event.type:
            case "run.started" if "input" in payload and not self.inputs:
                self.inputs.append({"input": payload["input"]})
            case "interaction.started":
                if not self._interactions:  # they are the inputs, then; what started the run is not one more
                    self.inputs.clear()
                    self._interactions = True
                self.inputs.append({"input": payload.get("input")})
            case "interaction.finished":
                self.outputs.append({"input": self._asked(), "output": payload.get("output")})
            case "prompt":
                self.prompt = self.prompt or payload
                self.templates.add(digest([payload.get("name"), payload.get("template")]))
            case "run.finished":
                self.error = payload.get("error")
                if not self._interactions and "output" in payload:
                    self.outputs = [{"input": self.inputs[0]["input"] if self.inputs else None, **_output(payload)}]
            case "call.started" if payload.get("kind") == "llm":
                self._request(payload.get("request"))
            case "call.finished":
                self._finished(event)

    def _asked(self) -> Any:
        place = len(self.outputs)
        return self.inputs[place]["input"] if place < len(self.inputs) else None

    def _finished(self, event: Event) -> None:
        usage = event.meta.get("usage")
        if isinstance(usage, dict):
            self.usage["input_tokens"] += _count(usage.get("inputTokens"))
            self.usage["output_tokens"] += _count(usage.get("outputTokens"))
        if event.payload.get("outcome") == "error" and len(self.errors) < _MOST_ERRORS:
            error = event.payload.get("error")
            self.errors.append({"event": event.seq, **(error if isinstance(error, dict) else {})})

    def _request(self, request: Any) -> None:
        if not isinstance(request, dict):
            return
        if "model_name" not in self.llm_config:
            self.llm_config |= {"model_name": request.get("model"), "provider": request.get("provider")}
            self.llm_config |= {
                name: request[name] for name in ("temperature", "seed") if request.get(name) is not None
            }
        tools = request.get("tools")
        for tool in tools if isinstance(tools, list) else []:
            if isinstance(tool, dict) and "name" in tool:
                self.tools[str(tool["name"])] = tool

    def resolved_prompt(self) -> dict[str, Any] | None:
        """The first prompt: template, variables and text, with their digests."""
        if self.prompt is None:
            return None
        template, text = str(self.prompt.get("template") or ""), str(self.prompt.get("text") or "")
        variables = self.prompt.get("variables") or {}
        return {
            "template": template,
            "template_hash": hashlib.sha256(template.encode()).hexdigest(),
            "variables": variables,
            "variables_hash": digest(variables),
            "final_text": text,
            "final_text_hash": hashlib.sha256(text.encode()).hexdigest(),
        }

    def graph_version(self, manifest: RunManifest) -> dict[str, str]:
        """Digests that change when tools or prompts do, and not with what is asked."""
        return {
            "graph_hash": manifest.graph_digest or digest([sorted(self.tools), sorted(self.templates)]),
            "tool_schemas_hash": digest(self.tools),
        }


def _output(payload: dict[str, Any]) -> dict[str, Any]:
    return {"output": payload["output"]}


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
