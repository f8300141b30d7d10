"""A LangChain chat model whose calls are recorded, and answered by a replay: for code that uses no middleware."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, BaseMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableBinding

from antiphon.adapters import _langchain as plain
from antiphon.adapters._model import Asking, ask, ask_async
from antiphon.adapters._seam import recording_scope


class RecordedChatModel(BaseChatModel):
    """Wraps another chat model. Use :func:`chat_model`."""

    inner: BaseChatModel

    @property
    def _llm_type(self) -> str:
        return f"antiphon-{self.inner._llm_type}"

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Runnable[Any, AIMessage]:
        """Bind the tools as the inner model's own package writes them."""
        bound = self.inner.bind_tools(tools, **options)
        return self.bind(**bound.kwargs) if isinstance(bound, RunnableBinding) else self.bind(tools=list(tools))

    def _asking(self, messages: Sequence[BaseMessage], stop: list[str] | None, options: dict[str, Any]) -> Asking:
        body = plain.request_body(self.inner, messages, options.get("tools") or (), {**options, "stop": stop})
        return plain.asking(
            body, self.inner, lambda said: plain.pack_messages([said]), lambda value: plain.unpack_messages(value)[0]
        )

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        def send() -> Any:
            return self.inner.invoke(messages, stop=stop, **options)

        scope = recording_scope()
        said = send() if scope is None else ask(scope, self._asking(messages, stop, options), send)
        return ChatResult(generations=[ChatGeneration(message=said)])

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> ChatResult:
        async def send() -> Any:
            return await self.inner.ainvoke(messages, stop=stop, **options)

        scope = recording_scope()
        said = await send() if scope is None else await ask_async(scope, self._asking(messages, stop, options), send)
        return ChatResult(generations=[ChatGeneration(message=said)])

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        from antiphon.adapters._model_stream import stream

        def send() -> Iterator[Any]:
            return map(_chunk, self.inner.stream(messages, stop=stop, **options))

        scope = recording_scope()
        pieces = send() if scope is None else stream(scope, self._asking(messages, stop, options), send, _CODEC)
        for piece in pieces:
            yield ChatGenerationChunk(message=piece)

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **options: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        from antiphon.adapters._model_stream import stream_async

        async def send() -> AsyncIterator[Any]:
            async for piece in self.inner.astream(messages, stop=stop, **options):
                yield _chunk(piece)

        scope = recording_scope()
        asked = self._asking(messages, stop, options)
        pieces = send() if scope is None else stream_async(scope, asked, send, _CODEC)
        async for piece in pieces:
            yield ChatGenerationChunk(message=piece)


def _chunk(piece: Any) -> Any:
    """A model that does not stream gives its whole message at once."""
    if isinstance(piece, BaseMessageChunk):
        return piece
    return AIMessageChunk(**{**piece.model_dump(exclude={"type"}), "chunk_position": "last"})


def _whole(pieces: Sequence[Any]) -> Any:
    total: Any = None
    for piece in pieces:
        total = piece if total is None else total + piece
    return AIMessage("") if total is None else total


_CODEC = (
    lambda piece: piece.model_dump(mode="json"),
    lambda data: AIMessageChunk.model_validate(data),
    _whole,
)


def chat_model(inner: BaseChatModel) -> RecordedChatModel:
    """The chat model with its calls recorded, streams included; it is used like the one inside."""
    return inner if isinstance(inner, RecordedChatModel) else RecordedChatModel(inner=inner)
