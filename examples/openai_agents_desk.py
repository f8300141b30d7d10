"""OpenAI Agents: an agent whose model is recorded and whose tool runs once, replayed without model and mail.

    python examples/openai_agents_desk.py

The model is scripted, so no key is needed; live, use ``model="gpt-5"``.
"""

import os

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

import antiphon
from antiphon.adapters.openai_agents import protect

set_tracing_disabled(True)
TICKET = f"ticket-{os.urandom(4).hex()}"  # yours comes from the conversation
sent: list[str] = []


@function_tool
def send_email(to: str, text: str) -> str:
    """Send an e-mail."""
    sent.append(to)
    return f"sent to {to}"


async def desk(question: str) -> str:
    asked = {"to": "ada", "text": "It is on its way."}
    model = ScriptedModel([[function_call("send_email", asked, call_id="call_1")], [assistant_message("Told Ada.")]])
    agent = Agent(name="desk", instructions="Answer the customer.", model=model, tools=[send_email])
    agent = protect(agent, tools={"send_email": {"idempotent": False, "effect": "write"}}, session=TICKET)
    return str((await Runner.run(agent, question)).final_output)


def main() -> None:
    run = antiphon.record(desk, "Where is my order?")
    report = antiphon.replay(run, function=desk, mode="strict")
    assert report.passed and len(sent) == 1
    print(f"{run.output} {len(sent)} mail sent, replayed: {report.verdict}")


if __name__ == "__main__":
    main()
