"""The first thing a process does with an SDK may be a replay: what Python asks the machine once is no escape."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.another_pytest import PYTEST
from tests.fake_provider import FakeProvider, Reply

_TESTS = """
import os, openai, pytest
import antiphon

@pytest.mark.antiphon
def test_agent():
    client = antiphon.wrap(openai.OpenAI(api_key="none", base_url=os.environ["URL"] + "/v1"))
    said = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert said.choices[0].message.content == "hello"
"""


def test_a_golden_test_replays_in_a_process_that_has_not_used_the_sdk_before(tmp_path: Path) -> None:
    (tmp_path / "test_agent.py").write_text(_TESTS)

    def pytest_says(*flags: str) -> str:
        command = [*PYTEST, *flags]
        env = {**os.environ, "URL": provider.url}
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300).stdout

    with FakeProvider([Reply("hello")]) as provider:
        assert "1 passed" in pytest_says("--antiphon-record")
    found = pytest_says()
    assert "1 passed" in found, found
    assert provider.requests == 1
