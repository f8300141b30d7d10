"""Blocks of a canonical message, built alike for all providers."""

from __future__ import annotations

import base64
import binascii
import hashlib
import urllib.parse
from typing import Any, NamedTuple

from antiphon.canonical import parse_json
from antiphon.errors import CanonicalError
from antiphon.llm._read import Fields, as_object, as_text, wrong


class Piece(NamedTuple):
    """A canonical block and where it comes from; *inner* are places inside it, by their canonical suffix."""

    block: dict[str, Any]
    path: str
    inner: tuple[tuple[str, str], ...] = ()


def text_piece(text: str, path: str, extra: dict[str, Any] | None = None) -> Piece:
    """A text block; *path* is that of the text's owner."""
    return Piece(with_vendor_fields({"type": "text", "text": text}, extra), path)


def with_vendor_fields(block: dict[str, Any], extra: dict[str, Any] | None) -> dict[str, Any]:
    """*block* with the fields the neutral form has no name for."""
    if extra:
        block["vendorFields"] = extra
    return block


def vendor_piece(value: Any, path: str, vendor: str) -> Piece:
    """A block only one vendor has, kept as it is."""
    block = {"type": "vendor", "vendor": vendor, "block": as_object(value, path)}
    return Piece(block, path, ((".block", path),))


def tool_call(name: str, arguments: Any, path: str, arguments_at: str, **fields: Any) -> Piece:
    """A call the model asked for; arguments given as text are read as JSON if they are."""
    block: dict[str, Any] = {"type": "toolCall", "name": name}
    block.update((key, value) for key, value in fields.items() if value is not None)
    suffix = ".arguments"
    if isinstance(arguments, str):
        try:
            block["arguments"] = parse_json(arguments) if arguments else {}
        except CanonicalError:
            block["argumentsText"] = arguments
            suffix = ".argumentsText"
    else:
        block["arguments"] = as_object(arguments, arguments_at)
    return Piece(block, path, ((suffix, arguments_at),))


def media_kind(media_type: str) -> str:
    """The kind of block for a MIME type."""
    kind = media_type.partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "document"


def media_block(kind: str, *, media_type: str | None = None, **fields: Any) -> dict[str, Any]:
    """A block of *kind*; fields that are ``None`` stay away."""
    block: dict[str, Any] = {"type": kind}
    if media_type is not None:
        block["mediaType"] = media_type
    block.update((key, value) for key, value in fields.items() if value is not None)
    return block


def located(kind: str, url: str, path: str, **fields: Any) -> dict[str, Any]:
    """A block for a URL; content inside a ``data:`` URL is replaced by its digest."""
    if not url.startswith("data:"):
        return media_block(kind, url=url, **fields)
    head, comma, data = url[len("data:") :].partition(",")
    if not comma:
        raise wrong(path, "a data: URL with a comma")
    media_type, *options = head.split(";")
    if "base64" in options:
        digest = digest_of_base64(data, path)
    else:
        digest = _digest(urllib.parse.unquote_to_bytes(data))
    return media_block(kind, media_type=media_type or None, digest=digest, **fields)


def digest_of_base64(data: Any, path: str) -> str:
    """``sha256:…`` of what *data* encodes; both alphabets, with or without padding and line ends."""
    text = "".join(as_text(data, path).split()).rstrip("=").translate(_TO_STANDARD)
    try:
        return _digest(base64.b64decode(text + "=" * (-len(text) % 4), validate=True))
    except (binascii.Error, ValueError):
        raise wrong(path, "base64") from None


_TO_STANDARD = str.maketrans("-_", "+/")


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def openai_part(value: Any, path: str, vendor: str) -> Piece:
    """One content part of either OpenAI dialect; types neither of them knows are kept as they are."""
    part = Fields(value, path)
    kind = part.text("type")
    if kind in ("text", "input_text", "output_text"):
        text = part.text("text") or ""
        if kind == "output_text":
            part.drop("annotations", "logprobs")  # about the text, not part of what the model reads
        return text_piece(text, path, part.rest())
    if kind == "refusal":
        block = {"type": "refusal", "text": part.text("refusal") or ""}
        return Piece(with_vendor_fields(block, part.rest()), path)
    if kind == "image_url":
        image = part.take("image_url")
        source = Fields({"url": image} if isinstance(image, str) else image, f"{path}.image_url")
        block = located("image", source.need_text("url"), f"{path}.image_url.url", detail=source.text("detail"))
        return Piece(with_vendor_fields(block, {**source.rest(), **part.rest()}), path)
    if kind == "input_image":
        return _input_image(part, path)
    if kind == "input_audio":
        sound = Fields(part.take("input_audio"), f"{path}.input_audio")
        sound_format = sound.need_text("format")
        digest = digest_of_base64(sound.take("data"), f"{path}.input_audio.data")
        block = media_block("audio", media_type=f"audio/{sound_format}", digest=digest)
        return Piece(with_vendor_fields(block, {**sound.rest(), **part.rest()}), path)
    if kind in ("file", "input_file"):
        return _file(part, path, kind)
    return vendor_piece(value, path, vendor)


def _input_image(part: Fields, path: str) -> Piece:
    detail = part.text("detail")
    url = part.text("image_url")
    if url is not None:
        block = located("image", url, f"{path}.image_url", detail=detail)
    else:
        block = media_block("image", fileId=part.need_text("file_id"), detail=detail)
    return Piece(with_vendor_fields(block, part.rest()), path)


def _file(part: Fields, path: str, kind: str) -> Piece:
    source = Fields(part.take("file"), f"{path}.file") if kind == "file" else part
    name = source.text("filename")
    data = source.text("file_data")
    url = source.text("file_url")
    if data is not None and data.startswith("data:"):
        block = located("document", data, source.at("file_data"), name=name)
    elif data is not None:
        block = media_block("document", digest=digest_of_base64(data, source.at("file_data")), name=name)
    elif url is not None:
        block = located("document", url, source.at("file_url"), name=name)
    else:
        block = media_block("document", fileId=source.need_text("file_id"), name=name)
    extra = source.rest() if source is part else {**source.rest(), **part.rest()}
    return Piece(with_vendor_fields(block, extra), path)
