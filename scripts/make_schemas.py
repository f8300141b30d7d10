"""Write the JSON Schemas of the contract types into ``schemas/``; ``--check`` only says whether they are current."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, get_origin

import msgspec

from antiphon.contract.envelope import ToolCallEnvelope
from antiphon.contract.events import Event, RunManifest
from antiphon.contract.record import DedupeRecord
from antiphon.contract.result import ToolResultEnvelope
from antiphon.contract.spec import ToolSpec
from scripts.llm_contract import CanonicalMessage, CanonicalRequest

SCHEMAS: Final[dict[str, tuple[Any, str]]] = {
    "tool-call-envelope": (ToolCallEnvelope, "A tool call, v1.1"),
    "tool-result-envelope": (ToolResultEnvelope, "What came of a tool call"),
    "tool-spec": (ToolSpec, "What a tool declares about itself"),
    "dedupe-record": (DedupeRecord, "The claim on one intent"),
    "event": (Event, "One line of a run log"),
    "run-manifest": (RunManifest, "The head of a run"),
    "llm-canonical-message": (CanonicalMessage, "A vendor-neutral message to or from a model"),
    "llm-canonical-request": (CanonicalRequest, "A vendor-neutral request to a model"),
}
FOLDER: Final = Path(__file__).parent.parent / "schemas"
_CODE: Final = {"$comment": "code"}


def schema_of(name: str) -> dict[str, Any]:
    """The schema of one document type."""
    kind, title = SCHEMAS[name]
    schema = msgspec.json.schema(kind, ref_template="#/$defs/{name}", schema_hook=_code_has_no_schema)
    definitions: dict[str, Any] = schema["$defs"]
    for definition in definitions.values():
        _tidy(definition)
        if kind is ToolResultEnvelope:
            _absent(definition)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:antiphon:schema:{name}",
        "title": title,
        "$ref": schema["$ref"],
        "$defs": dict(sorted(definitions.items())),
    }


def rendered(name: str) -> str:
    """The text of the schema's file."""
    return json.dumps(schema_of(name), indent=2, ensure_ascii=False) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write or check all schemas."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if a file is not current")
    check = parser.parse_args(arguments).check
    FOLDER.mkdir(exist_ok=True)
    stale = []
    for name in SCHEMAS:
        path = FOLDER / f"{name}.schema.json"
        text = rendered(name)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.name)
            if not check:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        sys.stdout.write(f"{'not current' if check else 'written'}: schemas/{name}\n")
    return 1 if check and stale else 0


def _code_has_no_schema(kind: Any) -> dict[str, Any]:
    if kind is Callable or get_origin(kind) is Callable:
        return dict(_CODE)
    raise NotImplementedError(f"no schema for {kind!r}")


def _tidy(definition: dict[str, Any]) -> None:
    """Leave out fields that are code, and what tools cannot rely on."""
    properties = definition.get("properties", {})
    for name in [name for name, schema in properties.items() if _is_code(schema)]:
        del properties[name]
    if "required" in definition:
        definition["required"] = [name for name in definition["required"] if name in properties]


def _absent(definition: dict[str, Any]) -> None:
    """Of a result, what is ``None`` in Python is absent on the wire, never ``null``."""
    for name, schema in definition.get("properties", {}).items():
        if schema.get("default", ...) is None:
            definition["properties"][name] = next(one for one in schema["anyOf"] if one != {"type": "null"})


def _is_code(schema: dict[str, Any]) -> bool:
    """A function or class, some of them by name or in a list, or one of these or null."""
    inner = [schema[name] for name in ("additionalProperties", "items") if isinstance(schema.get(name), dict)]
    return schema == _CODE or any(map(_is_code, [*inner, *schema.get("anyOf", [])]))


if __name__ == "__main__":
    sys.exit(main())
