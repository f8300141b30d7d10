"""SDK clients under one behaviour suite: how each is asked, and what its errors are called."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

import anthropic
import httpx
import httpx2
import openai
from google import genai
from google.genai import errors as google_errors

import antiphon
from antiphon.adapters.google import http_options
from antiphon.adapters.httpx import transport

_USER: Any = "hello"
_CHAT: Any = [{"role": "user", "content": "hello"}]


class Speaker(NamedTuple):
    """One way to ask a model."""

    name: str
    ask: Callable[[str], str]
    """url -> answer"""
    error: type[Exception]
    broken: tuple[type[Exception], ...] | None = None
    """What a stream that was cut raises; ``None`` for answers in one piece."""


def _openai(url: str) -> openai.OpenAI:
    return antiphon.wrap(openai.OpenAI(api_key="none", base_url=f"{url}/v1"))


def _async_openai(url: str) -> openai.AsyncOpenAI:
    return antiphon.wrap(openai.AsyncOpenAI(api_key="none", base_url=f"{url}/v1"))


def _google(url: str) -> Any:
    return genai.Client(api_key="none", http_options=http_options(base_url=url))


def chat(url: str) -> str:
    return _openai(url).chat.completions.create(model="m", messages=_CHAT).choices[0].message.content or ""


def chat_stream(url: str) -> str:
    with _openai(url).chat.completions.create(model="m", messages=_CHAT, stream=True) as stream:
        return "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def chat_async(url: str) -> str:
    async def main() -> str:
        answer = await _async_openai(url).chat.completions.create(model="m", messages=_CHAT)
        return answer.choices[0].message.content or ""

    return asyncio.run(main())


def chat_stream_async(url: str) -> str:
    async def main() -> str:
        stream = await _async_openai(url).chat.completions.create(model="m", messages=_CHAT, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    return asyncio.run(main())


def responses(url: str) -> str:
    return _openai(url).responses.create(model="m", input=_USER).output_text


def responses_stream(url: str) -> str:
    text = ""
    for event in _openai(url).responses.create(model="m", input=_USER, stream=True):
        text += event.delta if event.type == "response.output_text.delta" else ""
    return text


def _anthropic(url: str) -> anthropic.Anthropic:
    return antiphon.wrap(anthropic.Anthropic(api_key="none", base_url=url))


def messages(url: str) -> str:
    answer = _anthropic(url).messages.create(model="m", messages=_CHAT, max_tokens=9)
    return "".join(getattr(block, "text", "") for block in answer.content)


def messages_stream(url: str) -> str:
    with _anthropic(url).messages.stream(model="m", messages=_CHAT, max_tokens=9) as stream:
        return "".join(stream.text_stream)


def messages_async(url: str) -> str:
    async def main() -> str:
        client = antiphon.wrap(anthropic.AsyncAnthropic(api_key="none", base_url=url))
        answer = await client.messages.create(model="m", messages=_CHAT, max_tokens=9)
        return "".join(getattr(block, "text", "") for block in answer.content)

    return asyncio.run(main())


def gemini(url: str) -> str:
    return _google(url).models.generate_content(model="m", contents=_USER).text or ""


def gemini_stream(url: str) -> str:
    return "".join(part.text or "" for part in _google(url).models.generate_content_stream(model="m", contents=_USER))


def gemini_async(url: str) -> str:
    async def main() -> str:
        return (await _google(url).aio.models.generate_content(model="m", contents=_USER)).text or ""

    return asyncio.run(main())


def _raw(module: Any) -> Callable[[str], str]:
    def ask(url: str) -> str:
        with module.Client(transport=transport(module=module)) as client:
            answer = client.post(f"{url}/v1/chat/completions", json={"model": "m", "messages": _CHAT})
            answer.raise_for_status()
            return answer.json()["choices"][0]["message"]["content"] or ""

    return ask


_CUT = (openai.APIConnectionError, httpx2.TransportError)
SPEAKERS = (
    Speaker("openai-chat", chat, openai.APIStatusError),
    Speaker("openai-chat-stream", chat_stream, openai.APIStatusError, _CUT),
    Speaker("openai-chat-async", chat_async, openai.APIStatusError),
    Speaker("openai-chat-stream-async", chat_stream_async, openai.APIStatusError, _CUT),
    Speaker("openai-responses", responses, openai.APIStatusError),
    Speaker("openai-responses-stream", responses_stream, openai.APIStatusError, _CUT),
    Speaker("anthropic", messages, anthropic.APIStatusError),
    Speaker("anthropic-stream", messages_stream, anthropic.APIStatusError, (httpx2.TransportError,)),
    Speaker("anthropic-async", messages_async, anthropic.APIStatusError),
    Speaker("gemini", gemini, google_errors.APIError),
    Speaker("gemini-stream", gemini_stream, google_errors.APIError, (httpx2.TransportError,)),
    Speaker("gemini-async", gemini_async, google_errors.APIError),
    Speaker("httpx", _raw(httpx), httpx.HTTPStatusError),
    Speaker("httpx2", _raw(httpx2), httpx2.HTTPStatusError),
)
