"""A model provider on loopback: real HTTP, four wire formats, streaming, tool calls, refusals and errors. It counts.

Replies are written once, free of any vendor, and spoken in the dialect of the path that was asked:

>>> with FakeProvider([Reply("hello")]) as provider:                             # doctest: +SKIP
...     client = openai.OpenAI(base_url=provider.url + "/v1", api_key="none")
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple, Self


class ToolCall(NamedTuple):
    """A call the model asks for."""

    name: str
    arguments: dict[str, Any]
    id: str = "call_1"


class Reply(NamedTuple):
    """What the model answers, whatever the wire format."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    refusal: str | None = None
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    raw: bytes | None = None
    """Sent as it is, for shapes nobody knows."""
    pause: float = 0.0
    """Seconds between the pieces of a stream."""
    break_after: int | None = None
    """Cut the connection after this many pieces."""


Answer = Callable[[dict[str, Any]], Reply]
_PATHS = (
    (re.compile(r"/chat/completions$"), "openai-chat"),
    (re.compile(r"/responses$"), "openai-responses"),
    (re.compile(r"/v1/messages$"), "anthropic"),
    (re.compile(r":generateContent$"), "gemini"),
    (re.compile(r":streamGenerateContent$"), "gemini-stream"),
)


class FakeProvider:
    """Answers from a list, in order, or from a function of the request body."""

    def __init__(self, replies: Iterable[Reply] | Answer = ()) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.sent_headers: list[dict[str, str]] = []
        self._lock = threading.Lock()
        self._answer: Answer | None = replies if callable(replies) else None
        self._script: list[Reply] = [] if callable(replies) else list(replies)
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                provider._serve(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Stay quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.switch_off()

    def switch_off(self) -> None:
        """From now on connections are refused."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    @property
    def requests(self) -> int:
        """How many requests came in."""
        return len(self.bodies)

    def _next(self, body: dict[str, Any]) -> Reply:
        with self._lock:
            self.bodies.append(body)
            if self._answer is not None:
                return self._answer(body)
            return self._script.pop(0) if self._script else Reply(status=500, text="the script is used up")

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        body = json.loads(handler.rfile.read(int(handler.headers.get("content-length", 0))) or b"{}")
        with self._lock:
            self.sent_headers.append({name.lower(): value for name, value in handler.headers.items()})
        dialect = next((name for pattern, name in _PATHS if pattern.search(path)), "")
        reply = self._next(body)
        if reply.raw is not None:
            _whole(handler, reply, reply.raw)
        elif reply.status >= 400:
            error = {"error": {"message": reply.text or "no", "type": "error", "code": reply.status}}
            _whole(handler, reply, json.dumps(error).encode())
        elif dialect == "gemini-stream":
            _pieces(handler, reply, _gemini_stream(reply))
        elif body.get("stream"):
            _pieces(handler, reply, _STREAMS[dialect](reply))
        else:
            _whole(handler, reply, json.dumps(_WHOLE[dialect](reply)).encode())


def _whole(handler: BaseHTTPRequestHandler, reply: Reply, data: bytes) -> None:
    handler.send_response(reply.status)
    handler.send_header("content-type", "application/json")
    handler.send_header("content-length", str(len(data)))
    for name, value in reply.headers:
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)


def _pieces(handler: BaseHTTPRequestHandler, reply: Reply, pieces: Iterable[bytes]) -> None:
    handler.send_response(200)
    handler.send_header("content-type", "text/event-stream")
    handler.send_header("transfer-encoding", "chunked")
    for name, value in reply.headers:
        handler.send_header(name, value)
    handler.end_headers()
    for number, piece in enumerate(pieces):
        if reply.break_after is not None and number >= reply.break_after:
            handler.close_connection = True
            handler.connection.close()
            return
        if number and reply.pause:
            time.sleep(reply.pause)
        handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        handler.wfile.flush()
    handler.wfile.write(b"0\r\n\r\n")


def _event(data: Any, name: str = "") -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


def _words(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


# -- OpenAI chat -------------------------------------------------------------------------------------------------


def _chat_calls(reply: Reply) -> list[dict[str, Any]]:
    return [
        {
            "index": place,
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
        }
        for place, call in enumerate(reply.calls)
    ]


def _chat(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": reply.refusal}
    if reply.calls:
        message["tool_calls"] = [{k: v for k, v in call.items() if k != "index"} for call in _chat_calls(reply)]
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "fake-1",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if reply.calls else "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12},
    }


def _chat_stream(reply: Reply) -> Iterator[bytes]:
    def chunk(delta: dict[str, Any], reason: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "fake-1"}
        return _event({**head, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    for word in _words(reply.text):
        yield chunk({"content": word})
    if reply.refusal:
        yield chunk({"refusal": reply.refusal})
    if reply.calls:
        yield chunk({"tool_calls": _chat_calls(reply)})
    yield chunk({}, "tool_calls" if reply.calls else "stop")
    yield b"data: [DONE]\n\n"


# -- OpenAI responses --------------------------------------------------------------------------------------------


def _responses(reply: Reply) -> dict[str, Any]:
    output: list[dict[str, Any]] = []
    if reply.text or reply.refusal:
        part: dict[str, Any] = {"type": "output_text", "text": reply.text, "annotations": []}
        if reply.refusal:
            part = {"type": "refusal", "refusal": reply.refusal}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        output.append(message)
    for place, call in enumerate(reply.calls):
        item = {"id": f"fc_{place}", "type": "function_call", "status": "completed", "call_id": call.id}
        output.append({**item, "name": call.name, "arguments": json.dumps(call.arguments)})
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": "fake-1",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            "input_tokens": 5,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 7,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 12,
        },
    }


def _responses_stream(reply: Reply) -> Iterator[bytes]:
    whole = _responses(reply)
    number = 0

    def event(kind: str, **fields: Any) -> bytes:
        nonlocal number
        number += 1
        return _event({"type": kind, "sequence_number": number, **fields}, kind)

    yield event("response.created", response={**whole, "status": "in_progress", "output": []})
    for place, item in enumerate(whole["output"]):
        yield event("response.output_item.added", output_index=place, item={**item, "content": []})
        if item["type"] == "message" and not reply.refusal:
            where = {"output_index": place, "content_index": 0, "item_id": item["id"]}
            empty = {"type": "output_text", "text": "", "annotations": []}
            yield event("response.content_part.added", **where, part=empty)
            for word in _words(reply.text):
                yield event("response.output_text.delta", **where, delta=word, logprobs=[])
            yield event("response.output_text.done", **where, text=reply.text, logprobs=[])
        yield event("response.output_item.done", output_index=place, item=item)
    yield event("response.completed", response=whole)


# -- Anthropic ---------------------------------------------------------------------------------------------------


def _anthropic(reply: Reply) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": reply.text}] if reply.text else []
    content += [{"type": "tool_use", "id": c.id, "name": c.name, "input": c.arguments} for c in reply.calls]
    if reply.refusal:
        content = [{"type": "text", "text": reply.refusal}]
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "fake-1",
        "content": content,
        "stop_reason": "refusal" if reply.refusal else "tool_use" if reply.calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 5, "output_tokens": 7},
    }


def _anthropic_stream(reply: Reply) -> Iterator[bytes]:
    whole = _anthropic(reply)
    start = {**whole, "content": [], "stop_reason": None}
    yield _event({"type": "message_start", "message": start}, "message_start")
    for place, block in enumerate(whole["content"]):
        if block["type"] == "text":
            empty: dict[str, Any] = {"type": "text", "text": ""}
            deltas = [{"type": "text_delta", "text": word} for word in _words(block["text"])]
        else:
            empty = {**block, "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": json.dumps(block["input"])}]
        name = "content_block_start"
        yield _event({"type": name, "index": place, "content_block": empty}, name)
        for delta in deltas:
            yield _event({"type": "content_block_delta", "index": place, "delta": delta}, "content_block_delta")
        yield _event({"type": "content_block_stop", "index": place}, "content_block_stop")
    end = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield _event({"type": "message_delta", "delta": end, "usage": {"output_tokens": 7}}, "message_delta")
    yield _event({"type": "message_stop"}, "message_stop")


# -- Gemini ------------------------------------------------------------------------------------------------------


def _gemini(reply: Reply, parts: list[dict[str, Any]] | None = None, last: bool = True) -> dict[str, Any]:
    if parts is None:
        parts = [{"text": reply.text}] if reply.text else []
        parts += [{"functionCall": {"id": c.id, "name": c.name, "args": c.arguments}} for c in reply.calls]
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    if last:
        candidate["finishReason"] = "SAFETY" if reply.refusal else "STOP"
    usage = {"promptTokenCount": 5, "candidatesTokenCount": 7, "totalTokenCount": 12}
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "fake-1"}


def _gemini_stream(reply: Reply) -> Iterator[bytes]:
    for word in _words(reply.text):
        yield _event(_gemini(reply, [{"text": word}], last=False))
    calls = [{"functionCall": {"id": c.id, "name": c.name, "args": c.arguments}} for c in reply.calls]
    yield _event(_gemini(reply, calls))


_WHOLE: dict[str, Callable[[Reply], dict[str, Any]]] = {
    "openai-chat": _chat,
    "openai-responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini,
}
_STREAMS: dict[str, Callable[[Reply], Iterator[bytes]]] = {
    "openai-chat": _chat_stream,
    "openai-responses": _responses_stream,
    "anthropic": _anthropic_stream,
}
