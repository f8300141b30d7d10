"""LangGraph's functional API: tasks whose results a resumed workflow takes from its checkpoint."""

from itertools import count

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.types import Command, interrupt

ANSWER = {"hits": [{"title": "x" * 40, "url": "y" * 60, "text": "z" * 200} for _ in range(3)]}


def resume(calls):
    executed = []

    @task
    def search(query, number):
        executed.append(number)
        return ANSWER

    @entrypoint(checkpointer=InMemorySaver())
    def flow(calls):
        for number in range(calls):
            search("what a person asks " * 30, number).result()
        for turn in count():  # pauses for ever: each resume starts from the top, with the tasks' recorded results
            interrupt(turn)

    config = {"configurable": {"thread_id": "1"}}
    flow.invoke(calls, config)

    def once(n):
        flow.invoke(Command(resume="go on"), config)
        assert len(executed) == calls

    return once
