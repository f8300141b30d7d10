"""agenttape playing back the recorded calls of a function and of a model."""

import tempfile
from pathlib import Path

import agenttape

ANSWER = {"hits": [{"title": "x" * 40, "url": "y" * 60, "text": "z" * 200} for _ in range(3)]}


@agenttape.tool
def search(query, number):
    return ANSWER


def _tools(calls):
    for number in range(calls):
        assert search("what a person asks " * 30, number) == ANSWER


def _models(calls):
    for number in range(calls):
        messages = [{"role": "user", "content": f"{number} " + "what a person asks " * 30}]
        request = {"model": "m", "temperature": 0, "messages": messages}
        assert agenttape.record_call("llm", request, lambda: ANSWER) == ANSWER


def _playback(main, calls):
    with tempfile.TemporaryDirectory() as folder:
        cassette = Path(folder) / "cassette.yaml"
        with agenttape.use_cassette(cassette, mode="record"):
            main(calls)
        opened = []

        def replay(n):
            main(calls)

        def prepare():  # to open the cassette is not what is measured
            if opened:
                opened.pop().__exit__(None, None, None)
            session = agenttape.use_cassette(cassette, mode="none")
            opened.append(session.__enter__())

        replay.prepare = prepare
        yield replay


def tools(calls):
    yield from _playback(_tools, calls)


def models(calls):
    yield from _playback(_models, calls)
