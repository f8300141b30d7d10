"""The canonical LLM request as types, for its JSON Schema: the form that every provider's request maps into (L2).

Absent means "not given"; null never appears outside of payloads that are kept as they are (arguments, JSON values,
schemas, vendor fields). A content of exactly one plain text block is written as a string; no text is an empty string.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from antiphon.contract._base import UNSET, UnsetType, Value

Role = Literal["system", "user", "assistant", "tool"]
Digest = Annotated[str, Meta(pattern="^sha256:[0-9a-f]{64}$")]
Vendor = Annotated[str, Meta(min_length=1)]


class Block(Value, frozen=True, kw_only=True, tag_field="type"):
    """One piece of a message. ``vendorFields`` holds what the neutral form has no name for."""

    vendor_fields: dict[str, Any] | UnsetType = UNSET


class TextBlock(Block, frozen=True, kw_only=True, tag="text"):
    """Plain text."""

    text: str


class ThinkingBlock(Block, frozen=True, kw_only=True, tag="thinking"):
    """A model's reasoning, handed back to it: text or summary, and what proves its origin."""

    text: str | UnsetType = UNSET
    summary: list[str] | UnsetType = UNSET
    signature: str | UnsetType = UNSET
    encrypted: str | UnsetType = UNSET
    id: str | UnsetType = UNSET


class RefusalBlock(Block, frozen=True, kw_only=True, tag="refusal"):
    """A refusal in the model's own words."""

    text: str


class ToolCallBlock(Block, frozen=True, kw_only=True, tag="toolCall"):
    """A call the model asked for. ``argumentsText`` stands in where the text it gave is not JSON."""

    name: str
    id: str | UnsetType = UNSET
    arguments: Any = UNSET
    arguments_text: str | UnsetType = UNSET
    signature: str | UnsetType = UNSET


class JsonBlock(Block, frozen=True, kw_only=True, tag="json"):
    """A structured value, such as the result of a tool."""

    value: Any


class Media(Block, frozen=True, kw_only=True):
    """Where the content is: its own digest, a URL, or a file the provider keeps."""

    media_type: str | UnsetType = UNSET
    digest: Digest | UnsetType = UNSET
    url: str | UnsetType = UNSET
    file_id: str | UnsetType = UNSET
    detail: str | UnsetType = UNSET
    name: str | UnsetType = UNSET


class ImageBlock(Media, frozen=True, kw_only=True, tag="image"):
    """An image."""


class AudioBlock(Media, frozen=True, kw_only=True, tag="audio"):
    """A sound."""


class VideoBlock(Media, frozen=True, kw_only=True, tag="video"):
    """A film."""


class DocumentBlock(Media, frozen=True, kw_only=True, tag="document"):
    """A file to read; short text documents carry their ``text``."""

    text: str | UnsetType = UNSET


class VendorBlock(Block, frozen=True, kw_only=True, tag="vendor"):
    """A block only one vendor has, kept as it is."""

    vendor: Vendor
    block: dict[str, Any]


AnyBlock = (
    TextBlock
    | ThinkingBlock
    | RefusalBlock
    | ToolCallBlock
    | JsonBlock
    | ImageBlock
    | AudioBlock
    | VideoBlock
    | DocumentBlock
    | VendorBlock
)


class CanonicalMessage(Value, frozen=True):
    """One message. A ``tool`` message is the result of one call."""

    role: Role
    content: str | list[AnyBlock]
    name: str | UnsetType = UNSET
    tool_call_id: str | UnsetType = UNSET
    is_error: bool | UnsetType = UNSET
    vendor_fields: dict[str, Any] | UnsetType = UNSET


class CanonicalTool(Value, frozen=True):
    """A tool the model may call: a function with a JSON Schema, or one the vendor hosts itself."""

    name: Annotated[str, Meta(min_length=1)]
    parameters: dict[str, Any]
    description: str | UnsetType = UNSET
    strict: bool | UnsetType = UNSET
    hosted: dict[str, Any] | UnsetType = UNSET
    vendor_fields: dict[str, Any] | UnsetType = UNSET


class ToolChoice(Value, frozen=True):
    """Whether the model must call a tool, and which."""

    mode: Literal["auto", "none", "required", "tool", "vendor"]
    names: list[str] | UnsetType = UNSET
    value: Any = UNSET


class ResponseFormat(Value, frozen=True):
    """The form the answer must have."""

    type: Literal["text", "json", "vendor"]
    schema: dict[str, Any] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    strict: bool | UnsetType = UNSET
    value: Any = UNSET


class CanonicalRequest(Value, frozen=True):
    """A request to a model. The first six fields make the ``rfc0041`` key; the others are its variant (D14)."""

    model: Annotated[str, Meta(min_length=1)]
    provider: Vendor
    messages: list[CanonicalMessage]
    tools: list[CanonicalTool] = []
    temperature: float | int | UnsetType = UNSET
    response_schema: dict[str, Any] | UnsetType = UNSET
    top_p: float | int | UnsetType = UNSET
    top_k: float | int | UnsetType = UNSET
    max_output_tokens: int | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    stop: list[str] | UnsetType = UNSET
    tool_choice: ToolChoice | UnsetType = UNSET
    response_format: ResponseFormat | UnsetType = UNSET
    safety_settings: dict[str, Any] | UnsetType = UNSET
    provider_options: dict[str, Any] | UnsetType = UNSET
