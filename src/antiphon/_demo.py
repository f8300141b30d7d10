"""A support agent: it looks an order up, refunds it and writes to the customer.

The model is scripted and offline, so the agent needs no key; its tools are plain functions that keep their effects in
files under ``DEMO_FOLDER``. ``DEMO_CRASH=1`` kills the process right after the e-mail went out, before anybody could
note that it did. ``DEMO_TYPO=1`` changes one argument, as a careless edit would.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import antiphon

app = antiphon.Antiphon()
gateway = app.gateway

ORDERS = {"1042": {"status": "lost in transit", "total": 49.9, "customer": "ada"}}


def _folder() -> Path:
    return Path(os.environ.get("DEMO_FOLDER", "."))


def _count(name: str) -> int:
    """How often something happened, kept in a file because processes die in this demo."""
    path = _folder() / name
    number = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(number))
    return number


@gateway.tool(idempotent=True, effect="read", dependency="orders")
def lookup_order(order_id: str) -> dict[str, Any]:
    """Read an order from a service that drops its first connection."""
    if _count("lookups") == 1:
        raise ConnectionResetError("the order service closed the connection")
    return ORDERS[order_id]


@gateway.tool(idempotent=False, effect="write")
def refund(order_id: str, amount: float) -> str:
    """Give the money back."""
    with (_folder() / "refunds.txt").open("a") as file:
        file.write(f"{order_id} {amount}\n")
    return f"refunded {amount} for order {order_id}"


@gateway.tool(idempotent=False, effect="write")
def send_email(to: str, text: str) -> str:
    """Write to the customer."""
    with (_folder() / "outbox.txt").open("a") as file:
        file.write(f"{to}: {text}\n")
    if os.environ.get("DEMO_CRASH"):
        os.kill(os.getpid(), signal.SIGKILL)
    return "sent"


def scripted_model(request: dict[str, Any]) -> dict[str, Any]:
    """What a model would answer, decided by how far the conversation is."""
    time.sleep(0.05)
    results = [m for m in request["messages"] if m["role"] == "tool"]
    steps: list[tuple[str, dict[str, Any]]] = [
        ("lookup_order", {"order_id": "1042"}),
        ("refund", {"order_id": "1042", "amount": 49.9}),
        ("send_email", {"to": "ada", "text": "Your order 1042 was lost. We refunded 49.90."}),
    ]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "Order 1042 was lost; I refunded it and told the customer.",
    }
    if len(results) < len(steps):
        name, arguments = steps[len(results)]
        call = {"name": name, "arguments": json.dumps(arguments)}
        message = {"role": "assistant", "content": None}
        message["tool_calls"] = [{"id": f"call_{len(results) + 1}", "type": "function", "function": call}]
    finish = "tool_calls" if "tool_calls" in message else "stop"
    usage = {"prompt_tokens": 40 * len(request["messages"]), "completion_tokens": 20}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}


TOOLS: dict[str, Any] = {"lookup_order": lookup_order, "refund": refund, "send_email": send_email}


@antiphon.agent(name="support")
def main(question: str) -> str:
    """Answer one support request."""
    run = antiphon.current_run()
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are a support agent. Use the tools."},
        {"role": "user", "content": question},
    ]
    while True:
        request = {"model": "scripted-1", "temperature": 0, "messages": messages}
        message = run.llm(request, scripted_model)["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            return str(message["content"])
        for call in message["tool_calls"]:
            function = call["function"]
            arguments = json.loads(function["arguments"])
            if "amount" in arguments and os.environ.get("DEMO_TYPO"):
                arguments["amount"] = round(arguments["amount"])
            try:
                result = TOOLS[function["name"]](**arguments)
            except antiphon.AntiphonError as error:
                result = {"error": error.code, "message": str(error)}
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": json.dumps(result)})
