"""Where a model is served and the headers that shape its answers: compared, or named as not compared."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from openai import AzureOpenAI, OpenAI

import antiphon
from antiphon import Antiphon
from antiphon.adapters.httpx import transport
from tests.fake_provider import FakeProvider, Reply
from tests.integration.adapters.world import World


def test_another_endpoint_and_other_headers_are_listed(app: Antiphon, world: World) -> None:
    options: dict[str, Any] = {"base_url": f"{world.provider.url}/v1"}

    def main() -> Any:
        client = antiphon.wrap(OpenAI(api_key="sk-none", max_retries=0, **options))
        asked: Any = [{"role": "user", "content": "hello"}]
        return client.chat.completions.create(model="m", messages=asked).choices[0].message.content

    run = app.record(main)
    same = antiphon.replay(run, app=app, mode="strict", function=main)
    assert same["changes"] == {}
    assert same["notCompared"] == []
    options |= {"base_url": "https://other.example/v1", "default_headers": {"OpenAI-Beta": "assistants=v2"}}
    report = antiphon.replay(run, app=app, mode="strict", function=main)
    changed = report["changes"]["llm_config"]
    assert changed["endpoint"] == {"artifact": f"{world.provider.url}/v1", "current": "https://other.example/v1"}
    assert "assistants=v2" in str(changed["headers['openai-beta']"])
    assert "other.example" in report.text()
    assert "$.headers['openai-beta']" in report.divergences[0]["message"]
    options |= {"default_headers": {"OpenAI-Project": "p2"}}
    assert antiphon.replay(run, app=app, mode="strict", function=main).passed, "who pays and where is no answer"
    assert "sk-none" not in str([event.meta for event in run.events()])


def test_another_deployment_is_another_model(app: Antiphon, world: World) -> None:
    """Azure serves what the address names; the body may say anything."""
    options: dict[str, Any] = {"azure_deployment": "large", "azure_endpoint": world.provider.url}

    def main() -> Any:
        client = antiphon.wrap(AzureOpenAI(api_key="none", max_retries=0, api_version="2024-10-21", **options))
        asked: Any = [{"role": "user", "content": "hello"}]
        return client.chat.completions.create(model="m", messages=asked).choices[0].message.content

    run = app.record(main)
    assert antiphon.replay(run, app=app, mode="strict", function=main).passed
    options["azure_endpoint"] = "https://other.example"
    assert antiphon.replay(run, app=app, mode="strict", function=main).passed
    options["azure_deployment"] = "small"
    report = antiphon.replay(run, app=app, mode="strict", function=main)
    assert "$.deployment: 'large' -> 'small'" in report.divergences[0]["message"]
    options["base_url"] = "https://other.example/v1"
    del options["azure_endpoint"], options["azure_deployment"]
    assert antiphon.replay(run, app=app, mode="strict", function=main).passed, "a service without deployments"


@pytest.mark.parametrize("recorded", [False, True])
def test_a_stream_in_place_of_a_whole_answer_is_named(app: Antiphon, world: World, recorded: bool) -> None:
    stream = [recorded]

    def main() -> str:
        client = antiphon.wrap(OpenAI(api_key="sk-none", max_retries=0, base_url=f"{world.provider.url}/v1"))
        asked: Any = [{"role": "user", "content": "hello"}]
        answer: Any = client.chat.completions.create(model="m", messages=asked, stream=stream[0])
        return str(sum(1 for _ in answer) if stream[0] else answer.choices[0].message.content)

    run = app.record(main)
    assert antiphon.replay(run, app=app, mode="strict", function=main).passed
    stream[0] = not recorded
    report = antiphon.replay(run, app=app, mode="strict", function=main)
    assert f"$.stream: {recorded} -> {not recorded}" in report.divergences[0]["message"]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("status", [200, 503])
def test_a_stream_of_gemini_in_place_of_a_whole_answer_is_named(app: Antiphon, recorded: bool, status: int) -> None:
    """Its address says it, not its body; also where the answer is an error."""
    stream = [recorded]

    def main() -> int:
        verb = "streamGenerateContent?alt=sse" if stream[0] else "generateContent"
        client = httpx.Client(transport=transport())
        answer = client.post(f"{provider.url}/v1beta/models/fake-1:{verb}", json={"contents": []})
        return answer.status_code

    with FakeProvider([Reply("one two", status=status)]) as provider:
        run = app.record(main)
    assert run.output == status
    assert antiphon.replay(run, app=app, mode="strict", function=main).passed
    stream[0] = not recorded
    report = antiphon.replay(run, app=app, mode="strict", function=main)
    assert f"$.stream: {recorded} -> {not recorded}" in report.divergences[0]["message"]


def test_a_model_whose_place_is_not_known_is_named_as_not_compared(app: Antiphon) -> None:
    def main() -> Any:
        request = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        return antiphon.current_run().llm(request, lambda body: {"choices": [{"message": {"content": "x"}}]})

    run = app.record(main)
    report = antiphon.replay(run, app=app, mode="strict", function=main)
    assert report["notCompared"] == ["llm_config.endpoint", "llm_config.headers"]
