"""The subset of JSON Schema that model answers need: validation with a reason, and the smallest instance."""

from __future__ import annotations

from typing import Any

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "number": (int, float),
    "integer": (int,),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


def is_a(value: Any, name: str) -> bool:
    """Whether *value* has a type of JSON Schema; any value has one that is not known."""
    kinds = _TYPES.get(name, (object,))
    if isinstance(value, bool) and name in ("number", "integer"):
        return False
    if name == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, kinds)


def violation(value: Any, schema: Any, path: str = "$") -> str | None:
    """Why *value* is invalid, without quoting it; ``None`` if it is valid."""
    if schema is True or not isinstance(schema, dict):
        return None if schema is not False else f"{path}: nothing is allowed here"
    kinds = schema.get("type")
    wanted = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    if wanted and not any(is_a(value, str(kind)) for kind in wanted):
        return f"{path}: expected {' or '.join(map(str, wanted))}"
    if isinstance(schema.get("enum"), list) and value not in schema["enum"]:
        return f"{path}: not one of the allowed values"
    if "const" in schema and value != schema["const"]:
        return f"{path}: not the required value"
    if isinstance(value, dict):
        return _object(value, schema, path)
    if isinstance(value, list):
        for index, item in enumerate(value):
            wrong = violation(item, schema.get("items"), f"{path}[{index}]")
            if wrong:
                return wrong
    return None


def _object(value: dict[str, Any], schema: dict[str, Any], path: str) -> str | None:
    for name in schema.get("required", ()):
        if name not in value:
            return f"{path}: required field {name!r} is missing"
    properties = schema.get("properties", {})
    for name, part in properties.items():
        if name in value:
            wrong = violation(value[name], part, f"{path}.{name}")
            if wrong:
                return wrong
    if schema.get("additionalProperties") is False and any(name not in properties for name in value):
        return f"{path}: a field that is not allowed"
    return None


def minimal(schema: Any) -> Any:
    """The smallest instance of *schema*; the result is deterministic."""
    if not isinstance(schema, dict):
        return {}
    if "const" in schema:
        return schema["const"]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return schema["enum"][0]
    if "default" in schema:
        return schema["default"]
    kinds = schema.get("type", "object")
    kind = kinds[0] if isinstance(kinds, list) and kinds else kinds
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: minimal(properties.get(name, {"type": "string"})) for name in schema.get("required", ())}
    if kind == "array":
        return [minimal(schema.get("items", {})) for _ in range(int(schema.get("minItems", 0)))]
    return {"string": "", "number": 0, "integer": 0, "boolean": True, "null": None}.get(str(kind), {})
