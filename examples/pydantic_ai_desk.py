"""Pydantic AI: a protected agent; two runs of one ticket send one mail, and a changed prompt fails the replay.

    python examples/pydantic_ai_desk.py

``TestModel`` calls every tool once and needs no key; live, use ``Agent("openai:gpt-5", …)``.
"""

import os

from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

import antiphon
from antiphon.adapters.pydantic_ai import protect

TICKET = f"ticket-{os.urandom(4).hex()}"  # yours comes from the conversation
sent: list[str] = []


def send_email(to: str) -> str:
    """Send an e-mail."""
    sent.append(to)
    return f"sent to {to}"


async def desk(question: str, instructions: str = "Be kind.") -> str:
    agent = Agent(TestModel(), instructions=instructions, tools=[send_email])
    declared = {"send_email": {"idempotent": False, "effect": "write"}}
    return str((await protect(agent, tools=declared, session=TICKET).run(question)).output)


async def unkind(question: str) -> str:
    return await desk(question, instructions="Be short.")


def main() -> None:
    run = antiphon.record(desk, "Write to somebody")
    same = antiphon.replay(run, function=desk, mode="strict")
    other = antiphon.replay(run, function=unkind, mode="strict")
    assert same.passed and not other.passed and len(sent) == 1
    print(f"{len(sent)} mail sent, unchanged: {same.verdict}, other instructions: {other.verdict}")


if __name__ == "__main__":
    main()
