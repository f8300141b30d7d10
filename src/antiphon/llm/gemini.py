"""Gemini generateContent -> canonical request. Both spellings of JSON names (camelCase, snake_case) are read."""

from __future__ import annotations

from typing import Any

from antiphon.llm._blocks import (
    Piece,
    digest_of_base64,
    media_block,
    media_kind,
    text_piece,
    tool_call,
    vendor_piece,
    with_vendor_fields,
)
from antiphon.llm._draft import Draft
from antiphon.llm._read import Fields, as_list, as_object, as_text, wrong

_ROLES = {"user": "user", "model": "assistant", "function": "user", "tool": "user", "system": "system"}
_CHOICES = {"AUTO": "auto", "NONE": "none", "ANY": "required"}


def read(draft: Draft) -> None:
    """Move everything from the body into *draft*."""
    body = draft.body
    draft.ignore(body.drop("labels"))
    path = body.at("systemInstruction", "system_instruction")
    system = body.take("systemInstruction", "system_instruction")
    if system is not None:
        _content(draft, system, path, role="system")
    contents = body.take("contents")
    if isinstance(contents, (str, dict)):
        _content(draft, contents, "$.contents")
    else:
        for index, value in enumerate(as_list(contents, "$.contents")):
            _content(draft, value, f"$.contents[{index}]")
    for value, at in body.items("tools"):
        _tools(draft, Fields(value, at))
    _choice(draft)
    _generation(draft)
    _safety(draft)


def _content(draft: Draft, value: Any, path: str, role: str = "") -> None:
    if isinstance(value, str):
        draft.say(role or "user", [text_piece(value, path)] if value else [], path)
        return
    content = Fields(value, path)
    said = content.text("role") or "user"
    role = role or _ROLES.get(said, "")
    if not role:
        raise wrong(f"{path}.role", "one of user, model")
    parts = content.take("parts")
    if parts is None:
        raise wrong(f"{path}.parts", "a list of parts")
    extra = content.rest()
    run: list[Piece] = []
    results = 0
    for index, part in enumerate([parts] if isinstance(parts, dict) else as_list(parts, f"{path}.parts")):
        at = f"{path}.parts[{index}]"
        fields = Fields(part, at)
        if fields.has("functionResponse", "function_response"):
            if run:
                draft.say(role, run, path, vendorFields=extra)
                run = []
            _result(draft, fields)
            results += 1
        else:
            run.append(_piece(draft, fields, part, at))
    if run or not results:
        draft.say(role, run, path, vendorFields=extra)


def _result(draft: Draft, part: Fields) -> None:
    """A tool's result; ``output`` and ``error`` alone are Gemini's way to say what it returned, or that it failed."""
    result = part.fields("functionResponse", "function_response")
    assert result is not None
    name = result.need_text("name")
    call_id = result.text("id")
    at = result.at("response")
    value: Any = result.object("response") or {}
    is_error = value.keys() == {"error"}
    if is_error or value.keys() == {"output"}:
        inner = "error" if is_error else "output"
        at, value = f"{at}.{inner}", value[inner]
    if isinstance(value, str):
        pieces = [text_piece(value, at)] if value else []
    else:
        pieces = [Piece({"type": "json", "value": value}, at, ((".value", at),))]
    extra = {**result.rest(), **part.rest()}
    draft.say("tool", pieces, result.path, name=name, toolCallId=call_id, isError=is_error, vendorFields=extra)


def _piece(draft: Draft, part: Fields, value: dict[str, Any], path: str) -> Piece:
    signature = part.text("thoughtSignature", "thought_signature")
    thought = part.flag("thought")
    if part.has("text"):
        text = part.text("text") or ""
        block: dict[str, Any] = {"type": "thinking" if thought else "text", "text": text}
        if signature is not None and thought:
            block["signature"] = signature
        elif signature is not None:
            block["vendorFields"] = {"thoughtSignature": signature}
        return _finish(block, part, path)
    if part.has("functionCall", "function_call"):
        call = part.fields("functionCall", "function_call")
        assert call is not None
        name = call.need_text("name")
        call_id = call.text("id")
        at = call.at("args")
        arguments = call.object("args") or {}
        piece = tool_call(name, arguments, path, at, id=call_id, signature=signature)
        return _finish(piece.block, part, path, piece.inner, call.rest())
    if part.has("inlineData", "inline_data"):
        data = part.fields("inlineData", "inline_data")
        assert data is not None
        media_type = data.need_text("mimeType", "mime_type")
        digest = digest_of_base64(data.take("data"), f"{data.path}.data")
        name = data.text("displayName", "display_name") or ""
        block = media_block(media_kind(media_type), media_type=media_type, digest=digest, name=name or None)
        return _finish(block, part, path, (), data.rest())
    if part.has("fileData", "file_data"):
        file = part.fields("fileData", "file_data")
        assert file is not None
        kind = file.text("mimeType", "mime_type")
        block = media_block(media_kind(kind or ""), media_type=kind, url=file.need_text("fileUri", "file_uri"))
        return _finish(block, part, path, (), file.rest())
    return vendor_piece(value, path, draft.vendor)


def _finish(
    block: dict[str, Any],
    part: Fields,
    path: str,
    inner: tuple[tuple[str, str], ...] = (),
    extra: dict[str, Any] | None = None,
) -> Piece:
    more = {**block.get("vendorFields", {}), **(extra or {}), **part.rest()}
    return Piece(with_vendor_fields(block, more), path, inner)


def _tools(draft: Draft, group: Fields) -> None:
    for value, path in group.items("functionDeclarations", "function_declarations"):
        function = Fields(value, path)
        name = function.need_text("name")
        description = function.text("description")
        at = function.at("parametersJsonSchema", "parameters_json_schema", "parameters")
        parameters = function.object("parametersJsonSchema", "parameters_json_schema")
        if parameters is None and (given := function.object("parameters")) is not None:
            parameters = json_schema(given)
        extra = function.rest()
        draft.tool(name, path, description=description, parameters=parameters, parameters_at=at, extra=extra)
    for name, value in group.rest().items():
        draft.tool(name, f"{group.path}.{name}", hosted={name: value})


def json_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Gemini's schema (``"type": "OBJECT"``) as JSON Schema (``"type": "object"``)."""
    result = dict(schema)
    kind = result.get("type")
    if isinstance(kind, str):
        result["type"] = kind.lower()
    properties = result.get("properties")
    if isinstance(properties, dict):
        result["properties"] = {
            name: json_schema(inner) if isinstance(inner, dict) else inner for name, inner in properties.items()
        }
    for name in ("items", "additionalProperties", "additional_properties"):
        if isinstance(result.get(name), dict):
            result[name] = json_schema(result[name])
    for name in ("anyOf", "any_of", "prefixItems", "prefix_items"):
        if isinstance(result.get(name), list):
            result[name] = [json_schema(inner) if isinstance(inner, dict) else inner for inner in result[name]]
    return result


def _choice(draft: Draft) -> None:
    config = draft.body.fields("toolConfig", "tool_config")
    if config is None:
        return
    calling = config.fields("functionCallingConfig", "function_calling_config")
    if calling is not None:
        mode = (calling.text("mode") or "AUTO").upper()
        names = calling.texts("allowedFunctionNames", "allowed_function_names")
        if mode == "ANY" and names is not None and len(names) == 1:
            draft.choice("tool", calling.path, names=names)
        elif mode in _CHOICES:
            draft.choice(_CHOICES[mode], calling.path, names=names)
        else:
            draft.choice("vendor", calling.path, names=names, value={"mode": mode})
        draft.options(calling, "toolConfig.functionCallingConfig.")
    draft.options(config, "toolConfig.")


def _generation(draft: Draft) -> None:
    config = draft.body.fields("generationConfig", "generation_config")
    if config is None:
        return
    draft.number("temperature", config, "temperature")
    draft.number("topP", config, "topP", "top_p")
    draft.number("topK", config, "topK", "top_k")
    draft.integer("maxOutputTokens", config, "maxOutputTokens", "max_output_tokens")
    draft.integer("seed", config, "seed")
    path = config.at("stopSequences", "stop_sequences")
    draft.set("stop", config.texts("stopSequences", "stop_sequences"), path)
    _answer_form(draft, config)
    draft.options(config, "generationConfig.")


def _answer_form(draft: Draft, config: Fields) -> None:
    path = config.at("responseJsonSchema", "response_json_schema", "responseSchema", "response_schema")
    schema = config.object("responseJsonSchema", "response_json_schema")
    if schema is None and (given := config.object("responseSchema", "response_schema")) is not None:
        schema = json_schema(given)
    mime_at = config.at("responseMimeType", "response_mime_type")
    mime = config.text("responseMimeType", "response_mime_type")
    if schema is not None or mime == "application/json":
        draft.answer_form("json", path if schema is not None else mime_at, schema=schema)
        draft.set("responseSchema", schema, path)
    elif mime == "text/plain":
        draft.answer_form("text", mime_at)
    if mime not in (None, "application/json", "text/plain"):
        draft.option("generationConfig.responseMimeType", mime, mime_at)


def _safety(draft: Draft) -> None:
    path = draft.body.at("safetySettings", "safety_settings")
    settings: dict[str, Any] = {}
    for value, at in draft.body.items("safetySettings", "safety_settings"):
        setting = dict(as_object(value, at))
        category = as_text(setting.pop("category", None), f"{at}.category")
        if category in settings:
            raise wrong(f"{at}.category", "named once")
        settings[category] = setting["threshold"] if setting.keys() == {"threshold"} else setting
    draft.set("safetySettings", settings or None, path)
