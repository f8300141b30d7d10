"""Kurral's tool stubber on a call that no recorded one answers."""

from itertools import cycle

from kurral.models.kurral import ToolCall
from kurral.tool_stubber import ToolStubber


def miss(texts, asked):
    calls = []
    for text in texts:
        arguments = {"query": text}
        key = ToolCall.generate_cache_key("search", arguments)
        calls.append(ToolCall(tool_name="search", input=arguments, cache_key=key))
    stubber = ToolStubber(calls)
    questions = cycle(asked)

    def once():
        assert stubber.stub_tool_call("search", {"query": next(questions)}) is None

    return once
