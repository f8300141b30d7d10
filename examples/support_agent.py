"""A support agent, to run, look at and replay by hand:

    antiphon run examples/support_agent.py:main --input '"My order 1042 never arrived"'
    antiphon show
    antiphon replay --strict

It asks a model which order is meant, looks it up, refunds it and lets the model write the answer. The model is
scripted, so no key is needed.
"""

from __future__ import annotations

import re
from typing import Any

import antiphon

app = antiphon.Antiphon()
ORDERS = {"1042": {"status": "lost in transit", "total": 49.9}}


@app.gateway.tool(idempotent=True, effect="read")
def look_up(order: str) -> dict[str, Any]:
    """Read an order."""
    return ORDERS[order]


@app.gateway.tool(idempotent=False, effect="write", key="order")
def refund(order: str, amount: float) -> str:
    """Give the money back, once per order."""
    return f"refunded {amount} for order {order}"


def model(request: dict[str, Any]) -> dict[str, Any]:
    """Stands in for a provider's API: finds the number in a question, and puts facts into a sentence."""
    said = request["messages"][-1]["content"]
    number = re.search(r"order (\d+)", said)
    content = f"I am sorry. Done: {said}." if number is None or said.startswith("refunded") else number[1]
    return {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}]}


def ask(task: str, content: str) -> str:
    """One recorded call of the model."""
    messages = [{"role": "system", "content": task}, {"role": "user", "content": content}]
    answer = antiphon.current_run().llm({"model": "scripted-1", "temperature": 0, "messages": messages}, model)
    return str(answer["choices"][0]["message"]["content"])


@antiphon.agent(name="support")
def main(question: str) -> str:
    """Answer one request."""
    order = ask("Which order is meant? Answer with its number.", question)
    found = look_up(order)
    if found["status"] != "lost in transit":
        return f"Order {order} is {found['status']}."
    return ask("Tell the customer what was done.", refund(order, found["total"]))
