"""The agent whose recordings lie beside it: one of each thing that a run can hold."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import antiphon

app = antiphon.Antiphon()
gateway = app.gateway
KEY = "sk-" + "proj-" + "Ab3dEf6hIj9kLmN0pQrStUvWxYz12345678"
_tries: list[int] = []


@gateway.tool(idempotent=True, effect="read")
def look_up(order: str) -> dict[str, Any]:
    """Fails once."""
    _tries.append(1)
    if len(_tries) == 1:
        raise ConnectionResetError("the line went dead")
    return {"order": order, "status": "lost", "token": KEY}


@gateway.tool(idempotent=False, effect="write")
def refund(order: str, amount: float) -> str:
    """Makes a call of its own."""
    return f"refunded {amount} of {look_up(order)['order']}"


@gateway.tool(idempotent=True, effect="read")
def refuse(order: str) -> str:
    raise ValueError(f"order {order} is closed")


@gateway.tool(idempotent=True, effect="read")
def read_aloud(text: str) -> Iterator[str]:
    yield from (f"{word} " for word in text.split())


def model(request: dict[str, Any]) -> dict[str, Any]:
    said = request["messages"][-1]["content"]
    message = {"role": "assistant", "content": f"You said: {said}"}
    usage = {"prompt_tokens": 12, "completion_tokens": 7}
    return {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}


def streaming(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for word in ("Your ", "key ", "is ", KEY[:20], KEY[20:], "."):
        yield {"choices": [{"index": 0, "delta": {"content": word}}]}


@antiphon.agent(name="triage")
def main(question: str) -> str:
    run = antiphon.current_run()
    at, number, drawn = run.now(), run.random(), run.uuid4()
    text = run.prompt("system", "Help with {topic}.", {"topic": "orders"})
    messages = [{"role": "system", "content": text}, {"role": "user", "content": question}]
    request = {"model": "golden-1", "temperature": 0, "seed": 7, "messages": messages}
    answer = run.llm(request, model)["choices"][0]["message"]["content"]
    spoken = "".join(part["choices"][0]["delta"]["content"] for part in run.llm({**request, "stream": True}, streaming))
    with run.interaction("where is it?") as exchange:
        exchange.finish(refund("1042", 49.9))
    try:
        refuse("1042")
    except ValueError as error:
        answer += f" {error}"
    with ThreadPoolExecutor(2) as pool:
        waiting = [antiphon.submit(pool, look_up, order) for order in ("a", "b")]
        found = [future.result()["order"] for future in waiting]
    aloud = "".join(read_aloud("one two three"))
    run.prompt("long", "x" * 100_000)
    return f"{answer} {len(spoken) > 0} {found} {aloud}{at.year > 2000} {0 <= number < 1} {drawn.version}"
