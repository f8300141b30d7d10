"""Keys of LLM requests: the two recipes (L1, D24) and the variant digest (D14)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from antiphon.canonical import canonical_digest, canonical_json, parse_json
from antiphon.errors import InvalidInput

__all__ = ["Conversation", "Recipe", "llm_cache_key", "llm_cache_key_parts", "variant_digest", "variant_parts"]

Recipe = Literal["rfc0041", "semantic-request-v2"]
RECIPES: Final = ("rfc0041", "semantic-request-v2")
V2_STAMP: Final = "openwop-semantic-request-v2"

_V2_NUMBERS: Final = ("temperature", "topP", "topK", "maxOutputTokens", "seed")
_V2_OBJECTS: Final = ("responseFormat", "safetySettings")

VARIANT_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "topP": ("topP", "top_p"),
    "topK": ("topK", "top_k"),
    "maxOutputTokens": ("maxOutputTokens", "max_output_tokens", "max_completion_tokens", "max_tokens"),
    "seed": ("seed",),
    "stop": ("stop", "stop_sequences"),
    "toolChoice": ("toolChoice", "tool_choice"),
    "responseFormat": ("responseFormat", "response_format"),
    "safetySettings": ("safetySettings", "safety_settings"),
    "providerOptions": ("providerOptions",),
    "presencePenalty": ("presence_penalty",),
    "frequencyPenalty": ("frequency_penalty",),
    "logitBias": ("logit_bias",),
    "candidateCount": ("n",),
    "reasoning": ("reasoning",),
    "reasoningEffort": ("reasoning_effort",),
    "thinking": ("thinking",),
    "parallelToolCalls": ("parallel_tool_calls",),
}
"""What shapes an answer besides the six fields of the key: name in the variant -> spellings in a request."""
_NO_VARIANT: Final = canonical_digest({})
_VARIANT_SPELLINGS: Final = frozenset(spelling for spellings in VARIANT_FIELDS.values() for spelling in spellings)


def llm_cache_key(request: Mapping[str, Any], *, recipe: Recipe = "rfc0041") -> str:
    """The key of an LLM request (L1): SHA-256 of the recipe's fields, whatever else the request carries.

    >>> one = {"model": "m", "provider": "p", "messages": [{"role": "user", "content": "hi"}]}
    >>> llm_cache_key(one) == llm_cache_key({**one, "tools": [], "temperature": None, "requestId": "r-17"})
    True
    """
    return canonical_digest(llm_cache_key_parts(request, recipe=recipe))


def llm_cache_key_parts(request: Mapping[str, Any], *, recipe: Recipe = "rfc0041") -> dict[str, Any]:
    """The object whose canonical JSON :func:`llm_cache_key` hashes."""
    _check_object(request)
    messages = request.get("messages")
    for message in messages if isinstance(messages, (list, tuple)) else (None,):
        if not isinstance(message, dict):
            raise InvalidInput("'messages' is a list of objects.", path="$.messages")
    model, provider = request.get("model"), request.get("provider")
    for name, value in (("model", model), ("provider", provider)):
        if not isinstance(value, str) or not value:
            raise InvalidInput(f"'{name}' is required: a non-empty string.", path=f"$.{name}")
    temperature = _number(request, "temperature") if "temperature" in request else None
    tools = _sorted_tools(request) if "tools" in request else []
    if recipe == "rfc0041":
        schema = _typed(request, "responseSchema", dict, "an object") if "responseSchema" in request else None
        return {
            "model": model,
            "provider": provider,
            "messages": messages,
            "tools": tools,
            "temperature": temperature,
            "responseSchema": schema,
        }
    if recipe != "semantic-request-v2":
        raise InvalidInput(f"The recipe is one of {', '.join(RECIPES)}, not {recipe!r}.", path="recipe")
    inner: dict[str, Any] = {"messages": messages}
    if tools:
        inner["tools"] = tools
    for name in _V2_NUMBERS:
        if (number := _number(request, name)) is not None:
            inner[name] = number
    if (stop := _typed(request, "stop", (list, tuple), "a list")) is not None:
        inner["stop"] = stop
    for name in _V2_OBJECTS:
        if (value := _typed(request, name, dict, "an object")) is not None:
            inner[name] = value
    parts = {"recipe": V2_STAMP, "provider": provider, "model": model, "request": inner}
    if (options := _typed(request, "providerOptions", dict, "an object")) is not None:
        parts["providerOptions"] = options
    return parts


def variant_digest(request: Mapping[str, Any]) -> str:
    """Digest of what else shapes the answer (D14); a live cache hit needs an equal key and an equal variant."""
    parts = variant_parts(request)
    return canonical_digest(parts) if parts else _NO_VARIANT


def variant_parts(request: Mapping[str, Any]) -> dict[str, Any]:
    """The fields :func:`variant_digest` hashes, under one spelling; null counts as absent."""
    _check_object(request)
    parts: dict[str, Any] = {}
    if _VARIANT_SPELLINGS.isdisjoint(request):
        return parts
    for name, spellings in VARIANT_FIELDS.items():
        given = [request[spelling] for spelling in spellings if request.get(spelling) is not None]
        if given:
            parts[name] = given[0]
    return parts


class Conversation:
    """Keys of requests whose messages only grow.

    Messages are copied when they are added; later changes to the objects have no effect.

    >>> talk = Conversation([{"role": "user", "content": "hi"}])
    >>> rest = {"model": "m", "provider": "p"}
    >>> talk.key(rest) == llm_cache_key({**rest, "messages": [{"role": "user", "content": "hi"}]})
    True
    """

    def __init__(self, messages: Iterable[dict[str, Any]] = ()) -> None:
        self._messages: list[dict[str, Any]] = []
        self.add(*messages)

    def __len__(self) -> int:
        return len(self._messages)

    def add(self, *messages: dict[str, Any]) -> None:
        """Append messages to the conversation."""
        for place, message in enumerate(messages, len(self._messages)):
            if not isinstance(message, dict):
                raise InvalidInput("A message is an object.", path=f"$.messages[{place}]")
        self._messages += [parse_json(canonical_json(message)) for message in messages]

    def key(self, rest: Mapping[str, Any], *, recipe: Recipe = "rfc0041") -> str:
        """The result of :func:`llm_cache_key` for *rest* with these messages."""
        return llm_cache_key({**rest, "messages": self._messages}, recipe=recipe)


def _check_object(request: Any) -> None:
    if type(request) is not dict and not isinstance(request, Mapping):
        raise InvalidInput(f"The request is an object, not a {type(request).__name__}.", path="$")


def _number(request: Mapping[str, Any], name: str) -> float | int | None:
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidInput(f"'{name}' is a number or null.", path=f"$.{name}")
    # 1.0 and 1 are the same number; as an integer it stays on the fast path of canonical JSON.
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


def _typed(request: Mapping[str, Any], name: str, kind: type | tuple[type, ...], what: str) -> Any:
    value = request.get(name)
    if value is None or isinstance(value, kind):
        return value
    raise InvalidInput(f"'{name}' is {what} or null.", path=f"$.{name}")


def _sorted_tools(request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools sorted by name in UTF-16 order; their order in a request has no meaning (both recipes)."""
    tools = request.get("tools")
    if tools is None:
        return []
    if not isinstance(tools, (list, tuple)):
        raise InvalidInput("'tools' is a list or null.", path="$.tools")
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise InvalidInput("A tool is an object with a name.", path=f"$.tools[{index}]")
    return sorted(tools, key=tool_order)


def tool_order(tool: Mapping[str, Any]) -> bytes:
    """Sort key of tools: the UTF-16 units of their names, never a locale."""
    name: str = tool["name"]
    return name.encode("utf-16-be", "surrogatepass")
