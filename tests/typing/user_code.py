"""Code as users write it; never run, only read by mypy: the types they rely on."""

from __future__ import annotations

from typing import assert_type

import antiphon
from antiphon.contract.result import ToolResultEnvelope
from antiphon.stores import MemoryStore

gateway = antiphon.Gateway(store=MemoryStore())
fleet = antiphon.AsyncGateway(store=MemoryStore())


@gateway.tool(idempotent=False)
def send(to: str, *, copies: int = 1) -> list[str]:
    return [to] * copies


@fleet.tool(idempotent=True, name="lookup")
async def look_up(order: int) -> dict[str, int]:
    return {"order": order}


def synchronous() -> None:
    assert_type(send("ada", copies=2), list[str])
    assert_type(gateway.execute({"any": "envelope"}), ToolResultEnvelope)
    send(1)  # type: ignore[arg-type]
    send("ada", copy=2)  # type: ignore[call-arg]
    gateway.tool()(synchronous)  # type: ignore[call-overload]


async def asynchronous() -> None:
    assert_type(await look_up(7), dict[str, int])
    assert_type(await fleet.execute({"any": "envelope"}), ToolResultEnvelope)


def keys() -> None:
    assert_type(antiphon.canonical_json({"a": [1, 2.5, None]}), bytes)
    assert_type(
        antiphon.idempotency_key(namespace="mail", tool="send", params={"to": "ada"}, session="s", actor="a"), str
    )
    assert_type(antiphon.llm_cache_key({"model": "m"}, recipe="semantic-request-v2"), str)
    antiphon.llm_cache_key({}, recipe="unknown")  # type: ignore[arg-type]
    antiphon.canonical_request({}, provider="nobody")  # type: ignore[arg-type]
    antiphon.ToolSpec(name="send")  # type: ignore[call-arg]


def errors() -> None:
    try:
        send("ada")
    except antiphon.AntiphonError as error:
        assert_type(error.code, str)
        assert_type(error.hint, str)
