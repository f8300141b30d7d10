"""Gemini generateContent -> canonical request. Accepts both spellings of JSON names (camelCase, snake_case)."""

from __future__ import annotations

from typing import Any, Final

from antiphon.llm._draft import (
    Block,
    Draft,
    Fields,
    as_object,
    as_text,
    block_of,
    digest_of_base64,
    elements,
    shape_error,
    text_block,
    with_vendor_fields,
)

_ROLES: Final = {"user": "user", "model": "assistant", "function": "user", "tool": "user", "system": "system"}
_CHOICES: Final = {"AUTO": "auto", "NONE": "none", "ANY": "required"}
_SETTINGS: Final = {
    "temperature": "temperature",
    "topP": "topP",
    "top_p": "topP",
    "topK": "topK",
    "top_k": "topK",
    "maxOutputTokens": "maxOutputTokens",
    "max_output_tokens": "maxOutputTokens",
    "seed": "seed",
    "stopSequences": "stop",
    "stop_sequences": "stop",
}


def read(draft: Draft) -> None:
    """Move everything from the body into *draft*."""
    body = draft.body
    body.drop("labels")
    if isinstance(model := body.left.get("model"), str):
        body.left["model"] = model.removeprefix("models/")  # which some clients add
    path = body.at("systemInstruction", "system_instruction")
    system = body.take("systemInstruction", "system_instruction")
    if system is not None:
        _content(draft, system, path, role="system")
    contents = body.take("contents")
    if isinstance(contents, (str, dict)):
        _content(draft, contents, "$.contents")
    else:
        for value, path in elements(contents, "$.contents"):
            _content(draft, value, path)
    for value, path in body.items("tools"):
        _tools(draft, Fields(value, path))
    _choice(draft)
    _generation(draft)
    _safety(draft)


def _content(draft: Draft, value: Any, path: str, role: str = "") -> None:
    if isinstance(value, str):
        draft.messages.append({"role": role or "user", "content": value})
        return
    content = Fields(value, path)
    said = content.text("role") or "user"
    role = role or _ROLES.get(said, "")
    if not role:
        raise shape_error(f"{path}.role", "one of user, model")
    parts = content.take("parts")
    if parts is None:
        raise shape_error(f"{path}.parts", "a list of parts")
    given = elements([parts] if isinstance(parts, dict) else parts, f"{path}.parts")
    draft.add_turn(role, (_part(draft, part, at) for part, at in given), content.left)


def _part(draft: Draft, value: Any, path: str) -> Block:
    part = Fields(value, path)
    result = part.fields("functionResponse", "function_response")
    if result is not None:
        return _result(draft, result, part)
    signature = part.text("thoughtSignature", "thought_signature")
    thought = part.flag("thought")
    text = part.text("text")
    if text is not None:
        block: Block = {"type": "thinking" if thought else "text", "text": text}
        if signature is not None and thought:
            block["signature"] = signature
        elif signature is not None:
            block["vendorFields"] = {"thoughtSignature": signature}
        return with_vendor_fields(block, part.left)
    call = part.fields("functionCall", "function_call")
    if call is not None:
        name, call_id, arguments = call.need_text("name"), call.text("id"), call.object("args") or {}
        block = draft.call(name, arguments, call.path, call_id)
        if signature is not None:
            block["signature"] = signature
        return with_vendor_fields(block, call.left, part.left)
    data = part.fields("inlineData", "inline_data")
    if data is not None:
        media_type = data.need_text("mimeType", "mime_type")
        digest = digest_of_base64(data.take("data"), f"{data.path}.data")
        shown = data.text("displayName", "display_name") or None
        block = block_of(_media_kind(media_type), mediaType=media_type, digest=digest, name=shown)
        return with_vendor_fields(block, data.left, part.left)
    file = part.fields("fileData", "file_data")
    if file is not None:
        kind, uri = file.text("mimeType", "mime_type"), file.need_text("fileUri", "file_uri")
        block = block_of(_media_kind(kind or ""), mediaType=kind, url=uri)
        return with_vendor_fields(block, file.left, part.left)
    return draft.vendor_block(value, path)


def _media_kind(media_type: str) -> str:
    kind = media_type.partition("/")[0]
    return kind if kind in ("image", "audio", "video") else "document"


def _result(draft: Draft, result: Fields, part: Fields) -> dict[str, Any]:
    """A tool's result; ``output`` or ``error`` alone are Gemini's way to say what it returned, or that it failed."""
    name = result.need_text("name")
    call_id = result.text("id")
    value: Any = result.object("response") or {}
    is_error = value.keys() == {"error"}
    if is_error or value.keys() == {"output"}:
        value = value["error" if is_error else "output"]
    blocks: list[Block] = [{"type": "json", "value": value}]
    if isinstance(value, str):
        blocks = [text_block(value)] if value else []
    extra = {**result.left, **part.left}
    return draft.message("tool", blocks, name=name, call_id=call_id, is_error=is_error, extra=extra)


def _tools(draft: Draft, group: Fields) -> None:
    for value, path in group.items("functionDeclarations", "function_declarations"):
        function = Fields(value, path)
        name = function.need_text("name")
        description = function.text("description")
        parameters = function.object("parametersJsonSchema", "parameters_json_schema")
        if parameters is None and (given := function.object("parameters")) is not None:
            parameters = json_schema(given)
        draft.tool(name, parameters, description, None, function.left)
    for name, value in group.left.items():
        draft.tools.append({"name": name, "parameters": {}, "hosted": {name: value}})


def json_schema(schema: Any) -> Any:
    """Gemini's schema (``"type": "OBJECT"``) as JSON Schema (``"type": "object"``)."""
    if not isinstance(schema, dict):
        return schema
    result = dict(schema)
    kind = result.get("type")
    if isinstance(kind, str):
        result["type"] = kind.lower()
    properties = result.get("properties")
    if isinstance(properties, dict):
        result["properties"] = {name: json_schema(inner) for name, inner in properties.items()}
    for name in ("items", "additionalProperties", "additional_properties"):
        if name in result:
            result[name] = json_schema(result[name])
    for name in ("anyOf", "any_of", "prefixItems", "prefix_items"):
        if isinstance(result.get(name), list):
            result[name] = [json_schema(inner) for inner in result[name]]
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
            draft.choice("tool", names=names)
        elif mode in _CHOICES:
            draft.choice(_CHOICES[mode], names=names)
        else:
            draft.choice("vendor", names=names, value={"mode": mode})
        draft.options(calling, "toolConfig.functionCallingConfig.")
    draft.options(config, "toolConfig.")


def _generation(draft: Draft) -> None:
    config = draft.body.fields("generationConfig", "generation_config")
    if config is None:
        return
    draft.settings(config, _SETTINGS)
    schema = config.object("responseJsonSchema", "response_json_schema")
    if schema is None and (given := config.object("responseSchema", "response_schema")) is not None:
        schema = json_schema(given)
    mime = config.text("responseMimeType", "response_mime_type")
    if schema is not None or mime == "application/json":
        draft.response_format("json", schema=schema)
    elif mime == "text/plain":
        draft.response_format("text")
    if mime not in (None, "application/json", "text/plain"):
        draft.option("generationConfig.responseMimeType", mime)
    draft.options(config, "generationConfig.")


def _safety(draft: Draft) -> None:
    settings: dict[str, Any] = {}
    for value, path in draft.body.items("safetySettings", "safety_settings"):
        setting = dict(as_object(value, path))
        category = as_text(setting.pop("category", None), f"{path}.category")
        if category in settings:
            raise shape_error(f"{path}.category", "named once")
        settings[category] = setting["threshold"] if setting.keys() == {"threshold"} else setting
    draft.set("safetySettings", settings or None)
