"""Strict parsing of a provider's request body, and the canonical request under construction.

Every error names the path in the provider's body.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from antiphon.errors import ContractError
from antiphon.llm.key import tool_order
from antiphon.llm.response import arguments_of

TRANSPORT: Final = frozenset(
    "stream stream_options metadata user store background service_tier prompt_cache_key prompt_cache_retention"
    " safety_identifier request_id requestId traceparent tracestate timeout api_key extra_headers extra_query".split()
)
"""Fields that cannot change a model's answer: they are left out of every key."""

FIELD_ORDER: Final = (
    "temperature responseSchema topP topK maxOutputTokens seed stop toolChoice responseFormat safetySettings".split()
)
_SNAKE: Final = re.compile("_([a-z])")
_TO_STANDARD: Final = str.maketrans("-_", "+/")

Block = dict[str, Any]
"""One block of a canonical message."""
Fieldset = Mapping[str, Any] | None


def shape_error(path: str, what: str) -> ContractError:
    """The error for a value that is not *what* it should be."""
    return ContractError(f"{path} must be {what}.", path=path)


def as_text(value: Any, path: str) -> str:
    """*value* if it is a string."""
    if not isinstance(value, str):
        raise shape_error(path, "a string")
    return value


def as_list(value: Any, path: str) -> Sequence[Any]:
    """*value* if it is a list."""
    if not isinstance(value, (list, tuple)):
        raise shape_error(path, "a list")
    return value


def as_object(value: Any, path: str) -> dict[str, Any]:
    """*value* if it is an object."""
    if not isinstance(value, dict):
        raise shape_error(path, "an object")
    return value


class Fields:
    """The fields of one object: each is taken once, under either of its spellings; ``left`` holds the others.

    Null counts as absent: for a provider the two mean the same.
    """

    __slots__ = ("left", "path")

    def __init__(self, value: Any, path: str) -> None:
        if not isinstance(value, dict):
            raise shape_error(path, "an object")
        self.path: str = path
        self.left: dict[Any, Any] = dict(value)
        for name in value:
            if value[name] is None:
                del self.left[name]

    def at(self, name: str, other: str = "") -> str:
        """The path of a field, in the spelling that is present."""
        return f"{self.path}.{other if other in self.left and name not in self.left else name}"

    def take(self, name: str, other: str = "", kind: type | tuple[type, ...] = object, what: str = "") -> Any:
        """The field's value, or ``None``; if it is not of *kind*, the error says that it must be *what*."""
        left = self.left
        if name not in left:
            if not other or other not in left:
                return None
            name = other
        value = left.pop(name)
        if not isinstance(value, kind):
            raise shape_error(f"{self.path}.{name}", what)
        return value

    def drop(self, *names: str) -> None:
        """Drop fields without influence."""
        for name in names:
            self.left.pop(name, None)

    def text(self, name: str, other: str = "") -> str | None:
        """The field as a string, or ``None``."""
        if name not in self.left:
            if not other or other not in self.left:
                return None
            name = other
        value = self.left.pop(name)
        return value if isinstance(value, str) else as_text(value, f"{self.path}.{name}")

    def need_text(self, name: str, other: str = "") -> str:
        """The field as a non-empty string."""
        value = self.text(name, other)
        if not value:
            raise shape_error(f"{self.path}.{name}", "a non-empty string")
        return value

    def number(self, name: str) -> float | int | None:
        """The field as a number, or ``None``."""
        value: float | int | None = self.take(name, "", (int, float), "a number")
        if isinstance(value, bool):
            raise shape_error(f"{self.path}.{name}", "a number")
        return value

    def integer(self, name: str) -> int | None:
        """The field as an integer, or ``None``; ``7.0`` is one."""
        value: float | int | None = self.take(name, "", (int, float), "an integer")
        if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
            raise shape_error(f"{self.path}.{name}", "an integer")
        return None if value is None else int(value)

    def flag(self, name: str) -> bool | None:
        """The field as true or false, or ``None``."""
        found: bool | None = self.take(name, "", bool, "true or false")
        return found

    def items(self, name: str, other: str = "") -> Iterable[tuple[Any, str]]:
        """The elements of a list field with their paths; nothing if it is absent."""
        if name not in self.left:
            if not other or other not in self.left:
                return ()
            name = other
        return elements(self.left.pop(name), f"{self.path}.{name}")

    def texts(self, name: str, other: str = "") -> list[str] | None:
        """The field as a list of strings; one string alone counts as a list of one."""
        path = self.at(name, other)
        value = self.take(name, other)
        if isinstance(value, str):
            return [value]
        return None if value is None else [as_text(item, at) for item, at in elements(value, path)]

    def fields(self, name: str, other: str = "") -> Fields | None:
        """The field as an object, or ``None``."""
        path = self.at(name, other)
        value = self.take(name, other)
        return None if value is None else Fields(value, path)

    def object(self, name: str, other: str = "") -> dict[str, Any] | None:
        """The field as an object that is kept as it is, or ``None``."""
        found: dict[str, Any] | None = self.take(name, other, dict, "an object")
        return found


def elements(value: Any, path: str) -> Iterable[tuple[Any, str]]:
    """The elements of the list *value* with their paths."""
    return [(item, f"{path}[{index}]") for index, item in enumerate(as_list(value, path))]


_READERS: Final[Mapping[str, Callable[[Fields, str], Any]]] = {
    "stop": Fields.texts,
    "maxOutputTokens": Fields.integer,
    "seed": Fields.integer,
}


class Draft:
    """Collects messages, tools and settings of one request."""

    def __init__(self, body: Any, *, vendor: str, model: str | None = None, camel: bool = False) -> None:
        self.body: Fields = Fields(body, "$")
        for name in TRANSPORT.intersection(self.body.left):
            del self.body.left[name]
        self.vendor = vendor
        self._camel = camel
        if model is not None:
            self.body.left["model"] = model
        self.messages: list[dict[str, Any]] = []
        self.tools: list[dict[str, Any]] = []
        self._fields: dict[str, Any] = {}
        self._options: dict[str, Any] = {}
        self._developer: list[int] = []
        self._calls: dict[str, str] = {}

    def message(
        self,
        role: str,
        blocks: list[Block],
        *,
        name: str | None = None,
        call_id: str | None = None,
        extra: Fieldset = None,
        is_error: bool | None = None,
    ) -> dict[str, Any]:
        """The next message; a single plain text block becomes a string.

        A developer message becomes a system message, and its origin is kept because a model may distinguish them.
        """
        message: dict[str, Any] = {"role": role, "content": blocks or ""}
        if len(blocks) == 1 and len(blocks[0]) == 2 and blocks[0]["type"] == "text":
            message["content"] = blocks[0]["text"]
        if role == "developer":
            self._developer.append(len(self.messages))
            message["role"] = "system"
        if name and not (role == "tool" and self._calls.get(call_id or "") == name):  # its call has given the name
            message["name"] = name
        if call_id:
            message["toolCallId"] = call_id
        if is_error:
            message["isError"] = True
        if extra:
            message["vendorFields"] = extra
        return message

    def add_turn(self, role: str, parts: Iterable[Block], extra: Fieldset) -> None:
        """Append the blocks of one turn; tool results among them become separate messages."""
        before = len(self.messages)
        for are_messages, run in groupby(parts, lambda part: "role" in part):
            group = list(run)
            self.messages += group if are_messages else [self.message(role, group, extra=extra)]
        if len(self.messages) == before:
            self.messages.append(self.message(role, [], extra=extra))

    def call(self, name: str, arguments: Any, path: str, call_id: str | None, extra: Fieldset = None) -> Block:
        """The block of a call that the model requested; arguments given as text are parsed as JSON if possible."""
        block: Block = {"type": "toolCall", "name": name}
        if call_id is not None:
            block["id"] = call_id
            self._calls[call_id] = name
        block |= arguments_of(arguments if isinstance(arguments, str) else as_object(arguments, path))
        if extra:
            block["vendorFields"] = extra
        return block

    def vendor_block(self, value: Any, path: str) -> Block:
        """A block only one vendor has, kept as it is."""
        return {"type": "vendor", "vendor": self.vendor, "block": as_object(value, path)}

    def tool(self, name: str, parameters: Fieldset, description: str | None, strict: bool | None, extra: Any) -> None:
        """Add a tool; without *parameters* it takes none."""
        tool: dict[str, Any] = {"name": name, "parameters": parameters or {}}
        if description is not None:
            tool["description"] = description
        if strict is not None:
            tool["strict"] = strict
        if extra:
            tool["vendorFields"] = extra
        self.tools.append(tool)

    def function(self, tool: Fields, parameters: str) -> None:
        """Add a function tool; its schema is in the field named by *parameters*."""
        name, description, strict = tool.need_text("name"), tool.text("description"), tool.flag("strict")
        self.tool(name, tool.object(parameters), description, strict, tool.left)

    def hosted_tool(self, value: Any, path: str) -> None:
        """Add a tool that the vendor runs; its credentials are not part of any key."""
        tool = Fields(value, path)
        tool.drop("authorization", "authorization_token", "headers")
        kept = tool.left
        custom = kept.get("custom")
        named = custom if isinstance(custom, dict) else kept
        name = named.get("name") or kept.get("server_label") or kept.get("type")
        self.tools.append({"name": as_text(name, f"{path}.type"), "parameters": {}, "hosted": kept})

    def set(self, name: str, value: Any) -> None:
        """Set a field unless it is absent."""
        if value is not None:
            self._fields[name] = value

    def settings(self, source: Fields, spellings: Mapping[str, str]) -> None:
        """Set what all vendors support: *spellings* are this vendor's names, the preferred one first."""
        for spelling, name in spellings.items():
            if spelling in source.left and name not in self._fields:
                self._fields[name] = _READERS.get(name, Fields.number)(source, spelling)

    def option(self, name: str, value: Any) -> None:
        """Keep something that only this vendor knows, so that no key ignores it."""
        if self._camel:  # a vendor that accepts both spellings means the same option
            name = _SNAKE.sub(lambda found: found[1].upper(), name)
        self._options[f"vendor.{self.vendor}.{name}"] = value

    def options(self, source: Fields, prefix: str = "") -> None:
        """Keep all remaining fields of *source*."""
        for name, value in source.left.items():
            self.option(prefix + name, value)

    def choice(self, mode: str, *, names: list[str] | None = None, value: Any = None) -> None:
        """Set the tool choice; the second recipe has no field for it, so it also becomes an option."""
        choice: dict[str, Any] = {"mode": mode}
        if names is not None:
            choice["names"] = names
        if value is not None:
            choice["value"] = value
        self.set("toolChoice", choice)
        self.option("toolChoice", choice)

    def response_format(self, form: str, *, schema: dict[str, Any] | None = None, **fields: Any) -> None:
        """Set the format of the answer: one recipe uses only its schema, the other the whole."""
        response_format: dict[str, Any] = {"type": form}
        if schema is not None:
            response_format["schema"] = schema
            self.set("responseSchema", schema)
        response_format.update((key, value) for key, value in fields.items() if value)
        self.set("responseFormat", response_format)

    def done(self) -> dict[str, Any]:
        """The finished request; the remaining fields of the body become options."""
        left = self.body.left
        model = left.pop("model", None)
        if model is not None and not isinstance(model, str):
            raise shape_error("$.model", "a string")
        if not model:
            hint = "Pass model=… where the body does not name it."
            raise ContractError("$.model must be a non-empty string.", path="$.model", hint=hint)
        if left:
            self.options(self.body)
        if self._developer:
            self.option("developerMessages", self._developer)
        self.tools.sort(key=tool_order)
        request: dict[str, Any] = {
            "model": model,
            "provider": self.vendor,
            "messages": self.messages,
            "tools": self.tools,
        }
        if self._fields:
            request.update((name, self._fields[name]) for name in FIELD_ORDER if name in self._fields)
        if self._options:
            request["providerOptions"] = self._options
        return request


def with_vendor_fields(block: Block, *extra: Mapping[str, Any] | None) -> Block:
    """*block* with the fields for which the neutral form has no name."""
    for fields in extra:
        if fields:
            block["vendorFields"] = {**block.get("vendorFields", {}), **fields}
    return block


def text_block(text: str, extra: Mapping[str, Any] | None = None) -> Block:
    """A text block."""
    block = {"type": "text", "text": text}
    return with_vendor_fields(block, extra) if extra else block


def block_of(kind: str, **fields: Any) -> Block:
    """A block of *kind* without the fields that are ``None``."""
    return {"type": kind, **{key: value for key, value in fields.items() if value is not None}}


def located(kind: str, url: str, path: str, **fields: Any) -> Block:
    """A block for a URL; the content of a ``data:`` URL is replaced by its digest."""
    if not url.startswith("data:"):
        return block_of(kind, url=url, **fields)
    head, comma, data = url[len("data:") :].partition(",")
    if not comma:
        raise shape_error(path, "a data: URL with a comma")
    media_type, *options = head.split(";")
    digest = digest_of_base64(data, path) if "base64" in options else _digest(urllib.parse.unquote_to_bytes(data))
    return block_of(kind, mediaType=media_type or None, digest=digest, **fields)


def digest_of_base64(data: Any, path: str) -> str:
    """``sha256:…`` of the bytes that *data* encodes; either alphabet, with or without padding and line breaks."""
    text = "".join(as_text(data, path).split()).rstrip("=").translate(_TO_STANDARD)
    try:
        return _digest(base64.b64decode(text + "=" * (-len(text) % 4), validate=True))
    except (binascii.Error, ValueError):
        raise shape_error(path, "base64") from None


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
