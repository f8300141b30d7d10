"""A canonical request in the making, with a reference from each part back to the provider's body."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from antiphon.errors import ContractError
from antiphon.llm._blocks import Piece
from antiphon.llm._read import Fields
from antiphon.llm.key import tool_order

TRANSPORT: Final = (
    "stream",
    "stream_options",
    "metadata",
    "user",
    "store",
    "background",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "safety_identifier",
    "request_id",
    "requestId",
    "traceparent",
    "tracestate",
    "timeout",
    "api_key",
    "extra_headers",
    "extra_query",
)
"""Fields that cannot change what a model answers: they are left out of every key."""

_LAST_STEP: Final = re.compile(r'(?:\.[^.\[\]"]+|\[\d+\]|\["(?:[^"\\]|\\.)*"\])\Z')
_SNAKE: Final = re.compile("_([a-z])")
FIELD_ORDER: Final = (
    "temperature",
    "responseSchema",
    "topP",
    "topK",
    "maxOutputTokens",
    "seed",
    "stop",
    "toolChoice",
    "responseFormat",
    "safetySettings",
)


class MappedRequest(NamedTuple):
    """A canonical request, and how to speak of its parts in the provider's own terms."""

    request: dict[str, Any]
    refs: Mapping[str, str]
    """Canonical path -> path in the provider's body."""
    ignored: tuple[str, ...]
    """Paths of the body that do not influence any key."""

    def origin(self, path: str) -> str:
        """Where the value at a canonical *path* stands in the provider's body; of its nearest known ancestor if new.

        >>> from antiphon.llm.request import canonical_request_with_refs
        >>> body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
        >>> canonical_request_with_refs(body, provider="openai-chat").origin("$.maxOutputTokens")
        '$.max_tokens'
        """
        known = path
        while known not in self.refs:
            step = _LAST_STEP.search(known)
            if step is None:
                return "$"
            known = known[: step.start()]
        below = path[len(known) :]
        return self.refs[known] + (below if known.endswith(_VERBATIM) or "providerOptions[" in known else "")


_VERBATIM: Final = (".arguments", ".block", ".parameters", ".hosted", ".responseSchema", ".value")


class Draft:
    """Collects messages, tools and settings of one request."""

    def __init__(self, body: Any, *, vendor: str, model: str | None = None, camel: bool = False) -> None:
        self.body = Fields(body, "$")
        self.vendor = vendor
        self._camel = camel
        self._messages: list[dict[str, Any]] = []
        self._tools: list[tuple[dict[str, Any], str, str]] = []
        self._fields: dict[str, Any] = {}
        self._options: dict[str, Any] = {}
        self._refs: dict[str, str] = {}
        self._developer: list[int] = []
        self._calls: dict[str, str] = {}
        self._ignored: list[str] = self.body.drop(*TRANSPORT)
        self._model = model
        if model is None:
            self._refs["$.model"] = "$.model"

    def ignore(self, paths: Sequence[str]) -> None:
        """Note fields that influence nothing."""
        self._ignored += paths

    def say(self, role: str, pieces: Sequence[Piece], path: str, **fields: Any) -> None:
        """Append a message; a single plain text block becomes a string."""
        place = f"$.messages[{len(self._messages)}]"
        message: dict[str, Any] = {"role": role, "content": ""}
        self._refs[place] = path
        if len(pieces) == 1 and len(pieces[0].block) == 2 and pieces[0].block["type"] == "text":
            message["content"] = pieces[0].block["text"]
            self._refs[f"{place}.content"] = pieces[0].path
        elif pieces:
            message["content"] = [
                self._placed(piece, f"{place}.content[{index}]") for index, piece in enumerate(pieces)
            ]
        if fields:
            if role == "tool" and self._calls.get(fields.get("toolCallId") or "") == fields.get("name"):
                fields.pop("name", None)  # the call it answers has said it; not every vendor repeats it
            message.update((name, value) for name, value in fields.items() if value)
        self._messages.append(message)

    def _placed(self, piece: Piece, place: str) -> dict[str, Any]:
        self._refs[place] = piece.path
        for suffix, inner in piece.inner:
            self._refs[place + suffix] = inner
        if piece.block["type"] == "toolCall" and "id" in piece.block:
            self._calls[piece.block["id"]] = piece.block["name"]
        return piece.block

    def say_as_developer(self, pieces: Sequence[Piece], path: str, **fields: Any) -> None:
        """Append a developer's message: a system message for the reader; that a model may tell them apart is kept."""
        self._developer.append(len(self._messages))
        self.say("system", pieces, path, **fields)

    def tool(
        self,
        name: str,
        path: str,
        *,
        parameters: dict[str, Any] | None = None,
        parameters_at: str = "",
        hosted: dict[str, Any] | None = None,
        extra: dict[str, Any] | None = None,
        **fields: Any,
    ) -> None:
        """Add a tool; one without parameters takes none."""
        tool: dict[str, Any] = {"name": name, "parameters": parameters or {}}
        tool.update((key, value) for key, value in fields.items() if value is not None)
        if hosted is not None:
            tool["hosted"] = hosted
        if extra:
            tool["vendorFields"] = extra
        self._tools.append((tool, path, parameters_at))

    def set(self, name: str, value: Any, path: str) -> None:
        """Set a field unless it is absent."""
        if value is not None:
            self._fields[name] = value
            self._refs[f"$.{name}"] = path

    def number(self, name: str, source: Fields, *spellings: str) -> None:
        """Set a number of the request from any of its spellings."""
        path = source.at(*spellings)
        self.set(name, source.number(*spellings), path)

    def integer(self, name: str, source: Fields, *spellings: str) -> None:
        """Set an integer of the request from any of its spellings."""
        path = source.at(*spellings)
        self.set(name, source.integer(*spellings), path)

    def option(self, name: str, value: Any, path: str) -> None:
        """Keep something only this vendor knows, so that no key ever ignores it."""
        if self._camel:  # a vendor that takes both spellings means one option by them
            name = _SNAKE.sub(lambda found: found[1].upper(), name)
        key = f"vendor.{self.vendor}.{name}"
        self._options[key] = value
        self._refs[f"$.providerOptions[{json.dumps(key)}]"] = path

    def options(self, source: Fields, prefix: str = "") -> None:
        """Keep all fields of *source* that nobody has taken."""
        for name, value in source.rest().items():
            self.option(prefix + name, value, f"{source.path}.{name}")

    def choice(self, mode: str, path: str, *, names: list[str] | None = None, value: Any = None) -> None:
        """Set the tool choice; the second recipe has no field for it, so it is an option as well."""
        choice: dict[str, Any] = {"mode": mode}
        if names is not None:
            choice["names"] = names
        if value is not None:
            choice["value"] = value
        self.set("toolChoice", choice, path)
        self.option("toolChoice", choice, path)

    def answer_form(self, form: str, path: str, *, schema: dict[str, Any] | None = None, **fields: Any) -> None:
        """Set the form of the answer: for one recipe its schema alone, for the other the whole."""
        response_format: dict[str, Any] = {"type": form}
        if schema is not None:
            response_format["schema"] = schema
            self.set("responseSchema", schema, f"{path}.schema")
        response_format.update((key, value) for key, value in fields.items() if value)
        self.set("responseFormat", response_format, path)

    def done(self) -> MappedRequest:
        """The finished request; what is left of the body becomes options."""
        model = self._model if self._model is not None else self.body.text("model")
        if not model:
            hint = "Pass model=… where the body does not name it."
            raise ContractError("$.model must be a non-empty string.", path="$.model", hint=hint)
        self.body.drop("model")
        self.options(self.body)
        if self._developer:
            self.option("developerMessages", self._developer, "$")
        self._tools.sort(key=lambda entry: tool_order(entry[0]))
        for index, (tool, path, parameters_at) in enumerate(self._tools):
            self._refs[f"$.tools[{index}]"] = path
            if parameters_at:
                self._refs[f"$.tools[{index}].parameters"] = parameters_at
            if "hosted" in tool:
                self._refs[f"$.tools[{index}].hosted"] = path
        request: dict[str, Any] = {
            "model": model,
            "provider": self.vendor,
            "messages": self._messages,
            "tools": [tool for tool, _, _ in self._tools],
        }
        request.update((name, self._fields[name]) for name in FIELD_ORDER if name in self._fields)
        if self._options:
            request["providerOptions"] = self._options
        return MappedRequest(request, self._refs, tuple(self._ignored))
