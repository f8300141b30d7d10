"""LangGraph with SQLite checkpoints: a process dies in the middle of a tool node; after the restart nothing runs twice.

    python examples/langgraph_checkpoints.py

On its own, LangGraph runs the finished calls of an interrupted node again. Antiphon answers them from their records.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from langchain_core.messages import AIMessage
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph

from antiphon.adapters.langchain import protect

LEDGER = Path("refunds.txt")


def refund(order: str) -> str:
    """Refund an order."""
    with LEDGER.open("a") as ledger:
        ledger.write(f"{order}\n")
    return f"refunded {order}"


def notify(order: str) -> str:
    """Tell the customer."""
    if "--crash" in sys.argv:
        while not LEDGER.exists():
            time.sleep(0.01)
        time.sleep(0.5)
        os._exit(9)  # the machine goes down after the refund, before the node is finished
    return f"told the customer about {order}"


def model(state: MessagesState) -> dict[str, list[AIMessage]]:
    """Scripted, in place of a chat model: asks for both tools at once, then answers."""
    if isinstance(state["messages"][-1], AIMessage) or state["messages"][-1].type == "human":
        calls = [{"name": name, "args": {"order": "1042"}, "id": f"call_{name}"} for name in ("refund", "notify")]
        return {"messages": [AIMessage("", tool_calls=calls, id="m1")]}
    return {"messages": [AIMessage("All done.", id="m2")]}


def route(state: MessagesState) -> str:
    message = state["messages"][-1]
    return "tools" if isinstance(message, AIMessage) and message.tool_calls else END


def run(given: dict[str, object] | None, thread: str) -> str:
    declared = {"refund": {"idempotent": False, "effect": "write"}, "notify": {"idempotent": True, "effect": "write"}}
    graph = StateGraph(MessagesState)
    graph.add_node("model", model)
    graph.add_node("tools", protect([refund, notify], tools=declared))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", route, ["tools", END])
    graph.add_edge("tools", "model")
    with SqliteSaver.from_conn_string("checkpoints.db") as saver:
        state = graph.compile(checkpointer=saver).invoke(
            given, {"configurable": {"thread_id": thread}}, durability="sync"
        )
    return str(state["messages"][-1].text)


def main() -> None:
    for left in (LEDGER, Path("checkpoints.db")):
        left.unlink(missing_ok=True)
    thread = f"ticket-{os.urandom(4).hex()}"
    crashed = subprocess.run([sys.executable, __file__, "--crash", thread], check=False)
    assert crashed.returncode == 9
    print(f"before the restart: {LEDGER.read_text().split()}")
    answer = run(None, thread)  # None: go on from the checkpoint
    refunds = LEDGER.read_text().split()
    assert refunds == ["1042"], refunds
    print(f"after the restart:  {refunds}, {answer!r}")


if __name__ == "__main__":
    if "--crash" in sys.argv:
        run({"messages": [("user", "My order 1042 never came")]}, sys.argv[-1])
    else:
        main()
