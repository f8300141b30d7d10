"""Workflows of the protocol's conformance fixtures, built here: same ids, same node types."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

SCHEMA = {"type": "object", "required": ["valid"], "properties": {"valid": {"type": "boolean"}}}
MESSAGES = [{"role": "user", "content": "Please emit a valid envelope."}]
DELAY = {"delayMs": {"type": "variable", "variableName": "delayMs"}}


def node(name: str, kind: str, config: dict[str, Any] | None = None, inputs: dict[str, Any] | None = None) -> Any:
    return {"id": name, "typeId": kind, "config": config or {}, "inputs": inputs or {}}


def model(name: str, **config: Any) -> Any:
    settings = {"provider": "mock", "model": "mock-mini", "outputSchema": SCHEMA, **config}
    return node(name, "core.ai.structuredOutput", settings, {"messages": {"type": "static", "value": MESSAGES}})


def variable(name: str, kind: str, **more: Any) -> Any:
    return {"name": name, "type": kind, **more}


def workflow(name: str, nodes: list[Any], variables: list[Any] | None = None, **more: Any) -> dict[str, Any]:
    edges = [
        {"id": f"{one['id']}-{other['id']}", "sourceNodeId": one["id"], "targetNodeId": other["id"]}
        for one, other in pairwise(nodes)
    ]
    settings = {"timeout": 60_000, **more.pop("settings", {})}
    return {"id": name, "nodes": nodes, "edges": edges, "variables": variables or [], "settings": settings, **more}


def conformance() -> list[dict[str, Any]]:
    noop, hold, effect = "core.noop", "core.conformance.hold", "core.conformance.side-effect"
    loop = workflow(
        "conformance-replay-ordinal-loop",
        [node("start", noop), node("effect", effect), node("wait", hold, None, DELAY)],
        [variable("delayMs", "number", defaultValue=50)],
        settings={"timeout": 0, "maxLoopbackIterations": 2},
    )
    loop["edges"][0]["triggerRule"] = "any_success"
    back = {"id": "wait-effect", "sourceNodeId": "wait", "targetNodeId": "effect", "triggerRule": "any_success"}
    loop["edges"].append(back)
    delay = [variable("delayMs", "number", required=True)]
    return [
        workflow("conformance-noop", [node("noop", noop)]),
        workflow("conformance-multi-node", [node("a", noop), node("b", noop), node("c", noop)]),
        workflow("conformance-idempotent", [node("noop", noop)], [variable("nonce", "string", required=True)]),
        workflow("conformance-failure", [node("fail", "core.conformance.fail")]),
        workflow("conformance-delay", [node("delay", "core.delay", None, DELAY)], delay),
        workflow("conformance-cancellable", [node("delay", "core.delay", None, DELAY)], delay),
        workflow(
            "conformance-identity",
            [node("identity", "core.identity", None, {"payload": {"type": "variable", "variableName": "payload"}})],
            [variable("payload", "object", required=True)],
        ),
        workflow("conformance-nondeterminism", [node("draw", "core.conformance.nondeterminism")]),
        workflow("conformance-phase4-replay-divergence", [model("structured-call")]),
        workflow(
            "conformance-phase4-nondet-tool",
            [node("nondet-tool", noop, {"nondeterministic": True}), model("structured-after-nondet")],
        ),
        workflow(
            "conformance-replay-side-effect",
            [node("wait", hold, None, DELAY), node("effect", effect)],
            [variable("delayMs", "number", required=True, defaultValue=30_000)],
        ),
        workflow("conformance-envelope-retry-attempted", [model("retry-attempted-structured-call")]),
        workflow("conformance-envelope-retry-exhausted", [model("retry-exhausted-structured-call")]),
        loop,
    ]


def write(folder: Path, *more: dict[str, Any]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for one in (*conformance(), *more):
        (folder / f"{one['id'].replace(':', '_')}.json").write_text(json.dumps(one))
    return folder
