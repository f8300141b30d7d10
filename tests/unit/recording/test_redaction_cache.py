"""A conversation is looked at for secrets message by message, and nothing is found less often for that."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon._recording import recorder
from antiphon._recording.recorder import RedactionCache
from antiphon.redact import Redactor, Rule, Rules
from antiphon.redact._standins import Pseudonyms

SECRET = "sk-ant-api03-" + "aB3dE5fG7hJ9kL1mN" * 4
TEXTS = st.sampled_from(
    [
        "hello",
        "write to ana@example.org",
        f"my key is {SECRET}",
        "call +49 30 1234567",
        "quiet",
        '{"password": "hunter2x"}',
    ]
)
PARTS = st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}) | st.fixed_dictionaries(
    {"type": st.just("toolCall"), "name": st.just("f"), "arguments": st.dictionaries(st.sampled_from("ab"), TEXTS)}
)
MESSAGES = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXTS | st.lists(PARTS)})
NAMED = st.fixed_dictionaries({"role": st.just("user"), "content": TEXTS, "password": TEXTS})
TOOLS = st.lists(st.fixed_dictionaries({"name": st.just("f"), "description": TEXTS}), max_size=2)


def request(messages: list[Any], tools: list[Any]) -> dict[str, Any]:
    return {"model": "m", "provider": "openai", "messages": messages, "tools": tools}


@given(st.lists(MESSAGES | NAMED | TEXTS, max_size=6), TOOLS)
def test_as_much_is_found_as_in_the_whole(messages: list[Any], tools: list[Any]) -> None:
    redactor = Redactor().for_run(b"k" * 32)
    heard = RedactionCache(redactor)
    for end in [*range(len(messages) + 1), len(messages)]:
        asked = request(messages[:end], tools)
        assert heard.has_no_secret(asked) is (redactor.redact(asked) == asked)


class Counting:
    """A redactor that tells how much it was given to look at."""

    in_parts = True

    def __init__(self) -> None:
        self.bytes = 0
        self.pseudonyms = Pseudonyms(b"k")

    def redact_bytes(self, document: bytes) -> tuple[bytes, bool]:
        self.bytes += len(document)
        return document, False


def test_only_what_is_new_is_looked_at() -> None:
    counting: Any = Counting()
    heard = RedactionCache(counting)
    messages: list[Any] = []
    for n in range(100):
        messages.append({"role": "user", "content": f"message {n} " + "word " * 200})
        messages.append({"role": "tool", "toolCallId": f"c{n}", "content": [{"type": "text", "text": "found " * 100}]})
        assert heard.has_no_secret(request(messages, []))
    assert counting.bytes < 1.2 * sum(len(str(message)) for message in messages)


def test_rules_of_users_are_asked_about_the_whole() -> None:
    redactor = Redactor(Rules(user=(Rule(name="talk", field="messages"),)), salt="run").for_run(b"k" * 32)
    asked = request([{"role": "user", "content": "hello"}], [])
    assert redactor.redact(asked) != asked
    assert not RedactionCache(redactor).has_no_secret(asked)


def test_it_forgets_before_it_grows_large(monkeypatch: Any) -> None:
    monkeypatch.setattr(recorder, "_LENGTH_KEPT", 1000)
    heard = RedactionCache(Redactor().for_run(b"k" * 32))
    for n in range(100):
        assert heard.has_no_secret(request([{"role": "user", "content": f"{n} " + "quiet " * 20}], []))
    assert sum(map(len, heard._known)) < 2000


def test_the_planted_bug_is_found() -> None:
    """If what had a secret were remembered, the second request with it would pass."""
    heard = RedactionCache(Redactor().for_run(b"k" * 32))
    asked = request([{"role": "user", "content": f"my key is {SECRET}"}], [])
    assert [heard.has_no_secret(asked) for _ in range(2)] == [False, False]
    heard._known.add(asked["messages"][0]["content"])
    assert heard.has_no_secret(asked), "the bug, planted"


HELLO = {"role": "user", "content": "hello"}
KNOWN = {"model": "m", "provider": "p", "messages": [HELLO], "tools": []}
WORD = "hunter2Hunter9zz"


@pytest.mark.parametrize(
    "request_",
    [
        KNOWN | {"messages": [{"password": WORD, "content": "hello"}]},
        KNOWN | {"messages": [{"role": "sk-ant-api03-AbC123dEf456GhI789jKl012MnO345", "content": "hello"}]},
        {"model": "m", "provider": "p", "messages": [HELLO], "api_key": WORD},
        {"model": "m", "provider": "p", "messages": [HELLO], "user": "ada@example.org"},
        {"messages": ["X-Api-Key", WORD]},
        KNOWN | {"messages": [["X-Api-Key", WORD]]},
        KNOWN | {"messages": [{"role": ["user"], "content": "hello", "pin": "4821"}]},
    ],
)
def test_what_only_looks_like_something_known_is_looked_at(request_: dict[str, Any]) -> None:
    redactor = Redactor().for_run(b"k" * 32)
    redaction_cache = RedactionCache(redactor)
    assert redaction_cache.has_no_secret(KNOWN)
    assert not redaction_cache.has_no_secret(request_)


def test_a_role_may_be_anything() -> None:
    redaction_cache = RedactionCache(Redactor().for_run(b"k" * 32))
    assert redaction_cache.has_no_secret(KNOWN | {"messages": [{"role": ["user"], "content": "hello"}]})
