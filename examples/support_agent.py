"""A support agent, to run, look at and replay by hand:

    antiphon run examples/support_agent.py:main --input '"My order 1042 never arrived"'
    antiphon show
    antiphon replay --strict

The model is scripted, so no key is needed: it looks the order up, refunds it and answers.
"""

from __future__ import annotations

import json
from typing import Any

import antiphon

app = antiphon.Antiphon()
ORDERS = {"1042": {"status": "lost in transit", "total": 49.9}}


@app.gateway.tool(idempotent=True, effect="read")
def look_up(order: str) -> dict[str, Any]:
    """Read an order."""
    return ORDERS[order]


@app.gateway.tool(idempotent=False, effect="write")
def refund(order: str, amount: float) -> str:
    """Give the money back."""
    return f"refunded {amount} for order {order}"


TOOLS: dict[str, Any] = {"look_up": look_up, "refund": refund}
SCRIPT: list[tuple[str, dict[str, Any]]] = [
    ("look_up", {"order": "1042"}),
    ("refund", {"order": "1042", "amount": 49.9}),
]


def model(request: dict[str, Any]) -> dict[str, Any]:
    """What a model would answer, decided by how far the conversation is."""
    done = sum(message["role"] == "tool" for message in request["messages"])
    message: dict[str, Any] = {"role": "assistant", "content": "Order 1042 was lost; I refunded it."}
    if done < len(SCRIPT):
        name, arguments = SCRIPT[done]
        call = {"name": name, "arguments": json.dumps(arguments)}
        message = {"role": "assistant", "content": None}
        message["tool_calls"] = [{"id": f"call_{done + 1}", "type": "function", "function": call}]
    finish = "tool_calls" if "tool_calls" in message else "stop"
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}]}


@antiphon.agent(name="support")
def main(question: str) -> str:
    """Answer one request."""
    run = antiphon.current_run()
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a support agent. Use the tools."},
        {"role": "user", "content": question},
    ]
    while True:
        answer = run.llm({"model": "scripted-1", "temperature": 0, "messages": messages}, model)
        message = answer["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        for call in message["tool_calls"]:
            result = TOOLS[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
